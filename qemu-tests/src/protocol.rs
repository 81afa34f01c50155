//! The guest's text protocol: one line a fact, the last one the verdict.
//!
//! | line | meaning |
//! |---|---|
//! | `run NAME` | a workload begins |
//! | `session NAME N` | its records in the truth log carry the marker N |
//! | `filter NAME KEY=VALUE…` | what of it should be traced, see [`crate::filter`] |
//! | `stat NAME KEY=VALUE…` | what the driver and the decoder measured |
//! | `top NAME RANK SYMBOL COUNT` | a function and the instructions it ran |
//! | `piece NAME INDEX KEY=VALUE…` | a contiguous part of the decode |
//! | `records NAME INDEX KEY=VALUE…` | branch records without a break |
//! | `count NAME KEY=VALUE…` | what a performance counter counted in a session of its own |
//! | `samples NAME KEY=VALUE…` | what became of a session's samples |
//! | `sample NAME N ADDRESS COUNT` | an address that was sampled in session N, and how often |
//! | `lost NAME KEY=VALUE…` | losses, by kind |
//! | `probe NAME msr=0x… [value=0x…]` | an access that must be refused, see [`crate::conduct`] |
//! | `refuse NAME REASON` | the driver declined; the reason names the CPUID bit |
//! | `dump NAME bytes=N` | the next N bytes of the debug console are a contiguous part of NAME's trace |
//! | `section NAME base=0x… len=N from=0x… cr3=any\|0x…` | code that ran at `base`; its bytes are at `from` in the image |
//! | `ok NAME`, `fail NAME: REASON` | a workload ended |
//! | `done PASSED FAILED` | all ended |
//!
//! A line that begins with none of these words is the guest's own talk and is kept apart. The monitor's own lines are
//! in [`crate::conduct`].

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

use crate::conduct::{Access, Breach, Conduct, Told};
use crate::filter::Filter;

/// Everything a guest said.
#[derive(Debug, Default)]
pub struct Transcript {
    /// The workloads, in the order they ran.
    pub runs: Vec<Run>,
    /// The closing line: passed and failed.
    pub done: Option<(u64, u64)>,
    /// Rules of the hardware that were broken outside of any workload: the monitor's lines.
    pub breaches: Vec<String>,
    /// Lines outside the protocol.
    pub other: Vec<String>,
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
    pub samples: Vec<Samples>,
    /// The last branches, each in its session.
    pub lasts: Vec<Last>,
    /// Page faults of the debug store's own.
    pub faults: Vec<Fault>,
    /// Losses by kind.
    pub lost: BTreeMap<String, u64>,
    /// Why the driver declined.
    pub refusal: Option<String>,
    /// How many bytes each contiguous part of the trace has on the debug console; none where it is not dumped.
    pub dump: Vec<u64>,
    /// The code that the trace is of, where it is dumped.
    pub code: Vec<Code>,
    /// How the kernel kept to the rules of the hardware.
    pub conduct: Conduct,
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
    Broke(String),
}

/// The guest's figures for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Decoded instructions.
    pub count: u64,
    /// Their hash.
    pub hash: u64,
    /// Trace bytes.
    pub bytes: u64,
    /// Interrupts that the tracing hardware raised.
    pub pmis: u64,
    /// Losses of any kind.
    pub loss: u64,
}

/// Code that a trace is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The address at which it is executed.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
    /// Where in the image they are.
    pub from: u64,
    /// The address space that has it there; none: all.
    pub cr3: Option<u64>,
}

/// A contiguous part of a decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Instructions in it.
    pub count: u64,
    /// Their hash.
    pub hash: u64,
    /// The first one's address.
    pub first: u64,
    /// The last one's address.
    pub last: u64,
    /// What stands before it.
    pub after: String,
}

/// What a performance counter counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The marker of its truth records.
    pub session: u16,
    /// The event select.
    pub event: u16,
    /// How often it happened.
    pub value: u64,
}

/// Samples, and what became of those that are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// The marker of their truth records.
    pub session: u16,
    /// What the period counts: `instructions`, `ops` or `cycles`.
    pub of: String,
    /// One in so many of it.
    pub period: u64,
    /// Samples with an address.
    pub taken: u64,
    /// Samples that there was no room for.
    pub lost: u64,
    /// Periods without a sample.
    pub skipped: u64,
    /// Samples without an address.
    pub unplaced: u64,
    /// The addresses, and how often each was sampled.
    pub addresses: BTreeMap<u64, u64>,
    /// The samples in order, where they are precise.
    pub precise: Vec<Precise>,
    /// Samples are missing behind the last one.
    pub missing: bool,
}

