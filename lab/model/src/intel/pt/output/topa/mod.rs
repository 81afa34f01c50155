//! Output through a Table of Physical Addresses (ToPA), whose entries name the regions of memory that are filled in
//! turn. Source: SDM vol. 3, Intel Processor Trace, "Table of Physical Addresses (ToPA)".

use super::operational_error::OperationalError;
use crate::PhysMemory;
use crate::intel::registers::cap_ecx;
use crate::intel::{IntelProfile, IntelViolations};

const END: u64 = 1 << 0;
const INT: u64 = 1 << 2;
const STOP: u64 = 1 << 4;
const RESERVED: u64 = 1 << 1 | 1 << 3 | 1 << 5 | 0b11 << 10;

const ENTRIES_IN_PAGE: usize = 512;
/// MaskOrTableOffset is 25 bits wide; the first entry follows the last one.
const LAST_INDEX: u32 = (1 << 25) - 1;

/// Parts whose tables have a single entry raise the PMI this number of bytes before the region is full.
const SINGLE_ENTRY_MARGIN: u64 = 512;

/// The consequences of a filled region, or of a nearly filled one on single-entry parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FilledRegion {
    /// A PMI is signalled.
    pub(super) int: bool,
    /// Tracing stops.
    pub(super) stop: bool,
}

/// The region that is being filled.
#[derive(Clone, Copy, Debug, Default)]
struct TopaRegion {
    base: u64,
    size: u64,
    int: bool,
    stop: bool,
}

/// A walk through tables and their regions.
///
/// As a processor may, the walk reads the current page of the table once and caches it until the walk leaves the page
/// or tracing ends: changes by software in the meantime are not seen, but they are counted.
#[derive(Debug)]
pub(super) struct Topa {
    single_entry: bool,
    beyond_physical: u64,
    table: u64,
    index: u32,
    offset: u64,
    region: TopaRegion,
    page_address: Option<u64>,
    page: [u64; ENTRIES_IN_PAGE],
}

impl Topa {
    pub(super) fn new(profile: &IntelProfile) -> Self {
        Self {
            single_entry: !profile.output(cap_ecx::TOPA_MULTIPLE_ENTRIES),
            beyond_physical: profile.beyond_physical(),
            table: 0,
            index: 0,
            offset: 0,
            region: TopaRegion::default(),
            page_address: None,
            page: [0; ENTRIES_IN_PAGE],
        }
    }

    /// Starts the walk when TraceEn was set: reads the entry to which the MSRs point.
    pub(super) fn start(
        &mut self,
        base: u64,
        mask_ptrs: u64,
        mem: &dyn PhysMemory,
    ) -> Result<(), OperationalError> {
        self.table = base;
        self.index = mask_ptrs as u32 >> 7;
        self.offset = mask_ptrs >> 32;
        self.page_address = None;
        if base & 0xfff != 0 {
            return Err(OperationalError::TableMisaligned { table: base });
        }
        let at = self.index;
        self.enter_region(mem)?;
        if at == self.index && self.offset >= self.region.size {
            return Err(OperationalError::OffsetBeyondRange { offset: self.offset as u32 });
        }
        if self.single_entry {
            self.check_single_entry(mem)?;
        }
        Ok(())
    }

