//! ToPA tables and the regions that they list, in memory of the embedding kernel.

use super::entry::{Entry, EntryFlags, TABLE_BYTES, checked};
use super::{RegionSize, TopaError};
use crate::intel::pt::shape::Shape;
use crate::lifecycle::Halted;
use crate::memory::{Frames, Request};
use core::ptr::NonNull;
use x86_64::PhysAddr;

/// A ring of regions, listed in one or more tables. It owns their memory and frees it when dropped.
///
/// The tables may list the ring more than once, one lap after the other: then the processor's current table shows its
/// lap.
///
/// While it traces, the processor reads the tables and writes the regions: a running trace owns this value.
#[derive(Debug)]
pub(crate) struct Topa<F: Frames> {
    frames: F,
    plan: TopaPlan,
    limit: u64,
    first: PhysAddr,
    /// The number of tables, and the regions; less than planned only during construction.
    tables: u32,
    shape: Shape,
    /// The block with all regions, if the plan is contiguous.
    block: Option<PhysAddr>,
    /// The regions that have INT or STOP.
    marks: Marks,
}

/// The plan of a ring of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopaPlan {
    /// The sizes of the regions.
    pub sizes: Sizes,
    /// The number of regions that a table lists, 1 to 511: a table is one 4 KiB page. 511 wastes no space.
    pub regions_per_table: u32,
    /// True if all regions are one block of memory, so that a trace can be read as one slice.
    pub contiguous: bool,
    /// The chaining of the regions.
    pub chain: Chain,
    /// The number of times that the tables list the ring; 0 means 1. The last lap leads back to its own beginning.
    /// Always 1 if the driver chains the regions.
    pub laps: u32,
}

/// The sizes of a ring's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// One size.
    Equal {
        /// The size of each region.
        size: RegionSize,
        /// The number of regions.
        regions: u32,
    },
    /// Sizes as large as memory allows: a size is halved once there is no block of it. Never contiguous.
    Mixed {
        /// The size of all regions together.
        bytes: u64,
        /// The first size that is tried.
        largest: RegionSize,
        /// The last size that is tried.
        smallest: RegionSize,
    },
}

/// The meaning of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The lap that the entry belongs to, from 0.
    pub lap: u32,
    /// The region.
    pub region: u32,
}

/// The way from one region to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chain {
    /// Chained by the tables: END leads to the next table; the END of the last table leads to the first table of its
    /// lap.
    Table,
    /// Chained by the driver: each region has its own table whose END leads back to it, as processors with single-entry
    /// ToPA require. The driver moves to the next region when it serves the PMI.
    Driver,
}

/// The regions with INT and STOP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) int: Option<u32>,
    pub(crate) stop: Option<u32>,
}

impl<F: Frames> Topa<F> {
    /// Allocates tables and regions with the kernel's frames, all below `limit`.
    ///
    /// # Errors
    ///
    /// The plan breaks a rule, there is no memory, or the kernel returned memory that does not satisfy the request.
    /// Memory that was already allocated is freed.
    pub(crate) fn new(frames: F, plan: TopaPlan, limit: u64) -> Result<Self, TopaError> {
        let plan = match plan.chain {
            Chain::Table => plan,
            Chain::Driver => TopaPlan { regions_per_table: 1, laps: 1, ..plan },
        };
        if !(1..=MAX_REGIONS_PER_TABLE).contains(&plan.regions_per_table) {
            return Err(TopaError::RegionsPerTable { regions: plan.regions_per_table });
        }
        plan.sizes.check()?;
        let plan = TopaPlan { laps: plan.laps.max(1), ..plan };
        let block = match (plan.contiguous, plan.sizes) {
            (true, Sizes::Equal { size, regions }) => {
                Some(allocate(&frames, block_request(size, regions, limit))?)
            }
            _ => None,
        };
        let marks = Marks::default();
        let first = PhysAddr::zero();
        let mut topa = Self { frames, plan, limit, first, tables: 0, shape: Shape::EMPTY, block, marks };
        topa.first = topa.add_table()?;
        let mut table = topa.first;
        let mut size = plan.sizes.largest();
        while let Some(left) = plan.sizes.left(&topa.shape) {
            let n = topa.regions();
            if n == topa.tables * topa.plan.regions_per_table {
                let next = topa.add_table()?;
                topa.link(table, n - 1, next)?;
                table = next;
            }
            if size.bytes() <= left {
                match topa.add_region(table, n, size) {
                    Err(TopaError::NoMemory(_)) if plan.sizes.half(size).is_some() => {}
                    added => {
                        added?;
                        continue;
                    }
                }
            }
            // There is no block of this size any more, or fewer bytes are left.
            size = plan.sizes.half(size).unwrap_or(size);
        }
        let regions = topa.regions();
        let mut begin = topa.first;
        for _ in 1..topa.plan.laps {
            (begin, table) = topa.add_lap(table)?;
        }
        topa.link(table, regions - 1, begin)?;
        Ok(topa)
    }

