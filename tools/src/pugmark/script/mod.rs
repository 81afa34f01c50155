//! `pugmark script`: what was executed, one instruction, branch or call a line, as `perf script` lays it out.

mod columns;
mod flow;
mod known_text;
mod straight;

use super::{
    coverage::Executed,
    loaded::LoadedSession,
    options::ViewInput,
    progress::{Progress, Size},
    recording::Traced,
    report::UnnamedFunctions,
    taken_branches::TakenBranch,
    verdict::Verdict,
    visitors::{CallEvent, Time, TraceClock, Unit, Visitor, WalkedLane, walk_lanes},
    wanted_function::WantedFunction,
};
use crate::symbols::{NamedPlace, TracedSymbols};
use crate::{
    number, output,
    session::{Session, TraceSlice},
};
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use columns::{LineBegin, ScriptColumns, ScriptField, When};
use known_text::KnownText;
use pugmark_decoder_core::{block_cache::InstructionRun, image::Image};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    io::{self, Write},
    ops::Range,
    process::ExitCode,
    rc::Rc,
};

/// The options of `pugmark script`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("between", |between| between.alias("time")),
    after_help = "\
Examples:
  pugmark script -F ip --symfs root perf.data         as perf script --itrace=i1i -F ip
  pugmark script --function main -F +inline a.rec     one function's instructions, with lines of source
  pugmark script --branches -F +flags,time a.rec      branches that were taken, and when
  pugmark script --call-trace --tid 12 a.rec          one thread's calls, indented"
)]
pub struct ScriptOptions {
    #[command(flatten)]
    what: ScriptKind,
    /// Columns, or + and columns to add: comm, pid, tid, time, tsc, flags, ip, sym, symoff, dso,
    /// addr (where a branch went), insn (its bytes), disasm, srcline, inline (with callers)
    #[arg(short = 'F', long, value_name = "FIELDS", value_parser = fields, verbatim_doc_comment)]
    fields: Option<ScriptFields>,
    /// Only what is in this function
    #[arg(long, value_name = "NAME")]
    function: Option<WantedFunction>,
    /// Only what is at these addresses; TO is the first one that is not meant
    #[arg(long, value_name = "FROM-TO", value_parser = addresses)]
    addresses: Option<Range<u64>>,
    #[command(flatten)]
    input: ViewInput,
}

/// The kind of lines.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
struct ScriptKind {
    /// Print instructions, which is the default
    #[arg(long)]
    insns: bool,
    /// Print branches that were taken, interrupts, and where tracing began and ended
    #[arg(long)]
    branches: bool,
    /// Print only calls and returns
    #[arg(long)]
    calls: bool,
    /// Print the functions that were called, indented
    #[arg(long)]
    call_trace: bool,
}

/// Columns: those of the command line, or in addition to the usual ones.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScriptFields {
    more: bool,
    fields: Vec<ScriptField>,
}

fn fields(text: &str) -> Result<ScriptFields> {
    use clap::ValueEnum;
    let (more, text) = text.strip_prefix('+').map_or((false, text), |rest| (true, rest));
    let field = |name: &str| {
        let known = ScriptField::value_variants().iter().filter_map(ScriptField::to_possible_value);
        let names: Vec<_> = known.map(|value| value.get_name().to_owned()).collect();
        ScriptField::from_str(name, false).map_err(|_| anyhow!("{name} is none of {}", names.join(", ")))
    };
    Ok(ScriptFields { more, fields: text.split(',').map(field).collect::<Result<_>>()? })
}

fn addresses(text: &str) -> Result<Range<u64>> {
    let range = text.split_once('-').and_then(|(from, to)| Some(number::parse(from)?..number::parse(to)?));
    let range = range.ok_or_else(|| anyhow!("write two addresses, as in 0x1000-0x2000"))?;
    ensure!(!range.is_empty(), "the second address is not after the first");
    Ok(range)
}

