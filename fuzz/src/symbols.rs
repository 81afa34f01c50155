//! The readers of what names functions: ELF files, kernels' lists, and what runtimes write.

use crate::heap;
use pugmark_tools::symbols::{JitDump, JitSymbols, KernelSymbols, elf_functions};

/// The memory that a reader may take: this many times the size of what it reads, and this much more.
const MOST_TIMES: usize = 4;
const MOST_MORE: usize = 256 << 20;

/// Runs a reader. Panics if it takes more memory than it may, or keeps some.
pub(crate) fn bounded(file: &[u8], read: impl FnOnce()) {
    let ((), held) = heap::measure(read);
    let most = (MOST_TIMES * file.len() + MOST_MORE).cast_signed();
    assert!(held.most <= most && held.left <= 0, "{held:?} for {} bytes", file.len());
}

/// Checks that, whatever an ELF file says, its functions are in order and none reaches into another.
///
/// # Panics
/// If they are not, or the reader takes too much memory.
pub fn check(file: &[u8]) {
    bounded(file, || {
        let mut done = 0;
        for (from, end, name) in elf_functions(file).unwrap_or_default() {
            assert!(done <= from && from < end, "{name}: {from:#x} to {end:#x} after {done:#x}");
            check_name(&name);
            done = end;
        }
    });
}

/// Checks that a name does nothing to a terminal.
fn check_name(name: &str) {
    assert!(!name.contains(char::is_control), "{name:?}");
}

/// Addresses in a text or a stream: some of its numbers, and others.
fn addresses(file: &[u8]) -> impl Iterator<Item = u64> {
    let numbers =
        file.windows(8).step_by(4).filter_map(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
    numbers.take(64).chain([0, 0x1000, 0xffff_ffff_8100_0000, u64::MAX])
}

/// Checks the reader of /proc/kallsyms.
///
/// # Panics
/// If an address is in a function after its end, or the reader takes too much memory.
pub fn check_kernel(file: &[u8]) {
    bounded(file, || {
        let symbols = KernelSymbols::parse(String::from_utf8_lossy(file).into_owned());
        for address in addresses(file) {
            let found = symbols.find(address);
            assert_eq!(found.is_some(), symbols.module(address).is_some(), "{address:#x}");
            found.into_iter().for_each(|(name, _)| check_name(name));
        }
    });
}

/// Checks the reader of `/tmp/perf-PID.map`.
///
/// # Panics
/// If it takes too much memory.
pub fn check_map(file: &[u8]) {
    bounded(file, || {
        let symbols = JitSymbols::parse(&String::from_utf8_lossy(file), 1);
        for (name, _) in addresses(file).filter_map(|address| symbols.find(address)) {
            check_name(name);
        }
    });
}

/// Checks the reader of jitdumps.
///
/// # Panics
/// If what it says of its end is not in the file, or it takes too much memory.
pub fn check_dump(file: &[u8]) {
    bounded(file, || {
        let Some(dump) = JitDump::parse(file) else { return };
        assert!(dump.cut.is_none_or(|at| at < file.len()), "{:?}", dump.cut);
        for (name, _) in addresses(file).filter_map(|address| dump.symbols.find(address)) {
            check_name(name);
        }
    });
}
