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
    let mut disk =
        Cursor::new(vec![0; (program.len() + program.len() / 16 + TABLES).next_multiple_of(SECTOR)]);
    fatfs::format_volume(&mut disk, FormatVolumeOptions::new()).context("a FAT file system")?;
    let files = FileSystem::new(&mut disk, FsOptions::new())?;
    let folder = files.root_dir().create_dir("EFI")?.create_dir("BOOT")?;
    folder.create_file("BOOTX64.EFI")?.write_all(program).context("a program on a disk")?;
    drop(folder);
    files.unmount()?;
    Ok(disk.into_inner())
}
