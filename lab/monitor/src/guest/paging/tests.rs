extern crate std;

use std::vec::Vec;

use super::super::testing::{Machine, Ram, at};
use super::*;

const PAGE: u64 = 0x3_0000;
const READ: AccessKind = AccessKind::Read;
const WRITE: AccessKind = AccessKind::Write;
const EXECUTE: AccessKind = AccessKind::Execute;
const NX: u64 = 1 << 63;

fn page_fault(code: u32, address: u64) -> Result<u64, Exception> {
    Err(Exception::page_fault(code, address))
}

#[test]
fn grants_and_refuses_as_the_access_rights_say() {
    use Privilege::{Implicit, Supervisor, User};
    const AC: u64 = rflags::AC;
    const WP: u64 = cr0::WP;
    const SMAP: u64 = cr4::SMAP;
    const SMEP: u64 = cr4::SMEP;
    // Page entry, CR0.WP, CR4 in addition to PAE, RFLAGS, privilege, kind of access, error code of the fault.
    let rows = [
        (0, 0, 0, 0, Supervisor, READ, Some(0)),
        (0, 0, 0, 0, User, READ, Some(4)),
        (0, 0, 0, 0, User, WRITE, Some(6)),
        (0, 0, 0, 0, Supervisor, WRITE, Some(2)),
        (0, 0, 0, 0, Implicit, READ, Some(0)),
        (0, 0, 0, 0, User, EXECUTE, Some(0x14)),
        (1, 0, 0, 0, Supervisor, READ, None),
        (1, 0, 0, 0, User, READ, Some(5)),
        (1, 0, 0, 0, Supervisor, WRITE, None),
        (1, WP, 0, 0, Supervisor, WRITE, Some(3)),
        (1, WP, 0, 0, Implicit, WRITE, Some(3)),
        (3, WP, 0, 0, Supervisor, WRITE, None),
        (5, 0, 0, 0, User, WRITE, Some(7)),
        (5, 0, 0, 0, User, READ, None),
        (7, 0, 0, 0, User, WRITE, None),
        (7, 0, 0, 0, User, EXECUTE, None),
        (7, 0, 0, 0, Supervisor, EXECUTE, None),
        (7, 0, SMEP, 0, Supervisor, EXECUTE, Some(0x11)),
        (7, 0, SMEP, 0, User, EXECUTE, None),
        (3, 0, SMEP, 0, Supervisor, EXECUTE, None),
        (7, 0, SMEP, AC, Supervisor, EXECUTE, Some(0x11)),
        (7, 0, SMAP, 0, Supervisor, READ, Some(1)),
        (7, 0, SMAP, 0, Supervisor, WRITE, Some(3)),
        (7, 0, SMAP, AC, Supervisor, READ, None),
        (7, 0, SMAP, AC, Implicit, READ, Some(1)),
        (7, 0, SMAP, 0, User, READ, None),
        (7, 0, SMAP, 0, Supervisor, EXECUTE, None),
        (3, 0, SMAP, 0, Supervisor, WRITE, None),
        (NX | 7, 0, 0, 0, User, EXECUTE, Some(0x15)),
        (NX | 7, 0, 0, 0, Supervisor, EXECUTE, Some(0x11)),
        (NX | 7, 0, 0, 0, Supervisor, READ, None),
        // Bits 51 down to the address width.
        (1 << 45 | 7, 0, 0, 0, Supervisor, READ, Some(9)),
        (1 << 45 | 7, 0, 0, 0, User, WRITE, Some(0xf)),
        // Bits 62:52 are free in a leaf.
        (0x7ff << 52 | 7, 0, 0, 0, User, WRITE, None),
    ];
    for (entry, wp, cr4, rflags, privilege, kind, fault) in rows {
        let mut machine = Machine::long();
        machine.cpu.cr0 = machine.cpu.cr0 & !WP | wp;
        machine.cpu.cr4 |= cr4;
        machine.cpu.rflags |= rflags;
        machine.cpu.physical_address_bits = 40;
        machine.set_page(PAGE, PAGE | entry);
        let access = Access { kind, privilege };
        let expected = match fault {
            None => Ok(PAGE + 0x123),
            Some(code) => page_fault(code, PAGE + 0x123),
        };
        let found = translate(&machine.cpu, &mut machine.ram, PAGE + 0x123, access);
        assert_eq!(found, expected, "{entry:#x} {cr4:#x} {access:?}");
    }
}

