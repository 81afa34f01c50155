//! All lines of the protocol, with parsing and printing.

use core::fmt;

use crate::error::{ParseError, ParseErrorKind};
use crate::fields::{
    Access, Branch, CodeSection, Count, Fault, Filter, Last, Lost, Piece, Precise, Records, Sample, Samples,
    Stat,
};
use crate::words::Words;

/// A line. All but the last begin with the name of their workload. The crate's documentation has the text of each.
///
/// Reasons and function names are of type `T`, so that a kernel can print any `Display` without a buffer for its text.
/// The parser returns the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a, T = &'a str> {
    /// The workload begins.
    Run(&'a str),
    /// The workload's records in the truth log carry this marker.
    Session(&'a str, u16),
    /// The part of the workload to trace.
    Filter(&'a str, Filter<'a>),
    /// The measurements of the driver and the decoder.
    Stat(&'a str, Stat),
    /// A function that executed many instructions.
    Top(&'a str, Top<T>),
    /// A contiguous part of the decode, with its index from 0.
    Piece(&'a str, usize, Piece),
    /// Branch records without a gap, with their index from 0.
    Records(&'a str, usize, Records),
    /// The count of a performance counter.
    Count(&'a str, Count),
    /// The samples of a session, by their fate.
    Samples(&'a str, Samples),
    /// An address that was sampled.
    Sample(&'a str, Sample),
    /// A sample that gives the exact instruction of its event.
    Precise(&'a str, Precise),
    /// Precise samples of this session are missing before the next one.
    Missing(&'a str, u16),
    /// The last branches when a session ended.
    Last(&'a str, Last),
    /// One of the last branches, the newest first.
    Branch(&'a str, Branch),
    /// A page fault caused by an access to the debug store.
    Fault(&'a str, Fault),
    /// The losses.
    Lost(&'a str, Lost),
    /// An access that must be refused.
    Probe(&'a str, Access),
    /// The driver declined, for this reason.
    Refuse(&'a str, T),
    /// The next bytes of the debug console, this many, are a contiguous part of the trace.
    Dump(&'a str, u64),
    /// Code that was traced.
    Section(&'a str, CodeSection),
    /// The workload ended well.
    Ok(&'a str),
    /// The workload failed, for this reason.
    Fail(&'a str, T),
    /// All workloads ended.
    Done(Done),
}

/// A function that executed many instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top<T> {
    /// The function's rank, from 1.
    pub rank: usize,
    /// The function's name, which may have spaces.
    pub symbol: T,
    /// The number of instructions that the function executed.
    pub count: u64,
}

/// The numbers of workloads that passed and failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Workloads that ended with `ok`.
    pub passed: u64,
    /// Workloads that ended with `fail`.
    pub failed: u64,
}

impl<T: fmt::Display> fmt::Display for Line<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(name) => write!(f, "run {name}"),
            Self::Session(name, session) => write!(f, "session {name} {session}"),
            Self::Filter(name, filter) => write!(f, "filter {name} {filter}"),
            Self::Stat(name, stat) => write!(f, "stat {name} {stat}"),
            Self::Top(name, Top { rank, symbol, count }) => write!(f, "top {name} {rank} {symbol} {count}"),
            Self::Piece(name, index, piece) => write!(f, "piece {name} {index} {piece}"),
            Self::Records(name, index, records) => write!(f, "records {name} {index} {records}"),
            Self::Count(name, count) => write!(f, "count {name} {count}"),
            Self::Samples(name, samples) => write!(f, "samples {name} {samples}"),
            Self::Sample(name, sample) => write!(f, "sample {name} {sample}"),
            Self::Precise(name, precise) => write!(f, "precise {name} {precise}"),
            Self::Missing(name, session) => write!(f, "missing {name} {session}"),
            Self::Last(name, last) => write!(f, "last {name} {last}"),
            Self::Branch(name, branch) => write!(f, "branch {name} {branch}"),
            Self::Fault(name, fault) => write!(f, "fault {name} {fault}"),
            Self::Lost(name, lost) => write!(f, "lost {name} {lost}"),
            Self::Probe(name, access) => write!(f, "probe {name} {access}"),
            Self::Refuse(name, reason) => write!(f, "refuse {name} {reason}"),
            Self::Dump(name, bytes) => write!(f, "dump {name} bytes={bytes}"),
            Self::Section(name, section) => write!(f, "section {name} {section}"),
            Self::Ok(name) => write!(f, "ok {name}"),
            Self::Fail(name, reason) => write!(f, "fail {name}: {reason}"),
            Self::Done(Done { passed, failed }) => write!(f, "done {passed} {failed}"),
        }
    }
}

impl<'a> Line<'a> {
    /// Parses a line, given without the characters that end it.
    ///
    /// # Errors
    /// The first part of the line that the protocol does not have.
    pub fn parse(line: &'a str) -> Result<Self, ParseError<'a>> {
        let (first, mut words) = match line.split_once(' ') {
            Some((first, _)) => (first, Words::new(line, first.len())),
            None => (line, Words::new(line, line.len())),
        };
        if first == "done" {
            let [passed, failed] = words.only(["PASSED", "FAILED"])?;
            let (passed, failed) = (passed.number("PASSED")?, failed.number("FAILED")?);
            return Ok(Self::Done(Done { passed, failed }));
        }
        // If the first word is unknown, that is the error, and not a second word that is missing.
        let name = words.first(["NAME"]).map(|[name]| name.text);
        Ok(match first {
            "run" => {
                let name = name?;
                words.only([])?;
                Self::Run(name)
            }
            "session" => Self::Session(name?, session(words)?),
            "filter" => Self::Filter(name?, Filter::parse(words)?),
            "stat" => Self::Stat(name?, Stat::parse(words)?),
            "top" => Self::Top(name?, Top::parse(words)?),
            "piece" => Self::Piece(name?, index(&mut words)?, Piece::parse(words)?),
            "records" => Self::Records(name?, index(&mut words)?, Records::parse(words)?),
            "count" => Self::Count(name?, Count::parse(words)?),
            "samples" => Self::Samples(name?, Samples::parse(words)?),
            "sample" => Self::Sample(name?, Sample::parse(words)?),
            "precise" => Self::Precise(name?, Precise::parse(words)?),
            "missing" => Self::Missing(name?, session(words)?),
            "last" => Self::Last(name?, Last::parse(words)?),
            "branch" => Self::Branch(name?, Branch::parse(words)?),
            "fault" => Self::Fault(name?, Fault::parse(words)?),
            "lost" => Self::Lost(name?, Lost::parse(words)?),
            "probe" => Self::Probe(name?, Access::parse(words)?),
            "refuse" => Self::Refuse(name?, words.text()),
            "dump" => Self::Dump(name?, words.pairs(&["bytes"])?.number("bytes")?),
            "section" => Self::Section(name?, CodeSection::parse(words)?),
            "ok" => {
                let name = name?;
                words.only([])?;
                Self::Ok(name)
            }
            "fail" => {
                let name = name?;
                Self::Fail(name.strip_suffix(':').unwrap_or(name), words.text())
            }
            _ => return Err(ParseError { at: 0, kind: ParseErrorKind::UnknownLine(first) }),
        })
    }
}

impl<'a> Top<&'a str> {
    fn parse(mut words: Words<'a>) -> Result<Self, ParseError<'a>> {
        let [rank] = words.first(["RANK"])?;
        let (symbol, count) = words.text_and_last("COUNT")?;
        Ok(Self { rank: rank.number("RANK")?, symbol, count: count.number("COUNT")? })
    }
}

fn session<'a>(words: Words<'a>) -> Result<u16, ParseError<'a>> {
    let [session] = words.only(["SESSION"])?;
    session.number("SESSION")
}

fn index<'a>(words: &mut Words<'a>) -> Result<usize, ParseError<'a>> {
    let [index] = words.first(["INDEX"])?;
    index.number("INDEX")
}
