//! What each row of a report took with all that it called, and for how long.

use super::naming::{Keys, TraceRows};
use crate::pugmark::walk::{Happening, Time, Visitor};
use std::{collections::HashMap, rc::Rc};

/// The names of missing parts, and of what was executed elsewhere: the kernel's part of a program's time, for
/// example.
const LOST: &str = "[lost]";
const NOT_TRACED: &str = "[not traced]";

/// What a row took: [`Time::at`] and instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCost {
    /// Itself.
    pub(super) own: Time,
    /// With all that it called.
    pub(super) whole: Time,
}

/// Adds up what rows take while a trace is followed.
///
/// It keeps a stack of its own, which has more on it than calls: a function that is jumped to comes above the one that
/// has jumped there, and both are left by one return. A jump into the middle of a function that is on the stack goes
/// back to it: from code of its own that the compiler has put elsewhere, by `longjmp`, or to where an exception is
/// caught.
#[derive(Debug)]
pub(super) struct CallerSums<'a> {
    naming: TraceRows<'a>,
    known: KnownAddresses,
    places: Vec<CountedPlace>,
    place_numbers: HashMap<CountedPlace, usize>,
    rows: Vec<CalledRow>,
    row_numbers: HashMap<Keys, usize>,
    stack: Vec<StackedFunction>,
    /// How many functions the walk has entered and not left.
    depth: usize,
    /// Whether a loss came, and nothing is known since.
    lost: bool,
    /// The number of the place of the instruction before, if nothing has happened after it.
    here: Option<usize>,
    /// The time up to which all is added up; unknown before anything has happened.
    before: Option<Time>,
    total: Time,
}

/// What those addresses have in common that are counted in the same rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CountedPlace {
    /// Where their function begins.
    function: Option<u64>,
    /// Whether they are at its begin.
    begins: bool,
    /// The row that they are counted in.
    own: Option<usize>,
    /// That row, and the rows of the functions that their function was inlined into.
    rows: Rc<[usize]>,
}

/// A row, and whether it is on the stack.
#[derive(Debug)]
struct CalledRow {
    keys: Keys,
    took: RowCost,
    /// How many times it is on the stack.
    open: usize,
    /// Since when it is on the stack.
    since: Time,
}

/// A function on the stack.
#[derive(Debug)]
struct StackedFunction {
    /// How many functions the walk had entered.
    depth: usize,
    /// The number of the place where it is.
    place: usize,
}

/// The number of the place of each address. Recently used addresses are found without searching.
#[derive(Debug)]
struct KnownAddresses {
    all: HashMap<u64, usize>,
    late: Vec<(u64, usize)>,
}

impl KnownAddresses {
    /// How many are found without searching.
    const LATE: usize = 1 << 14;

    fn new() -> Self {
        let mut late = vec![(0, 0); Self::LATE];
        // 0 is not known yet, and 1 is looked for elsewhere.
        late[0].0 = 1;
        Self { all: HashMap::new(), late }
    }

    #[inline]
    fn find(&mut self, ip: u64) -> Option<usize> {
        let late = &mut self.late[ip as usize % Self::LATE];
        if late.0 != ip {
            *late = (ip, *self.all.get(&ip)?);
        }
        Some(late.1)
    }
}

impl<'a> CallerSums<'a> {
    pub(super) fn new(naming: TraceRows<'a>) -> Self {
        Self {
            naming,
            known: KnownAddresses::new(),
            places: vec![],
            place_numbers: HashMap::new(),
            rows: vec![],
            row_numbers: HashMap::new(),
            stack: vec![],
            depth: 0,
            lost: false,
            here: None,
            before: None,
            total: Time::default(),
        }
    }

    /// Ends the trace. Returns what each row took, and what all took.
    pub(super) fn finish(mut self, end: Time) -> (Vec<(Keys, RowCost)>, Time) {
        self.add_up_to(end);
        self.leave_all_but(0, end);
        let rows = self.rows.into_iter().map(|row| (row.keys, row.took));
        // No time passes where instructions are counted.
        (rows.filter(|(_, took)| *took != RowCost::default()).collect(), self.total)
    }

    /// Adds what has passed to the innermost function.
    fn add_up_to(&mut self, now: Time) {
        let passed = now.since(self.before.replace(now).unwrap_or(now));
        self.total.add(passed);
        let place = self.stack.last().map(|function| function.place);
        if let Some(own) = place.and_then(|place| self.places[place].own) {
            self.rows[own].took.own.add(passed);
        }
    }

    fn open(&mut self, place: usize, now: Time) {
        for row in self.places[place].rows.iter() {
            let row = &mut self.rows[*row];
            if row.open == 0 {
                row.since = now;
            }
            row.open += 1;
        }
    }

    fn close(&mut self, place: usize, now: Time) {
        for row in self.places[place].rows.iter() {
            let row = &mut self.rows[*row];
            row.open -= 1;
            if row.open == 0 {
                row.took.whole.add(now.since(row.since));
            }
        }
    }

    fn enter(&mut self, place: usize, now: Time) {
        self.stack.push(StackedFunction { depth: self.depth, place });
        self.open(place, now);
    }

