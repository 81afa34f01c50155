//! Instructions, branches and calls in their order, with their times.

use super::{
    ScriptLines,
    columns::{LineBegin, ScriptColumns, When},
    known_text::TextKey,
};
use crate::pugmark::{
    taken_branches::{TakenBranch, TakenBranches},
    visitors::{TraceClock, TraceTimes, Unit},
};
use crate::session::{BlockNumbers, Session, SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::{Block, Insns},
    block_cache::{ExecutionSink, InstructionRun},
    event::{Event, EventKind},
    flow::{ExecutedInsn, FlowItem},
    image::{Asid, Image},
    resume::Lost,
    time::Span,
};
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::ops::Range;

/// The state of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneFlow {
    taken_branches: TakenBranches,
    executed: u64,
    /// True outside of the lane's window: nothing is written.
    is_outside: bool,
    /// The time of the last line. It never goes back.
    when: When,
}

/// Writes what is executed: each instruction, or taken_branches; with their times or without.
struct FlowLines<'l, 'a, 's, const BY_INSN: bool, const TIMED: bool> {
    lines: &'l mut ScriptLines<'a>,
    lanes: Vec<LaneFlow>,
    times: TraceTimes<'s>,
    /// Where the next block was executed.
    span: Span,
    /// The time of the last place that was looked up.
    moment: Option<(Span, Option<TimeAndTsc>)>,
    /// The instructions of the block that comes next.
    insns: Vec<InstructionRun>,
    places: BlockPlaces,
}

/// A time in the unit of the trace's clock, and the TSC.
type TimeAndTsc = (u64, Option<u64>);

/// The instructions of blocks that may complete a transfer or begin one, each with its number in its block.
#[derive(Default)]
struct BlockPlaces {
    places: Vec<(ExecutedInsn, u32)>,
    /// The places of each block, and the number of its instructions.
    blocks: Vec<(Range<usize>, u32)>,
    /// The numbers of blocks, from 1 on, by their code and by those of the block caches.
    known: FxHashMap<(usize, u64, u64, u32), u32>,
    numbers: BlockNumbers,
    /// The number in its cache of the block that comes next.
    next: u32,
}

impl BlockPlaces {
    /// Returns those of the block with this number in its cache, and the number of its instructions; `None` if
    /// [`learn`](Self::learn) must be told the block.
    #[inline]
    fn of(&mut self, number: u32) -> Option<(Range<usize>, u32)> {
        let known = self.numbers.given(number);
        self.next = number;
        self.blocks.get((known as usize).wrapping_sub(1)).cloned()
    }

    /// Does the same for a block of the code with this number, which was asked for last.
    fn learn(&mut self, code: usize, block: &Block, image: Image<'_>) -> (Range<usize>, u32) {
        let Block { ip, end_ip, insns, .. } = *block;
        let Self { places, blocks, .. } = self;
        let number = *self.known.entry((code, ip, end_ip, insns)).or_insert_with(|| {
            blocks.push((add_places(block, image, places), insns));
            blocks.len() as u32
        });
        self.numbers.give(std::mem::take(&mut self.next), number);
        self.blocks[number as usize - 1].clone()
    }
}

/// Adds the first and the last instruction, branches, and what follows them.
fn add_places(block: &Block, image: Image<'_>, places: &mut Vec<(ExecutedInsn, u32)>) -> Range<usize> {
    let Block { mode, speculative, .. } = *block;
    let (from, mut follows_branch) = (places.len(), true);
    let mut insns = Insns::new(image, Asid::default(), block).zip(0..).peekable();
    while let Some(((ip, insn), before)) = insns.next() {
        let is_branch = insn.class.is_branch();
        if is_branch || follows_branch || insns.peek().is_none() {
            let insn = ExecutedInsn { ip, len: insn.len, class: insn.class, mode, speculative };
            places.push((insn, before));
        }
        follows_branch = is_branch;
    }
    from..places.len()
}

