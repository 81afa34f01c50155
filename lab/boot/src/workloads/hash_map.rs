//! A hash map: insertions with growth, lookups that hit and miss, removals; this also uses the allocator.

use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

use crate::workload::{Mismatch, Workload, expect, numbers};

const COUNT: usize = 150;

/// FNV-1a over the hashed bytes.
#[derive(Default)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Counts how often each key occurs, and removes every second key.
#[derive(Default)]
pub(super) struct KeyCounts {
    map: HashMap<u64, u64, BuildHasherDefault<Fnv>>,
    missed: u64,
    removed: u64,
}

impl Workload for KeyCounts {
    fn run(&mut self) {
        for number in numbers(3).take(COUNT) {
            *self.map.entry(number >> 58).or_insert(0) += 1;
            self.map.insert(number | 64, 0);
        }
        for key in 0..64 {
            match self.map.get(&key) {
                None => self.missed += 1,
                Some(_) if key % 2 == 0 => self.removed += self.map.remove(&key).unwrap_or(0),
                Some(_) => {}
            }
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        let keys = || numbers(3).take(COUNT).map(|number| number >> 58);
        let left = keys().filter(|key| key % 2 == 1).count() as u64;
        expect("count left", (0..64).filter_map(|key| self.map.get(&key)).sum(), left)?;
        expect("count removed", self.removed, COUNT as u64 - left)?;
        expect("misses", self.missed, (0..64).filter(|key| keys().all(|other| other != *key)).count() as u64)
    }
}
