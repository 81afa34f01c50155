//! Runs a QEMU machine for as long as it makes progress.

use anyhow::{Result, bail, ensure};
use pugmark_launch::monitor_lines::{self, MonitorLines};
use pugmark_launch::process::Running;
use pugmark_protocol::Done;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use crate::images::Images;
use crate::qemu::{self, Board, with_path};
use crate::report::Transcript;
use crate::scratch::Scratch;
use crate::time_limits::{ProgressWatch, TimeLimits, TimedOut};
use crate::truth::{self, LogPlace, Truth};

/// QEMU's exit status after the guest has written 0x10 to the debug-exit port: everything passed.
pub(crate) const EXIT_PASSED: i32 = (0x10 << 1) | 1;
/// The same for 0x11: something failed.
const EXIT_FAILED: i32 = (0x11 << 1) | 1;

/// The beginning of the monitor's line which reports that QEMU has lost the guest's state.
const LOST: &str = "monitor: QEMU has lost the guest's state";
/// Number of starts of a machine whose guest QEMU loses, which happens once in some hundred runs of several processors.
const STARTS: u32 = 3;

/// QEMU's TCG has lost the state of the guest's first processor, so the machine could not continue. The cause is
/// documented where the monitor detects it, at its `VMRUN`.
#[derive(Clone, Copy, Debug)]
pub struct LostGuest;

impl fmt::Display for LostGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QEMU has lost the state of the guest's first processor")
    }
}

impl Error for LostGuest {}

/// Starts a machine until QEMU does not lose its guest, at most [`STARTS`] times.
fn unless_lost<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..STARTS {
        match start() {
            Err(error) if error.is::<LostGuest>() => eprintln!("{error}; the machine is started again"),
            result => return result,
        }
    }
    start()
}

/// The kernel to boot, and the time limits.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel: PathBuf,
    module: Option<PathBuf>,
    command_line: String,
    time_limits: TimeLimits,
    extra: Vec<OsString>,
    keeps_truth: bool,
    /// The machine's memory in MiB.
    memory: u32,
    /// QEMU's arguments that select how it executes the guest.
    accelerator: &'static [&'static str],
}

/// The results of a machine that has ended.
#[derive(Debug)]
pub struct Outcome {
    /// The text that the guest wrote to its serial port, and the monitor's lines.
    pub transcript: Transcript,
    /// The monitor's log; empty if the machine ran without the monitor.
    pub truth: Truth,
    /// The guest's output to the debug console: the trace bytes that it dumped.
    pub dump: Vec<u8>,
}

impl Machine {
    /// Returns a machine with a kernel directly on it, without the monitor.
    #[must_use]
    pub fn plain(kernel: &Path, command_line: &str) -> Self {
        Self {
            kernel: kernel.into(),
            module: Some(kernel.into()),
            command_line: command_line.into(),
            time_limits: TimeLimits::default(),
            extra: Vec::new(),
            keeps_truth: false,
            memory: 512,
            accelerator: &["-accel", "tcg"],
        }
    }

    /// Returns a machine with our guest kernel on the monitor.
    #[must_use]
    pub fn on_monitor(images: &Images, monitor_options: &str, command_line: &str) -> Self {
        Self::kernel_on_monitor(images, &images.guest, monitor_options, command_line)
    }

    /// Returns a machine with any kernel on the monitor.
    #[must_use]
    pub fn kernel_on_monitor(
        images: &Images,
        kernel: &Path,
        monitor_options: &str,
        command_line: &str,
    ) -> Self {
        Self {
            kernel: images.monitor.clone(),
            module: Some(kernel.into()),
            command_line: format!("{monitor_options} -- {command_line}"),
            time_limits: TimeLimits::default(),
            extra: Vec::new(),
            keeps_truth: true,
            memory: 512,
            accelerator: &["-accel", "tcg"],
        }
    }

    /// Sets the time limits of the machine.
    #[must_use]
    pub fn time_limits(mut self, time_limits: TimeLimits) -> Self {
        self.time_limits = time_limits;
        self
    }

    /// Sets the number of processors; the default is one.
    #[must_use]
    pub fn processors(self, processors: u16) -> Self {
        self.arguments(["-smp".into(), processors.to_string()])
    }

    /// Sets the memory in MiB; the default is 512.
    #[must_use]
    pub fn memory(mut self, mib: u32) -> Self {
        self.memory = mib;
        self
    }

