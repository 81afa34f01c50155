//! A processor that tests drive directly.

use std::boxed::Box;
use std::vec::Vec;

pub(super) use crate::Processor;
use crate::amd::{AmdProcessor, AmdProfile, AmdSettings, DataRegisters, Northbridge};
use crate::{
    Context, Delivery, DeliveryKind, ExecMode, GeneralProtection, Init, Mapping, Memory, PageFault, PageSize,
    PhysMemory, Pmi, Retired,
};

pub(super) const NOP: &[u8] = &[0x90];
pub(super) const JMP: &[u8] = &[0xeb, 0x40];
pub(super) const JZ: &[u8] = &[0x74, 0x40];
pub(super) const CALL: &[u8] = &[0xe8, 0, 1, 0, 0];
pub(super) const RET: &[u8] = &[0xc3];
pub(super) const IRETQ: &[u8] = &[0x48, 0xcf];
pub(super) const HLT: &[u8] = &[0xf4];
/// MOV RAX, \[RBX\].
pub(super) const LOAD: &[u8] = &[0x48, 0x8b, 0x03];
/// MOV \[RBX\], RAX.
pub(super) const STORE: &[u8] = &[0x48, 0x89, 0x03];
/// ADD \[RBX\], RAX.
pub(super) const ADD: &[u8] = &[0x48, 0x01, 0x03];
const WRMSR: &[u8] = &[0x0f, 0x30];

pub(super) const FETCH_CTL: u32 = 0xc001_1030;
pub(super) const FETCH_LIN: u32 = 0xc001_1031;
pub(super) const FETCH_PHYS: u32 = 0xc001_1032;
pub(super) const OP_CTL: u32 = 0xc001_1033;
pub(super) const OP_RIP: u32 = 0xc001_1034;
pub(super) const OP_DATA: u32 = 0xc001_1035;
pub(super) const OP_DATA2: u32 = 0xc001_1036;
pub(super) const OP_DATA3: u32 = 0xc001_1037;
pub(super) const DC_LIN: u32 = 0xc001_1038;
pub(super) const DC_PHYS: u32 = 0xc001_1039;
pub(super) const IBS_CTL: u32 = 0xc001_103a;
pub(super) const BR_TARGET: u32 = 0xc001_103b;

pub(super) const FETCH_EN: u64 = 1 << 48;
pub(super) const FETCH_VAL: u64 = 1 << 49;
pub(super) const RAND_EN: u64 = 1 << 57;
pub(super) const OP_EN: u64 = 1 << 17;
pub(super) const OP_VAL: u64 = 1 << 18;
/// IbsOpCntCtl: ops.
pub(super) const OPS: u64 = 1 << 19;

/// EN, OS, USR.
pub(super) const ALL: u64 = 1 << 22 | 0b11 << 16;

/// Memory in which every page is mapped 1 GiB higher, except the last page of the first 4 GiB, which is not mapped.
/// From [`LARGE`] on pages have 2 MiB, from [`HUGE`] on 1 GiB; from [`UNCACHED`] on memory is not cached, from
/// [`DEVICE`] on there is no memory.
struct Mapped;

pub(super) const LARGE: u64 = 0x4000_0000;
pub(super) const HUGE: u64 = 0x8000_0000;
pub(super) const UNCACHED: u64 = 0xc000_0000;
pub(super) const DEVICE: u64 = 0xd000_0000;

impl PhysMemory for Mapped {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&mut self, _: u64, _: &[u8]) -> bool {
        false
    }

    fn translate(&mut self, addr: u64, _: bool) -> Result<Mapping, PageFault> {
        if addr >> 12 == 0xf_ffff {
            return Err(PageFault { address: addr, code: 0 });
        }
        let page = match addr {
            LARGE..HUGE => PageSize::M2,
            HUGE..UNCACHED => PageSize::G1,
            _ => PageSize::K4,
        };
        let memory = match addr {
            UNCACHED..DEVICE => Memory::Uncached,
            DEVICE..0xf000_0000 => Memory::Device,
            _ => Memory::Cached,
        };
        Ok(Mapping { physical: addr + (1 << 30), supervisor: true, marked: true, page, memory })
    }
}

