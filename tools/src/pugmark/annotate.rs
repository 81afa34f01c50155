//! `pugmark annotate`: how often each instruction of a function was executed, or each of its lines of source.

use super::{
    coverage::Executed, disassembly, line_counts::LineCounts, loaded::LoadedSession, options::ViewInput,
    progress::Progress, report::UnnamedFunctions, verdict::Verdict, wanted_function::WantedFunction,
};
use crate::digits::Digits;
use crate::file::read_regular;
use crate::output;
use crate::symbols::{SourceLine, SourcePlace, TracedSymbols};
use crate::text::printable;
use anyhow::{Result, ensure};
use clap::Args;
use pugmark_decoder_core::image::Image;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    iter,
    path::Path,
    process::ExitCode,
    rc::Rc,
};

/// The options of `pugmark annotate`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark annotate work a.rec                         each instruction of work, with how often it was executed
  pugmark annotate --source work a.rec                the same for its lines of source")]
pub struct AnnotateOptions {
    /// The function, as `pugmark report` names it
    function: WantedFunction,
    /// Print lines of source, not instructions
    #[arg(long)]
    source: bool,
    /// Only the function of this object file, such as a.out or libc.so.6
    #[arg(long, value_name = "NAME")]
    object: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: ViewInput,
}

/// An instruction of the function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AnnotatedInsn {
    text: String,
    /// The functions of the source, the innermost first.
    source: Rc<[SourcePlace]>,
    count: u64,
}

impl AnnotatedInsn {
    fn line(&self) -> Option<&SourceLine> {
        self.source.first()?.line.as_ref()
    }
}

/// A function in an object file: its instructions, by how far they are in it.
type AnnotatedFunction = BTreeMap<u64, AnnotatedInsn>;

/// All functions of the name.
#[derive(Debug, Default)]
struct Annotated {
    /// Each by its object file and its place in a page, which is the same in all processes.
    functions: BTreeMap<(String, u64), AnnotatedFunction>,
    /// The names of all functions that were executed.
    names: BTreeSet<String>,
}

/// The bytes of a page, by which the addresses of a file differ from process to process.
const PAGE: u64 = 4096;

/// Runs `pugmark annotate`. The exit status is 1 if a trace has errors or the function was not executed.
///
/// # Errors
/// If there is no trace or no code, the function was not executed, or the output cannot be written.
pub fn run(options: &AnnotateOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut verdict = Verdict::default();
    let mut found = Annotated::default();
    for traced in options.input.traces(&mut verdict, &mut progress)? {
        let loaded = LoadedSession::load(&options.input, &traced, &mut progress)?;
        let sections = loaded.sections();
        let session = loaded.session(&sections);
        for (lane, executed) in Executed::of_loaded(&loaded, &session, &mut progress).iter().enumerate() {
            let symbols = loaded.symbols(lane, &options.input, &options.input.symbols)?;
            verdict.errors += executed.errors;
            found.add(options, executed, &symbols, session.image(session.lanes[lane]));
        }
    }
    if found.functions.is_empty() {
        return options.function.was_not("annotate", "was executed", &found.names);
    }
    let has_lines = |insns: &AnnotatedFunction| insns.values().any(|insn| insn.line().is_some());
    ensure!(
        !options.source || found.functions.values().any(has_lines),
        "--source: no line of {} is known: its file has no debug information",
        options.function
    );
    output::page(|out| match (options.json, options.source) {
        (true, _) => writeln!(out, "{}", found.json(options)),
        (_, true) => found.functions.iter().try_for_each(|(of, insns)| lines(options, &of.0, insns, out)),
        _ => found.functions.iter().try_for_each(|(of, insns)| instructions(options, &of.0, insns, out)),
    })?;
    Ok(verdict.status())
}

impl AnnotateOptions {
    fn is_of(&self, object: &str) -> bool {
        self.object.as_deref().is_none_or(|wanted| super::diff::is_of(object, wanted))
    }
}

impl Annotated {
    /// Adds what a thread has executed.
    fn add(
        &mut self,
        options: &AnnotateOptions,
        executed: &Executed,
        symbols: &TracedSymbols,
        image: Image<'_>,
    ) {
        let unnamed = UnnamedFunctions::of(executed, symbols);
        let offset = |ip| options.function.offset(ip, symbols, &unnamed);
        let found = options.function.find(executed, symbols, &unnamed, &mut self.names);
        for (begin, last) in found {
            let object = symbols.find(begin).object.unwrap_or("[unknown]");
            if !options.is_of(object) {
                continue;
            }
            let insns = self.functions.entry((object.to_owned(), begin % PAGE)).or_default();
            if insns.is_empty() {
                // Where a function without a name ends is not always known.
                let is_within = |ip| ip <= last || symbols.begin(ip).is_some();
                let is_in = |ip| is_within(ip) && offset(ip) == Some(ip.wrapping_sub(begin));
                *insns = disassembled(begin, is_in, symbols, image);
            }
            for (ip, count) in executed.insns.range(begin..=last) {
                if offset(*ip) != Some(ip - begin) {
                    continue;
                }
                // Code that jumps into an instruction executes another one there.
                let insn = insns.entry(ip - begin).or_insert_with(|| annotated(*ip, symbols, image).0);
                insn.count += count;
            }
        }
    }

