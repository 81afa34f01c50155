//! A PT unit that is off: detection and start.

use super::OperationalError;
use super::detect::{self, VmxTracing};
use super::running::PtRunning;
use super::session::PtSession;
use crate::cpuid::{CpuIdReader, this_processor};
use crate::intel::pt::PtCapabilities;
use crate::intel::pt::buffer::{Buffer, BufferError};
use crate::intel::pt::config::{Checked, PtConfig, PtConfigRefusal};
use crate::lifecycle::{Absent, InUse, NotStarted, StartError};
use crate::memory::Frames;
use crate::msr::{
    Cr3Match, GeneralProtection, Msr, OutputBase, OutputMaskPtrs, Register, RegisterAt, RegisterValue,
    RtitCtl, RtitStatus, TypedMsr, addr_a, addr_b, clear_trace_en,
};
use crate::slot::PauseGate;
use core::fmt;
use core::marker::PhantomData;

/// The PT unit of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found, and so
/// do the values made from it. A kernel that moves threads between processors must not move the thread that holds it.
#[derive(Debug)]
pub struct PtUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) capabilities: PtCapabilities,
    pub(super) gate: Option<&'static PauseGate>,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> PtUnit<M> {
    /// Detects the unit of the processor that executes this, as [`PtUnit::detect`] does.
    ///
    /// # Errors
    ///
    /// The unit is absent, or another owner uses it.
    pub fn of_this_processor(msr: M) -> Result<Self, Absent> {
        Self::detect(this_processor, msr)
    }

    /// Detects the unit: first by CPUID, then by checking that its registers work and that no other owner uses it.
    ///
    /// # Errors
    ///
    /// The unit is absent, or another owner uses it.
    pub fn detect(cpuid: impl CpuIdReader, msr: M) -> Result<Self, Absent> {
        Self::with_capabilities(PtCapabilities::read(cpuid)?, msr)
    }

    /// Detects the unit as [`PtUnit::with_capabilities`] does, and takes it over if firmware, a boot loader or another
    /// owner has left it on: turns it off, and returns the registers of that trace. A trace of this driver that is on
    /// sees that it was turned off ([`Loss::turned_off`](crate::loss::Loss::turned_off)); another owner loses its trace
    /// without notice.
    ///
    /// ```
    /// use pugmark_kernel::intel::pt::{PtCapabilities, PtUnit};
    /// use pugmark_kernel::{lifecycle::Absent, msr::Msr};
    ///
    /// fn unit<M: Msr>(registers: M) -> Result<PtUnit<M>, Absent> {
    ///     let (unit, left_on) = PtUnit::take_over(PtCapabilities::of_this_processor()?, registers)?;
    ///     if let Some(left_on) = left_on {
    ///         println!("{left_on}");
    ///     }
    ///     Ok(unit)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The unit is absent, or it stays on: another owner below this kernel (a hypervisor) uses it.
    pub fn take_over(capabilities: PtCapabilities, mut msr: M) -> Result<(Self, Option<LeftOn>), Absent> {
        let ctl = clear_trace_en(&mut msr)?;
        if !ctl.contains(RtitCtl::TRACE_EN) {
            return Ok((Self::with_capabilities(capabilities, msr)?, None));
        }
        let left_on = LeftOn { ctl, status: msr.read()?, base: msr.read()?, pointers: msr.read()? };
        // A trace of this driver sees by this that it was turned off. SAFETY: TraceEn stays 0.
        unsafe { msr.write(RtitCtl::empty()) }?;
        Ok((Self::with_capabilities(capabilities, msr)?, Some(left_on)))
    }

    /// Detects the unit that these capabilities announce.
    ///
    /// # Errors
    ///
    /// The unit is absent, or another owner uses it.
    pub fn with_capabilities(capabilities: PtCapabilities, mut msr: M) -> Result<Self, Absent> {
        detect::probe(&mut msr, &capabilities)?;
        Ok(Self { msr, capabilities, gate: None, of_this_processor: PhantomData })
    }

    /// Returns the unit, which from now on obeys the gate: [`Slot::pause`](crate::slot::Slot::pause) pauses its traces,
    /// and [`Slot::resume`](crate::slot::Slot::resume) resumes them. It is the gate of this processor's slot.
    ///
    /// ```
    /// use pugmark_kernel::arch::PlainMsr;
    /// use pugmark_kernel::intel::pt::{PtTracer, PtUnit};
    /// use pugmark_kernel::lapic::X2Apic;
    /// use pugmark_kernel::lifecycle::Absent;
    /// use pugmark_kernel::slot::Slot;
    /// # use pugmark_kernel::{drain::KeepAll, memory::{Frames, PhysAddr, Request}};
    /// # struct Memory;
    /// # // SAFETY: it gives out no memory.
    /// # unsafe impl Frames for Memory {
    /// #     fn allocate(&self, _: Request) -> Option<PhysAddr> { None }
    /// #     unsafe fn free(&self, _: PhysAddr, _: Request) {}
    /// #     fn pointer(&self, _: PhysAddr) -> core::ptr::NonNull<u8> { core::ptr::NonNull::dangling() }
    /// # }
    ///
    /// type Tracer = PtTracer<PlainMsr, Memory, KeepAll>;
    /// type Registers = fn() -> (PlainMsr, X2Apic<PlainMsr>);
    ///
    /// /// The PT unit of a processor whose slot this is.
    /// fn unit(registers: PlainMsr, slot: &'static Slot<Tracer, Registers>) -> Result<PtUnit<PlainMsr>, Absent> {
    ///     Ok(PtUnit::of_this_processor(registers)?.gated_by(slot.gate()))
    /// }
    /// ```
    #[must_use]
    pub fn gated_by(self, gate: &'static PauseGate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// Returns the unit's capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &PtCapabilities {
        &self.capabilities
    }

    /// Returns the effect of VMX on a trace on this processor.
    pub fn vmx_tracing(&mut self) -> VmxTracing {
        VmxTracing::read(&mut self.msr, &self.capabilities)
    }

    /// Starts a trace. The first packets are a PSB+ (a PSB and the packets after it that give the decoder its state).
    ///
    /// Configuration and buffer are checked against the capabilities before any register is written. The order of
    /// writes is: STATUS = 0, OUTPUT_BASE, OUTPUT_MASK_PTRS, CR3_MATCH and ADDRn, CTL with TraceEn; then STATUS is
    /// checked. A stop restores the values that these registers had before, and sets CTL to 0.
    ///
    /// # Errors
    ///
    /// The configuration, the buffer or the processor refuses. Unit and buffer are returned, unless the unit cannot be
    /// stopped.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start<F: Frames>(
        self,
        config: &PtConfig,
        buffer: Buffer<F>,
    ) -> Result<PtRunning<M, F>, NotStarted<PtSession<M, F>>> {
        let checked = match self.check(config, &buffer) {
            Ok(checked) => checked,
            Err(refusal) => {
                let error = StartError::Refused(refusal);
                return Err(NotStarted::Off { unit: self, memory: buffer, error });
            }
        };
        PtRunning::start(PtSession::new(self, buffer, checked))
    }

    fn check<F: Frames>(&self, config: &PtConfig, buffer: &Buffer<F>) -> Result<Checked, PtRefusal> {
        buffer.check(&self.capabilities)?;
        Ok(config.checked(&self.capabilities)?)
    }

    /// Checks that no other owner uses the unit.
    pub(super) fn claim(&mut self) -> Result<(), StartError<PtRefusal>> {
        if let Some(in_use) = detect::other_recorder(&mut self.msr, &self.capabilities) {
            return Err(in_use.into());
        }
        let ctl: RtitCtl = self.msr.read()?;
        match ctl.contains(RtitCtl::TRACE_EN) {
            true => Err(InUse::ProcessorTrace { ctl }.into()),
            false => Ok(()),
        }
    }

    /// Writes the filters: the CR3 and the address ranges. TraceEn must be 0.
    pub(super) fn write_filters(&mut self, checked: &Checked) -> Result<(), GeneralProtection> {
        if let Some(cr3) = checked.cr3 {
            self.write(Cr3Match(cr3))?;
        }
        for (n, range) in (0..).zip(checked.ranges) {
            if let Some(range) = range {
                self.write_at(addr_a(n), range.first)?;
                self.write_at(addr_b(n), range.last)?;
            }
        }
        Ok(())
    }

    /// Returns the values in the registers of these filters.
    pub(super) fn read_filters(&mut self, checked: &Checked) -> Result<Checked, GeneralProtection> {
        let mut found = *checked;
        if let Some(cr3) = &mut found.cr3 {
            *cr3 = self.msr.read::<Cr3Match>()?.0;
        }
        for (n, range) in (0..).zip(found.ranges.iter_mut()) {
            if let Some(range) = range {
                (range.first, range.last) = (self.msr.read_at(addr_a(n))?, self.msr.read_at(addr_b(n))?);
            }
        }
        Ok(found)
    }

    /// Clears TraceEn. If the write raises #GP but the bit is 0, the unit is off: VMXON has cleared the bit, and until
    /// VMXOFF every write of the register raises #GP.
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Tracing of VMX Operations".
    pub(super) fn turn_off(&mut self, ctl: RtitCtl) -> Result<(), GeneralProtection> {
        let Err(fault) = self.write(ctl) else { return Ok(()) };
        match self.msr.read::<RtitCtl>() {
            Ok(ctl) if !ctl.contains(RtitCtl::TRACE_EN) => Ok(()),
            _ => Err(fault),
        }
    }

    /// Writes a register of the unit.
    pub(super) fn write<R: Register>(&mut self, value: R) -> Result<(), GeneralProtection> {
        self.write_at(R::AT, value)
    }

    fn write_at<R: RegisterValue>(
        &mut self,
        register: RegisterAt<R>,
        value: R,
    ) -> Result<(), GeneralProtection> {
        // SAFETY: this is a register of the PT unit. The processor writes only to memory that OUTPUT_BASE and the
        // tables name, which belongs to the buffer. The session owns the buffer with this unit until TraceEn is 0.
        unsafe { self.msr.write_at(register, value) }
    }
}

