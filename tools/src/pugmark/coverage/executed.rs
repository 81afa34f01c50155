//! Executed instructions and branches, each with its count.

use crate::pugmark::{
    known_blocks::{BlockChain, ExecutedBlocks, KnownBlocks, NoNotes},
    loaded::LoadedSession,
    progress::{Progress, Size},
};
use crate::session::{Session, SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::Block,
    block_cache::{
        ExecutionSink,
        edges::{EDGES, EdgeMap},
    },
    event::{Event, EventKind},
    insn::{Class, Insn},
    resume::Lost,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A branch: the address of the instruction, and its target.
pub(crate) type Edge = (u64, u64);

/// Executed instructions and branches, each with its count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Executed {
    /// Instructions, by address.
    pub(crate) insns: BTreeMap<u64, u64>,
    /// Branches, taken or not.
    pub(crate) edges: BTreeMap<Edge, u64>,
    /// The addresses of near calls among the branches.
    pub(crate) calls: BTreeSet<u64>,
    /// The addresses of near jumps without a condition.
    pub(crate) jumps: BTreeSet<u64>,
    /// Errors in the trace.
    pub(crate) errors: usize,
}

impl Executed {
    /// Follows a session. Returns the executed instructions and branches of each lane.
    pub(crate) fn in_lanes(session: &Session<'_>, progress: &mut Progress) -> Vec<Self> {
        progress.begin("decoding", Size::Bytes(session.size()));
        let shown = RefCell::new(&mut *progress);
        let counter = |lane: usize| BlockCounter {
            progress: &shown,
            known: KnownBlocks::of_lane(session, lane),
            chain: BlockChain::default(),
        };
        let mut counters: Vec<_> = (0..session.lanes.len()).map(counter).collect();
        session.follow(&mut counters);
        let counted = counters.into_iter().map(|BlockCounter { known, chain, .. }| known.counted(chain));
        let found = counted.map(Self::of).collect();
        progress.end();
        found
    }

    /// Returns how often the conditional branch at `ip` was taken, and how often execution went on at `next`, after it;
    /// `None` if it was not executed.
    pub(super) fn decisions(&self, ip: u64, next: u64) -> Option<[u64; 2]> {
        self.insns.get(&ip)?;
        let (mut taken, mut passed) = (0, 0);
        for ((_, to), count) in self.edges.range((ip, 0)..=(ip, u64::MAX)) {
            *if *to == next { &mut passed } else { &mut taken } += count;
        }
        Some([taken, passed])
    }

    /// Follows the session of what was loaded. Tells if instructions are missing, which is an error then.
    pub(in crate::pugmark) fn of_loaded(
        loaded: &LoadedSession,
        session: &Session<'_>,
        progress: &mut Progress,
    ) -> Vec<Self> {
        let mut lanes = Self::in_lanes(session, progress);
        let errors: usize = lanes.iter().map(|lane| lane.errors).sum();
        let found = lanes.iter().flat_map(|lane| lane.insns.values()).sum();
        if let Some(first) = lanes.first_mut() {
            first.errors += loaded.misses(found, errors);
        }
        lanes
    }

    /// Returns the code that was executed in a file, at the addresses `place`. It is `moved` further here; `None` if it
    /// is not here.
    pub(crate) fn of_file(&self, place: Range<u64>, moved: Option<u64>) -> Self {
        let Some(moved) = moved else { return Self { errors: self.errors, ..Self::default() } };
        let own = |ip: &u64| Some(ip.wrapping_sub(moved)).filter(|ip| place.contains(ip));
        let edge = |((from, to), count): (&Edge, &u64)| Some(((own(from)?, own(to)?), *count));
        Self {
            insns: self.insns.iter().filter_map(|(ip, count)| Some((own(ip)?, *count))).collect(),
            edges: self.edges.iter().filter_map(edge).collect(),
            calls: self.calls.iter().filter_map(own).collect(),
            jumps: self.jumps.iter().filter_map(own).collect(),
            errors: self.errors,
        }
    }

