//! `pugmark coverage`: which code a trace has executed, and which it has not.

mod autofdo;
mod blocks;
mod bolt;
mod executed;
mod formats;
mod lcov;
mod minimise;
mod same_code;

use super::{
    code::TracedCode,
    code_names::{NameSources, names_of},
    loaded::LoadedSession,
    options::ViewInput,
    progress::Progress,
    recording::Traced,
    verdict::Verdict,
};
use crate::file::read_regular;
use crate::output::{self, tell};
use crate::source::perf_data::PerfData;
use crate::symbols::{self, DebugFolders, SourceLines, SymbolFiles, TracedSymbols};
use anyhow::{Context, Result, bail, ensure};
use autofdo::CompilerProfile;
use blocks::FileBlocks;
use clap::{Args, ValueEnum};
pub(crate) use executed::Executed;
use formats::Report;
use pugmark_decoder_core::block_cache::edges::EDGES;
use same_code::CodeOf;
use serde_json::json;
use std::{
    collections::BTreeSet,
    fs, iter,
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The options of `pugmark coverage`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark coverage a.rec                                      functions, and how much of each was executed
  pugmark coverage -f lines --diff new.rec old.rec            + the lines of source that only new.rec has executed
  pugmark coverage --added a.rec b.rec c.rec                  which of them has executed what the ones before have not
  pugmark coverage --minimise small recordings/*              copies few that have executed all that all of them have
  pugmark coverage --object libz.so.1 -f drcov -o a.drcov a.rec   of a library, for Lighthouse, bncov, Cartographer
  pugmark coverage -f lcov -o a.info a.rec                    lines of source, for genhtml
  pugmark coverage -f afl -o a.map a.rec                      a map of edges as fuzzers have it
  pugmark coverage -f autofdo -o a.prof a.rec                 for clang -fprofile-sample-use; bolt for llvm-bolt -pa")]
pub struct CoverageOptions {
    /// functions, blocks, lines, edges, drcov, lcov, afl, autofdo or bolt
    #[arg(short, long, value_enum, default_value_t = CoverageFormat::Functions, hide_possible_values = true)]
    format: CoverageFormat,
    /// Of this ELF file, not the recorded program; its address is that of its bytes, or BASE
    #[arg(long, alias = "of", value_name = "FILE[:BASE]")]
    object: Option<String>,
    /// Compare with this trace: + is what only it has executed, - what only the last argument has
    #[arg(long, value_name = "TRACE")]
    diff: Option<PathBuf>,
    /// Add what this trace has executed; repeatable. Further arguments are added, too
    #[arg(long, value_name = "TRACE")]
    union: Vec<PathBuf>,
    /// Print for each trace, TRACE and then those of --union, how many edges it has and adds
    #[arg(long, conflicts_with_all = ["diff", "out"])]
    added: bool,
    /// Copy to this new folder few recordings that have all edges; TRACE is any number of them
    #[arg(long, value_name = "DIR", conflicts_with_all = ["diff", "out", "added"])]
    minimise: Option<PathBuf>,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: ViewInput,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CoverageFormat {
    Functions,
    Blocks,
    Lines,
    Edges,
    Drcov,
    Lcov,
    Afl,
    Autofdo,
    Bolt,
}

/// The error of a file without lines.
const NO_LINES: &str = "has no lines of source: compile it with -g, or install its debug information";

/// Runs `pugmark coverage`. The exit status is 1 if a trace has errors or nothing in it was executed.
///
/// # Errors
/// If there is no trace or no code, or the output cannot be written.
pub fn run(options: &CoverageOptions) -> Result<ExitCode> {
    options.check()?;
    let mut progress = Progress::stderr();
    if let Some(folder) = &options.minimise {
        return options.minimise(folder, &mut progress);
    }
    let options = &options.with_union_of_more();
    if options.format == CoverageFormat::Afl {
        return options.map(&mut progress);
    }
    let mut verdict = Verdict::default();
    let traces = options.input.traces(&mut verdict, &mut progress)?;
    let mut code = covered(&options.input, &traces, &mut progress)?;
    let of = options.file(&traces)?.map(|of| CountedFile::load(&of, &code)).transpose()?;
    let mut lanes = vec![code.len()];
    for other in &options.union {
        let others = options.others("--union", other, (&code, of.as_ref()), &mut verdict, &mut progress)?;
        lanes.push(others.len());
        code.extend(others);
    }
    if options.added {
        options.print_added(&code, &lanes, of.as_ref())?;
        verdict.errors += code.iter().map(|lane| lane.executed.errors).sum::<usize>();
        return Ok(verdict.status());
    }
    let executed = merged(&code, of.as_ref());
    let other = options.diff.as_ref().map(|other| {
        let others = options.others("--diff", other, (&code, of.as_ref()), &mut verdict, &mut progress)?;
        let executed = merged(&others, of.as_ref());
        code.extend(others);
        anyhow::Ok(executed)
    });
    let other = other.transpose()?;
    let blocks = of.as_ref().map(|of| {
        let mut blocks = of.blocks.clone();
        let targets = |executed: &Executed| executed.edges.keys().map(|(_, to)| *to).collect::<Vec<_>>();
        blocks.split(targets(&executed).into_iter());
        blocks.split(other.iter().flat_map(targets));
        blocks
    });
    for executed in iter::once(&executed).chain(&other) {
        verdict.errors += executed.errors;
        verdict.is_empty |= executed.insns.is_empty();
    }
    let source = of.as_ref().map(|of| {
        let folders = DebugFolders::below(options.input.symfs.as_deref().unwrap_or(Path::new("/")));
        (SourceLines::of(&of.path, folders), of.moved)
    });
    let report = Report {
        executed: &executed,
        other: other.as_ref(),
        blocks: blocks.as_ref(),
        source: source.as_ref().map(|(source, moved)| (source, *moved)),
        names: &options.names(&code)?,
    };
    options.write(&options.text(&report, of.as_ref())?)?;
    Ok(verdict.status())
}

impl CoverageOptions {
    /// Finds the names of functions where they are printed.
    fn names(&self, code: &[CoveredLane]) -> Result<Vec<TracedSymbols>> {
        let sources = NameSources::of(&self.input, &self.input.symbols);
        let mut files = SymbolFiles::default();
        let named = if self.format == CoverageFormat::Edges && !self.json { code } else { &[] };
        named
            .iter()
            .map(|CoveredLane { traced, code, .. }| names_of(traced, &code.sections(), sources, &mut files))
            .collect()
    }

    /// Takes further traces like those of `--union`. Several files of `perf record` stay one recording.
    fn with_union_of_more(&self) -> Self {
        let mut options = self.clone();
        let mut all = iter::once(&self.input.trace).chain(&self.input.more);
        if !all.all(|file| PerfData::is_one(file)) {
            options.union.append(&mut options.input.more);
        }
        options
    }

    /// Decodes another trace, which an option names, of the code that the first one is of.
    fn others(
        &self,
        option: &str,
        other: &Path,
        (code, of): (&[CoveredLane], Option<&CountedFile>),
        verdict: &mut Verdict,
        progress: &mut Progress,
    ) -> Result<Vec<CoveredLane>> {
        let mut input = self.input.clone();
        (input.trace, input.more) = (other.into(), vec![]);
        let others = covered(&input, &input.traces(verdict, progress)?, progress)?;
        if let Some(of) = of {
            let new = CodeOf { trace: &self.input.trace, parts: code };
            same_code::check(option, of, &new, &CodeOf { trace: other, parts: &others })?;
        }
        Ok(others)
    }

    /// Prints the number of edges of each trace, and of those that no trace before it has. `lanes` are the numbers of
    /// lanes of the traces.
    fn print_added(&self, code: &[CoveredLane], lanes: &[usize], of: Option<&CountedFile>) -> Result<()> {
        let (mut rows, mut seen, mut rest) = (vec![], BTreeSet::new(), code);
        for (trace, count) in iter::once(&self.input.trace).chain(&self.union).zip(lanes) {
            let (own, after) = rest.split_at(*count);
            rest = after;
            let edges = minimise::edges_of(own, of);
            let before = seen.len();
            seen.extend(edges.iter().copied());
            rows.push((edges.len(), seen.len() - before, trace.display().to_string()));
        }
        self.print_rows(&rows)
    }

    /// Prints for each trace how many edges it has, and how many it adds.
    fn print_rows(&self, rows: &[(usize, usize, String)]) -> Result<()> {
        output::page(|out| {
            if self.json {
                let row = |(edges, added, trace): &(usize, usize, String)| {
                    json!({
                        "trace": trace,
                        "edges": edges,
                        "added": added,
                    })
                };
                return writeln!(out, "{}", json!({ "traces": rows.iter().map(row).collect::<Vec<_>>() }));
            }
            writeln!(out, "{:>10} {:>10}  trace", "edges", "added")?;
            rows.iter()
                .try_for_each(|(edges, added, trace)| writeln!(out, "{edges:>10} {added:>10}  {trace}"))
        })
    }

    /// Returns the output.
    fn text(&self, report: &Report<'_>, of: Option<&CountedFile>) -> Result<Vec<u8>> {
        let mut text = vec![];
        match (self.json, self.format, of) {
            (true, ..) => report.json(&mut text)?,
            (_, CoverageFormat::Drcov, Some(of)) => report.drcov(&of.path, of.moved, &mut text)?,
            (_, format @ (CoverageFormat::Lcov | CoverageFormat::Lines), Some(of)) => {
                let has_lines = match format {
                    CoverageFormat::Lines => report.lines(&mut text)?,
                    _ => report.lcov(&mut text)?,
                };
                ensure!(has_lines, "{} {NO_LINES}", of.path.display());
            }
            (_, CoverageFormat::Autofdo | CoverageFormat::Bolt, Some(of)) => {
                self.profile(report, of, &mut text)?;
            }
            (_, CoverageFormat::Functions, Some(_)) => report.functions(&mut text)?,
            (_, CoverageFormat::Blocks, Some(_)) => report.blocks(&mut text)?,
            _ => report.edges(&mut text)?,
        }
        Ok(text)
    }

    /// Writes a profile, and says what it lacks.
    fn profile(&self, report: &Report<'_>, of: &CountedFile, text: &mut Vec<u8>) -> Result<()> {
        let (Some(blocks), Some((source, moved))) = (report.blocks, report.source) else { return Ok(()) };
        let executed = report.executed.of_file(of.place(), Some(0));
        let (all, name) = (executed.insns.values().sum::<u64>(), of.path.display());
        ensure!(all > 0, "nothing of {name} was executed");
        let (left_out, why) = if self.format == CoverageFormat::Bolt {
            (
                bolt::write(&executed, blocks, moved, text)?,
                "they are no instructions of a sweep over the file",
            )
        } else {
            let known = source.profile_places();
            let profile = CompilerProfile::of(&executed, blocks, |ip| known.find(ip.wrapping_sub(moved)));
            ensure!(profile.left_out < all, "{name} {NO_LINES}");
            profile.write(text)?;
            (profile.left_out, "they have no line of source")
        };
        if left_out > 0 {
            tell(format_args!(
                "pugmark: {left_out} of {all} instructions of {name} are not in the profile: {why}"
            ));
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        use CoverageFormat::{Afl, Autofdo, Bolt, Drcov, Lcov, Lines};
        ensure!(
            self.diff.is_none() || !matches!(self.format, Drcov | Lcov | Afl | Autofdo | Bolt),
            "--diff compares functions, blocks, lines and edges; make a file for each trace and use a program for \
             these files"
        );
        if let Some(option) = self.input.part_option().filter(|_| self.format == Afl) {
            bail!("{option}: a map of edges is made without looking at instructions; use another format");
        }
        ensure!(
            !self.json || !matches!(self.format, Drcov | Lcov | Lines | Afl | Autofdo | Bolt),
            "drcov, lcov, lines, afl, autofdo and bolt are formats of their own: leave out --json"
        );
        ensure!(
            self.input.symbols.is_empty() || self.format == CoverageFormat::Edges && !self.json,
            "--symbols names the functions of -f edges; name the file of other formats with --object"
        );
        ensure!(
            !(self.added || self.minimise.is_some())
                || matches!(self.format, CoverageFormat::Functions | CoverageFormat::Edges),
            "--added and --minimise print numbers of edges: leave out -f, or write -f edges for those of all code"
        );
        Ok(())
    }

    /// Returns the file whose blocks are counted, if any: the recorded program, unless another file is named.
    fn file(&self, traces: &[Traced]) -> Result<Option<String>> {
        if self.object.is_some() {
            return Ok(self.object.clone());
        }
        let recorded = traces.iter().find_map(|traced| traced.part.as_ref()?.exe.clone());
        ensure!(
            recorded.is_some() || self.format == CoverageFormat::Edges,
            "blocks are those of a program: name its file with --object, or use --format edges"
        );
        Ok(recorded.filter(|_| self.format != CoverageFormat::Edges))
    }

    /// Writes the map of edges.
    fn map(&self, progress: &mut Progress) -> Result<ExitCode> {
        let mut map = Box::new([0; EDGES]);
        let mut verdict = Verdict::default();
        for trace in iter::once(None).chain(self.union.iter().map(Some)) {
            let mut input = self.input.clone();
            if let Some(trace) = trace {
                (input.trace, input.more) = (trace.clone(), vec![]);
            }
            for traced in input.traces(&mut verdict, progress)? {
                let loaded = LoadedSession::load(&input, &traced, progress)?;
                let sections = loaded.sections();
                verdict.errors +=
                    executed::add_map(&loaded.session(&sections), &mut map) + loaded.lacks_trace();
            }
        }
        self.write(&map[..])?;
        Ok(verdict.status())
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        match &self.out {
            Some(file) => fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display())),
            None if !matches!(
                self.format,
                CoverageFormat::Functions
                    | CoverageFormat::Blocks
                    | CoverageFormat::Lines
                    | CoverageFormat::Edges
            ) =>
            {
                output::print(|out| out.write_all(bytes))
            }
            None => output::page(|out| out.write_all(bytes)),
        }
    }
}

/// The code of a thread, and the part of it that was executed.
struct CoveredLane {
    traced: Traced,
    code: TracedCode,
    executed: Executed,
}

/// Decodes all traces of an input.
fn covered(input: &ViewInput, traces: &[Traced], progress: &mut Progress) -> Result<Vec<CoveredLane>> {
    let mut covered = vec![];
    for traced in traces {
        let loaded = LoadedSession::load(input, traced, progress)?;
        let sections = loaded.sections();
        for (lane, executed) in
            Executed::of_loaded(&loaded, &loaded.session(&sections), progress).into_iter().enumerate()
        {
            let (traced, code) = loaded.code_of(lane);
            covered.push(CoveredLane { traced: traced.clone(), code: code.clone(), executed });
        }
    }
    Ok(covered)
}

/// Merges the code that all threads have executed; of one file if it is given, at the addresses that it has.
fn merged(covered: &[CoveredLane], of: Option<&CountedFile>) -> Executed {
    let mut merged = Executed::default();
    for CoveredLane { code, executed, .. } in covered {
        let of = of.filter(|_| covered.len() > 1);
        merged.add(of.map_or_else(|| executed.clone(), |of| executed.of_file(of.place(), of.moved_in(code))));
    }
    merged
}

/// The file whose blocks are counted.
struct CountedFile {
    path: PathBuf,
    bytes: Vec<u8>,
    moved: u64,
    /// True if `moved` is the same in every process.
    is_fixed: bool,
    blocks: FileBlocks,
}

impl CountedFile {
    fn load(argument: &str, codes: &[CoveredLane]) -> Result<Self> {
        use object::{Object, ObjectSegment};
        let (path, base) = super::options::split_base(argument);
        let what = || format!("--object {argument}");
        let bytes = read_regular(path.as_ref()).with_context(what)?;
        let file = object::File::parse(&*bytes).with_context(what)?;
        let lowest = file.segments().map(|segment| segment.address()).min().unwrap_or_default();
        let moved = match base {
            Some(base) => base.wrapping_sub(lowest),
            None => codes.iter().find_map(|lane| symbols::moved(&file, &lane.code.sections())).with_context(|| {
                format!(
                    "--object {argument}: no page of its code is in the code that was traced: either the file has \
                     changed since it was recorded, or say where it was loaded: --object {path}:0x400000"
                )
            })?,
        };
        let blocks = FileBlocks::of(&file, moved).with_context(what)?;
        Ok(Self { path: path.into(), bytes, moved, is_fixed: base.is_some(), blocks })
    }

    /// Returns the addresses of the file.
    fn place(&self) -> Range<u64> {
        use object::{Object, ObjectSegment};
        let Ok(file) = object::File::parse(&*self.bytes) else { return 0..0 };
        let from = file.segments().map(|segment| segment.address()).min().unwrap_or_default();
        let to = file.segments().map(|segment| segment.address().saturating_add(segment.size())).max();
        let moved = |at: u64| at.wrapping_add(self.moved);
        moved(from)..moved(to.unwrap_or_default())
    }

    /// Returns how much further the file was moved in other code; `None` if it is not there.
    fn moved_in(&self, code: &TracedCode) -> Option<u64> {
        if self.is_fixed {
            return Some(0);
        }
        let file = object::File::parse(&*self.bytes).ok()?;
        symbols::moved(&file, &code.sections()).map(|moved| moved.wrapping_sub(self.moved))
    }
}
