//! Executes intercepted RDMSRs, WRMSRs and RDPMCs.

use pugmark_model::Retired;
use pugmark_monitor::guest::{Exception, Instruction, cr4};
use pugmark_monitor::msr::{MsrHandler, efer_after_write};
use pugmark_monitor::tracing::TracingMemory;
use x86_64::registers::model_specific::Msr;

use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Executes RDMSR or WRMSR.
    pub(crate) fn msr(&mut self, write: bool, instruction: &Instruction) {
        if write { self.wrmsr(instruction) } else { self.rdmsr(instruction) }
    }

    /// Executes RDPMC.
    pub(crate) fn rdpmc(&mut self, instruction: &Instruction) {
        let allowed = self.cpu.cpl == 0 || self.cpu.cr4 & cr4::PCE != 0;
        let value = self.processor.rdpmc(self.cpu.gpr[1] as u32).ok().filter(|_| allowed);
        let Some(value) = value else { return self.deliver_exception(Exception::general_protection(0)) };
        self.cpu.gpr[0] = value & 0xffff_ffff;
        self.cpu.gpr[2] = value >> 32;
        self.finish(instruction, 0);
    }

    fn rdmsr(&mut self, instruction: &Instruction) {
        let msr = self.cpu.gpr[1] as u32;
        let Some(value) = self.register(msr) else {
            self.report_refusal(msr, None);
            return self.deliver_exception(Exception::general_protection(0));
        };
        if self.reports_accesses && self.processor.owns_msr(msr) {
            self.report_access("read", msr, value, self.cpu.rip);
        }
        self.cpu.gpr[0] = value & 0xffff_ffff;
        self.cpu.gpr[2] = value >> 32;
        self.finish(instruction, 0);
    }

    /// Returns the value that the guest reads from an MSR; `None`: the read raises #GP.
    pub(crate) fn register(&mut self, msr: u32) -> Option<u64> {
        if self.processor.owns_msr(msr) {
            return self.processor.read_msr(msr).ok();
        }
        match self.processor.msr_handler(msr) {
            MsrHandler::Efer => Some(self.cpu.efer),
            MsrHandler::TimeStampCounter => Some(self.now()),
            MsrHandler::DebugCtl => Some(0),
            MsrHandler::Absent => None,
            // SAFETY: an emulated processor returns 0 for an MSR that it does not have.
            MsrHandler::ProcessorBelow => Some(unsafe { Msr::new(msr).read() }),
            MsrHandler::ApicBase => Some(self.local_apic.base()),
            MsrHandler::X2Apic => self.local_apic.read_msr(msr, &self.clock, &self.processor),
        }
    }

    fn wrmsr(&mut self, instruction: &Instruction) {
        let msr = self.cpu.gpr[1] as u32;
        let value = self.cpu.gpr[0] & 0xffff_ffff | self.cpu.gpr[2] << 32;
        if self.processor.owns_msr(msr) {
            return self.write_tracing_msr(msr, value, instruction);
        }
        let written = match self.processor.msr_handler(msr) {
            MsrHandler::Efer => self.write_efer(value),
            MsrHandler::ApicBase => self.local_apic.set_base(value),
            MsrHandler::X2Apic => self.local_apic.write_msr(msr, value, &mut self.processor, &mut self.clock),
            MsrHandler::DebugCtl => value == 0,
            // MSRs that only the processor below handles do not exit.
            MsrHandler::Absent | MsrHandler::ProcessorBelow | MsrHandler::TimeStampCounter => false,
        };
        if written {
            self.finish(instruction, 0)
        } else {
            self.report_refusal(msr, Some(value));
            self.deliver_exception(Exception::general_protection(0))
        }
    }

    fn write_efer(&mut self, value: u64) -> bool {
        let written = efer_after_write(&self.cpu, value);
        self.cpu.efer = written.unwrap_or(self.cpu.efer);
        written.is_some()
    }

    /// Writes an MSR of the tracing hardware. The write that enables tracing and the one that disables it are not
    /// logged, because they are not traced either.
    fn write_tracing_msr(&mut self, msr: u32, value: u64, instruction: &Instruction) {
        let before = self.context();
        self.probe(before, instruction.bytes());
        let logged = self.is_logged();
        let mut moved = self.cpu;
        let next = pugmark_monitor::guest::retire(&mut moved, instruction);
        let stands = core::mem::replace(&mut self.cpu, moved);
        let at = Retired {
            before,
            after: self.context(),
            bytes: instruction.bytes(),
            tsc: self.now(),
            operand: 0,
        };
        let flags = self.log_flags(before);
        self.processor.set_registers_after(&self.cpu, || self.sse.bytes());
        let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
        if self.processor.write_msr(msr, value, &at, &mut memory).is_err() {
            self.cpu = stands;
            self.report_refusal(msr, Some(value));
            return self.deliver_exception(Exception::general_protection(0));
        }
        if self.reports_accesses {
            self.report_access("wrote", msr, value, stands.rip);
        }
        self.report_event_that_is_not_counted(msr);
        self.last_ip = before.ip;
        if logged && self.is_logged() {
            // Intel PT neither sees the instruction that switches it on nor the one that switches it off.
            let flags = if self.processor.is_traced() { flags } else { self.log_flags(before) };
            self.log(before, flags);
        }
        self.deliver_single_step_if(
            next == pugmark_monitor::guest::ExecutionOutcome::Retired { single_step: true },
        );
    }
}
