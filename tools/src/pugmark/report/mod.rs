//! `pugmark report`: counts of executed instructions by function, line of source, object file or thread, and the cost
//! of each with all that it called.

mod callers;
mod naming;
mod table;

use super::{
    coverage::Executed,
    loaded::LoadedSession,
    options::ViewInput,
    progress::Progress,
    recording::{IndexedPart, Traced},
    verdict::Verdict,
    visitors::{Time, TraceClock, Unit, WalkEnd, WalkedLane, walk_lanes},
};
use crate::digits::Digits;
use crate::output;
use crate::symbols::TracedSymbols;
use crate::text::printable;
use anyhow::{Result, ensure};
use callers::CallerSums;
use clap::{Args, ValueEnum};
use naming::UNKNOWN;
pub(super) use naming::{KEYS, Key, Keys, TraceRows, UnnamedFunctions, WantedRows};
use std::{cmp::Reverse, collections::BTreeMap, process::ExitCode};
use table::{Counts, FunctionReport, ReportColumns, Row};

/// The options of `pugmark report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Percentages are of all instructions, or of all time if time comes first, also where only some rows are shown.

Examples:
  pugmark report a.rec                                the functions with the most instructions first
  pugmark report --children a.rec                     those first that have the most with what they called
  pugmark report --sort time --object a.out a.rec     the program's own functions; needs --time when it is recorded
  pugmark report --by object,thread --csv a.rec       a table for other programs
  pugmark report --sort calls --percent-limit 1 --symfs root perf.data")]
pub struct ReportOptions {
    /// By function, line, inlined, object, thread; several with commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "object,function",
        hide_possible_values = true
    )]
    by: Vec<Key>,
    /// Count with all that was called, too; what calls itself counts once
    #[arg(long)]
    children: bool,
    /// Show time, too: ns, or ticks of the TSC; of `pugmark record` it is the model's
    #[arg(long)]
    time: bool,
    /// Sort by instructions, branches, calls, children, time or children-time
    #[arg(long, value_enum, hide_possible_values = true)]
    sort: Option<ReportOrder>,
    /// Only rows of this object file, such as a.out or libc.so.6
    #[arg(long, value_name = "NAME")]
    object: Option<String>,
    /// Only rows of this function
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Leave out rows with less than N percent; with children, if they come first
    #[arg(long, value_name = "N", default_value = "0", value_parser = percent)]
    percent_limit: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print a line of names, and then lines of values with commas between them
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    input: ViewInput,
}

/// The column that rows are sorted by, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportOrder {
    Instructions,
    Branches,
    Calls,
    Children,
    Time,
    ChildrenTime,
}

/// The counts of all traces.
#[derive(Clone, Debug, Default)]
struct ReportSums {
    rows: BTreeMap<Keys, Counts>,
    /// The functions of each line, with the instructions of each.
    functions: BTreeMap<Keys, BTreeMap<String, u64>>,
    instructions: u64,
    branches: u64,
    errors: usize,
    time: u64,
    /// The unit of time, if time is counted.
    unit: Option<Unit>,
}

fn percent(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!((0.0..=100.0).contains(&number), "it is not between 0 and 100");
    Ok(number)
}

/// Returns a part of all in percent.
fn percent_of(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / (all as f64).max(1.0)
}

/// Runs `pugmark report`. The exit status is 1 if a trace has errors or nothing in it was executed.
///
/// # Errors
/// If there is no trace or no code, time is asked for and a trace has none, no row is wanted, or the output
/// cannot be written.
pub fn run(options: &ReportOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut counted = ReportSums::default();
    let mut verdict = Verdict::default();
    for traced in options.input.traces(&mut verdict, &mut progress)? {
        options.add(&traced, &mut counted, &mut progress)?;
    }
    (verdict.errors, verdict.is_empty) = (counted.errors, counted.instructions == 0);
    ensure!(
        counted.instructions == 0 || !counted.rows.is_empty(),
        "{}: nothing there was executed",
        options.wanted_words().join(" ")
    );
    let report = options.report(counted);
    let status = verdict.status();
    if options.json {
        output::print(|out| writeln!(out, "{}", serde_json::to_string(&report)?))?;
    } else if options.csv {
        output::print(|out| report.csv(out))?;
    } else {
        output::page(|out| report.text(Digits::on_stdout(), out))?;
    }
    Ok(status)
}

/// Returns the title of a thread.
fn title(part: Option<&IndexedPart>, traced: &Traced) -> String {
    let file = || printable(&traced.trace.display().to_string()).into_owned();
    part.map_or_else(file, IndexedPart::title)
}

