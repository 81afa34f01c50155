//! The filter and the contents of a trace.

use core::fmt;
use core::ops::AddAssign;

use crate::error::{ParseError, ParseErrorKind};
use crate::words::{HexOr, Pairs, Word, Words};

/// The filter of a workload: the instructions to trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter<'a> {
    /// The privilege levels to trace.
    pub level: Level,
    /// The only CR3 to trace, if there is one.
    pub cr3: Option<u64>,
    /// The only range to trace, if there is one.
    pub range: Option<SymbolRange<'a>>,
    /// The range that stops the trace when an instruction in it is about to execute.
    pub stop: Option<SymbolRange<'a>>,
}

impl<'a> Filter<'a> {
    /// Parses a filter. An absent key does not restrict the trace.
    pub(crate) fn parse(words: Words<'a>) -> Result<Self, ParseError<'a>> {
        let pairs = words.pairs(&["cpl", "cr3", "range", "stop"])?;
        let range = |key, none| match pairs.find(key) {
            Some(word) if word.text != none => SymbolRange::parse(word, key).map(Some),
            _ => Ok(None),
        };
        Ok(Self {
            level: pairs
                .find("cpl")
                .map_or(Ok(Level::Any), |word| word.one_of("cpl", Level::ALL, Level::word))?,
            cr3: pairs.find("cr3").map_or(Ok(None), |word| word.number_or("any", "cr3"))?,
            range: range("range", "any")?,
            stop: range("stop", "none")?,
        })
    }
}

impl fmt::Display for Filter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, cr3, range, stop } = self;
        write!(f, "cpl={level} cr3={} ", HexOr(*cr3, "any"))?;
        match range {
            None => write!(f, "range=any ")?,
            Some(range) => write!(f, "range={range} ")?,
        }
        match stop {
            None => write!(f, "stop=none"),
            Some(range) => write!(f, "stop={range}"),
        }
    }
}

/// Privilege levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// All.
    #[default]
    Any,
    /// CPL 0.
    Os,
    /// CPL above 0.
    User,
}

impl Level {
    const ALL: [Self; 3] = [Self::Any, Self::Os, Self::User];

    const fn word(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Os => "0",
            Self::User => "3",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The addresses from one symbol up to another, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRange<'a> {
    /// The symbol at its beginning.
    pub from: &'a str,
    /// The symbol at its end, which is not in the range.
    pub to: &'a str,
}

impl<'a> SymbolRange<'a> {
    fn parse(word: Word<'a>, field: &'static str) -> Result<Self, ParseError<'a>> {
        let (from, to) = word.text.split_once("..").ok_or_else(|| word.bad_value(field))?;
        Ok(Self { from, to })
    }
}

impl fmt::Display for SymbolRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.from, self.to)
    }
}

/// A workload's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Decoded instructions.
    pub count: u64,
    /// The hash of their addresses.
    pub hash: u64,
    /// Drained bytes of trace.
    pub bytes: u64,
    /// Performance monitoring interrupts that the tracing unit raised.
    pub pmis: u64,
    /// The number of losses of trace.
    pub loss: u64,
    /// The time of the decode in microseconds, if the kernel reports it.
    pub decode_us: Option<u64>,
    /// The number of branch records, if branch records were traced.
    pub branches: Option<u64>,
}

impl Stat {
    /// Parses figures. The bits per instruction and the second count of instructions are not read: they follow from the
    /// other fields.
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&[
            "instructions",
            "bytes",
            "bpi",
            "pmis",
            "loss",
            "decode_us",
            "count",
            "hash",
            "branches",
        ])?;
        Ok(Self {
            count: pairs.number("count")?,
            hash: pairs.number("hash")?,
            bytes: pairs.number("bytes")?,
            pmis: pairs.number("pmis")?,
            loss: pairs.number("loss")?,
            decode_us: pairs.maybe_number("decode_us")?,
            branches: pairs.maybe_number("branches")?,
        })
    }
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, hash, bytes, pmis, loss, decode_us, branches } = self;
        let hundredths = (bytes * 800).checked_div(*count).unwrap_or(0);
        let (whole, part) = (hundredths / 100, hundredths % 100);
        write!(f, "instructions={count} bytes={bytes} bpi={whole}.{part:02} pmis={pmis} loss={loss} ")?;
        if let Some(decode_us) = decode_us {
            write!(f, "decode_us={decode_us} ")?;
        }
        write!(f, "count={count} hash={hash:#018x}")?;
        match branches {
            Some(branches) => write!(f, " branches={branches}"),
            None => Ok(()),
        }
    }
}

