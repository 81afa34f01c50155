//! The time and instructions of each row of a report, with and without all that it called.

use super::naming::{Keys, TraceRows, UnnamedFunctions};
use crate::pugmark::visitors::{CallEvent, Time, Visitor, not_traced};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeSet, HashMap},
    rc::Rc,
};

/// The name of missing parts.
const LOST: &str = "[lost]";

/// The cost of a row: [`Time::at`] and instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCost {
    /// Without what it called.
    pub(super) own: Time,
    /// With all that it called.
    pub(super) whole: Time,
}

/// Sums of the costs of rows, while a trace is followed.
#[derive(Debug)]
pub(super) struct CallerSums<'a> {
    naming: TraceRows<'a>,
    /// The functions without a name: those that are known from the begin on, and those that were called since.
    unnamed: UnnamedFunctions,
    /// The addresses without a name that have a place.
    unnamed_places: BTreeSet<u64>,
    /// An address had a place before the function was called that it is in, so its row was another one.
    is_stale: bool,
    known: KnownAddresses,
    places: Vec<CountedPlace>,
    place_numbers: HashMap<CountedPlace, usize>,
    rows: Vec<CalledRow>,
    row_numbers: HashMap<Keys, usize>,
    stack: Vec<StackedFunction>,
    /// True after a loss, until the next function is entered.
    lost: bool,
    /// The number of the place of the instruction before, if nothing has happened after it.
    here: Option<usize>,
    /// The time up to which all is added up; unknown before anything has happened.
    before: Option<Time>,
    total: Time,
}

/// The rows that an address is counted in; equal for all addresses counted in the same rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CountedPlace {
    /// The row that counts the instruction itself.
    own: Option<usize>,
    /// That row, and the rows of the functions that its function was inlined into.
    rows: Rc<[usize]>,
}

/// A row, and whether it is on the stack.
#[derive(Debug)]
struct CalledRow {
    keys: Keys,
    took: RowCost,
    /// The number of times it is on the stack.
    open: usize,
    /// The time since which it is on the stack.
    since: Time,
}

/// A function on the stack.
#[derive(Debug)]
struct StackedFunction {
    /// The number of the place where it is.
    place: usize,
    /// The places of those that it has jumped to, and that have jumped back: as if it had called them, each is on the
    /// stack until this function returns.
    kept: Vec<usize>,
}

/// The number of the place of each address. Recently used addresses are found without searching.
#[derive(Debug)]
struct KnownAddresses {
    all: FxHashMap<u64, usize>,
    late: Vec<(u64, usize)>,
}

impl KnownAddresses {
    /// The number of addresses found without searching.
    const LATE: usize = 1 << 14;

