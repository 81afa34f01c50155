//! A guest's report, collected workload by workload from its lines.
//!
//! The lines are those of [`pugmark_protocol`]. A line that begins with none of its words, or has another number of
//! words than the protocol's line, is the guest's own output and is kept separately. The monitor's own lines are in
//! [`crate::violations`].

use anyhow::{Context, Result, bail, ensure};
use pugmark_protocol::{
    CodeSection, Count, Done, Fault, Last, Line, Lost, ParseErrorKind, Piece, Records, Samples, Stat, Top,
};
use std::collections::BTreeMap;

use crate::filter::Filter;
use crate::violations::{Reported, Violation, Violations};

/// The whole output of a guest.
#[derive(Debug, Default)]
pub struct Transcript {
    /// The workloads, in the order they ran.
    pub runs: Vec<Run>,
    /// The closing line.
    pub done: Option<Done>,
    /// Rules of the hardware that were broken outside of any workload: the processor, the rules, the monitor's line.
    pub(crate) outside: Vec<(u64, Violation, String)>,
    /// Lines outside the protocol.
    pub other: Vec<String>,
    /// The monitor's lines, without its reports of broken rules.
    pub monitor: Vec<String>,
}

/// A guest's report of one workload.
#[derive(Debug, Default)]
pub struct Run {
    /// The workload.
    pub name: String,
    /// The trace session: the marker of its records in the truth.
    pub session: Option<u16>,
    /// The part of the workload that should be traced.
    pub filter: Filter,
    /// Instructions, bytes and the rest, as the guest counted them.
    pub stat: Option<Stat>,
    /// The hottest functions.
    pub top: Vec<(String, u64)>,
    /// The contiguous parts of the decode.
    pub pieces: Vec<Piece>,
    /// The contiguous parts of the branch records.
    pub records: Vec<Records>,
    /// The counts, each in its session.
    pub counts: Vec<Count>,
    /// The samples, each in its session.
    pub samples: Vec<SampledSession>,
    /// The last branches, each in its session.
    pub lasts: Vec<LastBranches>,
    /// Page faults that the debug store raised.
    pub faults: Vec<Fault>,
    /// Losses by kind.
    pub lost: Lost,
    /// The reason why the driver declined.
    pub refusal: Option<String>,
    /// Size in bytes of each contiguous part of the trace on the debug console; empty if it is not dumped.
    pub dump: Vec<u64>,
    /// The traced code, if the trace is dumped.
    pub code: Vec<CodeSection>,
    /// The kernel's compliance with the rules of the hardware.
    pub violations: Violations,
    /// The end; `None` if the workload never ended.
    pub end: Option<End>,
}

/// The end of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `ok`
    Ok,
    /// `fail`, with the reason.
    Fail(String),
    /// `ok`, but the kernel has broken rules of the hardware: the monitor's lines.
    BrokeRules(String),
}

/// A session's samples, and the counts of those without an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledSession {
    /// The event, and the counts of the samples by their fate.
    pub totals: Samples,
    /// The addresses, and the number of samples of each.
    pub addresses: BTreeMap<u64, u64>,
    /// The samples in order, if they are precise.
    pub precise: Vec<PreciseSample>,
    /// Samples are missing after the last one.
    pub missing: bool,
}

/// A sample of an event at its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreciseSample {
    /// The address of the instruction, if the record has it.
    pub event: Option<u64>,
    /// The next address after it, if the record has it.
    pub next: Option<u64>,
    /// Samples are missing before it.
    pub resumed: bool,
}

/// The last branches when a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastBranches {
    /// The kind of the branches, and their number.
    pub last: Last,
    /// Source and target, the newest first.
    pub branches: Vec<(u64, u64)>,
}

impl Transcript {
    /// Takes one line of the guest.
    ///
    /// # Errors
    /// If a line of the protocol is malformed or out of place.
    pub fn line(&mut self, line: &str) -> Result<()> {
        let line = line.trim_end();
        self.take(line).with_context(|| format!("in the guest's line {line:?}"))
    }

