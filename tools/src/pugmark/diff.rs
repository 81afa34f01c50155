//! `pugmark diff`: the point where two runs part, and the counts of each function's instructions in both.

use super::{
    coverage::Executed,
    named_session::NamedSession,
    options::ViewInput,
    progress::{Progress, Size},
    recording::{IndexedPart, Traced},
    report::{Key, TraceRows, UnnamedFunctions, WantedRows},
    verdict::Verdict,
    visitors::{CallEvent, Time, TraceClock},
};
use crate::digits::Digits;
use crate::output;
use crate::session::SliceSink;
use crate::symbols::TracedSymbols;
use anyhow::{Result, ensure};
use clap::Args;
use pugmark_decoder_core::{
    block_cache::{ExecutionSink, InstructionRun},
    event::Event,
    hash::AddressHash,
    image::{Asid, Image},
    insn::MAX_LEN,
};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    ops::Range,
    path::PathBuf,
    process::ExitCode,
};

/// The options of `pugmark diff`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("more", |more| more.index(3)),
    after_help = "\
Examples:
  pugmark diff good.rec bad.rec                       the first branch that went another way, and functions
  pugmark diff --object a.out good.rec bad.rec        the same, leaving libraries out
  pugmark diff --top 5 a/perf.data b/perf.data        the five functions that differ most

The exit status is 0 if all traces are the same, otherwise 1.")]
pub struct DiffOptions {
    /// The other run: with the same code at the same addresses
    #[arg(index = 2)]
    other: PathBuf,
    /// Compare only the instructions of this object file, such as a.out or libc.so.6
    #[arg(long, value_name = "FILE")]
    object: Option<String>,
    /// List at most N functions
    #[arg(long, alias = "limit", value_name = "N", default_value = "20")]
    top: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: ViewInput,
}

/// The result of comparing two runs.
#[derive(Clone, Debug, Default, Serialize)]
struct RunsDiffer {
    same: bool,
    traces: Vec<Parting>,
    /// The functions whose instructions were not executed equally often.
    functions: Vec<FunctionDiffers>,
    /// The number of instructions executed in each run.
    instructions: [u64; 2],
}

/// The point at which the traces of a thread part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Parting {
    title: String,
    /// The number of instructions before the first difference.
    common: u64,
    /// The last instruction that is the same in both.
    after: Option<String>,
    /// The instruction that follows in each; `None` where the trace ends. If both end here, the traces are the same.
    next: [Option<String>; 2],
    /// The functions that are open at this point, the innermost first: each with the place of its call.
    callers: Vec<String>,
}

/// The number of executed instructions of a function in each run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct FunctionDiffers {
    object: String,
    function: String,
    instructions: [u64; 2],
}

/// The columns of a row.
const COLUMNS: [Key; 2] = [Key::Object, Key::Function];

/// The instructions of each function in both runs, by its object file and name.
type CountsOfFunctions = BTreeMap<(String, String), [u64; 2]>;

/// The most bytes of a function that are compared with those of the other run.
const MOST_COMPARED: usize = 1 << 16;

/// Counts under one name the object files of two runs that lie in different folders: under that of the second run, if
/// no other file of one of the runs has the same name without folders.
fn pair_objects(counts: CountsOfFunctions) -> CountsOfFunctions {
    let objects = [0, 1].map(|number| -> BTreeSet<String> {
        let own = counts.iter().filter(|(_, counts)| counts[number] > 0);
        own.map(|((object, _), _)| object.clone()).collect()
    });
    let only = |object: &str, number: usize| -> Option<&String> {
        let name = object.rsplit('/').next();
        let mut same = objects[number].iter().filter(|other| other.rsplit('/').next() == name);
        same.next().filter(|_| same.next().is_none())
    };
    let mut paired = CountsOfFunctions::new();
    for ((object, function), [one, other]) in counts {
        let second = only(&object, 0).and_then(|_| only(&object, 1)).cloned().unwrap_or(object);
        let sum = paired.entry((second, function)).or_default();
        *sum = [sum[0] + one, sum[1] + other];
    }
    paired
}

