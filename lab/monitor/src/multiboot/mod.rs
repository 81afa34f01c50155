//! Multiboot, the first version: reads a kernel's header, and builds its boot information.
//!
//! Source: Multiboot Specification version 0.6.96, "OS image format", "Boot information format".

use alloc::vec::Vec;
use core::fmt;

use crate::boot_info::{BootInfo, BootModule, LOADER};
use crate::multiboot2::{AddressTag, Multiboot2Header};

/// Content of EAX when a kernel starts.
pub const BOOTLOADER_MAGIC: u32 = 0x2bad_b002;

const HEADER_MAGIC: u32 = 0x1bad_b002;
/// The whole header must be within this many bytes from the start of the file.
const SEARCH_BYTES: usize = 8 << 10;
/// Flags that need nothing more: modules at the start of pages, and sizes of memory.
const PROVIDED: u32 = 0b11;
/// Flags that a loader must not ignore.
const REQUIRED: u32 = 0xffff;
/// Flag: the header has the load addresses and the entry point.
const HAS_ADDRESSES: u32 = 1 << 16;

/// The header requires something that is not provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultibootError {
    /// The flags that are not known or not supported.
    pub flags: u32,
}

impl fmt::Display for MultibootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the multiboot header requires what its flags {:#x} ask for, which is not provided",
            self.flags
        )
    }
}

impl core::error::Error for MultibootError {}

/// Searches for a header, and returns what it requests. Returns `Ok(None)` if the file has none.
///
/// # Errors
/// If there is a header, and it requires something unsupported.
pub fn find(file: &[u8]) -> Result<Option<Multiboot2Header>, MultibootError> {
    let (words, _) = file[..file.len().min(SEARCH_BYTES)].as_chunks::<4>();
    let word = |index: usize| words.get(index).map(|bytes| u32::from_le_bytes(*bytes));
    for index in 0..words.len() {
        let (Some(HEADER_MAGIC), Some(flags), Some(checksum)) =
            (word(index), word(index + 1), word(index + 2))
        else {
            continue;
        };
        if HEADER_MAGIC.wrapping_add(flags).wrapping_add(checksum) != 0 {
            continue;
        }
        if flags & REQUIRED & !PROVIDED != 0 {
            return Err(MultibootError { flags: flags & REQUIRED & !PROVIDED });
        }
        let mut header = Multiboot2Header { offset: 4 * index as u32, ..Multiboot2Header::default() };
        if flags & HAS_ADDRESSES != 0 {
            let [Some(own), Some(load), Some(load_end), Some(bss_end), Some(entry)] =
                [3, 4, 5, 6, 7].map(|field| word(index + field))
            else {
                continue;
            };
            header.address = Some(AddressTag { header: own, load, load_end, bss_end });
            header.entry = Some(entry);
        }
        return Ok(Some(header));
    }
    Ok(None)
}

/// Builds the boot information with all data to which it refers, to be placed at `address`.
#[must_use]
pub fn build(address: u32, info: &BootInfo<'_>) -> Vec<u8> {
    /// Size in bytes without the data: all fields up to those of VBE.
    const INFO: usize = 88;
    const MODULE: usize = 16;
    /// A range of memory has its size before it, which does not count itself.
    const RANGE: u32 = 20;
    /// Sizes of memory, command line, modules, map of memory, name of the loader.
    const FLAGS: u32 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 9;
    let map_bytes = info.memory.len() * (RANGE as usize + 4);
    let [modules_at, map_at] = [INFO, INFO + MODULE * info.modules.len()];
    let texts = [info.command_line, LOADER];
    let texts = texts.into_iter().chain(info.modules.iter().map(|module| module.words));
    let mut texts_at = map_at + map_bytes;
    let mut text_at = Vec::new();
    for text in texts.clone() {
        text_at.push(address + texts_at as u32);
        texts_at += text.len() + 1;
    }
    let [modules_at, map_at] = [modules_at, map_at].map(|offset| address + offset as u32);
    let [lower, upper] = info.basic_memory();
    let mut words = [0; INFO / 4];
    (words[0], words[1], words[2], words[4]) = (FLAGS, lower, upper, text_at[0]);
    (words[5], words[6]) = (info.modules.len() as u32, modules_at);
    (words[11], words[12], words[16]) = (map_bytes as u32, map_at, text_at[1]);
    let mut out: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    for (BootModule { place, .. }, words_at) in info.modules.iter().zip(&text_at[2..]) {
        let module = [place.start as u32, place.end() as u32, *words_at, 0];
        out.extend(module.into_iter().flat_map(u32::to_le_bytes));
    }
    for range in info.memory {
        out.extend_from_slice(&RANGE.to_le_bytes());
        out.extend([range.start, range.bytes].into_iter().flat_map(u64::to_le_bytes));
        out.extend_from_slice(&range.kind.to_e820().to_le_bytes());
    }
    texts.for_each(|text| {
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    });
    out
}

#[cfg(test)]
mod tests;
