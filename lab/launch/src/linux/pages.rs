//! The guest's program `pages`, which reports the location of a file in memory. The host reads the machine's memory, so
//! that a large file need not go over the serial line.
//!
//! Source: Linux, Documentation/admin-guide/mm/pagemap.rst.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The size of a page.
const PAGE: usize = 4096;

/// `pages FILE`: maps the file at 0x1000_0000, with all its pages, and copies the entries of /proc/self/pagemap from
/// there on to standard output, until a write fails.
pub(super) const CODE: &[u8] = &[
    0x48, 0x8b, 0x7c, 0x24, 0x10, // mov rdi, [rsp + 16]: the first argument
    0x31, 0xf6, // xor esi, esi: O_RDONLY
    0xb8, 0x02, 0x00, 0x00, 0x00, // mov eax, 2: open
    0x0f, 0x05, // syscall
    0x41, 0x89, 0xc0, // mov r8d, eax
    0xbf, 0x00, 0x00, 0x00, 0x10, // mov edi, 0x1000_0000
    0xbe, 0x00, 0x00, 0x00, 0x20, // mov esi, 0x2000_0000: more than any file has
    0xba, 0x01, 0x00, 0x00, 0x00, // mov edx, 1: PROT_READ
    0x41, 0xba, 0x11, 0x80, 0x00, 0x00, // mov r10d, MAP_SHARED | MAP_FIXED | MAP_POPULATE
    0x45, 0x31, 0xc9, // xor r9d, r9d
    0xb8, 0x09, 0x00, 0x00, 0x00, // mov eax, 9: mmap
    0x0f, 0x05, // syscall
    0x48, 0x8d, 0x3d, 0x4c, 0x00, 0x00, 0x00, // lea rdi, [name]
    0x31, 0xf6, // xor esi, esi
    0xb8, 0x02, 0x00, 0x00, 0x00, // mov eax, 2: open
    0x0f, 0x05, // syscall
    0x89, 0xc3, // mov ebx, eax
    0x41, 0xbc, 0x00, 0x00, 0x08, 0x00, // mov r12d, 0x8_0000: the entry of 0x1000_0000
    0x89, 0xdf, // next: mov edi, ebx
    0x48, 0x8d, 0xb4, 0x24, 0x00, 0xe0, 0xff, 0xff, // lea rsi, [rsp - 8192]
    0xba, 0x00, 0x10, 0x00, 0x00, // mov edx, 4096
    0x4d, 0x89, 0xe2, // mov r10, r12
    0xb8, 0x11, 0x00, 0x00, 0x00, // mov eax, 17: pread64
    0x0f, 0x05, // syscall
    0x85, 0xc0, // test eax, eax
    0x7e, 0x15, // jle end
    0x49, 0x01, 0xc4, // add r12, rax
    0x89, 0xc2, // mov edx, eax
    0xbf, 0x01, 0x00, 0x00, 0x00, // mov edi, 1
    0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1: write
    0x0f, 0x05, // syscall
    0x85, 0xc0, // test eax, eax
    0x7f, 0xce, // jg next
    0x31, 0xff, // end: xor edi, edi
    0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60: exit
    0x0f, 0x05, // syscall
    b'/', b'p', b'r', b'o', b'c', b'/', b's', b'e', b'l', b'f', b'/', b'p', b'a', b'g', b'e', b'm', b'a',
    b'p', 0, // name
];

/// Returns the size in bytes of the entries for a file of `size` bytes.
pub(super) const fn entries_len(size: u64) -> u64 {
    size.div_ceil(PAGE as u64) * 8
}

/// Reads a file of `size` bytes from the machine's memory, by its entries of the pagemap.
pub(super) fn read(memory: &Path, entries: &[u8], size: u64) -> Result<Vec<u8>> {
    const PRESENT: u64 = 1 << 63;
    const NUMBER: u64 = (1 << 55) - 1;
    let memory = File::open(memory).context("cannot open the machine's memory")?;
    let mut bytes = vec![0; size as usize];
    for (page, entry) in bytes.chunks_mut(PAGE).zip(entries.as_chunks().0) {
        let entry = u64::from_le_bytes(*entry);
        ensure!(
            entry & PRESENT != 0 && entry & NUMBER != 0,
            "a page of the file is not in memory: {entry:#x}"
        );
        let address = (entry & NUMBER) * PAGE as u64;
        memory.read_exact_at(page, address).with_context(|| format!("cannot read memory at {address:#x}"))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_is_put_together_from_its_pages() {
        let scratch = Scratch::new().unwrap();
        let memory = scratch.file("ram");
        let bytes: Vec<u8> = (1..=3).flat_map(|page| [page; PAGE]).collect();
        std::fs::write(&memory, bytes).unwrap();
        let entries = |numbers: [u64; 2]| numbers.map(|number| (1 << 63 | number).to_le_bytes()).concat();
        let size = PAGE as u64 + 2;
        let read = |entries: &[u8]| read(&memory, entries, size);
        assert_eq!(entries_len(size), 16);
        assert_eq!(read(&entries([2, 1])).unwrap(), [&[3; PAGE][..], &[2; 2]].concat());
        for wrong in [entries([2, 0]), entries([2, 3]), [2u64, 1].map(u64::to_le_bytes).concat()] {
            assert!(read(&wrong).is_err(), "{wrong:x?}");
        }
    }
}
