//! Small random code whose path is known, in one section or cut into several, in block caches of all sizes that are
//! reused, whole and damaged.

use crate::block_cache::tnts;
use pugmark_decoder_core::{
    Error,
    block::{Block, BlockDecoder, BlockItem},
    block_cache::{BlockCache, ExecutionSink},
    event::{Counters, Event},
    flow::Recovered,
    image::{AddressSpace, Image, Section},
    time::Span,
};
use std::collections::BTreeMap;

const BASE: u64 = 0x1000;
const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
/// MODE.Exec (64 bit), FUP (1000), PSBEND.
const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
/// The number of calls that a processor remembers.
const CALLS: usize = 64;

/// An instruction; the numbers are those of the target instructions.
#[derive(Clone, Copy, Debug)]
enum Op {
    Nop,
    Cond(usize),
    Jump(usize),
    Call(usize),
    Return,
    IndirectCall,
    IndirectJump,
}

impl Op {
    const fn size(self) -> usize {
        match self {
            Self::Nop | Self::Return => 1,
            Self::IndirectCall | Self::IndirectJump => 2,
            Self::Jump(_) | Self::Call(_) => 5,
            Self::Cond(_) => 6,
        }
    }
}

struct Program {
    ops: Vec<Op>,
    ips: Vec<u64>,
    code: Vec<u8>,
}

impl Program {
    fn random(rng: &mut fastrand::Rng) -> Self {
        let len = rng.usize(2..40);
        let mut op = |_| match rng.u8(..12) {
            0..3 => Op::Nop,
            3..6 => Op::Cond(rng.usize(..len)),
            6 => Op::Jump(rng.usize(..len)),
            7..9 => Op::Call(rng.usize(..len)),
            9 => Op::Return,
            10 => Op::IndirectCall,
            _ => Op::IndirectJump,
        };
        // Execution cannot continue after the last instruction.
        let ops: Vec<Op> = (1..len).map(&mut op).chain([Op::IndirectJump]).collect();
        let mut ips = vec![BASE];
        for op in &ops {
            ips.push(ips[ips.len() - 1] + op.size() as u64);
        }
        let mut code = vec![];
        for (op, next) in ops.iter().zip(&ips[1..]) {
            let (opcode, to): (&[u8], _) = match *op {
                Op::Nop => (&[0x90], None),
                Op::Cond(to) => (&[0x0f, 0x84], Some(to)),
                Op::Jump(to) => (&[0xe9], Some(to)),
                Op::Call(to) => (&[0xe8], Some(to)),
                Op::Return => (&[0xc3], None),
                Op::IndirectCall => (&[0xff, 0xd0], None),
                Op::IndirectJump => (&[0xff, 0xe0], None),
            };
            code.extend(opcode);
            code.extend(to.iter().flat_map(|&to| (ips[to].wrapping_sub(*next) as u32).to_le_bytes()));
        }
        Self { ops, ips, code }
    }

