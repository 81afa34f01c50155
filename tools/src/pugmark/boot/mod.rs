//! The command line of `pugmark boot`: any kernel, disk or CD on virtual hardware that traces it.

mod linux;
mod monitor;
mod terminal;

use crate::output::tell;
use anyhow::{Context, Result};
use clap::Args;
use pugmark_launch::{
    boot::{Boot, BootSource, Booted, Console, Ending, ModuleFile},
    layout::{DEFAULT_MEMORY, DEFAULT_UEFI_MEMORY},
    linux::LinuxVersion,
    scratch::Scratch,
    truth::{Sum, Truth},
};
use pugmark_recorder::Trigger;
use std::{
    env,
    ffi::OsString,
    fs::File,
    io::BufWriter,
    io::Write,
    path::{Path, PathBuf},
};
use terminal::{StopReason, TIMED_OUT};

/// The exit status if the machine could not be started, or the log could not be read.
const FAILED: u8 = 125;
/// The exit status of what was ended by a signal, without the signal's number.
const BY_SIGNAL: i32 = 128;

/// The options of `pugmark boot`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark boot --cdrom system.iso
  pugmark boot --profile icelake --processors 4 --memory 1024 --disk disk.img
  pugmark boot --uefi --cdrom system.iso
  pugmark boot --linux -- perf record -e intel_pt//u -o /out/perf.data -- gzip -k notes
  pugmark boot --linux --record gzip.rec --start __x64_sys_execve -- gzip -k notes
  pugmark boot --kernel vmlinuz --initrd initrd.img --append console=ttyS0
  pugmark boot --kernel xen.gz --append \"xen com1=115200\" --module \"vmlinuz console=hvc0\" --initrd initrd.img
  pugmark boot --disk disk.img -- -snapshot -serial file:second.log")]
pub struct BootOptions {
    /// As this processor: broadwell to darkmont, or AMD's k8 to zen6
    #[arg(long, value_name = "NAME", default_value = "skylake")]
    profile: String,
    /// The machine's number of processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    processors: u16,
    /// The guest's memory in MiB: to 256 (default), or above 320; with `--uefi` from 384 on (512)
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    #[command(flatten)]
    source: SourceOptions,
    #[command(flatten)]
    for_linux: linux::LinuxOptions,
    /// Boot the disk or CD by UEFI firmware, OVMF, and not by the BIOS
    #[arg(long, conflicts_with_all = ["kernel", "linux"])]
    uefi: bool,
    /// The file that the kernel receives as its last module: Linux's initramfs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["disk", "cdrom", "linux"])]
    initrd: Option<PathBuf>,
    /// A file that the kernel receives as a module, and its words: Xen's Linux, its command line
    #[arg(long, value_name = "FILE WORDS", conflicts_with_all = ["disk", "cdrom", "linux"])]
    module: Vec<OsString>,
    /// The kernel's command line
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["disk", "cdrom"], allow_hyphen_values = true)]
    append: Option<String>,
    /// End the machine after SECONDS, with exit status 124
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Write what retired under tracing, an instruction a line: session, CPU, CPL, CR3, address
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// Record all that the machine executes into this folder, without the monitor
    #[arg(long, value_name = "DIR", conflicts_with_all = ["truth", "monitor", "module"])]
    record: Option<PathBuf>,
    /// Record from here on: FUNCTION[+0xOFFSET] of the kernel, 0xADDRESS or count:N
    #[arg(long, value_name = "WHERE", requires = "record")]
    start: Option<Trigger>,
    /// Record up to here: until the next start or, without --start, for good
    #[arg(long, value_name = "WHERE", requires = "record")]
    stop: Option<Trigger>,
    /// More options for the monitor, such as `pmi-skid=100`
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    monitor: String,
    /// With `--linux` the command that runs in it, as root; otherwise more arguments for QEMU
    #[arg(last = true, value_name = "WORDS")]
    arguments: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct SourceOptions {
    /// Boot this image of a disk: raw or qcow2
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// Boot this image of a CD
    #[arg(long, value_name = "FILE")]
    cdrom: Option<PathBuf>,
    /// Boot this kernel: Linux's bzImage, or a file for PVH, multiboot2 or multiboot
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Boot Linux and run WORDS in it: by `uname -r`, bookworm-cloud or a file [default: newest]
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = "")]
    linux: Option<LinuxVersion>,
}