#[test]
fn an_upper_level_takes_rights_away() {
    // The table's address, the bits cleared and set in its entry, the access, the error code.
    let user = |kind| Access { kind, privilege: Privilege::User };
    let rows = [
        (at::TABLES, 4, 0, user(READ), 5),
        (at::TABLES + 0x1000, 2, 0, user(WRITE), 7),
        (at::TABLES + 0x2000, 4, 0, user(READ), 5),
        (at::TABLES + 0x2000, 0, NX, user(EXECUTE), 0x15),
        (at::TABLES, 1, 0, user(READ), 4),
        (at::TABLES + 0x1000, 1, 0, user(READ), 4),
        // PS is reserved in a PML4 entry.
        (at::TABLES, 0, 0x80, user(READ), 0xd),
    ];
    for (table, clear, set, access, code) in rows {
        let mut machine = Machine::long();
        let entry = machine.quad(table) & !clear | set;
        machine.put_quads(table, &[entry]);
        let found = translate(&machine.cpu, &mut machine.ram, PAGE, access);
        assert_eq!(found, page_fault(code, PAGE), "{table:#x} -{clear:#x} +{set:#x}");
    }
}

#[test]
fn execute_disable_is_reserved_without_nxe_and_the_fetch_flag_absent() {
    let mut machine = Machine::long();
    machine.cpu.efer &= !efer::NXE;
    machine.set_page(PAGE, PAGE | NX | 7);
    let read = Access::at_cpl(&machine.cpu, READ);
    assert_eq!(translate(&machine.cpu, &mut machine.ram, PAGE, read), page_fault(9, PAGE));
    machine.set_page(PAGE, 0);
    let fetch = Access::at_cpl(&machine.cpu, EXECUTE);
    assert_eq!(translate(&machine.cpu, &mut machine.ram, PAGE, fetch), page_fault(0, PAGE));
    machine.cpu.cr4 |= cr4::SMEP;
    assert_eq!(translate(&machine.cpu, &mut machine.ram, PAGE, fetch), page_fault(0x10, PAGE));
}

/// The manual's rule, "Page-Fault Exceptions": SMEP, or PAE (which IA-32e paging has set) with NXE.
#[test]
fn the_fetch_flag_says_that_execution_can_be_forbidden() {
    // CR4, EFER, error code of a fetch.
    let rows = [
        (0, 0, 0),
        (0, efer::NXE, 0),
        (cr4::SMEP, 0, 0x10),
        (cr4::SMEP, efer::NXE, 0x10),
        (cr4::PAE, 0, 0),
        (cr4::PAE, efer::NXE, 0x10),
        (cr4::PAE | cr4::SMEP, 0, 0x10),
        (cr4::PAE, efer::LMA, 0),
        (cr4::PAE, efer::LMA | efer::NXE, 0x10),
    ];
    for (cr4, efer, code) in rows {
        let mut machine = Machine::long();
        // Tables that contain only zeros.
        (machine.cpu.cr3, machine.cpu.cr4, machine.cpu.efer) = (0x5000, cr4, efer);
        for kind in [READ, EXECUTE] {
            let access = Access::at_cpl(&machine.cpu, kind);
            let code = if kind == EXECUTE { code } else { 0 };
            let found = translate(&machine.cpu, &mut machine.ram, PAGE, access);
            assert_eq!(found, page_fault(code, PAGE), "{cr4:#x} {efer:#x} {kind:?}");
        }
    }
}

