//! Boots any guest on the monitor: one that speaks no protocol, for as long as it runs.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::layout::Layout;
use crate::linux_kernel;
use crate::monitor_lines::{self, MonitorLines};
use crate::process::Running;
use crate::qemu::{self, Board, with_path};
use crate::scratch::Scratch;
use crate::truth::{self, LogPlace, Truth};
use crate::uefi::{self, Firmware};

/// Ticks of the guest's clock per instruction while a guest is stepped. At 2.6 GHz and 250 interrupts of its timer a
/// second there are 100 000 instructions from one to the next, of which Linux's handler takes ten to twenty thousand.
pub const TICKS: u32 = 100;
/// Properties of the board: an HPET would continue while the guest's own clock is stopped.
pub const PROPERTIES: &str = ",hpet=off";
/// Firmware would execute parts of itself in system management mode, which the monitor does not have.
const FIRMWARE_PROPERTIES: &str = ",hpet=off,smm=off";
/// QEMU's argument that keeps OVMF from giving devices addresses above 4 GiB, which the guest does not reach.
const DEVICES_BELOW_4_GIB: &str = "name=opt/ovmf/X-PciMmio64Mb,string=0";

/// The name of the file, in a machine's folder, that is the machine's memory.
pub const RAM: &str = "ram";

/// Interval of checks for the end, and for lines of the monitor.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The time in which QEMU ends by itself at a signal that its terminal has sent.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// The same for a recorder, which has a trace to write.
pub(crate) const RECORDERS_GRACE: Duration = Duration::from_secs(60);

/// The medium that a guest boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootSource {
    /// The image of a disk, which firmware boots: raw, or QEMU's qcow2.
    Disk(PathBuf),
    /// The image of a CD, which firmware boots.
    Cdrom(PathBuf),
    /// A kernel, which the monitor itself starts.
    Kernel {
        /// The kernel: an ELF file with a PVH note, a file with a multiboot2 or multiboot header, or Linux's bzImage;
        /// any of these packed by gzip, too.
        file: PathBuf,
        /// The files that the kernel receives as its modules, four at most.
        modules: Vec<ModuleFile>,
        /// The kernel's command line.
        command_line: String,
    },
}

/// A file that a kernel receives as a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleFile {
    /// The file.
    pub file: PathBuf,
    /// The words that come with it, the first of which is a name for most kernels: Xen's Linux gets the others as its
    /// command line.
    pub words: String,
}

/// A guest, and its machine.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The monitor's image.
    pub monitor: PathBuf,
    /// Options of the monitor, including the profile.
    pub options: String,
    /// The medium that the guest boots from.
    pub source: BootSource,
    /// The firmware that boots a disk or a CD is UEFI's, OVMF, and not the BIOS.
    pub uefi: bool,
    /// The words before QEMU's by which a program starts QEMU that records the machine. That is without the monitor,
    /// and QEMU itself boots a kernel: one for PVH or multiboot, or a bzImage, with one module at most.
    pub recorder: Vec<OsString>,
    /// Number of processors.
    pub processors: u16,
    /// The guest's memory in MiB.
    pub memory: u64,
    /// The log has every instruction, not only count and hash; its size limits how many there may be.
    pub logs_each: bool,
    /// The longest time that the guest may run.
    pub limit: Option<Duration>,
    /// Additional arguments for QEMU.
    pub arguments: Vec<OsString>,
}

/// The other end of the guest's first serial port.
#[derive(Clone, Copy, Debug)]
pub enum Console<'a> {
    /// This program's standard input and output.
    Terminal,
    /// A file for the output.
    File(&'a Path),
}

/// The end of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// QEMU has ended with this status: 0 if the guest has switched the machine off or restarted it, `2 * value + 1` if
    /// it has written `value` to port F4H. If the monitor could not go on, the value is 7FH.
    Exit(i32),
    /// QEMU was ended by this signal.
    Signal(i32),
    /// The caller has stopped the machine.
    Stopped,
    /// The time limit has passed.
    TimedOut,
}

/// The results of a guest.
#[derive(Debug)]
pub struct Booted {
    /// The reason for the end.
    pub ending: Ending,
    /// The monitor's log; empty if nothing was traced.
    pub truth: Truth,
}

