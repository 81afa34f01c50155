//! `pugmark report`: how often the instructions of each function, object file or thread were executed.

use super::{
    coverage::Executed, options::Input, progress::Progress, recording::Traced, symbols::TracedSymbols,
};
use crate::output::{self, tell};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
};

/// The options of `pugmark report`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("layer", |layer| layer.hide(true)),
    mut_arg("threads", |threads| threads.hide(true)),
    after_help = "\
Examples:
  pugmark report a.rec                                the functions with the most instructions first
  pugmark report --by object,thread --csv a.rec       a table for other programs
  pugmark report --sort calls --percent-limit 1 --symfs root perf.data"
)]
pub struct ReportOptions {
    /// What a line is for: function, object, thread; several with commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "object,function",
        hide_possible_values = true
    )]
    by: Vec<Key>,
    /// What comes first: instructions, branches, calls
    #[arg(long, value_enum, default_value_t = ReportColumn::Instructions, hide_possible_values = true)]
    sort: ReportColumn,
    /// Leave out what has less than so many percent of the instructions
    #[arg(long, value_name = "N", default_value = "0", value_parser = percent)]
    percent_limit: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print a line of names, and then lines of values with commas between them
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    input: Input,
}

/// What is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Key {
    Function,
    Object,
    Thread,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportColumn {
    Instructions,
    Branches,
    Calls,
}

/// What was counted. Branches are taken or not; calls go to where a function begins, and are calls,
/// or jumps of other functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    instructions: u64,
    branches: u64,
    calls: u64,
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    #[serde(flatten)]
    counts: Counts,
    percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
}

/// All lines.
#[derive(Clone, Debug, Default, Serialize)]
struct FunctionReport {
    instructions: u64,
    branches: u64,
    errors: usize,
    rows: Vec<Row>,
}

/// The thread, object and function of a line, as far as they are wanted.
type Keys = [Option<String>; 3];

fn percent(text: &str) -> Result<f64> {
    let number: f64 = text.parse()?;
    ensure!((0.0..=100.0).contains(&number), "it is not between 0 and 100");
    Ok(number)
}

/// Runs `pugmark report`. The exit status is 1 if a trace has errors or nothing in it was executed.
///
/// # Errors
/// If there is no trace or no code, or the output cannot be written.
pub fn run(options: &ReportOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut counts: BTreeMap<Keys, Counts> = BTreeMap::new();
    let mut errors = 0;
    for traced in options.input.traces()? {
        let code = options.input.code(&traced)?;
        let trace = options.input.load(&traced, &mut progress)?;
        let mut executed = Executed::default();
        executed.add(&trace, &code, options.input.config(&traced)?, &mut progress);
        let symbols = TracedSymbols::of(&traced, &code, options.input.symfs.as_deref(), &[])?;
        errors += executed.errors;
        add(&executed, &symbols, &title(&traced), &options.by, &mut counts);
    }
    let report = options.report(counts, errors);
    let good = errors == 0 && report.instructions > 0;
    if !good {
        tell(format_args!(
            "pugmark: warning: the traces have errors, or no code was executed: `pugmark decode` says more"
        ));
    }
    if options.json {
        output::print(|out| writeln!(out, "{}", serde_json::to_string(&report)?))?;
    } else if options.csv {
        output::print(|out| report.csv(out))?;
    } else {
        output::page(|out| report.text(out))?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How a trace is named.
fn title(traced: &Traced) -> String {
    traced.part.as_ref().map_or_else(|| traced.trace.display().to_string(), |part| part.title())
}

/// Adds what was executed in a trace.
fn add(
    executed: &Executed,
    symbols: &TracedSymbols,
    thread: &str,
    by: &[Key],
    counts: &mut BTreeMap<Keys, Counts>,
) {
    let keys = |ip| -> Keys {
        let place = symbols.find(ip);
        let wanted = |key, text: &str| by.contains(&key).then(|| text.to_owned());
        [
            wanted(Key::Thread, thread),
            wanted(Key::Object, place.object.unwrap_or("[unknown]")),
            wanted(Key::Function, place.function.map_or("[unknown]", |(name, _)| name)),
        ]
    };
    for (ip, count) in &executed.insns {
        counts.entry(keys(*ip)).or_default().instructions += count;
    }
    for ((from, to), count) in &executed.edges {
        counts.entry(keys(*from)).or_default().branches += count;
        let Some((_, 0)) = symbols.find(*to).function else { continue };
        // A jump to another function is a tail call; one within its function is a loop.
        let inside = symbols.find(*from).function.is_some_and(|(_, offset)| from.wrapping_sub(offset) == *to);
        if executed.calls.contains(from) || !inside {
            counts.entry(keys(*to)).or_default().calls += count;
        }
    }
}

impl ReportOptions {
    /// Sorts the lines, and leaves out those that are not wanted.
    fn report(&self, counts: BTreeMap<Keys, Counts>, errors: usize) -> FunctionReport {
        let sum = |field: fn(&Counts) -> u64| counts.values().map(field).sum();
        let (instructions, branches) = (sum(|counts| counts.instructions), sum(|counts| counts.branches));
        let row = |([thread, object, function], counts): (Keys, Counts)| Row {
            counts,
            percent: counts.instructions as f64 * 100.0 / (instructions as f64).max(1.0),
            thread,
            object,
            function,
        };
        let mut rows: Vec<Row> = counts.into_iter().map(row).collect();
        rows.retain(|row| row.percent >= self.percent_limit);
        // Equal ones stay in the order of their names.
        rows.sort_by_key(|row| {
            Reverse(match self.sort {
                ReportColumn::Instructions => row.counts.instructions,
                ReportColumn::Branches => row.counts.branches,
                ReportColumn::Calls => row.counts.calls,
            })
        });
        FunctionReport { instructions, branches, errors, rows }
    }
}

impl Row {
    /// The names that the line is for.
    fn names(&self) -> impl Iterator<Item = &str> {
        [&self.thread, &self.object, &self.function].into_iter().flatten().map(String::as_str)
    }
}

impl FunctionReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:>7}  {:>14}  {:>12}  {:>10}", "percent", "instructions", "branches", "calls")?;
        for row in &self.rows {
            let Counts { instructions, branches, calls } = row.counts;
            write!(out, "{:>7.2}  {instructions:>14}  {branches:>12}  {calls:>10}", row.percent)?;
            for name in row.names() {
                write!(out, "  {name}")?;
            }
            writeln!(out)?;
        }
        let Self { instructions, branches, errors, .. } = self;
        writeln!(out, "in all: {instructions} instructions, {branches} branches, {errors} errors")
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "percent,instructions,branches,calls")?;
        if let Some(Row { thread, object, function, .. }) = self.rows.first() {
            for (key, name) in [(thread, "thread"), (object, "object"), (function, "function")] {
                if key.is_some() {
                    write!(out, ",{name}")?;
                }
            }
        }
        writeln!(out)?;
        for row in &self.rows {
            let Counts { instructions, branches, calls } = row.counts;
            write!(out, "{:.4},{instructions},{branches},{calls}", row.percent)?;
            for name in row.names() {
                write!(out, ",\"{}\"", name.replace('"', "\"\""))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}
