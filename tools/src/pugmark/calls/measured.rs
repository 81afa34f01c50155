//! The calls of one function: how many, how long, from where.

use crate::digits::Digits;
use crate::pugmark::{
    named_session::NamedSession,
    options::ViewInput,
    progress::Progress,
    recording::IndexedPart,
    verdict::Verdict,
    visitors::{CallEvent, Time, Unit},
    wanted_function::WantedFunction,
};
use crate::symbols::TracedSymbols;
use anyhow::Result;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    rc::Rc,
};

/// A call of the function that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MeasuredCall {
    begin: Time,
    took: Time,
    /// The number of the place of the call.
    place: usize,
    /// The number of the thread.
    thread: usize,
}

/// All calls of a function.
#[derive(Debug)]
pub(super) struct MeasuredCalls {
    of: WantedFunction,
    unit: Unit,
    calls: Vec<MeasuredCall>,
    /// The places of calls: the caller, with its line if that is known.
    places: Vec<String>,
    threads: Vec<String>,
    /// The time at which the first event is, from which a timeline counts.
    first: u64,
    /// The functions that were called.
    called: BTreeSet<String>,
}

/// The parts that are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredParts {
    pub(super) stats: bool,
    pub(super) longest: usize,
    pub(super) callers: bool,
}

/// A function that has not returned.
#[derive(Clone, Copy, Debug)]
struct OpenFunction {
    from: Option<u64>,
    to: u64,
    /// When it was called, and the number of the place, if its calls are measured.
    measured: Option<(Time, usize)>,
}

/// A function that was called.
#[derive(Clone, Copy, Debug)]
struct CalledFunction {
    /// Its calls are measured.
    is_of: bool,
    /// It only leads to another function, for the linker.
    is_linkage: bool,
}

/// A visitor that measures the calls of a function in a thread.
struct Measurer<'m> {
    of: &'m WantedFunction,
    names: Rc<TracedSymbols>,
    thread: usize,
    open: Vec<OpenFunction>,
    /// Each address that was called.
    known: FxHashMap<u64, CalledFunction>,
    /// The numbers of places by the addresses of calls, each with where its function began.
    numbers: FxHashMap<(Option<u64>, Option<u64>), usize>,
    places: Vec<String>,
    calls: Vec<MeasuredCall>,
    first: Option<u64>,
}

impl<'m> Measurer<'m> {
    fn new(of: &'m WantedFunction, names: Rc<TracedSymbols>, thread: usize) -> Self {
        Self {
            of,
            names,
            thread,
            open: vec![],
            known: FxHashMap::default(),
            numbers: FxHashMap::default(),
            places: vec![],
            calls: vec![],
            first: None,
        }
    }

    fn add(&mut self, time: Time, what: &CallEvent) {
        if self.first.is_none()
            && matches!(what, CallEvent::Enter { .. } | CallEvent::Off(_) | CallEvent::Loss(_))
        {
            self.first = Some(time.at);
        }
        match *what {
            CallEvent::Enter { from, to } => {
                let measured = self.called(to).is_of.then(|| (time, self.place(from)));
                self.open.push(OpenFunction { from, to, measured });
            }
            // The rest of a call that was measured up to a switch of stacks.
            CallEvent::Again { from, to } => self.open.push(OpenFunction { from, to, measured: None }),
            CallEvent::Leave | CallEvent::Back => {
                if let Some((begin, place)) = self.open.pop().and_then(|open| open.measured) {
                    let took = time.since(begin);
                    self.calls.push(MeasuredCall { begin, took, place, thread: self.thread });
                }
            }
            _ => {}
        }
    }

    fn called(&mut self, to: u64) -> CalledFunction {
        let Self { of, names, known, .. } = self;
        *known.entry(to).or_insert_with(|| {
            let name = names.function(to).map_or("", |(name, _)| name);
            let is_linkage = name.ends_with("@plt") || name.starts_with("_dl_runtime_resolve");
            CalledFunction { is_of: of.called(to, names).is_some(), is_linkage }
        })
    }

