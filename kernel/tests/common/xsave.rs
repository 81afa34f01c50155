//! XSAVES and XRSTORS of the machine's processor.

use super::{HANDLER, Machine, Registers, kernel};
use pugmark_kernel::intel::pt::{PtStateArea, PtStateInstructions, XsavedMsr};
use pugmark_model as model;

/// The machine's registers, of which XSAVES saves those of a trace.
pub(crate) type Saved = XsavedMsr<Registers, Registers>;

/// IA32_XSS, and PT state in it.
const XSS: u32 = 0xda0;
const PT: u64 = 1 << 8;

impl Machine {
    /// Makes a machine whose XSAVES saves PT state, which the kernel has enabled.
    pub(crate) fn with_pt_state(profile: &str, settings: model::intel::IntelSettings, bytes: usize) -> Self {
        let machine = Self::with_memory(profile, settings, bytes);
        let profile = model::intel::IntelProfile::by_name(profile).unwrap();
        let processor = model::intel::IntelProcessor::new(profile, settings).with_pt_state();
        machine.state.borrow_mut().processor = processor;
        machine.enable_pt_state(true);
        machine
    }

    /// Sets IA32_XSS.
    pub(crate) fn enable_pt_state(&self, on: bool) {
        let mut state = self.state.borrow_mut();
        let value = if on { PT } else { 0 };
        let wrmsr = Self::instruction(state.tsc, &[0x0f, 0x30]);
        model::Processor::write_msr(&mut state.processor, XSS, value, &wrmsr, &mut &*self.ram).unwrap();
    }

    /// Returns the registers with XSAVES in use.
    pub(crate) fn saved(&self) -> Saved {
        let saved =
            XsavedMsr::new(|leaf, subleaf| self.cpuid(leaf, subleaf), self.registers(), self.registers());
        assert_eq!(saved.unused(), None);
        saved
    }

    /// Returns an instruction of the driver.
    fn instruction(tsc: u64, bytes: &'static [u8]) -> model::Retired<'static> {
        let after = kernel(HANDLER + 0x10 + bytes.len() as u64);
        model::Retired { before: kernel(HANDLER + 0x10), after, bytes, tsc, operand: 0 }
    }
}

// SAFETY: the instructions run on the machine's only processor.
unsafe impl PtStateInstructions for Registers {
    fn xsaves(&mut self, area: &mut PtStateArea) {
        self.0.disturbed();
        let mut state = self.0.state.borrow_mut();
        // The instruction does not fault.
        state.accesses += 1;
        state.in_kernel = true;
        let xsaves = Machine::instruction(state.tsc, &[0x48, 0x0f, 0xc7, 0x2f]);
        state.processor.xsaves(area.bytes_mut(), PT, &xsaves, &mut &*self.0.ram);
    }

    unsafe fn xrstors(&mut self, area: &PtStateArea) -> bool {
        self.0.disturbed();
        let mut state = self.0.state.borrow_mut();
        if state.access().is_err() {
            return false;
        }
        state.in_kernel = true;
        let xrstors = Machine::instruction(state.tsc, &[0x48, 0x0f, 0xc7, 0x1f]);
        state.processor.xrstors(area.bytes(), PT, &xrstors, &mut &*self.0.ram).is_ok()
    }
}