    /// Adds the counts of another one.
    pub(crate) fn add(&mut self, other: Self) {
        for (ip, count) in other.insns {
            *self.insns.entry(ip).or_default() += count;
        }
        for (edge, count) in other.edges {
            *self.edges.entry(edge).or_default() += count;
        }
        self.calls.extend(other.calls);
        self.jumps.extend(other.jumps);
        self.errors += other.errors;
    }

    /// Returns the instructions and branches of counted blocks.
    pub(in crate::pugmark) fn of(counted: ExecutedBlocks) -> Self {
        let ExecutedBlocks { insns: blocks, pairs, interrupted, leads_to, errors } = counted;
        let mut executed = Self { errors, ..Self::default() };
        for ((before, to), count) in interrupted {
            // INT n and the like cause the interrupt, and lead to nothing else.
            let last = blocks[before as usize].last().filter(|(_, insn)| insn.class != Class::FarCall);
            if let Some(last) = last {
                executed.add_edge(last, to, count);
            }
        }
        if let Some((before, to)) = leads_to
            && let Some(last) = blocks[before as usize].last()
        {
            executed.add_edge(last, to, 1);
        }
        let mut counts = vec![0; blocks.len()];
        for (before, after, count) in pairs {
            let (before, after) = (before as usize, after as usize);
            counts[after] += count;
            if let (Some(last), Some((to, _))) = (blocks[before].last(), blocks[after].first()) {
                executed.add_edge(last, *to, count);
            }
        }
        for (insns, count) in blocks.iter().zip(counts).filter(|(_, count)| *count > 0) {
            for (ip, _) in insns {
                *executed.insns.entry(*ip).or_default() += count;
            }
            for pair in insns.windows(2) {
                executed.add_edge(&pair[0], pair[1].0, count);
            }
        }
        executed
    }

    /// Adds the transition from an instruction to the next one, if it is a branch.
    fn add_edge(&mut self, (ip, insn): &(u64, Insn), to: u64, count: u64) {
        if insn.class.is_branch() {
            *self.edges.entry((*ip, to)).or_default() += count;
            match insn.class {
                Class::NearCall | Class::IndirectCall => drop(self.calls.insert(*ip)),
                Class::NearJump | Class::IndirectJump => drop(self.jumps.insert(*ip)),
                _ => {}
            }
        }
    }
}

/// A counter of blocks.
struct BlockCounter<'p, 'a> {
    progress: &'p RefCell<&'p mut Progress>,
    known: KnownBlocks<'a, NoNotes>,
    chain: BlockChain,
}

impl BlockCounter<'_, '_> {
    #[inline]
    fn count(&mut self, known: u32) {
        self.known.count(self.chain.before, known, 1, &mut NoNotes);
        self.chain.before = known;
    }
}

impl SliceSink for BlockCounter<'_, '_> {
    fn turn_to_cache(&mut self, cache: usize) {
        self.known.turn_to_cache(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        self.known.turn_to(slice.image);
    }

    fn stops(&mut self, _: SliceEnd) {
        self.chain.stops();
    }

    fn turns(&mut self, is_inside: bool, ip: u64) {
        self.chain.turns(is_inside, ip);
    }

    fn loses_outside(&mut self) {
        self.chain.loses_outside();
    }
}

impl ExecutionSink for BlockCounter<'_, '_> {
    const BLOCKS: bool = true;
    const NUMBERS: bool = true;

    fn numbered(&mut self, generation: u64) {
        self.known.numbered(generation);
    }

    #[inline]
    fn passes(&mut self, number: u32) -> bool {
        let known = self.known.find(number);
        known.into_iter().for_each(|known| self.count(known));
        known.is_none()
    }

    fn block(&mut self, block: &Block) {
        let known = self.known.learn(self.chain.before, block, &mut NoNotes);
        self.count(known);
    }

    fn event(&mut self, event: &Event) {
        self.chain.event(event);
    }

