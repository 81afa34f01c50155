//! `cargo xtask linux`: Debian's Linux on the virtual hardware.

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_harness::images::{Images, build_pugmark};
use pugmark_harness::linux::boots::{self, Booted};
use pugmark_harness::linux::packages::{self, Packages, unpack_kernel};
use pugmark_harness::linux::verify::{Verified, Verify, all};
use pugmark_harness::linux::{DebianKernel, Event, Guest, LinuxMachine, Monitor, PERF, Program};
use pugmark_harness::time_limits::TimeLimits;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::run::write_truth;
use crate::setup::{self, SetupOptions};

/// The beginning of the monitor's message that the guest has enabled a counter for an event that is not modelled.
const NOT_COUNTED: &str = "monitor: not counted ";

#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask linux                                        a shell; what is in /out at its end comes to the host
  cargo xtask linux -- perf record -e intel_pt//u -o /out/perf.data -- gzip -k /etc/passwd
  cargo xtask linux --with ./a.out:/bin/a.out -- perf stat a.out
  cargo xtask linux --boots                                Debian's kernels on all processors, and their complaints
  cargo xtask linux --verify=skylake                       perf and our decoder against the truth, on one processor")]
pub(crate) struct LinuxOptions {
    #[command(flatten)]
    setup: SetupOptions,
    /// The processor that the monitor shows
    #[arg(long, default_value = "skylake")]
    profile: String,
    /// Without the monitor: Linux on QEMU's own processor, which traces nothing
    #[arg(long, conflicts_with_all = ["profile", "truth", "monitor"])]
    plain: bool,
    /// The machine's number of processors
    #[arg(long, value_name = "N", default_value_t = 1)]
    processors: u16,
    /// The guest's memory in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Boot this kernel of Debian's: bookworm-cloud, bookworm-rt (Linux 6.1), trixie-cloud or trixie-rt (Linux 6.12)
    #[arg(long, value_name = "RELEASE-FLAVOUR", conflicts_with = "kernel")]
    debian: Option<DebianKernel>,
    /// Boot this kernel: a bzImage, or the ELF file in it; otherwise Debian's newest
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Boot with this archive of files in place of ours
    #[arg(long, value_name = "FILE", conflicts_with_all = ["with", "command"])]
    initrd: Option<PathBuf>,
    /// Take a file of the host along, with the libraries that it needs; PATH is where the guest has it
    #[arg(long, value_name = "FILE[:PATH]")]
    with: Vec<Program>,
    /// The folder for the files that the guest leaves in /out
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    /// Write every instruction that retired under tracing: `session cpu cpl cr3 address`, a line each
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// Trace Linux from the machine's first instruction on, for MILLIONS million instructions: the monitor does it, as
    /// a probe on the board would. The recording is the folder boot.rec beside the files of /out
    #[arg(long, value_name = "MILLIONS", conflicts_with = "plain")]
    probe: Option<u64>,
    /// More options for the monitor, such as `pmi-skid=100`
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    monitor: String,
    /// More for Linux's command line
    #[arg(long, value_name = "WORDS", default_value = "")]
    append: String,
    /// Print Linux's console, too
    #[arg(long)]
    console: bool,
    /// Let perf record programs in the guest, in many ways, and hold what perf's decoder and ours find in its files
    /// against what the monitor logged; only the rows that have this text, if one is given
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    #[arg(conflicts_with_all = ["plain", "initrd", "with", "truth", "command"])]
    verify: Option<String>,
    /// Boot each of these kernels on each profile with the watchdog's counter on, let perf sample and count, and print
    /// what they complain of; only those whose row has this text, if one is given
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    #[arg(conflicts_with_all = ["plain", "kernel", "debian", "initrd", "with", "truth", "verify", "command"])]
    boots: Option<String>,
    /// The command to run in the guest, as root; without it a shell
    #[arg(last = true)]
    command: Vec<String>,
}

