//! Reads the loadable segments of an ELF file.
//!
//! This module reads files exactly as libipt's programs do, and therefore walks the headers itself instead of using the
//! `object` crate: files are always little-endian, program headers are adjacent, whatever the file header says of
//! either, and errors name the header's number.
//!
//! Source: System V Application Binary Interface, "ELF Header" and "Program Header".
//!
//! ```
//! use pugmark_tools::code::elf::{self, ElfError};
//!
//! assert_eq!(elf::segments(&b"#!/bin/sh, not an ELF file"[..]), Err(ElfError::NotElf));
//! ```

use object::elf::{ELFMAG, EM_386, EM_X86_64, EV_CURRENT, PT_LOAD};
use object::elf::{FileClass, FileHeader32, FileHeader64, FileVersion};
use object::read::ReadRef;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, elf};
use std::fmt;

/// The type of `e_ident`, and the indices of the bytes that are read.
type Ident = [u8; 16];
const EI_CLASS: usize = 4;
const EI_VERSION: usize = 6;

/// A PT_LOAD segment that has bytes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number among the program headers.
    pub number: u16,
    /// Its offset in the file.
    pub offset: u64,
    /// Its number of bytes in the file.
    pub size: u64,
    /// The virtual address in its program header.
    pub vaddr: u64,
}

/// The loadable segments of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// The segments with bytes, in the file's order.
    pub loaded: Vec<Segment>,
    /// The lowest address of all segments, including those without bytes.
    pub lowest: Option<u64>,
    /// The number of the program header in which the file ends, if it does.
    pub cut: Option<u16>,
}

impl Segments {
    /// Returns the offset that moves the lowest segment to `base`; 0 for a base of 0.
    #[must_use]
    pub fn shift(&self, base: u64) -> u64 {
        if base == 0 { 0 } else { base.wrapping_sub(self.lowest.unwrap_or(u64::MAX)) }
    }
}

/// An error in an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// The file ends before its identification does.
    NoIdentification,
    /// The file does not begin with the ELF magic number.
    NotElf,
    /// The class is neither ELFCLASS32 nor ELFCLASS64.
    Class(u8),
    /// The file ends within the file header.
    FileHeader,
    /// The program headers begin at this offset, which is above the maximum.
    Table(u64),
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIdentification => write!(f, "too short for an ELF file"),
            Self::NotElf => write!(f, "not an ELF file"),
            Self::Class(class) => write!(f, "ELF class {class} is neither of 32 nor of 64 bits"),
            Self::FileHeader => write!(f, "the file ends in the ELF header"),
            Self::Table(offset) => write!(f, "no program headers can be at {offset:#x}"),
        }
    }
}

impl std::error::Error for ElfError {}

/// Returns the loadable segments of a 32-bit or 64-bit file. Only reads headers.
///
/// # Errors
/// The first [`ElfError`].
pub fn segments<'data>(file: impl ReadRef<'data>) -> Result<Segments, ElfError> {
    let ident: &Ident = file.read_at(0).map_err(|()| ElfError::NoIdentification)?;
    if !ident.starts_with(&ELFMAG) {
        return Err(ElfError::NotElf);
    }
    match FileClass(ident[EI_CLASS]) {
        elf::ELFCLASS32 => walk::<FileHeader32<LittleEndian>>(file),
        elf::ELFCLASS64 => walk::<FileHeader64<LittleEndian>>(file),
        FileClass(class) => Err(ElfError::Class(class)),
    }
}

fn walk<'data, Header: FileHeader<Endian = LittleEndian>>(
    file: impl ReadRef<'data>,
) -> Result<Segments, ElfError> {
    let header: &Header = file.read_at(0).map_err(|()| ElfError::FileHeader)?;
    let mut at: u64 = header.e_phoff(LittleEndian).into();
    if i64::try_from(at).is_err() {
        return Err(ElfError::Table(at));
    }
    let mut segments = Segments::default();
    for number in 0..header.e_phnum(LittleEndian) {
        let Ok(segment) = file.read::<Header::ProgramHeader>(&mut at) else {
            segments.cut = Some(number);
            break;
        };
        if segment.p_type(LittleEndian) != PT_LOAD {
            continue;
        }
        let (offset, size) = segment.file_range(LittleEndian);
        let vaddr = segment.p_vaddr(LittleEndian).into();
        segments.lowest = Some(segments.lowest.map_or(vaddr, |lowest| lowest.min(vaddr)));
        if size != 0 {
            segments.loaded.push(Segment { number, offset, size, vaddr });
        }
    }
    Ok(segments)
}

/// The ABIs of system calls on x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// 64 bits.
    X64,
    /// 64-bit code with 32-bit pointers.
    X32,
    /// 32 bits.
    Ia32,
}

/// The number of bytes at the front of a file that [`abi`] reads.
pub const ABI_BYTES: usize = size_of::<FileHeader32<LittleEndian>>();

/// Returns the ABI of a program or library, given the first bytes of its file.
#[must_use]
pub fn abi(file: &[u8]) -> Option<Abi> {
    let ident: &Ident = file.read_at(0).ok()?;
    if !ident.starts_with(&ELFMAG) || FileVersion(ident[EI_VERSION]) != EV_CURRENT {
        return None;
    }
    match FileClass(ident[EI_CLASS]) {
        elf::ELFCLASS64 => Some(Abi::X64),
        elf::ELFCLASS32 => {
            let header: &FileHeader32<LittleEndian> = file.read_at(0).ok()?;
            match header.e_machine.get(LittleEndian) {
                EM_386 => Some(Abi::Ia32),
                EM_X86_64 => Some(Abi::X32),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
