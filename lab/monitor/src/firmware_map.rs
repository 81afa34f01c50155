//! The memory map that the guest sees: the firmware's, in which only the guest's own RAM is RAM.

use alloc::vec::Vec;
use core::ops::Range;

use crate::boot_info::{MemoryKind, MemoryRange};
use crate::guest_map::GuestRam;

/// Returns the firmware's `map` for a guest with this RAM. All other RAM of the machine, which holds the monitor and
/// its log, is reserved, so that no guest puts a device there either.
#[must_use]
pub fn of_guest(map: &[MemoryRange], ram: GuestRam) -> Vec<MemoryRange> {
    let mut out = Vec::new();
    for range in map {
        if range.kind != MemoryKind::Ram {
            push(&mut out, range.start..range.end(), range.kind);
            continue;
        }
        let mut at = range.start;
        for part in ram.ranges() {
            let (start, end) = (part.start.max(at), part.end.min(range.end()));
            if start < end {
                push(&mut out, at..start, MemoryKind::Reserved);
                push(&mut out, start..end, MemoryKind::Ram);
                at = end;
            }
        }
        push(&mut out, at..range.end(), MemoryKind::Reserved);
    }
    out
}

/// Returns `map` with `part` reserved as far as it is in one of the ranges.
#[must_use]
pub fn reserve(map: &[MemoryRange], part: Range<u64>) -> Vec<MemoryRange> {
    let mut out = Vec::new();
    for range in map {
        let (start, end) = (range.start, range.end());
        let [first, last] = [part.start, part.end].map(|address| address.clamp(start, end));
        push(&mut out, start..first, range.kind);
        push(&mut out, first..last, MemoryKind::Reserved);
        push(&mut out, last..end, range.kind);
    }
    out
}

/// Appends a range to a map, unless it is empty. A range that continues the last one becomes a part of it.
fn push(map: &mut Vec<MemoryRange>, range: Range<u64>, kind: MemoryKind) {
    if range.is_empty() {
        return;
    }
    let bytes = range.end - range.start;
    match map.last_mut() {
        Some(last) if last.end() == range.start && last.kind == kind => last.bytes += bytes,
        _ => map.push(MemoryRange { start: range.start, bytes, kind }),
    }
}

/// Returns the registers of the real-time clock's memory in which a PC's firmware reports the RAM size, and their
/// values for a guest with this RAM. They cannot express a hole, so they show the RAM below the monitor.
///
/// Source: QEMU, hw/i386/pc.c, `pc_cmos_init`; Ralf Brown's Interrupt List, CMOS.LST.
#[must_use]
pub const fn cmos(ram: GuestRam) -> [(u8, u8); 9] {
    let [extended, above_16_mib] = extended(ram);
    let [extended_low, extended_high] = extended.to_le_bytes();
    let [above_low, above_high] = above_16_mib.to_le_bytes();
    [
        (0x17, extended_low),
        (0x18, extended_high),
        (0x30, extended_low),
        (0x31, extended_high),
        (0x34, above_low),
        (0x35, above_high),
        // RAM above 4 GiB.
        (0x5b, 0),
        (0x5c, 0),
        (0x5d, 0),
    ]
}

/// Returns the RAM from 1 MiB on in KiB, and that from 16 MiB on in units of 64 KiB, up to the monitor; each limited to
/// 16 bits.
pub(crate) const fn extended(ram: GuestRam) -> [u16; 2] {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let [below, _] = ram.ranges();
    [at_most_word((below.end - MIB) / KIB), at_most_word(below.end.saturating_sub(16 * MIB) / (64 * KIB))]
}

