//! Reads the parts of an ELF file that loading needs: program headers and notes, of 32-bit and 64-bit files.
//!
//! Source: System V ABI, "Object Files", "Program Loading".

use core::fmt;

/// An ELF executable for x86.
#[derive(Clone, Copy, Debug)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    class: ElfClass,
    entry: u64,
    headers: &'a [u8],
    header_bytes: usize,
}

/// A part of the file to be loaded into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSegment<'a> {
    /// Physical address of its first byte.
    pub physical: u64,
    /// Virtual address of its first byte.
    pub linear: u64,
    /// The bytes that the file holds for this part.
    pub bytes: &'a [u8],
    /// Size in memory. Bytes that the file does not hold are zero.
    pub memory_bytes: u64,
}

/// The reason why a file cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// The file does not begin with the ELF magic number.
    NotElf,
    /// The file is neither a 32-bit nor a 64-bit little-endian file for x86.
    Machine {
        /// The class byte.
        class: u8,
        /// The machine number.
        machine: u16,
    },
    /// A reference leads beyond the end of the file.
    Truncated {
        /// Offset in the file at which bytes are missing.
        offset: u64,
    },
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf => write!(f, "not an ELF file: it does not begin with 7f 45 4c 46"),
            Self::Machine { class, machine } => {
                write!(f, "the ELF file has class {class} and machine {machine}, and is not for x86")
            }
            Self::Truncated { offset } => {
                write!(f, "the ELF file is cut off: bytes before offset {offset:#x} are missing")
            }
        }
    }
}

impl core::error::Error for ElfError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElfClass {
    Bits32,
    Bits64,
}

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;

impl<'a> Elf<'a> {
    /// Reads the file header.
    ///
    /// # Errors
    /// If the file is not an ELF file for x86, or its program headers are incomplete.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        let [class, machine] = [number(bytes, 4, 1)?, number(bytes, 18, 2)?];
        let class = match (class, machine) {
            (1, 3 | 62) => ElfClass::Bits32,
            (2, 62) => ElfClass::Bits64,
            _ => return Err(ElfError::Machine { class: class as u8, machine: machine as u16 }),
        };
        let (entry, table, size, count) = match class {
            ElfClass::Bits32 => {
                (word(bytes, 24)?, word(bytes, 28)?, number(bytes, 42, 2)?, number(bytes, 44, 2)?)
            }
            ElfClass::Bits64 => {
                (number(bytes, 24, 8)?, number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?)
            }
        };
        let headers = part(bytes, table, size * count)?;
        Ok(Self { bytes, class, entry, headers, header_bytes: size as usize })
    }

    /// Returns the file's entry point, usually a virtual address.
    #[must_use]
    pub const fn entry(&self) -> u64 {
        self.entry
    }

    /// Returns the parts to be loaded.
    pub fn load_segments(&self) -> impl Iterator<Item = Result<LoadSegment<'a>, ElfError>> {
        self.program_headers().filter_map(|segment| match segment {
            Ok(segment) if segment.kind == PT_LOAD && segment.memory_bytes > 0 => Some(self.load(&segment)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// Returns the 32-bit physical entry point from a PVH note (`XEN_ELFNOTE_PHYS32_ENTRY`), if the file has one.
    ///
    /// Source: Xen documentation, "x86/HVM direct boot ABI".
    ///
    /// # Errors
    /// If notes are beyond the end of the file.
    pub fn pvh_entry(&self) -> Result<Option<u32>, ElfError> {
        for segment in self.program_headers() {
            let segment = segment?;
            if segment.kind == PT_NOTE
                && let Some(entry) = pvh_note(part(self.bytes, segment.offset, segment.file_bytes)?)
            {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Returns the physical address of the virtual address `linear`, from the first loaded part that contains it.
    ///
    /// # Errors
    /// If a part is beyond the end of the file.
    pub fn physical(&self, linear: u64) -> Result<Option<u64>, ElfError> {
        for load in self.load_segments() {
            let load = load?;
            if let Some(offset) = linear.checked_sub(load.linear).filter(|&offset| offset < load.memory_bytes)
            {
                return Ok(Some(load.physical.wrapping_add(offset)));
            }
        }
        Ok(None)
    }

    fn load(&self, segment: &ProgramHeader) -> Result<LoadSegment<'a>, ElfError> {
        let bytes = part(self.bytes, segment.offset, segment.file_bytes.min(segment.memory_bytes))?;
        Ok(LoadSegment {
            physical: segment.physical,
            linear: segment.linear,
            bytes,
            memory_bytes: segment.memory_bytes,
        })
    }

    fn program_headers(&self) -> impl Iterator<Item = Result<ProgramHeader, ElfError>> {
        let class = self.class;
        self.headers.chunks_exact(self.header_bytes.max(1)).map(move |header| {
            Ok(match class {
                ElfClass::Bits32 => ProgramHeader {
                    kind: word(header, 0)? as u32,
                    offset: word(header, 4)?,
                    linear: word(header, 8)?,
                    physical: word(header, 12)?,
                    file_bytes: word(header, 16)?,
                    memory_bytes: word(header, 20)?,
                },
                ElfClass::Bits64 => ProgramHeader {
                    kind: word(header, 0)? as u32,
                    offset: number(header, 8, 8)?,
                    linear: number(header, 16, 8)?,
                    physical: number(header, 24, 8)?,
                    file_bytes: number(header, 32, 8)?,
                    memory_bytes: number(header, 40, 8)?,
                },
            })
        })
    }
}

struct ProgramHeader {
    kind: u32,
    offset: u64,
    linear: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

/// Returns the value of the PVH note among these notes. Notes that are cut short end the search.
fn pvh_note(mut notes: &[u8]) -> Option<u32> {
    const PHYS32_ENTRY: u64 = 18;
    loop {
        let [name_bytes, value_bytes, kind] =
            [word(notes, 0).ok()?, word(notes, 4).ok()?, word(notes, 8).ok()?];
        let name = part(notes, 12, name_bytes).ok()?;
        let value_at = 12 + name_bytes.next_multiple_of(4);
        let value = part(notes, value_at, value_bytes).ok()?;
        if kind == PHYS32_ENTRY && name == b"Xen\0" {
            return Some(word(value, 0).ok()? as u32);
        }
        notes = notes.get((value_at + value_bytes.next_multiple_of(4)) as usize..)?;
    }
}

fn word(bytes: &[u8], offset: u64) -> Result<u64, ElfError> {
    number(bytes, offset, 4)
}

/// Reads a little-endian number of `size` bytes at `offset`.
fn number(bytes: &[u8], offset: u64, size: u64) -> Result<u64, ElfError> {
    Ok(part(bytes, offset, size)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

fn part(bytes: &[u8], offset: u64, size: u64) -> Result<&[u8], ElfError> {
    let start = usize::try_from(offset).ok();
    start
        .zip(usize::try_from(size).ok())
        .and_then(|(start, size)| bytes.get(start..start.checked_add(size)?))
        .ok_or(ElfError::Truncated { offset: offset.saturating_add(size) })
}

#[cfg(test)]
pub(crate) mod tests;
