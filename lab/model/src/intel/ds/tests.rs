//! The Debug Store save area in linear memory.

use std::vec;

use crate::intel::IntelViolations;
use crate::intel::bts::tests::{ON, strict};
use crate::intel::tests::debug_store::*;
use crate::intel::tests::machine::*;
use crate::{Context, DeliveryKind, Mapping, PageFault};

/// Checks "Setting Up the DS Save Area": the buffer may be in any pages that are contiguous only in linear address.
#[test]
fn records_cross_pages_that_lie_apart() {
    let mut m = machine("skylake", strict(), 4, 5);
    let linear = 0xffff_8000_0010_0ff0;
    m.set_area(&[linear, linear, linear + 4 * 24, linear + 6 * 24]);
    let mapping = |physical| Ok(Mapping { physical, supervisor: true, marked: true, ..Mapping::default() });
    m.pages.insert(0xffff_8000_0010_0000 / 4096, mapping(0x3_1000));
    m.pages.insert(0xffff_8000_0010_1000 / 4096, mapping(0x2_8000));
    m.control(ON);
    m.jumps(2);
    let front = m.ram[0x3_1ff0..0x3_2000].to_vec();
    assert_eq!(front[..8], 0x40_0000_u64.to_le_bytes());
    assert_eq!(front[8..], 0x40_0000_u64.to_le_bytes());
    assert_eq!(m.ram[0x2_8008..0x2_8010], 0x40_0000_u64.to_le_bytes());
    assert_eq!(m.processor.violations(), &IntelViolations::default());
}

/// Violates the manual's requirements for the save area's pages, one at a time.
#[test]
fn a_save_area_that_is_mapped_wrongly_shows() {
    let good = Mapping { physical: 0, supervisor: true, marked: true, ..Mapping::default() };
    let area = AREA / 4096;
    let buffer = BUFFER / 4096;
    let with = |page: u64, mapping: Mapping| {
        let mut m = machine("skylake", strict(), 4, 5);
        m.pages.insert(page, Ok(Mapping { physical: page * 4096, ..mapping }));
        m.control(ON);
        m.jumps(1);
        *m.processor.violations()
    };
    // The management area is read, translated for the index and written; the buffer is written.
    let rows = [
        (
            area,
            Mapping { supervisor: false, ..good },
            IntelViolations { ds_user_pages: 3, ..IntelViolations::default() },
        ),
        (
            buffer,
            Mapping { supervisor: false, ..good },
            IntelViolations { ds_user_pages: 1, ..IntelViolations::default() },
        ),
        (
            area,
            Mapping { marked: false, ..good },
            IntelViolations { ds_pages_not_marked: 3, ..IntelViolations::default() },
        ),
        (
            buffer,
            Mapping { marked: false, ..good },
            IntelViolations { ds_pages_not_marked: 1, ..IntelViolations::default() },
        ),
        (area, good, IntelViolations::default()),
    ];
    for (page, mapping, expected) in rows {
        assert_eq!(with(page, mapping), expected, "{page:x} {mapping:?}");
    }
}

/// Checks "Pages that contain buffers must be mapped to the same physical addresses for all processes".
#[test]
fn a_save_area_that_another_cr3_has_elsewhere_shows() {
    let mut m = machine("skylake", strict(), 8, 9);
    m.control(ON);
    m.jumps(2);
    let elsewhere = Mapping { physical: 0x3_0000, supervisor: true, marked: true, ..Mapping::default() };
    m.pages.insert(BUFFER / 4096, Ok(elsewhere));
    m.jumps(2);
    assert_eq!(m.processor.violations().ds_pages_moved, 1);
    assert_eq!((m.index(), m.ram[0x3_0030] != 0), (4, true), "they go where they are led");
}

