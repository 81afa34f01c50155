//! RDMSR and WRMSR of what is intercepted: the tracing hardware's registers, EFER, the local APIC's base, SVM's own.

use pugmark_model::Retired;
use pugmark_monitor::guest::{Exception, Instruction, cr0, efer};
use x86_64::registers::model_specific::Msr;

use crate::image::vcpu::{Vcpu, tsc};

/// IA32_APIC_BASE.
pub(crate) const APIC_BASE: u32 = 0x1b;
/// IA32_EFER.
pub(crate) const EFER: u32 = 0xc000_0080;
/// VM_CR, IGNNE, SMM_CTL, VM_HSAVE_PA: SVM's own, which the guest's processor does not have.
pub(crate) const SVM_FIRST: u32 = 0xc001_0114;
pub(crate) const SVM_LAST: u32 = 0xc001_0117;

const LME: u64 = 1 << 8;
/// Fast FXSAVE.
const FFXSR: u64 = 1 << 14;
/// IA32_APIC_BASE: x2APIC mode.
const EXTD: u64 = 1 << 10;

impl Vcpu {
    /// Executes RDMSR or WRMSR.
    pub(crate) fn msr(&mut self, write: bool, instruction: &Instruction) {
        if write { self.wrmsr(instruction) } else { self.rdmsr(instruction) }
    }

    fn rdmsr(&mut self, instruction: &Instruction) {
        let msr = self.cpu.gpr[1] as u32;
        let value = match msr {
            _ if self.processor.owns_msr(msr) => self.processor.read_msr(msr).ok(),
            EFER => Some(self.cpu.efer),
            SVM_FIRST..=SVM_LAST => None,
            // SAFETY: an emulated processor answers 0 where there is no such MSR.
            _ => Some(unsafe { Msr::new(msr).read() }),
        };
        let Some(value) = value else { return self.deliver_exception(Exception::general_protection(0)) };
        self.cpu.gpr[0] = value & 0xffff_ffff;
        self.cpu.gpr[2] = value >> 32;
        self.finish(instruction, 0);
    }

    fn wrmsr(&mut self, instruction: &Instruction) {
        let msr = self.cpu.gpr[1] as u32;
        let value = self.cpu.gpr[0] & 0xffff_ffff | self.cpu.gpr[2] << 32;
        if self.processor.owns_msr(msr) {
            return self.write_tracing_msr(msr, value, instruction);
        }
        let written = match msr {
            EFER => self.write_efer(value),
            APIC_BASE => self.write_apic_base(value),
            SVM_FIRST..=SVM_LAST => false,
            _ => {
                // SAFETY: outside the permission map an emulated processor has no register and drops the write; what
                // is within the map and intercepted has an arm of its own.
                unsafe { Msr::new(msr).write(value) };
                true
            }
        };
        if written {
            self.finish(instruction, 0)
        } else {
            self.deliver_exception(Exception::general_protection(0))
        }
    }

    /// The write that enables tracing and the one that disables it are not logged: they are not traced either.
    fn write_tracing_msr(&mut self, msr: u32, value: u64, instruction: &Instruction) {
        let before = self.context();
        let logged = self.is_logged();
        let mut moved = self.cpu;
        let next = pugmark_monitor::guest::retire(&mut moved, instruction);
        let stands = core::mem::replace(&mut self.cpu, moved);
        let at =
            Retired { before, after: self.context(), bytes: instruction.bytes(), tsc: tsc(), operand: 0 };
        if self.processor.write_msr(msr, value, &at, &mut self.memory).is_err() {
            self.cpu = stands;
            return self.deliver_exception(Exception::general_protection(0));
        }
        if logged && self.is_logged() {
            self.log(before, self.flags(before));
        }
        self.trap_if(next == pugmark_monitor::guest::Next::Retired { single_step: true });
    }

    fn write_efer(&mut self, value: u64) -> bool {
        const KNOWN: u64 = efer::SCE | LME | efer::LMA | efer::NXE | FFXSR;
        let paging = self.cpu.cr0 & cr0::PG != 0;
        if value & !KNOWN != 0 || (paging && (value ^ self.cpu.efer) & LME != 0) {
            return false;
        }
        self.cpu.efer = value & !efer::LMA | self.cpu.efer & efer::LMA;
        true
    }

    /// The page stays where it is trapped, and x2APIC mode is not offered.
    fn write_apic_base(&mut self, value: u64) -> bool {
        let mut register = Msr::new(APIC_BASE);
        // SAFETY: every processor with SVM has the register.
        let present = unsafe { register.read() };
        if value & EXTD != 0 || (value ^ present) & !0xfff != 0 {
            return false;
        }
        // SAFETY: neither the place of the page nor its mode changes.
        unsafe { register.write(value) };
        true
    }
}
