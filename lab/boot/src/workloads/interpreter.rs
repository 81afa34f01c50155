//! An interpreter's loop: one indirect jump with many targets.

use alloc::vec;
use alloc::vec::Vec;
use core::hint::black_box;

use crate::workload::{Mismatch, Workload, expect};

/// The sieve finds the primes below this number.
const LIMIT: u64 = 160;

/// An instruction of a machine with registers and memory.
#[derive(Clone, Copy)]
enum Op {
    Set(usize, u64),
    Add(usize, usize),
    Increment(usize),
    Load(usize, usize),
    Store(usize, usize),
    /// Jumps if the register is not zero.
    Branch(usize, usize),
    /// Jumps if the first register is below the second.
    Below(usize, usize, usize),
    Halt,
}

/// Counts primes with Eratosthenes' sieve, in an interpreted program.
pub(super) struct Interpreter {
    program: Vec<Op>,
    memory: Vec<u64>,
    primes: u64,
}

impl Interpreter {
    pub(super) fn new() -> Self {
        // r0: the number; r1: its multiple; r2: the limit; r3: a mark; r4: the count.
        let program = vec![
            Op::Set(0, 2),
            Op::Set(2, LIMIT),
            Op::Set(4, 0),
            // 3: a marked number is not a prime.
            Op::Load(3, 0),
            Op::Branch(3, 12),
            Op::Increment(4),
            Op::Set(1, 0),
            Op::Add(1, 0),
            // 8: mark the multiples.
            Op::Set(3, 1),
            Op::Store(1, 3),
            Op::Add(1, 0),
            Op::Below(1, 2, 9),
            // 12: the next number.
            Op::Increment(0),
            Op::Below(0, 2, 3),
            Op::Halt,
        ];
        Self { program, memory: vec![0; LIMIT as usize], primes: 0 }
    }
}

impl Workload for Interpreter {
    fn run(&mut self) {
        self.primes = interpret(black_box(&self.program), &mut self.memory);
    }

    fn check(&self) -> Result<(), Mismatch> {
        let is_prime = |n: &u64| (2..*n).all(|divisor| !n.is_multiple_of(divisor));
        expect("number of primes", self.primes, (2..LIMIT).filter(is_prime).count() as u64)
    }
}

#[inline(never)]
fn interpret(program: &[Op], memory: &mut [u64]) -> u64 {
    let mut registers = [0u64; 5];
    let mut at = 0;
    loop {
        let op = program[at];
        at += 1;
        match op {
            Op::Set(to, value) => registers[to] = value,
            Op::Add(to, from) => registers[to] += registers[from],
            Op::Increment(to) => registers[to] += 1,
            Op::Load(to, address) => registers[to] = memory[registers[address] as usize],
            Op::Store(address, from) => memory[registers[address] as usize] = registers[from],
            Op::Branch(register, target) if registers[register] != 0 => at = target,
            Op::Below(left, right, target) if registers[left] < registers[right] => at = target,
            Op::Branch(..) | Op::Below(..) => {}
            Op::Halt => return registers[4],
        }
    }
}
