//! Memory accesses, counted by their common properties.

use super::access::{AccessSource, MemoryAccess, Operation, Translation};
use serde::Serialize;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

/// The size of a cache line.
pub(super) const LINE: u64 = 64;
/// The size of a page.
const PAGE: u64 = 0x1000;
/// Addresses from here on are the kernel's, in all programs.
const KERNEL: u64 = 1 << 63;

/// The thread that accesses memory, or a processor that runs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Who {
    Thread(i32),
    Idle(Option<u32>),
}

/// The origin of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// The number of the program.
    pub(super) program: usize,
    /// The thread, if the samples have one; 0 if none ran.
    pub(super) thread: Option<i32>,
    /// The processor, if the samples have one.
    pub(super) cpu: Option<u32>,
    /// The instruction.
    pub(super) ip: Option<u64>,
}

impl Origin {
    fn who(self) -> Option<Who> {
        self.thread.map(|thread| if thread == 0 { Who::Idle(self.cpu) } else { Who::Thread(thread) })
    }
}

/// An address, with its program unless it is the kernel's.
pub(super) type Address = (Option<usize>, u64);

/// Counts of accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AccessCounts {
    pub(super) count: u64,
    pub(super) loads: u64,
    pub(super) stores: u64,
    pub(super) locked: u64,
    /// Accesses to a line that another cache had modified.
    pub(super) modified: u64,
    /// The known latencies.
    pub(super) latencies: Vec<u64>,
}

impl AccessCounts {
    fn add(&mut self, access: &MemoryAccess) {
        self.count += 1;
        self.loads += u64::from(access.operation.load);
        self.stores += u64::from(access.operation.store);
        self.locked += u64::from(access.locked);
        self.modified += u64::from(access.source.modified);
        self.latencies.extend(access.latency);
    }

    /// Adds the counts of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.loads += other.loads;
        self.stores += other.stores;
        self.locked += other.locked;
        self.modified += other.modified;
        self.latencies.extend(&other.latencies);
    }

    pub(super) fn latency(&self) -> Option<Latency> {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        // The sum saturates because a damaged file may have any values.
        let sum = sorted.iter().fold(0_u64, |sum, latency| sum.saturating_add(*latency));
        let count = sorted.len() as u64;
        let most = *sorted.last()?;
        let median = sorted[(sorted.len() - 1) / 2];
        Some(Latency { count, sum, mean: sum as f64 / count as f64, median, most })
    }
}

/// The latencies of accesses, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    /// The number of accesses with a known latency.
    pub(super) count: u64,
    pub(super) sum: u64,
    pub(super) mean: f64,
    /// The median; of an even number of latencies, the lower one of the two in the middle.
    pub(super) median: u64,
    pub(super) most: u64,
}

/// A page.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryPage {
    pub(super) counted: AccessCounts,
    pub(super) walks: u64,
    pub(super) users: BTreeSet<Who>,
}

/// A cache line.
#[derive(Clone, Debug, Default)]
pub(super) struct CacheLine {
    pub(super) counted: AccessCounts,
    pub(super) cpus: BTreeSet<u32>,
    /// The accesses of each thread, by offset in the line.
    pub(super) parts: BTreeMap<(u64, Option<Who>), LinePart>,
}

/// The accesses of one thread at one offset of a line.
#[derive(Clone, Debug, Default)]
pub(super) struct LinePart {
    pub(super) counted: AccessCounts,
    /// The size of the widest access, if known.
    pub(super) bytes: Option<u32>,
    pub(super) cpus: BTreeSet<u32>,
    /// The number of such accesses of each instruction of each program.
    pub(super) code: BTreeMap<(usize, u64), u64>,
}

/// The kind of sharing of a line: of the line alone, or also of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Sharing {
    /// No byte that one thread writes is accessed by another one: only the line is shared.
    False,
    /// Threads access the same bytes.
    True,
}

impl CacheLine {
    pub(super) fn users(&self) -> BTreeSet<Who> {
        self.parts.keys().filter_map(|(_, who)| *who).collect()
    }

    /// Returns the most accessed offset in the line.
    pub(super) fn most(&self) -> u64 {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for ((offset, _), part) in &self.parts {
            *counts.entry(*offset).or_default() += part.counted.count;
        }
        counts
            .into_iter()
            .max_by_key(|(offset, count)| (*count, Reverse(*offset)))
            .map_or(0, |(offset, _)| offset)
    }

    /// Returns the kind of sharing if several threads access the line, on several processors, and one of them writes.
    pub(super) fn sharing(&self) -> Option<Sharing> {
        let several = |count| count > 1;
        // Without the processors' numbers, several threads suffice.
        let apart = self.cpus.is_empty() || several(self.cpus.len());
        if !apart || !several(self.users().len()) || self.counted.stores == 0 {
            return None;
        }
        let parts: Vec<_> = self.parts.iter().collect();
        let meet = |(from, who): &(u64, Option<Who>), part: &LinePart| {
            let end = |from: u64, part: &LinePart| from + u64::from(part.bytes.unwrap_or(1));
            parts.iter().any(|((other_from, other), other_part)| {
                who != other && *other_from < end(*from, part) && *from < end(*other_from, other_part)
            })
        };
        let met = parts.iter().any(|(key, part)| part.counted.stores > 0 && meet(key, part));
        Some(if met { Sharing::True } else { Sharing::False })
    }
}

/// All accesses, counted.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryTables {
    /// All samples, also those without an access.
    pub(super) samples: u64,
    pub(super) all: AccessCounts,
    pub(super) sources: BTreeMap<(Operation, AccessSource), AccessCounts>,
    pub(super) translations: BTreeMap<Option<Translation>, AccessCounts>,
    pub(super) lines: HashMap<Address, CacheLine>,
    pub(super) pages: HashMap<Address, MemoryPage>,
    /// Counts by program and instruction; those of the kernel are of all programs.
    pub(super) code: HashMap<Address, AccessCounts>,
}

impl MemoryTables {
    pub(super) fn add(&mut self, access: &MemoryAccess, origin: Origin) {
        let place = |address: u64| ((address < KERNEL).then_some(origin.program), address);
        self.all.add(access);
        self.sources.entry((access.operation, access.source)).or_default().add(access);
        self.translations.entry(access.translation).or_default().add(access);
        if let Some(ip) = origin.ip {
            self.code.entry(place(ip)).or_default().add(access);
        }
        let Some(address) = access.address else { return };
        let page = self.pages.entry(place(address & !(PAGE - 1))).or_default();
        page.counted.add(access);
        page.walks += u64::from(access.translation == Some(Translation::Walk));
        page.users.extend(origin.who());
        let line = self.lines.entry(place(address & !(LINE - 1))).or_default();
        line.counted.add(access);
        line.cpus.extend(origin.cpu);
        let part = line.parts.entry((address % LINE, origin.who())).or_default();
        part.counted.add(access);
        part.bytes = part.bytes.max(access.bytes);
        part.cpus.extend(origin.cpu);
        if let Some(ip) = origin.ip {
            *part.code.entry((origin.program, ip)).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_that_no_access_has_do_not_overflow() {
        let counted = AccessCounts { latencies: vec![u64::MAX, 3, u64::MAX], ..AccessCounts::default() };
        let Latency { count, sum, median, most, .. } = counted.latency().unwrap();
        assert_eq!((count, sum, median, most), (3, u64::MAX, u64::MAX, u64::MAX));
        assert_eq!(AccessCounts::default().latency(), None);
    }
}
