//! Linux in the machine: a command and its files, which run in it as root.

use super::{BootOptions, StopReason, monitor, room, status_of, summary, write};
use crate::output::tell;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pugmark_launch::{
    layout::DEFAULT_MEMORY,
    linux::{Event, Guest, LinuxMachine, LinuxOutcome, LinuxVersion, Monitor, Packages, Program},
    scratch::Scratch,
    time_limits::TimeLimits,
};
use std::{
    env,
    ffi::OsString,
    fs,
    io::{Write, stdout},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The beginning of the monitor's message that the guest has enabled a counter for an event that is not modelled.
const NOT_COUNTED: &str = "monitor: not counted ";
/// Interval of reports of how much was traced.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// The largest initramfs in MiB for which a guest's usual memory has room.
const USUAL_INITRAMFS: u64 = 40;

/// The options that boot something else.
const OTHERS: [&str; 3] = ["disk", "cdrom", "kernel"];

/// The options for Linux.
#[derive(Args, Clone, Debug)]
pub(super) struct LinuxOptions {
    /// Take a file or folder of the host along; PATH is where the guest has it
    #[arg(long, value_name = "FILE[:PATH]", conflicts_with_all = OTHERS)]
    with: Vec<Program>,
    /// The folder for the files that the guest leaves in /out
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true, conflicts_with_all = OTHERS)]
    out: PathBuf,
    /// Copy the guest's files into this new folder, for --symfs of perf and pugmark
    #[arg(long, value_name = "DIR", conflicts_with_all = OTHERS)]
    symfs: Option<PathBuf>,
    /// Print Linux's console, too
    #[arg(long, conflicts_with_all = OTHERS)]
    console: bool,
}

/// Boots Linux, runs the command in it, brings its files, and returns its exit status.
pub(super) fn run(options: &BootOptions, version: &LinuxVersion) -> Result<u8> {
    let own = &options.for_linux;
    let packages =
        Packages { folder: cache()?, no_install: false, tell: |command| tell(format_args!("{command}")) };
    let guest = guest(options, &packages)?;
    let kernel = packages.kernel_for(version)?;
    ensure!(own.out.is_dir(), "--out {}: there is no such folder", own.out.display());
    if let Some(folder) = &own.symfs {
        ensure!(!folder.exists(), "--symfs {}: it exists already", folder.display());
        guest.files().write_to(folder)?;
    }
    let archive = guest.files().archive()?;
    let memory = options.memory.unwrap_or_else(|| memory(archive.len() as u64));
    let scratch = Scratch::with_room(room(memory, options.truth.is_some()) + archive.len() as u64)?;
    let initramfs = scratch.file("initramfs");
    fs::write(&initramfs, &archive).with_context(|| format!("cannot write {}", initramfs.display()))?;
    let mode = if options.truth.is_some() { "full" } else { "hash" };
    let (kernel, monitor) = match &options.record {
        Some(_) => (packages.named(&kernel, || symbols(&kernel, &packages))?, None),
        None => {
            let options = format!("log-mode={mode} {}", options.monitor_options());
            (kernel, Some(Monitor { image: monitor::image()?, options }))
        }
    };
    let machine = LinuxMachine {
        monitor,
        recorder: options.recorder()?,
        processors: options.processors,
        memory: Some(memory),
        words: options.append.clone().unwrap_or_default(),
        interactive: options.arguments.is_empty(),
        // A user who waits can end the run.
        time_limits: TimeLimits { no_progress: Duration::MAX, total: Duration::MAX },
        ..LinuxMachine::new(kernel, initramfs)
    };
    let stop = StopReason::new(options.timeout);
    let outcome = machine.run_until(|| stop.is_due(), reporter(own.console));
    let stopped = stop.status();
    drop(stop);
    let outcome = outcome?;
    finish(options, &outcome)?;
    if let Some(status) = outcome.recorded.filter(|status| *status != 0) {
        bail!("the recorder has ended with status {status}");
    }
    Ok(stopped.filter(|_| outcome.stopped).unwrap_or_else(|| status_of(outcome.status)))
}