/// The registers of a unit that another owner had left on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOn {
    /// IA32_RTIT_CTL, with TraceEn.
    pub ctl: RtitCtl,
    /// IA32_RTIT_STATUS after TraceEn was cleared.
    pub status: RtitStatus,
    /// IA32_RTIT_OUTPUT_BASE then: the other owner's table, or its single range.
    pub base: OutputBase,
    /// IA32_RTIT_OUTPUT_MASK_PTRS then: the position of the trace.
    pub pointers: OutputMaskPtrs,
}

impl fmt::Display for LeftOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ctl, status, base, pointers } = self;
        let (ctl, status) = (ctl.bits(), status.bits());
        write!(f, "Intel PT was left on: control {ctl:#x}, status {status:#x}, output base {:#x}", base.0)?;
        write!(f, ", offset {:#x}, entry {}", pointers.offset(), pointers.entry())
    }
}

/// The reason why this configuration cannot be traced, or not into this memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtRefusal {
    /// The processor does not support the configuration.
    Config(PtConfigRefusal),
    /// The processor cannot trace into this buffer.
    Buffer(BufferError),
    /// The trace was made for a processor with other capabilities.
    OtherProcessor,
    /// STATUS.Error directly after the enable: the processor does not accept the memory or a table.
    Memory(OperationalError),
}

impl From<PtConfigRefusal> for PtRefusal {
    fn from(refusal: PtConfigRefusal) -> Self {
        Self::Config(refusal)
    }
}

impl From<BufferError> for PtRefusal {
    fn from(error: BufferError) -> Self {
        Self::Buffer(error)
    }
}

impl fmt::Display for PtRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(refusal) => refusal.fmt(f),
            Self::Buffer(error) => error.fmt(f),
            Self::OtherProcessor => f.write_str("the trace was made for a processor with other capabilities"),
            Self::Memory(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PtRefusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMsr;

    /// A trait with two implementations for types that are `Send`, so that naming the constant without choosing one
    /// does not compile.
    trait NotSend<Which> {
        const HOLDS: bool = true;
    }

    struct Ambiguous;

    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<Ambiguous> for T {}

    #[test]
    fn a_unit_and_what_comes_of_it_stay_on_their_processor() {
        fn is_send<T: Send>() {}
        is_send::<FakeMsr>();
        const { assert!(<PtUnit<FakeMsr> as NotSend<_>>::HOLDS) }
        // A running or stopped trace contains a unit.
    }
}