/// The event before a part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The trace's beginning.
    Start,
    /// The first PSB (synchronization packet), if packets before it could not be decoded without one.
    Psb,
    /// An OVF packet.
    Overflow,
    /// Output that reached a STOP entry of the output table, or a TraceStop range.
    Stop,
    /// Bytes that a ring buffer overwrote.
    Wrap,
    /// A drain that did not have enough room.
    Full,
    /// Bytes that could not be decoded.
    Error,
    /// A time in which the source was off for a drain: nothing that should be traced is lost.
    Off,
}

impl After {
    const ALL: [Self; 8] =
        [Self::Start, Self::Psb, Self::Overflow, Self::Stop, Self::Wrap, Self::Full, Self::Error, Self::Off];

    const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Psb => "psb",
            Self::Overflow => "ovf",
            Self::Stop => "stop",
            Self::Wrap => "wrap",
            Self::Full => "full",
            Self::Error => "error",
            Self::Off => "off",
        }
    }

    fn parse<'a>(pairs: Pairs<'a>) -> Result<Self, ParseError<'a>> {
        pairs.get("after")?.one_of("after", Self::ALL, Self::word)
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A contiguous part of the decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Instructions in it.
    pub count: u64,
    /// The hash of their addresses.
    pub hash: u64,
    /// The address of its first instruction.
    pub first: u64,
    /// The address of its last instruction.
    pub last: u64,
    /// The event before the part.
    pub after: After,
}

impl Piece {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["count", "hash", "first", "last", "after"])?;
        Ok(Self {
            count: pairs.number("count")?,
            hash: pairs.number("hash")?,
            first: pairs.number("first")?,
            last: pairs.number("last")?,
            after: After::parse(pairs)?,
        })
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, hash, first, last, after } = self;
        write!(f, "count={count} hash={hash:#018x} first={first:#x} last={last:#x} after={after}")
    }
}

/// Branch records without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// The number of records.
    pub count: u64,
    /// The hash of the source and target addresses of each.
    pub hash: u64,
    /// The event before the records.
    pub after: After,
}

impl Records {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["count", "hash", "after"])?;
        let after = After::parse(pairs)?;
        Ok(Self { count: pairs.number("count")?, hash: pairs.number("hash")?, after })
    }
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, hash, after } = self;
        write!(f, "count={count} hash={hash:#018x} after={after}")
    }
}

/// Losses by kind: the number of losses, not of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// OVF packets.
    pub overflows: u64,
    /// Output that reached a STOP entry of the output table.
    pub stops: u64,
    /// Ring buffers that were overwritten.
    pub wraps: u64,
    /// The number of times that the archive had no room for drained bytes, or the buffer was full.
    pub full: u64,
    /// Performance monitoring interrupts that no source had requested. They are no losses: if a region becomes full
    /// shortly before the trace stops, its interrupt may arrive after the whole trace was read, because of the skid or
    /// because interrupts were off. `--monitor pmi-skid=300` causes one in `circular`.
    pub strays: u64,
}

impl Lost {
    /// Returns the number of losses of trace. Strays do not count.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.overflows + self.stops + self.wraps + self.full
    }

    /// Parses losses. A kind whose key is absent was not lost; if a key occurs several times, its numbers are added.
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["ovf", "stop", "wrap", "full", "stray"])?;
        let sum = |key| {
            pairs.all(key).try_fold(0_u64, |sum, word| {
                let sum = sum.checked_add(word.number(key)?);
                sum.ok_or(ParseError {
                    at: word.at,
                    kind: ParseErrorKind::BadNumber { field: key, text: word.text },
                })
            })
        };
        Ok(Self {
            overflows: sum("ovf")?,
            stops: sum("stop")?,
            wraps: sum("wrap")?,
            full: sum("full")?,
            strays: sum("stray")?,
        })
    }
}

impl AddAssign for Lost {
    fn add_assign(&mut self, more: Self) {
        self.overflows += more.overflows;
        self.stops += more.stops;
        self.wraps += more.wraps;
        self.full += more.full;
        self.strays += more.strays;
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { overflows, stops, wraps, full, strays } = self;
        write!(f, "ovf={overflows} stop={stops} wrap={wraps} full={full} stray={strays}")
    }
}

/// Code that was traced: its address, and the place of its bytes in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSection {
    /// The address at which the code is executed.
    pub base: u64,
    /// The number of its bytes.
    pub len: u64,
    /// The address of its bytes in the image.
    pub from: u64,
    /// The CR3 of its address space; `None`: all address spaces.
    pub cr3: Option<u64>,
}

impl CodeSection {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["base", "len", "from", "cr3"])?;
        Ok(Self {
            base: pairs.number("base")?,
            len: pairs.number("len")?,
            from: pairs.number("from")?,
            cr3: pairs.get("cr3")?.number_or("any", "cr3")?,
        })
    }
}

impl fmt::Display for CodeSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, len, from, cr3 } = self;
        write!(f, "base={base:#x} len={len} from={from:#x} cr3={}", HexOr(*cr3, "any"))
    }
}