impl Boot {
    /// Runs the machine to its end, or until `stopped` returns true. Its files are in `scratch`; the file [`RAM`] there
    /// has the memory. Calls `watch` for each line of the monitor. QEMU's own messages go to the standard error output.
    ///
    /// # Errors
    /// If a file cannot be read, QEMU cannot be started, or a log of every instruction was too small.
    pub fn run(
        &self,
        scratch: &Scratch,
        console: Console<'_>,
        stopped: impl Fn() -> bool,
        mut watch: impl FnMut(&str),
    ) -> Result<Booted> {
        let [ram, said] = [RAM, "monitor"].map(|name| scratch.file(name));
        let mut machine = Running::start(self.command(scratch, console)?)?;
        let mut monitor = MonitorLines::new(said);
        let started = Instant::now();
        let ending = loop {
            let status = machine.status()?;
            monitor.rest()?.iter().for_each(|line| watch(line));
            if let Some(status) = status {
                // QEMU ends at the terminal's signal, too.
                break if stopped() { Ending::Stopped } else { Ending::of(status) };
            }
            if stopped() {
                self.end(&mut machine)?;
                break Ending::Stopped;
            }
            if self.limit.is_some_and(|limit| started.elapsed() > limit) {
                self.end(&mut machine)?;
                break Ending::TimedOut;
            }
            std::thread::sleep(CHECK_EVERY);
        };
        drop(machine);
        monitor.rest()?.iter().for_each(|line| watch(line));
        if !self.recorder.is_empty() {
            return Ok(Booted { ending, truth: Truth::default() });
        }
        let options = self.monitor_options(scratch)?;
        let mut truth = Truth::with_options(&options);
        if truth::retired_at(&ram, LogPlace::of(&options))? > 0 {
            truth.follow(&ram)?;
        }
        Ok(Booted { ending, truth })
    }

    fn end(&self, machine: &mut Running) -> Result<()> {
        if self.recorder.is_empty() {
            return machine.end(GRACE);
        }
        machine.ask()?;
        machine.end(RECORDERS_GRACE)
    }