    fn json(&self, options: &AnnotateOptions) -> Value {
        let line = |insn: &AnnotatedInsn| insn.line().map(ToString::to_string);
        let functions = self.functions.iter().map(|((object, _), insns)| {
            let insn = |(offset, insn): (&u64, &AnnotatedInsn)| {
                json!({ "offset": offset, "count": insn.count, "text": insn.text, "line": line(insn) })
            };
            let counts = counts_of_lines(insns);
            let row = |(line, all, most): (SourceLine, u64, u64)| {
                json!({ "line": line.to_string(), "instructions": all, "count": most })
            };
            let sum: u64 = insns.values().map(|insn| insn.count).sum();
            let instructions: Vec<_> = insns.iter().map(insn).collect();
            let lines: Vec<_> = counts.iter().map(row).collect();
            match options.source {
                true => json!({ "object": object, "sum": sum, "lines": lines }),
                false => json!({ "object": object, "sum": sum, "instructions": instructions }),
            }
        });
        json!({ "function": options.function.to_string(), "functions": functions.collect::<Vec<_>>() })
    }
}

/// Returns an instruction that was not executed, and its length.
fn annotated(ip: u64, symbols: &TracedSymbols, image: Image<'_>) -> (AnnotatedInsn, u64) {
    let (insn, _) = disassembly::instruction(image, ip);
    let mut text = String::new();
    match insn.is_invalid() {
        true => text.push_str("(unknown instruction)"),
        false => disassembly::put(&insn, &mut text),
    }
    let target = insn.near_branch_target();
    if target != 0 {
        text += &format!(" <{}>", symbols.place(target));
    }
    (AnnotatedInsn { text, source: symbols.source(ip), count: 0 }, insn.len().max(1) as u64)
}

/// Returns all instructions of the function that begins at `begin`, also those that were not executed.
fn disassembled(
    begin: u64,
    is_in: impl Fn(u64) -> bool,
    symbols: &TracedSymbols,
    image: Image<'_>,
) -> AnnotatedFunction {
    let (mut insns, mut offset) = (AnnotatedFunction::new(), 0);
    while is_in(begin.wrapping_add(offset)) {
        let (insn, length) = annotated(begin.wrapping_add(offset), symbols, image);
        insns.insert(offset, insn);
        offset += length;
    }
    insns
}

/// Adds up the instructions of each line.
fn counts_of_lines(insns: &AnnotatedFunction) -> LineCounts {
    let (mut counts, function) = (LineCounts::default(), Rc::from(""));
    for AnnotatedInsn { source, count, .. } in insns.values() {
        counts.add(&function, source, *count, *count);
    }
    counts
}

/// Returns a part of all in percent.
fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / (all as f64).max(1.0)
}

/// Writes the first line, and returns the number of instructions.
fn title(
    options: &AnnotateOptions,
    object: &str,
    insns: &AnnotatedFunction,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let sum = insns.values().map(|insn| insn.count).sum();
    let count = Digits::on_stdout().of(sum);
    writeln!(out, "{} ({}): {count} instructions", options.function, printable(object))?;
    Ok(sum)
}

fn instructions(
    options: &AnnotateOptions,
    object: &str,
    insns: &AnnotatedFunction,
    out: &mut dyn Write,
) -> io::Result<()> {
    let sum = title(options, object, insns, out)?;
    let digits = Digits::on_stdout();
    let width = digits.width(12);
    writeln!(out, "percent {:>width$}    offset", "count")?;
    let mut before = None;
    for (offset, insn) in insns {
        let (AnnotatedInsn { text, count, .. }, line) = (insn, insn.line());
        // A line of source is named where it begins.
        let named = line.filter(|_| line != before);
        let place = named.map(|line| format!("  ; {}", printable(&line.short()))).unwrap_or_default();
        let percent = percent(*count, sum);
        let count = digits.of(*count);
        writeln!(out, "{percent:>7.2} {count:>width$}  {:>8}  {text}{place}", format!("+{offset:#x}"))?;
        before = line;
    }
    Ok(())
}

/// Returns a line with spaces in place of its tabs, up to the next column of eight.
fn without_tabs(line: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for letter in line.chars() {
        let spaces = if letter == '\t' { 8 - column % 8 } else { 0 };
        text.extend(iter::repeat_n(' ', spaces));
        text.extend(Some(letter).filter(|letter| *letter != '\t'));
        column += spaces.max(1);
    }
    text
}

fn lines(
    options: &AnnotateOptions,
    object: &str,
    insns: &AnnotatedFunction,
    out: &mut dyn Write,
) -> io::Result<()> {
    let sum = title(options, object, insns, out)?;
    let digits = Digits::on_stdout();
    let width = digits.width(12);
    let mut file_before = None;
    let mut text = vec![];
    for (SourceLine { file, line }, all, most) in counts_of_lines(insns).iter() {
        if file_before.as_ref() != Some(&file) {
            // Without the file the lines have only their numbers.
            let bytes = read_regular(Path::new(&*file)).unwrap_or_default();
            text = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
            let [all, most] = ["instructions", "executed"];
            writeln!(out, "percent {all:>width$} {most:>width$}   line  {}", printable(&file))?;
            file_before = Some(file.clone());
        }
        let source =
            (line as usize).checked_sub(1).and_then(|line| text.get(line)).map_or("", String::as_str);
        let percent = percent(all, sum);
        let source = without_tabs(source);
        let [all, most] = [all, most].map(|count| digits.of(count));
        writeln!(
            out,
            "{percent:>7.2} {all:>width$} {most:>width$} {line:>6}  {}",
            printable(&source).trim_end()
        )?;
    }
    Ok(())
}
