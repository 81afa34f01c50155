//! Multiboot2: reads a kernel's header, and builds its boot information.
//!
//! Source: Multiboot2 Specification, "OS image format", "Boot information format".

use alloc::vec::Vec;
use core::fmt;

use crate::boot_info::{BootInfo, BootModule, LOADER};

/// Content of EAX when a kernel starts.
pub const BOOTLOADER_MAGIC: u32 = 0x36d7_6289;

const HEADER_MAGIC: u32 = 0xe852_50d6;
/// The whole header must be within this many bytes from the start of the file.
const SEARCH_BYTES: usize = 32 << 10;

/// The requests of a kernel to its loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Multiboot2Header {
    /// The load addresses, if the file is not loaded as ELF.
    pub address: Option<AddressTag>,
    /// Physical entry point, used instead of the one in the ELF header.
    pub entry: Option<u32>,
    /// Offset of the header in the file.
    pub offset: u32,
}

/// The address tag. All fields are physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressTag {
    /// Address of the header.
    pub header: u32,
    /// Address of the first byte to load.
    pub load: u32,
    /// Address after the last byte to load; 0: the whole file is loaded.
    pub load_end: u32,
    /// Address after the memory to clear; 0: none is cleared.
    pub bss_end: u32,
}

/// The reason why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiboot2Error {
    /// The header is for an architecture other than 32-bit x86.
    Architecture(u32),
    /// A tag reaches beyond the header's end.
    Tag {
        /// Offset of the tag in the file.
        offset: usize,
    },
    /// The header requires something that is not provided.
    Unsupported {
        /// Number of the tag.
        tag: u16,
    },
}

impl fmt::Display for Multiboot2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Architecture(number) => {
                write!(f, "the multiboot2 header is for architecture {number}, not for x86 (0)")
            }
            Self::Tag { offset } => write!(
                f,
                "multiboot2 header: the tag at {offset:#x} of the file reaches beyond the header's end"
            ),
            Self::Unsupported { tag } => {
                write!(f, "the multiboot2 header requires what its tag {tag} asks for, which is not provided")
            }
        }
    }
}

impl core::error::Error for Multiboot2Error {}

impl Multiboot2Header {
    /// Searches for a header. Returns `Ok(None)` if the file has none.
    ///
    /// # Errors
    /// If there is a header, and it is malformed or requires something unsupported.
    pub fn find(file: &[u8]) -> Result<Option<Self>, Multiboot2Error> {
        let searched = &file[..file.len().min(SEARCH_BYTES)];
        for offset in (0..searched.len()).step_by(8) {
            if let Some([magic, architecture, length, checksum]) = words::<4>(searched, offset)
                && magic == HEADER_MAGIC
                && magic.wrapping_add(architecture).wrapping_add(length).wrapping_add(checksum) == 0
            {
                if architecture != 0 {
                    return Err(Multiboot2Error::Architecture(architecture));
                }
                let end = offset + length as usize;
                let header = searched.get(..end).ok_or(Multiboot2Error::Tag { offset })?;
                return Self::parse(header, offset).map(Some);
            }
        }
        Ok(None)
    }

    fn parse(header: &[u8], start: usize) -> Result<Self, Multiboot2Error> {
        const OPTIONAL: u32 = 1;
        let mut parsed = Self { offset: start as u32, ..Self::default() };
        let mut offset = start + 16;
        loop {
            let [kind_and_flags, size] = words::<2>(header, offset).ok_or(Multiboot2Error::Tag { offset })?;
            let (kind, flags) = (kind_and_flags as u16, kind_and_flags >> 16);
            if size < 8 || offset + size as usize > header.len() {
                return Err(Multiboot2Error::Tag { offset });
            }
            let body = offset + 8;
            match kind {
                0 => return Ok(parsed),
                2 => {
                    let [header, load, load_end, bss_end] =
                        words::<4>(header, body).ok_or(Multiboot2Error::Tag { offset })?;
                    parsed.address = Some(AddressTag { header, load, load_end, bss_end });
                }
                3 => parsed.entry = Some(words::<1>(header, body).ok_or(Multiboot2Error::Tag { offset })?[0]),
                // Information request, text console, module alignment: all are provided.
                1 | 4 | 6 => {}
                tag if flags & OPTIONAL == 0 => return Err(Multiboot2Error::Unsupported { tag }),
                _ => {}
            }
            offset += (size as usize).next_multiple_of(8);
        }
    }
}

/// Builds the boot information.
#[must_use]
pub fn build(info: &BootInfo<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&[0; 8]);
    tag(&mut out, 1, &[info.command_line.as_bytes(), &[0]]);
    tag(&mut out, 2, &[LOADER.as_bytes(), &[0]]);
    for BootModule { place, words } in info.modules {
        let [start, end] = [place.start as u32, place.end() as u32];
        tag(&mut out, 3, &[&start.to_le_bytes(), &end.to_le_bytes(), words.as_bytes(), &[0]]);
    }
    let [lower, upper] = info.basic_memory();
    tag(&mut out, 4, &[&lower.to_le_bytes(), &upper.to_le_bytes()]);
    let mut map = Vec::from([24, 0, 0, 0, 0, 0, 0, 0]);
    for range in info.memory {
        map.extend_from_slice(&range.start.to_le_bytes());
        map.extend_from_slice(&range.bytes.to_le_bytes());
        map.extend_from_slice(&u64::from(range.kind.to_e820()).to_le_bytes());
    }
    tag(&mut out, 6, &[&map]);
    tag(&mut out, 0, &[]);
    let total = out.len() as u32;
    out[..4].copy_from_slice(&total.to_le_bytes());
    out
}

fn tag(out: &mut Vec<u8>, kind: u32, parts: &[&[u8]]) {
    let size = 8 + parts.iter().map(|part| part.len()).sum::<usize>();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(size as u32).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.resize(out.len().next_multiple_of(8), 0);
}

fn words<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u32; N]> {
    let (words, _) = bytes.get(offset..offset.checked_add(N * 4)?)?.as_chunks();
    let mut out = [0; N];
    for (word, bytes) in out.iter_mut().zip(words) {
        *word = u32::from_le_bytes(*bytes);
    }
    Some(out)
}

#[cfg(test)]
mod tests;
