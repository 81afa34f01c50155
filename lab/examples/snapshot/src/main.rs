//! A kernel that traces one function by Intel PT and prints its call tree, by the short way.
//!
//! Its physical memory is mapped at an offset, as by the `bootloader` crate, and its memory is single frames.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use machine::frames::SingleFrames;
use machine::symbols::Function;
use machine::{PHYSICAL_MEMORY_OFFSET, println};
use pugmark_kernel::arch::PlainMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::short::{FramePool, ShortError, kernel_code, snapshot};

machine::main!(main);

fn main() {
    println!("run snapshot");
    match print_calls() {
        Ok(()) => println!("ok snapshot\ndone 1 0"),
        Err(error) => panic!("{error}"),
    }
}

const TRACE: usize = 64 << 10;

fn print_calls() -> Result<(), ShortError> {
    // SAFETY: all RAM is mapped there, write-back.
    let memory = unsafe { FramePool::new(&mut SingleFrames, PHYSICAL_MEMORY_OFFSET, TRACE as u64) };
    // SAFETY: the linker puts the kernel's code between these symbols; nothing writes to it.
    let code = [unsafe { kernel_code(&raw const machine::__text_start, &raw const machine::__text_end) }];
    // SAFETY: the kernel runs at CPL 0 on one processor.
    let msr = unsafe { PlainMsr::new() };
    machine::mark_truth(1);
    let trace = snapshot(msr, &memory, TRACE as u64, &PtConfig::new().os(true), traced)?;
    machine::mark_truth(0);
    println!("result {}; lost: {}", RESULT.load(Relaxed), trace.loss());
    for step in trace.calls(&code, &mut [0; TRACE])? {
        let step = step?;
        if step.kind.enters() {
            println!("{:1$}{2}", "", 2 * (step.depth - 1) as usize, Function(step.to));
        }
    }
    Ok(())
}

// The traced code.

static RESULT: AtomicU32 = AtomicU32::new(0);

#[inline(never)]
fn traced() {
    RESULT.store(leaf(tower(4)) + leaf(1), Relaxed);
}

/// Calls itself twice for each height.
#[inline(never)]
fn tower(height: u32) -> u32 {
    match height {
        0 => 0,
        _ => tower(black_box(height - 1)) + tower(black_box(height / 2)) + 1,
    }
}

#[inline(never)]
fn leaf(value: u32) -> u32 {
    black_box(value) ^ 1
}
