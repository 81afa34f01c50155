//! Rows of a report: the row in which each address is counted.

use crate::pugmark::{coverage::Executed, diff::is_of};
use crate::symbols::{NamedPlace, SourcePlace, TracedSymbols};
use clap::ValueEnum;
use std::collections::BTreeSet;

/// The name shown for code without a symbol.
pub(super) const UNKNOWN: &str = "[unknown]";

/// A column by which instructions are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in super::super) enum Key {
    Thread,
    Object,
    Function,
    Inlined,
    Line,
}

/// All keys, in the order of the columns.
pub(in super::super) const KEYS: [(Key, &str); 5] = [
    (Key::Thread, "thread"),
    (Key::Object, "object"),
    (Key::Function, FUNCTION),
    (Key::Inlined, "inlined"),
    (Key::Line, "line"),
];

/// The column of functions.
pub(super) const FUNCTION: &str = "function";

/// A row's value of each key that is wanted.
pub(in super::super) type Keys = [Option<String>; KEYS.len()];

/// The rows that are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct WantedRows<'a> {
    /// The keys by which instructions are grouped.
    pub(in super::super) by: &'a [Key],
    /// If set, only this object file is shown.
    pub(in super::super) object: Option<&'a str>,
    /// If set, only this function is shown.
    pub(in super::super) function: Option<&'a str>,
}

/// The begins of functions without a name: as their files tell them, and where those do not, as calls and jumps tell.
///
/// A jump tells one if it leaves its function for certain: it comes from a function with a name, from another file, or
/// goes to before its function's begin. So none is told by a part of a function that lies elsewhere and jumps back.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct UnnamedFunctions {
    begins: BTreeSet<u64>,
    /// The jumps that may be found to leave their function when more begins are known: from, and to.
    jumps: BTreeSet<(u64, u64)>,
}

impl UnnamedFunctions {
    #[cfg(test)]
    pub(in super::super) const NONE: Self = Self { begins: BTreeSet::new(), jumps: BTreeSet::new() };

    /// Finds the functions at which calls and jumps have arrived.
    pub(in super::super) fn of(executed: &Executed, symbols: &TracedSymbols) -> Self {
        let mut found = Self::default();
        for &(from, to) in executed.edges.keys() {
            if executed.calls.contains(&from) {
                found.call(to, symbols);
            } else if executed.jumps.contains(&from) {
                found.jump(from, to, symbols);
            }
        }
        found
    }

    /// Finds where the function at `ip`, which has no name, begins. No other function lies between.
    pub(in super::super) fn begin(&self, ip: u64, symbols: &TracedSymbols) -> Option<u64> {
        if let Some(extent) = symbols.unnamed(ip) {
            return Some(extent.start);
        }
        let begin = self.begins.range(..=ip).next_back().copied()?;
        let is_same = symbols.find(begin).object == symbols.find(ip).object;
        (is_same && symbols.end_before(ip) <= begin).then_some(begin)
    }

    /// Adds what a call has arrived at. Returns the begins that are new.
    pub(in super::super) fn call(&mut self, to: u64, symbols: &TracedSymbols) -> Vec<u64> {
        if symbols.begin(to).is_some() { vec![] } else { self.add(to, symbols) }
    }

    /// Adds what a jump has arrived at. Returns the begins that are new.
    pub(super) fn jump(&mut self, from: u64, to: u64, symbols: &TracedSymbols) -> Vec<u64> {
        if symbols.begin(to).is_some() {
            return vec![];
        }
        if self.leaves(from, to, symbols) {
            return self.add(to, symbols);
        }
        self.jumps.insert((from, to));
        vec![]
    }

    /// Returns true if a jump to code without a name is known to leave its function.
    fn leaves(&self, from: u64, to: u64, symbols: &TracedSymbols) -> bool {
        let (before, after) = (symbols.find(from), symbols.find(to));
        before.function.is_some()
            || before.object != after.object
            || to < self.begin(from, symbols).unwrap_or(0).max(symbols.end_before(from))
    }

    /// Adds a begin. Returns it and those that it tells, if they are new.
    fn add(&mut self, begin: u64, symbols: &TracedSymbols) -> Vec<u64> {
        let (mut found, mut left) = (vec![], vec![begin]);
        while let Some(begin) = left.pop() {
            if !self.begins.insert(begin) {
                continue;
            }
            found.push(begin);
            // The function of these jumps begins here, and no longer before.
            let end = self.begins.range(begin + 1..).next().copied().unwrap_or(u64::MAX);
            let jumps = self.jumps.range((begin, 0)..(end, 0));
            let leave: Vec<_> =
                jumps.filter(|(from, to)| self.leaves(*from, *to, symbols)).copied().collect();
            for jump in leave {
                self.jumps.remove(&jump);
                left.push(jump.1);
            }
        }
        found
    }
}

