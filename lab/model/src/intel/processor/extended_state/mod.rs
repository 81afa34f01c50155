//! XSAVES and XRSTORS of the registers of Intel PT, state component 8.
//!
//! Source: SDM vol. 1, Managing State Using the XSAVE Feature Set, "PT State", "Operation of XSAVES", "Operation of
//! XRSTORS", "XSAVE Header"; vol. 3, Intel Processor Trace, "Trace Configuration Context Switch Using XSAVES/XRSTORS".

#[cfg(test)]
mod tests;

use super::IntelProcessor;
use crate::intel::registers::{ctl, msr};
use crate::intel::unit::{Bus, TracingUnit};
use crate::{CpuidResult, GeneralProtection, PhysMemory, Retired};

/// The software's setup of the XSAVE feature set, for Intel PT.
#[derive(Debug, Default)]
pub(super) struct ExtendedState {
    /// The processor enumerates state component 8.
    manages_pt: bool,
    /// IA32_XSS.
    xss: u64,
}

/// IA32_XSS.
const IA32_XSS: u32 = 0xda0;
/// PT state in IA32_XSS and in the bitmaps of an XSAVE area.
const PT: u64 = 1 << 8;
/// The registers of the component, in their order.
const REGISTERS: [u32; 9] = [
    msr::IA32_RTIT_CTL,
    msr::IA32_RTIT_OUTPUT_BASE,
    msr::IA32_RTIT_OUTPUT_MASK_PTRS,
    msr::IA32_RTIT_STATUS,
    msr::IA32_RTIT_CR3_MATCH,
    msr::IA32_RTIT_ADDR0_A,
    msr::IA32_RTIT_ADDR0_A + 1,
    msr::IA32_RTIT_ADDR0_A + 2,
    msr::IA32_RTIT_ADDR0_A + 3,
];
/// The bytes that CPUID.0DH.8:EAX requires for the component; those after the registers are reserved.
const COMPONENT: usize = 128;
/// The offset of the header in an XSAVE area, and of the bytes in it that must be 0.
const HEADER: usize = 512;
const RESERVED: core::ops::Range<usize> = HEADER + 16..EXTENDED;
/// The offset of the extended region: of the first component that the compacted format has after the legacy ones.
const EXTENDED: usize = 576;

impl ExtendedState {
    /// Adds the enumeration of the feature set: XSAVES, the component among those of IA32_XSS, and its size.
    pub(super) fn cpuid(&self, leaf: u32, subleaf: u32, answer: CpuidResult) -> CpuidResult {
        if !self.manages_pt {
            return answer;
        }
        match (leaf, subleaf) {
            // XSAVE and OSXSAVE.
            (1, _) => CpuidResult { ecx: answer.ecx | 1 << 26 | 1 << 27, ..answer },
            (0x0d, 1) => CpuidResult { eax: answer.eax | 1 << 3, ecx: answer.ecx | PT as u32, ..answer },
            // ECX[0]: a supervisor component.
            (0x0d, 8) => CpuidResult { eax: COMPONENT as u32, ebx: 0, ecx: 1, edx: 0 },
            _ => answer,
        }
    }

    pub(super) fn owns_msr(&self, number: u32) -> bool {
        self.manages_pt && number == IA32_XSS
    }

    pub(super) const fn xss(&self) -> u64 {
        self.xss
    }

    pub(super) fn set_xss(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value & !PT != 0 {
            return Err(GeneralProtection);
        }
        self.xss = value;
        Ok(())
    }
}

impl IntelProcessor {
    /// Makes the processor enumerate XSAVES of PT state. The caller then executes XSAVES and XRSTORS by the methods
    /// below.
    #[must_use]
    pub fn with_pt_state(mut self) -> Self {
        self.extended_state.manages_pt = self.profile.has_pt();
        self
    }

    /// Executes the PT part of XSAVES, into these bytes of an XSAVE area, at least 704: `mask` is EDX:EAX, and `at` the
    /// instruction. Bits of `mask` for other components are ignored.
    ///
    /// It always saves the registers, although it could skip those that have not changed since an XRSTORS.
    pub fn xsaves(&mut self, area: &mut [u8], mask: u64, at: &Retired, mem: &mut dyn PhysMemory) {
        let requested = mask & self.extended_state.xss;
        let stepped = self.units_on();
        let mut saved = [0; REGISTERS.len()];
        if requested & PT != 0 {
            saved[0] = self.pt_register(REGISTERS[0]);
            // Only after that do the output registers hold the end of the trace.
            let off = saved[0] & !ctl::TRACE_EN;
            let bus = &mut Bus { mem, shared: &mut self.shared };
            self.pt.write_msr(msr::IA32_RTIT_CTL, off, at, bus).expect("clearing TraceEn is legal");
            for (value, number) in saved.iter_mut().zip(REGISTERS).skip(1) {
                *value = self.pt_register(number);
            }
            self.has_written(stepped, at, mem);
        }
        // PT state is never in its initial configuration: the low bits of IA32_RTIT_OUTPUT_MASK_PTRS read as ones.
        put(area, HEADER, requested);
        put(area, HEADER + 8, 1 << 63 | requested);
        if requested & PT != 0 {
            area[EXTENDED..EXTENDED + COMPONENT].fill(0);
            for (n, value) in saved.into_iter().enumerate() {
                put(area, EXTENDED + 8 * n, value);
            }
        }
    }

    /// Executes the PT part of XRSTORS, as [`IntelProcessor::xsaves`] does for XSAVES.
    ///
    /// # Errors
    ///
    /// XRSTORS raises #GP if TraceEn is set, the header is not legal, or a register rejects its value. Registers before
    /// that one have been loaded, and IA32_RTIT_CTL has not.
    pub fn xrstors(
        &mut self,
        area: &[u8],
        mask: u64,
        at: &Retired,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        let (in_use, format) = (get(area, HEADER), get(area, HEADER + 8));
        let components = format & !(1 << 63);
        let legal = format >> 63 == 1
            && components & !self.extended_state.xss == 0
            && in_use & !components == 0
            && area[RESERVED].iter().all(|&byte| byte == 0);
        if !legal {
            return Err(GeneralProtection);
        }
        if mask & self.extended_state.xss & PT == 0 {
            return Ok(());
        }
        let stepped = self.units_on();
        // IA32_RTIT_CTL is the last, because it turns the trace on. While it is on, the first write faults.
        for n in (1..REGISTERS.len()).chain([0]) {
            let value = if in_use & PT == 0 { 0 } else { get(area, EXTENDED + 8 * n) };
            let exists = self.pt.read_msr(REGISTERS[n], &self.shared).is_ok();
            if exists || value != 0 {
                let bus = &mut Bus { mem: &mut *mem, shared: &mut self.shared };
                self.pt.write_msr(REGISTERS[n], value, at, bus)?;
            }
        }
        self.has_written(stepped, at, mem);
        Ok(())
    }

    /// Returns a register of PT, or 0 if it does not exist.
    fn pt_register(&self, number: u32) -> u64 {
        self.pt.read_msr(number, &self.shared).unwrap_or(0)
    }
}

fn put(area: &mut [u8], offset: usize, value: u64) {
    area[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(area: &[u8], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&area[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}