    /// Returns a trace, and the addresses of executed instructions; `None` for an endless loop without a traced branch.
    fn run(&self, rng: &mut fastrand::Rng) -> Option<(Vec<u8>, Vec<u64>)> {
        let mut trace = [PSB, STATE].concat();
        let (mut at, mut executed, mut calls, mut outcomes, mut quiet) = (0, vec![], vec![], vec![], 0);
        // A target that was not sent yet, and true if it is sent late.
        let (mut waiting, mut late) = (None, false);
        for _ in 0..rng.usize(1..600) {
            executed.push(self.ips[at]);
            quiet += 1;
            if quiet > 300 {
                return None;
            }
            let target = match self.ops[at] {
                Op::Nop => {
                    at += 1;
                    continue;
                }
                Op::Jump(to) => {
                    at = to;
                    continue;
                }
                Op::Call(to) => {
                    // A call of the next instruction reads the address, and no return is compressed for it.
                    if to != at + 1 {
                        calls.push(at + 1);
                        calls.drain(..calls.len().saturating_sub(CALLS));
                    }
                    at = to;
                    continue;
                }
                Op::Cond(to) => {
                    let taken = rng.bool();
                    outcomes.push(taken);
                    at = if taken { to } else { at + 1 };
                    None
                }
                Op::Return if !calls.is_empty() => {
                    outcomes.push(true);
                    at = calls.pop().expect("there is a call");
                    None
                }
                Op::IndirectCall => {
                    calls.push(at + 1);
                    calls.drain(..calls.len().saturating_sub(CALLS));
                    Some((rng.usize(..self.ops.len()), true))
                }
                // An outcome right after a return would be taken for the outcome of that return.
                Op::Return => Some((rng.usize(..self.ops.len()), false)),
                Op::IndirectJump => Some((rng.usize(..self.ops.len()), true)),
            };
            quiet = 0;
            if let Some((target, may_be_late)) = target {
                if waiting.is_some() || !may_be_late {
                    self.send(&mut trace, &mut outcomes, &mut waiting);
                }
                waiting = Some(target);
                at = target;
                late = may_be_late && rng.bool();
            }
            // A late target comes after the outcomes of later branches in the same packet.
            if waiting.is_some() && (!late || outcomes.len() % 6 == 0) {
                self.send(&mut trace, &mut outcomes, &mut waiting);
            }
            if rng.u8(..) < 4 {
                self.send(&mut trace, &mut outcomes, &mut waiting);
                // TSC, or CBR.
                match rng.bool() {
                    true => trace.extend([0x19, rng.u8(..), 1, 2, 3, 4, 5, 0]),
                    false => trace.extend([0x02, 0x03, rng.u8(1..), 0]),
                }
            }
        }
        self.send(&mut trace, &mut outcomes, &mut waiting);
        // Enough bytes for the fast path.
        trace.extend([0; 16]);
        Some((trace, executed))
    }

    /// Writes the outcomes and the target after them.
    fn send(&self, trace: &mut Vec<u8>, outcomes: &mut Vec<bool>, target: &mut Option<usize>) {
        trace.extend(tnts(outcomes));
        outcomes.clear();
        if let Some(target) = target.take() {
            trace.push(0x2d);
            trace.extend(&self.ips[target].to_le_bytes()[..2]);
        }
    }
}

/// The state that a decoder reports.
type Said = (Span, Option<u64>, u64, Option<u64>, Counters);

/// Items, the decoder's state after each part and at each end, and instructions.
type Found = (Vec<BlockItem>, Vec<(Result<(), Error>, Said)>, Vec<u64>);

fn said(decoder: &BlockDecoder<'_>) -> Said {
    (decoder.span(), decoder.ip(), decoder.offset(), decoder.time(), decoder.counters())
}

/// Returns the items up to the end or an error, and again after each recovery. A part has `room` items.
fn items(trace: &[u8], image: Image<'_>, mut cache: Option<&mut BlockCache<'_>>, room: usize) -> Found {
    let mut decoder = BlockDecoder::new(trace, image);
    let (mut items, mut ends, mut insns) = (vec![], vec![], vec![]);
    decoder.sync_forward();
    let (mut recoveries, mut goes_on) = (0, false);
    loop {
        let mut part = vec![BlockItem::NONE; room];
        let (filled, end) = match &mut cache {
            Some(cache) => decoder.fill(cache, &mut part),
            None => next_part(&mut decoder, &mut part),
        };
        for item in &part[..filled] {
            if let BlockItem::Block(block) = item {
                insns.extend(decoder.insns(block).map(|(ip, _)| ip));
            }
        }
        items.extend(&part[..filled]);
        if end.is_err() && filled == 0 && goes_on {
            // With a block cache an error may come with the part before it.
            ends.pop();
        }
        ends.push((end, said(&decoder)));
        goes_on = end.is_ok() && filled == room;
        if goes_on {
            continue;
        }
        recoveries += 1;
        if end.is_ok() || recoveries == 10 {
            break;
        }
        match decoder.recover() {
            Ok(Recovered::Place) => {}
            Ok(Recovered::Event(event)) => items.push(BlockItem::Event(event)),
            Ok(Recovered::End) | Err(_) => break,
        }
    }
    (items, ends, insns)
}

