//! The interface of a logical processor, common to both vendors.

use crate::amd::AmdViolations;
use crate::intel::IntelViolations;
use crate::{Context, CpuidResult, Delivery, GeneralProtection, Init, PageFault, PhysMemory, Pmi, Retired};

/// Violations that the manuals warn of and that hardware does not report.
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
/// [owns](Self::owns_msr). Functions of one vendor only are methods of that vendor's type.
pub trait Processor {
    /// Returns the result of CPUID: the profile's leaves over `hardware`, the physical processor's result for the same
    /// leaf.
    fn cpuid(&self, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult;

    /// Returns true if RDMSR and WRMSR of `msr` are handled here.
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

    /// Returns the event select with its unit mask if `msr` selects an event that is not modelled, for an enabled
    /// counter. That counter does not count.
    fn event_that_is_not_counted(&self, msr: u32) -> Option<u64>;

    /// Executes RDPMC with `index` in ECX. The permission to use RDPMC (CR4.PCE) is not checked.
    fn rdpmc(&self, index: u32) -> Result<u64, GeneralProtection>;

    /// Returns true if each instruction must be reported now.
    fn needs_each_instruction(&self) -> bool;

    /// Returns true if software has a unit on that sees each instruction. Stepping may end later than this, because of
    /// an in-flight interrupt.
    fn is_on(&self) -> bool;

    /// Returns whether a counter counts, even if only time. If so, [`Processor::begin_time`] and
    /// [`Processor::pass_time`] must be called around instructions that are not reported.
    fn counts_time(&self) -> bool;

    /// Starts a period of instructions that are not reported; `tsc` is the time.
    fn begin_time(&mut self, tsc: u64);

    /// Ends a period of instructions that were not reported, without a halt, at `tsc`: counters of time count. One that
    /// has overflowed meanwhile interrupts now.
    fn pass_time(&mut self, tsc: u64, mem: &mut dyn PhysMemory);

    /// Returns true if taken branches are recorded, in memory or in registers.
    fn records_branches(&self) -> bool;

    /// Returns the maximum number of instructions, at least one, to run before [`Processor::retire`] is called for the
    /// first of them, if none of them is microcoded: no in-flight interrupt arrives before the last of them retires,
    /// and the registers are needed only before the first of them. An interrupt that one of them raises may be due
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

    /// Returns true if the local APIC's register at `offset` of its page is modelled here.
    fn owns_apic(&self, offset: u32) -> bool;

    /// Reads a local APIC register that is modelled here.
    fn read_apic(&self, offset: u32) -> u32;

    /// Returns the value of any other register if the physical local APIC's value is `value`.
    fn adjust_apic(&self, _offset: u32, value: u32) -> u32 {
        value
    }

    /// Writes a local APIC register that is modelled here.
    fn write_apic(&mut self, offset: u32, value: u32);

    /// Processes INIT.
    fn init(&mut self, init: &Init, mem: &mut dyn PhysMemory);

    /// Processes a start-up interrupt. After an INIT for which the processor waits, execution begins in the state `at`;
    /// otherwise nothing happens.
    fn start_up(&mut self, at: &Context, tsc: u64, mem: &mut dyn PhysMemory);

    /// Returns the violations so far, by the rules of the vendor.
    fn all_violations(&self) -> Violations;
}
