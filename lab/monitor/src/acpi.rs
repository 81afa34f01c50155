//! Finds the processors that the firmware lists in its ACPI tables, and these tables by UEFI's.
//!
//! Source: ACPI specification, ACPI Software Programming Model, "Root System Description Pointer (RSDP)", "Root System
//! Description Table (RSDT)", "Extended System Description Table (XSDT)", "Multiple APIC Description Table (MADT)".

use alloc::vec::Vec;

use crate::guest::GuestMemory;

/// Size in bytes of the header that all tables begin with.
const HEADER: u64 = 36;

/// Returns the local APIC IDs of the usable processors, in the order of the MADT (the ACPI table of processors). The
/// list is empty if there is no such table.
///
/// `rsdp` is the address of the root pointer, or 0 if it is unknown. Processors with IDs above 254, which need x2APIC
/// mode, are skipped.
#[must_use]
pub fn processors(rsdp: u64, memory: &impl GuestMemory) -> Vec<u8> {
    madt(rsdp, memory).and_then(|table| entries(table, memory)).unwrap_or_default()
}

/// Returns the address of the root pointer that UEFI's system table at this address names; 0 if there is none.
///
/// Source: UEFI specification, EFI System Table, "EFI_SYSTEM_TABLE", "EFI Configuration Table & Properties Table".
#[must_use]
pub fn root_of_uefi(system_table: u64, memory: &impl GuestMemory) -> u64 {
    /// `EFI_ACPI_20_TABLE_GUID`.
    const ACPI_20: u128 = 0x8868_e871_e4f1_11d3_bc22_0080_c73c_8881;
    /// Offsets of the number of configuration tables and of their array.
    const COUNT: u64 = 0x68;
    const TABLES: u64 = 0x70;
    /// A GUID and an address.
    const ENTRY: u64 = 24;
    let long = |address| bytes(memory, address).map(u64::from_le_bytes);
    let find = || {
        let (count, tables) = (long(system_table + COUNT)?, long(system_table + TABLES)?);
        let mut entries =
            (0..count.min(MAX_CONFIGURATION_TABLES)).map(|index| tables.wrapping_add(index * ENTRY));
        let entry = entries.find(|&entry| bytes(memory, entry).map(guid) == Some(ACPI_20))?;
        long(entry + 16)
    };
    find().unwrap_or(0)
}

/// The number of configuration tables that are searched.
const MAX_CONFIGURATION_TABLES: u64 = 256;

/// Returns a GUID as its text has the digits: the first three fields are little-endian in memory.
fn guid(bytes: [u8; 16]) -> u128 {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    let [i, j, k, l, m, n, o, p] = rest;
    u128::from_be_bytes([d, c, b, a, f, e, h, g, i, j, k, l, m, n, o, p])
}

/// Returns the address of the MADT.
fn madt(rsdp: u64, memory: &impl GuestMemory) -> Option<u64> {
    if rsdp == 0 || bytes::<8>(memory, rsdp)? != *b"RSD PTR " {
        return None;
    }
    let [revision] = bytes(memory, rsdp + 15)?;
    let xsdt = if revision >= 2 { u64::from_le_bytes(bytes(memory, rsdp + 24)?) } else { 0 };
    let (root, width) = match xsdt {
        0 => (u32::from_le_bytes(bytes(memory, rsdp + 16)?).into(), 4),
        xsdt => (xsdt, 8),
    };
    let end = root + length(memory, root)?;
    let mut at = root + HEADER;
    while at + width <= end {
        let low: u64 = u32::from_le_bytes(bytes(memory, at)?).into();
        let high: u64 = if width == 8 { u32::from_le_bytes(bytes(memory, at + 4)?).into() } else { 0 };
        let table = high << 32 | low;
        // A table that cannot be read is skipped.
        if bytes(memory, table) == Some(*b"APIC") {
            return Some(table);
        }
        at += width;
    }
    None
}

fn entries(madt: u64, memory: &impl GuestMemory) -> Option<Vec<u8>> {
    /// Entry "Processor Local APIC": type, length, processor UID, APIC ID, flags.
    const PROCESSOR: u8 = 0;
    const ENABLED: u8 = 1 << 0;
    let end = madt + length(memory, madt)?;
    let mut processors = Vec::new();
    // The address of the local APICs and a word of flags come before the entries.
    let mut at = madt + HEADER + 8;
    while at + 2 <= end {
        let [kind, bytes_of_it] = bytes(memory, at)?;
        if kind == PROCESSOR {
            let [_uid, id, flags] = bytes(memory, at + 2)?;
            if flags & ENABLED != 0 && id != u8::MAX {
                processors.push(id);
            }
        }
        if bytes_of_it < 2 {
            break;
        }
        at += u64::from(bytes_of_it);
    }
    Some(processors)
}

/// Returns the length field of a table.
fn length(memory: &impl GuestMemory, table: u64) -> Option<u64> {
    bytes(memory, table + 4).map(|length| u32::from_le_bytes(length).into())
}

