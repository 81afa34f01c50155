//! IA32_DS_AREA, and the accesses to the save area (the DS area) to which the register points.
//!
//! The save area is in linear memory. It names two buffers, one of branch records and one of samples. `bts` and `pebs`
//! store their records through this module, which translates the address of each page, counts violations of its rules,
//! and keeps the page fault if there is one. The rule for writes of IA32_DS_AREA is here too.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "BTS and DS Save Area" and
//! "Setting Up the DS Save Area"; vol. 4, the table "IA-32 Architectural MSRs", IA32_DS_AREA.

mod access;
#[cfg(test)]
mod tests;

use pugmark_decoder_core::ds::Width;

use crate::intel::IntelProfile;
use crate::memory::PageFault;
use crate::{Context, Delivery, ExecMode, GeneralProtection};

const PAGE_FAULT: u8 = 14;

/// The register, and the outcome of the last accesses to memory.
#[derive(Debug)]
pub(crate) struct Ds {
    base: u64,
    dtes64: bool,
    /// An access that faulted: nothing more is stored until its #PF is delivered.
    fault: Option<PageFault>,
    /// The #PF that is being delivered. It does not make a branch record, which would fault again.
    delivering: Option<PageFault>,
    /// The page of the management area and the page of a buffer, each with its last page frame.
    last_frames: [Option<(u64, u64)>; 2],
}

/// One of the two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DsBuffer {
    Bts,
    Pebs,
}

impl Ds {
    pub(crate) fn new(profile: &IntelProfile) -> Self {
        let dtes64 = profile.debug_store.as_ref().is_some_and(|store| store.dtes64);
        Self { base: 0, dtes64, fault: None, delivering: None, last_frames: [None; 2] }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Writes IA32_DS_AREA. Outside IA-32e mode bits 63:32 are reserved. Code of 16 or 32 bits counts as outside,
    /// because it cannot be distinguished from code in compatibility mode.
    pub(crate) fn write_base(&mut self, value: u64, at: &Context) -> Result<(), GeneralProtection> {
        let legal = match at.mode {
            ExecMode::Bits64 => ((value << 16) as i64 >> 16) as u64 == value,
            ExecMode::Bits16 | ExecMode::Bits32 => value >> 32 == 0,
        };
        if !legal {
            return Err(GeneralProtection);
        }
        self.base = value;
        self.last_frames = [None; 2];
        Ok(())
    }

    pub(crate) fn width(&self, mode: ExecMode) -> Width {
        Width::of(self.dtes64, mode == ExecMode::Bits64)
    }

    /// Takes the page fault of an access, to be delivered as #PF.
    pub(crate) fn take_fault(&mut self) -> Option<PageFault> {
        let fault = self.fault.take();
        self.delivering = fault.or(self.delivering);
        fault
    }

    /// Returns true if `delivery` is the #PF of an access to the save area.
    pub(crate) fn delivers_fault(&mut self, delivery: &Delivery) -> bool {
        let fault = self.delivering.take();
        delivery.vector == PAGE_FAULT && fault.is_some_and(|fault| delivery.cr2 == Some(fault.address))
    }
}