#[test]
fn sets_accessed_everywhere_and_dirty_in_the_leaf_of_a_write() {
    let tables = [at::TABLES, at::TABLES + 0x1000, at::TABLES + 0x2000, at::LAST_TABLE + (PAGE >> 12) * 8];
    let flags = |machine: &Machine| tables.map(|table| machine.quad(table) & 0x60);
    for (kind, expected) in
        [(READ, [0x20, 0x20, 0x20, 0x20]), (EXECUTE, [0x20; 4]), (WRITE, [0x20, 0x20, 0x20, 0x60])]
    {
        let mut machine = Machine::long();
        assert_eq!(flags(&machine), [0; 4]);
        let access = Access::at_cpl(&machine.cpu, kind);
        translate(&machine.cpu, &mut machine.ram, PAGE, access).unwrap();
        assert_eq!(flags(&machine), expected, "{kind:?}");
    }
    let mut machine = Machine::long();
    machine.set_page(PAGE, PAGE | 3);
    let refused = Access { kind: WRITE, privilege: Privilege::User };
    translate(&machine.cpu, &mut machine.ram, PAGE, refused).unwrap_err();
    assert_eq!(flags(&machine), [0; 4]);
}

/// Memory in which another processor removes the page between the walk and the setting of its flags.
struct Contended {
    ram: Ram,
    entry: u64,
    taken: bool,
}

impl GuestMemory for Contended {
    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        self.ram.read(address, out)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        self.ram.write(address, bytes)
    }

    fn replace(&mut self, address: u64, old: u8, new: u8) -> Option<bool> {
        if address == self.entry && !self.taken {
            self.taken = true;
            assert!(self.ram.write(address, &[0]));
        }
        self.ram.replace(address, old, new)
    }
}

#[test]
fn a_page_that_another_processor_takes_away_stays_away() {
    let wide = {
        let mut machine = Machine::long();
        machine.set_page(PAGE, PAGE | 3);
        (machine, at::LAST_TABLE + (PAGE >> 12) * 8)
    };
    let narrow = {
        let mut machine = Machine::long();
        (machine.cpu.cr4, machine.cpu.efer, machine.cpu.cr3) = (0, 0, 0x5000);
        machine.put_doubles(0x5000, &[0xa007]);
        machine.put_doubles(0xa0c0, &[PAGE | 3]);
        (machine, 0xa0c0)
    };
    for (machine, entry) in [wide, narrow] {
        let mut memory = Contended { ram: machine.ram, entry, taken: false };
        let access = Access { kind: WRITE, privilege: Privilege::Supervisor };
        assert_eq!(translate(&machine.cpu, &mut memory, PAGE, access), page_fault(2, PAGE));
        let mut left = [0xff];
        assert!(memory.read(entry, &mut left) && left == [0], "{left:x?}");
    }
}

