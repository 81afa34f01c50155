//! A kernel that runs a parser on mutated inputs, traces each run into the same memory, and keeps the inputs that reach
//! new edges, as a fuzzer does.
#![no_std]
#![no_main]

use core::ptr::NonNull;
use machine::{PHYSICAL_MEMORY_OFFSET, frames, println};
use pugmark_decoder_core::block::BlockDecoder;
use pugmark_decoder_core::block_cache::BlockCache;
use pugmark_decoder_core::block_cache::edges::{EDGES, EdgeMap};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_kernel::arch::PlainMsr;
use pugmark_kernel::drain::Chunk;
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtConfig, PtUnit, RegionSize};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};
use spin::Mutex;

mod parser;

machine::main!(main);

fn main() {
    println!("run fuzz-target");
    fuzz();
    println!("ok fuzz-target\ndone 1 0");
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

/// Decoded blocks, cached across runs.
static BLOCKS: Mutex<[u32; 64 << 10]> = Mutex::new([0; 64 << 10]);
/// Each edge's count in the last run, and in `SEEN` whether any run took it.
static TAKEN: Mutex<[u8; EDGES]> = Mutex::new([0; EDGES]);
static SEEN: Mutex<[u8; EDGES]> = Mutex::new([0; EDGES]);

const RUNS: u32 = 200;

fn fuzz() {
    // SAFETY: the kernel runs at CPL 0 on one processor.
    let mut unit = PtUnit::of_this_processor(unsafe { PlainMsr::new() }).unwrap();
    let layout = Layout::contiguous_topa(RegionSize::K4, 4);
    let mode = Mode::StopWhenFull { spare: 1 };
    let mut buffer = Buffer::allocate(Memory, unit.capabilities(), layout, mode).unwrap();
    let config = PtConfig::new().os(true);

    let (base, bytes) = machine::code();
    let code = [Section { base, bytes, space: AddressSpace::Any }];
    let (mut blocks, mut taken, mut seen) = (BLOCKS.lock(), TAKEN.lock(), SEEN.lock());
    let mut cache = BlockCache::new(&mut blocks[..]);
    let mut corpus = Corpus::new();
    for run in 1..=RUNS {
        let input = corpus.next();
        machine::mark_truth(run);
        let running = unit.start(&config, buffer).unwrap();
        let result = parser::parse(&input);
        let stopped = running.stop().unwrap();
        machine::mark_truth(0);

        taken.fill(0);
        for chunk in stopped.trace.chunks() {
            let Chunk::Bytes(trace) = chunk else { panic!("the trace has a gap: {}", stopped.loss) };
            let mut decoder = BlockDecoder::new(trace, Image::new(&code));
            decoder.sync_forward();
            decoder.visit(&mut cache, &mut EdgeMap::<true>::new(&mut taken)).unwrap();
        }
        let edges = taken.iter().filter(|&&count| count > 0).count();
        let new = taken.iter().zip(&mut *seen).filter(|(taken, seen)| **taken > 0 && **seen == 0);
        let new = new.map(|(_, seen)| *seen = 1).count();
        println!("edges {run} {edges} {new}");
        if new > 0 {
            println!("kept {:?}: {result:?}", core::str::from_utf8(&input).unwrap_or("?"));
            corpus.keep(input);
        }
        // The next run reuses the memory.
        (unit, buffer) = (stopped.unit, stopped.trace.into_buffer());
    }
}

// The inputs.

const LENGTH: usize = 8;

/// The inputs that reached new edges; new inputs are mutations of them.
struct Corpus {
    kept: [[u8; LENGTH]; 64],
    count: usize,
    random: u64,
}

impl Corpus {
    fn new() -> Self {
        Self { kept: [*b"1+2     "; 64], count: 1, random: 0x2545_f491_4f6c_dd1d }
    }

    fn keep(&mut self, input: [u8; LENGTH]) {
        self.kept[self.count % 64] = input;
        self.count += 1;
    }

    /// Returns one of the inputs with one or two characters replaced.
    fn next(&mut self) -> [u8; LENGTH] {
        let mut input = self.kept[self.random(self.count.min(64))];
        for _ in 0..=self.random(2) {
            input[self.random(LENGTH)] = b"0123456789+-*/() "[self.random(17)];
        }
        input
    }

    /// Returns a number below `end`. Source: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8.
    fn random(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % end
    }
}
