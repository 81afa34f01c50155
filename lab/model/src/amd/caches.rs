//! A simple model of the caches and translation buffers: direct-mapped, by linear address, without speculation. A page
//! larger than 4 KiB needs a translation for each 4 KiB.
//!
//! Software sees the caches only through misses and latencies. The manuals do not define the sizes of the caches; here
//! they are small, so that short programs miss.

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Additional cycles of an access whose line is only in the level-2 cache.
const L2_CYCLES: u32 = 12;
const L3_CYCLES: u32 = 40;
const DRAM_CYCLES: u32 = 180;
const L2_TLB_CYCLES: u32 = 7;
const WALK_CYCLES: u32 = 35;

/// The outcome of one access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheOutcome {
    pub(super) missed_l1: bool,
    pub(super) missed_l2: bool,
    /// On a processor without a level-3 cache this is set whenever level 2 missed.
    pub(super) missed_l3: bool,
    pub(super) missed_l1_tlb: bool,
    pub(super) missed_l2_tlb: bool,
    /// Cycles from the miss until the line arrived.
    pub(super) miss_cycles: u32,
    /// Cycles until the translation was available.
    pub(super) refill_cycles: u32,
}

impl CacheOutcome {
    /// Returns the cycles for which the access stalls.
    pub(super) const fn stall(&self) -> u32 {
        self.miss_cycles + self.refill_cycles
    }
}

/// One of the first-level caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheSide {
    Instruction,
    Data,
}

/// Lines or translations, by number.
#[derive(Debug)]
struct CacheLevel<const N: usize> {
    /// The number that is held, plus one; 0 if the slot is empty.
    held: [u64; N],
}

impl<const N: usize> CacheLevel<N> {
    const EMPTY: Self = Self { held: [0; N] };

    /// Looks up and inserts `number`. Returns whether it was missing.
    fn missed(&mut self, number: u64) -> bool {
        core::mem::replace(&mut self.held[number as usize % N], number + 1) != number + 1
    }
}

/// All caches and translation buffers of a processor.
#[derive(Debug)]
pub(super) struct Caches {
    has_l3: bool,
    l1: [CacheLevel<128>; 2],
    l2: CacheLevel<512>,
    l3: CacheLevel<1024>,
    l1_tlb: [CacheLevel<16>; 2],
    l2_tlb: CacheLevel<64>,
}

impl Caches {
    pub(super) const fn new(has_l3: bool) -> Self {
        Self {
            has_l3,
            l1: [CacheLevel::EMPTY; 2],
            l2: CacheLevel::EMPTY,
            l3: CacheLevel::EMPTY,
            l1_tlb: [CacheLevel::EMPTY; 2],
            l2_tlb: CacheLevel::EMPTY,
        }
    }

    /// Accesses `address`.
    pub(super) fn access(&mut self, side: CacheSide, address: u64) -> CacheOutcome {
        let line = address / LINE;
        let mut found = self.translate(side, address);
        if self.l1[side as usize].missed(line) {
            found.missed_l1 = true;
            found.missed_l2 = self.l2.missed(line);
            found.missed_l3 = found.missed_l2 && (!self.has_l3 || self.l3.missed(line));
            found.miss_cycles = match found {
                // The varying part models open and closed rows of DRAM.
                CacheOutcome { missed_l3: true, .. } => DRAM_CYCLES + 4 * (line >> 3 & 0x3f) as u32,
                CacheOutcome { missed_l2: true, .. } => L3_CYCLES,
                _ => L2_CYCLES,
            };
        }
        found
    }

    /// Accesses `address`, which is uncacheable: all caches miss, and none keeps the line.
    pub(super) fn access_uncached(&mut self, side: CacheSide, address: u64) -> CacheOutcome {
        CacheOutcome {
            missed_l1: true,
            missed_l2: true,
            missed_l3: true,
            miss_cycles: DRAM_CYCLES,
            ..self.translate(side, address)
        }
    }

    fn translate(&mut self, side: CacheSide, address: u64) -> CacheOutcome {
        let page = address / PAGE;
        let mut found = CacheOutcome::default();
        if self.l1_tlb[side as usize].missed(page) {
            found.missed_l1_tlb = true;
            found.missed_l2_tlb = self.l2_tlb.missed(page);
            found.refill_cycles = if found.missed_l2_tlb { WALK_CYCLES } else { L2_TLB_CYCLES };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_misses_down_to_where_its_line_is() {
        let mut caches = Caches::new(true);
        let data = |caches: &mut Caches, address| {
            let found = caches.access(CacheSide::Data, address);
            (found.missed_l1, found.missed_l2, found.missed_l3, found.miss_cycles)
        };
        assert_eq!(data(&mut caches, 0x1000), (true, true, true, 212));
        assert_eq!(data(&mut caches, 0x103f), (false, false, false, 0));
        assert_eq!(data(&mut caches, 0x1040), (true, true, true, 212));
        // This address maps to the same slot of level 1: level 2 still has the old line afterwards.
        assert!(data(&mut caches, 0x1000 + 128 * 64).0);
        assert_eq!(data(&mut caches, 0x1000), (true, false, false, 12));
        // This address maps to the same slot of level 2.
        assert!(data(&mut caches, 0x1000 + 512 * 64).0);
        assert_eq!(data(&mut caches, 0x1000), (true, true, false, 40));
        // Instructions have a separate level 1.
        assert_eq!(caches.access(CacheSide::Instruction, 0x1000).miss_cycles, 12);
    }

    #[test]
    fn without_a_third_level_a_miss_in_the_second_goes_to_memory() {
        let mut caches = Caches::new(false);
        for address in [0x1000, 0x1000 + 512 * 64] {
            caches.access(CacheSide::Data, address);
        }
        assert!(caches.access(CacheSide::Data, 0x1000).missed_l3);
    }

    #[test]
    fn what_is_not_cached_is_never_there() {
        let mut caches = Caches::new(true);
        for _ in 0..2 {
            assert_eq!(caches.access_uncached(CacheSide::Data, 0x1000).miss_cycles, 180);
        }
        assert_eq!(caches.access_uncached(CacheSide::Data, 0x1000).refill_cycles, 0, "its translation is");
        assert!(caches.access(CacheSide::Data, 0x1000).missed_l3);
    }

    #[test]
    fn translations_are_remembered_in_two_levels() {
        let mut caches = Caches::new(true);
        let tlb = |caches: &mut Caches, side, page: u64| {
            let found = caches.access(side, page * 4096);
            (found.missed_l1_tlb, found.missed_l2_tlb, found.refill_cycles)
        };
        assert_eq!(tlb(&mut caches, CacheSide::Data, 1), (true, true, 35));
        assert_eq!(tlb(&mut caches, CacheSide::Data, 1), (false, false, 0));
        assert_eq!(tlb(&mut caches, CacheSide::Instruction, 1), (true, false, 7));
        assert_eq!(tlb(&mut caches, CacheSide::Data, 17), (true, true, 35));
        assert_eq!(tlb(&mut caches, CacheSide::Data, 1), (true, false, 7));
    }
}