/// Checks that an unmapped or read-only area causes a page fault, and no part of the record is stored.
#[test]
fn a_save_area_that_is_not_there_faults() {
    let absent = PageFault { address: 0, code: 0 };
    let read_only = PageFault { address: 0, code: 0b011 };
    let (area, buffer) = (AREA / 4096, BUFFER / 4096);
    for (page, fault, address) in [
        (area, absent, AREA),
        (area, read_only, AREA + 8),
        (buffer, absent, BUFFER),
        (buffer, read_only, BUFFER),
    ] {
        let mut m = machine("skylake", strict(), 4, 5);
        m.pages.insert(page, Err(fault));
        m.control(ON);
        let before = m.ram.clone();
        m.jumps(1);
        // Until the fault is delivered no further access is tried.
        m.jumps(1);
        assert_eq!(m.ram, before);
        assert_eq!(
            m.processor.violations(),
            &IntelViolations { ds_page_faults: 1, ..IntelViolations::default() }
        );
        assert_eq!(m.processor.take_page_fault(), Some(PageFault { address, ..fault }));
        assert_eq!(m.processor.take_page_fault(), None);
        // The delivery does not make a record, which would fault again; branches of the handler make one.
        let handler = m.kernel(0x50_0000);
        m.deliver(DeliveryKind::Fault, 14, handler, Some(address));
        assert_eq!(m.processor.take_page_fault(), None);
        m.jumps(1);
        assert_eq!(m.processor.take_page_fault(), Some(PageFault { address, ..fault }));
        // The handler maps the page.
        m.pages.clear();
        m.deliver(DeliveryKind::Fault, 14, handler, Some(address));
        m.jumps(1);
        assert_eq!(m.index(), 1);
        // A page fault with another cause makes a record.
        m.deliver(DeliveryKind::Fault, 14, handler, Some(address));
        assert_eq!(m.index(), 2);
    }
}

/// Checks "64 Bit Format of the DS Save Area": without DTES64, outside IA-32e mode, fields and records have 32 bits.
#[test]
fn the_pentium_m_has_a_save_area_of_32_bits() {
    let mut m = Machine::new("pentium-m", strict());
    m.at = Context { mode: crate::ExecMode::Bits32, ..m.at };
    m.write(DS_AREA, AREA);
    let area = [BUFFER, BUFFER, BUFFER + 4 * 12, BUFFER + 5 * 12];
    for (index, value) in area.iter().enumerate() {
        let at = AREA as usize + index * 4;
        m.ram[at..at + 4].copy_from_slice(&(*value as u32).to_le_bytes());
    }
    // TR, BTS.
    m.control(0xc0);
    m.at.ip = 0x40_0000;
    m.go(JMP, 0x40_0042);
    let buffer = BUFFER as usize;
    let words: vec::Vec<u32> = m.ram[buffer..buffer + 16]
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    assert_eq!(words, [0x40_0000, 0x40_0042, 0x10, 0]);
    assert_eq!(m.ram[AREA as usize + 4..AREA as usize + 8], (BUFFER as u32 + 12).to_le_bytes());
}

/// Checks that IA32_DS_AREA accepts canonical addresses in IA-32e mode, and 32 bits outside.
#[test]
fn ds_area_takes_addresses_alone() {
    use crate::ExecMode::*;
    for (mode, value, legal) in [
        (Bits64, 0, true),
        (Bits64, 0x7fff_ffff_ffff, true),
        (Bits64, 0x8000_0000_0000, false),
        (Bits64, 0xffff_8000_0000_0000, true),
        (Bits64, 0x7fff_8000_0000_0000, false),
        (Bits64, 3, true),
        (Bits32, 0xffff_ffff, true),
        (Bits32, 0x1_0000_0000, false),
        (Bits32, 0xffff_8000_0000_0000, false),
        (Bits16, 0x1_0000_0000, false),
    ] {
        let mut m = Machine::new("skylake", strict());
        m.at.mode = mode;
        assert_eq!(m.try_write(DS_AREA, value).is_ok(), legal, "{mode:?} {value:#x}");
        assert_eq!(m.read(DS_AREA), if legal { value } else { 0 });
    }
}
