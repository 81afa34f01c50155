//! `pugmark gdb`: steps through a recording with GDB, forwards and backwards.
//!
//! ```text
//!  serve      the connection: GDB's remote protocol (the crate gdbstub)    patience: GDB waits for the first answer
//!  target     the protocol's requests, put to the threads      registers, files: what else GDB wants to know
//!  threads    positions, and how they move
//!  history    the instructions of each thread by their numbers, from places that a walk can go on from
//!  watch      the sink of a walk
//! ```

mod files;
mod history;
mod patience;
mod registers;
mod serve;
mod target;
#[cfg(test)]
mod tests;
mod threads;
mod watch;

use super::{
    named_session::NamedSession,
    options::{Input, split_base},
    progress::Progress,
    recording::{IndexedPart, Traced},
    verdict::Verdict,
};
use crate::output::tell;
use crate::session::BlockCaches;
use crate::text::printable;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use files::ProcessFiles;
use history::History;
use patience::Patience;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use target::Replay;
use threads::{ReplayThread, Threads};

/// The options of `pugmark gdb`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  gdb -ex 'target remote | pugmark gdb --stdio --at end a.rec'    from the end of a recording backwards
  pugmark gdb --listen 127.0.0.1:1234 perf.data                   wait for GDB, or an editor that runs it

A trace has the instructions, not the data: GDB knows the instruction pointer and the code. Registers are unavailable,
memory cannot be read, and so there are no variables and no callers. `monitor help` in GDB lists what Pugmark adds.")]
pub struct GdbOptions {
    /// Wait for GDB at this address; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", conflicts_with = "stdio")]
    listen: SocketAddr,
    /// Talk to GDB by standard input and output: target remote | pugmark gdb --stdio FILE
    #[arg(long)]
    stdio: bool,
    /// Begin at the first instruction of each thread, or at the last one: begin or end
    #[arg(long, value_enum, value_name = "PLACE", default_value_t = BeginAt::Begin, hide_possible_values = true)]
    at: BeginAt,
    /// Show this process if there are several; by default the one that executed most
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Take the names of functions from this file, too; repeatable
    #[arg(long, value_name = "FILE")]
    symbols: Vec<PathBuf>,
    #[command(flatten)]
    input: Input,
}

/// The position of a thread when GDB comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BeginAt {
    Begin,
    End,
}

/// Runs `pugmark gdb` until GDB goes. The exit status is 1 if a trace has errors.
///
/// # Errors
/// If there is no trace or no code, nothing was executed, the address cannot be listened at, or the connection fails.
pub fn run(options: &GdbOptions) -> Result<ExitCode> {
    ensure!(
        !options.stdio || options.input.trace.as_os_str() != "-",
        "--stdio: standard input is GDB's, so the trace cannot come from there"
    );
    let patience = options.stdio.then(|| Patience::new(io::stdout(), PATIENCE));
    let mut progress = Progress::stderr();
    let mut verdict = Verdict::default();
    let mut traces = options.input.traces(&mut verdict)?;
    let pid = |traced: &Traced| traced.part.as_ref().and_then(|part| part.pid);
    if options.pid.is_some() && traces.iter().any(|traced| pid(traced) == options.pid) {
        traces.retain(|traced| pid(traced) == options.pid);
    }
    // A file that is the code has names, too.
    let elf = options.input.elf.iter().map(|argument| split_base(argument).0.into());
    let symbols: Vec<PathBuf> = options.symbols.iter().cloned().chain(elf).collect();
    let named =
        traces.iter().map(|traced| NamedSession::load(&options.input, traced, &symbols, &mut progress));
    let named: Vec<NamedSession> = named.collect::<Result<_>>()?;
    let sections: Vec<_> = named.iter().map(|named| named.loaded.sections()).collect();
    let images = sections.iter().map(Vec::len).max().unwrap_or(1);
    let mut memory = BlockCaches::memory(images);
    let mut caches = BlockCaches::new(&mut memory);
    let mut histories = vec![];
    for (named, sections) in named.iter().zip(&sections) {
        let session = named.loaded.session(sections);
        histories.push(History::new(session, named.loaded.clock, &mut caches, &mut progress));
    }
    verdict.errors += histories.iter().map(|history| history.gap_count).sum::<usize>();
    verdict.errors += named.iter().map(|named| named.loaded.lacks_trace()).sum::<usize>();
    let (threads, program) = options.threads(&traces, &named, &histories)?;
    let first = threads.first().context("no code was executed: `pugmark decode` says why")?;
    let objects = first.names.objects();
    let unit =
        named.get(first.history).map_or(super::visitors::Unit::Instructions, |named| named.loaded.clock.unit);
    let selected = match options.at {
        BeginAt::Begin => 0,
        BeginAt::End => threads.iter().position(|thread| thread.ending.is_some()).unwrap_or(0),
    };
    let unknown = options.input.elf.iter().flat_map(|argument| {
        let (file, base) = split_base(argument);
        files::writable(file.as_ref(), base)
    });
    let mut replay = Replay {
        files: ProcessFiles::new(program.as_deref(), &objects),
        unknown: unknown.collect(),
        stopped_at: Default::default(),
        motion: None,
        threads: Threads {
            histories,
            caches,
            threads,
            selected,
            current: selected,
            breakpoints: Default::default(),
            unit,
            notes: vec![],
        },
    };
    options.connect(&mut replay, patience)?;
    Ok(verdict.status())
}