/// A sample of an event at its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precise {
    /// The address of the instruction, where the record has it.
    pub event: Option<u64>,
    /// Where execution stood behind it, where the record has it.
    pub behind: Option<u64>,
    /// Samples are missing before it.
    pub resumed: bool,
}

/// The last branches when a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Last {
    /// The marker of its truth records.
    pub session: u16,
    /// Calls that have not returned, and no other branches.
    pub calls: bool,
    /// How many there are.
    pub entries: u64,
    /// Where from and where to, the newest first.
    pub branches: Vec<(u64, u64)>,
}

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// CR2.
    pub address: u64,
    /// The error code.
    pub code: u64,
}

/// Branch records without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// How many.
    pub count: u64,
    /// The hash of where from and where to, of each.
    pub hash: u64,
    /// What stands before them.
    pub after: String,
}

impl Transcript {
    /// Takes in one line.
    ///
    /// # Errors
    /// A line of the protocol that is malformed or out of place.
    pub fn line(&mut self, line: &str) -> Result<()> {
        let line = line.trim_end();
        if let Some(breach) = Breach::parse(line)? {
            match self.runs.last_mut().filter(|run| run.end.is_none()) {
                Some(run) => run.conduct.breach(breach, line),
                None => self.breaches.push(line.into()),
            }
            return Ok(());
        }
        self.take(line).with_context(|| format!("in the guest's line {line:?}"))
    }

    fn take(&mut self, line: &str) -> Result<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (word, words.as_slice()) {
            ("run", [name]) => {
                ensure!(self.done.is_none(), "after the closing line");
                if let Some(open) = self.runs.last().filter(|run| run.end.is_none()) {
                    bail!("{} has not ended", open.name);
                }
                self.runs.push(Run { name: (*name).into(), ..Run::default() });
            }
            ("session", [name, number]) => self.open(name)?.session = Some(number.parse()?),
            ("filter", [name, pairs @ ..]) => self.open(name)?.filter = Filter::parse(pairs)?,
            ("stat", [name, pairs @ ..]) => self.open(name)?.stat = Some(Stat::parse(pairs)?),
            ("top", [name, _rank, symbol @ .., count]) => {
                self.open(name)?.top.push((symbol.join(" "), count.parse()?));
            }
            ("piece", [name, index, pairs @ ..]) => {
                let run = self.open(name)?;
                ensure!(index.parse::<usize>()? == run.pieces.len(), "piece out of order");
                run.pieces.push(Piece::parse(pairs)?);
            }
            ("records", [name, index, pairs @ ..]) => {
                let run = self.open(name)?;
                ensure!(index.parse::<usize>()? == run.records.len(), "records out of order");
                run.records.push(Records::parse(pairs)?);
            }
            ("count", [name, pairs @ ..]) => self.open(name)?.counts.push(Count::parse(pairs)?),
            ("samples", [name, pairs @ ..]) => self.open(name)?.samples.push(Samples::parse(pairs)?),
            ("sample", [name, session, address, count]) => {
                self.samples(name, session)?.addresses.insert(number(address)?, number(count)?);
            }
            ("precise", [name, session, event, behind]) => {
                let samples = self.samples(name, session)?;
                let resumed = core::mem::take(&mut samples.missing);
                samples.precise.push(Precise { event: address(event)?, behind: address(behind)?, resumed });
            }
            ("missing", [name, session]) => self.samples(name, session)?.missing = true,
            ("last", [name, pairs @ ..]) => self.open(name)?.lasts.push(Last::parse(pairs)?),
            ("branch", [name, session, from, to]) => {
                let session: u16 = session.parse()?;
                let open = self.open(name)?.lasts.last_mut().filter(|last| last.session == session);
                let last = open.with_context(|| format!("no last branches of session {session}"))?;
                last.branches.push((number(from)?, number(to)?));
            }
            ("fault", [name, pairs @ ..]) => self.open(name)?.faults.push(Fault::parse(pairs)?),
            ("lost", [name, pairs @ ..]) => {
                let run = self.open(name)?;
                for (key, value) in pairs.iter().map(|pair| key_value(pair)) {
                    *run.lost.entry(key.into()).or_default() += number(value)?;
                }
            }
            ("refuse", [name, reason @ ..]) => self.open(name)?.refusal = Some(reason.join(" ")),
            ("dump", [name, pairs @ ..]) => {
                self.open(name)?.dump.push(number(Pairs(pairs).get("bytes")?)?);
            }
            ("section", [name, pairs @ ..]) => self.open(name)?.code.push(Code::parse(pairs)?),
            ("probe", [name, pairs @ ..]) => {
                let access = Access::parse(pairs)?;
                self.open(name)?.conduct.probe(access);
            }
            ("ok", [name]) => {
                let run = self.open(name)?;
                let records_lost = run.lost.get("stop").is_some_and(|&lost| lost > 0);
                let told = Told { faults: run.faults.len() as u64, records_lost };
                run.end = Some(run.conduct.wrong(told).map_or(End::Ok, End::Broke));
            }
            ("fail", [name, reason @ ..]) => {
                let name = name.strip_suffix(':').unwrap_or(name);
                self.open(name)?.end = Some(End::Fail(reason.join(" ")));
            }
            ("done", [passed, failed]) => self.done = Some((passed.parse()?, failed.parse()?)),
            _ => self.other.push(line.into()),
        }
        Ok(())
    }

    /// Which rules of the hardware the kernel has broken, with the workload; none if it has kept them all.
    #[must_use]
    pub fn broken_rules(&self) -> Vec<String> {
        let broke = |run: &Run| match &run.end {
            Some(End::Broke(what)) => Some(format!("{}: {what}", run.name)),
            _ => None,
        };
        let outside = self.breaches.iter().map(|line| format!("outside of a workload: {line}"));
        self.runs.iter().filter_map(broke).chain(outside).collect()
    }

    /// The samples of a session of the workload that is running.
    fn samples(&mut self, name: &str, session: &str) -> Result<&mut Samples> {
        let session: u16 = session.parse()?;
        let open = self.open(name)?.samples.last_mut().filter(|samples| samples.session == session);
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
    /// Whether it ended well without tracing: a kernel that only reports, or a driver that declined.
    #[must_use]
    pub fn traces_nothing(&self) -> bool {
        let measured = !self.counts.is_empty() || !self.samples.is_empty() || !self.lasts.is_empty();
        self.end == Some(End::Ok) && self.stat.is_none() && !measured
    }
}