impl ReportOptions {
    fn wanted(&self) -> WantedRows<'_> {
        WantedRows { by: &self.by, object: self.object.as_deref(), function: self.function.as_deref() }
    }

    /// Returns the options that leave rows out, with their values.
    fn wanted_words(&self) -> Vec<String> {
        let words = [("object", &self.object), ("function", &self.function)];
        words.iter().filter_map(|(name, value)| Some(format!("--{name} {}", value.as_ref()?))).collect()
    }

    fn order(&self) -> ReportOrder {
        let usual = if self.children { ReportOrder::Children } else { ReportOrder::Instructions };
        self.sort.unwrap_or(usual)
    }

    const fn is_sorted_by_time(&self) -> bool {
        matches!(self.sort, Some(ReportOrder::Time | ReportOrder::ChildrenTime))
    }

    /// Returns the option that asks for time.
    const fn time_option(&self) -> &'static str {
        match self.sort {
            Some(ReportOrder::Time) => "--sort time",
            Some(ReportOrder::ChildrenTime) => "--sort children-time",
            _ => "--time",
        }
    }

    const fn has_children(&self) -> bool {
        self.children || matches!(self.sort, Some(ReportOrder::Children | ReportOrder::ChildrenTime))
    }

    const fn has_time(&self) -> bool {
        self.time || self.is_sorted_by_time()
    }

    /// Returns the rows of a trace.
    fn rows<'a>(
        &'a self,
        symbols: &'a TracedSymbols,
        unnamed: &'a UnnamedFunctions,
        thread: &'a str,
    ) -> TraceRows<'a> {
        TraceRows { wanted: self.wanted(), symbols, unnamed, thread }
    }

    /// Counts the instructions and branches of each thread.
    fn add(&self, traced: &Traced, counted: &mut ReportSums, progress: &mut Progress) -> Result<()> {
        let loaded = LoadedSession::load(&self.input, traced, progress)?;
        let sections = loaded.sections();
        let session = loaded.session(&sections);
        let lanes = 0..loaded.lanes.len();
        let symbols = lanes.clone().map(|lane| loaded.symbols(lane, &self.input, &self.input.symbols));
        let symbols = symbols.collect::<Result<Vec<_>>>()?;
        let titles: Vec<_> = loaded.lanes.iter().map(|lane| title(lane.part.as_ref(), traced)).collect();
        let unnamed_in = |executed: &[Executed]| -> Vec<_> {
            let lanes = executed.iter().zip(&symbols);
            lanes.map(|(executed, symbols)| UnnamedFunctions::of(executed, symbols)).collect()
        };
        let follows = if self.has_time() { loaded.clock.is_timed() } else { self.has_children() };
        if !follows {
            let executed = Executed::of_loaded(&loaded, &session, progress);
            ensure!(
                !self.has_time() || executed.iter().all(|executed| executed.insns.is_empty()),
                "{}: {}: the trace has no TSC packets (`pugmark record --time`)",
                self.time_option(),
                titles[0]
            );
            let unnamed = unnamed_in(&executed);
            let lanes = executed.iter().zip(&unnamed).enumerate();
            lanes.for_each(|(lane, (executed, unnamed))| {
                counted.add(executed, &self.rows(&symbols[lane], unnamed, &titles[lane]))
            });
            return Ok(());
        }
        let clock = if self.has_time() { loaded.shown_clock() } else { TraceClock::INSTRUCTIONS };
        let mut unnamed = vec![UnnamedFunctions::default(); symbols.len()];
        loop {
            let sums_of =
                |lane: usize| CallerSums::new(self.rows(&symbols[lane], &unnamed[lane], &titles[lane]));
            let mut sums: Vec<_> = lanes.clone().map(sums_of).collect();
            let walked =
                sums.iter_mut().zip(&symbols).map(|(visitor, names)| WalkedLane { names, visitor }).collect();
            let (times, executed): (Vec<_>, Vec<_>) = walk_lanes(&session, clock, true, progress, walked)
                .into_iter()
                .map(|WalkEnd { time, counted, .. }| (time, counted.map(Executed::of).unwrap_or_default()))
                .unzip();
            let found: Vec<_> = sums.iter().map(|sums| sums.unnamed().0.clone()).collect();
            // Of functions that no file tells, and that were executed before they were called, the rows are known only
            // now: a second walk knows all of them.
            if sums.iter().any(|sums| sums.unnamed().1) {
                drop(sums);
                unnamed = found;
                continue;
            }
            let errors = executed.iter().map(|executed: &Executed| executed.errors).sum();
            counted.errors += loaded.misses(times.iter().map(|time| time.insns).sum(), errors);
            for (lane, (sums, time)) in sums.into_iter().zip(times).enumerate() {
                counted.add(&executed[lane], &self.rows(&symbols[lane], &found[lane], &titles[lane]));
                counted.add_sums(sums, time, self.has_time().then_some(clock.unit))?;
            }
            break;
        }
        Ok(())
    }

    /// Sorts the rows, and leaves out those that are not wanted.
    fn report(&self, counted: ReportSums) -> FunctionReport {
        let ReportSums { rows, functions, instructions, branches, errors, time, unit } = counted;
        let selected = rows.values().map(|counts| counts.instructions).sum();
        let (by_time, children, has_time) = (self.is_sorted_by_time(), self.has_children(), self.has_time());
        let share = |instructions_of, time_of| {
            if by_time { percent_of(time_of, time) } else { percent_of(instructions_of, instructions) }
        };
        let row = |(keys, mut counts): (Keys, Counts)| {
            let Counts { instructions_with_children: whole, time, time_with_children, .. } = &mut counts;
            *whole = children.then(|| whole.unwrap_or_default());
            *time = has_time.then(|| time.unwrap_or_default());
            *time_with_children = (children && has_time).then(|| time_with_children.unwrap_or_default());
            let whole = whole.map(|whole| share(whole, time_with_children.unwrap_or_default()));
            Row {
                percent: share(counts.instructions, counts.time.unwrap_or_default()),
                percent_with_children: whole,
                function_of_line: self
                    .wanted()
                    .names_functions_of_lines()
                    .then(|| most(functions.get(&keys))),
                names: KEYS
                    .iter()
                    .zip(keys)
                    .filter_map(|((_, column), name)| Some((*column, name?)))
                    .collect(),
                counts,
            }
        };
        let mut rows: Vec<Row> = rows.into_iter().map(row).collect();
        let order = self.order();
        rows.retain(|row| match order {
            ReportOrder::Children | ReportOrder::ChildrenTime => {
                row.percent_with_children.is_some_and(|percent| percent >= self.percent_limit)
            }
            _ => row.percent >= self.percent_limit,
        });
        // Equal ones stay in the order of their names.
        rows.sort_by_key(|row| {
            let Counts { instructions, branches, calls, .. } = row.counts;
            Reverse(match order {
                ReportOrder::Instructions => instructions,
                ReportOrder::Branches => branches,
                ReportOrder::Calls => calls,
                ReportOrder::Children => row.counts.instructions_with_children.unwrap_or_default(),
                ReportOrder::Time => row.counts.time.unwrap_or_default(),
                ReportOrder::ChildrenTime => row.counts.time_with_children.unwrap_or_default(),
            })
        });
        FunctionReport {
            instructions,
            branches,
            selected_instructions: self.wanted().are_some().then_some(selected),
            time: has_time.then_some(time),
            time_unit: unit.map(Unit::name),
            errors,
            rows,
            columns: ReportColumns {
                children,
                time: has_time.then_some(unit.unwrap_or(Unit::Nanoseconds)),
                names: KEYS.iter().filter(|(key, _)| self.by.contains(key)).map(|(_, name)| *name).collect(),
                functions_of_lines: self.wanted().names_functions_of_lines(),
            },
        }
    }
}

