//! The output of packet bytes to memory. Source: SDM vol. 3, Intel Processor Trace, "Trace Output".

mod operational_error;
mod single_range;
mod topa;

use crate::PhysMemory;
use crate::intel::registers::ctl;
use crate::intel::{IntelProfile, IntelViolations};
pub use operational_error::OperationalError;
use single_range::SingleRange;
use topa::Topa;

/// The result of writing bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutputResult {
    /// Number of bytes that left the internal buffer.
    pub(crate) count: usize,
    /// A region with INT was filled.
    pub(crate) int: bool,
    /// A region with STOP was filled.
    pub(crate) stop: bool,
    /// An operational error.
    pub(crate) error: Option<OperationalError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputScheme {
    /// No output: TraceEn is clear, or it was set while Stopped or Error was set.
    Off,
    SingleRange,
    Topa,
    /// The trace transport subsystem: the bytes leave the model.
    Fabric,
}

#[derive(Debug)]
pub(crate) struct Output {
    scheme: OutputScheme,
    base: u64,
    mask_ptrs: u64,
    /// The base and pointers that RDMSR returns while TraceEn is set: those before the last write.
    stale: (u64, u64),
    range: Option<SingleRange>,
    topa: Topa,
}

impl Output {
    pub(crate) fn new(profile: &IntelProfile) -> Self {
        Self {
            scheme: OutputScheme::Off,
            base: 0,
            mask_ptrs: 0x7f,
            stale: (0, 0x7f),
            range: None,
            topa: Topa::new(profile),
        }
    }

    /// Returns IA32_RTIT_OUTPUT_BASE as RDMSR does.
    pub(crate) fn base(&self) -> u64 {
        if self.scheme == OutputScheme::Off { self.base } else { self.stale.0 }
    }

    pub(crate) fn set_base(&mut self, value: u64) {
        self.base = value;
    }

    /// Returns IA32_RTIT_OUTPUT_MASK_PTRS as RDMSR does.
    pub(crate) fn mask_ptrs(&self) -> u64 {
        if self.scheme == OutputScheme::Off { self.mask_ptrs } else { self.stale.1 }
    }

    pub(crate) fn set_mask_ptrs(&mut self, value: u64) {
        self.mask_ptrs = value | 0x7f;
    }

    /// Starts output: TraceEn was set with Stopped and Error clear.
    pub(crate) fn start(&mut self, ctl: u64, mem: &dyn PhysMemory) -> Result<(), OperationalError> {
        self.stale = (self.base, self.mask_ptrs);
        if ctl & ctl::FABRIC_EN != 0 {
            self.scheme = OutputScheme::Fabric;
        } else if ctl & ctl::TOPA != 0 {
            self.topa.start(self.base, self.mask_ptrs, mem)?;
            self.scheme = OutputScheme::Topa;
        } else {
            self.range = Some(SingleRange::new(self.base, self.mask_ptrs)?);
            self.scheme = OutputScheme::SingleRange;
        }
        Ok(())
    }

    /// Writes bytes from the front of `bytes`, up to the first event that must be reported.
    pub(crate) fn write(
        &mut self,
        bytes: &[u8],
        mem: &mut dyn PhysMemory,
        violations: &mut IntelViolations,
    ) -> OutputResult {
        self.stale = self.pointers();
        let count = bytes.len();
        match self.scheme {
            OutputScheme::Off | OutputScheme::Fabric => OutputResult { count, ..OutputResult::default() },
            OutputScheme::SingleRange => {
                let missed = &mut violations.writes_outside_memory;
                let count = self.range.as_mut().map_or(count, |range| range.write(bytes, mem, missed));
                OutputResult { count, ..OutputResult::default() }
            }
            OutputScheme::Topa => match self.topa.write(bytes, mem, violations) {
                Ok((count, filled)) => {
                    OutputResult { count, int: filled.int, stop: filled.stop, error: None }
                }
                Err((count, error)) => OutputResult { count, error: Some(error), ..OutputResult::default() },
            },
        }
    }

    /// Ends output when TraceEn was cleared, and sets the MSRs to their final values.
    pub(crate) fn finish(&mut self, mem: &dyn PhysMemory, violations: &mut IntelViolations) {
        (self.base, self.mask_ptrs) = self.pointers();
        if self.scheme == OutputScheme::Topa {
            self.topa.finish(mem, violations);
        }
        self.scheme = OutputScheme::Off;
        self.range = None;
    }

    fn pointers(&self) -> (u64, u64) {
        match self.scheme {
            OutputScheme::Off | OutputScheme::Fabric => (self.base, self.mask_ptrs),
            OutputScheme::SingleRange => {
                (self.base, self.range.as_ref().map_or(self.mask_ptrs, SingleRange::mask_ptrs))
            }
            OutputScheme::Topa => self.topa.pointers(),
        }
    }
}
