//! A kernel that always traces, on four processors. When one of them panics, it stops all, and each prints the last
//! hundred functions that it entered.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use machine::symbols::Function;
use machine::{PHYSICAL_MEMORY_OFFSET, frames, println, processors};
use pugmark_decoder_core::calls::Calls;
use pugmark_decoder_core::flow::InsnDecoder;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::drain::KeepAll;
use pugmark_kernel::intel::pt::{self, Buffer, Layout, Mode, PtConfig, PtTracer, PtUnit, RegionSize};
use pugmark_kernel::lapic::{Delivery, XApic};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};
use pugmark_kernel::pmi::Handler;
use pugmark_kernel::slot::Slot;
use spin::Mutex;

machine::main!(main);

const PROCESSORS: usize = 4;

fn main() {
    println!("run panic");
    machine::on_panic(stop_all);
    machine::traps::on_nmi(stop_this);
    processors::run_on_all(PROCESSORS, || {
        start_tracing();
        serve();
    });
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
    // SAFETY: CPL 0; the #GP handler in `machine::traps` obeys `fixup`; no thread of this kernel moves.
    let msr = unsafe { GuardedMsr::new() };
    // SAFETY: the local APIC's page is mapped there; that it is uncached the firmware's MTRRs say.
    (msr, unsafe { XApic::at_offset(PHYSICAL_MEMORY_OFFSET) })
}

// The tracing.

/// The newest 16 KiB of each processor's trace are kept.
const RING: usize = 16 << 10;
const REGIONS: u32 = (RING / 4096) as u32;
const FUNCTIONS: usize = 100;

/// Nobody takes anything out of the ring while the kernel runs.
type Tracer = PtTracer<GuardedMsr, Memory, KeepAll>;
type ProcessorSlot = Slot<Tracer, fn() -> (GuardedMsr, XApic)>;

static SLOTS: [ProcessorSlot; PROCESSORS] =
    // SAFETY: each processor uses the slot with its own number, and no thread of this kernel moves.
    [const { unsafe { Slot::new(Handler::new(Delivery::Nmi), processor as _) } }; PROCESSORS];

fn start_tracing() {
    let unit = PtUnit::of_this_processor(processor().0).unwrap();
    let layout = Layout::contiguous_topa(RegionSize::K4, REGIONS);
    let buffer = Buffer::allocate(Memory, unit.capabilities(), layout, Mode::Overwrite).unwrap();
    machine::mark_truth(1 + processors::this() as u32);
    let config = PtConfig::new().os(true);
    SLOTS[processors::this()].start(|| PtTracer::start(unit, &config, buffer, KeepAll)).unwrap();
}

// The panic.

/// A processor has panicked.
static PANIC: AtomicBool = AtomicBool::new(false);
/// How many processors have stopped, and how many have printed what they executed.
static STOPPED: AtomicUsize = AtomicUsize::new(0);
static PRINTED: AtomicUsize = AtomicUsize::new(0);

/// The panic handler.
fn stop_all(info: &PanicInfo<'_>) {
    stop_tracing();
    if PANIC.swap(true, Ordering::AcqRel) {
        // Another processor was first: its NMI comes.
        machine::halt();
    }
    STOPPED.fetch_add(1, Ordering::AcqRel);
    // First of all, so that what the others do now does not overwrite what they did before.
    processors::send_nmi_to_others();
    println!("{info}");
    // A processor that does not answer must not keep the others from being read.
    let stopped = || STOPPED.load(Ordering::Acquire);
    (0_u32..1 << 30).take_while(|_| stopped() < PROCESSORS).for_each(|_| core::hint::spin_loop());
    print_last_functions();
    while PRINTED.load(Ordering::Acquire) < stopped() {
        core::hint::spin_loop();
    }
    println!("{} of {PROCESSORS} processors were stopped", stopped());
    println!("ok panic\ndone 1 0");
}

/// The NMI handler.
fn stop_this(_: u64) {
    stop_tracing();
    assert!(PANIC.load(Ordering::Acquire), "nobody else sends NMIs");
    STOPPED.fetch_add(1, Ordering::AcqRel);
    print_last_functions();
    machine::halt();
}

fn stop_tracing() {
    // It needs nothing of the driver's state, so it works wherever the panic or the NMI came.
    let _ = pt::emergency_stop(&mut processor().0);
    machine::mark_truth(0);
}

/// The ring in order, because its newest part begins where its oldest ends. A kernel that panics allocates nothing. One
/// processor after the other uses it.
static LINEAR: Mutex<[u8; RING]> = Mutex::new([0; RING]);

fn print_last_functions() {
    let (number, mut linear) = (processors::this(), LINEAR.lock());
    let print = |Tracer { running, .. }: &mut Tracer| {
        // The unit is off already; this reads how far the processor has written.
        let _ = running.suspend();
        for stretch in running.stretches().into_iter().flatten() {
            stretch.gap().into_iter().for_each(|gap| println!("processor {number}: {gap}"));
            print_stretch(number, stretch.copy_to(&mut *linear).expect("as large as the ring"));
        }
    };
    // SAFETY: this processor does nothing else any more, whether it held the slot or not.
    if let Err(error) = unsafe { SLOTS[number].with_in_panic(print) } {
        println!("processor {number}: {error}");
    }
    PRINTED.fetch_add(1, Ordering::AcqRel);
}

fn print_stretch(number: usize, trace: &[u8]) {
    let (base, bytes) = machine::code();
    let code = [Section { base, bytes, space: AddressSpace::Any }];
    let mut flow = InsnDecoder::new(trace, Image::new(&code));
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
    println!("processor {number}: the last {} of {entered} functions:", entered.min(FUNCTIONS));
    for index in entered.saturating_sub(FUNCTIONS)..entered {
        let address = last[index % FUNCTIONS];
        println!("entered {number} {address:#x} {}", Function(address));
    }
}

// What is traced: servers, of which one cannot serve the last of its requests.

/// The processor that gets that request.
const UNLUCKY: usize = 2;
/// It gets it when each processor has served this many.
const ENOUGH: usize = 6000;
static SERVED: [AtomicUsize; PROCESSORS] = [const { AtomicUsize::new(0) }; PROCESSORS];

const HANDLERS: [fn(usize) -> usize; 3] = [read, write, list];
const FILES: [usize; 5] = [3, 5, 8, 13, 21];

fn serve() {
    let served = &SERVED[processors::this()];
    let is_enough = |served: &AtomicUsize| served.load(Ordering::Relaxed) >= ENOUGH;
    for request in 0.. {
        black_box(black_box(HANDLERS)[request % 3](request));
        served.store(request, Ordering::Relaxed);
        if processors::this() == UNLUCKY && SERVED.iter().all(is_enough) {
            break;
        }
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
