//! A processor with memory that tests drive directly, and its trace as text.

use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{BipValue, BlockItemSize, Ip, Packets, PtwPayload};

pub(crate) use crate::Processor;
use crate::intel::registers::cap_ecx;
use crate::intel::{IntelProcessor, IntelProfile, IntelSettings};
use crate::{
    Context, Delivery, DeliveryKind, ExecMode, FlatMemory, GeneralProtection, Init, Mapping, PageFault,
    PhysMemory, Retired,
};

pub(crate) const CTL: u32 = 0x570;
pub(crate) const STATUS: u32 = 0x571;
pub(crate) const BASE: u32 = 0x560;
pub(crate) const MASK_PTRS: u32 = 0x561;

/// TraceEn, OS, User, BranchEn: everything is traced, into the single range.
pub(crate) const ALL: u64 = 0x200d;
pub(crate) const TOPA: u64 = 1 << 8;

pub(crate) const NOP: &[u8] = &[0x90];
pub(crate) const JZ: &[u8] = &[0x74, 0x40];
pub(crate) const JMP: &[u8] = &[0xeb, 0x40];
pub(crate) const CALL: &[u8] = &[0xe8, 0, 1, 0, 0];
pub(crate) const CALL_NEXT: &[u8] = &[0xe8, 0, 0, 0, 0];
pub(crate) const JMP_RAX: &[u8] = &[0xff, 0xe0];
pub(crate) const CALL_RAX: &[u8] = &[0xff, 0xd0];
pub(crate) const RET: &[u8] = &[0xc3];
pub(crate) const SYSCALL: &[u8] = &[0x0f, 0x05];
pub(crate) const IRETQ: &[u8] = &[0x48, 0xcf];
pub(crate) const MOV_CR3: &[u8] = &[0x0f, 0x22, 0xd8];
pub(crate) const WRMSR: &[u8] = &[0x0f, 0x30];

/// The address of the single range, whose size is 64 KiB.
pub(crate) const RANGE: usize = 0x1_0000;
const RANGE_SIZE: usize = 0x1_0000;

/// Memory from address 0 on, in which some pages are not identity-mapped.
pub(crate) struct Paged<'a> {
    flat: FlatMemory<'a>,
    pages: &'a BTreeMap<u64, Result<Mapping, PageFault>>,
}

impl PhysMemory for Paged<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        self.flat.read(addr, out)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        self.flat.write(addr, bytes)
    }

    fn translate(&mut self, addr: u64, write: bool) -> Result<Mapping, PageFault> {
        match self.pages.get(&(addr / 4096)) {
            None => self.flat.translate(addr, write),
            Some(Ok(mapping)) => Ok(Mapping { physical: mapping.physical + addr % 4096, ..*mapping }),
            Some(Err(fault)) if fault.code & 2 != 0 && !write => Ok(self.flat.translate(addr, write)?),
            Some(Err(fault)) => Err(PageFault { address: addr, ..*fault }),
        }
    }
}

pub(crate) struct Machine {
    pub(crate) processor: IntelProcessor,
    pub(crate) ram: Vec<u8>,
    /// The pages that are not identity-mapped, by page number. A fault whose code has the write bit affects only
    /// writes.
    pub(crate) pages: BTreeMap<u64, Result<Mapping, PageFault>>,
    pub(crate) at: Context,
    pub(crate) tsc: u64,
}

impl Machine {
    pub(crate) fn new(profile: &str, settings: IntelSettings) -> Self {
        let at =
            Context { ip: 0x40_0000, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: false };
        let processor = IntelProcessor::new(IntelProfile::by_name(profile).expect(profile), settings);
        let ram = vec![0; 0x4_0000];
        let mut machine = Self { processor, ram, pages: BTreeMap::new(), at, tsc: 0 };
        if IntelProfile::by_name(profile).is_some_and(|profile| profile.output(cap_ecx::SINGLE_RANGE)) {
            machine.write(BASE, RANGE as u64);
            machine.write(MASK_PTRS, RANGE_SIZE as u64 - 1);
        }
        machine
    }

    pub(crate) fn try_write(&mut self, msr: u32, value: u64) -> Result<(), GeneralProtection> {
        let after = Context { ip: self.at.ip + 2, ..self.at };
        let at = Retired { before: self.at, after, bytes: WRMSR, tsc: self.tsc, operand: 0 };
        let flat = FlatMemory { base: 0, bytes: &mut self.ram };
        let mut memory = Paged { flat, pages: &self.pages };
        self.processor.write_msr(msr, value, &at, &mut memory)?;
        self.at = after;
        Ok(())
    }

