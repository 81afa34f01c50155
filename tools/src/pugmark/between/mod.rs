//! `--between`: the part of each thread that a command shows, from one time, call or PTWRITE to another.
//!
//! The edges are looked up in walks of their own, which number the instructions of each thread. The session of the
//! command then has a window of these numbers, so all commands show the same part.

mod calls;
mod times;

use super::{
    named_session::NamedSession, options::Input, progress::Progress, recording::Traced, visitors::Unit,
    wanted_function::WantedFunction,
};
use crate::number;
use anyhow::{Result, anyhow, bail, ensure};
use calls::CallEdges;
use std::{collections::BTreeSet, fmt, ops::Range, path::PathBuf, str::FromStr};

/// A part of what was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Between {
    from: Option<PartEdge>,
    to: PartEnd,
}

/// The end of the part.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PartEnd {
    /// The end of the trace.
    Trace,
    /// The return of the call at which the part begins.
    Return,
    PartEdge(PartEdge),
}

/// A place in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PartEdge {
    Time(GivenTime),
    /// The first call of a function.
    Function(WantedFunction),
    /// The first PTWRITE of a value.
    Written(u64),
}

/// A time as it is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GivenTime {
    text: String,
    /// The number in billionths.
    billionths: u64,
    /// The number of nanoseconds in its unit, if it has one.
    unit: Option<u64>,
}

const BILLION: u64 = 1_000_000_000;
/// The units of time, in nanoseconds. Longer names come before their ends.
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", BILLION)];

impl FromStr for Between {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((from, to)) = split(text) else {
            let from = PartEdge::of(text)?;
            ensure!(
                matches!(from, Some(PartEdge::Function(_))),
                "write two times, functions or ptw:VALUE with a comma between them, or one function"
            );
            return Ok(Self { from, to: PartEnd::Return });
        };
        Ok(Self {
            from: PartEdge::of(from)?,
            to: PartEdge::of(to)?.map_or(PartEnd::Trace, PartEnd::PartEdge),
        })
    }
}

/// Splits at the first comma that is not within brackets, as those of `map<int, long>` are.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let comma = text.find(|letter| {
        match letter {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth <= 0
    });
    comma.map(|at| (&text[..at], &text[at + 1..]))
}

impl PartEdge {
    /// Reads an edge; `None` if nothing is written.
    fn of(text: &str) -> Result<Option<Self>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if let Some(value) = text.strip_prefix("ptw:") {
            let value =
                number::parse(value).ok_or_else(|| anyhow!("{text}: write a number after ptw:, as 0x10"))?;
            return Ok(Some(Self::Written(value)));
        }
        let function = WantedFunction::from(text);
        match text.starts_with(|letter: char| letter.is_ascii_digit()) && !function.is_address() {
            true => GivenTime::of(text).map(Self::Time).map(Some),
            false => Ok(Some(Self::Function(function))),
        }
    }

    const fn time(&self) -> Option<&GivenTime> {
        match self {
            Self::Time(time) => Some(time),
            Self::Function(_) | Self::Written(_) => None,
        }
    }
}

impl fmt::Display for PartEdge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => f.write_str(&time.text),
            Self::Function(function) => function.fmt(f),
            Self::Written(value) => write!(f, "ptw:{value:#x}"),
        }
    }
}

impl GivenTime {
    fn of(text: &str) -> Result<Self> {
        let unit = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
        let (number, unit) = unit.map_or((text, None), |(number, unit)| (number, Some(unit)));
        let (whole, rest) = number.split_once('.').unwrap_or((number, ""));
        let digits = rest.len() <= 9 && rest.bytes().all(|byte| byte.is_ascii_digit());
        let rest = format!("{rest:0<9}").parse::<u64>().ok().filter(|_| digits);
        let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(BILLION));
        let billionths = whole.zip(rest).and_then(|(whole, rest)| whole.checked_add(rest));
        let billionths = billionths.ok_or_else(|| {
            anyhow!("{text}: no time: write 1.5, 20us or 830ns, with 9 digits after the point")
        })?;
        Ok(Self { text: text.into(), billionths, unit })
    }

    /// Returns the time by a clock of that unit. A number without a unit is in seconds if the clock has them.
    fn at(&self, clock: Unit) -> Result<u64> {
        match (clock, self.unit) {
            (Unit::Nanoseconds, unit) => {
                let all = u128::from(self.billionths) * u128::from(unit.unwrap_or(BILLION));
                Ok((all / u128::from(BILLION)).try_into()?)
            }
            (Unit::Ticks | Unit::Instructions, Some(_)) => {
                bail!("--between {}: the trace has no time in seconds, it counts {}", self.text, clock.name())
            }
            (Unit::Ticks | Unit::Instructions, None) => Ok(self.billionths / BILLION),
        }
    }
}

