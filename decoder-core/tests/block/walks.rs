//! Small random code whose path is known, in graphs of all sizes that are used again and again, whole and damaged.

use crate::graph::tnts;
use pugmark_decoder_core::{
    Error,
    block::{BlockDecoder, BlockItem},
    event::Counters,
    flow::Recovered,
    graph::Graph,
    image::{AddressSpace, Image, Section},
    time::Span,
};

const BASE: u64 = 0x1000;
const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
/// MODE.Exec (64 bit), FUP (1000), PSBEND.
const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
/// How many calls a processor remembers.
const CALLS: usize = 64;

/// An instruction; the numbers are those of the instructions that it leads to.
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
        // Nothing goes on after the last one.
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

    /// A trace, and the addresses of what was executed; `None` for an endless loop without a branch that is traced.
    fn run(&self, rng: &mut fastrand::Rng) -> Option<(Vec<u8>, Vec<u64>)> {
        let mut trace = [PSB, STATE].concat();
        let (mut at, mut executed, mut calls, mut outcomes, mut quiet) = (0, vec![], vec![], vec![], 0);
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
                    // A call of what follows it is there to read the address, and no return is compressed for it.
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
                    Some(rng.usize(..self.ops.len()))
                }
                Op::Return | Op::IndirectJump => Some(rng.usize(..self.ops.len())),
            };
            quiet = 0;
            if let Some(target) = target {
                trace.extend(tnts(&outcomes));
                outcomes.clear();
                trace.push(0x2d);
                trace.extend(&self.ips[target].to_le_bytes()[..2]);
                at = target;
            }
            if rng.u8(..) < 4 {
                trace.extend(tnts(&outcomes));
                outcomes.clear();
                // TSC, or CBR.
                match rng.bool() {
                    true => trace.extend([0x19, rng.u8(..), 1, 2, 3, 4, 5, 0]),
                    false => trace.extend([0x02, 0x03, rng.u8(1..), 0]),
                }
            }
        }
        trace.extend(tnts(&outcomes));
        // Enough for the fast way.
        trace.extend([0; 16]);
        Some((trace, executed))
    }
}

/// What a decoder says about itself.
type Said = (Span, Option<u64>, u64, Option<u64>, Counters);

/// Items, each end with what the decoder said there, and instructions.
type Found = (Vec<BlockItem>, Vec<(Result<(), Error>, Said)>, Vec<u64>);

/// The items up to the end or an error, and again after each recovery.
fn items(trace: &[u8], image: Image<'_>, mut graph: Option<&mut Graph<'_>>, room: usize) -> Found {
    let mut decoder = BlockDecoder::new(trace, image);
    let (mut items, mut ends, mut insns) = (vec![], vec![], vec![]);
    decoder.sync_forward();
    for _ in 0..10 {
        let first = items.len();
        let end = loop {
            match &mut graph {
                None => match decoder.next() {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                },
                Some(graph) => {
                    let mut some = vec![BlockItem::NONE; room];
                    let (filled, end) = decoder.fill(graph, &mut some);
                    items.extend(&some[..filled]);
                    if end.is_err() || filled < room {
                        break end;
                    }
                }
            }
        };
        for item in &items[first..] {
            if let BlockItem::Block(block) = item {
                insns.extend(decoder.insns(block).map(|(ip, _)| ip));
            }
        }
        let said = (decoder.span(), decoder.ip(), decoder.offset(), decoder.time(), decoder.counters());
        ends.push((end, said));
        if end.is_ok() {
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

#[test]
fn a_graph_of_any_size_that_held_anything_before_walks_as_the_code_does() {
    let mut rng = fastrand::Rng::with_seed(0x7761_6c6b);
    let (mut flushes, mut runs, mut errors) = (0, 0, 0);
    for _ in 0..1_500 {
        let program = Program::random(&mut rng);
        let sections = [Section { base: BASE, bytes: &program.code, space: AddressSpace::Any }];
        let image = Image::new(&sections);
        // What lies in the memory before means nothing.
        let mut memory = vec![u32::MAX; [rng.usize(..200), rng.usize(..1_500), 8_000][rng.usize(..3)]];
        let mut graph = Graph::new(&mut memory);
        for _ in 0..4 {
            let Some((trace, executed)) = program.run(&mut rng) else { continue };
            runs += 1;
            let room = [1, 3, 10_000][rng.usize(..3)];
            let slow = items(&trace, image, None, room);
            let fast = items(&trace, image, Some(&mut graph), room);
            assert_eq!(fast, slow, "{:x?} {trace:x?}", program.ops);
            // The trace may end before the last instructions are known to be executed, and says no more than they go on
            // to the next branch.
            let (found, sure) = (&fast.2, executed.len().min(fast.2.len()));
            assert_eq!(found[..sure], executed[..sure], "{:x?} {trace:x?}", program.ops);
            assert_eq!(fast.1.len(), 1, "{:x?} {trace:x?}", program.ops);
            let mut damaged = trace.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(PSB.len() + STATE.len()..damaged.len());
                damaged[at] ^= 1 << rng.u8(..8);
            }
            let slow = items(&damaged, image, None, room);
            let fast = items(&damaged, image, Some(&mut graph), room);
            assert_eq!(fast, slow, "{:x?} {damaged:x?}", program.ops);
            errors += fast.1.len() - 1;
        }
        flushes += graph.statistics().flushes;
    }
    assert!(flushes > 1_000 && runs > 3_000 && errors > 1_000, "{flushes} {runs} {errors}");
}
