//! The cost of each use of a trace: each sink in turn receives the same bytes, a page at a time, as from a PMI handler.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::hint::black_box;
use pugmark_decoder_core::block::Block;
use pugmark_decoder_core::block_cache::edges::{EDGES, EdgeMap};
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink, InstructionRun};
use pugmark_decoder_core::calls::Calls;
use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::flow::InsnDecoder;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{Image, Section};
use pugmark_decoder_core::resume::{BlockStream, Kept};
use pugmark_kernel::drain::{Relay, Sink};
use pugmark_kernel::loss::Gap;

/// The cost of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The sink.
    pub sink: &'static str,
    /// The clock's ticks in the fastest of a few runs.
    pub ticks: u64,
    /// The amount found: bytes, edges, blocks, instructions, branches, calls.
    pub found: u64,
}

impl Cost {
    /// Returns the line that reports the cost, for a trace of this length in bytes.
    #[must_use]
    pub const fn of(self, bytes: usize) -> CostLine {
        CostLine { cost: self, bytes: bytes as u64 }
    }
}

/// Prints the cost of a sink, in total and per byte of the trace.
#[derive(Clone, Copy, Debug)]
pub struct CostLine {
    cost: Cost,
    bytes: u64,
}

impl fmt::Display for CostLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { sink, ticks, found } = self.cost;
        let hundredths = ticks.saturating_mul(100) / self.bytes.max(1);
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        write!(f, "sink {sink} found={found} ticks={ticks} per_byte={whole}.{rest:02}")
    }
}

/// Bytes that a sink receives at a time.
const SLICE: usize = 4096;
/// Words of memory for the decoder's known code.
const CACHE: usize = 1 << 17;
/// Number of times that each sink receives the trace. The first run includes decoding the code.
const RUNS: usize = 4;

/// Passes the trace, which is of this code, to each sink, and measures by `clock`.
#[must_use]
pub fn costs(trace: &[u8], code: &[Section<'_>], clock: impl Fn() -> u64) -> [Cost; 6] {
    let image = Image::new(code);
    let measure = |sink, run: &mut dyn FnMut() -> u64| {
        let timed = || {
            let before = clock();
            let found = run();
            (clock().wrapping_sub(before), found)
        };
        let (ticks, found) = core::iter::repeat_with(timed).take(RUNS).min().unwrap_or_default();
        Cost { sink, ticks, found }
    };
    let mut edges: Box<[u8; EDGES]> = Box::new([0; EDGES]);
    let mut caches: [_; 4] = core::array::from_fn(|_| vec![0_u32; CACHE]);
    let [ref mut first, ref mut second, ref mut third, ref mut fourth] =
        caches.each_mut().map(|memory| BlockCache::new(memory));
    [
        measure("relay", &mut || relayed(trace)),
        measure("edges", &mut || {
            edges.fill(0);
            decoded(trace, image, first, EdgeMap::<true>::new(&mut edges)).taken()
        }),
        measure("blocks", &mut || decoded(trace, image, second, Blocks(0)).0),
        measure("instructions", &mut || {
            decoded(trace, image, third, Instructions(AddressHash::new())).0.count()
        }),
        measure("last-branches", &mut || decoded(trace, image, fourth, NewestBranches::default()).branches),
        measure("calls", &mut || calls(trace, image)),
    ]
}

/// Copies the trace into a ring for another processor, which reads it at once.
fn relayed(trace: &[u8]) -> u64 {
    struct Discard(u64);
    impl Sink for Discard {
        fn bytes(&mut self, bytes: &[u8]) -> usize {
            self.0 += black_box(bytes).len() as u64;
            bytes.len()
        }
        fn gap(&mut self, _: Gap) -> bool {
            true
        }
    }
    let mut memory = vec![0; 4 * SLICE];
    let mut relay = Relay::new(&mut memory);
    let (mut writer, mut reader) = relay.split();
    let mut read = Discard(0);
    for slice in trace.chunks(SLICE) {
        writer.bytes(slice);
        reader.drain_to(&mut read);
    }
    read.0
}

/// Decodes the trace slice by slice, as the driver's decoder does in a PMI handler.
fn decoded<S: ExecutionSink>(trace: &[u8], image: Image<'_>, cache: &mut BlockCache<'_>, sink: S) -> S {
    let (mut kept, mut sink) = (Box::new(<Kept>::new()), sink);
    let mut stream = BlockStream::new(image, Config::default(), &mut kept);
    for slice in trace.chunks(SLICE) {
        stream.decode(slice, cache, &mut sink);
    }
    stream.finish(cache, &mut sink);
    sink
}

struct Blocks(u64);

impl ExecutionSink for Blocks {
    const BLOCKS: bool = true;

    fn block(&mut self, block: &Block) {
        black_box(block);
        self.0 += 1;
    }
    fn event(&mut self, _: &Event) {}
}

struct Instructions(AddressHash);

impl ExecutionSink for Instructions {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        insns.for_each(|ip| self.0.add(ip));
    }
    fn event(&mut self, _: &Event) {}
}