    /// Returns the number of the place from which the innermost open function calls, or of the one that has called it
    /// to get there.
    fn place(&mut self, mut from: Option<u64>) -> usize {
        let mut callers = self.open.len();
        while callers > 0 && self.called(self.open[callers - 1].to).is_linkage {
            callers -= 1;
            from = self.open[callers].from;
        }
        let begin = callers.checked_sub(1).map(|number| self.open[number].to);
        let Self { names, numbers, places, .. } = self;
        *numbers.entry((from, begin)).or_insert_with(|| {
            let Some(from) = from else {
                places.push("[unknown]".into());
                return places.len() - 1;
            };
            // Where a function without a name begins, its call tells if its file does not.
            let begin = names.begin(from).or(begin.filter(|begin| names.function(*begin).is_none()));
            let caller = names.name(begin.unwrap_or(from));
            places.push(match (names.line(from), begin) {
                (Some(line), _) => format!("{caller} ({})", line.short()),
                (None, Some(begin)) => format!("{caller}+{:#x}", from.wrapping_sub(begin)),
                (None, None) => caller,
            });
            places.len() - 1
        })
    }
}

impl MeasuredCalls {
    /// Follows all traces and measures the calls of the function `of`.
    ///
    /// # Errors
    /// If there is no trace or no code.
    pub(super) fn of(
        of: &WantedFunction,
        input: &ViewInput,
        verdict: &mut Verdict,
        progress: &mut Progress,
    ) -> Result<Self> {
        let (calls, places, threads) = (vec![], vec![], vec![]);
        let mut all = Self {
            of: of.clone(),
            unit: Unit::Instructions,
            calls,
            places,
            threads,
            first: u64::MAX,
            called: BTreeSet::new(),
        };
        for traced in input.traces(verdict, progress)? {
            let named = NamedSession::load(input, &traced, &input.symbols, progress)?;
            let mut measurers: Vec<_> = named
                .names
                .iter()
                .enumerate()
                .map(|(lane, names)| Measurer::new(of, names.clone(), all.threads.len() + lane))
                .collect();
            let visitor = |measurer| {
                let measurer: &mut Measurer<'_> = measurer;
                move |time: Time, what: CallEvent| measurer.add(time, &what)
            };
            let mut visitors: Vec<_> = measurers.iter_mut().map(visitor).collect();
            let (_, errors) = named.walk(progress, &mut visitors);
            drop(visitors);
            verdict.errors += errors;
            all.unit = named.loaded.clock.unit;
            for (lane, measurer) in measurers.into_iter().enumerate() {
                all.threads.push(named.part(lane).map_or("trace".into(), IndexedPart::title));
                all.take_in(measurer);
            }
        }
        all.calls.sort_by_key(|call| call.begin);
        Ok(all)
    }

    fn take_in(&mut self, measurer: Measurer<'_>) {
        let before = self.places.len();
        self.places.extend(measurer.places);
        self.first = self.first.min(measurer.first.unwrap_or(u64::MAX));
        let moved = |call: MeasuredCall| MeasuredCall { place: before + call.place, ..call };
        self.calls.extend(measurer.calls.into_iter().map(moved));
        self.called.extend(measurer.known.keys().map(|to| measurer.names.name(*to)));
    }