    /// Makes QEMU execute each instruction separately.
    ///
    /// # Errors
    /// If QEMU cannot be started, or does not print its version.
    pub fn singly(mut self) -> Result<Self> {
        self.accelerator = qemu::one_by_one(qemu::version()?);
        Ok(self)
    }

    /// Adds arguments to QEMU's command line.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.extra.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Runs the machine to its end. Calls `watch` for each line as the guest or the monitor writes it, with all lines
    /// and records up to then. Each of the monitor's lines precedes the line that the guest had not ended then.
    ///
    /// # Errors
    /// If the machine does not start; the guest breaks the protocol, makes no progress, or ends without its closing
    /// line or with another status than that line; a rule of the hardware was broken outside of any workload. A rule
    /// broken within a workload is reported in [`crate::report::End`].
    pub fn run_watched(&self, watch: impl FnMut(&str, &Transcript, &Truth)) -> Result<Outcome> {
        let scratch = Scratch::new()?;
        let files = MachineFiles::new(&scratch);
        self.follow(self.command(&files), &files, watch)
    }

    /// Runs a command that writes a guest's lines to its standard output, and the rest into these files.
    fn follow(
        &self,
        command: Command,
        files: &MachineFiles,
        mut watch: impl FnMut(&str, &Transcript, &Truth),
    ) -> Result<Outcome> {
        let ram = &files.ram;
        let mut monitor = MonitorLines::new(files.monitor.clone());
        let mut child = Running::start(command)?;
        let lines = child.lines()?;
        let mut progress = ProgressWatch::new(self.time_limits, Instant::now());
        let mut transcript = Transcript::default();
        let monitor_options = self.command_line.split(" -- ").next().unwrap_or_default();
        let mut truth = Truth::with_options(monitor_options);
        loop {
            let wait = match progress.wait(Instant::now()) {
                Ok(wait) => wait,
                Err(reason) => return Err(timed_out(reason, &transcript)),
            };
            match lines.recv_timeout(wait) {
                Ok(line) => {
                    hear(monitor.before_guest_line()?, &mut transcript, &truth, &mut watch)?;
                    transcript.line(&line)?;
                    let ended = line.starts_with("ok ") || line.starts_with("fail ");
                    if self.keeps_truth && ended {
                        truth.follow(ram)?;
                    }
                    watch(&line, &transcript, &truth);
                    // The time for judging is not counted against the machine.
                    progress.note_line(Instant::now());
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    hear(monitor.until_guest_line()?, &mut transcript, &truth, &mut watch)?;
                    if self.keeps_truth {
                        let retired = truth::retired_at(ram, LogPlace::of(monitor_options))?;
                        progress.note_retired(Instant::now(), retired);
                    }
                }
            }
        }
        let (status, stderr) = child.wait()?;
        hear(monitor.rest()?, &mut transcript, &truth, &mut watch)?;
        let passed = match transcript.done {
            None if transcript.monitor.iter().any(|line| line.starts_with(LOST)) => bail!(LostGuest),
            None => bail!("ended without its closing line, status {status}\n{}\n{stderr}", tail(&transcript)),
            Some(Done { failed, .. }) => failed == 0,
        };
        if self.keeps_truth {
            truth.follow(ram)?;
        }
        let expected = if passed { EXIT_PASSED } else { EXIT_FAILED };
        if status != expected {
            bail!("status {status} instead of {expected}\n{}\n{stderr}", tail(&transcript));
        }
        let outside: Vec<_> = transcript.broken_outside().collect();
        ensure!(outside.is_empty(), "the kernel broke rules of the hardware: {}", outside.join("\n"));
        Ok(Outcome { transcript, truth, dump: std::fs::read(&files.dump).unwrap_or_default() })
    }

    /// Runs the machine for callers that only need the lines. Starts it again if QEMU has [lost the guest](LostGuest):
    /// `watch` then receives its lines again from the first one.
    ///
    /// # Errors
    /// Those of [`Self::run_watched`], and a workload in which the kernel broke a rule of the hardware.
    pub fn run(&self, mut watch: impl FnMut(&str)) -> Result<Outcome> {
        let outcome = unless_lost(|| self.run_watched(|line, _, _| watch(line)))?;
        let broken = outcome.transcript.broken_rules();
        ensure!(broken.is_empty(), "the kernel broke rules of the hardware: {}", broken.join("\n"));
        Ok(outcome)
    }