    /// Takes one line of the monitor, which precedes the guest's next line.
    ///
    /// # Errors
    /// If a report of a broken rule is malformed.
    pub fn monitor_line(&mut self, line: &str) -> Result<()> {
        match Violation::parse(line)? {
            None => self.monitor.push(line.into()),
            Some((processor, violation)) => {
                match self.runs.last_mut().filter(|run| run.end.is_none() && run.processor() == processor) {
                    Some(run) => run.violations.add(violation, line),
                    None => self.outside.push((processor, violation, line.into())),
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &str) -> Result<()> {
        let parsed = match Line::parse(line) {
            Ok(parsed) => parsed,
            Err(error) => match error.kind {
                ParseErrorKind::UnknownLine(_)
                | ParseErrorKind::MissingWord(_)
                | ParseErrorKind::TrailingWord(_) => {
                    self.other.push(line.into());
                    return Ok(());
                }
                // The error borrows the line.
                _ => bail!("{error}"),
            },
        };
        match parsed {
            Line::Run(name) => {
                ensure!(self.done.is_none(), "a workload begins after the closing line");
                if let Some(open) = self.runs.last().filter(|run| run.end.is_none()) {
                    bail!("{} has not ended", open.name);
                }
                self.runs.push(Run { name: name.into(), ..Run::default() });
                self.explain_by_run();
            }
            Line::Session(name, session) => self.open(name)?.session = Some(session),
            Line::Filter(name, filter) => self.open(name)?.filter = filter.into(),
            Line::Stat(name, stat) => self.open(name)?.stat = Some(stat),
            Line::Top(name, Top { symbol, count, .. }) => self.open(name)?.top.push((symbol.into(), count)),
            Line::Piece(name, index, piece) => {
                let run = self.open(name)?;
                ensure!(index == run.pieces.len(), "piece {index} is out of order");
                run.pieces.push(piece);
            }
            Line::Records(name, index, records) => {
                let run = self.open(name)?;
                ensure!(index == run.records.len(), "records {index} are out of order");
                run.records.push(records);
            }
            Line::Count(name, count) => self.open(name)?.counts.push(count),
            Line::Samples(name, totals) => {
                self.open(name)?.samples.push(SampledSession { totals, ..SampledSession::default() });
            }
            Line::Sample(name, sample) => {
                self.samples(name, sample.session)?.addresses.insert(sample.address, sample.count);
            }
            Line::Precise(name, precise) => {
                let samples = self.samples(name, precise.session)?;
                let resumed = core::mem::take(&mut samples.missing);
                samples.precise.push(PreciseSample { event: precise.event, next: precise.next, resumed });
            }
            Line::Missing(name, session) => self.samples(name, session)?.missing = true,
            Line::Last(name, last) => {
                self.open(name)?.lasts.push(LastBranches { last, branches: Vec::new() });
            }
            Line::Branch(name, branch) => {
                let open = self.open(name)?.lasts.last_mut();
                let open = open.filter(|branches| branches.last.session == branch.session);
                let open = open.with_context(|| format!("no last branches of session {}", branch.session))?;
                open.branches.push((branch.from, branch.to));
            }
            Line::Fault(name, fault) => self.open(name)?.faults.push(fault),
            Line::Lost(name, lost) => self.open(name)?.lost += lost,
            Line::Probe(name, access) => self.open(name)?.violations.announce(access),
            Line::Refuse(name, reason) => self.open(name)?.refusal = Some(reason.into()),
            Line::Dump(name, bytes) => self.open(name)?.dump.push(bytes),
            Line::Section(name, section) => self.open(name)?.code.push(section),
            Line::Ok(name) => {
                let run = self.open(name)?;
                run.end = Some(End::Ok);
                run.judge_rules();
            }
            Line::Fail(name, reason) => self.open(name)?.end = Some(End::Fail(reason.into())),
            Line::Done(done) => self.done = Some(done),
        }
        Ok(())
    }

    /// Returns the rules of the hardware that the kernel has broken, with the workload; none if it has kept them all.
    #[must_use]
    pub fn broken_rules(&self) -> Vec<String> {
        let broke = |run: &Run| match &run.end {
            Some(End::BrokeRules(what)) => Some(format!("{}: {what}", run.name)),
            _ => None,
        };
        let outside = self.broken_outside().map(|line| format!("outside of a workload: {line}"));
        self.runs.iter().filter_map(broke).chain(outside).collect()
    }

    /// Iterates over the monitor's lines on rules of the hardware that were broken outside of any workload.
    pub fn broken_outside(&self) -> impl Iterator<Item = &str> {
        self.outside.iter().map(|(.., line)| &**line)
    }

    /// Assigns the rules broken outside of any workload to the runs to which they belong, if the last line shows that
    /// several processors ran a workload: they all have ended it before the first of them is reported.
    fn explain_by_run(&mut self) {
        let Some(base) = self.runs.last().and_then(|run| Some(run.name.split_once('@')?.0.to_owned())) else {
            return;
        };
        for run in &mut self.runs {
            if run.name.split('@').next() == Some(&*base) {
                let processor = run.processor();
                for (_, violation, line) in self.outside.extract_if(.., |(on, ..)| *on == processor) {
                    run.violations.add(violation, &line);
                }
                run.judge_rules();
            }
        }
    }

    /// Returns the samples of a session of the running workload.
    fn samples(&mut self, name: &str, session: u16) -> Result<&mut SampledSession> {
        let open = self.open(name)?.samples.last_mut();
        let open = open.filter(|samples| samples.totals.session == session);
        open.with_context(|| format!("no samples of session {session}"))
    }

    /// Returns the running workload, if it has this name.
    fn open(&mut self, name: &str) -> Result<&mut Run> {
        match self.runs.last_mut() {
            Some(run) if run.name == name && run.end.is_none() => Ok(run),
            _ => bail!("{name} is not running"),
        }
    }
}

impl Run {
    /// Returns the processor on which the workload ran: `NAME` is on the first, `NAME@2` on the third.
    fn processor(&self) -> u64 {
        self.name.split_once('@').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    }

    /// Judges the compliance of a run that has ended with `ok` with the rules of the hardware.
    fn judge_rules(&mut self) {
        if matches!(self.end, Some(End::Ok | End::BrokeRules(_))) {
            let faults = self.faults.len() as u64;
            let reported = Reported { page_faults: faults, records_lost: self.lost.stops > 0 };
            self.end = Some(self.violations.unexplained(reported).map_or(End::Ok, End::BrokeRules));
        }
    }

    /// Returns true if the run ended well without tracing: a kernel that only reports, or a driver that declined.
    #[must_use]
    pub fn traces_nothing(&self) -> bool {
        let measured = !self.counts.is_empty() || !self.samples.is_empty() || !self.lasts.is_empty();
        self.end == Some(End::Ok) && self.stat.is_none() && !measured
    }
}

#[cfg(test)]
mod tests;
