//! A kernel that traces four processors at the same time and loses nothing: each decodes its own trace in NMIs, in
//! place. It prints each processor's executed instructions, edges and last branches.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::ptr::NonNull;
use machine::{PHYSICAL_MEMORY_OFFSET, frames, println, processors, traps};
use pugmark_decoder_core::block_cache::edges::{EDGES, EdgeMap};
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink, InstructionRun};
use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::resume::{BlockStream, Kept, Lost};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtConfig, PtDecoder, PtTracer, PtUnit, RegionSize};
use pugmark_kernel::lapic::{Delivery, XApic};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};
use pugmark_kernel::pmi::{HANDLER_STACK, Handler, Pmi};
use pugmark_kernel::slot::Slot;
use spin::Once;

machine::main!(main);

const PROCESSORS: usize = 4;

fn main() {
    println!("run lossless");
    machine::traps::on_nmi(nmi);
    processors::run_on_all(PROCESSORS, trace_this_processor);
    println!("ok lossless\ndone 1 0");
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

/// Number of branches that are kept.
const LAST: usize = 16;

/// The data collected from a processor's trace.
struct Watch {
    all: AddressHash,
    edges: EdgeMap<'static, true>,
    /// Sources and targets of the last control transfers, including interrupts; the newest is at `branches - 1`.
    last: [(u64, u64); LAST],
    branches: usize,
    /// The last instruction and the address after it.
    from: u64,
    next: Option<u64>,
}

impl ExecutionSink for Watch {
    const INSNS: bool = true;
    const EDGES: bool = true;

    fn insns(&mut self, mut insns: InstructionRun) {
        while let Some(ip) = insns.next() {
            self.all.add(ip);
            if self.next.is_some_and(|next| next != ip) {
                self.last[self.branches % LAST] = (self.from, ip);
                self.branches += 1;
            }
            (self.from, self.next) = (ip, Some(insns.ip));
        }
    }
    fn edge(&mut self, edge: u16) {
        self.edges.edge(edge);
    }
    fn event(&mut self, _: &Event) {}
    fn lost(&mut self, _: &Lost) {
        self.next = None;
    }
}

/// Decodes a processor's trace in place; no byte is copied.
type Decoder = PtDecoder<'static, 'static, 'static, Watch>;

/// Allocates all memory in advance, because the NMI handler must not.
fn decoder(config: Config<'static>) -> Decoder {
    static CODE: Once<[Section<'static>; 1]> = Once::new();
    let (base, bytes) = machine::code();
    let code = CODE.call_once(|| [Section { base, bytes, space: AddressSpace::Any }]);
    let edges = EdgeMap::new(memory::<u8, EDGES>());
    let watch =
        Watch { all: AddressHash::new(), edges, last: [(0, 0); LAST], branches: 0, from: 0, next: None };
    let stream = BlockStream::new(Image::new(code), config, kept());
    PtDecoder::new(stream, BlockCache::new(memory::<u32, { 64 << 10 }>()), watch)
}

/// Prints the results.
fn report(mut decoder: Decoder, processor: usize, pmis: u64) {
    decoder.finish();
    let (bytes, gaps, errors) = (decoder.bytes_decoded(), decoder.gaps(), decoder.stream.errors());
    let Watch { all, edges, last, branches, .. } = decoder.sink;
    let (count, hash, taken) = (all.count(), all.value(), edges.taken());
    assert!(gaps == 0 && errors == 0, "{gaps} gaps, {errors} errors");
    println!(
        "cpu {processor} bytes={bytes} pmis={pmis} instructions={count} hash={hash:#x} \
         edges={taken} branches={branches}"
    );
    for number in branches.saturating_sub(LAST)..branches {
        let (from, to) = last[number % LAST];
        println!("went {processor} {from:#x} {to:#x}");
    }
}

type Tracer = PtTracer<GuardedMsr, Memory, Decoder>;
type ProcessorSlot = Slot<Tracer, fn() -> (GuardedMsr, XApic)>;

/// One slot for each processor.
static SLOTS: [ProcessorSlot; PROCESSORS] =
    // SAFETY: each processor uses the slot with its own number, and no thread of this kernel moves.
    [const { unsafe { Slot::new(Handler::new(Delivery::Nmi), processor as _) } }; PROCESSORS];

/// Handles NMIs.
fn nmi(rip: u64) {
    let pmi = SLOTS[processors::this()].interrupt(Some(rip)).expect("the registers are there");
    assert!(pmi != Pmi::NotOurs, "nobody else sends NMIs");
}

fn trace_this_processor() {
    let (number, slot) = (processors::this(), &SLOTS[processors::this()]);
    let unit = PtUnit::of_this_processor(processor().0).unwrap();
    // An NMI comes when two of the four regions are full.
    let layout = Layout::topa(RegionSize::K4, 4);
    let buffer =
        Buffer::allocate(Memory, unit.capabilities(), layout, Mode::StopWhenFull { spare: 2 }).unwrap();
    let config = PtConfig::new().os(true);
    let decoder = decoder(config.for_decoder(unit.capabilities()).unwrap());

    machine::mark_truth(1 + number as u32);
    slot.start(|| PtTracer::start(unit, &config, buffer, decoder)).unwrap();
    work(number);
    // The decoder receives the trace since the last NMI.
    let stopped = slot.stop(|tracer, _| tracer.stop());
    machine::mark_truth(0);
    let (stopped, decoder) = stopped.unwrap().unwrap();
    assert!(stopped.loss.is_none(), "{}", stopped.loss);
    // The machine's NMI stack, 16 KiB, is large enough for all this.
    let used = traps::nmi_stack_used().expect("a stack");
    println!("stack {number} {used}");
    assert!(used <= HANDLER_STACK + traps::STUB, "the handler has used {used} bytes of stack");
    report(decoder, number, slot.handler(|handler| handler.counts().served).unwrap());
}

/// Allocates zeroed memory that is never freed.
fn memory<T: From<u8>, const N: usize>() -> &'static mut [T; N] {
    let memory = place::<[T; N]>();
    // SAFETY: the memory was just allocated.
    unsafe { memory.write_bytes(0, 1) };
    // SAFETY: nothing else refers to it, and 0 is a value of the types that this kernel asks for, u8 and u32.
    unsafe { &mut *memory }
}

/// Allocates the memory of a stream, which is never freed.
fn kept() -> &'static mut Kept {
    let memory = place::<Kept>();
    // SAFETY: the memory was just allocated, for such a value.
    unsafe { memory.write(Kept::new()) };
    // SAFETY: the value was just written, and nothing else refers to it.
    unsafe { &mut *memory }
}