const fn at_most_word(value: u64) -> u16 {
    if value > u16::MAX as u64 { u16::MAX } else { value as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns the map of QEMU's machine `pc` with 512 MiB, with and without RAM above 4 GiB.
    fn firmwares(more: &[(u64, u64, u32)]) -> Vec<MemoryRange> {
        let rows = [
            (0, 0x9_fc00, 1),
            (0x9_fc00, 0xa_0000, 2),
            (0xf_0000, 0x10_0000, 2),
            (0x10_0000, 0x1ffe_0000, 1),
            (0x1ffe_0000, 0x2000_0000, 2),
            (0xfffc_0000, 0x1_0000_0000, 2),
        ];
        let range = |&(start, end, kind): &(u64, u64, u32)| MemoryRange {
            start,
            bytes: end - start,
            kind: MemoryKind::from_e820(kind),
        };
        rows.iter().chain(more).map(range).collect()
    }

    fn rows(map: &[MemoryRange]) -> Vec<(u64, u64, u32)> {
        map.iter().map(|range| (range.start, range.end(), range.kind.to_e820())).collect()
    }

    #[test]
    fn ram_is_what_the_guest_has_and_the_rest_of_the_machines_is_reserved() {
        let usual = of_guest(&firmwares(&[(1 << 32, 5 << 30, 1)]), GuestRam::BELOW_MONITOR);
        let expected = [
            (0, 0x9_fc00, 1),
            (0x9_fc00, 0xa_0000, 2),
            (0xf_0000, 0x10_0000, 2),
            (0x10_0000, 256 * MIB, 1),
            (256 * MIB, 512 * MIB, 2),
            (0xfffc_0000, 5 << 30, 2),
        ];
        assert_eq!(rows(&usual), expected);
        let around = of_guest(&firmwares(&[]), GuestRam::up_to(400 * MIB).unwrap());
        let expected = [
            (0x10_0000, 256 * MIB, 1),
            (256 * MIB, 320 * MIB, 2),
            (320 * MIB, 400 * MIB, 1),
            (400 * MIB, 512 * MIB, 2),
            (0xfffc_0000, 1 << 32, 2),
        ];
        assert_eq!(rows(&around)[3..], expected);
    }

    #[test]
    fn no_byte_is_ram_that_the_guest_does_not_have_and_none_changes_its_place() {
        for mib in [2, 64, 255, 256, 321, 511] {
            let ram = GuestRam::up_to(mib * MIB).unwrap();
            let (firmwares, guests) = (firmwares(&[]), of_guest(&firmwares(&[]), ram));
            assert!(guests.windows(2).all(|pair| pair[0].end() <= pair[1].start), "{mib}: {guests:x?}");
            let kind = |map: &[MemoryRange], at: u64| {
                map.iter().find(|range| range.start <= at && at < range.end()).map(|range| range.kind)
            };
            for at in (0..1 << 32).step_by(0x1_0000) {
                let expected = match kind(&firmwares, at) {
                    Some(MemoryKind::Ram) if !ram.contains(at, 1) => Some(MemoryKind::Reserved),
                    other => other,
                };
                assert_eq!(kind(&guests, at), expected, "{mib}: {at:#x}");
            }
        }
    }

    #[test]
    fn a_part_is_reserved_where_there_is_something_and_joins_its_neighbours() {
        let map = firmwares(&[]);
        for (part, expected) in [
            (0x9_f000..0x9_fc00, [(0, 0x9_f000, 1), (0x9_f000, 0xa_0000, 2), (0xf_0000, 0x10_0000, 2)]),
            (0x5000..0x6000, [(0, 0x5000, 1), (0x5000, 0x6000, 2), (0x6000, 0x9_fc00, 1)]),
            (0..0x1000, [(0, 0x1000, 2), (0x1000, 0x9_fc00, 1), (0x9_fc00, 0xa_0000, 2)]),
            (0xb_0000..0xc_0000, [(0, 0x9_fc00, 1), (0x9_fc00, 0xa_0000, 2), (0xf_0000, 0x10_0000, 2)]),
        ] {
            assert_eq!(rows(&reserve(&map, part.clone()))[..3], expected, "{part:x?}");
        }
    }

    #[test]
    fn the_clocks_memory_says_what_is_below_the_monitor() {
        let value = |mib: u64| {
            let values = cmos(GuestRam::up_to(mib * MIB).unwrap());
            let word = |low: u8| {
                let byte = |index| values.iter().find(|(at, _)| *at == index).map_or(0, |(_, value)| *value);
                u16::from_le_bytes([byte(low), byte(low + 1)])
            };
            [0x17, 0x30, 0x34, 0x5b].map(word)
        };
        for (mib, extended, above) in
            [(8, 7 << 10, 0), (64, 63 << 10, 48 << 4), (256, 0xffff, 240 << 4), (1024, 0xffff, 240 << 4)]
        {
            assert_eq!(value(mib), [extended, extended, above, 0], "{mib}");
        }
    }
}