    /// Executes a WRMSR that must be legal.
    pub(crate) fn write(&mut self, msr: u32, value: u64) {
        assert_eq!(self.try_write(msr, value), Ok(()), "WRMSR {msr:#x} {value:#x}");
    }

    pub(crate) fn read(&mut self, msr: u32) -> u64 {
        self.processor.read_msr(msr).expect("RDMSR")
    }

    /// Executes a WRMSR of IA32_RTIT_CTL; the next instruction is at 400000h.
    pub(crate) fn start(&mut self, ctl: u64) {
        self.at.ip = 0x3f_fffe;
        self.write(CTL, ctl);
    }

    pub(crate) fn stop(&mut self) {
        self.write(CTL, 0);
    }

    /// Executes one instruction that continues at `to` in the same context.
    pub(crate) fn go(&mut self, bytes: &[u8], to: u64) {
        self.far(bytes, Context { ip: to, ..self.at });
    }

    /// Executes one instruction that continues at the next one in memory.
    pub(crate) fn next(&mut self, bytes: &[u8]) {
        self.go(bytes, self.at.ip + bytes.len() as u64);
    }

    /// Executes one instruction that changes the context.
    pub(crate) fn far(&mut self, bytes: &[u8], after: Context) {
        self.operand(bytes, after, 0);
    }

    pub(crate) fn operand(&mut self, bytes: &[u8], after: Context, operand: u64) {
        let retired = Retired { before: self.at, after, bytes, tsc: self.tsc, operand };
        let flat = FlatMemory { base: 0, bytes: &mut self.ram };
        let mut memory = Paged { flat, pages: &self.pages };
        self.processor.retire(&retired, &mut memory);
        self.at = after;
    }

    pub(crate) fn deliver(&mut self, kind: DeliveryKind, vector: u8, after: Context, cr2: Option<u64>) {
        let delivery = Delivery { kind, vector, before: self.at, after, cr2, tsc: self.tsc };
        let flat = FlatMemory { base: 0, bytes: &mut self.ram };
        let mut memory = Paged { flat, pages: &self.pages };
        self.processor.deliver(&delivery, &mut memory);
        self.at = after;
    }

    /// Delivers INIT to a processor that continues in the state `after`, or waits.
    pub(crate) fn init(&mut self, after: Option<Context>) {
        let init = Init { before: self.at, after, tsc: self.tsc };
        self.processor.init(&init, &mut FlatMemory { base: 0, bytes: &mut self.ram });
        self.at = after.unwrap_or(self.at);
    }

    /// Delivers a start-up interrupt.
    pub(crate) fn start_up(&mut self, at: Context) {
        self.processor.start_up(&at, self.tsc, &mut FlatMemory { base: 0, bytes: &mut self.ram });
        self.at = at;
    }

    /// Returns the context at CPL 3 and `ip`.
    pub(crate) fn user(&self, ip: u64) -> Context {
        Context { ip, cpl: 3, ..self.at }
    }

    /// Returns the context at CPL 0 and `ip`.
    pub(crate) fn kernel(&self, ip: u64) -> Context {
        Context { ip, cpl: 0, ..self.at }
    }

    /// Returns the packets in the single range; tracing must be off.
    pub(crate) fn trace(&mut self) -> Vec<String> {
        let len = (self.read(MASK_PTRS) >> 32) as usize;
        packets(&self.ram[RANGE..RANGE + len])
    }

    /// Returns these packets without the first PSB+ and without the FUP and TIP.PGD of the WRMSR that stopped tracing.
    pub(crate) fn body(&mut self) -> String {
        let trace = self.trace();
        let first = trace.iter().position(|packet| packet == "PSBEND").expect("a PSB+") + 1;
        let mut body = &trace[first..];
        if let [rest @ .., fup, pgd] = body
            && fup.starts_with("FUP")
            && pgd == "TIP.PGD -"
        {
            body = rest;
        }
        body.join("; ")
    }
}

/// Runs `code` with tracing on and returns the packets between PSB+ and the end.
pub(crate) fn run(
    profile: &str,
    settings: IntelSettings,
    ctl: u64,
    code: impl FnOnce(&mut Machine),
) -> String {
    let mut machine = Machine::new(profile, settings);
    machine.start(ctl);
    code(&mut machine);
    machine.stop();
    machine.body()
}

/// Returns the packets as text, with whole IPs.
pub(crate) fn packets(bytes: &[u8]) -> Vec<String> {
    let mut last = 0;
    Packets::new(bytes)
        .map(|item| {
            let (offset, packet) = item.unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
            if packet == Packet::Psb {
                last = 0;
            }
            text(packet, &mut last).unwrap_or_else(|| panic!("{offset:#x}: {packet:?}"))
        })
        .collect()
}

