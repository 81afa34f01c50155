//! The code that libipt's cache knows, as far as it decides where blocks end.
//!
//! The cache has an entry for an instruction once it is known how the block goes on from there: up to the next branch
//! that needs the trace, or another stop. Blocks of known code therefore go on where blocks of new code end. The bytes'
//! address in this process does not depend on where their section is mapped.

use pugmark_decoder_core::mode::ExecMode;
use std::collections::HashMap;

/// The maximum number of new instructions in a block.
const MOST_NEW: u32 = 1024;

/// The known instructions, and those of the current block that become known.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownCode {
    /// The entry of each instruction, by the address of its bytes.
    entries: HashMap<usize, Entry>,
    /// The mode of the current block. Code of an unknown mode never becomes known.
    mode: Option<ExecMode>,
    /// The new instructions of the block, each with the length of its entry if it has one already.
    new: Vec<(usize, Option<u8>)>,
    /// The number of new instructions since known code was left; `None` in known code.
    count: Option<u32>,
}

/// An entry of the cache.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The number of instructions up to a stop. libipt has eight bits for it, and makes an intermediate stop before
    /// they overflow.
    len: u8,
    mode: ExecMode,
}

/// The cache's answer for the next instruction of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// It is new.
    New,
    /// It is known, as code of this mode.
    Known(ExecMode),
    /// The block ends before it.
    BlockEnds,
    /// It is known as code of another mode than the new code before it.
    OtherMode,
}

impl KnownCode {
    /// Begins a block without an event.
    pub(super) fn begin(&mut self, mode: Option<ExecMode>) {
        self.new.clear();
        self.count = None;
        self.mode = mode;
    }

    /// Goes to an instruction of a block that has room for `room` more. Known code can be so long that there is no room
    /// for it, or none in the entry of the new instruction before it.
    pub(super) fn reach(&mut self, at: usize, room: usize) -> Reached {
        let Some(&Entry { len, mode }) = self.entries.get(&at) else {
            self.count.get_or_insert(0);
            return Reached::New;
        };
        if self.count.take().is_some() {
            if self.mode != Some(mode) {
                return Reached::OtherMode;
            }
            self.stop_at_last(len);
            if len == u8::MAX {
                return Reached::BlockEnds;
            }
        }
        if usize::from(len) > room { Reached::BlockEnds } else { Reached::Known(mode) }
    }

    /// Adds the instruction that was reached. Returns true if it is new.
    pub(super) fn add(&mut self, at: usize) -> bool {
        let Some(count) = &mut self.count else { return false };
        *count += 1;
        self.new.push((at, None));
        true
    }

    /// Returns true if no further new instruction may follow.
    pub(super) fn is_exhausted(&self, next: usize) -> bool {
        self.count == Some(MOST_NEW) && !self.entries.contains_key(&next)
    }

    /// Makes the last new instruction known: it is a stop, or `len` instructions before one.
    fn stop_at_last(&mut self, len: u8) {
        if let Some((at, known)) = self.new.last_mut() {
            let len = len.checked_add(1).unwrap_or(1);
            *known = Some(len);
            self.entries.extend(self.mode.map(|mode| (*at, Entry { len, mode })));
        }
    }

    /// Makes the last instruction known, which needs the trace, if it is new.
    pub(super) fn decide(&mut self) {
        if self.count.is_some() {
            self.stop_at_last(0);
        }
    }

    /// Ends the block: its new instructions become known.
    pub(super) fn end(&mut self) {
        let mut len = 0_u8;
        for (at, known) in self.new.drain(..).rev() {
            len = known.unwrap_or(len.checked_add(1).unwrap_or(1));
            self.entries.extend(self.mode.map(|mode| (at, Entry { len, mode })));
        }
    }

    /// Ends the block with an error, or because it is full: nothing else becomes known.
    pub(super) fn fail(&mut self) {
        self.new.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes straight over these addresses, and returns how many instructions the first blocks have.
    fn lengths(known: &mut KnownCode, addresses: std::ops::Range<usize>) -> Vec<usize> {
        let mut lengths = vec![];
        let mut from = addresses.start;
        while from < addresses.end {
            known.begin(Some(ExecMode::Bits64));
            let mut at = from;
            while at < addresses.end && known.reach(at, 1 << 16) != Reached::BlockEnds {
                known.add(at);
                at += 1;
                if known.is_exhausted(at) {
                    break;
                }
            }
            known.end();
            lengths.push(at - from);
            from = at;
        }
        lengths
    }

    #[test]
    fn new_code_is_counted_from_where_known_code_was_left() {
        let new = MOST_NEW as usize;
        assert_eq!(lengths(&mut KnownCode::default(), 0..8 * new), [new; 8]);
        let mut known = KnownCode::default();
        assert_eq!(lengths(&mut known, 100..200), [100]);
        // A hundred new instructions, a hundred known ones, and new ones again.
        assert_eq!(lengths(&mut known, 0..8 * new)[..2], [200 + new, new]);
        // Everything is known now.
        assert_eq!(lengths(&mut known, 0..8 * new), [8 * new]);
    }

    #[test]
    fn a_new_instruction_before_the_longest_entry_ends_its_block() {
        for (known_len, first) in [(254, 255), (255, 1), (256, 257)] {
            let mut known = KnownCode::default();
            lengths(&mut known, 1..1 + known_len);
            assert_eq!(lengths(&mut known, 0..1 + known_len)[0], first, "{known_len}");
        }
    }

    #[test]
    fn an_error_ends_a_block_and_what_was_new_in_it_stays_new() {
        let mut known = KnownCode::default();
        known.begin(Some(ExecMode::Bits64));
        for at in 0..100 {
            assert_eq!(known.reach(at, 1 << 16), Reached::New);
            assert!(known.add(at));
        }
        // The last one needs the trace, and the trace does not fit.
        known.decide();
        known.fail();
        let new = MOST_NEW as usize;
        assert_eq!(lengths(&mut known, 0..2 * new)[..2], [100 + new, new - 100]);
    }

    #[test]
    fn known_code_has_the_mode_in_which_it_was_new_and_is_not_divided() {
        let mut known = KnownCode::default();
        lengths(&mut known, 1..11);
        known.begin(None);
        assert_eq!(known.reach(1, 10), Reached::Known(ExecMode::Bits64));
        assert_eq!(known.reach(1, 9), Reached::BlockEnds);
        known.begin(Some(ExecMode::Bits32));
        assert_eq!(known.reach(0, 100), Reached::New);
        assert!(known.add(0));
        assert_eq!(known.reach(1, 100), Reached::OtherMode);
        // Code of an unknown mode stays new.
        known.begin(None);
        assert_eq!(known.reach(50, 100), Reached::New);
        assert!(known.add(50));
        known.decide();
        known.end();
        known.begin(None);
        assert_eq!(known.reach(50, 100), Reached::New);
    }
}
