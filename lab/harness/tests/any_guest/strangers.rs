//! Guests that others have written: each boots until it says what shows that it has.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pugmark_harness::esp;
use pugmark_harness::images::build_monitor;
use pugmark_harness::linux::DebianKernel;
use pugmark_harness::linux::packages::{folder, packages};
use pugmark_harness::scratch::Scratch;
use pugmark_launch::boot::{Boot, BootSource, Console, ModuleFile};

/// A row of the table.
struct Stranger {
    name: &'static str,
    /// Returns the medium, or why it is not at hand.
    source: fn(&Scratch) -> Result<BootSource>,
    uefi: bool,
    processors: u16,
    memory: u64,
    /// The texts on the serial port, in this order.
    says: &'static [&'static str],
}

/// Those that take less than a minute.
const SHORT: [Stranger; 6] = [
    Stranger {
        name: "OVMF's shell",
        source: empty_disk,
        uefi: true,
        processors: 2,
        memory: 512,
        says: &["Shell> "],
    },
    Stranger {
        name: "GRUB",
        source: grub,
        uefi: false,
        processors: 1,
        memory: 256,
        says: &["Welcome to GRUB!", "it reads"],
    },
    Stranger {
        name: "GRUB by UEFI",
        source: grub,
        uefi: true,
        processors: 1,
        memory: 512,
        says: &["it reads"],
    },
    Stranger {
        name: "memtest86+",
        source: memtest,
        uefi: false,
        processors: 1,
        memory: 256,
        says: &["Memtest86+"],
    },
    Stranger {
        name: "iPXE",
        source: ipxe,
        uefi: false,
        processors: 1,
        memory: 256,
        says: &["iPXE initialising devices", "iPXE 1."],
    },
    Stranger {
        name: "iPXE by UEFI",
        source: ipxe_for_uefi,
        uefi: true,
        processors: 1,
        memory: 512,
        says: &["iPXE initialising devices", "iPXE 1."],
    },
];

/// Those that take longer.
const LONG: [Stranger; 3] = [
    Stranger {
        name: "Linux 6.1 by GRUB",
        source: linux_by_grub,
        uefi: false,
        processors: 2,
        memory: 512,
        says: &["Linux version 6.1.", "Brought up 1 node, 2 CPUs", "Unable to mount root"],
    },
    Stranger {
        name: "Linux 6.1 by GRUB and UEFI",
        source: linux_by_grub,
        uefi: true,
        processors: 2,
        memory: 512,
        says: &["Linux version 6.1.", "efi: EFI v", "Brought up 1 node, 2 CPUs", "Unable to mount root"],
    },
    Stranger {
        name: "Xen 4.17 with Linux 6.1",
        source: xen,
        uefi: false,
        processors: 2,
        memory: 1024,
        says: &["Xen version 4.17.", "Brought up 2 CPUs", "Linux version 6.1.", "Unable to mount root"],
    },
];

/// Returns a terminal's text without its escape sequences: the BIOS can move the cursor within a word.
fn without_escapes(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text.chars());
    while let Some(character) = rest.next() {
        if character != '\x1b' {
            plain.push(character);
        } else if rest.next() == Some('[') {
            // Its parameters are below the letter that ends it.
            rest.find(|character| ('@'..='~').contains(character));
        }
    }
    plain
}

#[test]
fn a_word_in_which_the_cursor_moved_is_read() {
    let text = "\x1bc\x1b[?7l\x1b[2JWelcome to GRU\x1b[10;14H\x1b[10;15HB!\r\n\x1b[Hit reads\x1b[";
    assert_eq!(without_escapes(text), "Welcome to GRUB!\r\nit reads");
}

/// Runs a row, and returns what it took.
fn run(stranger: &Stranger, scratch: &Scratch, source: BootSource, limit: Duration) -> Result<Duration> {
    let text = scratch.file("text");
    let said_all = Cell::new(false);
    let reads = || {
        let said = fs::read(&text).unwrap_or_default();
        let said = without_escapes(&String::from_utf8_lossy(&said));
        let mut rest = &said[..];
        stranger.says.iter().all(|expected| {
            rest.split_once(expected).is_some_and(|(_, after)| {
                rest = after;
                true
            })
        })
    };
    let boot = Boot {
        monitor: build_monitor()?,
        options: "profile=skylake".into(),
        source,
        uefi: stranger.uefi,
        recorder: vec![],
        processors: stranger.processors,
        memory: stranger.memory,
        logs_each: false,
        limit: Some(limit),
        // Output of boot loaders by INT 10H goes to the serial port.
        arguments: if stranger.uefi { vec![] } else { ["-machine".into(), "graphics=off".into()].into() },
    };
    let started = Instant::now();
    let mut lines = vec![];
    let stopped = || {
        said_all.set(said_all.get() || reads());
        said_all.get()
    };
    let booted = boot.run(scratch, Console::File(&text), stopped, |line| lines.push(line.to_owned()))?;
    let said = fs::read(&text).unwrap_or_default();
    let end = String::from_utf8_lossy(&said[said.len().saturating_sub(2000)..]).into_owned();
    ensure!(
        reads(),
        "{}: {:?} before {:?}: {end}\n{}",
        stranger.name,
        booted.ending,
        stranger.says,
        lines.join("\n")
    );
    Ok(started.elapsed())
}

