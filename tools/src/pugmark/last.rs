//! `pugmark last`: the calls and returns before the end of a trace, and the place of its end; or those before a
//! function was entered.

use super::{
    named_session::NamedSession,
    options::ViewInput,
    progress::Progress,
    recording::{IndexedPart, Traced},
    verdict::Verdict,
    visitors::{CallEvent, Time, not_traced},
    wanted_function::WantedFunction,
};
use crate::output;
use crate::symbols::TracedSymbols;
use anyhow::Result;
use clap::Args;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, VecDeque},
    num::NonZeroUsize,
    process::ExitCode,
    rc::Rc,
};

/// The options of `pugmark last`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark last a.rec                                  what ran before the program ended
  pugmark last -n 50 --before abort a.rec             what ran before abort was last entered")]
pub struct LastOptions {
    /// Show the last N calls, returns and other events of each trace
    #[arg(short, default_value = "200")]
    n: NonZeroUsize,
    /// Stop where this function was entered last
    #[arg(long, value_name = "FUNCTION")]
    before: Option<WantedFunction>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: ViewInput,
}

/// The last events of a trace, each with its depth.
#[derive(Debug)]
struct Last {
    most: usize,
    depth: usize,
    /// The functions that have not been left: for each, its call and where that went.
    frames: Vec<(Option<u64>, u64)>,
    /// The address at which the trace ended.
    end: Option<u64>,
    /// True if the trace has ended: nothing more is added.
    is_over: bool,
    kept: VecDeque<(Time, usize, CallEvent)>,
    /// The events that were kept when the function was entered last.
    found: Option<VecDeque<(Time, usize, CallEvent)>>,
}

impl Last {
    fn new(most: NonZeroUsize) -> Self {
        Self {
            most: most.get(),
            depth: 0,
            frames: vec![],
            end: None,
            is_over: false,
            kept: VecDeque::new(),
            found: None,
        }
    }

    fn add(&mut self, time: Time, what: CallEvent, is_before: impl FnOnce(u64) -> bool) {
        if self.is_over {
            return;
        }
        let stops = matches!(what, CallEvent::Enter { from: Some(_), to } if is_before(to));
        let depth = self.depth;
        match what {
            CallEvent::Enter { from, to } | CallEvent::Again { from, to } => {
                self.depth += 1;
                self.frames.push((from, to));
            }
            CallEvent::Leave | CallEvent::Back => {
                self.depth = self.depth.saturating_sub(1);
                self.frames.pop();
            }
            CallEvent::End(at) => {
                (self.end, self.is_over) = (at, true);
                return;
            }
            _ => {}
        }
        let depth = depth.min(self.depth);
        if self.kept.len() == self.most {
            self.kept.pop_front();
        }
        self.kept.push_back((time, depth, what));
        if stops {
            self.found = Some(self.kept.clone());
        }
    }
}

impl Last {
    /// Returns where the trace ended, and the calls that had not returned, the innermost first.
    fn end(&self, names: &TracedSymbols) -> Vec<String> {
        let calls = self.frames.iter().rev().map_while(|(from, _)| *from);
        self.end.into_iter().chain(calls).map(|ip| place(names, ip)).collect()
    }
}

/// Runs `pugmark last`. The exit status is 1 if a trace has errors.
///
/// # Errors
/// If there is no trace or no code, no function of the name was entered, or the output cannot be written.
pub fn run(options: &LastOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut shown = vec![];
    let (mut verdict, mut called, mut executed) = (Verdict::default(), BTreeSet::new(), false);
    for traced in options.input.traces(&mut verdict, &mut progress)? {
        let (lanes, unit, wrong) = options.last(&traced, &mut called, &mut progress)?;
        verdict.errors += wrong;
        executed |= lanes.iter().any(|lane| !lane.last.kept.is_empty());
        shown.extend(lanes.into_iter().filter_map(|lane| lane.show(unit, options.before.is_some())));
    }
    verdict.is_empty = !executed;
    // The thread that a signal ended comes first.
    shown.sort_by_key(|lane| !lane.crashed);
    let found = options.before.is_none() || !shown.is_empty();
    if let Some(function) = options.before.as_ref().filter(|_| !found) {
        function.was_not("--before", "was called; --symbols FILE gives more names", &called)?;
    }
    output::page(|out| match options.json {
        true => {
            let traces: Vec<_> = shown.into_iter().map(|lane| lane.entry).collect();
            writeln!(out, "{}", json!({ "traces": traces }))
        }
        false => shown.iter().try_for_each(|lane| out.write_all(lane.text.as_bytes())),
    })?;
    Ok(verdict.status())
}