/// Boots a kernel once and returns the text of its /proc/kallsyms.
fn symbols(kernel: &Path, packages: &Packages) -> Result<String> {
    tell(format_args!("linux: boots once for the names of its functions"));
    let mut guest = Guest::new(&packages.busybox()?);
    guest.command(&["true".into()]);
    let scratch = Scratch::new()?;
    let initramfs = scratch.file("initramfs");
    fs::write(&initramfs, guest.files().archive()?).context("cannot write an initramfs")?;
    let machine = LinuxMachine { sends_symbols: true, ..LinuxMachine::new(kernel.into(), initramfs) };
    machine.run(|_| {})?.symbols.context("the guest has sent no symbols")
}

/// Writes what the guest left, and prints what it traced.
fn finish(options: &BootOptions, outcome: &LinuxOutcome) -> Result<()> {
    let own = &options.for_linux;
    for event in outcome.console.iter().filter_map(|line| Some(line.split_once(NOT_COUNTED)?.1)) {
        tell(format_args!("linux: perf shows 0 for what is not modelled: {event}"));
    }
    outcome.write_files(&own.out)?;
    if let Some(folder) = &own.symfs {
        outcome.write_vdso(folder)?;
    }
    if options.record.is_none() {
        summary(&outcome.truth.summed()).iter().for_each(|line| tell(format_args!("{line}")));
    }
    options.truth.iter().try_for_each(|file| write(file, &outcome.truth))
}

/// Returns the guest's files.
fn guest(options: &BootOptions, packages: &Packages) -> Result<Guest> {
    let mut guest = Guest::new(&packages.busybox()?);
    options.for_linux.with.iter().try_for_each(|program| guest.add(program))?;
    if !options.arguments.is_empty() {
        let text = |word: &OsString| match word.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => bail!("the command's word {word:?} is no UTF-8"),
        };
        let words = options.arguments.iter().map(text).collect::<Result<Vec<_>>>()?;
        let folder = env::current_dir().context("the current folder is gone")?;
        guest.command_of_host(&words, &folder)?;
    }
    Ok(guest)
}

/// Returns the folder for what is downloaded.
fn cache() -> Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let cache = absolute("XDG_CACHE_HOME").or_else(home);
    let cache =
        cache.context("no folder for a kernel: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    Ok(cache.join("pugmark/linux"))
}

/// Returns the memory in MiB for a guest with an initramfs of this many bytes: Linux unpacks it into as much memory,
/// half of which files may have.
fn memory(initramfs: u64) -> u64 {
    match initramfs >> 20 {
        0..=USUAL_INITRAMFS => DEFAULT_MEMORY,
        mib => 192 + 4 * mib,
    }
}

/// Returns a function that prints the guest's output and progress.
fn reporter(console: bool) -> impl FnMut(Event<'_>) {
    let started = Instant::now();
    tell(format_args!("linux: the machine starts"));
    let mut reported = (0, started);
    move |event| {
        let at = started.elapsed().as_secs_f64();
        match event {
            Event::Monitor(line) => tell(format_args!("{line}")),
            Event::Console(line) if console => tell(format_args!("{line}")),
            Event::Console(_) => {}
            Event::Begin(uptime) => {
                tell(format_args!("linux: booted in {at:.1} s, {uptime} s by the guest's clock"));
            }
            Event::Output(bytes) => {
                let mut out = stdout().lock();
                // A user who closes the output does not want it.
                let _ = out.write_all(bytes).and_then(|()| out.flush());
            }
            Event::Exit(status, uptime) => {
                tell(format_args!("linux: status {status} at {at:.1} s, {uptime} s by the guest's clock"));
            }
            Event::File(path, bytes) => tell(format_args!("linux: /out/{path}, {bytes} bytes")),
            Event::Traced(count) if count != reported.0 && reported.1.elapsed() > REPORT_EVERY => {
                reported = (count, Instant::now());
                tell(format_args!("linux: {count} instructions traced at {at:.0} s"));
            }
            Event::Traced(_) => {}
        }
    }
}