fn bytes<const N: usize>(memory: &impl GuestMemory, address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    memory.read(address, &mut bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SliceMemory;

    const RSDP: u64 = 0x100;
    const RSDT: u64 = 0x200;
    const XSDT: u64 = 0x300;
    const MADT: u64 = 0x400;
    const FADT: u64 = 0x500;
    /// A table at 4 GiB plus the address of another table: a reader that truncates to 32 bits finds the wrong one.
    const BEYOND: u64 = 1 << 32 | EMPTY;
    /// A MADT without entries.
    const EMPTY: u64 = 0x580;

    /// Returns firmware tables whose root pointer has this `revision`.
    fn firmware(revision: u8) -> Vec<u8> {
        let mut memory = alloc::vec![0; 0x600];
        let mut put = |at: u64, bytes: &[u8]| memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(RSDP, b"RSD PTR ");
        put(RSDP + 15, &[revision]);
        put(RSDP + 16, &(RSDT as u32).to_le_bytes());
        put(RSDP + 24, &XSDT.to_le_bytes());
        put(RSDT, b"RSDT\x2c\0\0\0");
        put(RSDT + 36, &(FADT as u32).to_le_bytes());
        put(RSDT + 40, &(MADT as u32).to_le_bytes());
        put(XSDT, b"XSDT\x34\0\0\0");
        put(XSDT + 36, &BEYOND.to_le_bytes());
        put(XSDT + 44, &MADT.to_le_bytes());
        put(EMPTY, b"APIC\x2c\0\0\0");
        put(FADT, b"FACP");
        put(MADT, b"APIC\x60\0\0\0");
        let entries: [&[u8]; 6] = [
            &[0, 8, 7, 0, 1, 0, 0, 0],
            &[0, 8, 6, 4, 1, 0, 0, 0],
            &[1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0],
            &[0, 8, 5, 2, 0, 0, 0, 0],
            &[0, 8, 5, 0xff, 1, 0, 0, 0],
            &[0, 8, 4, 1, 1, 0, 0, 0],
        ];
        let mut at = MADT + 44;
        for entry in entries {
            put(at, entry);
            at += entry.len() as u64;
        }
        // An entry after the end of the table.
        put(MADT + 0x60, &[0, 8, 4, 9, 1, 0, 0, 0]);
        memory
    }

    fn found(mut memory: Vec<u8>, rsdp: u64) -> Vec<u8> {
        processors(rsdp, &SliceMemory { base: 0, bytes: &mut memory })
    }

    #[test]
    fn finds_the_enabled_processors_by_either_root_table() {
        for revision in [0, 2] {
            assert_eq!(found(firmware(revision), RSDP), [0, 4, 1], "revision {revision}");
        }
    }

    #[test]
    fn the_revision_says_which_of_the_root_tables_there_is() {
        for (revision, at, other) in [(0, 24, !0), (1, 24, !0), (2, 16, 0), (6, 16, 0)] {
            let mut memory = firmware(revision);
            memory[RSDP as usize + at..][..4].copy_from_slice(&u32::to_le_bytes(other));
            assert_eq!(found(memory, RSDP), [0, 4, 1], "revision {revision}");
        }
        // If both root tables exist, the XSDT is used, which has room for larger addresses; without it, the RSDT.
        let mut memory = firmware(2);
        memory[RSDP as usize + 24..][..8].fill(0);
        assert_eq!(found(memory, RSDP), [0, 4, 1]);
    }

    #[test]
    fn uefi_names_the_root_pointer_in_a_table() {
        let mut memory = alloc::vec![0; 0x200];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x68, &2u64.to_le_bytes());
        put(0x70, &0x100u64.to_le_bytes());
        // ACPI 1.0's GUID, and that of later versions.
        put(
            0x100,
            &[0x30, 0x2d, 0x9d, 0xeb, 0x88, 0x2d, 0xd3, 0x11, 0x9a, 0x16, 0, 0x90, 0x27, 0x3f, 0xc1, 0x4d],
        );
        put(0x110, &0x111u64.to_le_bytes());
        put(
            0x118,
            &[0x71, 0xe8, 0x68, 0x88, 0xf1, 0xe4, 0xd3, 0x11, 0xbc, 0x22, 0, 0x80, 0xc7, 0x3c, 0x88, 0x81],
        );
        put(0x128, &0x7f77_e014u64.to_le_bytes());
        let root = |memory: &mut [u8]| root_of_uefi(0, &SliceMemory { base: 0, bytes: memory });
        assert_eq!(root(&mut memory), 0x7f77_e014);
        for (at, value) in [(0x68, 1), (0x68, 0), (0x70, 0x1f9), (0x70, u64::MAX - 0x1000)] {
            let mut other = memory.clone();
            other[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            assert_eq!(root(&mut other), 0, "{at:#x}: {value:#x}");
        }
    }

    #[test]
    fn without_tables_nobody_is_listed() {
        let none: [u8; 0] = [];
        assert_eq!(found(firmware(2), 0), none);
        assert_eq!(found(firmware(2), RSDP + 8), none);
        // 0 means unknown, regardless of the memory at address 0.
        let mut memory = firmware(2);
        memory.copy_within(RSDP as usize..RSDP as usize + 36, 0);
        assert_eq!(found(memory, 0), none);
        assert_eq!(found(firmware(2), 0x5fc), none);
    }

    #[test]
    fn a_table_that_is_cut_or_broken_ends_the_search() {
        let none: [u8; 0] = [];
        for end in [RSDP + 20, XSDT + 6, MADT + 6] {
            let mut memory = firmware(2);
            memory.truncate(end as usize);
            assert_eq!(found(memory, RSDP), none, "{end:#x}");
        }
        let mut memory = firmware(2);
        memory[MADT as usize + 44 + 8 + 1] = 0;
        assert_eq!(found(memory, RSDP), [0, 4]);
    }
}