fn text(packet: Packet, last: &mut u64) -> Option<String> {
    let mut with_ip = |name: &str, ip| match whole(ip, *last) {
        Some(ip) => {
            *last = ip;
            format!("{name} {ip:x}")
        }
        None => format!("{name} -"),
    };
    let flag = |set, name: &str| if set { format!(" {name}") } else { String::new() };
    Some(match packet {
        Packet::Psb => "PSB".to_string(),
        Packet::PsbEnd => "PSBEND".to_string(),
        Packet::Ovf => "OVF".to_string(),
        Packet::TraceStop => "TraceStop".to_string(),
        Packet::TntShort(tnt) => format!("TNT {:01$b}", tnt.bits, tnt.len as usize),
        Packet::TntLong(tnt) => format!("TNT.64 {:01$b}", tnt.bits, tnt.len as usize),
        Packet::Tip(ip) => with_ip("TIP", ip),
        Packet::TipPge(ip) => with_ip("TIP.PGE", ip),
        Packet::TipPgd(ip) => with_ip("TIP.PGD", ip),
        Packet::Fup(ip) => with_ip("FUP", ip),
        Packet::ModeExec(mode) => {
            let bits = match (mode.cs_l, mode.cs_d) {
                (true, false) => "64",
                (false, true) => "32",
                (false, false) => "16",
                (true, true) => return None,
            };
            format!("MODE.Exec {bits}{}", flag(mode.iflag, "if"))
        }
        Packet::ModeTsx(mode) => {
            format!("MODE.TSX{}{}", flag(mode.in_tx, "in"), flag(mode.abort, "abort"))
        }
        Packet::Pip(pip) => format!("PIP {:x}{}", pip.cr3, flag(pip.non_root, "nr")),
        Packet::Vmcs(vmcs) => format!("VMCS {:x}", vmcs.base),
        Packet::Mnt(mnt) => format!("MNT {:x}", mnt.payload),
        Packet::Tsc(tsc) => format!("TSC {}", tsc.tsc),
        Packet::Tma(tma) => format!("TMA {} {}", tma.ctc, tma.fc),
        Packet::Cbr(cbr) => format!("CBR {}", cbr.ratio),
        Packet::Mtc(mtc) => format!("MTC {}", mtc.ctc),
        Packet::Cyc(cyc) => format!("CYC {}", cyc.cycles),
        Packet::Exstop(exstop) => format!("EXSTOP{}", flag(exstop.ip, "ip")),
        Packet::Mwait(mwait) => format!("MWAIT {:x} {:x}", mwait.hints, mwait.ext),
        Packet::Pwre(pwre) => format!("PWRE {}.{}{}", pwre.state, pwre.sub_state, flag(pwre.hw, "hw")),
        Packet::Pwrx(pwrx) => {
            let reasons = [(pwrx.interrupt, "int"), (pwrx.store, "store"), (pwrx.autonomous, "hw")];
            let reasons = reasons.map(|(set, name)| flag(set, name)).concat();
            format!("PWRX {} {}{reasons}", pwrx.last, pwrx.deepest)
        }
        Packet::Ptw(ptw) => {
            let payload = match ptw.payload {
                PtwPayload::Four(value) => format!("4 {value:x}"),
                PtwPayload::Eight(value) => format!("8 {value:x}"),
            };
            format!("PTW {payload}{}", flag(ptw.ip, "ip"))
        }
        Packet::Cfe(cfe) => format!("CFE {} {}{}", cfe.kind, cfe.vector, flag(cfe.ip, "ip")),
        Packet::Evd(evd) => format!("EVD {} {:x}", evd.kind, evd.payload),
        Packet::Bbp(bbp) => {
            let bytes = if bbp.size == BlockItemSize::Four { 4 } else { 8 };
            format!("BBP {} {bytes}", bbp.kind)
        }
        Packet::Bip(bip) => match bip.value {
            BipValue::Four(value) => format!("BIP {} {value:x}", bip.id),
            BipValue::Eight(value) => format!("BIP {} {value:x}", bip.id),
        },
        Packet::Bep(bep) => format!("BEP{}", flag(bep.ip, "ip")),
        _ => return None,
    })
}

/// Reconstructs an IP by the table "FUP/TIP IP Reconstruction".
fn whole(ip: Ip, last: u64) -> Option<u64> {
    Some(match ip {
        Ip::Suppressed => return None,
        Ip::Update16(low) => last & !0xffff | low,
        Ip::Update32(low) => last & !0xffff_ffff | low,
        Ip::SignExtend48(low) if low >> 47 & 1 != 0 => low | 0xffff << 48,
        Ip::SignExtend48(low) => low,
        Ip::Update48(low) => last & 0xffff << 48 | low,
        Ip::Full(ip) => ip,
    })
}