/// Runs `pugmark script`. The exit status is 1 if a trace has errors or nothing in it was executed.
///
/// # Errors
/// If there is no trace or no code, no thread is the one that is wanted, or the output cannot be written.
pub fn run(options: &ScriptOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut verdict = Verdict::default();
    let traces = options.input.traces(&mut verdict, &mut progress)?;
    let mut executed = false;
    let (mut result, mut is_there) = (Ok(()), false);
    output::page(|out| {
        let out = &mut Noticed { out, any: &mut is_there };
        for traced in &traces {
            match options.script(traced, out, &mut progress) {
                Ok((any, wrong)) => {
                    executed |= any;
                    verdict.errors += wrong;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        Ok(())
    })?;
    result?;
    if let Some(function) = options.function.as_ref().filter(|_| executed && !is_there) {
        options.find(function, &traces, &mut progress)?;
    }
    verdict.is_empty = !executed;
    Ok(verdict.status())
}

impl ScriptOptions {
    /// Returns the columns, in any order.
    fn columns(&self, unit: Unit) -> Vec<ScriptField> {
        use ScriptField::{Addr, Callindent, Dso, Ip, Sym, Symoff, Time};
        let usual = match self.what {
            ScriptKind { call_trace: true, .. } if unit == Unit::Instructions => vec![Callindent],
            ScriptKind { call_trace: true, .. } => vec![Time, Callindent],
            ScriptKind { branches: true, .. } | ScriptKind { calls: true, .. } => {
                vec![Ip, Sym, Symoff, Dso, Addr]
            }
            ScriptKind { .. } => vec![Ip, Sym, Symoff, Dso],
        };
        match &self.fields {
            None => usual,
            Some(ScriptFields { more: false, fields }) => fields.clone(),
            Some(ScriptFields { more: true, fields }) => [&usual[..], fields].concat(),
        }
    }

    /// Writes the lines of a session. Returns true if there were instructions, and the number of errors.
    fn script(&self, traced: &Traced, out: &mut dyn Write, progress: &mut Progress) -> Result<(bool, usize)> {
        let loaded = LoadedSession::load(&self.input, traced, progress)?;
        let fields = self.columns(loaded.clock.unit);
        let none = Rc::new(TracedSymbols::default());
        let symbols = |lane| match self.needs_symbols(&fields) {
            true => loaded.symbols(lane, &self.input, &self.input.symbols),
            false => Ok(none.clone()),
        };
        let symbols = (0..loaded.lanes.len()).map(symbols).collect::<Result<Vec<_>>>()?;
        let unnamed = match &self.function {
            Some(function) => function.unnamed(&loaded, &symbols, progress),
            None => vec![UnnamedFunctions::default(); symbols.len()],
        };
        let sections = loaded.sections();
        let session = loaded.session(&sections);
        let lanes = symbols.iter().enumerate().map(|(lane, symbols)| ScriptColumns {
            fields: &fields,
            symbols,
            unnamed: &unnamed[lane],
            part: loaded.lanes[lane].part.as_ref(),
            image: session.image(session.lanes[lane]),
            unit: loaded.clock.unit,
        });
        let lanes: Vec<_> = lanes.collect();
        let mut lines = ScriptLines {
            options: self,
            columns: lanes[0],
            lanes: &lanes,
            images: session.images.clone(),
            lane: 0,
            out,
            failed: None,
            executed: false,
            count: 0,
            errors: 0,
            progress,
            known: KnownLines::new(),
        };
        lines.progress.begin("decoding", Size::Bytes(session.size()));
        let ScriptKind { branches, calls, call_trace, .. } = self.what;
        let clock = if self.needs_time(&fields) { loaded.shown_clock() } else { loaded.clock };
        if call_trace {
            lines.calls(&session, clock);
        } else if branches || calls || self.needs_time(&fields) {
            lines.flow(&session, clock);
        } else {
            session.follow(std::slice::from_mut(&mut lines));
        }
        let (executed, count) = (lines.executed, lines.count);
        let (errors, failed) = (lines.errors, lines.failed.take());
        progress.end();
        failed.map_or(Ok(()), Err).context(output::CANNOT_WRITE)?;
        let is_counted = count > 0 || !executed;
        Ok((executed, errors + if is_counted { loaded.misses(count, errors) } else { 0 }))
    }

    /// Looks for the function in what was executed.
    ///
    /// # Errors
    /// If it is not there.
    fn find(&self, function: &WantedFunction, traces: &[Traced], progress: &mut Progress) -> Result<()> {
        let mut names = BTreeSet::new();
        for traced in traces {
            let loaded = LoadedSession::load(&self.input, traced, progress)?;
            let sections = loaded.sections();
            for (lane, executed) in
                Executed::in_lanes(&loaded.session(&sections), progress).iter().enumerate()
            {
                let symbols = loaded.symbols(lane, &self.input, &self.input.symbols)?;
                let unnamed = UnnamedFunctions::of(executed, &symbols);
                if !function.find(executed, &symbols, &unnamed, &mut names).is_empty() {
                    return Ok(());
                }
            }
        }
        function.was_not("--function", "was executed", &names)
    }

    fn needs_symbols(&self, fields: &[ScriptField]) -> bool {
        use ScriptField::{Callindent, Dso, Inline, Srcline, Sym, Symoff};
        let named = [Callindent, Dso, Inline, Srcline, Sym, Symoff];
        self.function.is_some() || fields.iter().any(|field| named.contains(field))
    }

    fn needs_time(&self, fields: &[ScriptField]) -> bool {
        let timed = |field: &ScriptField| matches!(field, ScriptField::Time | ScriptField::Tsc);
        fields.iter().any(timed)
    }

    /// Names the place of an address, if names are needed.
    fn place<'a>(&self, columns: &ScriptColumns<'a>, ip: u64) -> NamedPlace<'a> {
        match self.needs_symbols(columns.fields) {
            true => columns.symbols.find(ip),
            false => NamedPlace::default(),
        }
    }

    /// Returns true if the instruction at an address is to be shown.
    fn is_wanted(&self, columns: &ScriptColumns<'_>, ip: u64) -> bool {
        let is_in = |wanted: &WantedFunction| wanted.offset(ip, columns.symbols, columns.unnamed).is_some();
        self.addresses.as_ref().is_none_or(|range| range.contains(&ip))
            && self.function.as_ref().is_none_or(is_in)
    }
}

/// A writer that notes whether anything was written.
struct Noticed<'o> {
    out: &'o mut dyn Write,
    any: &'o mut bool,
}

