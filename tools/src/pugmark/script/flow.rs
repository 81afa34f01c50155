//! Instructions, branches and calls in their order, with their times.

use super::{
    ScriptLines,
    columns::{ScriptColumns, When},
    known_text::TextKey,
};
use crate::pugmark::{
    transfers::{Transfer, Transfers},
    walk::{TraceClock, TraceTimes},
};
use crate::session::{Session, SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::{Block, Insns},
    event::{Event, EventKind},
    flow::{ExecutedInsn, FlowItem},
    graph::ExecutionSink,
    image::Asid,
    resume::Lost,
    time::Span,
};
use std::io::{self, Write};

/// The state of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneFlow {
    transfers: Transfers,
    executed: u64,
    /// The time of the last line. It never goes back.
    when: When,
}

/// Writes what is executed, one item after the other.
struct FlowLines<'l, 'a, 's> {
    lines: &'l mut ScriptLines<'a>,
    lanes: Vec<LaneFlow>,
    times: TraceTimes<'s>,
    /// Where the next block was executed.
    span: Span,
    needs_time: bool,
    by_insn: bool,
}

impl FlowLines<'_, '_, '_> {
    fn item(&mut self, item: &FlowItem, span: Span) {
        let Self { lines, lanes, times, .. } = self;
        let Some(lane) = lanes.get_mut(lines.lane) else { return };
        let insn = if let FlowItem::Insn(insn) = item { Some(insn) } else { None };
        let found = if self.by_insn { [None; 2] } else { lane.transfers.step(item, lines.columns.image) };
        let is_shown = found != [None; 2] || self.by_insn && insn.is_some();
        if self.needs_time
            && is_shown
            && let Some((at, tsc)) = times.moment(span, lane.executed)
        {
            lane.when = When { at: at.max(lane.when.at), tsc };
        }
        let when = lane.when;
        if let Some(insn) = insn {
            lane.executed += 1;
            lines.executed = true;
            if self.by_insn {
                lines.insn(insn.ip, when);
            }
        }
        for transfer in found.into_iter().flatten() {
            if lines.options.what.branches || transfer.is_call_or_return {
                lines.transfer(transfer, when);
            }
        }
    }

    fn forget(&mut self) {
        if let Some(lane) = self.lanes.get_mut(self.lines.lane) {
            lane.transfers.forget();
        }
    }
}

impl SliceSink for FlowLines<'_, '_, '_> {
    const ENDS_EARLY: bool = true;

    fn begins(&mut self, slice: &TraceSlice) {
        self.lines.turn_to(slice.lane);
        self.times.turn_to(slice.trace);
    }

    fn stops(&mut self, _: SliceEnd) {
        self.forget();
    }

    fn is_done(&self) -> bool {
        self.lines.failed.is_some()
    }
}

impl ExecutionSink for FlowLines<'_, '_, '_> {
    const BLOCKS: bool = true;
    const SPANS: bool = true;

    fn span(&mut self, span: Span) {
        self.span = span;
    }

    fn block(&mut self, block: &Block) {
        let Block { mode, speculative, .. } = *block;
        for (ip, insn) in Insns::new(self.lines.columns.image, Asid::default(), block) {
            if self.is_done() {
                return;
            }
            let insn = ExecutedInsn { ip, len: insn.len, class: insn.class, mode, speculative };
            self.item(&FlowItem::Insn(insn), self.span);
        }
    }

    fn event(&mut self, event: &Event) {
        self.item(&FlowItem::Event(*event), Span::at(event.offset));
        if !event.status && event.kind == EventKind::Overflow {
            self.lines.error(format_args!("the processor lost packets"));
        }
    }

    fn lost(&mut self, lost: &Lost) {
        if let Lost::Error(error) = lost {
            self.lines.errors += 1;
            self.lines.error(format_args!("{error}"));
        }
        self.forget();
    }

    fn reached(&mut self, offset: u64) {
        self.lines.progress.reached(offset);
    }
}

impl ScriptLines<'_> {
    /// Writes instructions or transfers, with their times.
    pub(super) fn flow(&mut self, session: &Session<'_>, clock: TraceClock) {
        let options = self.options;
        let mut flow = FlowLines {
            lanes: vec![LaneFlow::default(); session.lanes.len()],
            times: TraceTimes::new(session, clock),
            span: Span::default(),
            needs_time: options.needs_time(self.columns.fields),
            by_insn: !(options.what.branches || options.what.calls),
            lines: self,
        };
        session.follow(std::slice::from_mut(&mut flow));
    }

    fn error(&mut self, what: std::fmt::Arguments<'_>) {
        let written = writeln!(self.out, " instruction trace error: {what}");
        self.keep(written);
    }

    fn insn(&mut self, ip: u64, when: When) {
        if !self.is_thread_wanted() || !self.options.is_in_time(when.at, self.columns.unit) {
            return;
        }
        let Self { options, columns, known, lane, .. } = self;
        let rest = known.places.get((*lane, ip), |text| {
            let place = options.place(columns, ip);
            if options.is_wanted(ip, &place) {
                columns.insn(ip, &place, text);
            }
        });
        let written = line(&self.columns, when, rest, &mut known.begin, self.out);
        self.keep(written);
    }

    /// Writes a transfer, if it begins or ends where it is wanted.
    fn transfer(&mut self, transfer: Transfer, when: When) {
        if !self.is_thread_wanted() || !self.options.is_in_time(when.at, self.columns.unit) {
            return;
        }
        let Self { options, columns, known, lane, .. } = self;
        let rest = known.transfers.get((*lane, transfer), |text| {
            let Transfer { from, to, .. } = transfer;
            let place = from.map(|from| options.place(columns, from)).unwrap_or_default();
            let wanted = |ip: u64| options.is_wanted(ip, &options.place(columns, ip));
            if from.is_some_and(wanted) || to.is_some_and(wanted) {
                columns.transfer(transfer, &place, text);
            }
        });
        let written = line(&self.columns, when, rest, &mut known.begin, self.out);
        self.keep(written);
    }
}

/// Writes the thread, the time and the rest of a line, if it has any. `begin` is where the first of these are put
/// together.
fn line(
    columns: &ScriptColumns<'_>,
    when: When,
    rest: &str,
    begin: &mut String,
    out: &mut dyn Write,
) -> io::Result<()> {
    if rest.is_empty() {
        return Ok(());
    }
    begin.clear();
    columns.begin(when, begin);
    out.write_all(begin.as_bytes())?;
    out.write_all(rest.as_bytes())
}

impl TextKey for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl TextKey for Transfer {
    fn number(self) -> u64 {
        let [from, to] = [self.from, self.to].map(Option::unwrap_or_default);
        from ^ to.rotate_left(32)
    }
}
