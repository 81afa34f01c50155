//! The physical memory that the guest can reach, and the nested page tables that enforce it.
//!
//! The guest's RAM begins at address 0 and excludes the monitor. Everything is identity-mapped.
//!
//! Source: AMD64 Architecture Programmer's Manual vol. 2, Secure Virtual Machine, "Nested Paging".

use core::ops::Range;

/// The addresses of the monitor's image and heap: a hole in the guest's memory.
pub const MONITOR: Range<u64> = 256 << 20..320 << 20;
/// The page of the local APIC's registers; accesses to it are trapped.
pub const LOCAL_APIC: u64 = 0xfee0_0000;

/// The guest's RAM: all memory up to an end, but for a hole that begins with the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRam {
    end: u64,
    hole_end: u64,
}

impl GuestRam {
    /// All the memory below the monitor.
    pub const BELOW_MONITOR: Self = Self { end: MONITOR.start, hole_end: MONITOR.end };
    /// The highest end of RAM: devices are above it.
    pub const MAX_END: u64 = 0xc000_0000;

    /// Returns RAM up to `end`, or `None` if it would end in the monitor, among devices, or below 1 MiB.
    #[must_use]
    pub const fn up_to(end: u64) -> Option<Self> {
        let ends_below = 1 << 20 < end && end <= MONITOR.start;
        let ends_above = MONITOR.end < end && end <= Self::MAX_END;
        if ends_below || ends_above { Some(Self { end, hole_end: MONITOR.end }) } else { None }
    }

    /// Returns this RAM with a hole that ends at `end`, or `None` if the hole would not have the whole monitor, or no
    /// RAM above it.
    #[must_use]
    pub const fn with_hole_to(self, end: u64) -> Option<Self> {
        if MONITOR.end <= end && end < self.end { Some(Self { hole_end: end, ..self }) } else { None }
    }

    /// Returns the addresses, the monitor's among them, that are not the guest's though it may have RAM above them.
    #[must_use]
    pub const fn hole(self) -> Range<u64> {
        MONITOR.start..self.hole_end
    }

    /// Returns the address after the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns the RAM below the hole and the RAM above it, which may be empty.
    #[must_use]
    pub const fn ranges(self) -> [Range<u64>; 2] {
        let below = if self.end < MONITOR.start { self.end } else { MONITOR.start };
        let above = if self.end < self.hole_end { self.hole_end } else { self.end };
        [0..below, self.hole_end..above]
    }

    /// Returns whether `bytes` bytes from `address` on are RAM.
    #[inline]
    #[must_use]
    pub const fn contains(self, address: u64, bytes: usize) -> bool {
        let Some(end) = address.checked_add(bytes as u64) else { return false };
        end <= self.end && (end <= MONITOR.start || address >= self.hole_end)
    }

    /// Returns the number of bytes from `address` on, at most `bytes`, before the first that is not RAM.
    #[must_use]
    pub fn reached(self, address: u64, bytes: u32) -> u32 {
        let part = self.ranges().into_iter().find(|part| part.contains(&address));
        part.map_or(0, |part| (part.end - address).min(bytes.into()) as u32)
    }
}

/// Size of a page.
pub const PAGE: u64 = 4 << 10;
/// Size of a large page.
pub const LARGE_PAGE: u64 = 2 << 20;
/// Number of entries in a table.
pub const ENTRIES: usize = 512;
/// An entry's flags: present, writable, user. The nested walk treats guest accesses as user accesses.
pub const LINK: u64 = 0b111;
/// An entry without memory: nothing is mapped, so that each access exits. The processor ignores the bit.
pub const NO_MEMORY: u64 = 1 << 9;
/// An entry's flags: present, user, but not writable.
pub const READ_ONLY: u64 = 0b101;
/// An entry's flag: the page is writable.
pub const WRITABLE: u64 = 1 << 1;
/// An entry's flag: the entry maps a large page.
pub const LARGE: u64 = 1 << 7;

/// Returns the index of the entry for `address` in a table of this level, 1 to 4.
#[must_use]
pub const fn index_at(address: u64, level: u32) -> usize {
    (address >> (3 + 9 * level)) as usize % ENTRIES
}

/// One page of page-table entries.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct PageTable(pub [u64; ENTRIES]);

impl PageTable {
    /// A table that maps nothing.
    pub const EMPTY: Self = Self([0; ENTRIES]);
}

/// The physical addresses that the guest can reach.
#[derive(Clone, Debug)]
pub struct GuestMap<'a> {
    /// The guest's RAM.
    pub ram: GuestRam,
    /// Ranges above the guest's RAM that it may see: ACPI tables.
    pub firmware: &'a [(u64, u64)],
}