/// Boots Linux, runs the command in it, and brings back its files.
pub(crate) fn linux(options: &LinuxOptions) -> Result<ExitCode> {
    setup::prepare_linux(options.setup.no_install)?;
    let folder = packages::folder();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut packages =
        Packages { no_install: options.setup.no_install, tell: &mut |command| println!("{command}") };
    if let Some(text) = &options.boots {
        return boots(&mut packages, text);
    }
    let kernel = match (&options.kernel, options.debian) {
        (None, None) => packages.kernel()?,
        (None, Some(kernel)) => packages.kernel_of(kernel)?,
        (Some(file), _) => {
            let elf = folder.join("vmlinux");
            unpack_kernel(file, &elf)?;
            elf
        }
    };
    if let Some(text) = &options.verify {
        let perf = PathBuf::from(PERF);
        let (busybox, pugmark) = (packages.busybox()?, build_pugmark()?);
        return verify(&Verify { kernel, busybox, perf, pugmark, kept: folder.join("wrong") }, text);
    }
    let initramfs = match &options.initrd {
        Some(file) => file.clone(),
        None => {
            let guest = options.guest(&mut packages)?;
            let root = folder.join("root");
            if root.exists() {
                fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
            }
            guest.files().write_to(&root)?;
            write(&folder.join("initramfs.cpio"), &guest.files().archive()?)?
        }
    };
    let monitor = match options.plain {
        true => None,
        false => Some(Monitor {
            image: Images::build()?.monitor,
            options: format!("profile={} {}", options.profile, options.monitor).trim_end().to_owned(),
        }),
    };
    let machine = LinuxMachine {
        kernel,
        initramfs,
        monitor,
        judged: options.truth.is_some() || options.probe.is_some(),
        processors: options.processors,
        memory: options.memory,
        probe: options.probe.map(|millions| millions.saturating_mul(1_000_000)),
        words: options.append.clone(),
        interactive: options.command.is_empty(),
        // A user who waits can end the run.
        time_limits: TimeLimits { no_progress: Duration::MAX, total: Duration::MAX },
    };
    let outcome = machine.run(options.reporter())?;
    if !machine.interactive {
        write(&folder.join("console.log"), outcome.console.join("\n").as_bytes())?;
    }
    for event in outcome.console.iter().filter_map(|line| Some(line.split_once(NOT_COUNTED)?.1)) {
        eprintln!("linux: perf shows 0 for what is not modelled: {event}");
    }
    outcome.write_files(&options.out)?;
    if options.initrd.is_none() {
        outcome.write_vdso(&folder.join("root"))?;
    }
    if let Some(trace) = &outcome.probe {
        let symbols = outcome.symbols.as_deref().unwrap_or_default();
        let folder = options.out.join("boot.rec");
        trace.write(&folder, &outcome.truth, symbols)?;
        let (folder, count) = (folder.display(), trace.instructions(&outcome.truth));
        eprintln!("linux: {folder}, {count} instructions, in {} parts", trace.parts.len());
        eprintln!("linux: pugmark decode --check {folder}; pugmark calls --of start_kernel {folder}");
    }
    if let Some(file) = &options.truth {
        write_truth(file, std::slice::from_ref(&outcome.truth))?;
    }
    // The files that perf needs to find the code of the guest's programs.
    if outcome.file("perf.data").is_ok() && options.initrd.is_none() {
        let (data, root) = (options.out.join("perf.data"), folder.join("root"));
        let here = std::env::current_dir()?;
        let root = root.strip_prefix(here).unwrap_or(&root);
        eprintln!("linux: perf script --input {} --symfs {}", data.display(), root.display());
    }
    Ok(u8::try_from(outcome.status).map_or(ExitCode::FAILURE, ExitCode::from))
}

impl LinuxOptions {
    fn guest(&self, packages: &mut Packages<'_>) -> Result<Guest> {
        let mut guest = Guest::new(&packages.busybox()?);
        guest.add(&PERF.parse().map_err(anyhow::Error::msg)?)?;
        self.with.iter().try_for_each(|program| guest.add(program))?;
        if !self.command.is_empty() {
            guest.command(&self.command);
        }
        Ok(guest)
    }

    /// Returns a function that prints the guest's progress.
    fn reporter(&self) -> impl FnMut(Event<'_>) {
        let console = self.console;
        let started = Instant::now();
        eprintln!("linux: the machine starts");
        let mut traced = 0;
        move |event| {
            let at = started.elapsed().as_secs_f64();
            match event {
                Event::Monitor(line) => eprintln!("{line}"),
                Event::Console(line) if console => eprintln!("{line}"),
                Event::Console(_) => {}
                Event::Begin(uptime) => {
                    eprintln!("linux: booted in {at:.1} s, {uptime} s by the guest's clock");
                }
                Event::Output(bytes) => {
                    let mut out = std::io::stdout().lock();
                    // A user who closes the output does not want it.
                    let _ = out.write_all(bytes).and_then(|()| out.flush());
                }
                Event::Exit(status, uptime) => {
                    eprintln!("linux: status {status} at {at:.1} s, {uptime} s by the guest's clock");
                }
                Event::File(path, bytes) => eprintln!("linux: /out/{path}, {bytes} bytes"),
                Event::Traced(count) if count != traced => {
                    traced = count;
                    eprintln!("linux: {count} instructions traced at {at:.0} s");
                }
                Event::Traced(_) => {}
            }
        }
    }
}

/// Boots the kernels on the profiles whose row has this text.
fn boots(packages: &mut Packages<'_>, text: &str) -> Result<ExitCode> {
    let rows: Vec<_> = boots::all().filter(|row| row.to_string().contains(text)).collect();
    ensure!(!rows.is_empty(), "no kernel and profile has {text:?}");
    let mut wrong = 0;
    for row in &rows {
        match row.run(packages) {
            Ok(booted) => {
                let Booted { version, time, complaints, counters } = booted;
                wrong += usize::from(!complaints.is_empty());
                let count = complaints.len();
                println!("{:6.1} s {count:3} complaints  {row}, {version}: {counters}", time.as_secs_f64());
                complaints.iter().for_each(|line| println!("    {line}"));
            }
            Err(error) => {
                wrong += 1;
                println!("wrong: {row}: {error:#}");
            }
        }
    }
    println!("{} of {} boots are without complaints", rows.len() - wrong, rows.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the rows of the table that have this text.
fn verify(verify: &Verify, text: &str) -> Result<ExitCode> {
    let rows: Vec<_> = all().into_iter().filter(|row| row.to_string().contains(text)).collect();
    ensure!(!rows.is_empty(), "no row of the table has {text:?}");
    let mut wrong = 0;
    println!(
        "{:>9} {:>12} {:>9} {:>9}  {:>9}  what was recorded",
        "compared", "instructions", "stepped", "a second", "bytes"
    );
    verify.run(&rows, |row, result| match result {
        Ok(Verified { compared, instructions, stepped, bytes, time }) => {
            let rate = stepped as f64 / time.as_secs_f64();
            println!("{compared:9} {instructions:12} {stepped:9} {rate:9.0}  {bytes:9}  {row}");
        }
        Err(error) => {
            wrong += 1;
            println!("wrong: {row}: {error:#}");
        }
    })?;
    println!("{} of {} rows are the truth's", rows.len() - wrong, rows.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a file and returns its path.
fn write(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.into())
}
