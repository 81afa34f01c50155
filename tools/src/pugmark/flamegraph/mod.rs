//! `pugmark flamegraph`: the cost of each chain of calls, as a picture or as folded stacks.

mod formats;
mod picture;
mod tree;

use super::{
    named_session::NamedSession,
    options::ViewInput,
    progress::Progress,
    recording::{IndexedPart, Traced},
    verdict::Verdict,
    visitors::{CallEvent, Time, TraceClock, Unit, not_traced},
};
use crate::output;
use crate::symbols::TracedSymbols;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use picture::FlamePicture;
use rustc_hash::FxHashMap;
use std::{cell::RefCell, fs, io::Write, path::PathBuf, process::ExitCode, rc::Rc};
use tree::FlameTree;

/// The name of missing parts.
const LOST: &str = "[lost]";
/// The begin of the names of what was executed elsewhere: the kernel's part of a program's time, for example.
const NOT_TRACED: &str = "[not traced";
/// The most functions in a chain, unless another number is asked for. A line for each of many thousand nested calls
/// would be gigabytes.
const DEPTH: usize = 256;

/// The options of `pugmark flamegraph`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark flamegraph -o a.svg a.rec                   then open a.svg in a browser
  pugmark flamegraph -f folded a.rec                  one line for each chain of calls, for other programs
  pugmark flamegraph -f pprof -o a.pb.gz a.rec        then go tool pprof -top a.pb.gz
  pugmark flamegraph --diff old.rec -o a.svg new.rec  red has become dearer, blue cheaper
  pugmark flamegraph --by time -o a.svg a.rec         by time; needs --time when it is recorded")]
