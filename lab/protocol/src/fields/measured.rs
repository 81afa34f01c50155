//! Counts, samples and last branches.

use core::fmt;

use crate::error::ParseError;
use crate::words::{HexOr, Words};

/// The count of a performance counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The marker of the session's truth records.
    pub session: u16,
    /// The event select: 12 bits.
    pub event: u16,
    /// The number of events.
    pub value: u64,
}

impl Count {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["session", "event", "value"])?;
        let (session, event) = (pairs.number("session")?, pairs.number("event")?);
        Ok(Self { session, event, value: pairs.number("value")? })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, event, value } = self;
        write!(f, "session={session} event={event:#x} value={value}")
    }
}

/// The unit of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventKind {
    /// Retired instructions.
    #[default]
    Instructions,
    /// Retired branches, taken or not.
    Branches,
    /// Dispatched ops.
    Ops,
    /// Clocks.
    Cycles,
}

impl EventKind {
    const ALL: [Self; 4] = [Self::Instructions, Self::Branches, Self::Ops, Self::Cycles];

    const fn word(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Branches => "branches",
            Self::Ops => "ops",
            Self::Cycles => "cycles",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Samples by their fate. Each period that ended is counted in exactly one of the last four numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// The marker of the session's truth records.
    pub session: u16,
    /// The unit of the period.
    pub event: EventKind,
    /// The length of a period: one sample is taken in this many events.
    pub period: u64,
    /// Samples with an address.
    pub taken: u64,
    /// Samples lost because there was no room for them.
    pub lost: u64,
    /// Periods that ended before the previous sample was read, or when the source stopped.
    pub skipped: u64,
    /// Samples whose address is not known.
    pub unplaced: u64,
}

impl Samples {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["session", "of", "period", "taken", "lost", "skipped", "unplaced"])?;
        Ok(Self {
            session: pairs.number("session")?,
            event: pairs.get("of")?.one_of("of", EventKind::ALL, EventKind::word)?,
            period: pairs.number("period")?,
            taken: pairs.number("taken")?,
            lost: pairs.number("lost")?,
            skipped: pairs.number("skipped")?,
            unplaced: pairs.number("unplaced")?,
        })
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, event, period, taken, lost, skipped, unplaced } = self;
        write!(f, "session={session} of={event} period={period} taken={taken} ")?;
        write!(f, "lost={lost} skipped={skipped} unplaced={unplaced}")
    }
}

/// An address that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The session's marker.
    pub session: u16,
    /// The address.
    pub address: u64,
    /// The number of samples at the address.
    pub count: u64,
}

impl Sample {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let [session, address, count] = words.only(["SESSION", "ADDRESS", "COUNT"])?;
        let (session, address) = (session.number("SESSION")?, address.number("ADDRESS")?);
        Ok(Self { session, address, count: count.number("COUNT")? })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, address, count } = self;
        write!(f, "{session} {address:#x} {count}")
    }
}

/// A sample that gives the exact instruction of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precise {
    /// The session's marker.
    pub session: u16,
    /// The address of the event's instruction, if the record has it.
    pub event: Option<u64>,
    /// The address at which execution continued, if the record has it.
    pub next: Option<u64>,
}

impl Precise {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let [session, event, next] = words.only(["SESSION", "EVENT", "NEXT"])?;
        Ok(Self {
            session: session.number("SESSION")?,
            event: event.number_or("none", "EVENT")?,
            next: next.number_or("none", "NEXT")?,
        })
    }
}

impl fmt::Display for Precise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, event, next } = self;
        write!(f, "{session} {} {}", HexOr(*event, "none"), HexOr(*next, "none"))
    }
}

/// The head of the list of last branches at the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// The marker of the session's truth records.
    pub session: u16,
    /// True if the entries are the calls that have not returned yet, and no other branches.
    pub calls: bool,
    /// The number of entries.
    pub entries: u64,
}

/// Returns the word for the kind of the last branches, by [`Last::calls`].
const fn stack(calls: bool) -> &'static str {
    if calls { "calls" } else { "branches" }
}

impl Last {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["session", "stack", "entries"])?;
        let calls = pairs.get("stack")?.one_of("stack", [false, true], stack)?;
        Ok(Self { session: pairs.number("session")?, calls, entries: pairs.number("entries")? })
    }
}

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, calls, entries } = self;
        write!(f, "session={session} stack={} entries={entries}", stack(*calls))
    }
}

/// One of the last branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The session's marker.
    pub session: u16,
    /// The source address.
    pub from: u64,
    /// The target address.
    pub to: u64,
}

impl Branch {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let [session, from, to] = words.only(["SESSION", "FROM", "TO"])?;
        Ok(Self { session: session.number("SESSION")?, from: from.number("FROM")?, to: to.number("TO")? })
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, from, to } = self;
        write!(f, "{session} {from:#x} {to:#x}")
    }
}
