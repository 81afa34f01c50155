//! The interface of a logical processor, common to both vendors.

use crate::amd::AmdViolations;
use crate::intel::IntelViolations;
use crate::{CpuidResult, Delivery, GeneralProtection, PageFault, PhysMemory, Pmi, Retired};

/// Mistakes of the software that the manuals warn of and that hardware does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violations {
    /// On an Intel processor.
    Intel(IntelViolations),
    /// On an AMD processor.
    Amd(AmdViolations),
}

/// One logical processor's counting and tracing hardware, of either vendor.
///
/// The caller that runs the code reports to it each instruction, interrupt and exception while
/// [`needs_each_instruction`](Self::needs_each_instruction) returns true, and each RDMSR and WRMSR of an MSR that it
/// [owns](Self::owns_msr). What only one vendor's hardware has is given by methods of that vendor's type.
pub trait Processor {
    /// Answers CPUID: the profile's leaves laid over `hardware`, which is what the physical processor reports for the
    /// same leaf.
    fn cpuid(&self, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult;

    /// Whether RDMSR and WRMSR of `msr` are answered here.
    fn owns_msr(&self, msr: u32) -> bool;

    /// Reads an MSR that it owns (RDMSR); any other MSR faults.
    fn read_msr(&self, msr: u32) -> Result<u64, GeneralProtection>;

    /// Writes an MSR that it owns (WRMSR); any other MSR faults. `at` is the WRMSR itself. If it does not fault, it
    /// also retires here: `retire` must not be called for it.
    fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        at: &Retired,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection>;

    /// If `msr` selects an event that is not modelled, for a counter that is enabled: the event select with its unit
    /// mask. The counter stands still.
    fn event_that_is_not_counted(&self, msr: u32) -> Option<u64>;

    /// Executes RDPMC with `index` in ECX. Whether software may use RDPMC at all (CR4.PCE) is not checked.
    fn rdpmc(&self, index: u32) -> Result<u64, GeneralProtection>;

    /// Whether each instruction must be reported now.
    fn needs_each_instruction(&self) -> bool;

    /// Whether software has a unit on that sees each instruction. Stepping may end later than this, because of an
    /// interrupt that is on its way.
    fn is_on(&self) -> bool;

    /// Returns whether a counter counts, be it only time. Between instructions that are not reported
    /// [`Processor::begin_time`] and [`Processor::pass_time`] must be called then.
    fn counts_time(&self) -> bool;

    /// Instructions execute from now on that are not reported; `tsc` is the time.
    fn begin_time(&mut self, tsc: u64);

    /// Instructions have executed until `tsc` that were not reported, and the processor was not halted: counters of
    /// time count. One that has overflowed meanwhile interrupts now.
    fn pass_time(&mut self, tsc: u64, mem: &mut dyn PhysMemory);

    /// Whether taken branches are recorded, in memory or in registers.
    fn records_branches(&self) -> bool;

    /// How many instructions may execute in one go, at least one, before [`Processor::retire`] is called for the first
    /// of them, if none of them is microcoded: no interrupt that is on its way arrives before the last of them retires,
    /// and the registers are needed before the first of them only. An interrupt that one of them raises may be due
    /// after the skid.
    fn max_unreported(&self) -> u32;

    /// Reports that an instruction retired. Must be called for each one while [`Processor::needs_each_instruction`]
    /// returns true.
    fn retire(&mut self, retired: &Retired, mem: &mut dyn PhysMemory);

    /// Reports an interrupt or exception. Must be called for each one while [`Processor::needs_each_instruction`]
    /// returns true.
    fn deliver(&mut self, delivery: &Delivery, mem: &mut dyn PhysMemory);

    /// Returns an interrupt that reaches the processor now, if there is one. Must be called after each event and after
    /// each WRMSR, until it returns `None`.
    fn take_interrupt(&mut self) -> Option<Pmi>;

    /// Returns the page fault of an access that the hardware itself made to memory, if there was one: it must be
    /// delivered as #PF before the next instruction. Must be called after each event.
    fn take_page_fault(&mut self) -> Option<PageFault> {
        None
    }

    /// Whether the local APIC's register at `offset` of its page is modelled here.
    fn owns_apic(&self, offset: u32) -> bool;

    /// Reads a local APIC register that is modelled here.
    fn read_apic(&self, offset: u32) -> u32;

    /// Returns what any other register shows when the physical local APIC shows `value`.
    fn adjust_apic(&self, _offset: u32, value: u32) -> u32 {
        value
    }

    /// Writes a local APIC register that is modelled here.
    fn write_apic(&mut self, offset: u32, value: u32);

    /// Processes INIT.
    fn init(&mut self);

    /// The software's mistakes so far, by the rules of the vendor.
    fn all_violations(&self) -> Violations;
}
