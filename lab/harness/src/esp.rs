//! Disks with one program, which UEFI firmware boots.
//!
//! Source: UEFI specification, "Boot Manager: Boot Mechanisms, Removable Media Boot Behavior".

use anyhow::{Context, Result};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use std::io::{Cursor, Write};
use std::path::Path;

/// Bytes of a disk beside the program, for the tables of the file system.
const TABLES: usize = 256 << 10;
const SECTOR: usize = 512;

/// Returns the reason for which no UEFI firmware boots a disk here, if there is one.
#[must_use]
pub fn missing_firmware() -> Option<&'static str> {
    let there = Path::new("/usr/share/OVMF/OVMF_CODE_4M.fd").exists();
    (!there).then_some("there is no UEFI firmware OVMF (Debian's package ovmf)")
}

/// Returns a disk with a FAT file system and `program` in it as the program that boots.
///
/// # Errors
/// If the program is too large for a FAT file system.
pub fn disk(program: &[u8]) -> Result<Vec<u8>> {
    with_files(program, &[])
}

/// Limine's menu: its key for a kernel's path has changed between versions.
const MENU: &str = "\
timeout: 0
/kernel
    protocol: limine
    path: boot():/kernel
    kernel_path: boot():/kernel
";

/// Returns a disk with Limine, which boots `kernel`.
///
/// # Errors
/// If there is no Limine here, or the files are too large.
pub fn limine_disk(kernel: &[u8]) -> Result<Vec<u8>> {
    with_files(&limine()?, &[("limine.conf", MENU.as_bytes()), ("kernel", kernel)])
}

/// Reads Limine as a program for UEFI firmware.
///
/// # Errors
/// If the environment does not say where it is: no package of Debian's or crate brings it.
pub fn limine() -> Result<Vec<u8>> {
    const FILE: &str = "BOOTX64.EFI";
    let folder = std::env::var_os("PUGMARK_LIMINE");
    let folder = folder.with_context(|| format!("PUGMARK_LIMINE names no folder with Limine's {FILE}"))?;
    let file = Path::new(&folder).join(FILE);
    std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
}

fn with_files(program: &[u8], files: &[(&str, &[u8])]) -> Result<Vec<u8>> {
    let size = program.len() + files.iter().map(|(_, content)| content.len()).sum::<usize>();
    let mut disk = Cursor::new(vec![0; (size + size / 16 + TABLES).next_multiple_of(SECTOR)]);
    fatfs::format_volume(&mut disk, FormatVolumeOptions::new()).context("a FAT file system")?;
    let system = FileSystem::new(&mut disk, FsOptions::new())?;
    let root = system.root_dir();
    let folder = root.create_dir("EFI")?.create_dir("BOOT")?;
    folder.create_file("BOOTX64.EFI")?.write_all(program).context("a program on a disk")?;
    for (name, content) in files {
        root.create_file(name)?.write_all(content).with_context(|| format!("the file {name} on a disk"))?;
    }
    drop((folder, root));
    system.unmount()?;
    Ok(disk.into_inner())
}