    /// Returns the number of regions.
    pub(crate) fn regions(&self) -> u32 {
        self.shape.regions()
    }

    /// Returns the number of tables.
    #[cfg(test)]
    pub(crate) const fn tables(&self) -> u32 {
        self.tables
    }

    /// Returns the sizes of the regions.
    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the chaining of the regions.
    pub(crate) const fn chain(&self) -> Chain {
        self.plan.chain
    }

    /// Returns the entry of region `n`.
    pub(crate) fn entry(&self, n: u32) -> Entry {
        let (table, index) = self.place(n);
        self.read(table, index)
    }

    /// Returns how often the tables list the ring.
    pub(crate) const fn laps(&self) -> u32 {
        self.plan.laps
    }

    /// Returns the table that lists region `n` in the first lap, and the entry's index in it: the values for
    /// OUTPUT_BASE and MASK_PTRS.
    pub(crate) fn place(&self, n: u32) -> (PhysAddr, u32) {
        let per_table = self.plan.regions_per_table;
        let mut table = self.first;
        for _ in 0..n / per_table {
            table = self.next_table(table);
        }
        (table, n % per_table)
    }

    /// Returns the entry that OUTPUT_BASE and MASK_PTRS name, if it is in these tables.
    ///
    /// The index of an END entry means the entry that END leads to.
    pub(crate) fn listed_at(&self, base: u64, index: u32) -> Option<Listed> {
        let mut table = self.first;
        for lap in 0..self.plan.laps {
            for begin in (0..self.regions()).step_by(self.plan.regions_per_table as usize) {
                if table.as_u64() == base {
                    return self.listed(lap, begin, index);
                }
                table = self.next_table(table);
            }
        }
        None
    }

    /// Returns the meaning of entry `index` in the table of `lap` whose first region is `begin`.
    fn listed(&self, lap: u32, begin: u32, index: u32) -> Option<Listed> {
        let next = begin + self.listed_from(begin);
        match begin.checked_add(index)? {
            region if region < next => Some(Listed { lap, region }),
            region if region > next => None,
            _ if self.plan.chain == Chain::Driver => Some(Listed { lap, region: begin }),
            region if region < self.regions() => Some(Listed { lap, region }),
            _ => Some(Listed { lap: (lap + 1).min(self.plan.laps - 1), region: 0 }),
        }
    }

    /// Returns the number of regions in the table whose first region is `begin`.
    fn listed_from(&self, begin: u32) -> u32 {
        self.plan.regions_per_table.min(self.regions() - begin)
    }

    /// Returns the mapping of region `n`. In a contiguous ring the pointer is valid for all regions from `n` on.
    pub(crate) fn pointer(&self, n: u32) -> NonNull<u8> {
        match self.block {
            // SAFETY: the block is mapped as one and contains all regions.
            Some(block) => unsafe { self.frames.pointer(block).add(self.shape.start(n) as usize) },
            None => self.frames.pointer(PhysAddr::new_truncate(self.entry(n).base())),
        }
    }

    /// Returns whether all regions are one block of memory.
    pub(crate) const fn is_contiguous(&self) -> bool {
        self.block.is_some()
    }