#[test]
fn large_pages_of_every_format() {
    // CR4, EFER, entries to write (address, value, size), linear, physical or error code.
    type Row = (u64, u64, Vec<(u64, u64, usize)>, u64, Result<u64, u32>);
    let wide = |entries: &[(u64, u64)]| entries.iter().map(|&(a, v)| (a, v, 8)).collect::<Vec<_>>();
    let narrow = |entries: &[(u64, u64)]| entries.iter().map(|&(a, v)| (a, v, 4)).collect::<Vec<_>>();
    let pae = cr4::PAE;
    let lma = efer::LMA | efer::NXE;
    let rows: Vec<Row> = std::vec![
        // 1 GiB and 2 MiB pages, PAT set, and a reserved bit within the page.
        (pae, lma, wide(&[(0x2000, 0x4000_0000 | 0x1087)]), 0x1234_5678, Ok(0x5234_5678)),
        (pae, lma, wide(&[(0x2000, 0x4000_0000 | 0x2087)]), 0x1234_5678, Err(9)),
        (pae, lma, wide(&[(0x3000, 0x60_0000 | 0x1087)]), 0x12_3456, Ok(0x72_3456)),
        (pae, lma, wide(&[(0x3000, 0x60_0000 | 0x4087)]), 0x12_3456, Err(9)),
        // Five levels.
        (pae | cr4::LA57, lma, wide(&[(0x5000, 0x1007)]), PAGE, Ok(PAGE)),
        (pae | cr4::LA57, lma, wide(&[(0x5000, 0x1087)]), PAGE, Err(9)),
        // PAE: a pointer entry has no rights; 2 MiB and 4 KiB pages; bits 62:52 are reserved.
        (pae, 0, wide(&[(0x5000, 0x3001)]), PAGE, Ok(PAGE)),
        (pae, 0, wide(&[(0x5000, 0x3003)]), PAGE, Err(9)),
        (pae, 0, wide(&[(0x5000, 0x3001), (0x3000, 0x60_0087)]), 0x12_3456, Ok(0x72_3456)),
        (pae, 0, wide(&[(0x5000, 0x3001), (0x3000, 1 << 52 | 0x60_0087)]), 0x12_3456, Err(9)),
        (pae, 0, wide(&[(0x5000, 0)]), PAGE, Err(0)),
        (pae, 0, wide(&[(0x5018, 0x3001)]), 0xc000_0000 + PAGE, Ok(PAGE)),
        // 32-bit paging: 4 KiB pages, 4 MiB pages with PSE-36; without PSE the flag is ignored.
        (0, 0, narrow(&[(0x5000, 0xa007), (0xa0c0, 0x3_0007)]), PAGE + 5, Ok(PAGE + 5)),
        (0, 0, narrow(&[(0x5000, 0xa087), (0xa0c0, 0x3_0007)]), PAGE + 5, Ok(PAGE + 5)),
        (cr4::PSE, 0, narrow(&[(0x5004, 0x0080_0087)]), 0x71_2345, Ok(0xb1_2345)),
        (cr4::PSE, 0, narrow(&[(0x5004, 0x0080_2087)]), 0x71_2345, Ok(0x1_00b1_2345)),
        (cr4::PSE, 0, narrow(&[(0x5004, 0x00a0_0087)]), 0x71_2345, Err(9)),
        (cr4::PSE, 0, narrow(&[(0x5004, 0)]), 0x71_2345, Err(0)),
        (cr4::PSE, 0, narrow(&[(0x5000, 0xa007), (0xa0c0, 0x3_0007)]), PAGE + 5, Ok(PAGE + 5)),
        (0, 0, narrow(&[(0x5000, 0xa007)]), PAGE, Err(0)),
        // The processor's addresses have 36 bits: bit 16 of the entry is bit 35, bit 17 is bit 36.
        (cr4::PSE, 0, narrow(&[(0x5004, 0x0081_0087)]), 0x71_2345, Ok(0x8_00b1_2345)),
        (cr4::PSE, 0, narrow(&[(0x5004, 0x0082_0087)]), 0x71_2345, Err(9)),
    ];
    for (cr4, efer, entries, linear, expected) in rows {
        let mut machine = Machine::long();
        machine.cpu.cr4 = cr4;
        machine.cpu.efer = efer;
        machine.cpu.physical_address_bits = 36;
        if efer == 0 || cr4 & cr4::LA57 != 0 {
            machine.cpu.cr3 = 0x5000;
        }
        for &(address, value, size) in &entries {
            machine.put(address, &value.to_le_bytes()[..size]);
        }
        let access = Access::at_cpl(&machine.cpu, READ);
        let expected = expected.map_err(|code| Exception::page_fault(code, linear));
        assert_eq!(translate(&machine.cpu, &mut machine.ram, linear, access), expected, "{entries:x?}");
    }
}

#[test]
fn a_directory_entry_takes_rights_away() {
    let user = |kind| Access { kind, privilege: Privilege::User };
    // The rights in the directory and in the table, the access, the error code.
    for (directory, table, access, code) in [
        (7, 7, user(WRITE), None),
        (5, 7, user(WRITE), Some(7)),
        (7, 5, user(WRITE), Some(7)),
        (3, 7, user(READ), Some(5)),
        (7, 3, user(READ), Some(5)),
        (5, 7, user(READ), None),
    ] {
        let mut machine = Machine::long();
        (machine.cpu.cr4, machine.cpu.efer, machine.cpu.cr3) = (0, 0, 0x5000);
        machine.put_doubles(0x5000, &[0xa000 | directory]);
        machine.put_doubles(0xa0c0, &[PAGE | table]);
        let expected = code.map_or(Ok(PAGE), |code| page_fault(code, PAGE));
        let found = translate(&machine.cpu, &mut machine.ram, PAGE, access);
        assert_eq!(found, expected, "{directory} {table} {access:?}");
    }
}