impl LastOptions {
    /// Finds the last events of each thread, of those in which anything was executed if there are several.
    fn last(
        &self,
        traced: &Traced,
        called: &mut BTreeSet<String>,
        progress: &mut Progress,
    ) -> Result<(Vec<LastOfLane>, &'static str, usize)> {
        let named = NamedSession::load(&self.input, traced, &self.input.symbols, progress)?;
        let mut lasts: Vec<_> = named.names.iter().map(|_| Last::new(self.n)).collect();
        let mut known = vec![FxHashMap::<u64, bool>::default(); lasts.len()];
        let visitor = |((last, known), names): ((_, _), &Rc<TracedSymbols>)| {
            let (last, known, names): (&mut Last, &mut FxHashMap<_, _>, _) = (last, known, names.clone());
            move |time: Time, what: CallEvent| {
                let is_before = |to| {
                    let Some(wanted) = &self.before else { return false };
                    *known.entry(to).or_insert_with(|| wanted.called(to, &names) == Some(0))
                };
                last.add(time, what, is_before);
            }
        };
        let lanes = lasts.iter_mut().zip(&mut known).zip(&named.names);
        let mut visitors: Vec<_> = lanes.map(visitor).collect();
        let (_, errors) = named.walk(progress, &mut visitors);
        drop(visitors);
        for (known, names) in known.iter().zip(&named.names) {
            called.extend(known.keys().map(|to| names.name(*to)));
        }
        let several = lasts.len() > 1;
        let lanes = lasts.into_iter().enumerate().map(|(lane, last)| LastOfLane {
            part: named.part(lane).cloned(),
            names: named.names[lane].clone(),
            last,
        });
        let lanes = lanes.filter(|lane| !several || !lane.last.kept.is_empty());
        Ok((lanes.collect(), named.loaded.clock.unit.name(), errors))
    }
}

/// The last events of a thread.
struct LastOfLane {
    part: Option<IndexedPart>,
    names: Rc<TracedSymbols>,
    last: Last,
}

/// The last events of a thread, as they are printed.
struct ShownLane {
    /// True if the thread got the signal that ended its process.
    crashed: bool,
    text: String,
    entry: Value,
}

impl LastOfLane {
    /// Puts the events, and the end unless those before a function are asked for, into words; `None` if that was not
    /// entered.
    fn show(self, unit: &str, before: bool) -> Option<ShownLane> {
        let Self { part, names, last } = self;
        let end = if before { vec![] } else { last.end(&names) };
        let kept = if before { last.found } else { Some(last.kept) }?;
        let title = part.as_ref().map(IndexedPart::title);
        let mut text: String = title.iter().map(|title| format!("{title}\n")).collect();
        let least = kept.iter().map(|(_, depth, _)| *depth).min().unwrap_or_default();
        for (time, depth, what) in &kept {
            let indent = "  ".repeat(depth - least);
            text += &format!("{:>16} {unit}  {indent}{}\n", time.at, line(&names, what));
        }
        let part = part.unwrap_or_default();
        text += &ended(&end, &if before { String::new() } else { ended_by(&part) });
        let entry = |(time, depth, what): &(Time, usize, CallEvent)| {
            let what = line(&names, what);
            json!({ "at": time.at, "instructions": time.insns, "depth": depth, "what": what })
        };
        let last: Vec<_> = kept.iter().map(entry).collect();
        let mut entry = json!({ "part": title, "unit": unit, "last": last, "end": end });
        if let Some(signal) = part.signal {
            entry["signal"] = signal.into();
            entry["address"] = part.address.into();
        }
        Some(ShownLane { crashed: part.signal.is_some(), text, entry })
    }
}

/// The most calls from the same place in a row that are printed one by one.
const MOST_REPEATED: usize = 10;

/// Returns the lines about the end of a thread: the place, and the callers, of which those that repeat are counted.
fn ended(end: &[String], by: &str) -> String {
    let Some((place, callers)) = end.split_first() else {
        return if by.is_empty() { String::new() } else { format!("it ended{by}\n") };
    };
    let mut text = format!("it ended at {place}{by}\n");
    for same in callers.chunk_by(|one, next| one == next) {
        let line = format!("  called at {}\n", same[0]);
        text += &match same.len() {
            count @ 0..=MOST_REPEATED => line.repeat(count),
            count => format!("{line}  … {} more calls from there\n", count - 1),
        };
    }
    text
}

/// Describes an event in words.
fn line(names: &TracedSymbols, what: &CallEvent) -> String {
    match what {
        CallEvent::Enter { from: Some(from), to } => {
            format!("{} -> {}", place(names, *from), place(names, *to))
        }
        CallEvent::Enter { from: None, to } => format!("in {}", place(names, *to)),
        CallEvent::Again { to, .. } => format!("in {} again", names.name(*to)),
        CallEvent::Leave => "return".into(),
        CallEvent::Back => "jump back".into(),
        CallEvent::Off(call) => format!("({})", not_traced(*call)),
        CallEvent::On => "(traced again)".into(),
        CallEvent::Loss(why) => format!("LOST: {why}"),
        CallEvent::Mark(_, text) => text.clone(),
        CallEvent::End(_) => "the end".into(),
    }
}

/// Returns the end of a sentence about a thread's end: the signal that ended its process, if the thread got that.
fn ended_by(part: &IndexedPart) -> String {
    let address = part.address.as_ref().map(|address| format!(", accessing {address}"));
    let signal = part.signal.map(|signal| format!(", by signal {signal}"));
    signal.map(|signal| signal + &address.unwrap_or_default()).unwrap_or_default()
}