impl Stat {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let get = |key| number(pairs.get(key)?);
        Ok(Self {
            count: get("count")?,
            hash: get("hash")?,
            bytes: get("bytes")?,
            pmis: get("pmis")?,
            loss: get("loss")?,
        })
    }
}

impl Code {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let get = |key| number(pairs.get(key)?);
        let cr3 = match pairs.get("cr3")? {
            "any" => None,
            _ => Some(get("cr3")?),
        };
        Ok(Self { base: get("base")?, len: get("len")?, from: get("from")?, cr3 })
    }
}

impl Piece {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let get = |key| number(pairs.get(key)?);
        Ok(Self {
            count: get("count")?,
            hash: get("hash")?,
            first: get("first")?,
            last: get("last")?,
            after: pairs.get("after")?.into(),
        })
    }
}

impl Count {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let get = |key| number(pairs.get(key)?);
        let narrow = |key| anyhow::Ok(u16::try_from(get(key)?)?);
        Ok(Self { session: narrow("session")?, event: narrow("event")?, value: get("value")? })
    }
}

impl Samples {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let get = |key| number(pairs.get(key)?);
        Ok(Self {
            session: u16::try_from(get("session")?)?,
            of: pairs.get("of")?.into(),
            period: get("period")?,
            taken: get("taken")?,
            lost: get("lost")?,
            skipped: get("skipped")?,
            unplaced: get("unplaced")?,
            addresses: BTreeMap::new(),
            precise: Vec::new(),
            missing: false,
        })
    }
}

impl Last {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let calls = match pairs.get("stack")? {
            "branches" => false,
            "calls" => true,
            other => bail!("no such stack: {other:?}"),
        };
        let session = pairs.get("session")?.parse()?;
        Ok(Self { session, calls, entries: number(pairs.get("entries")?)?, branches: Vec::new() })
    }
}

impl Fault {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        Ok(Self { address: number(pairs.get("address")?)?, code: number(pairs.get("code")?)? })
    }
}

impl Records {
    fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let get = |key| number(pairs.get(key)?);
        Ok(Self { count: get("count")?, hash: get("hash")?, after: pairs.get("after")?.into() })
    }
}

/// The `key=value` words of a line.
pub(crate) struct Pairs<'a>(pub(crate) &'a [&'a str]);

impl<'a> Pairs<'a> {
    /// The value of `key`.
    pub(crate) fn get(&self, key: &str) -> Result<&'a str> {
        let found = self.0.iter().map(|pair| key_value(pair)).find(|(name, _)| *name == key);
        found.map(|(_, value)| value).with_context(|| format!("no {key}="))
    }
}

fn key_value(pair: &str) -> (&str, &str) {
    pair.split_once('=').unwrap_or((pair, ""))
}

/// An address, or `none`.
fn address(text: &str) -> Result<Option<u64>> {
    if text == "none" { Ok(None) } else { number(text).map(Some) }
}

/// A number in C notation: `0x` or decimal.
pub(crate) fn number(text: &str) -> Result<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .with_context(|| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests;
