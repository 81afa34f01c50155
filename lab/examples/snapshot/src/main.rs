//! A kernel that traces one function by Intel PT and prints its call tree.
//!
//! Its physical memory is mapped at an offset, as by the `bootloader` crate.
#![no_std]
#![no_main]

use core::error::Error;
use core::hint::black_box;
use core::ptr::NonNull;
use machine::symbols::Function;
use machine::{PHYSICAL_MEMORY_OFFSET, frames, println};
use pugmark_decoder_core::calls::Calls;
use pugmark_decoder_core::flow::InsnDecoder;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_kernel::arch::PlainMsr;
use pugmark_kernel::drain::Chunk;
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtConfig, PtUnit, RegionSize};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};

machine::main!(main);

fn main() {
    println!("run snapshot");
    match snapshot() {
        Ok(()) => println!("ok snapshot\ndone 1 0"),
        Err(error) => panic!("{error}"),
    }
}

// The kernel's memory, for the driver.

struct Memory;

// SAFETY: the frame allocator gives each block out once, and all physical memory is mapped, write-back.
unsafe impl Frames for Memory {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        let address = frames::allocate(request.size, request.align)?;
        (address + request.size <= request.limit).then_some(PhysAddr::new(address))
    }
    unsafe fn free(&self, _: PhysAddr, _: Request) {
        // This kernel's allocator never frees.
    }
    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        NonNull::new((PHYSICAL_MEMORY_OFFSET + address.as_u64()) as *mut u8).expect("the offset is not 0")
    }
}

// The tracing.

fn snapshot() -> Result<(), impl Error> {
    // SAFETY: the kernel runs at CPL 0 on one processor.
    let unit = PtUnit::of_this_processor(unsafe { PlainMsr::new() }).unwrap();
    // One contiguous block, so that the trace is one slice. Nothing is overwritten; a full buffer ends the trace.
    let layout = Layout::contiguous_topa(RegionSize::K4, 16);
    let buffer =
        Buffer::allocate(Memory, unit.capabilities(), layout, Mode::StopWhenFull { spare: 1 }).unwrap();
    machine::mark_truth(1);
    let running = unit.start(&PtConfig::new().os(true), buffer).unwrap();
    let result = black_box(traced)(black_box(4));
    let stopped = running.stop().unwrap();
    machine::mark_truth(0);
    println!("result {result}, {} bytes of trace; lost: {}", stopped.trace.len(), stopped.loss);

    let (base, bytes) = machine::code();
    let code = [Section { base, bytes, space: AddressSpace::Any }];
    for chunk in stopped.trace.chunks() {
        let Chunk::Bytes(trace) = chunk else { continue };
        let mut flow = InsnDecoder::new(trace, Image::new(&code));
        flow.sync_forward();
        let (mut calls, mut root) = (Calls::new(), None);
        while let Some(item) = flow.next()? {
            let Some(step) = calls.step(&item) else { continue };
            if step.kind.enters() && step.to == traced as *const () as u64 {
                root = Some(step.depth);
            }
            // From the function's call to its return.
            root = root.filter(|&root| step.depth >= root);
            if let Some(root) = root
                && step.kind.enters()
            {
                println!("{:1$}{2}", "", 2 * (step.depth - root) as usize, Function(step.to));
            }
        }
    }
    Ok::<(), pugmark_decoder_core::Error>(())
}

// The traced code.

#[inline(never)]
fn traced(height: u32) -> u32 {
    leaf(tower(height)) + leaf(1)
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