    fn command(&self, files: &MachineFiles) -> Command {
        let board = Board {
            accelerator: self.accelerator,
            properties: "",
            memory: self.memory.into(),
            ram: &files.ram,
        };
        let mut command = board.command();
        command
            .args(["-serial", "stdio"])
            .arg("-chardev")
            .arg(with_path("file,id=dump,path=", &files.dump))
            .args(["-device", "isa-debugcon,iobase=0xe9,chardev=dump"])
            .arg("-kernel")
            .arg(&self.kernel);
        if self.keeps_truth {
            command.args(monitor_lines::arguments(&files.monitor));
        }
        if let Some(module) = &self.module {
            command.arg("-initrd").arg(module);
        }
        command.arg("-append").arg(&self.command_line).args(&self.extra);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Takes lines of the monitor.
fn hear(
    said: Vec<String>,
    transcript: &mut Transcript,
    truth: &Truth,
    watch: &mut impl FnMut(&str, &Transcript, &Truth),
) -> Result<()> {
    for line in said {
        transcript.monitor_line(&line)?;
        watch(&line, transcript, truth);
    }
    Ok(())
}

/// The files that a machine writes.
struct MachineFiles {
    /// The machine's memory, which contains the log.
    ram: PathBuf,
    /// The bytes that the guest writes to the debug console.
    dump: PathBuf,
    /// The monitor's lines.
    monitor: PathBuf,
}

impl MachineFiles {
    fn new(scratch: &Scratch) -> Self {
        let [ram, dump, monitor] = ["ram", "dump", "monitor"].map(|name| scratch.file(name));
        Self { ram, dump, monitor }
    }
}

fn timed_out(reason: TimedOut, transcript: &Transcript) -> anyhow::Error {
    anyhow::anyhow!("{reason}; the last lines:\n{}", tail(transcript))
}

fn tail(transcript: &Transcript) -> String {
    let run = transcript.runs.last();
    let last = |lines: &[String]| lines[lines.len().saturating_sub(20)..].to_vec();
    let mut lines = [last(&transcript.other), last(&transcript.monitor)].concat();
    if let Some(run) = run {
        lines.push(format!("in {} ({:?})", run.name, run.end));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Returns a program in place of QEMU: it writes these lines, and `oops` to standard error, and ends with the
    /// status of `last`. Lines with the prefix `monitor: ` go to the monitor's file, where other lines make a mark.
    fn program(lines: &str, last: &str, files: &MachineFiles) -> Command {
        const WRITE: &str = "while IFS= read -r line; do
                case $line in
                    'monitor: '*) echo \"$line\" >>\"$1\" ;;
                    *) echo >>\"$1\"; echo \"$line\" ;;
                esac
            done";
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{WRITE} <<'END'\n{lines}\nEND\necho oops >&2\n{last}")]);
        command.arg("sh").arg(&files.monitor);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn followed(machine: &Machine, lines: &str, last: &str) -> Result<Outcome> {
        let scratch = Scratch::new()?;
        let files = MachineFiles::new(&scratch);
        std::fs::write(&files.dump, "trace")?;
        machine.follow(program(lines, last, &files), &files, |_, _, _| {})
    }

    #[test]
    fn a_machine_ends_with_its_closing_line_and_the_status_that_goes_with_it() {
        let plain = Machine::plain(Path::new("kernel"), "");
        let violation = "monitor: violation processor=0 pmis_dropped=1";
        for (lines, last, wrong) in [
            ("run a\nok a\ndone 1 0", "exit 33", None),
            ("run a\nfail a: so\ndone 0 1", "exit 35", None),
            ("run a\nok a\ndone 1 0", "exit 35", Some("status 35 instead of 33")),
            ("run a\nok a\ndone 1 0", "exit 0", Some("status 0 instead of 33")),
            ("run a\nfail a: so\ndone 0 1", "exit 33", Some("status 33 instead of 35")),
            ("run a\nok a\ndone 1 0", "kill -9 $$", Some("status -9 instead of 33")),
            ("run a\nok a", "exit 33", Some("ended without its closing line, status 33")),
            ("talk\nrun a", "exit 33", Some("talk\nin a (None)\noops")),
            ("run a\nrun b", "exit 33", Some("in the guest's line \"run b\"")),
            (&format!("run a\nok a\n{violation}\ndone 1 0"), "exit 33", Some(violation)),
        ] {
            let found = followed(&plain, lines, last);
            let text = found.as_ref().err().map(|error| format!("{error:#}"));
            assert_eq!(text.is_some(), wrong.is_some(), "{lines:?}, {last}: {text:?}");
            assert!(text.unwrap_or_default().contains(wrong.unwrap_or_default()), "{lines:?}, {last}");
            if let Ok(outcome) = found {
                assert_eq!((outcome.transcript.runs.len(), &outcome.dump[..]), (1, &b"trace"[..]));
            }
        }
    }

    #[test]
    fn a_machine_is_started_again_only_if_qemu_has_lost_its_guest() {
        let said = LOST.strip_prefix("monitor: ").unwrap();
        assert!(include_str!("../../monitor/src/image/vcpu.rs").contains(said), "the monitor says: {said}");
        let machine = Machine::plain(Path::new("kernel"), "");
        let lost = format!("run a\n{LOST}: and why");
        // The last lines of the starts, and the number of starts.
        for (ends, expected) in [
            (&["run a\nok a\ndone 1 0"][..], 1),
            (&[&lost, "run a\nok a\ndone 1 0"], 2),
            (&[&lost, "run a\nmonitor: unexpected exit", "not reached"], 2),
            (&[&lost, &lost, &lost, "not reached"], 3),
            // After the guest's closing line, the guest does not count as lost.
            (&[&format!("run a\nok a\ndone 1 0\n{LOST}")], 1),
        ] {
            let mut starts = 0;
            let result = unless_lost(|| {
                starts += 1;
                followed(&machine, ends[starts - 1], "exit 33")
            });
            let last = ends[starts - 1];
            assert_eq!((starts, result.is_ok()), (expected, last.contains("done")), "{ends:?}");
        }
    }

    #[test]
    fn a_machine_that_is_silent_is_given_up() {
        let time_limits = TimeLimits { no_progress: Duration::from_millis(50), ..TimeLimits::default() };
        let machine = Machine::plain(Path::new("kernel"), "").time_limits(time_limits);
        let error = followed(&machine, "talk", "exec sleep 600").unwrap_err().to_string();
        assert!(
            error.starts_with("no line and no retired instruction for 50ms; the last lines:\ntalk"),
            "{error}"
        );
    }

    #[test]
    fn each_line_comes_with_what_was_reported_by_then() {
        let scratch = Scratch::new().unwrap();
        let files = MachineFiles::new(&scratch);
        let mut seen = Vec::new();
        let command = program("run a\nmonitor: one\nok a\ndone 1 0\nmonitor: two", "exit 33", &files);
        let machine = Machine::plain(Path::new("kernel"), "");
        let watch = |line: &str, said: &Transcript, _: &Truth| {
            seen.push((line.to_owned(), said.runs[0].end.is_some()))
        };
        machine.follow(command, &files, watch).unwrap();
        let expected = [
            ("run a", false),
            ("monitor: one", false),
            ("ok a", true),
            ("done 1 0", true),
            ("monitor: two", true),
        ];
        assert_eq!(seen, expected.map(|(line, ended)| (line.to_owned(), ended)));
        // With a monitor there must be a log.
        let machine = Machine { keeps_truth: true, ..machine };
        assert!(followed(&machine, "run a\nok a\ndone 1 0", "exit 33").is_err());
    }

    #[test]
    fn qemus_arguments_name_what_to_boot() {
        let machine = Machine::plain(Path::new("kernel"), "only=sort").processors(3).arguments(["-S"]);
        let files = ["ram", "dump", "monitor"].map(PathBuf::from);
        let [ram, dump, monitor] = files;
        let files = MachineFiles { ram, dump, monitor };
        let command = machine.command(&files);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let expected = ["-kernel", "kernel", "-initrd", "kernel", "-append", "only=sort", "-smp", "3", "-S"];
        assert_eq!(words[words.len() - expected.len()..], expected);
        assert!(
            words.iter().any(|word| word == "memory-backend-file,id=ram,size=512M,share=on,mem-path=ram")
        );
        assert!(words.iter().any(|word| word == "file,id=dump,path=dump"));
        // The monitor's channel exists if there is a monitor.
        let channel = "isa-debugcon,iobase=0xe8,chardev=monitor";
        let has_channel = |machine: &Machine| machine.command(&files).get_args().any(|word| word == channel);
        assert!(!has_channel(&machine) && has_channel(&Machine { keeps_truth: true, ..machine }));
    }
}
