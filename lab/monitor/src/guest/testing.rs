//! A guest for the tests: RAM, page tables, GDT, LDT, IDT and TSS, all built by hand.

extern crate std;

use core::cell::RefCell;
use std::vec;
use std::vec::Vec;

use super::{Cpu, DescriptorTableRegister, Gpr, GuestMemory, Segment, cr0, cr4, efer, rflags};

/// RAM beginning at address 0, and the accessed addresses that have none.
pub(super) struct Ram(Vec<u8>, RefCell<Vec<u64>>);

impl Ram {
    fn new() -> Self {
        Self(vec![0; RAM], RefCell::default())
    }

    /// Returns the addresses without RAM that were accessed since the last call.
    pub(super) fn take_missing(&mut self) -> Vec<u64> {
        self.1.take()
    }
}

impl GuestMemory for Ram {
    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        let start = address as usize;
        match self.0.get(start..start.saturating_add(out.len())) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        let start = address as usize;
        match self.0.get_mut(start..start.saturating_add(bytes.len())) {
            Some(out) => {
                out.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn note_missing(&self, address: u64) {
        self.1.borrow_mut().push(address);
    }
}

/// Selectors of the machine's GDT.
pub(super) mod sel {
    pub(in crate::guest) const CODE64: u16 = 0x08;
    pub(in crate::guest) const DATA: u16 = 0x10;
    pub(in crate::guest) const USER_CODE32: u16 = 0x1b;
    pub(in crate::guest) const USER_DATA: u16 = 0x23;
    pub(in crate::guest) const USER_CODE64: u16 = 0x2b;
    pub(in crate::guest) const TSS: u16 = 0x30;
    pub(in crate::guest) const CODE32: u16 = 0x40;
    pub(in crate::guest) const CONFORMING64: u16 = 0x48;
    pub(in crate::guest) const ABSENT64: u16 = 0x50;
    pub(in crate::guest) const LONG_AND_D: u16 = 0x58;
    pub(in crate::guest) const ABSENT_USER_DATA: u16 = 0x63;
    pub(in crate::guest) const READ_ONLY_USER_DATA: u16 = 0x6b;
    pub(in crate::guest) const CONFORMING32: u16 = 0x70;
    pub(in crate::guest) const SMALL32: u16 = 0x78;
    pub(in crate::guest) const ABSENT_DATA: u16 = 0x80;
    pub(in crate::guest) const DATA16: u16 = 0x88;
    pub(in crate::guest) const FRESH64: u16 = 0x90;
    pub(in crate::guest) const ABSENT_USER64: u16 = 0x9b;
    /// The first selector beyond the limit.
    pub(in crate::guest) const BEYOND: u16 = 0xa0;
    /// A code segment in the LDT, DPL 0.
    pub(in crate::guest) const LOCAL64: u16 = 0x04;
}

/// Addresses of all parts, both guest-physical and linear, except where a test changes the mapping.
pub(super) mod at {
    pub(in crate::guest) const TABLES: u64 = 0x1000;
    pub(in crate::guest) const LAST_TABLE: u64 = 0x4000;
    pub(in crate::guest) const GDT: u64 = 0x6000;
    pub(in crate::guest) const LDT: u64 = 0x7000;
    pub(in crate::guest) const IDT: u64 = 0x8000;
    pub(in crate::guest) const TSS: u64 = 0x9000;
    pub(in crate::guest) const CODE: u64 = 0x1_0000;
    pub(in crate::guest) const HANDLERS: u64 = 0x1_8000;
    /// Tops of stacks; each stack has a page.
    pub(in crate::guest) const STACK: u64 = 0x2_1000;
    pub(in crate::guest) const RSP0: u64 = 0x2_3000;
    pub(in crate::guest) const IST1: u64 = 0x2_5000;
}

const RAM: usize = 0x8_0000;

/// A gate of the IDT.
#[derive(Clone, Copy)]
pub(super) struct Gate {
    pub(super) selector: u16,
    pub(super) offset: u64,
    pub(super) ist: u8,
    pub(super) kind: u8,
    pub(super) dpl: u8,
    pub(super) present: bool,
}

impl Gate {
    /// Returns an interrupt gate to the handler of `vector` at privilege level 0.
    pub(super) fn interrupt(vector: u8) -> Self {
        let offset = at::HANDLERS + 16 * u64::from(vector);
        Self { selector: sel::CODE64, offset, ist: 0, kind: 14, dpl: 0, present: true }
    }
}

/// A processor and its RAM.
pub(super) struct Machine {
    pub(super) cpu: Cpu,
    pub(super) ram: Ram,
}

impl Machine {
    /// Returns 64-bit mode at privilege level 0. The first 512 KiB are mapped in pages of 4 KiB for every access. All
    /// gates are interrupt gates.
    pub(super) fn long() -> Self {
        let mut machine = Self { cpu: Cpu::default(), ram: Ram::new() };
        for (level, table) in (at::TABLES..at::LAST_TABLE).step_by(0x1000).enumerate() {
            machine.put(table, &((table + 0x1000) | 7).to_le_bytes());
            assert!(level < 3);
        }
        for page in 0..(RAM as u64 >> 12) {
            machine.set_page(page << 12, page << 12 | 7);
        }
        machine.put_descriptors();
        for vector in 0..=255 {
            machine.set_gate(vector, Gate::interrupt(vector));
        }
        machine.put(at::TSS + 4, &at::RSP0.to_le_bytes());
        machine.put(at::TSS + 36, &at::IST1.to_le_bytes());
        let cpu = &mut machine.cpu;
        cpu.cr0 = cr0::PE | cr0::PG | cr0::WP;
        cpu.cr3 = at::TABLES;
        cpu.cr4 = cr4::PAE;
        cpu.efer = efer::LMA | efer::NXE | efer::SCE;
        cpu.rflags = rflags::FIXED;
        cpu.gdtr = DescriptorTableRegister { base: at::GDT, limit: sel::BEYOND - 1 };
        cpu.ldtr = Segment { selector: 0x98, attributes: 0x82, limit: 7, base: at::LDT };
        cpu.idtr = DescriptorTableRegister { base: at::IDT, limit: 0xfff };
        cpu.tr = Segment { selector: sel::TSS, attributes: 0x8b, limit: 0x67, base: at::TSS };
        cpu.rip = at::CODE;
        cpu.set(Gpr::Rsp, at::STACK);
        cpu.star = u64::from(sel::USER_CODE32) << 48 | u64::from(sel::CODE64) << 32;
        cpu.lstar = at::HANDLERS;
        cpu.cs = Segment { selector: sel::CODE64, attributes: 0xa9b, limit: u32::MAX, base: 0 };
        cpu.ss = Segment { selector: sel::DATA, attributes: 0xc93, limit: u32::MAX, base: 0 };
        cpu.ds = cpu.ss;
        cpu.es = cpu.ss;
        machine
    }

    /// Returns 64-bit mode at privilege level 3.
    pub(super) fn long_user() -> Self {
        let mut machine = Self::long();
        machine.cpu.cpl = 3;
        machine.cpu.cs = Segment { selector: sel::USER_CODE64, attributes: 0xafb, limit: u32::MAX, base: 0 };
        machine.cpu.ss = Segment { selector: sel::USER_DATA, attributes: 0xcf3, limit: u32::MAX, base: 0 };
        machine.cpu.ds = machine.cpu.ss;
        machine.cpu.es = machine.cpu.ss;
        machine
    }

    /// Returns compatibility mode at privilege level 3.
    pub(super) fn compatibility() -> Self {
        let mut machine = Self::long_user();
        machine.cpu.cs = Segment { selector: sel::USER_CODE32, attributes: 0xcfb, limit: u32::MAX, base: 0 };
        machine
    }

    /// Returns 32-bit protected mode at privilege level 0 without paging. All gates are 32-bit interrupt gates; the TSS
    /// is a 32-bit one.
    pub(super) fn protected() -> Self {
        let mut machine = Self::long();
        machine.cpu.cr0 = cr0::PE;
        machine.cpu.efer = 0;
        machine.cpu.cs = Segment { selector: sel::CODE32, attributes: 0xc9b, limit: u32::MAX, base: 0 };
        machine.cpu.idtr.limit = 0x7ff;
        for vector in 0..=255 {
            machine.set_gate32(vector, Gate { selector: sel::CODE32, ..Gate::interrupt(vector) });
        }
        machine.put(at::TSS + 4, &(at::RSP0 as u32).to_le_bytes());
        machine.put(at::TSS + 8, &sel::DATA.to_le_bytes());
        machine
    }

    /// Returns 32-bit protected mode at privilege level 3.
    pub(super) fn protected_user() -> Self {
        let mut machine = Self::protected();
        machine.cpu.cpl = 3;
        machine.cpu.cs = Segment { selector: sel::USER_CODE32, attributes: 0xcfb, limit: u32::MAX, base: 0 };
        machine.cpu.ss = Segment { selector: sel::USER_DATA, attributes: 0xcf3, limit: u32::MAX, base: 0 };
        machine.cpu.ds = machine.cpu.ss;
        machine.cpu.es = machine.cpu.ss;
        machine
    }

    /// Returns real-address mode: all segments at 0 except CS at 1000H; IP is 10H.
    pub(super) fn real() -> Self {
        let mut machine = Self { cpu: Cpu::default(), ram: Ram::new() };
        let cpu = &mut machine.cpu;
        cpu.rflags = rflags::FIXED;
        cpu.ss = Segment { selector: 0, attributes: 0x93, limit: 0xffff, base: 0 };
        cpu.ds = cpu.ss;
        cpu.cs = Segment { selector: 0x1000, attributes: 0x9b, limit: 0xffff, base: 0x1_0000 };
        cpu.rip = 0x10;
        cpu.idtr = DescriptorTableRegister { base: 0, limit: 0x3ff };
        cpu.set(Gpr::Rsp, 0x8000);
        machine
    }

    /// Writes bytes to RAM.
    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        assert!(self.ram.write(address, bytes), "{address:#x} is not RAM");
    }

    /// Reads a quadword of RAM.
    pub(super) fn quad(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        assert!(self.ram.read(address, &mut bytes), "{address:#x} is not RAM");
        u64::from_le_bytes(bytes)
    }

    /// Reads a doubleword of RAM.
    pub(super) fn double(&self, address: u64) -> u64 {
        self.quad(address) & 0xffff_ffff
    }

    /// Writes quadwords from `address` on.
    pub(super) fn put_quads(&mut self, address: u64, values: &[u64]) {
        for (index, value) in values.iter().enumerate() {
            self.put(address + 8 * index as u64, &value.to_le_bytes());
        }
    }

    /// Writes doublewords from `address` on.
    pub(super) fn put_doubles(&mut self, address: u64, values: &[u64]) {
        for (index, value) in values.iter().enumerate() {
            self.put(address + 4 * index as u64, &(*value as u32).to_le_bytes());
        }
    }

    /// Sets the entry that maps the page of `linear`.
    pub(super) fn set_page(&mut self, linear: u64, entry: u64) {
        self.put(at::LAST_TABLE + (linear >> 12) * 8, &entry.to_le_bytes());
    }

    /// Sets a gate of long mode.
    pub(super) fn set_gate(&mut self, vector: u8, gate: Gate) {
        let low = gate.offset & 0xffff
            | u64::from(gate.selector) << 16
            | u64::from(gate.ist) << 32
            | u64::from(gate.kind) << 40
            | u64::from(gate.dpl) << 45
            | u64::from(gate.present) << 47
            | (gate.offset & 0xffff_0000) << 32;
        self.put_quads(at::IDT + 16 * u64::from(vector), &[low, gate.offset >> 32]);
    }

    /// Sets a gate of protected mode.
    pub(super) fn set_gate32(&mut self, vector: u8, gate: Gate) {
        let raw = gate.offset & 0xffff
            | u64::from(gate.selector) << 16
            | u64::from(gate.kind) << 40
            | u64::from(gate.dpl) << 45
            | u64::from(gate.present) << 47
            | (gate.offset & 0xffff_0000) << 32;
        self.put_quads(at::IDT + 8 * u64::from(vector), &[raw]);
    }

    fn put_descriptors(&mut self) {
        let rows = [
            (sel::CODE64, 0x00af_9b00_0000_ffff),
            (sel::DATA, 0x00cf_9300_0000_ffff),
            (sel::USER_CODE32, 0x00cf_fb00_0000_ffff),
            (sel::USER_DATA, 0x00cf_f300_0000_ffff),
            (sel::USER_CODE64, 0x00af_fb00_0000_ffff),
            (sel::CODE32, 0x00cf_9b00_0000_ffff),
            (sel::CONFORMING64, 0x00af_9f00_0000_ffff),
            (sel::ABSENT64, 0x00af_1b00_0000_ffff),
            (sel::LONG_AND_D, 0x00ef_9b00_0000_ffff),
            (sel::ABSENT_USER_DATA, 0x00cf_7300_0000_ffff),
            (sel::READ_ONLY_USER_DATA, 0x00cf_f100_0000_ffff),
            (sel::CONFORMING32, 0x00cf_9f00_0000_ffff),
            // 4 KiB; the limit counts bytes.
            (sel::SMALL32, 0x0040_9b00_0000_0fff),
            (sel::ABSENT_DATA, 0x00cf_1300_0000_ffff),
            (sel::DATA16, 0x0000_9300_0000_ffff),
            // The accessed flag is clear.
            (sel::FRESH64, 0x00af_9a00_0000_ffff),
            (sel::ABSENT_USER64, 0x00af_7b00_0000_ffff),
        ];
        for (selector, raw) in rows {
            self.put_quads(at::GDT + u64::from(selector & !7), &[raw]);
        }
        self.put_quads(at::LDT, &[0x00af_9b00_0000_ffff]);
    }
}
