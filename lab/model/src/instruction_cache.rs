//! A cache of results computed for instructions.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use crate::{ExecMode, Retired};

/// Results computed for instructions, by address and bytes. The caller repeatedly steps through loops and handlers, and
/// decoding is the slowest part of a step.
///
/// The cache grows with the code that runs: a short program needs few entries, while a kernel with an interrupt handler
/// executes thousands of different instructions between two interrupts.
#[derive(Clone, Debug)]
pub(crate) struct InstructionCache<T> {
    /// The entries; their number is 0 or a power of two.
    entries: Vec<Option<CachedResult<T>>>,
    /// The most recently evicted entries: of some hundred instructions in a loop a tenth share a slot.
    replaced_last: Vec<Option<CachedResult<T>>>,
    /// Number of entries lost by eviction.
    replaced: usize,
}

#[derive(Clone, Copy, Debug)]
struct CachedResult<T> {
    ip: u64,
    bytes: u128,
    mode: ExecMode,
    result: T,
}

impl<T: Copy> InstructionCache<T> {
    const FIRST_SIZE: usize = 64;
    const MAX_SIZE: usize = 4096;
    /// The number of entries grows by this factor.
    const GROWTH: usize = 8;

    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), replaced_last: Vec::new(), replaced: 0 }
    }

    /// Returns the result for an instruction; if it is not cached, `find` computes it.
    pub(crate) fn get_or_compute(&mut self, retired: &Retired, find: impl FnOnce() -> T) -> T {
        let (ip, mode) = (retired.before.ip, retired.before.mode);
        let bytes = first_bytes(retired.bytes);
        let place = entry_index(ip, self.entries.len());
        for entries in [&self.entries, &self.replaced_last] {
            if let Some(Some(entry)) = entries.get(place)
                && entry.ip == ip
                && entry.bytes == bytes
                && entry.mode == mode
            {
                return entry.result;
            }
        }
        let found = find();
        self.insert(CachedResult { ip, bytes, mode, result: found });
        found
    }

    fn insert(&mut self, entry: CachedResult<T>) {
        let len = self.entries.len();
        let grows = len == 0 || self.replaced >= len && len < Self::MAX_SIZE;
        if grows {
            let len = (len * Self::GROWTH).max(Self::FIRST_SIZE);
            (self.entries, self.replaced_last) = (vec![None; len], vec![None; len]);
            self.replaced = 0;
        }
        let place = entry_index(entry.ip, self.entries.len());
        let before = self.entries[place].replace(entry);
        if before.is_some() && mem::replace(&mut self.replaced_last[place], before).is_some() {
            self.replaced += 1;
        }
    }
}

fn entry_index(ip: u64, entries: usize) -> usize {
    (ip ^ ip >> 10) as usize & entries.saturating_sub(1)
}

/// Returns the first 15 bytes, with their number in the last byte.
///
/// This runs for each instruction. Two overlapping loads are faster than a loop over the bytes.
fn first_bytes(bytes: &[u8]) -> u128 {
    /// Returns the integers at the start and at the end of some bytes that are no longer than both, as one integer.
    macro_rules! ends {
        ($integer:ty, $bytes:expr) => {{
            let after = $bytes.len() - size_of::<$integer>();
            let first = $bytes.first_chunk().map_or(0, |first| <$integer>::from_le_bytes(*first));
            let last = $bytes.last_chunk().map_or(0, |last| <$integer>::from_le_bytes(*last));
            u128::from(first) | u128::from(last) << (8 * after)
        }};
    }
    let bytes = &bytes[..bytes.len().min(15)];
    let value = match bytes.len() {
        0 => 0,
        1 => ends!(u8, bytes),
        2..4 => ends!(u16, bytes),
        4..8 => ends!(u32, bytes),
        _ => ends!(u64, bytes),
    };
    value | (bytes.len() as u128) << 120
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;

    fn at<'a>(ip: u64, mode: ExecMode, bytes: &'a [u8]) -> Retired<'a> {
        let before = Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode, iflag: true };
        Retired { before, after: before, bytes, tsc: 0, operand: 0 }
    }

    #[test]
    fn an_instruction_is_its_address_its_bytes_and_its_mode() {
        let mut remembered = InstructionCache::new();
        let nop = at(0x1000, ExecMode::Bits64, &[0x90]);
        assert_eq!(remembered.get_or_compute(&nop, || 1), 1);
        assert_eq!(remembered.get_or_compute(&nop, || 2), 1, "it is remembered");
        let others = [
            at(0x1001, ExecMode::Bits64, &[0x90]),
            at(0x1000, ExecMode::Bits64, &[0x91]),
            at(0x1000, ExecMode::Bits64, &[0x90, 0]),
            at(0x1000, ExecMode::Bits32, &[0x90]),
            // In the same slot as the first instruction.
            at(0x1000 + (1 << 40), ExecMode::Bits64, &[0x90]),
        ];
        for other in others {
            assert_eq!(remembered.get_or_compute(&nop, || 1), 1);
            assert_eq!(remembered.get_or_compute(&other, || 3), 3, "{other:?}");
        }
    }

    #[test]
    fn the_first_bytes_and_their_number_are_one_integer() {
        let bytes: [u8; 17] = core::array::from_fn(|n| 0x11 + 0x0d * n as u8);
        for len in 0..bytes.len() {
            let mut expected = [0; 16];
            let kept = len.min(15);
            expected[..kept].copy_from_slice(&bytes[..kept]);
            expected[15] = kept as u8;
            assert_eq!(first_bytes(&bytes[..len]), u128::from_le_bytes(expected), "{len}");
        }
    }

    #[test]
    fn grows_until_what_runs_has_room() {
        // The instructions of a loop, and the number of them that are still computed in the last iteration.
        for (instructions, anew) in [(1, 0), (64, 0), (500, 0), (4096, 0), (8192, 0), (12288, 12288)] {
            let mut remembered = InstructionCache::new();
            let mut found = 0;
            for turn in 0..200 {
                found = if turn == 199 { 0 } else { found };
                for ip in 0..instructions {
                    remembered.get_or_compute(&at(ip, ExecMode::Bits64, &[0x90]), || found += 1);
                }
            }
            assert_eq!(found, anew, "{instructions}");
        }
    }
}
