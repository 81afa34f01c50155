//! `pugmark calls`: the calls that a function makes, in order, or how often it was called itself, how long, from where.

mod measured;

use super::{
    named_session::NamedSession,
    options::ViewInput,
    progress::Progress,
    recording::Traced,
    verdict::Verdict,
    visitors::{CallEvent, Time},
    wanted_function::WantedFunction,
};
use crate::digits::Digits;
use crate::output;
use crate::symbols::TracedSymbols;
use anyhow::Result;
use clap::Args;
use measured::{MeasuredCalls, MeasuredParts};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::{cell::RefCell, collections::BTreeSet, process::ExitCode, rc::Rc};

/// The options of `pugmark calls`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark calls --of main a.rec                       what main called, and after how many instructions
  pugmark calls --of start_kernel boot.rec            how Linux boots
  pugmark calls --stats --longest 10 --of f a.rec     how long the calls of f took, and which took longest
  pugmark calls --callers --of f a.rec                who calls f, from where, how often")]
pub struct CallsOptions {
    /// The function that makes the calls; with --stats, --longest and --callers: that is called
    #[arg(long, value_name = "FUNCTION")]
    of: WantedFunction,
    /// Print how often it was called, and what a call took: least, median, 99 %, most
    #[arg(long)]
    stats: bool,
    /// Print its N longest calls, each with its place in the page of `pugmark timeline`
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    longest: usize,
    /// Print who calls it, from where, how often, and what the calls took
    #[arg(long)]
    callers: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: ViewInput,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MadeCall {
    /// The number of instructions before, including those of earlier parts of the same task.
    at: u64,
    /// The name of the function that was called.
    name: String,
}

/// Runs `pugmark calls`. The exit status is 1 if a trace has errors.
///
/// # Errors
/// If there is no trace or no code, the function makes no call, or the output cannot be written.
pub fn run(options: &CallsOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let (mut calls, mut before, mut task) = (vec![], 0, None);
    let (mut verdict, mut callers) = (Verdict::default(), BTreeSet::new());
    let parts = MeasuredParts { stats: options.stats, longest: options.longest, callers: options.callers };
    if parts.stats || parts.longest > 0 || parts.callers {
        return options.measured(parts, &mut verdict, &mut progress);
    }
    for traced in options.input.traces(&mut verdict, &mut progress)? {
        let own = traced.part.as_ref().and_then(|part| part.task);
        if task.replace(own) != Some(own) {
            before = 0;
        }
        let wrong;
        (before, wrong) = options.calls(&traced, before, (&mut calls, &mut callers), &mut progress)?;
        verdict.errors += wrong;
    }
    if calls.is_empty() {
        return options.of.was_not("--of", "makes a call; --symbols FILE gives more names", &callers);
    }
    output::page(|out| {
        if options.json {
            let entry = |call: &MadeCall| json!({ "at": call.at, "name": call.name });
            return writeln!(out, "{}", json!({ "calls": calls.iter().map(entry).collect::<Vec<_>>() }));
        }
        calls.iter().try_for_each(|MadeCall { at, name }| writeln!(out, "{at:>16}  {name}"))
    })?;
    Ok(verdict.status())
}

impl CallsOptions {
    /// Prints what the calls of the function took.
    fn measured(
        &self,
        parts: MeasuredParts,
        verdict: &mut Verdict,
        progress: &mut Progress,
    ) -> Result<ExitCode> {
        let calls = MeasuredCalls::of(&self.of, &self.input, verdict, progress)?;
        if calls.is_empty() {
            return self.of.was_not("--of", "was called; --symbols FILE gives more names", calls.called());
        }
        output::page(|out| match self.json {
            true => writeln!(out, "{}", calls.json(parts)),
            false => calls.print(parts, Digits::on_stdout(), out),
        })?;
        Ok(verdict.status())
    }

    /// Adds the calls in a trace. `before` instructions were executed before it; returns the number after it, and the
    /// number of errors.
    fn calls(
        &self,
        traced: &Traced,
        before: u64,
        (calls, callers): (&mut Vec<MadeCall>, &mut BTreeSet<String>),
        progress: &mut Progress,
    ) -> Result<(u64, usize)> {
        let named = NamedSession::load(&self.input, traced, &self.input.symbols, progress)?;
        let unnamed = self.of.unnamed(&named.loaded, &named.names, progress);
        let found = RefCell::new(vec![]);
        let mut known = vec![FxHashMap::<u64, bool>::default(); named.names.len()];
        let visitor = |((names, unnamed), known): ((&Rc<TracedSymbols>, _), _)| {
            let (names, found, known): (_, _, &mut FxHashMap<_, _>) = (names.clone(), &found, known);
            move |time: Time, what: CallEvent| {
                let CallEvent::Enter { from: Some(from), to } = what else { return };
                let is_of = || self.of.offset(from, &names, unnamed).is_some();
                if *known.entry(from).or_insert_with(is_of) {
                    found.borrow_mut().push(MadeCall { at: before + time.insns, name: names.place(to) });
                }
            }
        };
        let lanes = named.names.iter().zip(&unnamed).zip(&mut known);
        let mut visitors: Vec<_> = lanes.map(visitor).collect();
        let (ends, errors) = named.walk(progress, &mut visitors);
        drop(visitors);
        calls.append(&mut found.take());
        for (known, names) in known.iter().zip(&named.names) {
            callers.extend(known.keys().map(|from| names.name(*from)));
        }
        Ok((before + ends.iter().map(|end| end.insns).sum::<u64>(), errors))
    }
}