impl Write for Noticed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        *self.any |= !bytes.is_empty();
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A sink that writes executed instructions and taken_branches as lines.
struct ScriptLines<'a> {
    options: &'a ScriptOptions,
    /// The columns of all lanes, and of the present one.
    lanes: &'a [ScriptColumns<'a>],
    images: Rc<[Image<'a>]>,
    columns: ScriptColumns<'a>,
    lane: usize,
    out: &'a mut dyn Write,
    /// The reason why a line could not be written.
    failed: Option<io::Error>,
    executed: bool,
    /// The number of instructions, if that is known.
    count: u64,
    /// The number of errors in the traces.
    errors: usize,
    progress: &'a mut Progress,
    known: KnownLines,
}

/// Lines that were written before, each with the number of its lane and code.
struct KnownLines {
    /// The number of the present lane and code.
    code: usize,
    /// All lines of instructions that follow one another.
    insns: KnownText<(usize, InstructionRun)>,
    /// The text after the time in the line of an instruction, and of a transfer.
    places: KnownText<(usize, u64)>,
    taken_branches: KnownText<(usize, TakenBranch)>,
    /// The first part of the last line.
    begin: LineBegin,
}

impl KnownLines {
    fn new() -> Self {
        Self {
            code: 0,
            insns: KnownText::new(),
            places: KnownText::new(),
            taken_branches: KnownText::new(),
            begin: LineBegin::default(),
        }
    }
}