/// A sink that collects items, and is never full.
#[derive(Default)]
struct All(Vec<BlockItem>);

impl ExecutionSink for All {
    const BLOCKS: bool = true;

    fn block(&mut self, block: &Block) {
        self.0.push(BlockItem::Block(*block));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(BlockItem::Event(*event));
    }
}

/// A sink that is told each block only once, and then knows it by its number.
#[derive(Default)]
struct ByNumber {
    generation: u64,
    known: BTreeMap<u32, Block>,
    /// The number of the block that was asked for.
    asked: u32,
    items: Vec<BlockItem>,
    /// The number of blocks that came by their numbers alone.
    alone: usize,
}

impl ExecutionSink for ByNumber {
    const BLOCKS: bool = true;
    const NUMBERS: bool = true;

    fn numbered(&mut self, generation: u64) {
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.known.clear();
        }
    }

    fn passes(&mut self, number: u32) -> bool {
        self.asked = number;
        let known = self.known.get(&number);
        self.alone += known.iter().count();
        self.items.extend(known.map(|block| BlockItem::Block(*block)));
        known.is_none()
    }

    fn block(&mut self, block: &Block) {
        self.items.push(BlockItem::Block(*block));
        if self.asked != 0 {
            self.known.insert(self.asked, *block);
        }
    }

    fn event(&mut self, event: &Event) {
        self.items.push(BlockItem::Event(*event));
    }
}

/// Does the same as [`BlockDecoder::fill`], without a block cache.
fn next_part(decoder: &mut BlockDecoder<'_>, part: &mut [BlockItem]) -> (usize, Result<(), Error>) {
    for (filled, place) in part.iter_mut().enumerate() {
        match decoder.next() {
            Ok(Some(item)) => *place = item,
            Ok(None) => return (filled, Ok(())),
            Err(error) => return (filled, Err(error)),
        }
    }
    (part.len(), Ok(()))
}

/// Fails at the first difference of two decodes.
fn assert_same(fast: &Found, slow: &Found, what: impl Fn() -> String) {
    let differ = |same: usize| format!("{same} are the same; {}", what());
    let same = fast.0.iter().zip(&slow.0).take_while(|(fast, slow)| fast == slow).count();
    assert_eq!(fast.0.get(same), slow.0.get(same), "items: {}", differ(same));
    let same = fast.1.iter().zip(&slow.1).take_while(|(fast, slow)| fast == slow).count();
    assert_eq!(fast.1.get(same), slow.1.get(same), "parts: {}", differ(same));
    assert!(fast.2 == slow.2, "instructions: {}", what());
}

/// Cuts the program's code into sections at `cuts` random places, which may be within instructions.
fn cut<'c>(program: &'c Program, cuts: usize, rng: &mut fastrand::Rng) -> Vec<Section<'c>> {
    let len = program.code.len();
    let mut ends: Vec<usize> = (0..cuts).map(|_| rng.usize(..len)).chain([0, len]).collect();
    ends.sort_unstable();
    let section = |ends: &[usize]| Section {
        base: BASE + ends[0] as u64,
        bytes: &program.code[ends[0]..ends[1]],
        space: AddressSpace::Any,
    };
    ends.windows(2).map(section).collect()
}