/// Runs `pugmark diff`.
///
/// # Errors
/// If there is no trace or no code, the runs have different numbers of traces, or the output cannot be written.
pub fn run(options: &DiffOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    ensure!(options.input.more.is_empty(), "two runs are compared, each in one file or folder");
    let mut inputs = [options.input.clone(), options.input.clone()];
    inputs[1].trace = options.other.clone();
    let mut verdict = Verdict::default();
    let [traces, others] = inputs.each_ref().map(|input| input.traces(&mut verdict, &mut progress));
    let (traces, others) = (traces?, others?);
    ensure!(
        traces.len() == others.len(),
        "{} has {} traces and {} has {}: compare threads one by one, as in {}/2/trace.pt",
        inputs[0].trace.display(),
        traces.len(),
        inputs[1].trace.display(),
        others.len(),
        inputs[0].trace.display()
    );
    let mut found = RunsDiffer { same: true, ..RunsDiffer::default() };
    let mut counts = CountsOfFunctions::new();
    for pair in traces.iter().zip(&others) {
        let runs = [
            LoadedRun::load(&inputs[0], pair.0, &mut progress)?,
            LoadedRun::load(&inputs[1], pair.1, &mut progress)?,
        ];
        let parting = parting(&runs, options.object.as_deref(), &mut progress);
        found.same &= parting.next == [None, None];
        found.traces.push(parting);
        for (number, run) in runs.iter().enumerate() {
            verdict.errors += run.count(number, &runs[1 - number], &mut counts, &mut progress);
        }
    }
    let mut counts = pair_objects(counts);
    let row = |((object, function), instructions)| FunctionDiffers { object, function, instructions };
    if let Some(object) = &options.object {
        counts.retain(|(name, _), _| is_of(name, object));
        ensure!(!counts.is_empty(), "--object {object}: nothing in a file of that name was executed");
    }
    for number in [0, 1] {
        found.instructions[number] = counts.values().map(|counts| counts[number]).sum();
    }
    verdict.is_empty = found.instructions.contains(&0);
    counts.retain(|_, [one, other]| one != other);
    found.functions = counts.into_iter().map(row).collect();
    found.functions.sort_by_key(|row| Reverse(row.instructions[0].abs_diff(row.instructions[1])));
    output::page(|out| match options.json {
        true => writeln!(out, "{}", serde_json::to_string(&found)?),
        false => found.text(
            &inputs.each_ref().map(|input| input.trace.display().to_string()),
            options.top,
            Digits::on_stdout(),
            out,
        ),
    })?;
    let status = verdict.status();
    Ok(if found.same { status } else { ExitCode::FAILURE })
}

