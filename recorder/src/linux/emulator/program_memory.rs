//! Reads the program's memory at addresses that the program has given to the system, which may be wrong.

use super::{GUEST_BASE, PAGE};
use std::{
    ffi::{CString, c_int, c_ulong},
    io::IoSliceMut,
    sync::atomic::Ordering::Relaxed,
};

/// The length of the longest argument that Linux takes, with the zero at its end: MAX_ARG_STRLEN.
const LONGEST_TEXT: usize = 32 * PAGE as usize;

/// A range of addresses as `struct iovec` has it.
#[repr(C)]
struct ProgramRange {
    start: u64,
    length: usize,
}

unsafe extern "C" {
    fn process_vm_readv(
        pid: c_int,
        local: *const IoSliceMut<'_>,
        local_count: c_ulong,
        remote: *const ProgramRange,
        remote_count: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

/// Fills `bytes` with what is at an address of the program. Returns `None` if not all of that can be read.
///
/// The kernel copies: an address that the emulator could not read is no fault, and no reference is made to memory that
/// the program's other threads write.
pub(super) fn read(address: u64, bytes: &mut [u8]) -> Option<()> {
    let remote = ProgramRange { start: address.wrapping_add(GUEST_BASE.load(Relaxed)), length: bytes.len() };
    let local = IoSliceMut::new(bytes);
    let own = std::process::id().cast_signed();
    // SAFETY: the kernel writes to `bytes` alone, as much as fits, and checks the other address.
    let read = unsafe { process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    (read == remote.length.cast_signed()).then_some(())
}

/// Fills `bytes` with what is at an address of the program, in the page from which the emulator is translating an
/// instruction.
///
/// The page can be read: the emulator holds its lock of the program's mappings, without which no thread unmaps or
/// protects anything, until the block is translated. Source: QEMU's `accel/tcg/cpu-exec.c`, `mmap_lock` around
/// `tb_gen_code`.
pub(super) fn read_translated(address: u64, bytes: &mut [u8]) {
    let begin: *const u8 =
        std::ptr::with_exposed_provenance(address as usize + GUEST_BASE.load(Relaxed) as usize);
    for (at, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: it is mapped, as said above. Other threads may write to it: a byte is old or new then.
        *byte = unsafe { begin.wrapping_add(at).read_volatile() };
    }
}

/// Reads a number.
pub(super) fn number(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(address, &mut bytes)?;
    Some(u64::from_le_bytes(bytes))
}

/// Reads a text that ends with a zero. Returns `None` if it ends nowhere, or is longer than what the system takes.
pub(super) fn text(address: u64) -> Option<CString> {
    let mut text = vec![];
    while text.len() < LONGEST_TEXT {
        let at = address.checked_add(text.len() as u64)?;
        // The next page may not be mapped.
        let mut rest = vec![0; (PAGE - at % PAGE) as usize];
        read(at, &mut rest)?;
        if let Some(end) = rest.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&rest[..end]);
            return CString::new(text).ok();
        }
        text.extend_from_slice(&rest);
    }
    None
}

/// Reads a list of texts that ends with a null; an address of 0 stands for an empty one.
pub(super) fn texts(mut address: u64) -> Option<Vec<CString>> {
    let mut texts = vec![];
    while address != 0 {
        let next = number(address)?;
        if next == 0 {
            break;
        }
        texts.push(text(next)?);
        address = address.checked_add(8)?;
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_nothing_at_a_wrong_address() {
        let words = [c"ls".as_ptr() as u64, c"-l".as_ptr() as u64, 0];
        let list = words.as_ptr() as u64;
        assert_eq!(texts(list), Some(vec![c"ls".into(), c"-l".into()]));
        assert_eq!(number(list + 16), Some(0));
        assert_eq!(texts(0), Some(vec![]));
        for wrong in [8, u64::MAX - 3, 1 << 63] {
            let list = [words[0], wrong, 0];
            assert_eq!(number(wrong), None, "{wrong:#x}");
            assert_eq!(text(wrong), None, "{wrong:#x}");
            assert_eq!(texts(wrong), None, "{wrong:#x}");
            assert_eq!(texts(list.as_ptr() as u64), None, "{wrong:#x}");
        }
    }

    #[test]
    fn a_text_may_be_as_long_as_the_system_takes() {
        for (length, taken) in
            [(4095, true), (4096, true), (LONGEST_TEXT - 1, true), (3 * LONGEST_TEXT, false)]
        {
            let text = CString::new(vec![b'a'; length]).expect("no zeros");
            assert_eq!(super::text(text.as_ptr() as u64), taken.then_some(text), "{length}");
        }
    }
}