impl<'a> ScriptLines<'a> {
    /// Keeps the first error.
    fn keep(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Turns to a lane.
    fn turn_to(&mut self, lane: usize) {
        if let Some(columns) = self.lanes.get(lane) {
            (self.columns, self.lane) = (*columns, lane);
        }
    }

    /// Turns to the lane and the code of a slice.
    fn begin(&mut self, slice: &TraceSlice) {
        self.turn_to(slice.lane);
        if let Some(image) = self.images.get(slice.image) {
            self.columns.image = *image;
        }
        self.known.code = slice.lane * self.images.len() + slice.image;
    }

    /// Writes the functions that are called, each four columns more to the right than its caller.
    fn calls(&mut self, session: &Session<'_>, clock: TraceClock) {
        let mut progress = std::mem::replace(self.progress, Progress::hidden());
        let all = self.lanes;
        let lines = RefCell::new(&mut *self);
        let calls = |lane| CallLines { lines: &lines, lane, depth: 0, within: None };
        let mut visitors: Vec<_> = (0..all.len()).map(calls).collect();
        let lane =
            |(visitor, columns): (_, &ScriptColumns<'a>)| WalkedLane { names: columns.symbols, visitor };
        let walked = visitors.iter_mut().zip(all).map(lane).collect();
        let ends = walk_lanes(session, clock, false, &mut progress, walked);
        self.count = ends.iter().map(|end| end.time.insns).sum();
        *self.progress = progress;
    }

    fn call(&mut self, time: Time, depth: usize, text: &str, from: Option<u64>) {
        if self.failed.is_some() {
            return;
        }
        let when = When { at: time.at, tsc: None };
        let Self { columns, out, known, .. } = self;
        let mut line = known.begin.of(columns, when).to_owned();
        line.extend(std::iter::repeat_n(' ', 4 * depth));
        line.push_str(text);
        columns.end_of_call(from, &mut line);
        let written = out.write_all(line.as_bytes());
        self.keep(written);
    }
}

/// A writer of the calls of a lane.
struct CallLines<'l, 'm, 'a> {
    lines: &'l RefCell<&'m mut ScriptLines<'a>>,
    lane: usize,
    depth: usize,
    /// The depth of the function that was asked for, if it is executed now.
    within: Option<usize>,
}

impl Visitor for CallLines<'_, '_, '_> {
    fn call_event(&mut self, time: Time, what: CallEvent) {
        let lines = &mut **self.lines.borrow_mut();
        lines.turn_to(self.lane);
        match what {
            CallEvent::Enter { to, .. } | CallEvent::Again { to, .. } => {
                lines.executed = true;
                // If one function was asked for, all that it calls is shown, too.
                if self.within.is_none() && lines.options.is_wanted(&lines.columns, to) {
                    self.within = Some(self.depth);
                }
                // A function that is on the stack again is not called.
                if let (CallEvent::Enter { from, .. }, Some(within)) = (&what, self.within) {
                    let name = lines.columns.symbols.name(to);
                    lines.call(time, self.depth - within, &name, *from);
                }
                self.depth += 1;
            }
            CallEvent::Leave | CallEvent::Back => {
                self.depth = self.depth.saturating_sub(1);
                self.within = self.within.filter(|within| self.depth > *within);
            }
            CallEvent::Loss(why) => {
                lines.errors += 1;
                lines.call(time, 0, &format!("instruction trace error: {why}"), None);
            }
            CallEvent::Off(_) | CallEvent::On | CallEvent::Mark(..) | CallEvent::End(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::cli::{Cli, PugmarkCommand};
    use crate::session::SliceSink;
    use clap::Parser;
    use pugmark_decoder_core::block_cache::ExecutionSink;

    fn options(words: &str) -> ScriptOptions {
        let words = format!("pugmark script {words} trace");
        match Cli::parse_from(words.split_whitespace()).command {
            PugmarkCommand::Script(options) => options,
            other => panic!("{other:?}"),
        }
    }

    static UNNAMED: UnnamedFunctions = UnnamedFunctions::NONE;

    fn columns<'a>(fields: &'a [ScriptField], symbols: &'a TracedSymbols) -> ScriptColumns<'a> {
        ScriptColumns {
            fields,
            symbols,
            unnamed: &UNNAMED,
            part: None,
            image: Image::new(&[]),
            unit: Unit::Instructions,
        }
    }

    #[test]
    fn a_line_has_the_columns_that_are_asked_for() {
        let known = NamedPlace { function: Some(("f", 0x1f)), object: Some("/x") };
        for (words, expected, unknown) in [
            ("", "             1000 f+0x1f (/x)", "             1000 [unknown] ([unknown])"),
            ("-F ip", "             1000", "             1000"),
            ("-F sym", " f", " [unknown]"),
            ("-F symoff", " f+0x1f", " [unknown]"),
            ("-F sym,symoff", " f+0x1f", " [unknown]"),
            ("-F dso", " (/x)", " ([unknown])"),
            ("-F dso,ip", "             1000 (/x)", "             1000 ([unknown])"),
        ] {
            let (fields, symbols) = (options(words).columns(Unit::Instructions), TracedSymbols::default());
            for (place, expected) in [(known, expected), (NamedPlace::default(), unknown)] {
                let mut line = String::new();
                columns(&fields, &symbols).insn(0x1000, &place, &mut line);
                assert_eq!(line, format!("{expected}\n"), "{words}");
            }
            assert_eq!(options(words).needs_symbols(&fields), words != "-F ip", "{words}");
        }
        assert!(options("-F ip --function f").needs_symbols(&[ScriptField::Ip]));
    }

    #[test]
    fn instructions_of_a_function_and_of_a_range_are_wanted() {
        let wanted = |words: &str, ip, name: Option<&str>| {
            let symbols = TracedSymbols::known(&name.map_or(vec![], |name| vec![(name, 0xff0, 0x1010)]), &[]);
            options(words).is_wanted(&columns(&[], &symbols), ip)
        };
        for (words, inside, outside, other) in [
            ("", true, true, true),
            ("--function f", true, true, false),
            ("--addresses 0x1000-0x1002", true, false, true),
            ("--function f --addresses 0x1000-0x1002", true, false, false),
        ] {
            for (ip, expected) in [(0x1000, inside), (0x1001, inside), (0xfff, outside), (0x1002, outside)] {
                assert_eq!(wanted(words, ip, Some("f")), expected, "{words} {ip:#x}");
            }
            assert_eq!(wanted(words, 0x1001, Some("g")), other, "{words}");
            assert_eq!(wanted(words, 0x1001, None), other, "{words}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_ends_the_decoding() {
        let (symbols, options) = (TracedSymbols::default(), options("-F ip"));
        let fields = options.columns(Unit::Instructions);
        let (mut none, mut some) = ([0; 0], [0; 18]);
        for (room, full) in [(&mut none[..], true), (&mut some[..], false)] {
            let (mut out, mut progress) = (room, Progress::hidden());
            let mut lines = ScriptLines {
                options: &options,
                columns: columns(&fields, &symbols),
                lanes: &[],
                images: Rc::new([]),
                lane: 0,
                out: &mut out,
                failed: None,
                executed: false,
                count: 0,
                errors: 0,
                progress: &mut progress,
                known: KnownLines::new(),
            };
            assert!(!lines.is_done());
            // One instruction of one byte.
            lines.insns(InstructionRun { ip: 0x1000, lengths: 1 });
            assert_eq!((lines.executed, lines.is_done(), lines.failed.is_some()), (true, full, full));
        }
    }

    #[test]
    fn addresses_are_two_numbers_of_which_the_second_is_larger() {
        assert_eq!(addresses("0x10-32").unwrap(), 0x10..0x20);
        for bad in ["", "0x10", "0x10-", "0x20-0x10", "16-16"] {
            assert!(addresses(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn columns_are_named_alone_or_in_addition() {
        use ScriptField::{Ip, Srcline};
        assert_eq!(fields("ip,srcline").unwrap(), ScriptFields { more: false, fields: vec![Ip, Srcline] });
        assert_eq!(fields("+ip").unwrap(), ScriptFields { more: true, fields: vec![Ip] });
        assert!(fields("ip,none").unwrap_err().to_string().starts_with("none is none of comm, pid, "));
        assert!(fields("").is_err());
    }
}
