//! `pugmark stat`: exact counts of what a program executes, without a trace.

use super::{
    record::{FAILED, status},
    report::{KEYS, Key, Keys, TraceRows, UnnamedFunctions, WantedRows},
    wanted_function::WantedFunction,
};
use crate::digits::Digits;
use crate::{
    output::tell,
    symbols::{MappedPart, SymbolFiles, TracedSymbols},
    text::printable,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use pugmark_recorder::{Counted, CountedThread, Ending, Engine, NotFollowed, RecordOptions, count};
use serde_json::{Value, json};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    str::FromStr,
};

/// The options of `pugmark stat`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
What is printed goes to the standard error, or to the file of --output. The exit status is the program's, or 124 if
more was executed than --at-most allows.

Examples:
  pugmark stat -- ls -l                                       in all, with threads and children
  pugmark stat --by function --top 10 -- gzip -k notes        the functions with the most instructions
  pugmark stat --by line --json -o counts.json -- ./test
  pugmark stat --at-most instructions=2000000 -- ./test       a test that fails if it becomes slower
  pugmark stat --at-most parse:instructions=50000 -- ./test   the same for one function")]
pub struct StatCommand {
    /// By function, line, inlined, object, thread; several with commas
    #[arg(long, value_enum, value_delimiter = ',', hide_possible_values = true)]
    by: Vec<Key>,
    /// Only the N rows with the most instructions
    #[arg(long, value_name = "N", requires = "by")]
    top: Option<usize>,
    /// Exit with 124 above instructions=N, branches=N, calls=N or FUNCTION:calls=N; repeatable
    #[arg(long, value_name = "COUNT=N")]
    at_most: Vec<AtMost>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write into this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Count only the main thread, not the threads and processes that it starts
    #[arg(long)]
    main_only: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The most of a count that is good.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AtMost {
    /// The function whose count it is, if it is not that of all.
    function: Option<String>,
    what: &'static str,
    most: u64,
}

/// The exit status if more was executed than is good.
const TOO_MUCH: u8 = 124;

/// The counts of a row, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StatCounts {
    instructions: u64,
    branches: u64,
    calls: u64,
    /// Executions of the first instruction of a function.
    entered: u64,
}

impl StatCounts {
    /// Returns the columns of a total.
    fn totals(&self) -> [(&'static str, u64); 3] {
        [("instructions", self.instructions), ("branches", self.branches), ("calls", self.calls)]
    }

    /// Returns the count of this name; for a function, also how often it was entered.
    fn of(&self, what: &str) -> u64 {
        let found = self.totals().into_iter().find(|(name, _)| *name == what);
        found.map_or(self.entered, |(_, count)| count)
    }
}

impl FromStr for AtMost {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let names = StatCounts::default().totals().map(|(name, _)| name);
        let (name, most) = text.rsplit_once('=').with_context(|| format!("not {}=N", names.join("=N, ")))?;
        let (function, name) = match name.rsplit_once(':') {
            Some((function, name)) => (Some(function.to_owned()), name),
            None => (None, name),
        };
        let entered = function.is_some().then_some("entered");
        let what = names.into_iter().chain(entered).find(|known| *known == name);
        let what = what.with_context(|| format!("there is no count `{name}`, but {}", names.join(", ")))?;
        Ok(Self { function, what, most: most.parse().with_context(|| format!("`{most}` is no number"))? })
    }
}

/// Runs `pugmark stat`. The exit status is the program's, or 128 and the signal's number if a signal ended it.
///
/// # Errors
/// If the program cannot be counted, or the output cannot be written.
pub fn run(command: &StatCommand) -> Result<u8> {
    let options = RecordOptions {
        engine: Engine::Emulator,
        follow: !command.main_only,
        signals: true,
        ..RecordOptions::new(command.program.iter().cloned())
    };
    let counted = count(&options)?;
    let (rows, all) = rows(&command.by, &counted);
    let rows = sorted(rows, command.top);
    match &command.output {
        Some(path) => {
            let write = || {
                let mut out = BufWriter::new(File::create(path)?);
                command.write(&mut out, Digits::PLAIN, (&rows, all), &counted)?;
                out.flush()
            };
            write().with_context(|| format!("{}", path.display()))?;
        }
        None => {
            let digits = Digits::on_stderr();
            command.write(&mut io::stderr().lock(), digits, (&rows, all), &counted)?;
        }
    }
    let too_much = too_much(&command.at_most, &counted, all)?;
    too_much.iter().for_each(|message| tell(format_args!("pugmark: {message}")));
    if counted.threads.iter().all(|thread| thread.instructions.is_empty()) {
        bail!("nothing was counted");
    }
    Ok(if too_much.is_empty() { status(counted.ending) } else { TOO_MUCH })
}

