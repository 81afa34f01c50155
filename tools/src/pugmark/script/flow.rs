//! Instructions, branches and calls in their order, with their times.

use super::{
    ScriptLines,
    columns::{ScriptColumns, When},
    known_text::TextKey,
};
use crate::pugmark::{
    progress::Size,
    transfers::{Transfer, Transfers},
    walk::TraceClock,
};
use pugmark_decoder_core::{
    config::Config,
    event::EventKind,
    flow::{FlowItem, InsnDecoder},
    image::Image,
    time::{Span, Timeline},
};
use std::io::{self, Write};

impl ScriptLines<'_> {
    /// Writes instructions or transfers, with their times. Returns the number of errors.
    pub(super) fn flow(
        &mut self,
        trace: &[u8],
        image: Image<'_>,
        config: Config<'_>,
        clock: TraceClock,
    ) -> usize {
        let mut timeline = Timeline::new(trace, config);
        let mut decoder = InsnDecoder::with_config(trace, image, config);
        let mut transfers = Transfers::default();
        let (mut errors, mut executed, mut when) = (0, 0, When::default());
        let needs_time = self.options.needs_time(self.columns.fields);
        let by_insn = !(self.options.what.branches || self.options.what.calls);
        self.progress.begin("decoding", Size::Bytes(trace.len() as u64));
        while self.failed.is_none() && decoder.resync().is_some() {
            transfers.forget();
            loop {
                let item = match decoder.next() {
                    Ok(Some(item)) => item,
                    Ok(None) => break,
                    Err(error) => {
                        errors += 1;
                        let written = writeln!(self.out, " instruction trace error: {error}");
                        self.keep(written);
                        break;
                    }
                };
                let (span, insn) = match &item {
                    FlowItem::Insn(insn) => (decoder.span(), Some(insn)),
                    FlowItem::Event(event) => (Span::at(event.offset), None),
                };
                let found = if by_insn { [None; 2] } else { transfers.step(&item, image) };
                let is_shown = found != [None; 2] || by_insn && insn.is_some();
                if needs_time
                    && is_shown
                    && let Some((at, tsc)) = clock.time(&mut timeline, span, executed)
                {
                    // It never goes back.
                    when = When { at: at.max(when.at), tsc };
                }
                if let Some(insn) = insn {
                    executed += 1;
                    self.executed = true;
                    if by_insn {
                        self.insn(insn.ip, when);
                    }
                } else if let FlowItem::Event(event) = &item
                    && !event.status
                    && event.kind == EventKind::Overflow
                {
                    let written = writeln!(self.out, " instruction trace error: the processor lost packets");
                    self.keep(written);
                }
                for transfer in found.into_iter().flatten() {
                    if self.options.what.branches || transfer.is_call_or_return {
                        self.transfer(transfer, when);
                    }
                }
                self.progress.step(|| decoder.held());
                if self.failed.is_some() {
                    break;
                }
            }
        }
        errors
    }

    fn insn(&mut self, ip: u64, when: When) {
        if !self.options.is_in_time(when.at, self.columns.unit) {
            return;
        }
        let Self { options, columns, known, .. } = self;
        let rest = known.places.get(ip, |text| {
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
        if !self.options.is_in_time(when.at, self.columns.unit) {
            return;
        }
        let Self { options, columns, known, .. } = self;
        let rest = known.transfers.get(transfer, |text| {
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