pub struct FlameOptions {
    /// svg: a picture; folded: lines and a count; callgrind, pprof, speedscope
    #[arg(short, long, value_enum, default_value_t = FlameFormat::Svg, hide_possible_values = true)]
    format: FlameFormat,
    /// Count instructions, or time
    #[arg(long, value_enum, default_value_t = FlameMeasure::Instructions, hide_possible_values = true)]
    by: FlameMeasure,
    /// Draw at most N functions of a chain: the outermost ones and the innermost
    #[arg(long, value_name = "N", default_value_t = DEPTH, value_parser = depth)]
    depth: usize,
    /// Draw functions below their callers, not above
    #[arg(long)]
    icicle: bool,
    /// Compare with this trace: red takes more than there, blue takes less
    #[arg(long, value_name = "TRACE")]
    diff: Option<PathBuf>,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    input: ViewInput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlameFormat {
    Svg,
    Folded,
    Callgrind,
    Pprof,
    Speedscope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlameMeasure {
    Instructions,
    Time,
}

/// Runs `pugmark flamegraph`. The exit status is 1 if a trace has errors.
///
/// # Errors
/// If there is no trace or no code, nothing was executed, time is asked for and a trace has none, or the output cannot
/// be written.
pub fn run(options: &FlameOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut verdict = Verdict::default();
    ensure!(
        options.diff.is_none() || options.format == FlameFormat::Svg,
        "--diff: only the picture compares; leave out -f"
    );
    ensure!(
        !options.icicle || options.format == FlameFormat::Svg,
        "--icicle turns the picture over; leave out -f"
    );
    let (tree, unit) = options.tree(&options.input, &mut verdict, &mut progress)?;
    let before = options.diff.as_ref().map(|other| {
        let mut input = options.input.clone();
        (input.trace, input.more) = (other.clone(), vec![]);
        options.tree(&input, &mut verdict, &mut progress)
    });
    let before = before.transpose()?.map(|(tree, _)| tree);
    let picture =
        || FlamePicture { tree: &tree, unit: unit.name(), hangs: options.icicle, before: before.as_ref() };
    let fill = |out: &mut dyn Write| match options.format {
        FlameFormat::Svg => out.write_all(picture().svg().as_bytes()),
        FlameFormat::Folded => tree.write_folded(out),
        FlameFormat::Callgrind => formats::callgrind(&tree, unit, out),
        FlameFormat::Pprof => out.write_all(&formats::pprof(&tree, unit)),
        FlameFormat::Speedscope => formats::speedscope(&tree, unit, out),
    };
    match &options.out {
        None => output::print(fill)?,
        Some(file) => {
            let mut bytes = vec![];
            fill(&mut bytes)
                .and_then(|()| fs::write(file, bytes))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(verdict.status())
}

/// Reads the number of functions of a chain.
fn depth(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|depth| *depth > 0).ok_or_else(|| "not a number above 0".into())
}

impl FlameOptions {
    /// Returns the tree of all traces of an input, and the unit of its counts.
    fn tree(
        &self,
        input: &ViewInput,
        verdict: &mut Verdict,
        progress: &mut Progress,
    ) -> Result<(FlameTree, Unit)> {
        let (mut tree, mut unit) = (FlameTree::new(), Unit::Instructions);
        let traces = input.traces(verdict, progress)?;
        for traced in &traces {
            let wrong;
            (unit, wrong) = self.add(input, traced, traces.len() > 1, &mut tree, progress)?;
            verdict.errors += wrong;
        }
        ensure!(tree.total() > 0, "nothing was executed in the trace: `pugmark decode` says why");
        Ok((tree, unit))
    }

    /// Adds a recording to the tree: each thread below its name, if there are several. Returns the unit of counts,
    /// and the number of errors.
    fn add(
        &self,
        input: &ViewInput,
        traced: &Traced,
        several: bool,
        tree: &mut FlameTree,
        progress: &mut Progress,
    ) -> Result<(Unit, usize)> {
        let named = NamedSession::load(input, traced, &self.input.symbols, progress)?;
        let by_time = self.by == FlameMeasure::Time;
        let clock = named.loaded.clock;
        ensure!(
            !by_time || clock.is_timed(),
            "--by time: the trace has no TSC packets (`pugmark record --time`)"
        );
        let clock = if by_time { named.loaded.shown_clock() } else { TraceClock::INSTRUCTIONS };
        let several = several || named.names.len() > 1;
        let (tree, depth) = (RefCell::new(tree), self.depth);
        let visitor = |(lane, names): (usize, &Rc<TracedSymbols>)| {
            let title = named.part(lane).filter(|_| several).map(IndexedPart::title);
            let (mut stack, tree, names) = (None, &tree, names.clone());
            move |time: Time, what: CallEvent| {
                let tree = &mut **tree.borrow_mut();
                let stack = stack.get_or_insert_with(|| FlameStack::new(tree, title.as_deref(), depth));
                stack.call_event(tree, time.at, &what, |to| names.name(to));
            }
        };
        let mut visitors: Vec<_> = named.names.iter().enumerate().map(visitor).collect();
        let (_, errors) = named.walk_by(clock, progress, &mut visitors);
        Ok((clock.unit, errors))
    }
}

/// The position of a trace in the tree.
struct FlameStack {
    /// The nodes from the trace's own to the innermost function's.
    nodes: Vec<usize>,
    /// The most functions in a chain.
    depth: usize,
    /// The nodes below each node, by the addresses at which they were entered.
    entered: FxHashMap<(usize, u64), usize>,
    /// The amount before; unknown before anything has happened.
    before: Option<u64>,
    /// True if the innermost node stands for a loss.
    is_lost: bool,
}

impl FlameStack {
    fn new(tree: &mut FlameTree, title: Option<&str>, depth: usize) -> Self {
        let own = title.map_or(FlameTree::ROOT, |title| tree.child(FlameTree::ROOT, title));
        Self { nodes: vec![own], depth, entered: FxHashMap::default(), before: None, is_lost: false }
    }

    fn call_event(&mut self, tree: &mut FlameTree, now: u64, what: &CallEvent, name: impl Fn(u64) -> String) {
        let before = self.before.replace(now).unwrap_or(now);
        tree.add(self.innermost(), now - before);
        match what {
            CallEvent::Enter { to, .. } | CallEvent::Again { to, .. } => {
                if std::mem::take(&mut self.is_lost) {
                    self.leave();
                }
                let caller = self.caller();
                let enter = || tree.child(caller, &name(*to));
                let node = *self.entered.entry((caller, *to)).or_insert_with(enter);
                if let CallEvent::Enter { .. } = what {
                    tree.count_call(node);
                }
                self.nodes.push(node);
            }
            CallEvent::Off(call) => self.enter(tree, &format!("[{}]", not_traced(*call))),
            CallEvent::Loss(_) if self.is_lost => {}
            CallEvent::Loss(_) => {
                self.enter(tree, LOST);
                self.is_lost = true;
            }
            CallEvent::Leave | CallEvent::Back | CallEvent::On => self.leave(),
            CallEvent::Mark(..) | CallEvent::End(_) => {}
        }
    }

    /// Returns the node below which the next function is added.
    fn caller(&self) -> usize {
        // The first node is the trace's own.
        self.nodes.get(self.depth - 1).copied().unwrap_or_else(|| self.innermost())
    }

    fn innermost(&self) -> usize {
        self.nodes.last().copied().unwrap_or(FlameTree::ROOT)
    }

    fn enter(&mut self, tree: &mut FlameTree, name: &str) {
        let node = tree.child(self.caller(), name);
        self.nodes.push(node);
    }

    fn leave(&mut self) {
        if self.nodes.len() > 1 {
            self.nodes.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(call_events: &[(u64, CallEvent)]) -> String {
        let mut tree = FlameTree::new();
        let mut stack = FlameStack::new(&mut tree, None, 1024);
        for (now, what) in call_events {
            stack.call_event(&mut tree, *now, what, |to| format!("f{to}"));
        }
        let mut out = vec![];
        tree.write_folded(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const fn enter(to: u64) -> CallEvent {
        CallEvent::Enter { from: Some(0), to }
    }

    #[test]
    fn what_passes_belongs_to_the_innermost_function() {
        use CallEvent::{Leave, Mark};
        // It begins at 100.
        let calls =
            [(100, enter(1)), (103, enter(2)), (110, Leave), (115, enter(3)), (116, Leave), (118, enter(2))];
        let rest =
            [(119, Mark(crate::pugmark::visitors::MarkKind::Power, "x".into())), (120, Leave), (125, Leave)];
        assert_eq!(folded(&[&calls[..], &rest].concat()), "f1 15\nf1;f2 9\nf1;f3 1\n");
    }

    #[test]
    fn a_function_is_below_each_of_its_callers() {
        use CallEvent::Leave;
        let calls = [(0, enter(1)), (1, enter(3)), (3, Leave), (3, enter(2)), (7, enter(3)), (15, Leave)];
        let rest = [(15, Leave), (15, enter(3)), (31, Leave), (31, Leave)];
        assert_eq!(folded(&[&calls[..], &rest].concat()), "f1 1\nf1;f2 4\nf1;f2;f3 8\nf1;f3 18\n");
    }

    #[test]
    fn a_chain_of_very_many_functions_has_the_outermost_and_the_innermost() {
        let calls = (0..20_000).map(|depth| (depth, enter(depth % 2)));
        let calls: Vec<_> = calls.chain([(20_000, CallEvent::Leave)]).collect();
        let text = folded(&calls);
        let chains: Vec<(usize, &str)> = text
            .lines()
            .map(|line| (line.matches(';').count() + 1, line.rsplit(';').next().unwrap()))
            .collect();
        assert_eq!((chains.len(), chains.iter().map(|(length, _)| *length).max()), (1025, Some(1024)));
        // The innermost functions have only their own costs.
        let innermost: Vec<&str> =
            chains.iter().filter(|(length, _)| *length == 1024).map(|(_, last)| *last).collect();
        let half = (20_000 - 1023) / 2;
        assert_eq!(innermost, [format!("f0 {half}"), format!("f1 {}", half + 1)]);
    }

    #[test]
    fn what_is_not_traced_and_what_is_lost_is_nobodys() {
        use CallEvent::{Leave, Loss, Off, On};
        let off = [(0, enter(1)), (10, Off(None)), (40, On), (45, Leave)];
        assert_eq!(folded(&off), "f1 15\nf1;[not traced] 30\n");
        let lost = [(0, enter(1)), (10, Leave), (10, Loss("x".into())), (17, enter(2)), (20, Leave)];
        assert_eq!(folded(&lost), "[lost] 7\nf1 10\nf2 3\n");
        // One loss after another.
        let twice = [(0, Loss("x".into())), (5, Loss("y".into())), (9, enter(1)), (10, Leave)];
        assert_eq!(folded(&twice), "[lost] 9\nf1 1\n");
    }
}
