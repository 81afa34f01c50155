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
mod tests {
    use super::*;

    fn transcript(lines: &[&str]) -> Result<Transcript> {
        let mut transcript = Transcript::default();
        lines.iter().try_for_each(|line| transcript.line(line))?;
        Ok(transcript)
    }

    #[test]
    fn takes_in_a_whole_run() {
        let transcript = transcript(&[
            "pugmark 0.1.0",
            "run sort",
            "session sort 3",
            "stat sort instructions=9 bytes=40 bpi=35.5 pmis=2 loss=0 decode_us=7 count=9 hash=0x10",
            "top sort 1 core::slice::sort<T, F> 5",
            "piece sort 0 count=9 hash=0x10 first=0x100 last=0x120 after=start",
            "records sort 0 count=4 hash=0x20 after=off",
            "count sort session=3 event=0xc2 value=77",
            "samples sort session=3 of=ops period=9 taken=3 lost=4 skipped=5 unplaced=6",
            "sample sort 3 0x120 2",
            "sample sort 3 0x100 1",
            "precise sort 3 0x120 0x123",
            "missing sort 3",
            "precise sort 3 none 0x124",
            "last sort session=4 stack=calls entries=1",
            "branch sort 4 0x120 0x100",
            "fault sort address=0x5000 code=0x2",
            "monitor: violation processor=0 ds_page_faults=1",
            "lost sort ovf=0 stop=1",
            "dump sort bytes=40",
            "dump sort bytes=7",
            "section sort base=0x1000 len=16 from=0x2000 cr3=any",
            "section sort base=0x1000 len=8 from=0x3000 cr3=0x5000",
            "ok sort",
            "done 1 0",
        ])
        .unwrap();
        let run = &transcript.runs[0];
        assert_eq!(run.session, Some(3));
        assert_eq!(run.stat, Some(Stat { count: 9, hash: 16, bytes: 40, pmis: 2, loss: 0 }));
        assert_eq!(run.top, [("core::slice::sort<T, F>".to_string(), 5)]);
        assert_eq!(run.pieces[0].last, 0x120);
        assert_eq!(run.records, [Records { count: 4, hash: 0x20, after: "off".into() }]);
        assert_eq!(run.counts, [Count { session: 3, event: 0xc2, value: 77 }]);
        let addresses = BTreeMap::from([(0x100, 1), (0x120, 2)]);
        let samples = Samples {
            session: 3,
            of: "ops".into(),
            period: 9,
            taken: 3,
            lost: 4,
            skipped: 5,
            unplaced: 6,
            addresses,
            precise: vec![
                Precise { event: Some(0x120), behind: Some(0x123), resumed: false },
                Precise { event: None, behind: Some(0x124), resumed: true },
            ],
            missing: false,
        };
        assert_eq!(run.samples, [samples]);
        let last = Last { session: 4, calls: true, entries: 1, branches: vec![(0x120, 0x100)] };
        assert_eq!(run.lasts, [last]);
        assert_eq!(run.faults, [Fault { address: 0x5000, code: 2 }]);
        assert_eq!(run.lost["stop"], 1);
        assert_eq!(run.dump, [40, 7]);
        let code = Code { base: 0x1000, len: 16, from: 0x2000, cr3: None };
        assert_eq!(run.code, [code, Code { len: 8, from: 0x3000, cr3: Some(0x5000), ..code }]);
        assert_eq!(run.end, Some(End::Ok));
        assert_eq!(transcript.done, Some((1, 0)));
        assert_eq!(transcript.other, ["pugmark 0.1.0"]);
    }

    #[test]
    fn refuses_lines_out_of_place() {
        for lines in [
            &["ok sort"][..],
            &["run a", "run b"],
            &["run a", "ok b"],
            &["run a", "ok a", "ok a"],
            &["done 0 0", "run a"],
            &["run a", "stat a count=1"],
            &["run a", "stat a count=x hash=0x1 bytes=1 pmis=0 loss=0"],
            &["run a", "piece a 1 count=1 hash=0x1 first=0x1 last=0x1 after=start"],
            &["run a", "sample a 1 0x100 1"],
            &[
                "run a",
                "samples a session=1 of=ops period=1 taken=1 lost=0 skipped=0 unplaced=0",
                "sample a 2 0x1 1",
            ],
            &["run a", "records a 1 count=1 hash=0x1 after=start"],
            &["run a", "precise a 1 0x1 0x2"],
            &["run a", "branch a 1 0x1 0x2"],
            &["run a", "last a session=1 stack=of entries=0"],
            &["run a", "last a session=1 stack=calls entries=0", "branch a 2 0x1 0x2"],
            &["run a", "fault a address=0x1"],
        ] {
            assert!(transcript(lines).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn a_run_that_measures_is_none_that_declined() {
        for (line, expected) in [
            ("refuse a CPUID.0", true),
            ("stat a count=1 hash=0x1 bytes=1 pmis=0 loss=0", false),
            ("count a session=1 event=0xc0 value=1", false),
            ("samples a session=1 of=ops period=1 taken=0 lost=0 skipped=0 unplaced=0", false),
            ("last a session=1 stack=branches entries=0", false),
        ] {
            let transcript = transcript(&["run a", line, "ok a"]).unwrap();
            assert_eq!(transcript.runs[0].traces_nothing(), expected, "{line}");
        }
    }

    #[test]
    fn a_run_that_breaks_a_rule_of_the_hardware_does_not_end_well() {
        let refused = "monitor: refused processor=0 msr=0x570 value=0x1 rip=0x0: not taken over 0x0";
        let violation = "monitor: violation processor=0 pmis_dropped=1";
        let probe = "probe a msr=0x570 value=0x1";
        for (lines, in_run, outside) in [
            (&["run a", "ok a"][..], false, false),
            (&["run a", refused, "ok a"], true, false),
            (&["run a", violation, "ok a"], true, false),
            (&["run a", probe, refused, "ok a"], false, false),
            (&["run a", probe, "ok a"], true, false),
            (&[refused, "run a", "ok a"], false, true),
            (&["run a", "ok a", violation], false, true),
            (&["run a", refused, "ok a", "done 1 0", violation], true, true),
        ] {
            let transcript = transcript(lines).unwrap();
            let broke = matches!(transcript.runs[0].end, Some(End::Broke(_)));
            assert_eq!((broke, !transcript.breaches.is_empty()), (in_run, outside), "{lines:?}");
            assert_eq!(transcript.broken_rules().len(), usize::from(in_run) + usize::from(outside));
        }
    }

    #[test]
    fn keeps_the_reason_of_a_failure() {
        let transcript = transcript(&["run a", "fail a: sum is 3, not 4", "done 0 1"]).unwrap();
        assert_eq!(transcript.runs[0].end, Some(End::Fail("sum is 3, not 4".into())));
    }
}