/// The edges that were found in any thread.
#[derive(Debug, Default)]
struct FoundEdges {
    from: bool,
    to: bool,
    /// The functions that were called.
    called: BTreeSet<String>,
}

impl Between {
    /// Gives each trace the windows of its threads.
    ///
    /// # Errors
    /// If a trace cannot be loaded or does not have the clock that is needed, if an edge is in none of them, or if the
    /// part has no instruction.
    pub(super) fn restrict(
        &self,
        input: &Input,
        symbols: &[PathBuf],
        traces: &mut [Traced],
        progress: &mut Progress,
    ) -> Result<()> {
        let mut found = FoundEdges::default();
        let mut is_empty = true;
        for traced in traces {
            let named = NamedSession::load(input, traced, symbols, progress)?;
            let mut windows = self.by_time(&named, progress)?;
            if self.edges().any(|edge| edge.time().is_none()) || self.to == PartEnd::Return {
                self.by_calls(&named, &mut windows, &mut found, progress);
            }
            is_empty &= windows.iter().all(Range::is_empty);
            traced.windows = windows;
        }
        if let Some(edge) = &self.from {
            found.check(edge, found.from)?;
        }
        if let PartEnd::PartEdge(edge) = &self.to {
            found.check(edge, found.to)?;
        }
        ensure!(
            !is_empty,
            "--between: nothing is in that part: it begins after the trace, or after its own end"
        );
        Ok(())
    }

    fn edges(&self) -> impl Iterator<Item = &PartEdge> {
        let to = match &self.to {
            PartEnd::PartEdge(edge) => Some(edge),
            PartEnd::Trace | PartEnd::Return => None,
        };
        self.from.iter().chain(to)
    }

    /// Returns the windows as far as times say them.
    fn by_time(&self, named: &NamedSession, progress: &mut Progress) -> Result<Vec<Range<u64>>> {
        let clock = named.loaded.clock;
        let at = |edge: Option<&PartEdge>| {
            edge.and_then(PartEdge::time).map(|time| time.at(clock.unit)).transpose()
        };
        let to = match &self.to {
            PartEnd::PartEdge(edge) => Some(edge),
            PartEnd::Trace | PartEnd::Return => None,
        };
        let edges = [at(self.from.as_ref())?, at(to)?];
        let none = |lanes| vec![0..u64::MAX; lanes];
        match (edges, clock.unit) {
            ([None, None], _) => Ok(none(named.names.len())),
            ([from, to], Unit::Instructions) => {
                Ok(vec![from.unwrap_or(0)..to.unwrap_or(u64::MAX); named.names.len()])
            }
            (edges, _) => {
                let sections = named.loaded.sections();
                Ok(times::windows(&named.loaded.session(&sections), clock, edges, progress))
            }
        }
    }

    /// Narrows the windows by the edges that are calls and values.
    fn by_calls(
        &self,
        named: &NamedSession,
        windows: &mut [Range<u64>],
        found: &mut FoundEdges,
        progress: &mut Progress,
    ) {
        let lanes = named.names.iter().zip(&*windows);
        let mut finders: Vec<_> =
            lanes.map(|(names, window)| CallEdges::new(self, names, window.clone())).collect();
        named.walk_by(super::visitors::TraceClock::INSTRUCTIONS, progress, &mut finders);
        for (window, finder) in windows.iter_mut().zip(finders) {
            *window = finder.end(found);
        }
    }
}

impl FoundEdges {
    fn check(&self, edge: &PartEdge, is_found: bool) -> Result<()> {
        match edge {
            PartEdge::Function(function) if !is_found => {
                function.was_not("--between", "was called there", &self.called)
            }
            PartEdge::Written(_) if !is_found => bail!("--between {edge}: no PTWRITE has written that there"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
