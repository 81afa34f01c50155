//! What a logical processor of either vendor does.

use crate::amd::AmdViolations;
use crate::intel::IntelViolations;
use crate::{Delivery, PageFault, PhysMemory, Retired};

/// #GP(0): the instruction that accessed the MSR faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// What CPUID leaves in EAX, EBX, ECX and EDX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidResult {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// A performance-monitoring interrupt that the local APIC delivers now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmi {
    /// Delivery mode Fixed, with this vector.
    Fixed(u8),
    /// Delivery mode NMI.
    Nmi,
}

/// What software did that the manuals warn of and that hardware does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violations {
    /// On a processor of Intel's.
    Intel(IntelViolations),
    /// On one of AMD's.
    Amd(AmdViolations),
}

/// One logical processor's counting and tracing hardware, of either vendor.
///
/// Whoever runs the code feeds it: each instruction while it [`steps`](Self::steps), each interrupt and exception, each
/// RDMSR and WRMSR of an MSR that it [owns](Self::owns_msr). What the one vendor's has and the other's has not is told
/// by the types themselves.
pub trait Processor {
    /// What CPUID answers: the profile's leaves laid over `hardware`, what the processor below reports for the same
    /// leaf.
    fn cpuid(&self, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult;

    /// Whether RDMSR and WRMSR of `msr` come here.
    fn owns_msr(&self, msr: u32) -> bool;

    /// RDMSR of an MSR that it owns; of others it faults.
    fn read_msr(&self, msr: u32) -> Result<u64, GeneralProtection>;

    /// WRMSR of an MSR that it owns; of others it faults. `at` is the WRMSR itself. When it does not fault it retires
    /// here: `retire` is not called for it.
    fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        at: &Retired,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection>;

    /// RDPMC with `index` in ECX. Whether software may use it at all (CR4.PCE) is not looked at.
    fn rdpmc(&self, index: u32) -> Result<u64, GeneralProtection>;

    /// It must see every instruction now.
    fn steps(&self) -> bool;

    /// Software has something on that sees each instruction. An interrupt that is on its way may delay the end of
    /// stepping.
    fn is_on(&self) -> bool;

    /// Taken branches are recorded, in memory or in registers.
    fn records_branches(&self) -> bool;

    /// How many instructions may execute one after the other before [`Processor::retire`] is called for the first of
    /// them, at least one, if none of them is microcoded: no interrupt that is on its way arrives before the last of
    /// them retires, and the registers are asked for before none but the first. An interrupt that one of them raises
    /// may be due after the skid.
    fn in_one_go(&self) -> u32;

    /// An instruction retired. To be called for each one while [`Processor::steps`].
    fn retire(&mut self, retired: &Retired, mem: &mut dyn PhysMemory);

    /// An interrupt or exception was delivered. To be called for each one while [`Processor::steps`].
    fn deliver(&mut self, delivery: &Delivery, mem: &mut dyn PhysMemory);

    /// An interrupt that reaches the processor now, if one does. To be asked after each event, and after each WRMSR,
    /// until there is none.
    fn take_interrupt(&mut self) -> Option<Pmi>;

    /// A page fault of an access to memory that the hardware made for itself, if there was one: to be delivered as #PF
    /// before the next instruction. To be asked after each event.
    fn take_page_fault(&mut self) -> Option<PageFault> {
        None
    }

    /// Whether the local APIC's register at `offset` of its page is modelled here.
    fn owns_apic(&self, offset: u32) -> bool;

    /// Reads such a register.
    fn read_apic(&self, offset: u32) -> u32;

    /// What any other register shows, where the local APIC below shows `value`.
    fn overlay_apic(&self, _offset: u32, value: u32) -> u32 {
        value
    }

    /// Writes such a register.
    fn write_apic(&mut self, offset: u32, value: u32);

    /// INIT.
    fn init(&mut self);

    /// What software did wrong so far, by the rules of its vendor.
    fn all_violations(&self) -> Violations;
}