impl<const BY_INSN: bool, const TIMED: bool> FlowLines<'_, '_, '_, BY_INSN, TIMED> {
    /// Returns the time at a place of the trace. The lane has executed `executed` instructions before it.
    #[inline]
    fn when(&mut self, span: Span, executed: u64) -> When {
        let Some(lane) = self.lanes.get_mut(self.lines.lane).filter(|_| TIMED) else {
            return When::default();
        };
        let known = self.moment.filter(|(known, _)| *known == span);
        let moment = match known.filter(|_| self.lines.columns.unit != Unit::Instructions) {
            Some((_, moment)) => moment,
            None => self.times.moment(span, executed),
        };
        self.moment = Some((span, moment));
        if let Some((at, tsc)) = moment {
            lane.when = When { at: at.max(lane.when.at), tsc };
        }
        lane.when
    }

    /// Counts instructions, and returns the number of those before.
    fn executed(&mut self, more: u32) -> u64 {
        let Some(lane) = self.lanes.get_mut(self.lines.lane) else { return 0 };
        lane.executed += u64::from(more);
        lane.executed - u64::from(more)
    }

    /// Writes the instructions of a block.
    fn listed(&mut self) {
        let mut insns = std::mem::take(&mut self.insns);
        for ip in insns.drain(..).flatten() {
            let executed = self.executed(1);
            if !self.is_outside() {
                let when = self.when(self.span, executed);
                self.lines.insn(ip, when);
            }
        }
        self.insns = insns;
    }

    /// Writes the taken branches that `item` completes. `executed` is the number of instructions before it in the lane.
    #[inline]
    fn item(&mut self, item: &FlowItem, span: Span, executed: u64) {
        let Some(lane) = self.lanes.get_mut(self.lines.lane) else { return };
        let found = lane.taken_branches.step(item, self.lines.columns.image);
        if found == [None; 2] || lane.is_outside {
            return;
        }
        let when = self.when(span, executed);
        for transfer in found.into_iter().flatten() {
            if self.lines.options.what.branches || transfer.is_call_or_return {
                self.lines.transfer(transfer, when);
            }
        }
    }

    /// Writes the taken branches of a block with these places and this number of instructions.
    #[inline]
    fn executes(&mut self, places: Range<usize>, insns: u32) {
        self.lines.executed |= !self.is_outside();
        let first = self.executed(insns);
        for number in places {
            let (insn, before) = self.places.places[number];
            self.item(&FlowItem::Insn(insn), self.span, first + u64::from(before));
        }
    }

    fn is_outside(&self) -> bool {
        self.lanes.get(self.lines.lane).is_some_and(|lane| lane.is_outside)
    }

    /// Notes an error, and writes it as a line.
    fn error(&mut self, what: std::fmt::Arguments<'_>) {
        self.lines.errors += 1;
        if !self.is_outside() {
            self.lines.error(what);
        }
    }

    fn forget(&mut self) {
        if let Some(lane) = self.lanes.get_mut(self.lines.lane) {
            lane.taken_branches.forget();
        }
    }
}

impl<const BY_INSN: bool, const TIMED: bool> SliceSink for FlowLines<'_, '_, '_, BY_INSN, TIMED> {
    const ENDS_EARLY: bool = true;
    const SEES_OUTSIDE: bool = true;

    fn turn_to_cache(&mut self, cache: usize) {
        self.places.numbers.turn_to(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        self.lines.begin(slice);
        self.times.turn_to(slice.trace);
        self.moment = None;
    }

    fn stops(&mut self, _: SliceEnd) {
        self.forget();
    }

    fn turns(&mut self, is_inside: bool, _: u64) {
        self.lanes.get_mut(self.lines.lane).into_iter().for_each(|lane| lane.is_outside = !is_inside);
    }

    fn is_done(&self) -> bool {
        self.lines.failed.is_some()
    }
}

