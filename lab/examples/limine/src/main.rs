//! A kernel that Limine boots, by BIOS or UEFI. It traces one function by Intel PT and prints its call tree, by the
//! short way.
#![no_std]
#![no_main]

mod machine;

use core::sync::atomic::Ordering::Relaxed;
use machine::UsableFrames;
use pc::{RESULT, println, traced};
use pugmark_kernel::arch::PlainMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::short::{FramePool, ShortError, kernel_code, snapshot};

/// The entry, with interrupts disabled.
#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    println!("run limine");
    print_calls().unwrap_or_else(|error| panic!("{error}"));
    println!("ok limine\ndone 1 0");
    pc::exit(true)
}

const TRACE: usize = 32 << 10;

fn print_calls() -> Result<(), ShortError> {
    // SAFETY: Limine has mapped all usable RAM there, write-back.
    let memory = unsafe { FramePool::new(&mut UsableFrames::new(), machine::offset(), TRACE as u64) };
    // SAFETY: the linker puts the kernel's code between these symbols; nothing writes to it.
    let code = [unsafe { kernel_code(&raw const machine::__text_start, &raw const machine::__text_end) }];
    // SAFETY: the kernel runs at CPL 0 on one processor.
    let msr = unsafe { PlainMsr::new() };
    pc::mark_truth(1);
    let trace = snapshot(msr, &memory, TRACE as u64, &PtConfig::new().os(true), traced)?;
    pc::mark_truth(0);
    println!("result {}; lost: {}", RESULT.load(Relaxed), trace.loss());
    for step in trace.calls(&code, &mut [0; TRACE])? {
        let step = step?;
        if step.kind.enters() {
            println!("{:1$}{2:#x}", "", 2 * (step.depth - 1) as usize, step.to);
        }
    }
    Ok(())
}