/// Runs the rows whose media are at hand, each for no longer than `limit`.
fn run_each(strangers: &[Stranger], limit: Duration) {
    for stranger in strangers {
        let scratch = Scratch::new().unwrap();
        let missing = if stranger.uefi { esp::missing_firmware() } else { None };
        let source = match missing {
            Some(missing) => Err(anyhow::Error::msg(missing)),
            None => (stranger.source)(&scratch),
        };
        match source {
            Err(missing) => println!("skipped: {}: {missing:#}", stranger.name),
            Ok(source) => {
                let took = run(stranger, &scratch, source, limit).unwrap();
                println!("{}: {:.1} s", stranger.name, took.as_secs_f64());
            }
        }
    }
}

#[test]
fn boot_loaders_and_firmware_boot() {
    run_each(&SHORT, Duration::from_secs(150));
}

#[test]
fn systems_boot() {
    if std::env::var_os("PUGMARK_LONG").is_none_or(|value| value != "1") {
        return println!("skipped: it takes several minutes, and runs where PUGMARK_LONG=1 asks for it");
    }
    run_each(&LONG, Duration::from_secs(900));
}

/// Returns a file of a Debian package that has been downloaded.
fn packaged(package: &str, file: &str) -> Result<PathBuf> {
    let path = packages(true).files(package)?.join(file);
    ensure!(path.is_file(), "{package} has no {file}");
    Ok(path)
}

/// Returns the packed kernel of Debian 12 with PREEMPT_RT, which can be Xen's first domain.
fn linux() -> Result<PathBuf> {
    let kernel: DebianKernel = "bookworm-rt".parse()?;
    packages(true).kernel_of(kernel)?;
    let files = folder().join(kernel.to_string()).join("files/boot");
    let mut entries = fs::read_dir(&files)?.filter_map(Result::ok).map(|entry| entry.path());
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    entries.find(is_kernel).with_context(|| format!("{} has no kernel", files.display()))
}

fn empty_disk(scratch: &Scratch) -> Result<BootSource> {
    let image = scratch.file("disk");
    fs::write(&image, [0; 1 << 20])?;
    Ok(BootSource::Disk(image))
}

/// Makes a CD with GRUB, with these commands and this file.
fn grub_cd(scratch: &Scratch, commands: &str, file: Option<&Path>) -> Result<BootSource> {
    let (folder, image) = (scratch.file("cd"), scratch.file("cd.iso"));
    fs::create_dir_all(folder.join("boot/grub"))?;
    let serial = "serial --unit=0\nterminal_input serial\nterminal_output serial\n";
    fs::write(folder.join("boot/grub/grub.cfg"), format!("{serial}{commands}"))?;
    if let Some(file) = file {
        fs::copy(file, folder.join("file"))?;
    }
    let made = Command::new("grub-mkrescue").arg("-o").arg(&image).arg(&folder).output();
    let made = made.context("there is no grub-mkrescue (Debian's package grub-common)")?;
    ensure!(
        made.status.success(),
        "grub-mkrescue cannot make a CD: {}",
        String::from_utf8_lossy(&made.stderr).trim()
    );
    Ok(BootSource::Cdrom(image))
}

fn grub(scratch: &Scratch) -> Result<BootSource> {
    grub_cd(scratch, "echo it reads its file\nhalt\n", None)
}

fn memtest(scratch: &Scratch) -> Result<BootSource> {
    let file = packaged("memtest86+", "boot/memtest86+x64.bin")?;
    grub_cd(scratch, "linux /file console=ttyS0,115200\nboot\n", Some(&file))
}

fn ipxe(_: &Scratch) -> Result<BootSource> {
    packaged("ipxe", "usr/lib/ipxe/ipxe.iso").map(BootSource::Cdrom)
}

fn ipxe_for_uefi(scratch: &Scratch) -> Result<BootSource> {
    let image = scratch.file("disk");
    fs::write(&image, esp::disk(&fs::read(packaged("ipxe", "boot/ipxe.efi")?)?)?)?;
    Ok(BootSource::Disk(image))
}

fn linux_by_grub(scratch: &Scratch) -> Result<BootSource> {
    grub_cd(scratch, "linux /file console=ttyS0\nboot\n", Some(&linux()?))
}

/// Xen without SMEP and SMAP: with SMAP, QEMU 7.2 lets its first domain crash, without the monitor, too.
fn xen(_: &Scratch) -> Result<BootSource> {
    Ok(BootSource::Kernel {
        file: packaged("xen-hypervisor-4.17-amd64", "boot/xen-4.17-amd64.gz")?,
        modules: vec![ModuleFile { file: linux()?, words: "vmlinuz console=hvc0".into() }],
        command_line: "xen com1=115200 console=com1 no-real-mode smap=0 smep=0 dom0_mem=512M".into(),
    })
}