/// Returns the function with the most instructions, and the number of others.
fn most(functions: Option<&BTreeMap<String, u64>>) -> String {
    let functions = functions.into_iter().flatten();
    // Of equal ones the first.
    let most = functions.clone().rev().max_by_key(|(_, count)| **count);
    let Some((name, _)) = most else { return UNKNOWN.into() };
    match functions.count() - 1 {
        0 => name.clone(),
        others => format!("{name} and {others} more"),
    }
}

impl ReportSums {
    /// Adds the instructions and branches of a trace.
    fn add(&mut self, executed: &Executed, rows: &TraceRows<'_>) {
        self.errors += executed.errors;
        for (ip, count) in &executed.insns {
            self.instructions += count;
            let Some(keys) = rows.own(*ip) else { continue };
            if rows.wanted.names_functions_of_lines() {
                self.add_function(rows.function_of_line(*ip), &keys, *count);
            }
            self.rows.entry(keys).or_default().instructions += count;
        }
        for ((from, to), count) in &executed.edges {
            self.branches += count;
            if let Some(keys) = rows.own(*from) {
                self.rows.entry(keys).or_default().branches += count;
            }
            let begins = match rows.symbols.function(*to) {
                Some((_, offset)) => offset == 0,
                None => rows.unnamed.begin(*to, rows.symbols) == Some(*to),
            };
            if !begins {
                continue;
            }
            // A jump to another function is a tail call; one within its function is a loop.
            let begin = match rows.symbols.function(*from) {
                Some((_, offset)) => Some(from.wrapping_sub(offset)),
                None => rows.unnamed.begin(*from, rows.symbols),
            };
            let inside = begin == Some(*to);
            if executed.calls.contains(from) || !inside {
                let Some(keys) = rows.own(*to) else { continue };
                self.rows.entry(keys).or_default().calls += count;
            }
        }
    }

    /// Adds instructions of a function to a line.
    fn add_function(&mut self, name: String, keys: &Keys, count: u64) {
        match self.functions.get_mut(keys) {
            Some(functions) => *functions.entry(name).or_default() += count,
            None => drop(self.functions.insert(keys.clone(), [(name, count)].into())),
        }
    }

    /// Adds the costs of rows in a trace. `unit` is the unit of time, if time is counted.
    fn add_sums(&mut self, sums: CallerSums<'_>, end: Time, unit: Option<Unit>) -> Result<()> {
        ensure!(
            self.unit.is_none() || self.unit == unit,
            "some of the traces have nanoseconds, others ticks: look at them one by one"
        );
        self.unit = unit;
        let (rows, all) = sums.finish(end);
        self.time += if unit.is_some() { all.at } else { 0 };
        for (keys, took) in rows {
            let counts = self.rows.entry(keys).or_default();
            *counts.instructions_with_children.get_or_insert(0) += took.whole.insns;
            *counts.time.get_or_insert(0) += took.own.at;
            *counts.time_with_children.get_or_insert(0) += took.whole.at;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
