//! What was found out about instructions.

use alloc::vec;
use alloc::vec::Vec;

use crate::{ExecMode, Retired};

/// What was found out about instructions, by address and bytes: who is stepped runs loops and handlers again and again, and
/// decoding is the dearest part of a step.
///
/// It grows with what runs: a short program is not worth many entries, while a kernel with an interrupt handler goes
/// through thousands of instructions from one interrupt to the next.
#[derive(Clone, Debug)]
pub(crate) struct Remembered<T> {
    /// None, or a power of two.
    entries: Vec<Option<Entry<T>>>,
    /// Instructions that took another one's place.
    replaced: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    ip: u64,
    bytes: u128,
    mode: ExecMode,
    found: T,
}

impl<T: Copy> Remembered<T> {
    const FIRST: usize = 64;
    const MOST: usize = 4096;
    /// It grows by this factor.
    const GROWTH: usize = 8;

    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), replaced: 0 }
    }

    /// What is known of an instruction; `find` finds it out.
    pub(crate) fn of(&mut self, retired: &Retired, find: impl FnOnce() -> T) -> T {
        let (ip, mode) = (retired.before.ip, retired.before.mode);
        let bytes = first_bytes(retired.bytes);
        if let Some(Some(entry)) = self.entries.get(place(ip, self.entries.len()))
            && entry.ip == ip
            && entry.bytes == bytes
            && entry.mode == mode
        {
            return entry.found;
        }
        let found = find();
        self.keep(Entry { ip, bytes, mode, found });
        found
    }

    fn keep(&mut self, entry: Entry<T>) {
        let len = self.entries.len();
        if len == 0 {
            self.entries = vec![None; Self::FIRST];
        } else if self.replaced >= len && len < Self::MOST {
            self.entries = vec![None; len * Self::GROWTH];
            self.replaced = 0;
        }
        let place = place(entry.ip, self.entries.len());
        if self.entries[place].replace(entry).is_some() {
            self.replaced += 1;
        }
    }
}

fn place(ip: u64, entries: usize) -> usize {
    (ip ^ ip >> 10) as usize & entries.saturating_sub(1)
}

/// The first 15 bytes and how many there are.
fn first_bytes(bytes: &[u8]) -> u128 {
    let mut all = [0; 16];
    let len = bytes.len().min(15);
    all[..len].copy_from_slice(&bytes[..len]);
    all[15] = len as u8;
    u128::from_le_bytes(all)
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
        let mut remembered = Remembered::new();
        let nop = at(0x1000, ExecMode::Bits64, &[0x90]);
        assert_eq!(remembered.of(&nop, || 1), 1);
        assert_eq!(remembered.of(&nop, || 2), 1, "it is remembered");
        let others = [
            at(0x1001, ExecMode::Bits64, &[0x90]),
            at(0x1000, ExecMode::Bits64, &[0x91]),
            at(0x1000, ExecMode::Bits64, &[0x90, 0]),
            at(0x1000, ExecMode::Bits32, &[0x90]),
            // In the same place.
            at(0x1000 + (1 << 40), ExecMode::Bits64, &[0x90]),
        ];
        for other in others {
            assert_eq!(remembered.of(&nop, || 1), 1);
            assert_eq!(remembered.of(&other, || 3), 3, "{other:?}");
        }
    }

    #[test]
    fn grows_until_what_runs_has_room() {
        // Instructions of a loop, and how many of them are found out anew once it has run a few times.
        for (instructions, anew) in [(1, 0), (64, 0), (500, 0), (4096, 0), (8192, 8192)] {
            let mut remembered = Remembered::new();
            let mut found = 0;
            for turn in 0..200 {
                found = if turn == 199 { 0 } else { found };
                for ip in 0..instructions {
                    remembered.of(&at(ip, ExecMode::Bits64, &[0x90]), || found += 1);
                }
            }
            assert_eq!(found, anew, "{instructions}");
        }
    }
}
