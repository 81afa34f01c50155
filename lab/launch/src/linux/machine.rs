//! A machine that runs Linux, and its results.

use crate::boot::{GRACE, PROPERTIES, RECORDERS_GRACE, TICKS};
use crate::layout::{DEFAULT_MEMORY, Layout};
use crate::monitor_lines::{self, MonitorLines};
use crate::process::Running;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::channel::{Sent, check, receive};
use super::{pages, probe::ProbeTrace};
use crate::qemu::{self, Board, with_path};
use crate::scratch::Scratch;
use crate::time_limits::{ProgressWatch, TimeLimits};
use crate::truth::{self, LogPlace, Truth};

/// Linux's options: the console, addresses as in the file, and a reboot on panic.
const COMMAND_LINE: &str = "console=ttyS0 nokaslr mitigations=off panic=-1 tsc=reliable";
/// The option that keeps Linux's watchdog from counting cycles, unless a machine's own options mention the watchdog.
const NO_WATCHDOG: &str = "nowatchdog";

/// perf's name for the code that Linux gives every program. Its `--symfs` finds a file of this name.
const VDSO: &str = "[vdso]";
/// The guest's name for the list of its kernel's symbols.
const SYMBOLS: &str = "[kallsyms]";
/// The longest time between two looks at the machine.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// A word of Linux's command line that makes the guest send that list.
const SENDS_SYMBOLS: &str = "pugmark.symbols";
/// The monitor below the guest.
#[derive(Clone, Debug)]
pub struct Monitor {
    /// The monitor's image.
    pub image: PathBuf,
    /// Options of the monitor, including the profile.
    pub options: String,
}

/// A machine with a Linux kernel and its files.
#[derive(Clone, Debug)]
pub struct LinuxMachine {
    /// The kernel's ELF file.
    pub kernel: PathBuf,
    /// The archive with the guest's files.
    pub initramfs: PathBuf,
    /// The monitor below the guest; without it Linux runs directly on the machine.
    pub monitor: Option<Monitor>,
    /// The words before QEMU's by which a program starts QEMU that records the machine. That is without a monitor.
    pub recorder: Vec<OsString>,
    /// True if the guest is held against the monitor's log. Then a log that is too small is an error; otherwise it ends
    /// where it is full.
    pub judged: bool,
    /// Number of processors.
    pub processors: u16,
    /// The guest's memory in MiB.
    pub memory: Option<u64>,
    /// Number of instructions that the monitor itself traces, from the first one on.
    pub probe: Option<u64>,
    /// The guest sends the list of its kernel's symbols, as it does with a probe.
    pub sends_symbols: bool,
    /// Additional words of the kernel's command line.
    pub words: String,
    /// The guest's console is this program's terminal.
    pub interactive: bool,
    /// Time limits of the machine.
    pub time_limits: TimeLimits,
}