/// The time between two signs of life to GDB, which waits two seconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process: its number, and its program.
type ProcessKey = (Option<i32>, Option<PathBuf>);

impl GdbOptions {
    /// Returns the threads of the process that is shown, and its program.
    fn threads(
        &self,
        traces: &[Traced],
        named: &[NamedSession],
        histories: &[History<'_>],
    ) -> Result<(Vec<ReplayThread>, Option<PathBuf>)> {
        let mut processes: Vec<(ProcessKey, u64, Vec<ReplayThread>)> = vec![];
        for (number, (named, history)) in named.iter().zip(histories).enumerate() {
            for (lane, known) in history.lanes.iter().enumerate().filter(|(_, known)| known.count > 0) {
                let part = named.part(lane).cloned().unwrap_or_default();
                let names = named.names[lane].clone();
                let program = part.exe.as_ref().map(PathBuf::from);
                let program = program.or_else(|| names.objects().first().map(|(path, _)| path.clone()));
                let thread = ReplayThread {
                    history: number,
                    lane,
                    at: if self.at == BeginAt::End { known.last() } else { 0 },
                    title: title(&part, traces.get(number)),
                    names,
                    ending: part.signal.is_some().then(|| ending(&part)),
                };
                let key = (part.pid, program);
                match processes.iter_mut().find(|(other, ..)| *other == key) {
                    Some((_, count, threads)) => {
                        *count += known.count;
                        threads.push(thread);
                    }
                    None => processes.push((key, known.count, vec![thread])),
                }
            }
        }
        let others: Vec<String> = processes.iter().map(|(key, count, _)| line(key, *count)).collect();
        let wanted = processes.into_iter().filter(|((pid, _), ..)| self.pid.is_none() || *pid == self.pid);
        match (wanted.max_by_key(|(_, count, _)| *count), self.pid) {
            (Some(((pid, program), _, threads)), _) => {
                if others.len() > 1 && self.pid.is_none() {
                    let pid = pid.map_or_else(|| "one".into(), |pid| format!("pid {pid}"));
                    tell(format_args!("pugmark: shows {pid} of {} processes (--pid):", others.len()));
                    others.iter().for_each(|other| tell(format_args!("pugmark:   {other}")));
                }
                Ok((threads, program))
            }
            (None, Some(pid)) => {
                bail!("--pid {pid}: no such process executed anything; these did: {}", others.join("; "))
            }
            (None, None) => Ok((vec![], None)),
        }
    }

    /// Waits for GDB, and serves it.
    fn connect(&self, replay: &mut Replay<'_, '_>, patience: Option<Patience>) -> Result<()> {
        if let Some(patience) = patience {
            return serve::serve(replay, io::stdin(), &patience);
        }
        let listener = TcpListener::bind(self.listen).with_context(|| format!("--listen {}", self.listen))?;
        let address = listener.local_addr()?;
        tell(format_args!("pugmark: waits for GDB at {address}: gdb -ex 'target remote {address}'"));
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        serve::serve(replay, stream.try_clone()?, &Patience::new(stream, PATIENCE))
    }
}

/// Describes a process.
fn line((pid, program): &ProcessKey, count: u64) -> String {
    let pid = pid.map_or_else(|| "no pid".into(), |pid| format!("pid {pid}"));
    let program =
        program.as_deref().map(Path::display).map(|program| format!(", {program}")).unwrap_or_default();
    format!("{pid}{program}: {count} instructions")
}

/// Returns the name of a thread: its own, with its number, or the part's, or that of the trace's file.
fn title(part: &IndexedPart, traced: Option<&Traced>) -> String {
    match (&part.comm, part.tid, part.dir.is_empty()) {
        (Some(comm), Some(tid), _) => format!("{comm}, tid {tid}"),
        (_, _, false) => part.title(),
        _ => traced
            .map(|traced| printable(&traced.trace.display().to_string()).into_owned())
            .unwrap_or_default(),
    }
}

/// Returns the rest of a sentence about a thread's end by a signal.
fn ending(part: &IndexedPart) -> String {
    let address = part.address.as_ref().map(|address| format!(", accessing {address}")).unwrap_or_default();
    part.signal.map(|signal| format!(", by signal {signal}{address}")).unwrap_or_default()
}