    fn new() -> Self {
        let mut late = vec![(0, 0); Self::LATE];
        // 0 is not known yet, and 1 is looked for elsewhere.
        late[0].0 = 1;
        Self { all: FxHashMap::default(), late }
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
            unnamed: naming.unnamed.clone(),
            unnamed_places: BTreeSet::new(),
            is_stale: false,
            known: KnownAddresses::new(),
            places: vec![],
            place_numbers: HashMap::new(),
            rows: vec![],
            row_numbers: HashMap::new(),
            stack: vec![],
            lost: false,
            here: None,
            before: None,
            total: Time::default(),
        }
    }

    /// Returns the functions without a name that were called, and true if some rows are not those of these functions.
    pub(super) fn unnamed(&self) -> (&UnnamedFunctions, bool) {
        (&self.unnamed, self.is_stale)
    }

    /// Ends the trace. Returns the cost of each row, and the total.
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
        self.stack.push(StackedFunction { place, kept: vec![] });
        self.open(place, now);
    }

    /// Leaves functions until `count` are left on the stack.
    fn leave_all_but(&mut self, count: usize, now: Time) {
        while self.stack.len() > count {
            let Some(StackedFunction { place, kept }) = self.stack.pop() else { return };
            kept.into_iter().chain([place]).for_each(|place| self.close(place, now));
        }
    }

    /// Jumps from the innermost function back to the one below.
    fn jump_back(&mut self, now: Time) {
        let (Some(function), Some(below)) = (self.stack.pop(), self.stack.last_mut()) else { return };
        let mut again = vec![];
        for place in function.kept.into_iter().chain([function.place]) {
            let keep = if below.kept.contains(&place) { &mut again } else { &mut below.kept };
            keep.push(place);
        }
        again.into_iter().for_each(|place| self.close(place, now));
    }

    /// Continues the innermost function at a place.
    fn go_on(&mut self, place: usize, now: Time) {
        self.open(place, now);
        let before = self.stack.last_mut().map(|function| std::mem::replace(&mut function.place, place));
        before.into_iter().for_each(|before| self.close(before, now));
    }

    /// Returns the number of a row; adds a new one.
    fn row(&mut self, keys: Keys) -> usize {
        let new = self.rows.len();
        let number = *self.row_numbers.entry(keys.clone()).or_insert(new);
        if number == new {
            self.rows.push(CalledRow { keys, took: RowCost::default(), open: 0, since: Time::default() });
        }
        number
    }

    /// Returns the number of a place; adds a new one.
    fn place(&mut self, own: Option<Keys>, outer: Vec<Keys>) -> usize {
        let own = own.map(|keys| self.row(keys));
        let rows = own.into_iter().chain(outer.into_iter().map(|keys| self.row(keys))).collect();
        let place = CountedPlace { own, rows };
        let new = self.places.len();
        let number = *self.place_numbers.entry(place.clone()).or_insert(new);
        if number == new {
            self.places.push(place);
        }
        number
    }

    /// Notes that functions without a name are known from now on to begin here.
    fn begin(&mut self, begins: &[u64]) {
        for begin in begins {
            let next = self.unnamed_places.range(begin..).next();
            if next.is_some_and(|next| self.unnamed.begin(*next, self.naming.symbols) == Some(*begin)) {
                self.is_stale = true;
            }
        }
    }

    /// Returns the number of the place of an instruction.
    #[inline]
    fn place_of(&mut self, ip: u64) -> usize {
        self.known.find(ip).unwrap_or_else(|| {
            let naming = TraceRows { unnamed: &self.unnamed, ..self.naming };
            let (own, outer) = (naming.own(ip), naming.outer(ip));
            if naming.symbols.function(ip).is_none() {
                self.unnamed_places.insert(ip);
            }
            let place = self.place(own, outer);
            self.known.all.insert(ip, place);
            place
        })
    }

    /// Enters a row of this name, for time in which no instruction is known to have been executed.
    fn nobodys(&mut self, name: &str, now: Time) {
        let keys = self.naming.nobodys(name);
        let place = self.place(keys, vec![]);
        self.enter(place, now);
    }
}

impl Visitor for CallerSums<'_> {
    fn sees_call(&mut self, to: u64) {
        let begins = self.unnamed.call(to, self.naming.symbols);
        self.begin(&begins);
    }

    fn sees_jump(&mut self, from: u64, to: u64) {
        let begins = self.unnamed.jump(from, to, self.naming.symbols);
        self.begin(&begins);
    }

    fn call_event(&mut self, now: Time, what: CallEvent) {
        self.add_up_to(now);
        self.here = None;
        match what {
            CallEvent::Enter { to, .. } | CallEvent::Again { to, .. } => {
                if std::mem::take(&mut self.lost) {
                    self.leave_all_but(0, now);
                }
                // Its first instruction may be interrupted before it is executed.
                let place = self.place_of(to);
                self.enter(place, now);
                self.here = Some(place);
            }
            CallEvent::Leave => self.leave_all_but(self.stack.len().saturating_sub(1), now),
            CallEvent::Back => self.jump_back(now),
            CallEvent::Off(call) => self.nobodys(&format!("[{}]", not_traced(call)), now),
            CallEvent::On => self.leave_all_but(self.stack.len().saturating_sub(1), now),
            CallEvent::Loss(_) if !self.lost => {
                self.lost = true;
                self.nobodys(LOST, now);
            }
            CallEvent::Loss(_) | CallEvent::Mark(..) | CallEvent::End(_) => {}
        }
    }

    #[inline]
    fn watches(&mut self, ip: u64) -> bool {
        let place = self.place_of(ip);
        self.here != Some(place)
    }

    fn tells_apart(&mut self, before: u64, ip: u64) -> bool {
        self.place_of(before) != self.place_of(ip)
    }

    fn at(&mut self, now: Time, ip: u64) {
        self.add_up_to(now);
        let place = self.place_of(ip);
        self.here = Some(place);
        match self.stack.last() {
            Some(_) => self.go_on(place, now),
            None => self.enter(place, now),
        }
    }
}

#[cfg(test)]
mod tests;