impl GuestMap<'_> {
    /// Returns whether all, some or none of `start..end` belongs to the guest.
    fn coverage(&self, start: u64, end: u64) -> Coverage {
        const MMIO: (u64, u64) = (GuestRam::MAX_END, LOCAL_APIC);
        const ABOVE: (u64, u64) = (LOCAL_APIC + PAGE, 1 << 32);
        let [below, above] = self.ram.ranges().map(|range| (range.start, range.end));
        let fixed = [below, above, MMIO, ABOVE];
        let mut covered = 0;
        for &(first, past_end) in fixed.iter().chain(self.firmware) {
            covered += past_end.min(end).saturating_sub(first.max(start));
        }
        match covered {
            0 => Coverage::None,
            bytes if bytes >= end - start => Coverage::All,
            _ => Coverage::Part,
        }
    }

    /// Fills the four levels of tables, with pages of 2 MiB where a page belongs to the guest as a whole. Addresses
    /// without memory lead to [`NO_MEMORY`]. The local APIC's page is not mapped. Returns the address of the root
    /// table.
    ///
    /// `table` returns an empty table and its physical address; the first table that it returns becomes the root.
    pub fn build<'t>(&self, mut table: impl FnMut() -> (u64, &'t mut PageTable)) -> u64 {
        let (root, level4) = table();
        // One table of each level, all of whose entries lead to no memory.
        let mut nothing = [NO_MEMORY; 4];
        for level in 1..4 {
            let (address, all_alike) = table();
            all_alike.0.fill(nothing[level - 1]);
            nothing[level] = address | LINK;
        }
        let (address, level3) = table();
        level4.0.fill(nothing[3]);
        level3.0.fill(nothing[2]);
        level4.0[0] = address | LINK;
        for (gigabyte, entry) in level3.0[..4].iter_mut().enumerate() {
            let (address, level2) = table();
            *entry = address | LINK;
            for (index, entry) in level2.0.iter_mut().enumerate() {
                let start = (gigabyte * ENTRIES + index) as u64 * LARGE_PAGE;
                *entry = match self.coverage(start, start + LARGE_PAGE) {
                    Coverage::None => nothing[1],
                    Coverage::All => start | LARGE | LINK,
                    Coverage::Part => {
                        let (address, level1) = table();
                        for (index, entry) in level1.0.iter_mut().enumerate() {
                            let page = start + index as u64 * PAGE;
                            *entry = match self.coverage(page, page + PAGE) {
                                Coverage::All => page | LINK,
                                _ if page == LOCAL_APIC => 0,
                                _ => nothing[0],
                            };
                        }
                        address | LINK
                    }
                };
            }
        }
        root
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    None,
    Part,
    All,
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    fn build(map: &GuestMap<'_>) -> (u64, Vec<(u64, &'static mut PageTable)>) {
        let mut tables: Vec<*mut PageTable> = Vec::new();
        let root = map.build(|| {
            let table = Box::leak(Box::new(PageTable::EMPTY));
            tables.push(table);
            ((tables.len() as u64) << 12, table)
        });
        // SAFETY: each table was leaked above, and `build` no longer has its reference.
        (root, tables.iter().enumerate().map(|(i, &t)| ((i as u64 + 1) << 12, unsafe { &mut *t })).collect())
    }

    /// Returns the address to which a guest address is translated; `None` if nothing is mapped.
    fn translate(root: u64, tables: &[(u64, &'static mut PageTable)], address: u64) -> Option<u64> {
        let find =
            |at: u64| tables.iter().find(|(address, _)| *address == at & !0xfff).map(|(_, table)| &table.0);
        let mut at = root;
        for level in (1..=4).rev() {
            let entry = find(at)?[(address >> (3 + 9 * level)) as usize & 511];
            let is_apic = address & !0xfff == LOCAL_APIC;
            assert_eq!(
                entry == 0,
                is_apic && level == 1,
                "{address:#x}: all but the local APIC has an entry"
            );
            if entry & 7 != 7 {
                assert!(is_apic || level == 1 && entry == NO_MEMORY, "{address:#x}: {entry:#x}");
                return None;
            }
            let page = 1u64 << (3 + 9 * level);
            if level == 1 || entry & 0x80 != 0 {
                return Some(entry & !0xfff & !(page - 1) | address & (page - 1));
            }
            at = entry;
        }
        None
    }

    #[test]
    fn the_guest_reaches_its_memory_and_devices_and_nothing_of_the_monitor() {
        let (root, tables) =
            build(&GuestMap { ram: GuestRam::BELOW_MONITOR, firmware: &[(0x1ffe_0000, 0x2000_0000)] });
        let rows = [
            (0, true),
            (0xfff_ffff, true),
            (0x1000_0000, false),
            (0x1400_0000, false),
            (0x1dff_ffff, false),
            (0x1ffd_ffff, false),
            (0x1ffe_0000, true),
            (0x1fff_ffff, true),
            (0x2000_0000, false),
            (0xbfff_ffff, false),
            (0xc000_0000, true),
            (0xfec0_0000, true),
            (0xfed0_0000, true),
            (0xfee0_0000, false),
            (0xfee0_0fff, false),
            (0xfee0_1000, true),
            (0xffff_fff0, true),
            (0x1_0000_0000, false),
            (0x80_0000_0000, false),
        ];
        for (address, reached) in rows {
            let expected = reached.then_some(address);
            assert_eq!(translate(root, &tables, address), expected, "{address:#x}");
        }
    }

    #[test]
    fn ram_beyond_the_monitor_leaves_the_monitor_out() {
        let ram = GuestRam::up_to(0x2020_0000).unwrap();
        let (root, tables) = build(&GuestMap { ram, firmware: &[] });
        let rows = [
            (0xfff_ffff, true),
            (0x1000_0000, false),
            (0x13ff_ffff, false),
            (0x1400_0000, true),
            (0x201f_ffff, true),
            (0x2020_0000, false),
        ];
        for (address, reached) in rows {
            assert_eq!(translate(root, &tables, address), reached.then_some(address), "{address:#x}");
            assert_eq!(ram.contains(address, 1), reached, "{address:#x}");
        }
        for (address, bytes, contained) in [
            (0xfff_fffe, 2, true),
            (0xfff_ffff, 2, false),
            (0x13ff_ffff, 2, false),
            (0xfff_ffff, 0x400_0002, false),
            (0x201f_fffe, 2, true),
            (0x201f_ffff, 2, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(ram.contains(address, bytes), contained, "{bytes} bytes at {address:#x}");
        }
    }

    #[test]
    fn a_range_reaches_to_the_end_of_the_ram_that_it_begins_in() {
        let ram = GuestRam::up_to(0x2000_0000).unwrap();
        for (address, bytes, reached) in [
            (0, 16, 16),
            (0xfff_fff0, 16, 16),
            (0xfff_fff0, 17, 16),
            (0xfff_fff0, u32::MAX, 16),
            (0x1000_0000, 1, 0),
            (0x13ff_ffff, 2, 0),
            (0x1400_0000, 7, 7),
            (0x1fff_ffff, 2, 1),
            (0x2000_0000, 2, 0),
            (u64::MAX, 2, 0),
            (5, 0, 0),
        ] {
            assert_eq!(ram.reached(address, bytes), reached, "{bytes} bytes at {address:#x}");
        }
    }

    #[test]
    fn ram_ends_neither_in_the_monitor_nor_among_devices() {
        for (end, taken) in [
            (0x10_0000, false),
            (0x20_0000, true),
            (0x1000_0000, true),
            (0x1000_1000, false),
            (0x1400_0000, false),
            (0x1400_1000, true),
            (0xc000_0000, true),
            (0xc000_1000, false),
        ] {
            assert_eq!(GuestRam::up_to(end).map(GuestRam::end), taken.then_some(end), "{end:#x}");
        }
        let ranges = |end| GuestRam::up_to(end).unwrap().ranges();
        assert_eq!(ranges(0x20_0000), [0..0x20_0000, 0x1400_0000..0x1400_0000]);
        assert_eq!(ranges(0x2000_0000), [0..0x1000_0000, 0x1400_0000..0x2000_0000]);
    }

    #[test]
    fn a_hole_has_the_whole_monitor_and_more_if_there_is_ram_above_it() {
        let ram = GuestRam::up_to(0x2000_0000).unwrap();
        for (end, taken) in [
            (0x13ff_f000, false),
            (0x1400_0000, true),
            (0x1410_0000, true),
            (0x1fff_f000, true),
            (0x2000_0000, false),
        ] {
            let holed = ram.with_hole_to(end);
            assert_eq!(holed.map(GuestRam::hole), taken.then_some(0x1000_0000..end), "{end:#x}");
        }
        assert_eq!(GuestRam::BELOW_MONITOR.with_hole_to(0x1410_0000), None);
        let ram = ram.with_hole_to(0x1410_0000).unwrap();
        assert_eq!(ram.ranges(), [0..0x1000_0000, 0x1410_0000..0x2000_0000]);
        let (root, tables) = build(&GuestMap { ram, firmware: &[] });
        for (address, reached) in [
            (0xfff_ffff, true),
            (0x1000_0000, false),
            (0x1400_0000, false),
            (0x140f_ffff, false),
            (0x1410_0000, true),
            (0x1fff_ffff, true),
        ] {
            assert_eq!(translate(root, &tables, address), reached.then_some(address), "{address:#x}");
            assert_eq!(
                (ram.contains(address, 1), ram.reached(address, 1) == 1),
                (reached, reached),
                "{address:#x}"
            );
        }
    }

    #[test]
    fn firmware_that_is_not_said_is_not_mapped() {
        let (root, tables) = build(&GuestMap { ram: GuestRam::BELOW_MONITOR, firmware: &[] });
        assert_eq!(translate(root, &tables, 0x1ffe_0000), None);
        assert_eq!(
            tables.len(),
            10,
            "one small-page table, for the local APIC, and three for what is nowhere"
        );
    }
}