/// Returns a message about each count that is too large.
fn too_much(at_most: &[AtMost], counted: &Counted, all: StatCounts) -> Result<Vec<String>> {
    let mut functions = BTreeMap::<String, StatCounts>::new();
    if at_most.iter().any(|at_most| at_most.function.is_some()) {
        for (keys, counts) in rows(&[Key::Function], counted).0 {
            functions.extend(keys.into_iter().flatten().map(|name| (name, counts)));
        }
    }
    let mut over = vec![];
    for AtMost { function, what, most } in at_most {
        let (count, of) = match function {
            None => (all.of(what), String::new()),
            Some(name) => match functions.get(name) {
                Some(counts) => (counts.of(what), format!(" of {name}")),
                None => {
                    let names = functions.into_keys().collect();
                    return WantedFunction::from(&**name).was_not("--at-most", "was executed", &names);
                }
            },
        };
        if count > *most {
            over.push(format!("{count} {what}{of}, which is more than {most}"));
        }
    }
    Ok(over)
}

/// Returns what the counts lack, and how the program ended.
fn notes(counted: &Counted) -> Vec<String> {
    let mut notes = vec![];
    let lists = [
        (&counted.killed, "was killed: its counts are not known"),
        (
            &counted.handling_faults,
            "handles faults of its own instructions: each fault counts the rest of its block, too",
        ),
    ];
    for (pids, text) in lists {
        notes.extend(pids.iter().map(|pid| format!("warning: process {pid} {text}")));
    }
    if counted.uncounted > 0 {
        notes.push(format!("warning: {} threads or processes were not counted", counted.uncounted));
    }
    let program = |NotFollowed { pid, program }: &NotFollowed| {
        format!("warning: process {pid} executed {program}: it and what it starts are not counted")
    };
    notes.extend(counted.not_followed.iter().map(program));
    match counted.ending {
        Ending::Signal(signal) => notes.push(format!(
            "the program was ended by signal {signal}: the block of instructions at its end counts whole"
        )),
        Ending::Exit(0) | Ending::GoesOn => {}
        Ending::Exit(status) => notes.push(format!("the program ended with status {status}")),
    }
    notes
}

/// Sums up the threads: by rows, and in all.
fn rows(by: &[Key], counted: &Counted) -> (BTreeMap<Keys, StatCounts>, StatCounts) {
    let (mut files, unnamed) = (SymbolFiles::default(), UnnamedFunctions::default());
    let (mut rows, mut all) = (BTreeMap::<Keys, StatCounts>::new(), StatCounts::default());
    for thread in &counted.threads {
        let symbols = if by.is_empty() { TracedSymbols::default() } else { symbols(thread, &mut files) };
        let title = title(thread);
        let wanted = WantedRows { by, object: None, function: None };
        let names = TraceRows { wanted, symbols: &symbols, unnamed: &unnamed, thread: &title };
        let mut add = |ip: u64, add: &dyn Fn(&mut StatCounts)| {
            add(&mut all);
            if let Some(keys) = names.own(ip).filter(|_| !by.is_empty()) {
                add(rows.entry(keys).or_default());
            }
        };
        for &(ip, count) in &thread.instructions {
            let begins = symbols.begin(ip) == Some(ip);
            add(ip, &|counts| {
                counts.instructions += count;
                counts.entered += if begins { count } else { 0 };
            });
        }
        thread.branches.iter().for_each(|(ip, count)| add(*ip, &|counts| counts.branches += count));
        thread.calls.iter().for_each(|(ip, count)| add(*ip, &|counts| counts.calls += count));
    }
    (rows, all)
}

/// Finds the names of the code that a thread had.
fn symbols(thread: &CountedThread, files: &mut SymbolFiles) -> TracedSymbols {
    let mut symbols = TracedSymbols::default();
    for (file, offset, start, length) in &thread.mapped {
        let place = *start..start.saturating_add(*length);
        symbols.add_mapping(&MappedPart { file: Path::new(file), offset: *offset, place }, None, files);
    }
    symbols.add_runtime(thread.thread.pid, &[], Path::new("/"), files);
    symbols
}

fn title(CountedThread { thread, program, .. }: &CountedThread) -> String {
    printable(&format!("{} (pid {}, tid {}), {program}", thread.comm, thread.pid, thread.tid)).into_owned()
}

/// Sorts rows, those with the most instructions first.
fn sorted(rows: BTreeMap<Keys, StatCounts>, top: Option<usize>) -> Vec<(Keys, StatCounts)> {
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, counts)| Reverse(counts.instructions));
    rows.truncate(top.unwrap_or(usize::MAX));
    rows
}

