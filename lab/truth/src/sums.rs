//! Counts and hashes in place of records.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Record;

/// Count and hash of the instructions that one processor executed in one session at one privilege level.
///
/// Software interrupts are not among them: see [`crate::RecordFlags::software_interrupt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sum {
    /// The trace session.
    pub session: u16,
    /// Index of the logical processor.
    pub cpu: u16,
    /// The privilege level.
    pub cpl: u8,
    /// The number of instructions that retired.
    pub instructions: u64,
    /// FNV-1a (64 bits) over their addresses in the order of retirement, each as little-endian `u64`.
    pub hash: u64,
}

/// The mark of a sum in use, in the word with its session, processor and level (2 bytes each).
const IN_USE: u64 = 1 << 63;
const KEY: usize = 0;
const INSTRUCTIONS: usize = 1;
const HASH: usize = 2;

/// The hash of no addresses.
const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

impl Sum {
    /// Bytes in memory.
    pub(crate) const BYTES: usize = 24;

    /// Returns `hash`, which is of earlier addresses, extended by `address`.
    #[must_use]
    pub const fn hash_of(hash: u64, address: u64) -> u64 {
        let bytes = address.to_le_bytes();
        let (mut hash, mut index) = (hash, 0);
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            index += 1;
        }
        hash
    }

    pub(crate) const fn from_words([key, instructions, hash]: [u64; 3]) -> Option<Self> {
        if key & IN_USE == 0 {
            return None;
        }
        let (session, cpu, cpl) = (key as u16, (key >> 16) as u16, (key >> 32) as u8);
        Some(Self { session, cpu, cpl, instructions, hash })
    }
}

/// Adds an instruction to its sum. Returns `false` if there is none, and no room for a new one.
///
/// Only the processor itself changes its sums. There are few, so the search is linear.
pub(crate) fn add(sums: &[[AtomicU64; 3]], record: Record) -> bool {
    let Record { rip, session, flags, cpu, .. } = record;
    let key = IN_USE | session as u64 | (cpu as u64) << 16 | (flags.cpl() as u64) << 32;
    for sum in sums {
        let found = match sum[KEY].load(Ordering::Relaxed) {
            0 => match sum[KEY].compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    sum[HASH].store(OFFSET_BASIS, Ordering::Relaxed);
                    key
                }
                Err(other) => other,
            },
            found => found,
        };
        if found == key {
            let hash = Sum::hash_of(sum[HASH].load(Ordering::Relaxed), rip);
            sum[HASH].store(hash, Ordering::Relaxed);
            sum[INSTRUCTIONS].store(sum[INSTRUCTIONS].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return true;
        }
    }
    false
}