/// Returns true if an object file has this name, with or without folders.
pub(super) fn is_of(object: &str, name: &str) -> bool {
    object
        .strip_suffix(name.trim_start_matches("./"))
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// A trace, loaded for decoding.
struct LoadedRun {
    title: String,
    named: NamedSession,
}

impl LoadedRun {
    fn load(input: &ViewInput, traced: &Traced, progress: &mut Progress) -> Result<Self> {
        let title =
            traced.part.as_ref().map_or_else(|| traced.trace.display().to_string(), IndexedPart::title);
        let named = NamedSession::load(input, traced, &input.symbols, progress)?;
        ensure!(
            named.names.len() == 1,
            "{title}: it has {} threads and programs: only runs of one thread can be compared, such as `perf record \
             --per-thread` makes of a program without threads",
            named.names.len()
        );
        Ok(Self { title, named })
    }

    /// Adds the number of executed instructions of each function. Returns the number of errors. A function without a
    /// name has that of the same code in the other run.
    fn count(
        &self,
        number: usize,
        other: &Self,
        counts: &mut CountsOfFunctions,
        progress: &mut Progress,
    ) -> usize {
        let sections = self.named.loaded.sections();
        let mut executed = Executed::default();
        for lane in Executed::of_loaded(&self.named.loaded, &self.named.loaded.session(&sections), progress) {
            executed.add(lane);
        }
        let unnamed = UnnamedFunctions::of(&executed, self.names());
        let wanted = WantedRows { by: &COLUMNS, ..WantedRows::default() };
        let rows = TraceRows { wanted, symbols: self.names(), unnamed: &unnamed, thread: "" };
        let others = other.named.loaded.sections();
        let images = [Image::new(&sections[0]), Image::new(&others[0])];
        let mut names = FxHashMap::<u64, Option<&str>>::default();
        for (ip, count) in &executed.insns {
            let [_, object, function, ..] = rows.own(*ip).unwrap_or_default();
            let begin = unnamed.begin(*ip, self.names()).filter(|_| self.names().function(*ip).is_none());
            let named = begin
                .and_then(|begin| *names.entry(begin).or_insert_with(|| self.name_in(other, begin, images)));
            let function = named.map_or_else(|| function.unwrap_or_default(), str::to_owned);
            let key = (object.unwrap_or_default(), function);
            counts.entry(key).or_default()[number] += count;
        }
        executed.errors
    }

    /// Returns the name that another run has for a function at the same address with the same bytes.
    fn name_in<'a>(&self, other: &'a Self, begin: u64, images: [Image<'_>; 2]) -> Option<&'a str> {
        let (name, _) = other.names().function(begin).filter(|(_, offset)| *offset == 0)?;
        let extent = self.names().unnamed(begin).map_or(MAX_LEN as u64, |extent| extent.end - begin);
        let code = images.map(|image| {
            let mut bytes = vec![0; MOST_COMPARED.min(extent as usize)];
            let length = image.read(begin, Asid::default(), &mut bytes);
            bytes.truncate(length);
            bytes
        });
        (code[0] == code[1]).then_some(name)
    }

    fn names(&self) -> &TracedSymbols {
        &self.named.names[0]
    }

    /// Returns the place of an instruction, with its line of source if that is known.
    fn place(&self, ip: u64) -> String {
        let place = self.names().place(ip);
        self.names().line(ip).map_or_else(|| place.clone(), |line| format!("{place} ({})", line.short()))
    }
}

/// The number of instructions of which one hash is kept.
const CHUNK: u64 = 1 << 16;

/// A sink for the instructions of a run, of an object file or all. Errors are skipped.
struct RunInsns<'a> {
    symbols: &'a TracedSymbols,
    /// If set, only instructions of this object file are wanted.
    object: Option<&'a str>,
    /// The answers for instructions that were executed before.
    known: FxHashMap<u64, bool>,
    /// The number of instructions that were executed, and of those that were wanted.
    executed: u64,
    wanted: u64,
    /// The hash of each [`CHUNK`] of instructions, and of those that are left.
    chunks: Vec<AddressHash>,
    /// The instructions whose addresses are kept; and each address with the number of instructions executed before.
    kept_range: Range<u64>,
    kept: Vec<(u64, u64)>,
}

impl<'a> RunInsns<'a> {
    fn of(run: &'a LoadedRun, object: Option<&'a str>, kept_range: Range<u64>) -> Self {
        Self {
            symbols: run.names(),
            object,
            known: FxHashMap::default(),
            executed: 0,
            wanted: 0,
            chunks: vec![],
            kept_range,
            kept: vec![],
        }
    }

    fn is_wanted(&mut self, ip: u64) -> bool {
        let Self { symbols, object: Some(name), known, .. } = self else { return true };
        *known.entry(ip).or_insert_with(|| symbols.find(ip).object.is_some_and(|object| is_of(object, name)))
    }

    fn insn(&mut self, ip: u64) {
        if self.is_wanted(ip) {
            if self.wanted.is_multiple_of(CHUNK) {
                self.chunks.push(AddressHash::new());
            }
            self.chunks.iter_mut().last().into_iter().for_each(|hash| hash.add(ip));
            if self.kept_range.contains(&self.wanted) {
                self.kept.push((ip, self.executed));
            }
            self.wanted += 1;
        }
        self.executed += 1;
    }
}

impl SliceSink for RunInsns<'_> {
    const ENDS_EARLY: bool = true;

    fn is_done(&self) -> bool {
        !self.kept_range.is_empty() && self.wanted >= self.kept_range.end
    }
}

impl ExecutionSink for RunInsns<'_> {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        insns.for_each(|ip| self.insn(ip));
    }

    fn event(&mut self, _: &Event) {}
}