    /// Returns the words about a medium that no firmware starts; `None` if there is nothing to say.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn doubt(&self) -> Result<Option<&'static str>> {
        let (image, at, record) = match &self.source {
            BootSource::Kernel { .. } => return Ok(None),
            // The last bytes of the first sector; the El Torito specification, "Boot Record Volume Descriptor".
            BootSource::Disk(image) => (image, 510, &b"\x55\xaa"[..]),
            BootSource::Cdrom(image) => (image, 0x8801, &b"CD001\x01EL TORITO SPECIFICATION"[..]),
        };
        let cannot_read = || format!("cannot read {}", image.display());
        if disk_format(image)? == "qcow2" {
            return Ok(None);
        }
        let mut found = vec![];
        let mut file = fs::File::open(image).with_context(cannot_read)?;
        file.seek(SeekFrom::Start(at)).with_context(cannot_read)?;
        file.take(record.len() as u64).read_to_end(&mut found).with_context(cannot_read)?;
        Ok(match &self.source {
            _ if found == record => None,
            BootSource::Cdrom(_) => Some("no firmware starts it: it has no boot record (El Torito)"),
            _ => Some("no firmware starts it: its first sector does not end with 55H and AAH"),
        })
    }

    /// Returns the guest's files that must be in the machine's memory.
    fn files(&self, scratch: &Scratch) -> Vec<PathBuf> {
        if !self.is_kernel() {
            return vec![];
        }
        let modules = self.modules().iter().map(|module| module.file.clone());
        [scratch.file("kernel")].into_iter().chain(modules).collect()
    }

    fn modules(&self) -> &[ModuleFile] {
        match &self.source {
            BootSource::Kernel { modules, .. } => modules,
            _ => &[],
        }
    }

    fn layout(&self, scratch: &Scratch) -> Result<Layout> {
        if self.uefi {
            return Layout::in_hole(self.memory, self.logs_each);
        }
        let size = |path: PathBuf| {
            let data = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            anyhow::Ok(data.len())
        };
        let sizes: Vec<u64> = self.files(scratch).into_iter().map(size).collect::<Result<_>>()?;
        Layout::new(self.memory, &sizes, None)
    }

    fn command(&self, scratch: &Scratch, console: Console<'_>) -> Result<Command> {
        let command =
            if self.recorder.is_empty() { self.monitored(scratch)? } else { self.recorded(scratch)? };
        let mut command = qemu::behind(&self.recorder, command);
        command.arg("-serial");
        match console {
            Console::Terminal => command.arg("stdio"),
            Console::File(file) => command.arg(with_path("file:", file)).stdin(Stdio::null()),
        };
        command.args(&self.arguments);
        Ok(command)
    }

    /// Returns the command of a machine without the monitor.
    fn recorded(&self, scratch: &Scratch) -> Result<Command> {
        let board = Board {
            accelerator: &["-accel", qemu::accelerator(qemu::version()?, self.processors)],
            properties: "",
            memory: self.memory,
            ram: &scratch.file(RAM),
        };
        let mut command = board.command();
        command.args(["-smp", &self.processors.to_string()]);
        match &self.source {
            BootSource::Kernel { file, modules, command_line } => {
                command.arg("-kernel").arg(file).arg("-append").arg(command_line);
                ensure!(modules.len() <= 1, "a machine that is recorded gives its kernel one module at most");
                modules.iter().for_each(|module| _ = command.arg("-initrd").arg(&module.file));
            }
            source => _ = command.args(drive(source)?),
        }
        if self.uefi {
            command.args(self.flash(scratch)?);
        }
        Ok(command)
    }

    /// Returns the command of a machine with the monitor below the guest.
    fn monitored(&self, scratch: &Scratch) -> Result<Command> {
        if let BootSource::Kernel { file, .. } = &self.source {
            let kernel = kernel(file)?;
            fs::write(scratch.file("kernel"), kernel).context("cannot write the kernel for QEMU")?;
        }
        let layout = self.layout(scratch)?;
        let accelerator = qemu::accelerator(qemu::version()?, self.processors);
        let ram = scratch.file(RAM);
        let board = Board {
            accelerator: &["-accel", accelerator],
            properties: if self.is_kernel() { PROPERTIES } else { FIRMWARE_PROPERTIES },
            memory: layout.machine_memory(),
            ram: &ram,
        };
        let mut command = board.command();
        command.args(["-smp", &self.processors.to_string()]);
        command.args(monitor_lines::arguments(&scratch.file("monitor")));
        let files = self.files(scratch);
        command.args(layout.loaders(&files.iter().map(PathBuf::as_path).collect::<Vec<_>>()));
        let command_line = match &self.source {
            BootSource::Kernel { command_line, .. } => command_line.as_str(),
            medium => {
                command.args(drive(medium)?);
                ""
            }
        };
        let line = format!("{} -- {command_line}", self.monitor_options(scratch)?);
        if self.uefi {
            command.args(self.firmware(scratch, &layout, &line)?);
        } else {
            command.arg("-kernel").arg(&self.monitor).arg("-append").arg(line);
        }
        Ok(command)
    }

    /// Returns QEMU's arguments for OVMF, with the monitor as a driver in an option ROM.
    fn firmware(&self, scratch: &Scratch, layout: &Layout, line: &str) -> Result<Vec<OsString>> {
        let mut arguments = self.flash(scratch)?;
        let rom = scratch.file("option-rom");
        let monitor = &self.monitor;
        let image = fs::read(monitor).with_context(|| format!("cannot read {}", monitor.display()))?;
        let ram_end = layout.machine_memory() << 20;
        let content = uefi::option_rom(&image, layout.hole_bytes(), ram_end, line);
        fs::write(&rom, content.with_context(|| monitor.display().to_string())?)
            .context("cannot write the monitor's option ROM")?;
        let device = with_path(&format!("{},romfile=", uefi::DEVICE), &rom);
        arguments.extend(["-device".into(), device, "-fw_cfg".into(), DEVICES_BELOW_4_GIB.into()]);
        Ok(arguments)
    }

    /// Returns QEMU's arguments for OVMF.
    fn flash(&self, scratch: &Scratch) -> Result<Vec<OsString>> {
        ensure!(!self.is_kernel(), "UEFI firmware boots a disk or a CD, not a kernel");
        let Firmware { code, variables } = Firmware::find()?;
        let own_variables = scratch.file("variables");
        // A copy of a file that nobody may write could not be written either.
        fs::read(&variables)
            .and_then(|content| fs::write(&own_variables, content))
            .with_context(|| format!("cannot copy {}", variables.display()))?;
        let flash = "if=pflash,format=raw";
        Ok(vec![
            "-drive".into(),
            with_path(&format!("{flash},unit=0,readonly=on,file="), &code),
            "-drive".into(),
            with_path(&format!("{flash},unit=1,file="), &own_variables),
        ])
    }

    const fn is_kernel(&self) -> bool {
        matches!(self.source, BootSource::Kernel { .. })
    }

    /// Returns the monitor's options; of two values of one option the last counts.
    fn monitor_options(&self, scratch: &Scratch) -> Result<String> {
        let mode = if self.logs_each { "full" } else { "hash" };
        let bios = if self.is_kernel() || self.uefi { "off" } else { "on" };
        let words: Vec<&str> = self.modules().iter().map(|module| module.words.as_str()).collect();
        let layout = self.layout(scratch)?.monitor_options(&words);
        Ok(format!("clock={TICKS} log-mode={mode} bios={bios} {layout} {}", self.options))
    }
}

