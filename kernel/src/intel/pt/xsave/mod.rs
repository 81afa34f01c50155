//! The registers of a trace, saved and restored by XSAVES and XRSTORS.
//!
//! Source: SDM vol. 1, Managing State Using the XSAVE Feature Set, "PT State", "XSAVE Header", "Operation of XSAVES",
//! "Operation of XRSTORS"; vol. 3, Intel Processor Trace, "Trace Configuration Context Switch Using XSAVES/XRSTORS".

#[cfg(test)]
mod tests;

use crate::cpuid::CpuIdReader;
use crate::msr::{
    Cr3Match, GeneralProtection, Msr, OutputBase, OutputMaskPtrs, Register, RtitCtl, RtitStatus, TypedMsr,
    Xss, addr_a, addr_b,
};
use core::fmt;

/// XSAVES and XRSTORS, with PT state alone in the instruction mask (EDX:EAX is 100H).
///
/// # Safety
///
/// An implementation executes the instruction on the logical processor whose registers the [`Msr`] beside it accesses,
/// and nothing else that changes IA32_RTIT_CTL.TraceEn. XSAVES must clear that bit if it saves PT state.
pub unsafe trait PtStateInstructions {
    /// Executes XSAVES.
    fn xsaves(&mut self, area: &mut PtStateArea);

    /// Executes XRSTORS. Returns `false` if it raised #GP(0): then TraceEn is 0.
    ///
    /// # Safety
    ///
    /// As for [`Msr::wrmsr`], for each register in the area.
    unsafe fn xrstors(&mut self, area: &PtStateArea) -> bool;
}

/// An XSAVE area in the compacted format with PT state alone.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct PtStateArea {
    bytes: [u8; Self::SIZE],
}

impl PtStateArea {
    /// The area's size in bytes: the legacy region, the header, and the component.
    pub const SIZE: usize = Self::COMPONENT + Self::COMPONENT_SIZE;

    const XSTATE_BV: usize = 512;
    const XCOMP_BV: usize = 520;
    const COMPONENT: usize = 576;
    const COMPONENT_SIZE: usize = 128;
    /// XCOMP_BV\[63\]: the compacted format.
    const COMPACTED: u64 = 1 << 63;

    const fn new() -> Self {
        Self { bytes: [0; Self::SIZE] }
    }

    /// Returns the bytes that the instructions read and write.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::SIZE] {
        &self.bytes
    }

    /// Returns the bytes that the instructions read and write.
    pub const fn bytes_mut(&mut self) -> &mut [u8; Self::SIZE] {
        &mut self.bytes
    }

    /// Returns whether XSAVES has saved PT state here, or found that it is the initial one.
    fn has_pt(&self) -> bool {
        self.get(Self::XCOMP_BV) & Xss::PT.bits() != 0
    }

    /// Writes zeros to fields that XSAVES left out because they have their initial values, and marks them as in use.
    fn complete(&mut self) {
        if self.get(Self::XSTATE_BV) & Xss::PT.bits() == 0 {
            self.bytes[Self::COMPONENT..].fill(0);
        }
        self.put(Self::XSTATE_BV, Xss::PT.bits());
        self.put(Self::XCOMP_BV, Self::COMPACTED | Xss::PT.bits());
    }

    fn get(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes[offset..offset + 8]);
        u64::from_le_bytes(bytes)
    }

    fn put(&mut self, offset: usize, value: u64) {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
}

impl fmt::Debug for PtStateArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PtStateArea")
    }
}

