//! A kernel that always traces, on four processors. When one panics, it stops all, and each prints the last hundred
//! functions that it entered and its last branches.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use machine::symbols::{Function, begins_another};
use machine::{PHYSICAL_MEMORY_OFFSET, frames, println, processors};
use pugmark_decoder_core::calls::Calls;
use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
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
        // This kernel's allocator never frees.
    }
    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        NonNull::new((PHYSICAL_MEMORY_OFFSET + address.as_u64()) as *mut u8).expect("the offset is not 0")
    }
}

fn processor() -> (GuardedMsr, XApic) {
    // SAFETY: CPL 0; the #GP handler in `machine::traps` obeys `fixup`; no thread of this kernel moves.
    let msr = unsafe { GuardedMsr::new() };
    // SAFETY: the local APIC's page is mapped there; the firmware's MTRRs make it uncached.
    (msr, unsafe { XApic::at_offset(PHYSICAL_MEMORY_OFFSET) })
}

// The tracing.

/// The newest 16 KiB of each processor's trace are kept.
const RING: usize = 16 << 10;
const REGIONS: u32 = (RING / 4096) as u32;
/// Number of functions and of branches printed for each processor.
const FUNCTIONS: usize = 100;
const BRANCHES: usize = 32;

/// The ring is never drained while the kernel runs.
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
/// Number of processors that have stopped, and of those that have printed their trace.
static STOPPED: AtomicUsize = AtomicUsize::new(0);
static PRINTED: AtomicUsize = AtomicUsize::new(0);

/// Handles a panic.
fn stop_all(info: &PanicInfo<'_>) {
    stop_tracing();
    if PANIC.swap(true, Ordering::AcqRel) {
        // Another processor was first: its NMI is on the way.
        machine::halt();
    }
    STOPPED.fetch_add(1, Ordering::AcqRel);
    // Must come first: the other processors overwrite their traces as long as they run.
    processors::send_nmi_to_others();
    println!("processor {} {info}", processors::this());
    // A processor that does not answer must not keep the others' traces from being read.
    let stopped = || STOPPED.load(Ordering::Acquire);
    (0_u32..1 << 30).take_while(|_| stopped() < PROCESSORS).for_each(|_| core::hint::spin_loop());
    print_last();
    while PRINTED.load(Ordering::Acquire) < stopped() {
        core::hint::spin_loop();
    }
    println!("{} of {PROCESSORS} processors were stopped", stopped());
    println!("ok panic\ndone 1 0");
}

/// Handles NMIs.
fn stop_this(_: u64) {
    stop_tracing();
    assert!(PANIC.load(Ordering::Acquire), "nobody else sends NMIs");
    STOPPED.fetch_add(1, Ordering::AcqRel);
    print_last();
    machine::halt();
}

fn stop_tracing() {
    // Uses none of the driver's state, so it works wherever the panic or the NMI struck.
    let _ = pt::emergency_stop(&mut processor().0);
    machine::mark_truth(0);
}

/// The ring, linearised: its newest part begins where its oldest ends. A panicking kernel allocates nothing. The
/// processors use it one after another.
static LINEAR: Mutex<[u8; RING]> = Mutex::new([0; RING]);

fn print_last() {
    let (number, mut linear) = (processors::this(), LINEAR.lock());
    let print = |Tracer { running, .. }: &mut Tracer| {
        // The unit is off already; this reads how far the processor has written.
        let _ = running.suspend();
        for stretch in running.stretches().into_iter().flatten() {
            stretch.gap().into_iter().for_each(|gap| println!("processor {number}: {gap}"));
            print_stretch(number, stretch.copy_to(&mut *linear).expect("as large as the ring"));
        }
    };
    // SAFETY: this processor executes nothing else any more, even if it held the slot.
    if let Err(error) = unsafe { SLOTS[number].with_in_panic(print) } {
        println!("processor {number}: {error}");
    }
    PRINTED.fetch_add(1, Ordering::AcqRel);
}

fn print_stretch(number: usize, trace: &[u8]) {
    let (base, bytes) = machine::code();
    let code = [Section { base, bytes, space: AddressSpace::Any }];
    let mut flow = InsnDecoder::new(trace, Image::new(&code));
    let (mut functions, mut branches) = (Newest::<FUNCTIONS>::new(), Newest::<BRANCHES>::new());
    let mut calls = Calls::new();
    while flow.sync_forward().is_some() {
        calls.forget();
        let mut before = None;
        while let Ok(Some(item)) = flow.next() {
            // A function that ends with a tail call jumps to the other one.
            if let Some(step) = calls.step_with(&item, begins_another).filter(|step| step.kind.enters()) {
                functions.add((step.from, step.to));
            }
            match item {
                FlowItem::Insn(insn) => {
                    let next = insn.ip + u64::from(insn.len);
                    let jumped = before.replace((insn.ip, next)).filter(|(_, next)| *next != insn.ip);
                    jumped.into_iter().for_each(|(from, _)| branches.add((from, insn.ip)));
                }
                // The trace has a gap before the next instruction.
                FlowItem::Event(Event { kind: EventKind::Enabled { .. } | EventKind::Overflow, .. }) => {
                    before = None;
                }
                FlowItem::Event(_) => {}
            }
        }
    }
    println!("processor {number}: the last {} of {} functions:", functions.iter().count(), functions.found);
    for (_, to) in functions.iter() {
        println!("entered {number} {to:#x} {}", Function(to));
    }
    println!("processor {number}: the last {} of {} branches:", branches.iter().count(), branches.found);
    for (from, to) in branches.iter() {
        println!("went {number} {from:#x} {to:#x} {} {}", Function(from), Function(to));
    }
}

/// The newest `N` transfers: source and target.
struct Newest<const N: usize> {
    kept: [(u64, u64); N],
    found: usize,
}

impl<const N: usize> Newest<N> {
    const fn new() -> Self {
        Self { kept: [(0, 0); N], found: 0 }
    }

    fn add(&mut self, item: (u64, u64)) {
        self.kept[self.found % N] = item;
        self.found += 1;
    }

    /// Iterates from the oldest to the newest.
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        (self.found.saturating_sub(N)..self.found).map(|index| self.kept[index % N])
    }
}

// The traced workload: servers, one of which fails on its last request.

/// The processor that gets that request.
const UNLUCKY: usize = 2;
/// Number of requests that each processor serves first.
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
