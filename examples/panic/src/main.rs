//! A kernel that always traces. When it panics, it prints the last hundred functions that it entered.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;
use core::ptr::NonNull;
use machine::symbols::Function;
use machine::{PHYSICAL_MEMORY_OFFSET, frames, println};
use pugmark_decoder_core::calls::Calls;
use pugmark_decoder_core::flow::InsnDecoder;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::drain::{Chunk, KeepAll};
use pugmark_kernel::intel::pt::{self, Buffer, Layout, Mode, PtConfig, PtTracer, PtUnit, RegionSize};
use pugmark_kernel::lapic::{Delivery, XApic};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};
use pugmark_kernel::pmi::Handler;
use pugmark_kernel::slot::Slot;
use spin::Mutex;

machine::main!(main);

fn main() {
    println!("run panic");
    machine::on_panic(last_words);
    start_tracing();
    serve();
}

// The kernel's memory and registers, for the driver.

struct Memory;

// SAFETY: the frame allocator gives each block out once, and all physical memory is mapped, write-back.
unsafe impl Frames for Memory {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        let address = frames::allocate(request.size, request.align)?;
        (address + request.size <= request.limit).then_some(PhysAddr::new(address))
    }
    unsafe fn free(&self, _: PhysAddr, _: Request) {
        // This kernel's allocator takes nothing back.
    }
    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        NonNull::new((PHYSICAL_MEMORY_OFFSET + address.as_u64()) as *mut u8).expect("the offset is not 0")
    }
}

fn processor() -> (GuardedMsr, XApic) {
    // SAFETY: CPL 0; the #GP handler in `machine::traps` obeys `fixup`; there is one processor.
    let msr = unsafe { GuardedMsr::new() };
    // SAFETY: the local APIC's page is mapped there; that it is uncached the firmware's MTRRs say.
    (msr, unsafe { XApic::at_offset(PHYSICAL_MEMORY_OFFSET) })
}

// The tracing.

/// The newest 16 KiB of the trace are kept.
const RING: usize = 16 << 10;
const REGIONS: u32 = (RING / 4096) as u32;
const FUNCTIONS: usize = 100;

/// Nobody takes anything out of the ring while the kernel runs.
type Tracer = PtTracer<GuardedMsr, Memory, KeepAll>;

// SAFETY: there is one processor, and these are its registers.
static SLOT: Slot<Tracer, fn() -> (GuardedMsr, XApic)> =
    unsafe { Slot::new(Handler::new(Delivery::Nmi), processor) };

fn start_tracing() {
    let unit = PtUnit::of_this_processor(processor().0).unwrap();
    let layout = Layout::contiguous_topa(RegionSize::K4, REGIONS);
    let buffer = Buffer::allocate(Memory, unit.capabilities(), layout, Mode::Overwrite).unwrap();
    machine::mark_truth(1);
    let config = PtConfig::new().os(true);
    SLOT.start(|| PtTracer::start(unit, &config, buffer, KeepAll)).unwrap();
}

/// The ring in order, because its newest part begins where its oldest ends. A kernel that panics allocates nothing.
static LINEAR: Mutex<[u8; RING]> = Mutex::new([0; RING]);

/// The panic handler.
fn last_words(info: &PanicInfo<'_>) {
    // First of all, so that what follows does not overwrite what was before.
    let _ = pt::emergency_stop(&mut processor().0);
    machine::mark_truth(0);
    println!("{info}");
    let Ok(Ok((stopped, KeepAll))) = SLOT.stop(|tracer, _| tracer.stop()) else { return };

    let mut linear = LINEAR.lock();
    let mut len = 0;
    for chunk in stopped.trace.chunks() {
        match chunk {
            Chunk::Bytes(bytes) => {
                linear[len..len + bytes.len()].copy_from_slice(bytes);
                len += bytes.len();
            }
            Chunk::Gap(gap) => println!("{gap}"),
        }
    }

    let (base, bytes) = machine::code();
    let code = [Section { base, bytes, space: AddressSpace::Any }];
    let mut flow = InsnDecoder::new(&linear[..len], Image::new(&code));
    let (mut calls, mut last, mut entered) = (Calls::new(), [0; FUNCTIONS], 0);
    while flow.sync_forward().is_some() {
        calls.forget();
        while let Ok(Some(item)) = flow.next() {
            if let Some(step) = calls.step(&item).filter(|step| step.kind.enters()) {
                last[entered % FUNCTIONS] = step.to;
                entered += 1;
            }
        }
    }
    println!("the last {} of {entered} functions:", entered.min(FUNCTIONS));
    for number in entered.saturating_sub(FUNCTIONS)..entered {
        let address = last[number % FUNCTIONS];
        println!("entered {address:#x} {}", Function(address));
    }
    println!("ok panic\ndone 1 0");
}

// What is traced: a server that cannot serve the last of its requests.

const HANDLERS: [fn(usize) -> usize; 3] = [read, write, list];
const FILES: [usize; 5] = [3, 5, 8, 13, 21];

fn serve() {
    for request in 0..6000 {
        black_box(black_box(HANDLERS)[request % 3](request));
    }
    black_box(HANDLERS)[0](black_box(FILES.len()));
}

#[inline(never)]
fn read(request: usize) -> usize {
    // The last request is smaller than all that are kept within the table.
    size(if request == FILES.len() { request } else { request % FILES.len() })
}

#[inline(never)]
fn write(request: usize) -> usize {
    size(request % 2) + size(request % 3)
}

#[inline(never)]
fn list(_: usize) -> usize {
    (0..3).map(size).sum()
}

#[inline(never)]
fn size(file: usize) -> usize {
    FILES[black_box(file)]
}
