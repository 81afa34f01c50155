//! A kernel that UEFI firmware starts, without a boot loader. It leaves the firmware's boot services, then traces one
//! function by Intel PT and prints its call tree, by the short way.
#![no_std]
#![no_main]

mod machine;

use core::sync::atomic::Ordering::Relaxed;
use machine::FirmwareFrames;
use pc::{RESULT, println, traced};
use pugmark_kernel::arch::PlainMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::short::{FramePool, ShortError, kernel_code, snapshot};
use uefi::{Status, boot, entry};

const TRACE: usize = 64 << 10;

#[entry]
fn main() -> Status {
    let image = machine::image();
    // SAFETY: the firmware maps all RAM one to one, write-back, and boot services are there.
    let memory = unsafe { FramePool::new(&mut FirmwareFrames, 0, TRACE as u64) };
    // SAFETY: nothing of boot services is used after this.
    drop(unsafe { boot::exit_boot_services(None) });
    x86_64::instructions::interrupts::disable();
    println!("run uefi\nbase {image:p}");
    print_calls(&memory, image).unwrap_or_else(|error| panic!("{error}"));
    println!("ok uefi\ndone 1 0");
    pc::exit(true)
}

fn print_calls(memory: &FramePool, image: *const u8) -> Result<(), ShortError> {
    let [start, end] = machine::text(image);
    // SAFETY: the kernel's code is there; nothing writes to it.
    let code = [unsafe { kernel_code(start, end) }];
    // SAFETY: the kernel runs at CPL 0 on one processor.
    let msr = unsafe { PlainMsr::new() };
    pc::mark_truth(1);
    let trace = snapshot(msr, memory, TRACE as u64, &PtConfig::new().os(true), traced)?;
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