/// An event in a guest, reported as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// A line on the console.
    Console(&'a str),
    /// A line of the monitor.
    Monitor(&'a str),
    /// The command begins, this many seconds after Linux by the guest's clock.
    Begin(&'a str),
    /// Some of the command's output.
    Output(&'a [u8]),
    /// The command has ended with this status, this many seconds after Linux began by the guest's clock.
    Exit(i32, &'a str),
    /// A file with this name has arrived, of this many bytes.
    File(&'a str, usize),
    /// This many instructions have retired under tracing.
    Traced(u64),
}

/// The results of a guest.
#[derive(Debug)]
pub struct LinuxOutcome {
    /// The command's exit status.
    pub status: i32,
    /// The recorder's exit status, if there is one and the guest has ended by itself.
    pub recorded: Option<i32>,
    /// True if the machine was stopped before the guest had sent everything.
    pub stopped: bool,
    /// The lines of the console, each after those that the monitor printed before Linux had ended the line.
    pub console: Vec<String>,
    /// The files, by their paths below `/out`.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The code that Linux gave every program (the vdso), if perf recorded anything.
    pub vdso: Option<Vec<u8>>,
    /// The text of the guest's /proc/kallsyms, if the monitor itself has traced something.
    pub symbols: Option<String>,
    /// The monitor's log; empty without a monitor, and if the guest is not judged by it.
    pub truth: Truth,
    /// The monitor's own trace, if it was requested.
    pub probe: Option<ProbeTrace>,
    /// Host time from the machine's start to the command's, and from there to its end.
    pub times: [Duration; 2],
}

/// The result of a reading thread.
enum Read {
    Console(String),
    Sent(Sent),
    /// The second serial port is closed; an error tells why, if that is too early.
    Closed(Result<()>),
}

impl Read {
    /// Reads a file that the guest reports to be in its memory.
    fn fetch(self, memory: &Path) -> Result<Self> {
        let Self::Sent(Sent::Pages { path, size, sum, entries }) = self else { return Ok(self) };
        let read = pages::read(memory, &entries, size).and_then(|bytes| check(&bytes, &sum).map(|()| bytes));
        let bytes = read.with_context(|| format!("the guest's file {path:?}"))?;
        Ok(Self::Sent(Sent::File { path, bytes }))
    }
}

impl LinuxMachine {
    /// Returns a machine without a monitor, which has one processor.
    #[must_use]
    pub fn new(kernel: PathBuf, initramfs: PathBuf) -> Self {
        Self {
            kernel,
            initramfs,
            monitor: None,
            recorder: vec![],
            judged: true,
            processors: 1,
            memory: None,
            probe: None,
            sends_symbols: false,
            words: String::new(),
            interactive: false,
            time_limits: TimeLimits::default(),
        }
    }

    /// Runs the machine until the guest has sent everything. Calls `watch` for each event.
    ///
    /// # Errors
    /// If the machine does not start, the guest makes no progress or ends before it has sent everything, or the log of
    /// a guest that is judged by it was too small.
    pub fn run(&self, watch: impl FnMut(Event<'_>)) -> Result<LinuxOutcome> {
        self.run_until(|| false, watch)
    }

    /// Runs the machine until the guest has sent everything, or `stopped` returns true.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn run_until(
        &self,
        stopped: impl Fn() -> bool,
        mut watch: impl FnMut(Event<'_>),
    ) -> Result<LinuxOutcome> {
        let options = self.monitor.as_ref().map(|monitor| self.options(monitor)).transpose()?;
        let options = options.unwrap_or_default();
        let scratch = Scratch::new()?;
        let [ram, socket, said] = ["ram", "results", "monitor"].map(|name| scratch.file(name));
        let listener = UnixListener::bind(&socket).context("cannot make a socket")?;
        let started = Instant::now();
        let mut machine = Running::start(self.command(&ram, &socket, &said)?)?;
        let mut monitor = MonitorLines::new(said);
        let (sender, events) = channel();
        if !self.interactive {
            let console = machine.output()?;
            let sender = sender.clone();
            std::thread::spawn(move || read_console(BufReader::new(console), &sender));
        }
        std::thread::spawn(move || {
            let result = listener.accept().map_err(anyhow::Error::from).and_then(|(stream, _)| {
                receive(BufReader::new(stream), |sent| Ok(sender.send(Read::Sent(sent))?))
            });
            sender.send(Read::Closed(result))
        });
        let mut outcome = LinuxOutcome {
            status: -1,
            recorded: None,
            stopped: false,
            console: Vec::new(),
            files: Vec::new(),
            vdso: None,
            symbols: None,
            truth: Truth::with_options(&options),
            probe: None,
            times: [Duration::ZERO; 2],
        };
        let mut progress = ProgressWatch::new(self.time_limits, started);
        loop {
            let wait =
                progress.wait(Instant::now()).map_err(|reason| outcome.failed(&anyhow!("{reason}")))?;
            if stopped() {
                if !self.recorder.is_empty() {
                    machine.ask()?;
                }
                machine.end(if self.recorder.is_empty() { GRACE } else { RECORDERS_GRACE })?;
                outcome.hear(monitor.rest()?, &mut watch);
                outcome.stopped = true;
                break;
            }
            let event = events.recv_timeout(wait.min(CHECK_EVERY));
            outcome.hear(
                match &event {
                    Ok(Read::Console(_)) => monitor.before_guest_line()?,
                    // No one reads the console, or nothing more comes.
                    _ if self.interactive || matches!(event, Ok(Read::Closed(_))) => monitor.rest()?,
                    _ => monitor.until_guest_line()?,
                },
                &mut watch,
            );
            match event {
                Ok(Read::Closed(Ok(()))) => {
                    // Linux restarts the machine, which ends it; a recorder has something to write then.
                    outcome.recorded = (!self.recorder.is_empty())
                        .then(|| machine.wait())
                        .transpose()?
                        .map(|(status, _)| status);
                    break;
                }
                // The terminal's signal ends the machine, too.
                Ok(Read::Closed(Err(_))) if stopped() => {}
                Ok(Read::Closed(Err(error))) => {
                    std::thread::sleep(Duration::from_secs(1));
                    outcome.hear(monitor.rest()?, &mut watch);
                    let error = match machine.ended()? {
                        Some((status, stderr)) => ended_early(status, &stderr).context(error),
                        None => error,
                    };
                    return Err(outcome.failed(&error));
                }
                Ok(read) => {
                    let read = read.fetch(&ram)?;
                    outcome.take(read, started, &mut watch)?;
                    progress.note_line(Instant::now());
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.monitor.is_some() {
                        let retired = truth::retired_at(&ram, LogPlace::of(&options));
                        if self.judged || retired.is_ok() {
                            let retired = retired?;
                            progress.note_retired(Instant::now(), retired);
                            watch(Event::Traced(retired));
                        }
                    }
                    // QEMU never connects to the socket if it does not like its command line.
                    if let Some((status, stderr)) = machine.ended()?.filter(|_| !stopped()) {
                        let early = ended_early(status, &stderr);
                        // The last output of the guest may still be unread.
                        if events.recv_timeout(Duration::from_secs(1)).is_err() {
                            return Err(outcome.failed(&early));
                        }
                    }
                }
                Err(RecvTimeoutError::Disconnected) => bail!("nobody reads what the machine says"),
            }
        }
        if self.monitor.is_some() {
            // A machine that was stopped early has no log yet.
            if self.judged && (!outcome.stopped || truth::retired_at(&ram, LogPlace::of(&options))? > 0) {
                outcome.truth.follow(&ram)?;
            }
            let region = self.layout()?.probe;
            outcome.probe = region.map(|region| ProbeTrace::read(&ram, region)).transpose()?;
        }
        Ok(outcome)
    }

    /// Returns the memory layout of a machine with a monitor.
    fn layout(&self) -> Result<Layout> {
        let size = |path: &Path| {
            let data = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
            anyhow::Ok(data.len())
        };
        let memory = self.memory.unwrap_or(DEFAULT_MEMORY);
        Layout::new(memory, &[size(&self.kernel)?, size(&self.initramfs)?], self.probe)
    }

    /// Returns the monitor's options.
    fn options(&self, monitor: &Monitor) -> Result<String> {
        let probe = self.probe.map(|instructions| format!(" times=0 probe-instructions={instructions}"));
        let layout = self.layout()?.monitor_options(&[]);
        Ok(format!("clock={TICKS} {}{} {layout}", monitor.options, probe.unwrap_or_default()))
    }

    fn command(&self, ram: &Path, socket: &Path, said: &Path) -> Result<Command> {
        let layout = self.monitor.is_some().then(|| self.layout()).transpose()?;
        let board = Board {
            accelerator: &["-accel", qemu::accelerator(qemu::version()?, self.processors)],
            properties: if layout.is_some() { PROPERTIES } else { "" },
            memory: layout.as_ref().map_or(self.memory.unwrap_or(512), Layout::machine_memory),
            ram,
        };
        let mut command = board.command();
        command.args(["-smp", &self.processors.to_string()]);
        // A processor that maps the display's memory while others execute has been seen to end QEMU with a signal.
        command.args(["-vga", "none"]);
        command.args(["-serial", if self.interactive { "mon:stdio" } else { "stdio" }]);
        command.arg("-chardev").arg(with_path("socket,id=results,path=", socket));
        command.args(["-serial", "chardev:results"]);
        let symbols = if self.probe.is_some() || self.sends_symbols { SENDS_SYMBOLS } else { "" };
        let watchdog = if self.words.contains("watchdog") { "" } else { NO_WATCHDOG };
        let words = format!("{COMMAND_LINE} {watchdog} {symbols} {}", self.words);
        let words = words.trim_end();
        match (&self.monitor, layout) {
            (Some(monitor), Some(layout)) => {
                command.args(monitor_lines::arguments(said));
                command.args(layout.loaders(&[&self.kernel, &self.initramfs]));
                command.arg("-kernel").arg(&monitor.image);
                command.arg("-append").arg(format!("{} -- {words}", self.options(monitor)?));
            }
            _ => {
                command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initramfs);
                command.arg("-append").arg(words);
            }
        }
        let mut command = qemu::behind(&self.recorder, command);
        if self.interactive {
            command.stdin(Stdio::inherit()).stdout(Stdio::inherit());
        } else {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        }
        // A recorder shows its progress, and says what it has recorded.
        command.stderr(if self.recorder.is_empty() { Stdio::piped() } else { Stdio::inherit() });
        Ok(command)
    }
}

/// Returns the error for a machine that has ended before its guest has sent everything, with QEMU's own message.
fn ended_early(status: i32, stderr: &str) -> anyhow::Error {
    let separator = if stderr.trim().is_empty() { "" } else { ": " };
    let how = match status {
        ..0 => format!("was ended by signal {}", -status),
        status => format!("ended with status {status}"),
    };
    anyhow!("the machine {how}{separator}{}", stderr.trim())
}

fn read_console(console: impl BufRead, sender: &Sender<Read>) {
    for line in console.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if sender.send(Read::Console(line)).is_err() {
            break;
        }
    }
}

impl LinuxOutcome {
    /// Takes lines of the monitor.
    fn hear(&mut self, said: Vec<String>, watch: &mut impl FnMut(Event<'_>)) {
        for line in said {
            watch(Event::Monitor(&line));
            self.console.push(line);
        }
    }

    fn take(&mut self, read: Read, started: Instant, watch: &mut impl FnMut(Event<'_>)) -> Result<()> {
        match read {
            Read::Console(line) => {
                watch(Event::Console(&line));
                self.console.push(line);
            }
            Read::Sent(Sent::Begin { uptime }) => {
                self.times[0] = started.elapsed();
                watch(Event::Begin(&uptime));
            }
            Read::Sent(Sent::Output(bytes)) => watch(Event::Output(&bytes)),
            Read::Sent(Sent::Exit { status, uptime }) => {
                self.times[1] = started.elapsed().saturating_sub(self.times[0]);
                self.status = status;
                watch(Event::Exit(status, &uptime));
            }
            Read::Sent(Sent::File { path, bytes }) if path == VDSO => self.vdso = Some(bytes),
            Read::Sent(Sent::File { path, bytes }) if path == SYMBOLS => {
                self.symbols = Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            Read::Sent(Sent::File { path, bytes }) => {
                let inside = Path::new(&path).components().all(|part| matches!(part, Component::Normal(_)));
                ensure!(inside, "the guest sent a file with the path {path:?}");
                watch(Event::File(&path, bytes.len()));
                self.files.push((path.into(), bytes));
            }
            Read::Sent(Sent::End | Sent::Pages { .. }) | Read::Closed(_) => {}
        }
        Ok(())
    }

    /// Adds the end of the console to an error.
    fn failed(&self, error: &anyhow::Error) -> anyhow::Error {
        if self.console.is_empty() {
            return anyhow!("{error:#}");
        }
        let last: VecDeque<_> = self.console.iter().rev().take(60).collect();
        let last: Vec<_> = last.into_iter().rev().map(String::as_str).collect();
        anyhow!("{error:#}; the console's last lines:\n{}", last.join("\n"))
    }

    /// Returns a file that the guest left.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn file(&self, path: &str) -> Result<&[u8]> {
        let found = self.files.iter().find(|(name, _)| name == Path::new(path));
        found.map(|(_, bytes)| &bytes[..]).with_context(|| format!("the guest left no file /out/{path}"))
    }

    /// Writes the vdso to the path at which `--symfs` with this folder finds it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_vdso(&self, root: &Path) -> Result<()> {
        let Some(bytes) = &self.vdso else { return Ok(()) };
        let path = root.join(VDSO);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the files that the guest left into a folder.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn write_files(&self, folder: &Path) -> Result<()> {
        for (path, bytes) in &self.files {
            let path = folder.join(path);
            let write = || {
                std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
                std::fs::File::create(&path)?.write_all(bytes)
            };
            write().with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