/// Boots the guest, prints what it traced, and returns the exit status.
///
/// # Errors
/// If the monitor or QEMU is missing, a file cannot be read or written, or the log was too small.
pub fn run(options: &BootOptions) -> Result<u8> {
    if let Some(version) = &options.source.linux {
        return linux::run(options, version);
    }
    let boot = options.boot()?;
    if let Some(why) = boot.doubt()? {
        tell(format_args!("warning: {}: {why}", options.medium()));
    }
    let scratch = Scratch::with_room(room(boot.memory, options.truth.is_some()))?;
    let stop = StopReason::new(options.timeout);
    let ended = boot.run(&scratch, Console::Terminal, || stop.is_due(), |line| tell(format_args!("{line}")));
    let stopped = stop.status();
    drop(stop);
    let Booted { ending, truth } = ended?;
    if options.record.is_some() {
        return Ok(status(ending, stopped));
    }
    for line in summary(&truth.summed()) {
        tell(format_args!("{line}"));
    }
    if let Some(file) = &options.truth {
        write(file, &truth)?;
    }
    Ok(status(ending, stopped))
}

/// Returns the bytes that a machine takes whose guest has this memory in MiB: with the monitor's own, and its log.
const fn room(memory: u64, logs_each: bool) -> u64 {
    const MONITORS: u64 = 64;
    const LOG: u64 = 256;
    memory.saturating_add(MONITORS + if logs_each { LOG } else { 1 }).saturating_mul(1 << 20)
}

/// Returns the exit status for a run that has failed.
#[must_use]
pub fn failure(_: &anyhow::Error) -> u8 {
    FAILED
}

/// Returns the exit status for the end of a machine, or for the reason why it was stopped.
fn status(ending: Ending, stopped: Option<u8>) -> u8 {
    match ending {
        Ending::Exit(status) => status_of(status),
        Ending::Signal(signal) => {
            tell(format_args!("QEMU was ended by signal {signal}"));
            status_of(BY_SIGNAL + signal)
        }
        Ending::Stopped => stopped.unwrap_or(FAILED),
        Ending::TimedOut => TIMED_OUT,
    }
}

/// Returns an exit status as the system takes it.
const fn status_of(status: i32) -> u8 {
    // It fits into eight bits.
    status as u8
}

/// Returns the lines about what was traced.
fn summary(sums: &[Sum]) -> Vec<String> {
    if sums.is_empty() {
        return vec!["truth: nothing was traced".into()];
    }
    let line = |&Sum { session, cpu, cpl, instructions, hash }: &Sum| {
        let session = if session == 0 { String::new() } else { format!("session {session}, ") };
        format!(
            "truth: {session}processor {cpu}, level {cpl}: {instructions} instructions, hash {hash:#018x}"
        )
    };
    sums.iter().map(line).collect()
}

fn write(file: &PathBuf, truth: &Truth) -> Result<()> {
    let written = File::create(file).and_then(|created| {
        let mut out = BufWriter::new(created);
        truth.write(&mut out)?;
        out.flush()
    });
    written.with_context(|| format!("cannot write {}", file.display()))
}

impl BootOptions {
    fn boot(&self) -> Result<Boot> {
        Ok(Boot {
            monitor: if self.record.is_some() { PathBuf::new() } else { monitor::image()? },
            options: self.monitor_options(),
            source: self.boot_source(),
            processors: self.processors,
            uefi: self.uefi,
            recorder: self.recorder()?,
            memory: self.memory.unwrap_or(if self.uefi { DEFAULT_UEFI_MEMORY } else { DEFAULT_MEMORY }),
            logs_each: self.truth.is_some(),
            limit: None,
            arguments: self.arguments.clone(),
        })
    }

