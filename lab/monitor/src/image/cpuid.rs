//! CPUID.

use core::arch::x86_64::__cpuid_count;

use pugmark_model::CpuidResult;
use pugmark_monitor::cpuid::without_monitor;
use pugmark_monitor::guest::Instruction;

use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Executes CPUID. The answer is that of the processor below, without the features reserved for the monitor, and
    /// with the changes by the model of the guest's processor.
    pub(crate) fn cpuid(&mut self, instruction: &Instruction) {
        let [leaf, subleaf] = [self.cpu.gpr[0] as u32, self.cpu.gpr[1] as u32];
        let CpuidResult { eax, ebx, ecx, edx } = self.cpuid_answer(leaf, subleaf);
        for (register, value) in [(0, eax), (1, ecx), (2, edx), (3, ebx)] {
            self.cpu.gpr[register] = value.into();
        }
        self.finish(instruction, 0);
    }

    /// Returns whether the guest's processor has PTWRITE.
    pub(crate) fn has_ptwrite(&self) -> bool {
        const PTWRITE: u32 = 1 << 4;
        self.cpuid_answer(0x14, 0).ebx & PTWRITE != 0
    }

    /// Returns the guest's CPUID values.
    pub(crate) fn cpuid_answer(&self, leaf: u32, subleaf: u32) -> CpuidResult {
        let below = __cpuid_count(leaf, subleaf);
        let below = CpuidResult { eax: below.eax, ebx: below.ebx, ecx: below.ecx, edx: below.edx };
        self.processor.cpuid(leaf, subleaf, without_monitor(leaf, below, self.local_apic.offers_x2apic()))
    }
}