/// The rows of a trace.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TraceRows<'a> {
    pub(in super::super) wanted: WantedRows<'a>,
    pub(in super::super) symbols: &'a TracedSymbols,
    /// The functions without a name.
    pub(in super::super) unnamed: &'a UnnamedFunctions,
    /// The name of the trace.
    pub(in super::super) thread: &'a str,
}

impl WantedRows<'_> {
    fn is_by(&self, key: Key) -> bool {
        self.by.contains(&key)
    }

    /// Returns true if a line's function is to be shown beside the line, because no column has it.
    pub(super) fn names_functions_of_lines(&self) -> bool {
        self.is_by(Key::Line) && !self.is_by(Key::Function) && !self.is_by(Key::Inlined)
    }

    /// Returns true if some rows are left out.
    pub(super) const fn are_some(&self) -> bool {
        self.object.is_some() || self.function.is_some()
    }
}

impl TraceRows<'_> {
    /// Returns the row of the instruction at an address; `None` if it is not wanted.
    pub(in super::super) fn own(&self, ip: u64) -> Option<Keys> {
        self.row(ip, &self.symbols.find(ip), 0)
    }

    /// Returns the rows of the functions that the instruction's function was inlined into, if rows are by inlined
    /// functions.
    pub(super) fn outer(&self, ip: u64) -> Vec<Keys> {
        if !self.wanted.is_by(Key::Inlined) {
            return vec![];
        }
        let place = self.symbols.find(ip);
        (1..self.symbols.source(ip).len()).filter_map(|level| self.row(ip, &place, level)).collect()
    }

    /// Returns the row of this name, which is not of an instruction; `None` if it is not wanted.
    pub(super) fn nobodys(&self, name: &str) -> Option<Keys> {
        let WantedRows { object, function, .. } = self.wanted;
        [object, function]
            .into_iter()
            .flatten()
            .all(|wanted| wanted == name)
            .then(|| self.keys(|key| if key == Key::Thread { self.thread.into() } else { name.into() }))
    }

    /// Returns the function beside the line of an address: that of the source, or of the file's symbols.
    pub(super) fn function_of_line(&self, ip: u64) -> String {
        let source = self.symbols.source(ip).first().and_then(|place| place.function.clone());
        source.unwrap_or_else(|| self.function(ip, &self.symbols.find(ip)))
    }

    /// Returns the function's name. One without a name is named by its address, or is unknown in its object file if
    /// nothing has called it.
    fn function(&self, ip: u64, place: &NamedPlace<'_>) -> String {
        match (place.function, self.unnamed.begin(ip, self.symbols), place.object) {
            (Some((name, _)), ..) => name.to_owned(),
            (None, Some(begin), _) => format!("{begin:#x}"),
            (None, None, Some(object)) => {
                format!("{UNKNOWN} in {}", object.rsplit('/').next().unwrap_or(object))
            }
            (None, None, None) => UNKNOWN.into(),
        }
    }

    fn row(&self, ip: u64, place: &NamedPlace<'_>, level: usize) -> Option<Keys> {
        let source = || self.symbols.source(ip);
        let WantedRows { object, function, .. } = self.wanted;
        let is_named = |wanted: &str| {
            let symbol = match place.function {
                Some((name, _)) => name == wanted,
                None => self.function(ip, place) == wanted,
            };
            symbol || self.wanted.is_by(Key::Inlined) && name(&source(), level) == Some(wanted)
        };
        let found = place.object.unwrap_or(UNKNOWN);
        let is_wanted = object.is_none_or(|wanted| is_of(found, wanted)) && function.is_none_or(is_named);
        is_wanted.then(|| {
            self.keys(|key| match key {
                Key::Thread => self.thread.to_owned(),
                Key::Object => found.to_owned(),
                Key::Function => self.function(ip, place),
                Key::Inlined => inlined(&source(), level).unwrap_or_else(|| UNKNOWN.into()),
                Key::Line => {
                    let line = source().get(level).and_then(|place| place.line.clone());
                    line.map_or_else(|| UNKNOWN.into(), |line| line.to_string())
                }
            })
        })
    }

    fn keys(&self, name: impl Fn(Key) -> String) -> Keys {
        KEYS.map(|(key, _)| self.wanted.is_by(key).then(|| name(key)))
    }
}

/// Returns the name of a function of the source; 0 is the innermost one.
fn name(source: &[SourcePlace], level: usize) -> Option<&str> {
    source.get(level)?.function.as_deref()
}

/// Returns the name, marked if the function was inlined into another one.
fn inlined(source: &[SourcePlace], level: usize) -> Option<String> {
    let name = name(source, level)?;
    Some(if source.len() > level + 1 { format!("{name} (inlined)") } else { name.into() })
}