impl<const BY_INSN: bool, const TIMED: bool> ExecutionSink for FlowLines<'_, '_, '_, BY_INSN, TIMED> {
    const INSNS: bool = BY_INSN;
    const BLOCKS: bool = true;
    const NUMBERS: bool = !BY_INSN;
    const SPANS: bool = TIMED;

    fn numbered(&mut self, generation: u64) {
        self.places.numbers.numbered(generation);
    }

    #[inline]
    fn passes(&mut self, number: u32) -> bool {
        let found = self.places.of(number);
        let is_known = found.is_some();
        if let (Some((places, insns)), false) = (found, self.is_done()) {
            self.executes(places, insns);
        }
        !is_known
    }

    #[inline]
    fn insns(&mut self, insns: InstructionRun) {
        self.insns.push(insns);
    }

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    fn block(&mut self, block: &Block) {
        if self.is_done() {
            self.insns.clear();
            return;
        }
        if BY_INSN {
            self.lines.executed |= !self.is_outside();
            return self.listed();
        }
        let (places, insns) = self.places.learn(self.lines.known.code, block, self.lines.columns.image);
        self.executes(places, insns);
    }

    fn event(&mut self, event: &Event) {
        if !BY_INSN {
            let executed = self.executed(0);
            self.item(&FlowItem::Event(*event), Span::at(event.offset), executed);
        }
        if !event.status && event.kind == EventKind::Overflow {
            self.error(format_args!("the processor lost packets"));
        }
    }

    fn lost(&mut self, lost: &Lost) {
        if let Lost::Error(error) = lost {
            self.error(format_args!("{error}"));
        }
        self.forget();
    }

    fn reached(&mut self, offset: u64) {
        self.lines.progress.reached(offset);
    }
}

impl ScriptLines<'_> {
    /// Writes instructions or taken_branches, with their times.
    pub(super) fn flow(&mut self, session: &Session<'_>, clock: TraceClock) {
        let what = self.options.what;
        match (what.branches || what.calls, self.options.needs_time(self.columns.fields)) {
            (false, _) => self.flow_of::<true, true>(session, clock),
            (true, true) => self.flow_of::<false, true>(session, clock),
            (true, false) => self.flow_of::<false, false>(session, clock),
        }
    }

    fn flow_of<const BY_INSN: bool, const TIMED: bool>(&mut self, session: &Session<'_>, clock: TraceClock) {
        let lane = |lane| LaneFlow { is_outside: session.window(lane).start != 0, ..LaneFlow::default() };
        let mut flow = FlowLines::<BY_INSN, TIMED> {
            lanes: (0..session.lanes.len()).map(lane).collect(),
            times: TraceTimes::new(session, clock),
            span: Span::default(),
            moment: None,
            insns: vec![],
            places: BlockPlaces::default(),
            lines: self,
        };
        session.follow(std::slice::from_mut(&mut flow));
    }

    fn error(&mut self, what: std::fmt::Arguments<'_>) {
        let written = writeln!(self.out, " instruction trace error: {what}");
        self.keep(written);
    }

    fn insn(&mut self, ip: u64, when: When) {
        self.count += 1;
        let Self { options, columns, known, .. } = self;
        let rest = known.places.get((known.code, ip), |text| {
            if options.is_wanted(columns, ip) {
                let place = options.place(columns, ip);
                columns.insn(ip, &place, text);
            }
        });
        let written = line(&self.columns, when, rest, &mut known.begin, self.out);
        self.keep(written);
    }

    /// Writes a transfer, if it begins or ends where it is wanted.
    fn transfer(&mut self, transfer: TakenBranch, when: When) {
        let Self { options, columns, known, .. } = self;
        let rest = known.taken_branches.get((known.code, transfer), |text| {
            let TakenBranch { from, to, .. } = transfer;
            let place = from.map(|from| options.place(columns, from)).unwrap_or_default();
            let wanted = |ip: u64| options.is_wanted(columns, ip);
            if from.is_some_and(wanted) || to.is_some_and(wanted) {
                columns.transfer(transfer, &place, text);
            }
        });
        let written = line(&self.columns, when, rest, &mut known.begin, self.out);
        self.keep(written);
    }
}

/// Writes the thread, the time and the rest of a line, if it has any.
#[inline]
fn line(
    columns: &ScriptColumns<'_>,
    when: When,
    rest: &str,
    begin: &mut LineBegin,
    out: &mut dyn Write,
) -> io::Result<()> {
    if rest.is_empty() {
        return Ok(());
    }
    out.write_all(begin.of(columns, when).as_bytes())?;
    out.write_all(rest.as_bytes())
}

impl TextKey for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl TextKey for TakenBranch {
    fn number(self) -> u64 {
        let [from, to] = [self.from, self.to].map(Option::unwrap_or_default);
        from ^ to.rotate_left(32)
    }
}