    /// Writes bytes from the front of `bytes`, up to the end of the region or to the single-entry margin. Returns their
    /// number, and the consequences of reaching that point.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        mem: &mut dyn PhysMemory,
        violations: &mut IntelViolations,
    ) -> Result<(usize, FilledRegion), (usize, OperationalError)> {
        let early = self.single_entry && self.region.int;
        let margin = self.region.size - SINGLE_ENTRY_MARGIN;
        let limit = if early && self.offset < margin { margin } else { self.region.size };
        let len = (limit - self.offset).min(bytes.len() as u64) as usize;
        if !mem.write(self.region.base + self.offset, &bytes[..len]) {
            violations.writes_outside_memory += 1;
        }
        self.offset += len as u64;
        if self.offset < limit {
            return Ok((len, FilledRegion::default()));
        }
        if self.offset < self.region.size {
            return Ok((len, FilledRegion { int: true, stop: false }));
        }
        let filled = FilledRegion { int: self.region.int && !early, stop: self.region.stop };
        if filled.stop {
            // The pointers stay at this entry, and the offset stays at the region's size.
            return Ok((len, filled));
        }
        self.offset = 0;
        if self.index == LAST_INDEX {
            self.index = 0;
        } else {
            self.index += 1;
        }
        let loaded = self.page_of_index();
        if self.page_address.is_some_and(|page| page != loaded) {
            self.report_live_edits(mem, violations);
        }
        // A pointer to another table, or back to this one, leaves the cached page too.
        if self.entry_in_page() & END != 0 && self.page_address == Some(loaded) {
            self.report_live_edits(mem, violations);
        }
        match self.enter_region(mem) {
            Ok(()) => Ok((len, filled)),
            Err(error) => Err((len, error)),
        }
    }

    /// Discards the cached entries, because tracing ended.
    pub(super) fn finish(&mut self, mem: &dyn PhysMemory, violations: &mut IntelViolations) {
        self.report_live_edits(mem, violations);
        self.page_address = None;
    }

    /// Returns IA32_RTIT_OUTPUT_BASE and IA32_RTIT_OUTPUT_MASK_PTRS.
    pub(super) fn pointers(&self) -> (u64, u64) {
        (self.table, self.offset << 32 | u64::from(self.index) << 7 | 0x7f)
    }

    /// Makes the entry at `index` the current one. If it points to another table, continues at that table's first
    /// entry.
    fn enter_region(&mut self, mem: &dyn PhysMemory) -> Result<(), OperationalError> {
        let entry = self.load(mem)?;
        if entry & END == 0 {
            self.region = self.check_region(entry)?;
            return Ok(());
        }
        self.table = self.check_end(entry)?;
        self.index = 0;
        self.offset = 0;
        self.page_address = None;
        let first = self.load(mem)?;
        // END is illegal in entry 0, so there is no further table to follow.
        self.region = self.check_region(first)?;
        Ok(())
    }

    fn check_region(&self, entry: u64) -> Result<TopaRegion, OperationalError> {
        let address = self.entry_address();
        if entry & END != 0 {
            return Err(OperationalError::EndInFirstEntry { address });
        }
        if entry & (RESERVED | self.beyond_physical) != 0 {
            return Err(OperationalError::ReservedBits { address, entry });
        }
        if self.single_entry && self.index != 0 {
            return Err(OperationalError::NoEndInSecondEntry { address });
        }
        let size = 0x1000 << (entry >> 6 & 0xf);
        let base = entry & !0xfff;
        if base & (size - 1) != 0 {
            return Err(OperationalError::RegionMisaligned { address, entry });
        }
        Ok(TopaRegion { base, size, int: entry & INT != 0, stop: entry & STOP != 0 })
    }

    /// Returns the next table of an END entry. The entry's size field is ignored.
    fn check_end(&self, entry: u64) -> Result<u64, OperationalError> {
        let address = self.entry_address();
        if self.index == 0 {
            return Err(OperationalError::EndInFirstEntry { address });
        }
        if entry & (RESERVED | INT | STOP | self.beyond_physical) != 0 {
            return Err(OperationalError::ReservedBits { address, entry });
        }
        let next = entry & !0xfff;
        if self.single_entry && next != self.table {
            return Err(OperationalError::EndElsewhere { address, entry });
        }
        Ok(next)
    }

    /// Checks entry 1: on parts whose tables have a single entry, it must have END and point to the same table.
    fn check_single_entry(&mut self, mem: &dyn PhysMemory) -> Result<(), OperationalError> {
        let current = core::mem::replace(&mut self.index, 1);
        let second = self.load(mem);
        let checked = second.and_then(|entry| {
            if entry & END == 0 {
                Err(OperationalError::NoEndInSecondEntry { address: self.entry_address() })
            } else {
                self.check_end(entry).map(|_| ())
            }
        });
        self.index = current;
        checked
    }

    /// Returns the entry at `index` from the cached page, which it loads if necessary.
    fn load(&mut self, mem: &dyn PhysMemory) -> Result<u64, OperationalError> {
        let page = self.page_of_index();
        if self.page_address != Some(page) {
            let mut bytes = [0; ENTRIES_IN_PAGE * 8];
            if page & self.beyond_physical != 0 || !mem.read(page, &mut bytes) {
                return Err(OperationalError::TableUnreadable { address: page });
            }
            for (entry, bytes) in self.page.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *entry = u64::from_le_bytes(*bytes);
            }
            self.page_address = Some(page);
        }
        Ok(self.entry_in_page())
    }

    fn entry_in_page(&self) -> u64 {
        self.page[self.index as usize % ENTRIES_IN_PAGE]
    }

    fn entry_address(&self) -> u64 {
        self.table.wrapping_add(u64::from(self.index) * 8)
    }

    fn page_of_index(&self) -> u64 {
        self.entry_address() & !0xfff
    }

    /// Compares the cached entries, up to the END entry, with memory, and counts the modified ones.
    fn report_live_edits(&self, mem: &dyn PhysMemory, violations: &mut IntelViolations) {
        let Some(page) = self.page_address else { return };
        let mut bytes = [0; ENTRIES_IN_PAGE * 8];
        if !mem.read(page, &mut bytes) {
            return;
        }
        for (index, (&cached, bytes)) in self.page.iter().zip(bytes.as_chunks::<8>().0).enumerate() {
            if u64::from_le_bytes(*bytes) != cached {
                violations.live_table_edits += 1;
                violations.first_live_edit.get_or_insert(page + index as u64 * 8);
            }
            if cached & END != 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests;