    fn medium(&self) -> std::path::Display<'_> {
        let SourceOptions { disk, cdrom, kernel, .. } = &self.source;
        disk.as_ref().or(cdrom.as_ref()).or(kernel.as_ref()).map_or(Path::new(""), PathBuf::as_path).display()
    }

    /// Returns the words before QEMU's if the machine is recorded.
    fn recorder(&self) -> Result<Vec<OsString>> {
        let Some(folder) = &self.record else { return Ok(vec![]) };
        let own = env::current_exe().context("cannot find pugmark's own file")?;
        let mut words: Vec<OsString> = vec![own.into()];
        words.extend(["record", "--machine", "--profile", &self.profile, "-o"].map(Into::into));
        words.push(folder.into());
        for (option, trigger) in [("--start", &self.start), ("--stop", &self.stop)] {
            words.extend(trigger.iter().map(|trigger| format!("{option}={trigger}").into()));
        }
        words.push("--".into());
        Ok(words)
    }

    fn monitor_options(&self) -> String {
        format!("profile={} {}", self.profile, self.monitor).trim_end().to_owned()
    }

    /// Returns the modules: each file's name is the first of its words.
    fn modules(&self) -> Vec<ModuleFile> {
        let module = |text: &OsString| {
            let words = text.to_string_lossy();
            match words.split_once(' ') {
                Some((file, _)) => ModuleFile { file: file.into(), words: words.clone().into_owned() },
                None => ModuleFile { file: text.into(), words: words.into_owned() },
            }
        };
        let initrd = self.initrd.iter().map(|file| ModuleFile { file: file.clone(), words: String::new() });
        self.module.iter().map(module).chain(initrd).collect()
    }

    fn boot_source(&self) -> BootSource {
        match self.source.clone() {
            SourceOptions { disk: Some(image), .. } => BootSource::Disk(image),
            SourceOptions { cdrom: Some(image), .. } => BootSource::Cdrom(image),
            SourceOptions { kernel, .. } => BootSource::Kernel {
                // One of the three is given.
                file: kernel.unwrap_or_default(),
                modules: self.modules(),
                command_line: self.append.clone().unwrap_or_default(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct BootCli {
        #[command(flatten)]
        options: BootOptions,
    }

    fn parse(words: &str) -> Result<BootOptions, clap::Error> {
        BootCli::try_parse_from(words.split(' ')).map(|cli| cli.options)
    }

    #[test]
    fn the_medium_reaches_the_machine_and_qemu_its_arguments() {
        for (words, source) in [
            ("boot --disk d", BootSource::Disk("d".into())),
            ("boot --cdrom c -- -snapshot", BootSource::Cdrom("c".into())),
            (
                "boot --kernel k --initrd i --append -v=1",
                BootSource::Kernel {
                    file: "k".into(),
                    modules: vec![ModuleFile { file: "i".into(), words: String::new() }],
                    command_line: "-v=1".into(),
                },
            ),
        ] {
            let options = parse(words).unwrap();
            assert_eq!(options.boot_source(), source, "{words}");
            assert_eq!((options.memory, options.processors), (None, 1));
        }
        assert_eq!(parse("boot --cdrom c -- -m --disk").unwrap().arguments, ["-m", "--disk"]);
        let words = ["boot", "--kernel", "k", "--module", "l a=1 b", "--initrd", "i", "--module", "m"];
        let options = BootCli::try_parse_from(words).unwrap().options;
        let module = |file: &str, words: &str| ModuleFile { file: file.into(), words: words.into() };
        assert_eq!(options.modules(), [module("l", "l a=1 b"), module("m", "m"), module("i", "")]);
    }

    #[test]
    fn what_was_traced_is_said_for_each_level_of_each_processor() {
        assert_eq!(summary(&[]), ["truth: nothing was traced"]);
        let sum = Sum { session: 0, cpu: 1, cpl: 3, instructions: 12, hash: 0xab };
        let lines = summary(&[sum, Sum { session: 7, ..sum }]);
        let expected = ["", "session 7, "].map(|session| {
            format!("truth: {session}processor 1, level 3: 12 instructions, hash 0x00000000000000ab")
        });
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_status_is_the_guests_or_tells_who_has_ended_it() {
        for (ending, stopped, expected) in [
            (Ending::Exit(33), None, 33),
            (Ending::Signal(11), None, 139),
            (Ending::Stopped, Some(130), 130),
            (Ending::TimedOut, None, 124),
        ] {
            assert_eq!(status(ending, stopped), expected, "{ending:?}");
        }
    }
}