/// Finds where two runs part: first the chunk of instructions, then the instruction in it.
fn parting(runs: &[LoadedRun; 2], object: Option<&str>, progress: &mut Progress) -> Parting {
    let sections = runs.each_ref().map(|run| run.named.loaded.sections());
    let sessions = [0, 1].map(|number| runs[number].named.loaded.session(&sections[number]));
    let mut follow = |number: usize, kept: Range<u64>| {
        progress.begin("comparing", Size::Bytes(sessions[number].size()));
        let mut insns = [RunInsns::of(&runs[number], object, kept)];
        sessions[number].follow(&mut insns);
        progress.end();
        let [insns] = insns;
        insns
    };
    let all = [0, 1].map(|number| follow(number, 0..0));
    let chunks = all[0].chunks.iter().zip(&all[1].chunks).take_while(|(one, other)| one == other).count();
    // The last one before them is the last that is the same, if there is no other.
    let least = all[0].wanted.min(all[1].wanted);
    let from = (chunks as u64 * CHUNK).min(least).saturating_sub(1);
    let kept = [0, 1].map(|number| follow(number, from..from + CHUNK + 1).kept);
    let same = kept[0].iter().zip(&kept[1]).take_while(|((one, _), (other, _))| one == other).count();
    let common = from + same as u64;
    let after = same.checked_sub(1).map(|last| kept[0][last].0);
    let next = [0, 1].map(|number| kept[number].get(same).map(|(ip, _)| *ip));
    let before = kept[0].get(same).map_or(all[0].executed, |(_, executed)| *executed);
    let callers = if next == [None, None] { vec![] } else { runs[0].callers(before, progress) };
    let place = |number: usize, ip: Option<u64>| ip.map(|ip| runs[number].place(ip));
    Parting {
        title: runs[0].title.clone(),
        common,
        after: place(0, after),
        next: [place(0, next[0]), place(1, next[1])],
        callers,
    }
}

impl LoadedRun {
    /// Returns the calls that have not returned after the first `insns` instructions, the innermost first.
    fn callers(&self, insns: u64, progress: &mut Progress) -> Vec<String> {
        let (mut open, mut over): (Vec<Option<u64>>, bool) = (vec![], false);
        let visitor = |time: Time, what: CallEvent| {
            // Calls and returns at the first instruction that differs are not common to both runs.
            over |= time.insns >= insns;
            match what {
                _ if over => {}
                CallEvent::Enter { from, .. } | CallEvent::Again { from, .. } => open.push(from),
                CallEvent::Leave | CallEvent::Back => drop(open.pop()),
                _ => {}
            }
        };
        self.named.walk_by(TraceClock::INSTRUCTIONS, progress, &mut [visitor]);
        open.into_iter().rev().flatten().map(|from| self.place(from)).collect()
    }
}

impl RunsDiffer {
    fn text(&self, names: &[String; 2], limit: usize, digits: Digits, out: &mut dyn Write) -> io::Result<()> {
        for Parting { title, common, after, next, callers } in &self.traces {
            let Some(after) = after.as_ref().filter(|_| *next != [None, None]) else {
                let what = if *next == [None, None] { "the same" } else { "different from the first one on" };
                writeln!(out, "{title}: {} instructions, {what}", digits.of(*common))?;
                continue;
            };
            writeln!(out, "{title}: {} instructions are the same, up to {after}", digits.of(*common))?;
            callers.iter().try_for_each(|caller| writeln!(out, "    called at {caller}"))?;
            for (name, next) in names.iter().zip(next) {
                match next {
                    Some(next) => writeln!(out, "  {name} goes on at {next}")?,
                    None => writeln!(out, "  {name} ends")?,
                }
            }
        }
        let width = digits.width(14);
        if !self.functions.is_empty() {
            writeln!(out, "\n{:>width$}  {:>width$}  {:>width$}  function", names[0], names[1], "more")?;
        }
        for FunctionDiffers { object, function, instructions: [one, other] } in
            self.functions.iter().take(limit)
        {
            let sign = if other >= one { '+' } else { '-' };
            let more = format!("{sign}{}", digits.of(one.abs_diff(*other)));
            let [one, other] = [*one, *other].map(|count| digits.of(count));
            writeln!(out, "{one:>width$}  {other:>width$}  {more:>width$}  {function} ({object})")?;
        }
        let [one, other] = self.instructions.map(|count| digits.of(count));
        let more = self.functions.len().saturating_sub(limit);
        writeln!(out, "{one:>width$}  {other:>width$}  instructions in all; {more} functions more differ")
    }
}