/// Returns the function with the offset of the address in it, and the line of source if it is known.
fn place(names: &TracedSymbols, ip: u64) -> String {
    let line = names.line(ip).map(|line| format!(" ({})", line.short()));
    names.place(ip) + &line.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::visitors::MarkKind;

    fn calls(last: &VecDeque<(Time, usize, CallEvent)>) -> Vec<(usize, u64)> {
        let call = |(_, depth, what): &(Time, usize, CallEvent)| match what {
            CallEvent::Enter { to, .. } => (*depth, *to),
            _ => (*depth, 0),
        };
        last.iter().map(call).collect()
    }

    #[test]
    fn a_line_says_what_happened_with_the_names_of_functions() {
        let names = TracedSymbols::known(&[("a", 0x1000, 0x1010), ("b", 0x1020, 0x1030)], &[]);
        for (what, expected) in [
            (CallEvent::Enter { from: Some(0x1004), to: 0x1020 }, "a+0x4 -> b"),
            (CallEvent::Enter { from: Some(0x900), to: 0x1021 }, "0x900 -> b+0x1"),
            (CallEvent::Enter { from: None, to: 0x1000 }, "in a"),
            (CallEvent::Again { from: Some(0x1004), to: 0x1021 }, "in b again"),
            (CallEvent::Leave, "return"),
            (CallEvent::Back, "jump back"),
            (CallEvent::Off(None), "(not traced)"),
            (CallEvent::Off(Some("write")), "(not traced: write)"),
            (CallEvent::On, "(traced again)"),
            (CallEvent::Loss("full".into()), "LOST: full"),
            (CallEvent::Mark(MarkKind::Power, "a mark".into()), "a mark"),
            (CallEvent::End(Some(0x1004)), "the end"),
        ] {
            assert_eq!(line(&names, &what), expected);
        }
    }

    #[test]
    fn a_thread_that_got_the_signal_says_what_it_accessed() {
        for (signal, address, expected) in [
            (None, None, ""),
            (Some(6), None, ", by signal 6"),
            (Some(11), Some("0x8".into()), ", by signal 11, accessing 0x8"),
        ] {
            assert_eq!(ended_by(&IndexedPart { signal, address, ..IndexedPart::default() }), expected);
        }
    }

    #[test]
    fn calls_from_one_place_in_a_row_are_counted_if_they_are_many() {
        let repeated = |count| [vec!["f+0x1"], vec!["f+0x7"; count], vec!["main", "f+0x7"]].concat();
        for (count, expected) in [
            (0, String::new()),
            (2, "  called at f+0x7\n".repeat(2)),
            (10, "  called at f+0x7\n".repeat(10)),
            (11, "  called at f+0x7\n  … 10 more calls from there\n".into()),
            (2037, "  called at f+0x7\n  … 2036 more calls from there\n".into()),
        ] {
            let end: Vec<String> = repeated(count).into_iter().map(Into::into).collect();
            let expected =
                format!("it ended at f+0x1, by signal 11\n{expected}  called at main\n  called at f+0x7\n");
            assert_eq!(ended(&end, ", by signal 11"), expected);
        }
        assert_eq!(ended(&[], ""), "");
        assert_eq!(ended(&[], ", by signal 6"), "it ended, by signal 6\n");
    }

    #[test]
    fn the_end_is_a_place_and_the_calls_that_led_to_it() {
        let names = TracedSymbols::known(&[("a", 0x1000, 0x1010), ("b", 0x1020, 0x1030)], &[]);
        let mut last = Last::new(NonZeroUsize::MIN);
        let enter = |from, to| CallEvent::Enter { from, to };
        for what in [
            enter(None, 0x1000),
            enter(Some(0x1004), 0x1020),
            enter(Some(0x1024), 0x1000),
            CallEvent::Leave,
            CallEvent::Off(None),
            CallEvent::End(Some(0x1028)),
            // Open functions are left now, but not by the program.
            CallEvent::Leave,
            CallEvent::Leave,
        ] {
            last.add(Time::default(), what, |_| false);
        }
        assert_eq!(last.end(&names), ["b+0x8", "a+0x4"]);
        assert_eq!(
            last.kept.iter().map(|(_, depth, what)| (*depth, what)).collect::<Vec<_>>(),
            [(2, &CallEvent::Off(None))]
        );
    }

    #[test]
    fn only_the_last_are_kept_and_those_before_a_function_was_entered_last() {
        let mut last = Last::new(NonZeroUsize::new(3).unwrap());
        let enter = |to| CallEvent::Enter { from: Some(1), to };
        for what in
            [enter(10), enter(20), CallEvent::Leave, enter(30), enter(20), CallEvent::Leave, enter(40)]
        {
            last.add(Time::default(), what, |to| to == 20);
        }
        assert_eq!(calls(&last.kept), [(2, 20), (2, 0), (2, 40)]);
        assert_eq!(calls(&last.found.unwrap()), [(1, 0), (1, 30), (2, 20)]);
    }
}