    /// Sets INT on one region and STOP on one, and clears both flags on all others.
    ///
    /// Only with the trace off, because the processor may have read the entries in advance.
    pub(crate) fn mark(&mut self, marks: Marks, _: &Halted) {
        for n in [self.marks.int, self.marks.stop].into_iter().flatten() {
            self.flag(n, EntryFlags::empty());
        }
        for n in [marks.int, marks.stop].into_iter().flatten() {
            let mut flags = EntryFlags::empty();
            flags.set(EntryFlags::INT, marks.int == Some(n));
            flags.set(EntryFlags::STOP, marks.stop == Some(n));
            self.flag(n, flags);
        }
        self.marks = marks;
    }

    /// Sets INT on every `every`th region, counted back from the last one.
    pub(crate) fn mark_every(&mut self, every: u32, _: &Halted) {
        let regions = self.regions();
        self.flag_all(|n| ((regions - 1 - n) % every.max(1) == 0).then_some(EntryFlags::INT));
    }

    fn flag(&mut self, n: u32, flags: EntryFlags) {
        debug_assert_eq!(self.plan.laps, 1);
        let (table, index) = self.place(n);
        let entry = self.read(table, index).with_flags(flags);
        self.write(table, index, entry);
    }

    /// Sets the flags of a region in all laps if `flags` returns new ones for it.
    fn flag_all(&mut self, flags: impl Fn(u32) -> Option<EntryFlags>) {
        let mut table = self.first;
        for _ in 0..self.plan.laps {
            for begin in (0..self.regions()).step_by(self.plan.regions_per_table as usize) {
                for index in 0..self.listed_from(begin) {
                    if let Some(flags) = flags(begin + index) {
                        let entry = self.read(table, index).with_flags(flags);
                        self.write(table, index, entry);
                    }
                }
                table = self.next_table(table);
            }
        }
    }

    fn add_table(&mut self) -> Result<PhysAddr, TopaError> {
        let table = allocate(&self.frames, table_request(self.limit))?;
        // SAFETY: the block is ours and as long as one table.
        unsafe { self.frames.pointer(table).write_bytes(0, TABLE_BYTES as usize) };
        self.tables += 1;
        Ok(table)
    }

    fn add_region(&mut self, table: PhysAddr, n: u32, size: RegionSize) -> Result<(), TopaError> {
        let base = match self.block {
            Some(block) => block + u64::from(n) * size.bytes(),
            None => allocate(&self.frames, region_request(size.bytes(), self.limit))?,
        };
        let entry = Entry::region(base.as_u64(), size, self.limit)?;
        self.write(table, n % self.plan.regions_per_table, entry);
        self.shape.push(size.bytes());
        Ok(())
    }

    /// Lists the ring once more after `table`, the last one. Returns the first and the last table of the new lap.
    fn add_lap(&mut self, table: PhysAddr) -> Result<(PhysAddr, PhysAddr), TopaError> {
        let regions = self.regions();
        let mut from = self.first;
        let mut table = table;
        let mut begin = None;
        for first in (0..regions).step_by(self.plan.regions_per_table as usize) {
            let next = self.add_table()?;
            self.link(table, (first + regions - 1) % regions, next)?;
            table = next;
            begin.get_or_insert(table);
            for index in 0..self.listed_from(first) {
                let entry = self.read(from, index);
                self.write(table, index, entry);
            }
            from = self.next_table(from);
        }
        Ok((begin.unwrap_or(table), table))
    }

    /// Links `next` after `table`, whose last region is `last`.
    fn link(&mut self, table: PhysAddr, last: u32, next: PhysAddr) -> Result<(), TopaError> {
        // The last slot always holds the address of the next table, because END may lead back instead. The processor
        // reads nothing after an END.
        self.write(table, LINK, Entry::end(next.as_u64(), self.limit)?);
        let target = match self.plan.chain {
            Chain::Table => next,
            Chain::Driver => table,
        };
        self.write(table, last % self.plan.regions_per_table + 1, Entry::end(target.as_u64(), self.limit)?);
        Ok(())
    }

    fn next_table(&self, table: PhysAddr) -> PhysAddr {
        PhysAddr::new_truncate(self.read(table, LINK).base())
    }

    /// Returns entry `index` of one of the tables.
    pub(crate) fn read(&self, table: PhysAddr, index: u32) -> Entry {
        let slot = self.slot(table, index);
        // SAFETY: a slot of our own table; the processor only reads it.
        unsafe { slot.read() }
    }