/// Allocates memory for a value, not initialised.
fn place<T>() -> *mut T {
    let address = frames::allocate(size_of::<T>() as u64, 4096).expect("memory") + PHYSICAL_MEMORY_OFFSET;
    address as *mut T
}

// The traced workload: each processor sorts different numbers.

const NUMBERS: usize = 150;

#[inline(never)]
fn work(seed: usize) {
    let mut numbers = [0_u32; NUMBERS];
    let mut random = seed as u32 + 1;
    for number in &mut numbers {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *number = random >> 8;
    }
    let comparisons: [fn(u32, u32) -> bool; 2] = [|a, b| a < b, |a, b| a > b];
    for comparison in black_box(comparisons) {
        heapsort(&mut numbers, comparison);
        assert!(numbers.windows(2).all(|pair| !comparison(pair[1], pair[0])), "not sorted");
    }
}

fn heapsort(numbers: &mut [u32], less: fn(u32, u32) -> bool) {
    for root in (0..numbers.len() / 2).rev() {
        sink(numbers, root, less);
    }
    for end in (1..numbers.len()).rev() {
        numbers.swap(0, end);
        sink(&mut numbers[..end], 0, less);
    }
}

#[inline(never)]
fn sink(numbers: &mut [u32], mut root: usize, less: fn(u32, u32) -> bool) {
    while let Some(mut child) = Some(2 * root + 1).filter(|&child| child < numbers.len()) {
        if child + 1 < numbers.len() && less(numbers[child], numbers[child + 1]) {
            child += 1;
        }
        if !less(numbers[root], numbers[child]) {
            return;
        }
        numbers.swap(root, child);
        root = child;
    }
}
