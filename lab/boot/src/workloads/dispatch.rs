//! Dynamic dispatch: indirect calls through vtables and function pointers.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::black_box;

use crate::workload::{Mismatch, Workload, expect, numbers};

const COUNT: usize = 60;
const ROUNDS: u64 = 12;

trait Shape {
    fn doubled_area(&self) -> u64;
}

struct Square(u64);
struct Rectangle(u64, u64);
struct Triangle(u64, u64);

impl Shape for Square {
    fn doubled_area(&self) -> u64 {
        2 * self.0 * self.0
    }
}

impl Shape for Rectangle {
    fn doubled_area(&self) -> u64 {
        2 * self.0 * self.1
    }
}

impl Shape for Triangle {
    fn doubled_area(&self) -> u64 {
        self.0 * self.1
    }
}

const OPERATIONS: [fn(u64) -> u64; 4] =
    [|n| n + 1, |n| n ^ 0x55, |n| n.rotate_left(3), |n| n.wrapping_mul(3)];

/// Sums the areas of shapes, and passes a value through a chain of operations.
pub(super) struct Dispatch {
    shapes: Vec<Box<dyn Shape>>,
    area: u64,
    chained: u64,
}

impl Dispatch {
    pub(super) fn new() -> Self {
        let shapes = sides().map(|(kind, a, b)| -> Box<dyn Shape> {
            match kind {
                0 => Box::new(Square(a)),
                1 => Box::new(Rectangle(a, b)),
                _ => Box::new(Triangle(a, b)),
            }
        });
        Self { shapes: shapes.collect(), area: 0, chained: 0 }
    }
}

impl Workload for Dispatch {
    fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.area += black_box(&self.shapes).iter().map(|shape| shape.doubled_area()).sum::<u64>();
        }
        for (kind, _, _) in sides() {
            self.chained = black_box(OPERATIONS)[kind as usize](self.chained);
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        let area = |(kind, a, b)| match kind {
            0 => 2 * a * a,
            1 => 2 * a * b,
            _ => a * b,
        };
        expect("area", self.area, ROUNDS * sides().map(area).sum::<u64>())?;
        let chained = sides().fold(0u64, |value, (kind, _, _)| match kind {
            0 => value + 1,
            1 => value ^ 0x55,
            _ => value.rotate_left(3),
        });
        expect("chain", self.chained, chained)
    }
}

/// Returns kinds from 0 to 2, each with two lengths below 1024.
fn sides() -> impl Iterator<Item = (u64, u64, u64)> {
    numbers(11).take(COUNT).map(|number| ((number >> 32) % 3, number >> 50 & 1023, number >> 40 & 1023))
}