/// Returns the number of times that block caches were full, the number of traces decoded, that of errors, and that of
/// blocks that came by their numbers alone.
fn walks(seed: u64, programs: usize) -> (u64, usize, usize, usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut flushes, mut runs, mut errors, mut alone) = (0, 0, 0, 0);
    for _ in 0..programs {
        let program = Program::random(&mut rng);
        let cuts = [0, 0, rng.usize(1..10)][rng.usize(..3)];
        let sections = cut(&program, cuts, &mut rng);
        let image = Image::new(&sections);
        // The previous contents of the memory have no meaning.
        let mut memory = vec![u32::MAX; [rng.usize(..200), rng.usize(..1_500), 8_000][rng.usize(..3)]];
        let mut cache = BlockCache::new(&mut memory);
        let mut by_number = ByNumber::default();
        for _ in 0..4 {
            let Some((trace, executed)) = program.run(&mut rng) else { continue };
            runs += 1;
            let room = [1, 3, 10_000][rng.usize(..3)];
            let slow = items(&trace, image, None, room);
            // A sink that is never full takes other paths through the block cache, and adds them to it.
            if rng.bool() {
                let mut decoder = BlockDecoder::new(&trace, image);
                decoder.sync_forward();
                let mut all = All::default();
                assert_eq!(decoder.visit(&mut cache, &mut all), Ok(()));
                assert!(all.0 == slow.0, "{:x?} {sections:x?} {trace:x?}", program.ops);
                let end = slow.1.last().expect("it came to the end");
                assert_eq!(*end, (Ok(()), said(&decoder)), "{:x?} {sections:x?} {trace:x?}", program.ops);
            }
            if runs % 2 == 0 {
                let mut decoder = BlockDecoder::new(&trace, image);
                decoder.sync_forward();
                by_number.items.clear();
                assert_eq!(decoder.visit(&mut cache, &mut by_number), Ok(()));
                assert!(by_number.items == slow.0, "{:x?} {sections:x?} {trace:x?}", program.ops);
                let most = by_number.known.keys().next_back().copied().unwrap_or(0);
                assert!(most as usize <= cache.statistics().room);
            }
            let fast = items(&trace, image, Some(&mut cache), room);
            let what = |trace: &[u8]| format!("{:x?} {sections:x?} {trace:x?}", program.ops);
            assert_same(&fast, &slow, || what(&trace));
            // The trace may end before the last instructions are certainly executed; it only shows that they run up to
            // the next branch.
            let (found, sure) = (&fast.2, executed.len().min(fast.2.len()));
            assert_eq!(found[..sure], executed[..sure], "{}", what(&trace));
            assert!(fast.1.iter().all(|(end, _)| end.is_ok()), "{}", what(&trace));
            let mut damaged = trace.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(PSB.len() + STATE.len()..damaged.len());
                damaged[at] ^= 1 << rng.u8(..8);
            }
            let slow = items(&damaged, image, None, room);
            let fast = items(&damaged, image, Some(&mut cache), room);
            assert_same(&fast, &slow, || what(&damaged));
            // This covers the trace up to the first error.
            if room == 10_000 {
                let mut decoder = BlockDecoder::new(&damaged, image);
                decoder.sync_forward();
                let end = decoder.visit(&mut cache, &mut All::default());
                assert_eq!((end, said(&decoder)), slow.1[0], "{}", what(&damaged));
            }
            errors += fast.1.iter().filter(|(end, _)| end.is_err()).count();
        }
        flushes += cache.statistics().flushes;
        alone += by_number.alone;
    }
    (flushes, runs, errors, alone)
}

#[test]
fn a_block_cache_of_any_size_that_held_anything_before_walks_as_the_code_does() {
    let (flushes, runs, errors, alone) = walks(0x7761_6c6b, 1_400);
    assert!(flushes > 1_000 && runs > 3_000 && errors > 1_000, "{flushes} {runs} {errors}");
    assert!(alone > 50_000, "{alone}");
}

/// Runs the same test in less time.
#[test]
fn a_block_cache_walks_as_the_code_of_a_hundred_programs_does() {
    let (flushes, runs, errors, alone) = walks(0x7368_6f72, 100);
    assert!(flushes > 50 && runs > 200 && errors > 50, "{flushes} {runs} {errors}");
    assert!(alone > 3_000, "{alone}");
}