/// Registers of a processor, of which those of Intel PT are accessed together: one XSAVES ends a stretch of a trace and
/// reads its position, and one XRSTORS begins the next. [`PtRunning::switch`](super::PtRunning::switch), which
/// otherwise takes 5 WRMSR and 7 RDMSR, and more for filters, takes one of each, and four RDMSR to check whose trace is
/// on.
///
/// Everything else is as with any [`Msr`]:
///
/// ```
/// use pugmark_kernel::cpuid::this_processor;
/// use pugmark_kernel::intel::pt::{PtStateInstructions, PtUnit, XsavedMsr};
/// use pugmark_kernel::{lifecycle::Absent, msr::Msr};
///
/// /// Uses XSAVES where the kernel has set IA32_XSS\[8\], and says so where it does not.
/// fn unit<M: Msr, I: PtStateInstructions>(msr: M, instructions: I) -> Result<PtUnit<XsavedMsr<M, I>>, Absent> {
///     let registers = XsavedMsr::new(this_processor, msr, instructions);
///     if let Some(why) = registers.unused() {
///         println!("traces are switched by WRMSR: {why}");
///     }
///     PtUnit::of_this_processor(registers)
/// }
/// ```
///
/// The kernel sets IA32_XSS\[8\], and leaves bit 8 out of the mask with which it saves the state of its threads: the
/// area here is the driver's own, and an XRSTORS of another one raises #GP while a trace is on. Values that the
/// processor refuses are refused when the trace resumes, as a WRMSR of IA32_RTIT_CTL that faults, and no longer when
/// they are written.
///
/// If the kernel clears the bit while a trace runs, the registers are accessed one at a time until it is set again.
#[derive(Debug)]
pub struct XsavedMsr<M, I> {
    msr: M,
    instructions: I,
    area: PtStateArea,
    unused: Option<NoPtState>,
    /// True if the trace is off, and the driver's reads and writes go to the area.
    held: bool,
    /// True if the driver has set TraceEn, and nothing was seen to clear it.
    lit: bool,
}

impl<M: Msr, I: PtStateInstructions> XsavedMsr<M, I> {
    /// Returns the registers, and checks whether this processor's XSAVES saves PT state; the registers work either way.
    #[must_use]
    pub fn new(cpuid: impl CpuIdReader, mut msr: M, instructions: I) -> Self {
        let unused = NoPtState::find(cpuid, &mut msr).err();
        Self { msr, instructions, area: PtStateArea::new(), unused, held: false, lit: false }
    }

    /// Returns the reason why XSAVES is not used; `None` if it is used.
    #[must_use]
    pub const fn unused(&self) -> Option<NoPtState> {
        self.unused
    }

    /// Clears TraceEn, and saves the registers. Returns `false` if nothing was saved.
    fn save(&mut self) -> bool {
        self.instructions.xsaves(&mut self.area);
        self.held = self.area.has_pt();
        if self.held {
            self.area.complete();
        }
        self.held
    }

    /// Loads all registers, IA32_RTIT_CTL with TraceEn among them.
    ///
    /// # Safety
    ///
    /// As for [`Msr::wrmsr`], for each register in the area.
    unsafe fn restore(&mut self) -> Result<(), GeneralProtection> {
        let ctl = self.area.get(PtStateArea::COMPONENT);
        // SAFETY: the caller promises this.
        if unsafe { self.instructions.xrstors(&self.area) } {
            self.held = false;
            self.lit = ctl & RtitCtl::TRACE_EN.bits() != 0;
            return Ok(());
        }
        Err(GeneralProtection { address: RtitCtl::ADDRESS, written: Some(ctl) })
    }
}

