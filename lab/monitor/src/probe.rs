//! The code that executes while the monitor itself traces the guest: new and changed instructions.

use alloc::boxed::Box;
use alloc::vec;

use pugmark_truth::probe::{ProbeCode, ProbeWriter};

/// The known state of an instruction's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeState {
    /// The same bytes have executed at this address before.
    Known,
    /// Nothing has executed at this address before.
    New,
    /// Other bytes have executed at this address before.
    Changed,
    /// The code is unknown, and there is no room to record it.
    Full,
}

/// The instructions that have executed, by address.
#[derive(Debug)]
pub struct SeenCode<'a> {
    writer: ProbeWriter<'a>,
    /// A hash table of the last record of each address: its index, counted from 1; 0 for none.
    records: Box<[u32]>,
    /// Number of used entries of the table.
    used: usize,
}

impl<'a> SeenCode<'a> {
    /// Returns an empty set, which records with this writer. `slots` is a power of two; three of four can be used.
    #[must_use]
    pub fn new(writer: ProbeWriter<'a>, slots: usize) -> Self {
        Self { writer, records: vec![0; slots.next_power_of_two()].into(), used: 0 }
    }

    /// Returns the writer.
    pub const fn writer(&mut self) -> &mut ProbeWriter<'a> {
        &mut self.writer
    }

    /// Looks up an executing instruction.
    #[must_use]
    pub fn find(&self, ip: u64, bytes: &[u8]) -> CodeState {
        let code = ProbeCode::new(ip, bytes);
        let slot = self.slot(code);
        match self.compared(slot, code) {
            Some(true) => CodeState::Known,
            Some(false) => CodeState::Changed,
            None if self.used >= self.records.len() / 4 * 3 => CodeState::Full,
            None => CodeState::New,
        }
    }

    /// Records the code of an instruction that is new or has changed. Returns `false` if there is no room.
    pub fn add(&mut self, ip: u64, bytes: &[u8]) -> bool {
        let slot = self.slot(ProbeCode::new(ip, bytes));
        let Ok(record) = u32::try_from(self.writer.count() + 1) else { return false };
        if !self.writer.add_code(ip, bytes) {
            return false;
        }
        self.used += usize::from(self.records[slot] == 0);
        self.records[slot] = record;
        true
    }

    /// Returns true if the record of a slot is this code; `None` if the slot is free.
    fn compared(&self, slot: usize, code: ProbeCode) -> Option<bool> {
        let record = (self.records[slot] as usize).checked_sub(1)?;
        self.writer.compare(record, code)
    }

    /// Returns the slot of an address, or the free slot for it.
    fn slot(&self, code: ProbeCode) -> usize {
        let mask = self.records.len() - 1;
        // The multiplicative hash of Knuth, The Art of Computer Programming, volume 3, "Hashing".
        let mut slot = (code.ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.records[slot] != 0 && self.compared(slot, code).is_none() {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::AtomicU64;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn code_is_new_once_then_known_until_it_changes() {
        let words: Vec<_> = (0..2048).map(|_| AtomicU64::new(0)).collect();
        let mut seen = SeenCode::new(ProbeWriter::new(&words).unwrap(), 16);
        assert_eq!(seen.find(0x10, &[0x90]), CodeState::New);
        assert!(seen.add(0x10, &[0x90]));
        assert_eq!(seen.find(0x10, &[0x90]), CodeState::Known);
        assert_eq!(seen.find(0x11, &[0x90]), CodeState::New);
        for bytes in [&[0x91][..], &[0x90, 0x90]] {
            assert_eq!(seen.find(0x10, bytes), CodeState::Changed);
        }
        assert!(seen.add(0x10, &[0x91]));
        assert_eq!(seen.find(0x10, &[0x91]), CodeState::Known);
        // A change back is a change, too.
        assert_eq!(seen.find(0x10, &[0x90]), CodeState::Changed);
        assert_eq!(seen.writer().count(), 2);
    }

    #[test]
    fn each_address_is_found_among_many_and_a_full_table_says_so() {
        let words: Vec<_> = (0..2048).map(|_| AtomicU64::new(0)).collect();
        let mut seen = SeenCode::new(ProbeWriter::new(&words).unwrap(), 16);
        let bytes = |ip: u64| [ip as u8, 0xc3];
        for ip in 0..12 {
            assert_eq!(seen.find(ip << 32, &bytes(ip)), CodeState::New);
            assert!(seen.add(ip << 32, &bytes(ip)));
            for known in 0..=ip {
                assert_eq!(seen.find(known << 32, &bytes(known)), CodeState::Known, "{ip} {known}");
                assert_eq!(seen.find(known << 32, &[0xc3]), CodeState::Changed, "{ip} {known}");
            }
        }
        assert_eq!(seen.find(12, &[0]), CodeState::Full);
    }

    #[test]
    fn without_room_for_records_nothing_is_noted() {
        let words: Vec<_> = (0..1027).map(|_| AtomicU64::new(0)).collect();
        let mut seen = SeenCode::new(ProbeWriter::new(&words).unwrap(), 16);
        assert!(seen.add(1, &[0x90]));
        assert!(!seen.add(2, &[0x90]));
        assert_eq!(seen.find(2, &[0x90]), CodeState::New);
    }
}
