//! `pugmark report`: how often the instructions of each function, line of source, object file or thread were executed.

use super::{
    coverage::Executed,
    options::Input,
    progress::Progress,
    recording::Traced,
    symbols::{SourcePlace, TracedSymbols},
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
  pugmark report --by line a.rec                      the lines of source with the most instructions first
  pugmark report --by inlined,line a.rec              the same, with the functions that they were inlined from
  pugmark report --by object,thread --csv a.rec       a table for other programs
  pugmark report --sort calls --percent-limit 1 --symfs root perf.data"
)]
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

/// What has no name.
const UNKNOWN: &str = "[unknown]";

/// What is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Key {
    Thread,
    Object,
    Function,
    Inlined,
    Line,
}

/// All of them, in the order of the columns.
const KEYS: [(Key, &str); 5] = [
    (Key::Thread, "thread"),
    (Key::Object, "object"),
    (Key::Function, "function"),
    (Key::Inlined, "inlined"),
    (Key::Line, "line"),
];

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

/// A row of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    #[serde(flatten)]
    counts: Counts,
    percent: f64,
    #[serde(flatten)]
    names: BTreeMap<&'static str, String>,
}

/// All rows.
#[derive(Clone, Debug, Default, Serialize)]
struct FunctionReport {
    instructions: u64,
    branches: u64,
    errors: usize,
    rows: Vec<Row>,
}

/// What a row is for, as far as it is wanted.
type Keys = [Option<String>; KEYS.len()];

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
        KEYS.map(|(key, _)| {
            by.contains(&key).then(|| match key {
                Key::Thread => thread.to_owned(),
                Key::Object => place.object.unwrap_or(UNKNOWN).to_owned(),
                Key::Function => place.function.map_or(UNKNOWN, |(name, _)| name).to_owned(),
                Key::Inlined => inlined(&symbols.source(ip)).unwrap_or_else(|| UNKNOWN.into()),
                Key::Line => symbols.line(ip).map_or_else(|| UNKNOWN.into(), |line| line.to_string()),
            })
        })
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

/// The innermost function of the source, and whether the compiler has put it into another.
fn inlined(source: &[SourcePlace]) -> Option<String> {
    let name = source.first()?.function.as_ref()?;
    Some(if source.len() > 1 { format!("{name} (inlined)") } else { name.clone() })
}