#[test]
fn legacy_paging_marks_its_entries() {
    let mut machine = Machine::long();
    machine.cpu.cr4 = 0;
    machine.cpu.efer = 0;
    machine.cpu.cr3 = 0x5000;
    machine.put_doubles(0x5000, &[0xa007]);
    machine.put_doubles(0xa0c0, &[PAGE | 7]);
    let write = Access::at_cpl(&machine.cpu, WRITE);
    translate(&machine.cpu, &mut machine.ram, PAGE, write).unwrap();
    assert_eq!((machine.double(0x5000), machine.double(0xa0c0)), (0xa027, PAGE | 0x67));
    machine.cpu.cr4 = cr4::PAE;
    machine.put_quads(0x5000, &[0x3001]);
    translate(&machine.cpu, &mut machine.ram, PAGE, write).unwrap();
    assert_eq!(machine.quad(0x5000), 0x3001, "a PAE pointer entry has no flags");
}

#[test]
fn without_paging_linear_is_physical_in_32_bits() {
    let machine = &mut Machine::protected();
    let read = Access::at_cpl(&machine.cpu, READ);
    assert_eq!(translate(&machine.cpu, &mut machine.ram, 0x1_0000_1234, read), Ok(0x1234));
}

#[test]
fn a_table_where_no_memory_is_has_reserved_bits_set() {
    let mut machine = Machine::long();
    machine.cpu.physical_address_bits = 40;
    machine.put_quads(at::TABLES + 0x2000, &[0x4000_0007]);
    let read = Access::at_cpl(&machine.cpu, READ);
    assert_eq!(translate(&machine.cpu, &mut machine.ram, PAGE, read), page_fault(9, PAGE));
    assert_eq!(machine.ram.take_missing(), [0x4000_0000 + (PAGE >> 12) * 8]);
}

#[test]
fn the_tlb_keeps_a_translation_until_it_is_flushed_or_the_context_changes() {
    let mut machine = Machine::long();
    let mut tlb = Tlb::new();
    let moved = PAGE + 0x1000;
    let fetch = |machine: &mut Machine, tlb: &mut Tlb| {
        tlb.translate_fetch(&machine.cpu, &mut machine.ram, PAGE + 7).unwrap() - 7
    };
    assert_eq!(fetch(&mut machine, &mut tlb), PAGE);
    machine.set_page(PAGE, moved | 7);
    assert_eq!(fetch(&mut machine, &mut tlb), PAGE);
    tlb.flush();
    assert_eq!(fetch(&mut machine, &mut tlb), moved);

    type Change = fn(&mut Cpu);
    let changes: [Change; 5] = [
        |cpu| cpu.cr3 |= 8,
        |cpu| cpu.cr4 |= cr4::SMAP,
        |cpu| cpu.cr0 &= !cr0::WP,
        |cpu| cpu.cpl = 3,
        |cpu| cpu.efer &= !efer::NXE,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut machine = Machine::long();
        let mut tlb = Tlb::new();
        assert_eq!(fetch(&mut machine, &mut tlb), PAGE);
        machine.set_page(PAGE, moved | 7);
        change(&mut machine.cpu);
        assert_eq!(fetch(&mut machine, &mut tlb), moved, "change {index}");
    }
}

#[test]
fn the_tlb_keeps_no_fault() {
    let mut machine = Machine::long();
    let mut tlb = Tlb::new();
    machine.set_page(PAGE, 0);
    tlb.translate_fetch(&machine.cpu, &mut machine.ram, PAGE).unwrap_err();
    machine.set_page(PAGE, PAGE | 1);
    assert_eq!(tlb.translate_fetch(&machine.cpu, &mut machine.ram, PAGE), Ok(PAGE));
}

#[test]
fn what_lies_beyond_the_physical_addresses_is_reserved() {
    // The width as CPUID reports it, and the lowest reserved bit. Widths below 32 bits do not exist; 0 means unknown.
    for (width, reserved) in [(32, 32), (31, 32), (36, 36), (39, 39), (40, 40), (52, 52), (0, 52)] {
        let mut cpu = Machine::long().cpu;
        cpu.physical_address_bits = width;
        let expected = (reserved..52).fold(0, |bits, bit| bits | 1_u64 << bit);
        assert_eq!(reserved_address_bits(&cpu), expected, "{width}");
    }
}
