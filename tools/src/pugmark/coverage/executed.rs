//! What was executed: instructions and branches, each with how often.

use crate::pugmark::{
    code::TracedCode,
    layers::GRAPH_WORDS,
    progress::{Progress, Size},
};
use pugmark_decoder_core::{
    block::{Block, BlockDecoder},
    config::Config,
    event::{Event, EventKind},
    graph::{
        ExecutionSink, Graph, Straight,
        edges::{EDGES, EdgeMap},
    },
    image::{Asid, Image},
    insn::{self, Class},
    mode::ExecMode,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry};

/// A branch: the address of the instruction, and where it went.
pub(crate) type Edge = (u64, u64);

/// What was executed, each with how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Executed {
    /// Instructions, by address.
    pub(crate) insns: BTreeMap<u64, u64>,
    /// Branches, taken or not.
    pub(crate) edges: BTreeMap<Edge, u64>,
    /// The addresses of near calls among the branches.
    pub(crate) calls: BTreeSet<u64>,
    /// Errors in the trace.
    pub(crate) errors: usize,
}

impl Executed {
    /// Decodes a trace and adds what it holds.
    pub(crate) fn add(
        &mut self,
        trace: &[u8],
        code: &TracedCode,
        config: Config<'_>,
        progress: &mut Progress,
    ) {
        let sections = code.sections();
        let image = Image::new(&sections);
        let mut memory = vec![0; GRAPH_WORDS];
        let mut graph = Graph::new(&mut memory);
        let mut decoder = BlockDecoder::with_config(trace, image, config);
        let mut sink = BlockCounter { progress, known: KnownBlocks::default(), insns: vec![], before: None };
        sink.progress.begin("decoding", Size::Bytes(trace.len() as u64));
        while decoder.resync().is_some() {
            sink.before = None;
            self.errors += usize::from(decoder.visit(&mut graph, &mut sink).is_err());
            sink.insns.clear();
        }
        sink.progress.end();
        self.add_blocks(&sink.known, image);
    }

    fn add_blocks(&mut self, known: &KnownBlocks, image: Image<'_>) {
        let mut bytes = [0; 15];
        let mut add_edge = |from: &Straight, mode, to: u64, count| {
            let Some((last, length)) = last(from) else { return };
            let Some(bytes) = bytes.get_mut(..length) else { return };
            // The decoder has read the same bytes.
            let _ = image.read(last, Asid::default(), bytes);
            let insn = insn::decode(bytes, mode, last).ok();
            if let Some(insn) = insn.filter(|insn| insn.class.is_branch()) {
                *self.edges.entry((last, to)).or_default() += count;
                if matches!(insn.class, Class::NearCall | Class::IndirectCall) {
                    self.calls.insert(last);
                }
            }
        };
        for (block, insns, count) in &known.blocks {
            for pair in insns.windows(2) {
                add_edge(&pair[0], block.mode, pair[1].ip, count);
            }
            for ip in insns.iter().copied().flatten() {
                *self.insns.entry(ip).or_default() += count;
            }
        }
        for ((before, after), count) in &known.pairs {
            let ((before, insns, _), (after, ..)) = (&known.blocks[*before], &known.blocks[*after]);
            if let Some(last) = insns.last() {
                add_edge(last, before.mode, after.ip, count);
            }
        }
    }
}

/// The address and the length of the last instruction.
fn last(insns: &Straight) -> Option<(u64, usize)> {
    let (mut insns, mut found) = (*insns, None);
    loop {
        let length = insns.lengths & 15;
        match insns.next() {
            Some(ip) => found = Some((ip, length as usize)),
            None => return found,
        }
    }
}

/// BlockCounter and pairs of blocks, counted.
#[derive(Default)]
struct KnownBlocks {
    numbers: HashMap<(u64, u64, u32, ExecMode), usize>,
    blocks: Vec<(Block, Vec<Straight>, u64)>,
    pairs: HashMap<(usize, usize), u64>,
}

struct BlockCounter<'a> {
    progress: &'a mut Progress,
    known: KnownBlocks,
    /// The instructions of the block that comes next.
    insns: Vec<Straight>,
    /// The block before the next one, if the next one was reached from it, by a branch or without one.
    before: Option<usize>,
}