    /// Leaves functions until `count` are left on the stack.
    fn leave_all_but(&mut self, count: usize, now: Time) {
        while self.stack.len() > count {
            let left = self.stack.pop();
            left.into_iter().for_each(|function| self.close(function.place, now));
        }
    }

    /// The innermost function goes on at a place.
    fn go_on(&mut self, place: usize, now: Time) {
        self.open(place, now);
        let before = self.stack.last_mut().map(|function| std::mem::replace(&mut function.place, place));
        before.into_iter().for_each(|before| self.close(before, now));
    }

    /// Execution has come to a place of another function, not by a call or a return.
    fn jump(&mut self, place: usize, now: Time) {
        let CountedPlace { function, begins, .. } = self.places[place];
        // Code without names may be that of many functions.
        let goes_back = function.is_some() && !begins;
        let is_it = |known: &StackedFunction| self.places[known.place].function == function;
        match self.stack.iter().rposition(is_it) {
            // It was jumped to before, from the same function: it is on the stack once.
            Some(known) if !goes_back && self.stack[known].depth == self.depth => {
                let known = self.stack.remove(known);
                self.stack.push(known);
                self.go_on(place, now);
            }
            Some(known) if goes_back => {
                self.leave_all_but(known + 1, now);
                self.go_on(place, now);
            }
            _ => self.enter(place, now),
        }
    }

    /// The number of a row.
    fn row(&mut self, keys: Keys) -> usize {
        let new = self.rows.len();
        let number = *self.row_numbers.entry(keys.clone()).or_insert(new);
        if number == new {
            self.rows.push(CalledRow { keys, took: RowCost::default(), open: 0, since: Time::default() });
        }
        number
    }

    /// The number of a place.
    fn place(&mut self, function: Option<u64>, begins: bool, own: Option<Keys>, outer: Vec<Keys>) -> usize {
        let own = own.map(|keys| self.row(keys));
        let rows = own.into_iter().chain(outer.into_iter().map(|keys| self.row(keys))).collect();
        let place = CountedPlace { function, begins, own, rows };
        let new = self.places.len();
        let number = *self.place_numbers.entry(place.clone()).or_insert(new);
        if number == new {
            self.places.push(place);
        }
        number
    }

    /// The number of the place of an instruction.
    #[inline]
    fn place_of(&mut self, ip: u64) -> usize {
        self.known.find(ip).unwrap_or_else(|| {
            let begin = self.naming.symbols.function(ip).map(|(_, offset)| ip.wrapping_sub(offset));
            let (own, outer) = (self.naming.own(ip), self.naming.outer(ip));
            let place = self.place(begin, begin == Some(ip), own, outer);
            self.known.all.insert(ip, place);
            place
        })
    }

    /// Whether it makes no difference which of these places execution is at.
    #[inline]
    fn are_alike(&self, one: usize, other: usize) -> bool {
        let alike = |one: &CountedPlace, other: &CountedPlace| {
            one.function == other.function && one.rows == other.rows
        };
        one == other || alike(&self.places[one], &self.places[other])
    }

    /// Time passes in which no instruction is known to have been executed.
    fn nobodys(&mut self, name: &str, now: Time) {
        let keys = self.naming.nobodys(name);
        let place = self.place(None, false, keys, vec![]);
        self.enter(place, now);
    }
}

impl Visitor for CallerSums<'_> {
    fn happens(&mut self, now: Time, what: Happening) {
        self.add_up_to(now);
        self.here = None;
        match what {
            Happening::Enter { to, .. } => {
                if std::mem::take(&mut self.lost) {
                    self.leave_all_but(0, now);
                }
                self.depth += 1;
                // Its first instruction may be interrupted before it is executed.
                let place = self.place_of(to);
                self.enter(place, now);
                self.here = Some(place);
            }
            Happening::Leave => {
                self.depth = self.depth.saturating_sub(1);
                let left = self.stack.partition_point(|function| function.depth <= self.depth);
                self.leave_all_but(left, now);
            }
            Happening::Off => self.nobodys(NOT_TRACED, now),
            Happening::On => self.leave_all_but(self.stack.len().saturating_sub(1), now),
            Happening::Loss(_) if !self.lost => {
                self.lost = true;
                self.nobodys(LOST, now);
            }
            Happening::Loss(_) | Happening::Mark(..) | Happening::End(_) => {}
        }
    }

    #[inline]
    fn comes_to(&mut self, ip: u64) -> bool {
        let place = self.place_of(ip);
        !self.here.is_some_and(|here| self.are_alike(here, place))
    }

    fn tells_apart(&mut self, before: u64, ip: u64) -> bool {
        let (before, place) = (self.place_of(before), self.place_of(ip));
        !self.are_alike(before, place)
    }

    fn at(&mut self, now: Time, ip: u64) {
        self.add_up_to(now);
        let place = self.place_of(ip);
        self.here = Some(place);
        let function = |place: usize| self.places[place].function;
        match self.stack.last() {
            Some(before) if function(before.place) != function(place) => self.jump(place, now),
            Some(_) => self.go_on(place, now),
            None => self.enter(place, now),
        }
    }
}

#[cfg(test)]
mod tests;