impl Ending {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

/// Returns a kernel's file as the monitor takes it: unpacked if gzip has packed it, the ELF file of a bzImage.
fn kernel(file: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let unpacked = linux_kernel::unpacked(bytes).and_then(|bytes| {
        if linux_kernel::is_bzimage(&bytes) { linux_kernel::vmlinux(bytes) } else { Ok(bytes) }
    });
    unpacked.with_context(|| file.display().to_string())
}

/// Returns QEMU's arguments for a disk or a CD.
fn drive(medium: &BootSource) -> Result<[OsString; 2]> {
    let (image, kind) = match medium {
        BootSource::Disk(image) | BootSource::Kernel { file: image, .. } => (image, ""),
        BootSource::Cdrom(image) => (image, "media=cdrom,readonly=on,"),
    };
    let format = disk_format(image)?;
    // The guest may write to the disk; that of others does not change.
    let is_read_only = kind.is_empty() && fs::File::options().write(true).open(image).is_err();
    let snapshot = if is_read_only { "snapshot=on," } else { "" };
    Ok(["-drive".into(), with_path(&format!("if=ide,{kind}{snapshot}format={format},file="), image)])
}

/// Returns QEMU's name for the format of a disk's image.
fn disk_format(image: &Path) -> Result<&'static str> {
    let mut magic = vec![];
    let opened = fs::File::open(image).and_then(|file| file.take(4).read_to_end(&mut magic));
    opened.with_context(|| format!("cannot read {}", image.display()))?;
    Ok(if magic == b"QFI\xfb" { "qcow2" } else { "raw" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(source: BootSource) -> Boot {
        Boot {
            monitor: "/m".into(),
            options: "profile=icelake".into(),
            source,
            uefi: false,
            recorder: vec![],
            processors: 2,
            memory: 64,
            logs_each: false,
            limit: None,
            arguments: vec!["-snapshot".into()],
        }
    }

    #[test]
    fn a_disk_is_qcow2_or_raw() {
        let scratch = Scratch::new().unwrap();
        let image = scratch.file("image");
        for (bytes, format) in [(&b"QFI\xfb\0\0"[..], "qcow2"), (b"\xeb\x63\x90", "raw"), (b"", "raw")] {
            fs::write(&image, bytes).unwrap();
            assert_eq!(disk_format(&image).unwrap(), format, "{bytes:?}");
        }
        let error = disk_format(&scratch.file("no")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.ends_with("/no"), "{error}");
    }

    #[test]
    fn a_medium_that_no_firmware_starts_is_doubted_and_one_that_nobody_may_write_is_not_written() {
        let scratch = Scratch::new().unwrap();
        let image = scratch.file("image");
        let mut cd = vec![0; 0x9000];
        let record = b"\0CD001\x01EL TORITO SPECIFICATION\0";
        cd[0x8800..0x8800 + record.len()].copy_from_slice(record);
        let mut sector = vec![0; 512];
        sector[510..].copy_from_slice(b"\x55\xaa");
        let [disk, medium] = [BootSource::Disk(image.clone()), BootSource::Cdrom(image.clone())];
        for (bytes, source, is_doubted) in [
            (&sector, &disk, false),
            (&sector[..511].to_vec(), &disk, true),
            (&vec![], &disk, true),
            (&b"QFI\xfb".to_vec(), &disk, false),
            (&cd, &medium, false),
            (&cd, &disk, true),
            (&sector, &medium, true),
        ] {
            fs::write(&image, bytes).unwrap();
            assert_eq!(boot(source.clone()).doubt().unwrap().is_some(), is_doubted, "{source:?}");
        }
        assert!(!drive(&disk).unwrap()[1].to_str().unwrap().contains("snapshot"));
        // A program that is executed cannot be written, not by root either.
        let own = std::env::current_exe().unwrap();
        assert!(
            drive(&BootSource::Disk(own)).unwrap()[1].to_str().unwrap().contains("snapshot=on,format=raw,")
        );
    }

    #[test]
    fn a_kernel_that_is_neither_a_bzimage_nor_packed_is_taken_as_it_is() {
        let scratch = Scratch::new().unwrap();
        let file = scratch.file("file");
        fs::write(&file, b"\xd6\x50\x52\xe8, a multiboot2 header").unwrap();
        assert!(kernel(&file).unwrap().starts_with(b"\xd6\x50"));
        let mut bzimage = vec![0; 0x400];
        bzimage[0x202..0x206].copy_from_slice(b"HdrS");
        fs::write(&file, &bzimage).unwrap();
        assert!(format!("{:#}", kernel(&file).unwrap_err()).contains("payload"));
        let packed =
            [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &[1, 2, 0, 0xfd, 0xff, b'x', b'y'], &[0; 8]].concat();
        fs::write(&file, &packed).unwrap();
        assert_eq!(kernel(&file).unwrap(), b"xy");
        fs::write(&file, &packed[..11]).unwrap();
        assert!(format!("{:#}", kernel(&file).unwrap_err()).contains("gzip"));
        let command_line = String::new();
        let boot = boot(BootSource::Kernel { file: scratch.file("no"), modules: vec![], command_line });
        let error = boot.run(&scratch, Console::Terminal, || true, |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }

    /// Returns QEMU's arguments for this source, or skips if there is no QEMU.
    fn arguments(source: BootSource, scratch: &Scratch) -> Vec<String> {
        let command = boot(source).command(scratch, Console::Terminal).unwrap();
        command.get_args().map(|argument| argument.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_medium_reaches_qemu_and_the_monitor_knows_which() {
        let scratch = Scratch::new().unwrap();
        let image = scratch.file("a,b");
        fs::write(&image, "image").unwrap();
        let quoted = image.to_str().unwrap().replace(',', ",,");
        let own = "clock=100 log-mode=hash bios=on ram=64 profile=icelake -- ";
        for (source, drive) in [
            (BootSource::Disk(image.clone()), "if=ide,format=raw,file="),
            (BootSource::Cdrom(image.clone()), "if=ide,media=cdrom,readonly=on,format=raw,file="),
        ] {
            let arguments = arguments(source, &scratch);
            let after = |name: &str| &arguments[arguments.iter().position(|word| word == name).unwrap() + 1];
            assert_eq!((after("-drive"), after("-append")), (&format!("{drive}{quoted}"), &own.into()));
            assert_eq!((after("-smp").as_str(), after("-kernel").as_str()), ("2", "/m"));
            assert_eq!(arguments.last().unwrap(), "-snapshot");
        }
        let command_line = "a=1 -- b".to_owned();
        let modules = ["", "b c=1"].map(|words| ModuleFile { file: image.clone(), words: words.into() });
        let kernel = BootSource::Kernel { file: image, modules: modules.into(), command_line };
        let arguments = arguments(kernel, &scratch);
        let places = "kernel=0x20000000+0x5 module=0x20100000+0x5 module=0x20200000+0x5:b\u{1f}c=1";
        let own = format!("clock=100 log-mode=hash bios=off ram=64 {places} profile=icelake -- a=1 -- b");
        assert!(arguments.contains(&own), "{arguments:?}");
        assert!(arguments.contains(&format!("loader,addr=0x20100000,force-raw=on,file={quoted}")));
    }

    #[test]
    fn uefi_firmware_gets_the_monitor_as_a_rom_and_boots_no_kernel() {
        let scratch = Scratch::new().unwrap();
        let layout = Layout::in_hole(512, false).unwrap();
        let kernel = BootSource::Kernel { file: "k".into(), modules: vec![], command_line: String::new() };
        let error = Boot { uefi: true, ..boot(kernel) }.firmware(&scratch, &layout, "").unwrap_err();
        assert_eq!(error.to_string(), "UEFI firmware boots a disk or a CD, not a kernel");
        let boot = Boot { uefi: true, memory: 512, ..boot(BootSource::Disk("d".into())) };
        let own = "clock=100 log-mode=hash bios=off ram=577 log=0x14000000+0x100000 profile=icelake";
        assert_eq!(boot.monitor_options(&scratch).unwrap(), own);
        if Firmware::find().is_err() {
            return println!("skipped: there is no UEFI firmware OVMF (Debian's package ovmf)");
        }
        let error = boot.firmware(&scratch, &layout, "").unwrap_err().to_string();
        assert_eq!(error, "cannot read /m");
        let monitor = scratch.file("monitor");
        fs::write(&monitor, "").unwrap();
        let error = Boot { monitor, ..boot }.firmware(&scratch, &layout, "").unwrap_err();
        assert!(
            format!("{error:#}").ends_with("the monitor's file cannot be started by UEFI firmware"),
            "{error:#}"
        );
    }

    #[test]
    fn a_status_is_the_guests_or_a_signal() {
        for (status, ending) in [(0, Ending::Exit(0)), (33 << 8, Ending::Exit(33)), (9, Ending::Signal(9))] {
            assert_eq!(Ending::of(ExitStatus::from_raw(status)), ending);
        }
    }
}