pub(super) struct AmdMachine {
    pub(super) processor: AmdProcessor<'static>,
    pub(super) at: Context,
}

impl AmdMachine {
    pub(super) fn new(profile: &str) -> Self {
        Self::with(profile, AmdSettings { skid: 0, ..AmdSettings::default() })
    }

    pub(super) fn with(profile: &str, settings: AmdSettings) -> Self {
        let profile = AmdProfile::by_name(profile).expect(profile);
        let northbridge = Box::leak(Box::new(Northbridge::new(profile)));
        let at =
            Context { ip: 0x40_0000, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: false };
        Self { processor: AmdProcessor::new(profile, settings, northbridge), at }
    }

    pub(super) fn try_write(&mut self, msr: u32, value: u64) -> Result<(), GeneralProtection> {
        let after = Context { ip: self.at.ip + 2, ..self.at };
        let at = Retired { before: self.at, after, bytes: WRMSR, tsc: 0, operand: 0 };
        self.processor.write_msr(msr, value, &at, &mut Mapped)?;
        self.at = after;
        Ok(())
    }

    /// Executes a WRMSR that must be legal.
    pub(super) fn write(&mut self, msr: u32, value: u64) {
        assert_eq!(self.try_write(msr, value), Ok(()), "WRMSR {msr:#x} {value:#x}");
    }

    pub(super) fn read(&self, msr: u32) -> u64 {
        self.processor.read_msr(msr).expect("RDMSR")
    }

    /// Executes one instruction that continues at `to`.
    pub(super) fn go(&mut self, bytes: &[u8], to: u64) {
        let after = Context { ip: to, ..self.at };
        let retired = Retired { before: self.at, after, bytes, tsc: 0, operand: 0 };
        self.processor.retire(&retired, &mut Mapped);
        self.at = after;
    }

    /// Executes one instruction that continues at `to` at a privilege level.
    pub(super) fn go_to_level(&mut self, bytes: &[u8], to: u64, cpl: u8) {
        let after = Context { ip: to, cpl, ..self.at };
        let retired = Retired { before: self.at, after, bytes, tsc: 0, operand: 0 };
        self.processor.retire(&retired, &mut Mapped);
        self.at = after;
    }

    /// Executes one instruction that continues at the next one in memory.
    pub(super) fn next(&mut self, bytes: &[u8]) {
        self.go(bytes, self.at.ip + bytes.len() as u64);
    }

    /// Executes one instruction with `rbx` in RBX.
    pub(super) fn with_rbx(&mut self, bytes: &[u8], rbx: u64) {
        let mut registers = DataRegisters::default();
        registers.general[3] = rbx;
        self.processor.set_registers(registers);
        self.next(bytes);
    }

    /// Repeats the same instruction at the same address: only the first execution can miss.
    pub(super) fn loop_nops(&mut self, times: usize) {
        let at = self.at.ip;
        for _ in 0..times {
            self.next(NOP);
            self.at.ip = at;
        }
    }

    pub(super) fn deliver(&mut self, kind: DeliveryKind) {
        self.deliver_vector(3, kind);
    }

    pub(super) fn deliver_vector(&mut self, vector: u8, kind: DeliveryKind) {
        let delivery = Delivery { kind, vector, before: self.at, after: self.at, cr2: None, tsc: 0 };
        self.processor.deliver(&delivery, &mut Mapped);
    }

    pub(super) fn init(&mut self) {
        self.processor.init(&Init { before: self.at, after: None, tsc: 0 }, &mut Mapped);
    }

    /// Takes all interrupts that are due.
    pub(super) fn interrupts(&mut self) -> Vec<Pmi> {
        core::iter::from_fn(|| self.processor.take_interrupt()).collect()
    }

    /// Makes the extended LVT's first entry interrupt by NMI; on barcelona, also selects it by F3x1CC.
    pub(super) fn ibs_by_nmi(&mut self) {
        self.processor.write_apic(0x500, 0x400);
        if self.read(IBS_CTL) == 0 {
            self.write(0xc001_001f, 1 << 46);
            let northbridge = self.processor.northbridge();
            northbridge.port_write(0xcf8, 4, 0x8100_c3cc);
            assert!(northbridge.port_write(0xcfc, 4, 0x100));
        }
    }
}