// SAFETY: the registers are those of `msr`. Those that are held in the area are loaded before the trace is on, by
// instructions of the same processor; until then they have no effect. TraceEn is cleared before a write of a value
// without it returns: by XSAVES, or by `msr`.
unsafe impl<M: Msr, I: PtStateInstructions> Msr for XsavedMsr<M, I> {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        if address == RtitCtl::ADDRESS {
            // The area does not say whether the unit is on.
            let ctl = self.msr.rdmsr(address)?;
            let on = ctl & RtitCtl::TRACE_EN.bits() != 0;
            self.lit &= on;
            // The registers are those of another owner's trace: the values held here must not be loaded.
            self.held &= !on;
            return Ok(ctl);
        }
        match place(address) {
            Some(offset) if self.held => Ok(self.area.get(offset)),
            _ => self.msr.rdmsr(address),
        }
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        let trace_en = RtitCtl::TRACE_EN.bits();
        match place(address) {
            Some(offset) if self.held => {
                self.area.put(offset, value);
                // Also without TraceEn, which a VM entry sets.
                match address == RtitCtl::ADDRESS {
                    // SAFETY: the caller promises this for the value, and has for the others.
                    true => unsafe { self.restore() },
                    false => Ok(()),
                }
            }
            Some(offset) if address == RtitCtl::ADDRESS => {
                let was_lit = core::mem::replace(&mut self.lit, value & trace_en != 0);
                if was_lit && !self.lit && self.unused.is_none() && self.save() {
                    self.area.put(offset, value);
                    return Ok(());
                }
                // SAFETY: the caller promises this.
                unsafe { self.msr.wrmsr(address, value) }
            }
            // SAFETY: the caller promises this.
            _ => unsafe { self.msr.wrmsr(address, value) },
        }
    }
}

/// The registers of PT state, in the order of the component.
const REGISTERS: [u32; 9] = [
    RtitCtl::ADDRESS,
    OutputBase::ADDRESS,
    OutputMaskPtrs::ADDRESS,
    RtitStatus::ADDRESS,
    Cr3Match::ADDRESS,
    addr_a(0).address(),
    addr_b(0).address(),
    addr_a(1).address(),
    addr_b(1).address(),
];

/// Returns a register's place in the area; `None` if the register is not part of PT state.
fn place(address: u32) -> Option<usize> {
    let n = REGISTERS.iter().position(|&register| register == address)?;
    Some(PtStateArea::COMPONENT + 8 * n)
}

/// The reason why XSAVES does not save the registers of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPtState {
    /// `CPUID.1:ECX[27]` (OSXSAVE) is 0: the kernel has not enabled the XSAVE feature set.
    Disabled,
    /// `CPUID.0DH.1:EAX[3]` is 0: there is no XSAVES.
    NoXsaves,
    /// `CPUID.0DH.1:ECX[8]` is 0: XSAVES does not know PT state.
    NoComponent,
    /// PT state is larger than the registers that this driver knows.
    Size {
        /// `CPUID.0DH.8:EAX`.
        bytes: u32,
    },
    /// `IA32_XSS[8]` is 0: the kernel has not enabled PT state.
    NotEnabled {
        /// IA32_XSS.
        xss: u64,
    },
    /// IA32_XSS cannot be read.
    Fault(GeneralProtection),
}

impl NoPtState {
    fn find(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<(), Self> {
        if cpuid.cpuid2(1, 0).ecx >> 27 & 1 == 0 {
            return Err(Self::Disabled);
        }
        let features = cpuid.cpuid2(0x0d, 1);
        if features.eax >> 3 & 1 == 0 {
            return Err(Self::NoXsaves);
        }
        if features.ecx >> 8 & 1 == 0 {
            return Err(Self::NoComponent);
        }
        let bytes = cpuid.cpuid2(0x0d, 8).eax;
        if bytes as usize > PtStateArea::COMPONENT_SIZE {
            return Err(Self::Size { bytes });
        }
        let xss: Xss = msr.read().map_err(Self::Fault)?;
        match xss.contains(Xss::PT) {
            true => Ok(()),
            false => Err(Self::NotEnabled { xss: xss.bits() }),
        }
    }
}

impl fmt::Display for NoPtState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("CPUID.1:ECX[27] (OSXSAVE) is 0"),
            Self::NoXsaves => f.write_str("CPUID.0DH.1:EAX[3] (XSAVES) is not there"),
            Self::NoComponent => f.write_str("CPUID.0DH.1:ECX[8] (PT state in IA32_XSS) is not there"),
            Self::Size { bytes } => write!(f, "PT state has {bytes} bytes: CPUID.0DH.8:EAX"),
            Self::NotEnabled { xss } => write!(f, "IA32_XSS is {xss:#x}: bit 8 (PT state) is 0"),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for NoPtState {}
