//! What a guest said, collected workload by workload from its lines.
//!
//! The lines are those of [`pugmark_protocol`]. One that begins with none of its words, or has not as many words as a
//! line that begins so, is the guest's own talk and is kept apart. The monitor's own lines are in
//! [`crate::violations`].

use anyhow::{Context, Result, bail, ensure};
use pugmark_protocol::{
    CodeSection, Count, Done, Fault, Last, Line, Lost, ParseErrorKind, Piece, Records, Samples, Stat, Top,
};
use std::collections::BTreeMap;

use crate::filter::Filter;
use crate::violations::{Reported, Violation, Violations};

/// Everything a guest said.
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

/// What a guest said of one workload.
#[derive(Debug, Default)]
pub struct Run {
    /// The workload.
    pub name: String,
    /// Its trace session: the marker that its truth records carry.
    pub session: Option<u16>,
    /// What of it should be traced.
    pub filter: Filter,
    /// Instructions, bytes and the rest, as the guest counted them.
    pub stat: Option<Stat>,
    /// The functions that ran most.
    pub top: Vec<(String, u64)>,
    /// The contiguous parts of the decode.
    pub pieces: Vec<Piece>,
    /// The contiguous parts of the branch records.
    pub records: Vec<Records>,
    /// What was counted, each in its session.
    pub counts: Vec<Count>,
    /// What was sampled, each in its session.
    pub samples: Vec<SampledSession>,
    /// The last branches, each in its session.
    pub lasts: Vec<LastBranches>,
    /// Page faults of the debug store's own.
    pub faults: Vec<Fault>,
    /// Losses by kind.
    pub lost: Lost,
    /// Why the driver declined.
    pub refusal: Option<String>,
    /// How many bytes each contiguous part of the trace has on the debug console; none where it is not dumped.
    pub dump: Vec<u64>,
    /// The code that the trace is of, where it is dumped.
    pub code: Vec<CodeSection>,
    /// How the kernel kept to the rules of the hardware.
    pub violations: Violations,
    /// How it ended; none if it never did.
    pub end: Option<End>,
}

/// How a workload ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `ok`
    Ok,
    /// `fail`, with the reason.
    Fail(String),
    /// `ok`, but the kernel has broken rules of the hardware: the monitor's lines.
    BrokeRules(String),
}

/// A session's samples, and what became of those that are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledSession {
    /// What was sampled, and how many samples became what.
    pub totals: Samples,
    /// The addresses, and how often each was sampled.
    pub addresses: BTreeMap<u64, u64>,
    /// The samples in order, where they are precise.
    pub precise: Vec<PreciseSample>,
    /// Samples are missing after the last one.
    pub missing: bool,
}

/// A sample of an event at its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreciseSample {
    /// The address of the instruction, where the record has it.
    pub event: Option<u64>,
    /// Where execution stood after it, where the record has it.
    pub next: Option<u64>,
    /// Samples are missing before it.
    pub resumed: bool,
}

/// The last branches when a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastBranches {
    /// What they are of, and how many there are to be.
    pub last: Last,
    /// Where from and where to, the newest first.
    pub branches: Vec<(u64, u64)>,
}

impl Transcript {
    /// Takes in one line of the guest's.
    ///
    /// # Errors
    /// A line of the protocol that is malformed or out of place.
    pub fn line(&mut self, line: &str) -> Result<()> {
        let line = line.trim_end();
        self.take(line).with_context(|| format!("in the guest's line {line:?}"))
    }

    /// Takes in one line of the monitor's, which came before the guest's next line.
    ///
    /// # Errors
    /// A report of a broken rule that is malformed.
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
                // It borrows the line.
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

    /// Which rules of the hardware the kernel has broken, with the workload; none if it has kept them all.
    #[must_use]
    pub fn broken_rules(&self) -> Vec<String> {
        let broke = |run: &Run| match &run.end {
            Some(End::BrokeRules(what)) => Some(format!("{}: {what}", run.name)),
            _ => None,
        };
        let outside = self.broken_outside().map(|line| format!("outside of a workload: {line}"));
        self.runs.iter().filter_map(broke).chain(outside).collect()
    }

    /// The monitor's lines on rules of the hardware that were broken outside of any workload.
    pub fn broken_outside(&self) -> impl Iterator<Item = &str> {
        self.outside.iter().map(|(.., line)| &**line)
    }

    /// Lays what was broken outside of any workload to the runs that it belongs to, where the last line shows that
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

    /// The samples of a session of the workload that is running.
    fn samples(&mut self, name: &str, session: u16) -> Result<&mut SampledSession> {
        let open = self.open(name)?.samples.last_mut();
        let open = open.filter(|samples| samples.totals.session == session);
        open.with_context(|| format!("no samples of session {session}"))
    }

    /// The workload that is running, if it has this name.
    fn open(&mut self, name: &str) -> Result<&mut Run> {
        match self.runs.last_mut() {
            Some(run) if run.name == name && run.end.is_none() => Ok(run),
            _ => bail!("{name} is not running"),
        }
    }
}

impl Run {
    /// The processor on which the workload ran: `NAME` is on the first, `NAME@2` on the third.
    fn processor(&self) -> u64 {
        self.name.split_once('@').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    }

    /// Says how a run that has ended with `ok` has kept to the rules of the hardware.
    fn judge_rules(&mut self) {
        if matches!(self.end, Some(End::Ok | End::BrokeRules(_))) {
            let faults = self.faults.len() as u64;
            let reported = Reported { page_faults: faults, records_lost: self.lost.stops > 0 };
            self.end = Some(self.violations.unexplained(reported).map_or(End::Ok, End::BrokeRules));
        }
    }

    /// Whether it ended well without tracing: a kernel that only reports, or a driver that declined.
    #[must_use]
    pub fn traces_nothing(&self) -> bool {
        let measured = !self.counts.is_empty() || !self.samples.is_empty() || !self.lasts.is_empty();
        self.end == Some(End::Ok) && self.stat.is_none() && !measured
    }
}

#[cfg(test)]
mod tests;