/// Number of branches that are kept.
const LAST: u64 = 16;

/// Sources and targets of the last branches.
#[derive(Default)]
struct NewestBranches {
    last: [(u64, u64); LAST as usize],
    branches: u64,
    from: u64,
    next: Option<u64>,
}

impl ExecutionSink for NewestBranches {
    const INSNS: bool = true;

    fn insns(&mut self, mut insns: InstructionRun) {
        while let Some(ip) = insns.next() {
            if self.next.is_some_and(|next| next != ip) {
                self.last[(self.branches % LAST) as usize] = (self.from, ip);
                self.branches += 1;
            }
            (self.from, self.next) = (ip, Some(insns.ip));
        }
    }
    fn event(&mut self, _: &Event) {}
}

/// Follows the calls of the whole trace, one instruction at a time.
fn calls(trace: &[u8], image: Image<'_>) -> u64 {
    let mut flow = InsnDecoder::new(trace, image);
    let (mut calls, mut entered) = (Calls::new(), 0);
    while flow.sync_forward().is_some() {
        calls.forget();
        while let Ok(Some(item)) = flow.next() {
            entered += u64::from(calls.step(&item).is_some_and(|step| step.kind.enters()));
        }
    }
    entered
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use core::cell::Cell;
    use pugmark_decoder_core::image::AddressSpace;

    #[test]
    fn each_sink_finds_what_is_there_and_the_fastest_run_counts() {
        // 1000: call 1008; 1005: jmp 1005; 1008: ret
        let code = [0xe8, 3, 0, 0, 0, 0xeb, 0xfe, 0x90, 0xc3];
        let code = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
        // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (the return is compressed), TIP.PGD (none)
        let trace = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\
            \x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x06";
        let (asked, time) = (Cell::new(0_u64), Cell::new(0_u64));
        let clock = || {
            // Each run takes ten ticks less than the previous one; the last one of each sink takes ten.
            let n = asked.replace(asked.get() + 1);
            let took = if n % 2 == 1 { 40 - 10 * (n / 2 % 4) } else { 1000 };
            time.set(time.get() + took);
            time.get()
        };
        let costs = costs(trace, &code, clock);
        let found = costs.map(|cost| (cost.sink, cost.found));
        assert_eq!(
            found,
            [
                ("relay", trace.len() as u64),
                ("edges", 1),
                ("blocks", 1),
                ("instructions", 2),
                ("last-branches", 1),
                ("calls", 1),
            ]
        );
        assert!(costs.iter().all(|cost| cost.ticks == 10), "{costs:?}");
        assert_eq!(costs[3].of(8).to_string(), "sink instructions found=2 ticks=10 per_byte=1.25");
        assert_eq!(costs[3].of(0).to_string(), "sink instructions found=2 ticks=10 per_byte=10.00");
    }
}