impl ReportOptions {
    /// Sorts the rows, and leaves out those that are not wanted.
    fn report(&self, counts: BTreeMap<Keys, Counts>, errors: usize) -> FunctionReport {
        let sum = |field: fn(&Counts) -> u64| counts.values().map(field).sum();
        let (instructions, branches) = (sum(|counts| counts.instructions), sum(|counts| counts.branches));
        let row = |(keys, counts): (Keys, Counts)| Row {
            counts,
            percent: counts.instructions as f64 * 100.0 / (instructions as f64).max(1.0),
            names: KEYS.iter().zip(keys).filter_map(|((_, column), name)| Some((*column, name?))).collect(),
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
    /// The names that the row is for, with their columns.
    fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        KEYS.iter().filter_map(|(_, column)| Some((*column, &**self.names.get(column)?)))
    }
}

impl FunctionReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:>7}  {:>14}  {:>12}  {:>10}", "percent", "instructions", "branches", "calls")?;
        for row in &self.rows {
            let Counts { instructions, branches, calls } = row.counts;
            write!(out, "{:>7.2}  {instructions:>14}  {branches:>12}  {calls:>10}", row.percent)?;
            for (_, name) in row.names() {
                write!(out, "  {name}")?;
            }
            writeln!(out)?;
        }
        let Self { instructions, branches, errors, .. } = self;
        writeln!(out, "in all: {instructions} instructions, {branches} branches, {errors} errors")
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "percent,instructions,branches,calls")?;
        for (column, _) in self.rows.first().into_iter().flat_map(Row::names) {
            write!(out, ",{column}")?;
        }
        writeln!(out)?;
        for row in &self.rows {
            let Counts { instructions, branches, calls } = row.counts;
            write!(out, "{:.4},{instructions},{branches},{calls}", row.percent)?;
            for (_, name) in row.names() {
                write!(out, ",\"{}\"", name.replace('"', "\"\""))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::cli::{Cli, PugmarkCommand};
    use clap::Parser;

    fn options(words: &str) -> ReportOptions {
        let words = format!("pugmark report {words} trace");
        match Cli::parse_from(words.split_whitespace()).command {
            PugmarkCommand::Report(options) => options,
            other => panic!("{other:?}"),
        }
    }

    /// `a` is at 1000, `b` at 1020, both in `/x`; of 5000 nothing is known. The instruction at 1004 is a call.
    fn counted(by: &str) -> BTreeMap<Keys, Counts> {
        let symbols =
            TracedSymbols::known(&[("a", 0x1000, 0x1010), ("b", 0x1020, 0x1030)], &[("/x", 0x1000, 0x2000)]);
        let executed = Executed {
            insns: [(0x1000, 2), (0x1004, 3), (0x1020, 5), (0x5000, 1)].into(),
            edges: [
                ((0x1004, 0x1020), 20),
                // A branch that is not taken or leads into the function is no call.
                ((0x1008, 0x100a), 300),
                ((0x1008, 0x1024), 1000),
                // A loop to where the function begins is none; a jump to another function is one.
                ((0x1028, 0x1020), 4000),
                ((0x102a, 0x1000), 50_000),
                ((0x5000, 0x1000), 600_000),
            ]
            .into(),
            calls: [0x1004].into(),
            errors: 0,
        };
        let mut counts = BTreeMap::new();
        add(&executed, &symbols, "thread", &options(by).by, &mut counts);
        counts
    }

    fn keys(thread: Option<&str>, object: Option<&str>, function: Option<&str>) -> Keys {
        [thread, object, function, None, None].map(|name| name.map(Into::into))
    }

    fn counts(instructions: u64, branches: u64, calls: u64) -> Counts {
        Counts { instructions, branches, calls }
    }

    #[test]
    fn instructions_and_branches_count_where_they_are_and_calls_where_they_lead() {
        let unknown = Some("[unknown]");
        let expected = [
            (keys(Some("thread"), Some("/x"), Some("a")), counts(5, 1320, 650_000)),
            (keys(Some("thread"), Some("/x"), Some("b")), counts(5, 54_000, 20)),
            (keys(Some("thread"), unknown, unknown), counts(1, 600_000, 0)),
        ];
        assert_eq!(counted("--by function,object,thread"), expected.into());
        let expected = [
            (keys(None, Some("/x"), None), counts(10, 55_320, 650_020)),
            (keys(None, unknown, None), counts(1, 600_000, 0)),
        ];
        assert_eq!(counted("--by object"), expected.into());
        let expected = [(keys(Some("thread"), None, None), counts(11, 655_320, 650_020))];
        assert_eq!(counted("--by thread"), expected.into());
        // A recursion is a call, though it stays in its function.
        let symbols = TracedSymbols::known(&[("a", 0x1000, 0x1010)], &[]);
        let executed =
            Executed { edges: [((0x1004, 0x1000), 7)].into(), calls: [0x1004].into(), ..Executed::default() };
        let mut found = BTreeMap::new();
        add(&executed, &symbols, "", &[Key::Function], &mut found);
        assert_eq!(found, [(keys(None, None, Some("a")), counts(0, 7, 7))].into());
    }

    #[test]
    fn the_largest_comes_first_and_the_smallest_may_be_left_out() {
        let rows = [
            ("a", counts(30, 1, 3)),
            ("b", counts(60, 2, 1)),
            ("c", counts(10, 3, 2)),
            ("d", counts(0, 3, 0)),
        ];
        let table = || rows.iter().map(|(name, counts)| (keys(None, None, Some(name)), *counts)).collect();
        for (words, names) in [
            ("", "b a c d"),
            ("--sort instructions", "b a c d"),
            ("--sort branches", "c d b a"),
            ("--sort calls", "a c b d"),
            ("--percent-limit 10", "b a c"),
            ("--percent-limit 10.1", "b a"),
            ("--percent-limit 60", "b"),
        ] {
            let report = options(words).report(table(), 4);
            let found: Vec<&str> = report.rows.iter().flat_map(Row::names).map(|(_, name)| name).collect();
            assert_eq!(found.join(" "), names, "{words}");
            // What is left out still counts.
            assert_eq!((report.instructions, report.branches, report.errors), (100, 9, 4));
            assert!(
                report.rows.iter().all(|row| (row.percent - row.counts.instructions as f64).abs() < 1e-9)
            );
        }
        let nothing = options("").report([(keys(None, None, Some("a")), counts(0, 0, 0))].into(), 0);
        assert_eq!(nothing.rows[0].percent.to_bits(), 0);
        for (text, accepted) in [("0", true), ("100", true), ("-1", false), ("100.5", false), ("x", false)] {
            assert_eq!(percent(text).is_ok(), accepted, "{text}");
        }
    }

    #[test]
    fn a_table_is_for_people_or_with_commas() {
        let table = [
            (keys(Some("one"), Some("/x \"y\""), Some("f<a, b>")), counts(2, 3, 4)),
            (keys(Some("one"), Some("/z"), Some("g")), counts(1, 0, 5)),
        ];
        let text = |report: &FunctionReport, csv| {
            let mut out = vec![];
            if csv { report.csv(&mut out) } else { report.text(&mut out) }.unwrap();
            String::from_utf8(out).unwrap()
        };
        let report = options("").report(table.into(), 6);
        assert_eq!(
            text(&report, false),
            "percent    instructions      branches       calls\n  66.67               2             3           4  \
             one  /x \"y\"  f<a, b>\n  33.33               1             0           5  one  /z  g\n\
             in all: 3 instructions, 3 branches, 6 errors\n"
        );
        assert_eq!(
            text(&report, true),
            "percent,instructions,branches,calls,thread,object,function\n\
             66.6667,2,3,4,\"one\",\"/x \"\"y\"\"\",\"f<a, b>\"\n33.3333,1,0,5,\"one\",\"/z\",\"g\"\n"
        );
        let report = options("").report([(keys(None, Some("/x"), None), counts(2, 3, 4))].into(), 0);
        assert_eq!(
            text(&report, true),
            "percent,instructions,branches,calls,object\n100.0000,2,3,4,\"/x\"\n"
        );
    }
}