    fn write(&mut self, table: PhysAddr, index: u32, entry: Entry) {
        let slot = self.slot(table, index);
        // SAFETY: a slot of our own table, and nothing else writes it. The write is volatile because the processor
        // reads the slot.
        unsafe { slot.write_volatile(entry) };
    }

    fn slot(&self, table: PhysAddr, index: u32) -> NonNull<Entry> {
        debug_assert!(index <= LINK);
        // SAFETY: a table is mapped as one page and has LINK + 1 slots; callers use no higher index.
        unsafe { self.frames.pointer(table).cast::<Entry>().add(index as usize) }
    }
}

impl<F: Frames> Drop for Topa<F> {
    fn drop(&mut self) {
        let mut table = self.first;
        for t in 0..self.tables {
            let start = t * self.plan.regions_per_table;
            let here = self.plan.regions_per_table.min(self.regions().saturating_sub(start));
            if self.block.is_none() {
                for index in 0..here {
                    let base = PhysAddr::new_truncate(self.read(table, index).base());
                    let request = region_request(self.shape.size(start + index), self.limit);
                    // SAFETY: allocated by `add_region` with this request; no unit uses it, because a unit would own
                    // this value.
                    unsafe { self.frames.free(base, request) };
                }
            }
            let next = self.next_table(table);
            // SAFETY: allocated by `add_table` with this request; no unit uses it.
            unsafe { self.frames.free(table, table_request(self.limit)) };
            table = next;
        }
        if let (Some(block), Sizes::Equal { size, regions }) = (self.block, self.plan.sizes) {
            let request = block_request(size, regions, self.limit);
            // SAFETY: allocated by `new` with this request; no unit uses it.
            unsafe { self.frames.free(block, request) };
        }
    }
}

/// Allocates memory, and checks that it satisfies the request.
pub(crate) fn allocate(frames: &impl Frames, request: Request) -> Result<PhysAddr, TopaError> {
    let block = frames.allocate(request).ok_or(TopaError::NoMemory(request))?;
    match checked(block.as_u64(), request.size, request.align, request.limit) {
        Ok(_) => Ok(block),
        Err(error) => {
            // SAFETY: the block was just allocated with this request, and nothing uses it.
            unsafe { frames.free(block, request) };
            Err(error)
        }
    }
}

/// The slot with the address of the next table.
const LINK: u32 = 511;
const MAX_REGIONS_PER_TABLE: u32 = 511;

const fn table_request(limit: u64) -> Request {
    Request { size: TABLE_BYTES, align: TABLE_BYTES, limit }
}

const fn region_request(bytes: u64, limit: u64) -> Request {
    Request { size: bytes, align: bytes, limit }
}

const fn block_request(size: RegionSize, regions: u32, limit: u64) -> Request {
    // At most 2^32 regions of 2^27 bytes.
    Request { size: size.bytes() * regions as u64, align: size.bytes(), limit }
}

impl Sizes {
    /// Checks that there is a region, and that the regions can have all of the bytes.
    fn check(self) -> Result<(), TopaError> {
        match self {
            Self::Equal { regions: 0, .. } => Err(TopaError::Regions { regions: 0 }),
            Self::Equal { .. } => Ok(()),
            Self::Mixed { bytes, largest, smallest }
                if bytes == 0 || bytes % smallest.bytes() != 0 || smallest > largest =>
            {
                Err(TopaError::MixedSize { bytes })
            }
            Self::Mixed { .. } => Ok(()),
        }
    }

    /// Returns the size to try first.
    const fn largest(self) -> RegionSize {
        match self {
            Self::Equal { size, .. } => size,
            Self::Mixed { largest, .. } => largest,
        }
    }

    /// Returns the size to try after this one.
    fn half(self, size: RegionSize) -> Option<RegionSize> {
        match self {
            Self::Equal { .. } => None,
            Self::Mixed { smallest, .. } => (size > smallest).then(|| size.half()),
        }
    }

    /// Returns the number of bytes still to be allocated; `None` if there are none.
    fn left(self, shape: &Shape) -> Option<u64> {
        let bytes = match self {
            Self::Equal { size, regions } => size.bytes() * u64::from(regions),
            Self::Mixed { bytes, .. } => bytes,
        };
        Some(bytes - shape.capacity()).filter(|&left| left > 0)
    }
}
