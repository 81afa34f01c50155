//! The readers of ELF files that code comes from.

use crate::heap;
use pugmark_monitor::elf::Elf;
use pugmark_tools::{code::elf, pugmark::code::TracedCode};

/// Checks for any ELF file that its code is within the file and takes little more memory than the file.
///
/// # Panics
/// If it is not.
pub fn check(file: &[u8]) {
    let ((), held) = heap::measure(|| {
        segments(file);
        code(file);
    });
    // A program header has at least 32 bytes, and an entry made from it has not many more.
    let most = 8 * file.len().cast_signed() + 4096;
    assert!(held.most <= most, "{held:?} for {} bytes", file.len());
    assert!(held.left <= 0, "{held:?}");
    image(file);
}

/// Checks ptxed's reader.
fn segments(file: &[u8]) {
    let Ok(segments) = elf::segments(file) else { return };
    for segment in segments.loaded {
        assert!(segment.size > 0, "{segment:?}");
    }
}

/// Checks pugmark's reader.
fn code(file: &[u8]) {
    let mut code = TracedCode::default();
    if code.add_elf_bytes(file.to_vec(), Some(0x1000)).is_ok() {
        let bytes: usize = code.sections().iter().map(|section| section.bytes.len()).max().unwrap_or(0);
        assert!(bytes <= file.len());
    }
}

/// Checks the monitor's reader, which loads kernels.
fn image(file: &[u8]) {
    let Ok(elf) = Elf::parse(file) else { return };
    for load in elf.load_segments().flatten() {
        assert!(load.bytes.len() as u64 <= load.memory_bytes, "{load:?}");
        assert!(file.as_ptr_range().contains(&load.bytes.as_ptr()) || load.bytes.is_empty(), "{load:?}");
    }
    let _ = (elf.entry(), elf.pvh_entry(), elf.physical(elf.entry()));
}