impl ExecutionSink for BlockCounter<'_> {
    const INSNS: bool = true;
    const BLOCKS: bool = true;

    #[inline]
    fn insns(&mut self, insns: Straight) {
        self.insns.push(insns);
    }

    #[inline]
    fn block(&mut self, block: &Block) {
        let KnownBlocks { numbers, blocks, pairs } = &mut self.known;
        let number = match numbers.entry((block.ip, block.end_ip, block.insns, block.mode)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                blocks.push((*block, self.insns.clone(), 0));
                *new.insert(blocks.len() - 1)
            }
        };
        self.insns.clear();
        blocks[number].2 += 1;
        if let Some(before) = self.before.replace(number) {
            *pairs.entry((before, number)).or_default() += 1;
        }
    }

    fn event(&mut self, event: &Event) {
        // What comes next was not reached from the last instruction.
        if matches!(
            event.kind,
            EventKind::Enabled { .. } | EventKind::Overflow | EventKind::AsyncBranch { .. }
        ) {
            self.before = None;
        }
    }

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }
}

/// Counts the edges of a trace as fuzzers do, in a map that is described at [`pugmark_decoder_core::graph::edges`].
pub(crate) fn add_map(trace: &[u8], code: &TracedCode, config: Config<'_>, map: &mut [u8; EDGES]) -> usize {
    let sections = code.sections();
    let mut memory = vec![0; GRAPH_WORDS];
    let mut graph = Graph::new(&mut memory);
    let mut decoder = BlockDecoder::with_config(trace, Image::new(&sections), config);
    let mut errors = 0;
    while decoder.resync().is_some() {
        errors += usize::from(decoder.visit(&mut graph, &mut EdgeMap::<true>::new(map)).is_err());
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000: call 100a; 1005: jz 1008; 1007: hlt; 1008: jmp rax; 100a: call rax; 100c: ret; then three NOPs; 1010: ret.
    const CODE: [u8; 17] =
        [0xe8, 5, 0, 0, 0, 0x74, 1, 0xf4, 0xff, 0xe0, 0xff, 0xd0, 0xc3, 0x90, 0x90, 0x90, 0xc3];
    /// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
    const SYNC: &[u8] = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    /// TIP (1010), TNT (taken three times), TIP.PGD.
    const WAY: &[u8] = b"\x2d\x10\x10\x1e\x01";

    fn code() -> TracedCode {
        let mut code = TracedCode::default();
        code.add(0x1000, CODE.to_vec());
        code
    }

    #[test]
    fn branches_lead_on_and_calls_are_those_that_a_return_comes_back_to() {
        let once = [0x1000, 0x1005, 0x1008, 0x100a, 0x100c, 0x1010];
        let edges =
            [(0x1000, 0x100a), (0x1005, 0x1008), (0x100a, 0x1010), (0x100c, 0x1005), (0x1010, 0x100c)];
        let mut executed = Executed::default();
        for times in 1..=2 {
            executed.add(&[SYNC, WAY].concat(), &code(), Config::default(), &mut Progress::hidden());
            let expected = Executed {
                insns: once.map(|ip| (ip, times)).into(),
                edges: edges.map(|edge| (edge, times)).into(),
                calls: [0x1000, 0x100a].into(),
                errors: 0,
            };
            assert_eq!(executed, expected);
        }
        // An error, after which it goes on with the next PSB.
        executed.add(
            &[SYNC, b"\x09", SYNC, WAY].concat(),
            &code(),
            Config::default(),
            &mut Progress::hidden(),
        );
        assert_eq!((executed.errors, executed.insns[&0x1010]), (1, 3));
    }

    #[test]
    fn what_comes_after_a_gap_was_not_reached_by_a_branch() {
        // TIP.PGE (1000).
        let enable = b"\x71\0\x10\0\0\0\0";
        let mut executed = Executed::default();
        let trace = [SYNC, WAY, enable, WAY].concat();
        executed.add(&trace, &code(), Config::default(), &mut Progress::hidden());
        assert_eq!((executed.insns[&0x1008], executed.insns[&0x1000]), (2, 2));
        assert!(executed.edges.keys().all(|(from, _)| *from != 0x1008), "{executed:x?}");
    }
}