    fn lost(&mut self, lost: &Lost) {
        self.chain.lost(lost);
    }

    fn reached(&mut self, offset: u64) {
        self.progress.borrow_mut().reached(offset);
    }
}

/// Counts the edges of a session as fuzzers do, in a map that is described at
/// [`pugmark_decoder_core::block_cache::edges`]. Returns the number of errors.
pub(crate) fn add_map(session: &Session<'_>, map: &mut [u8; EDGES]) -> usize {
    let mut sink = [MapSink { map: EdgeMap::new(map), errors: 0 }];
    session.follow(&mut sink);
    let [MapSink { errors, .. }] = sink;
    errors
}

/// A map of edges, and the number of errors.
struct MapSink<'m> {
    map: EdgeMap<'m, true>,
    errors: usize,
}

impl SliceSink for MapSink<'_> {}

impl ExecutionSink for MapSink<'_> {
    const EDGES: bool = true;
    const COUNTS: bool = true;

    #[inline(always)]
    fn edge(&mut self, edge: u16) {
        self.map.edge(edge);
    }

    #[inline(always)]
    fn edges(&mut self, edge: u16, times: u32) {
        self.map.edges(edge, times);
    }

    fn event(&mut self, event: &Event) {
        self.map.event(event);
        self.errors += usize::from(event.kind == EventKind::Overflow);
    }

    fn lost(&mut self, lost: &Lost) {
        self.errors += usize::from(matches!(lost, Lost::Error(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::code::TracedCode;
    use crate::pugmark::known_blocks::{breaks, interrupted_at};
    use crate::pugmark::made_traces::{MadeTrace, made_traces};
    use pugmark_decoder_core::{
        config::Config,
        flow::{ExecutedInsn, FlowItem, InsnDecoder},
        image::Image,
    };

    /// 1000: call 100a; 1005: jz 1008; 1007: hlt; 1008: jmp rax; 100a: call rax; 100c: ret; then three NOPs; 1010: ret.
    const CODE: [u8; 17] =
        [0xe8, 5, 0, 0, 0, 0x74, 1, 0xf4, 0xff, 0xe0, 0xff, 0xd0, 0xc3, 0x90, 0x90, 0x90, 0xc3];
    /// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
    const SYNC: &[u8] = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    /// TIP (1010), TNT (taken three times), TIP.PGD.
    const WAY: &[u8] = b"\x2d\x10\x10\x1e\x01";

    impl Executed {
        /// Adds a trace of this code.
        fn add_trace(&mut self, trace: &[u8], code: &TracedCode) {
            let sections = code.sections();
            let session = Session::alone(trace, Image::new(&sections), Config::default());
            Self::in_lanes(&session, &mut Progress::hidden()).into_iter().for_each(|lane| self.add(lane));
        }
    }

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
            executed.add_trace(&[SYNC, WAY].concat(), &code());
            let expected = Executed {
                insns: once.map(|ip| (ip, times)).into(),
                edges: edges.map(|edge| (edge, times)).into(),
                calls: [0x1000, 0x100a].into(),
                ..Executed::default()
            };
            assert_eq!(executed, expected);
        }
        // An error, after which it goes on with the next PSB.
        executed.add_trace(&[SYNC, b"\x09", SYNC, WAY].concat(), &code());
        assert_eq!((executed.errors, executed.insns[&0x1010]), (1, 3));
    }

    impl Executed {
        fn note(&mut self, branch: &ExecutedInsn) {
            if matches!(branch.class, Class::NearCall | Class::IndirectCall) {
                self.calls.insert(branch.ip);
            }
            if matches!(branch.class, Class::NearJump | Class::IndirectJump) {
                self.jumps.insert(branch.ip);
            }
        }
    }

    /// Counts instruction by instruction.
    fn counted(trace: &[u8], code: &TracedCode) -> Executed {
        let sections = code.sections();
        let mut decoder = InsnDecoder::new(trace, Image::new(&sections));
        let mut executed = Executed::default();
        while decoder.resync().is_some() {
            let mut before: Option<ExecutedInsn> = None;
            loop {
                match decoder.next() {
                    Ok(Some(FlowItem::Insn(insn))) => {
                        *executed.insns.entry(insn.ip).or_default() += 1;
                        if let Some(before) = before.replace(insn).filter(|before| before.class.is_branch()) {
                            *executed.edges.entry((before.ip, insn.ip)).or_default() += 1;
                            executed.note(&before);
                        }
                    }
                    Ok(Some(FlowItem::Event(event))) => {
                        let branch = before
                            .filter(|before| before.class.is_branch() && before.class != Class::FarCall);
                        if let (Some(branch), Some(at)) = (branch, interrupted_at(&event)) {
                            *executed.edges.entry((branch.ip, at)).or_default() += 1;
                            executed.note(&branch);
                        }
                        if breaks(&event) {
                            before = None;
                        }
                        executed.errors += usize::from(event.kind == EventKind::Overflow);
                    }
                    end => {
                        executed.errors += usize::from(end.is_err());
                        break;
                    }
                }
            }
        }
        executed
    }

    #[test]
    fn of_random_programs_as_much_is_counted_as_instruction_by_instruction() {
        let (mut edges, mut errors) = (0, 0);
        for MadeTrace { what, trace, code, .. } in made_traces(10) {
            let mut executed = Executed::default();
            executed.add_trace(&trace, &code);
            assert_eq!(executed, counted(&trace, &code), "{what}");
            edges += executed.edges.values().sum::<u64>();
            errors += executed.errors;
        }
        assert!(edges > 10_000 && errors > 30, "{edges} {errors}");
    }

    #[test]
    fn a_jump_to_the_next_instruction_is_a_branch() {
        // 1000: jmp 1002; 1002: ret
        let mut code = TracedCode::default();
        code.add(0x1000, vec![0xeb, 0, 0xc3]);
        let mut executed = Executed::default();
        // TIP (1000), TIP.PGD
        let trace = [SYNC, b"\x2d\0\x10\x01"].concat();
        executed.add_trace(&trace, &code);
        let edges = [((0x1000, 0x1002), 2), ((0x1002, 0x1000), 1)];
        assert_eq!(executed.edges, edges.into());
    }

    #[test]
    fn a_branch_is_executed_though_what_it_leads_to_is_interrupted() {
        // TIP (1010), FUP (1010), TIP.PGD, TIP.PGE (1010), TNT (taken three times), TIP.PGD: page fault at the target.
        let fault = [SYNC, b"\x2d\x10\x10\x3d\x10\x10\x01\x31\x10\x10\x1e\x01"].concat();
        // TIP (1010), FUP (1010), TIP (100d), TIP.PGD: an interrupt.
        let interrupt = [SYNC, b"\x2d\x10\x10\x3d\x10\x10\x2d\x0d\x10\x01"].concat();
        for trace in [fault, interrupt] {
            let mut executed = Executed::default();
            executed.add_trace(&trace, &code());
            assert_eq!(executed.edges.get(&(0x100a, 0x1010)), Some(&1), "{trace:x?}: {executed:x?}");
            assert_eq!(executed.insns[&0x1010], 1, "{trace:x?}");
            assert_eq!(executed.errors, 0, "{trace:x?}");
            assert!(executed.calls.contains(&0x100a));
        }
    }

    #[test]
    fn what_comes_after_a_gap_was_not_reached_by_a_branch() {
        // TIP.PGE (1000).
        let enable = b"\x71\0\x10\0\0\0\0";
        let mut executed = Executed::default();
        let trace = [SYNC, WAY, enable, WAY].concat();
        executed.add_trace(&trace, &code());
        assert_eq!((executed.insns[&0x1008], executed.insns[&0x1000]), (2, 2));
        assert!(executed.edges.keys().all(|(from, _)| *from != 0x1008), "{executed:x?}");
    }
}