impl StatCommand {
    fn write(
        &self,
        out: &mut dyn Write,
        digits: Digits,
        (rows, all): (&[(Keys, StatCounts)], StatCounts),
        counted: &Counted,
    ) -> io::Result<()> {
        let notes = notes(counted);
        if self.json {
            return writeln!(out, "{}", json(rows, all, counted, &notes));
        }
        let widths = [14, 12, 10, 10].map(|width| digits.width(width));
        if !self.by.is_empty() {
            write!(out, "{:>7}", "percent")?;
            for (heading, width) in ["instructions", "branches", "calls", "entered"].iter().zip(widths) {
                write!(out, "  {heading:>width$}")?;
            }
            writeln!(out)?;
        }
        for (keys, counts) in rows {
            let StatCounts { instructions, branches, calls, entered } = counts;
            let percent = *instructions as f64 * 100.0 / all.instructions.max(1) as f64;
            write!(out, "{percent:>7.2}")?;
            for (count, width) in [instructions, branches, calls, entered].into_iter().zip(widths) {
                write!(out, "  {:>width$}", digits.of(*count))?;
            }
            keys.iter().flatten().try_for_each(|name| write!(out, "  {name}"))?;
            writeln!(out)?;
        }
        let totals = all.totals().map(|(name, count)| format!("{} {name}", digits.of(count)));
        writeln!(out, "in all: {}, {} threads", totals.join(", "), counted.threads.len())?;
        notes.iter().try_for_each(|note| writeln!(out, "{note}"))
    }
}

fn json(rows: &[(Keys, StatCounts)], all: StatCounts, counted: &Counted, notes: &[String]) -> Value {
    let row = |(keys, counts): &(Keys, StatCounts)| {
        let mut row = json!({ "entered": counts.entered });
        for (name, count) in counts.totals() {
            row[name] = count.into();
        }
        for ((_, column), name) in KEYS.iter().zip(keys) {
            if let Some(name) = name {
                row[*column] = name.as_str().into();
            }
        }
        row
    };
    let ending = match counted.ending {
        Ending::Exit(status) => json!({ "exit": status }),
        Ending::Signal(signal) => json!({ "signal": signal }),
        Ending::GoesOn => Value::Null,
    };
    let mut object = json!({
        "threads": counted.threads.len(),
        "ending": ending,
        "notes": notes,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    });
    for (name, count) in all.totals() {
        object[name] = count.into();
    }
    object
}

/// Returns the exit status for a run that has failed.
#[must_use]
pub fn failure(error: &anyhow::Error) -> u8 {
    if error.is::<pugmark_recorder::RecordError>() { super::record::failure(error) } else { FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted() -> Counted {
        let thread = CountedThread {
            instructions: vec![(0x1000, 5), (0x1001, 5), (0x1002, 4)],
            branches: vec![(0x1002, 4)],
            calls: vec![(0x1001, 1)],
            ..CountedThread::default()
        };
        Counted {
            threads: vec![thread.clone(), thread],
            ending: Ending::Exit(0),
            not_followed: vec![],
            uncounted: 0,
            killed: vec![],
            handling_faults: vec![],
        }
    }

    #[test]
    fn threads_are_added_up_and_rows_are_of_what_is_asked_for() {
        let counted = counted();
        let (none, all) = rows(&[], &counted);
        assert_eq!((none.len(), all.totals().map(|(_, count)| count)), (0, [28, 8, 2]));
        let (by_thread, _) = rows(&[Key::Function], &counted);
        let rows = sorted(by_thread, None);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].1.instructions, rows[0].1.entered), (28, 0));
        assert_eq!(json(&rows, all, &counted, &[])["rows"][0]["instructions"], 28);
    }

    #[test]
    fn more_than_is_good_is_said() {
        let all = StatCounts { instructions: 10, branches: 3, calls: 1, entered: 0 };
        let limits = ["instructions=10", "branches=2", "calls=0"].map(|text| text.parse().unwrap());
        assert_eq!(
            too_much(&limits, &counted(), all).unwrap(),
            ["3 branches, which is more than 2", "1 calls, which is more than 0"]
        );
        let of_function = "std::f:entered=4".parse::<AtMost>().unwrap();
        assert_eq!((of_function.function.as_deref(), of_function.what), (Some("std::f"), "entered"));
        for wrong in ["instructions", "cycles=3", "calls=x", "calls=", "entered=1", "f:cycles=1", "f:calls"] {
            assert!(wrong.parse::<AtMost>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_counts_lack_is_said() {
        assert_eq!(notes(&counted()), [""; 0]);
        let lacking = Counted {
            killed: vec![7],
            handling_faults: vec![8],
            uncounted: 2,
            not_followed: vec![NotFollowed { pid: 9, program: "/bin/old".into() }],
            ending: Ending::Signal(11),
            ..counted()
        };
        let words = ["process 7", "process 8", "2 threads", "/bin/old", "signal 11"];
        for (note, word) in notes(&lacking).iter().zip(words) {
            assert!(note.contains(word), "{note}");
        }
        assert_eq!(notes(&lacking).len(), words.len());
    }
}