    /// Returns the functions that were called.
    pub(super) const fn called(&self) -> &BTreeSet<String> {
        &self.called
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns least, median, 99 % and most of a cost, by the nearest rank, and the sum.
    fn spread(&self, cost: impl Fn(&MeasuredCall) -> u64) -> [u64; 5] {
        let mut costs: Vec<u64> = self.calls.iter().map(cost).collect();
        costs.sort_unstable();
        let rank = |percent: usize| costs[(costs.len() * percent).div_ceil(100).max(1) - 1];
        [rank(0), rank(50), rank(99), rank(100), costs.iter().sum()]
    }

    /// Returns the spread of each unit that the trace has.
    fn spreads(&self) -> Vec<(&'static str, [u64; 5])> {
        let insns = (Unit::Instructions.name(), self.spread(|call| call.took.insns));
        let time = (self.unit.name(), self.spread(|call| call.took.at));
        if self.unit == Unit::Instructions { vec![insns] } else { vec![time, insns] }
    }

    /// Returns the longest calls, the longest first.
    fn longest(&self, count: usize) -> Vec<MeasuredCall> {
        let mut calls = self.calls.clone();
        calls.sort_by_key(|call| std::cmp::Reverse(call.took));
        calls.truncate(count);
        calls
    }

    /// Returns the callers, the most frequent first: the number of calls, what they took, and the place.
    fn callers(&self) -> Vec<(u64, Time, &str)> {
        let mut callers = BTreeMap::<&str, (u64, Time)>::new();
        for call in &self.calls {
            let (count, took) = callers.entry(&self.places[call.place]).or_default();
            *count += 1;
            took.add(call.took);
        }
        let mut callers: Vec<_> =
            callers.into_iter().map(|(place, (count, took))| (count, took, place)).collect();
        callers.sort_by_key(|(count, ..)| std::cmp::Reverse(*count));
        callers
    }

    /// Returns the begin and the end of a call, as the address of a timeline's page has them.
    fn link(&self, call: &MeasuredCall) -> String {
        let begin = call.begin.at - self.first;
        format!("#{begin}-{}", begin + call.took.at)
    }

    /// Prints the parts as text.
    pub(super) fn print(
        &self,
        parts: MeasuredParts,
        digits: Digits,
        out: &mut (impl Write + ?Sized),
    ) -> io::Result<()> {
        let (unit, width) = (self.unit.name(), digits.width(14));
        let number = |number: u64| digits.of(number);
        // A trace without times has one column of them less.
        let time = |text: &str| match self.unit {
            Unit::Instructions => String::new(),
            Unit::Nanoseconds | Unit::Ticks => format!("{text:>width$} "),
        };
        if parts.stats {
            writeln!(out, "{}: {} calls", self.of, number(self.calls.len() as u64))?;
            let widths = [14, 14, 14, 14, 16].map(|width| digits.width(width));
            write!(out, "{:<12}", "")?;
            for (heading, width) in ["min", "median", "99 %", "max", "total"].iter().zip(widths) {
                write!(out, " {heading:>width$}")?;
            }
            writeln!(out)?;
            for (unit, spread) in self.spreads() {
                write!(out, "{unit:<12}")?;
                for (value, width) in spread.into_iter().zip(widths) {
                    write!(out, " {:>width$}", number(value))?;
                }
                writeln!(out)?;
            }
        }
        if parts.longest > 0 {
            writeln!(out, "{}{:>width$}  place in the timeline, caller, thread", time(unit), "instructions")?;
            for call in self.longest(parts.longest) {
                let (link, place) = (self.link(&call), &self.places[call.place]);
                let thread = &self.threads[call.thread];
                let took = time(&number(call.took.at).to_string());
                writeln!(out, "{took}{:>width$}  {link}  {place}  {thread}", number(call.took.insns))?;
            }
        }
        if parts.callers {
            writeln!(out, "{:>width$} {}{:>width$}  caller", "calls", time(unit), "instructions")?;
            for (count, took, place) in self.callers() {
                let took = [took.at, took.insns].map(number);
                let count = number(count);
                writeln!(out, "{count:>width$} {}{:>width$}  {place}", time(&took[0].to_string()), took[1])?;
            }
        }
        Ok(())
    }

    /// Returns the parts as JSON.
    pub(super) fn json(&self, parts: MeasuredParts) -> Value {
        let mut object = Map::new();
        object.insert("of".into(), self.of.to_string().into());
        object.insert("calls".into(), self.calls.len().into());
        object.insert("unit".into(), self.unit.name().into());
        if parts.stats {
            for (unit, [min, median, most, max, total]) in self.spreads() {
                let spread = json!({ "min": min, "median": median, "p99": most, "max": max, "total": total });
                object.insert(unit.into(), spread);
            }
        }
        let call = |call: MeasuredCall| {
            json!({
                "begin": call.begin.at - self.first,
                "time": call.took.at,
                "instructions": call.took.insns,
                "caller": self.places[call.place],
                "thread": self.threads[call.thread],
            })
        };
        if parts.longest > 0 {
            object.insert("longest".into(), self.longest(parts.longest).into_iter().map(call).collect());
        }
        let caller = |(count, took, place): (u64, Time, &str)| {
            json!({
                "caller": place,
                "calls": count,
                "time": took.at,
                "instructions": took.insns,
            })
        };
        if parts.callers {
            object.insert("callers".into(), self.callers().into_iter().map(caller).collect());
        }
        object.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(times: &[u64]) -> MeasuredCalls {
        let call = |(index, took): (usize, &u64)| MeasuredCall {
            begin: Time { at: 100 + index as u64, insns: 0 },
            took: Time { at: *took, insns: 2 * took },
            place: index % 2,
            thread: 0,
        };
        MeasuredCalls {
            of: "f".into(),
            unit: Unit::Nanoseconds,
            calls: times.iter().enumerate().map(call).collect(),
            places: vec!["a".into(), "b (x.c:3)".into()],
            threads: vec!["one".into()],
            first: 100,
            called: BTreeSet::new(),
        }
    }

    #[test]
    fn a_call_through_the_linkage_table_is_its_callers_and_a_caller_without_a_name_has_the_address_of_its_begin()
     {
        let functions = [
            ("main", 0x1000, 0x1100),
            ("f@plt", 0x2000, 0x2010),
            ("_dl_runtime_resolve_xsave", 0x3000, 0x3100),
            ("f", 0x4000, 0x4010),
        ];
        let wanted = "f".into();
        let mut measurer = Measurer::new(&wanted, TracedSymbols::known(&functions, &[]).into(), 0);
        let enter = |from, to| CallEvent::Enter { from: Some(from), to };
        for (begins, expected) in [
            (&[enter(0x900, 0x1000), enter(0x1020, 0x4000)][..], "main+0x20"),
            (&[enter(0x900, 0x1000), enter(0x1030, 0x2000), enter(0x2004, 0x4000)], "main+0x30"),
            (
                &[enter(0x900, 0x1000), enter(0x1040, 0x2000), enter(0x2004, 0x3000), enter(0x3010, 0x4000)],
                "main+0x40",
            ),
            (&[enter(0x900, 0x8000), enter(0x8020, 0x4000)], "0x8000+0x20"),
            (&[enter(0x8020, 0x4000)], "0x8020"),
        ] {
            begins.iter().for_each(|event| measurer.add(Time::default(), event));
            begins.iter().for_each(|_| measurer.add(Time::default(), &CallEvent::Leave));
            let place = measurer.calls.pop().expect("it has returned").place;
            assert_eq!((&*measurer.places[place], measurer.calls.len()), (expected, 0), "{begins:?}");
        }
    }

    #[test]
    fn percentiles_are_costs_of_calls_by_the_nearest_rank() {
        let rows: [(&[u64], [u64; 5]); 4] = [
            (&[7], [7, 7, 7, 7, 7]),
            (&[3, 1], [1, 1, 3, 3, 4]),
            (&[9, 1, 5], [1, 5, 9, 9, 15]),
            (&(1..=200).collect::<Vec<_>>(), [1, 100, 198, 200, 20100]),
        ];
        for (times, expected) in rows {
            assert_eq!(measured(times).spread(|call| call.took.at), expected, "{times:?}");
        }
    }

    #[test]
    fn the_longest_calls_come_first_and_callers_by_the_number_of_calls() {
        let calls = measured(&[5, 20, 6]);
        let mut text = vec![];
        calls
            .print(MeasuredParts { stats: true, longest: 2, callers: true }, Digits::PLAIN, &mut text)
            .unwrap();
        let text = String::from_utf8(text).unwrap();
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["f:", "3", "calls"]);
        assert_eq!(words[2], ["ns", "5", "6", "20", "20", "31"]);
        assert_eq!(words[3], ["instructions", "10", "12", "40", "40", "62"]);
        assert_eq!(words[5], ["20", "40", "#1-21", "b", "(x.c:3)", "one"]);
        assert_eq!(words[6], ["6", "12", "#2-8", "a", "one"]);
        assert_eq!(words[8], ["2", "11", "22", "a"]);
        assert_eq!(words[9], ["1", "20", "40", "b", "(x.c:3)"]);
        assert_eq!(words.len(), 10);
    }
}
