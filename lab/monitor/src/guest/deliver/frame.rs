//! The frame that a delivery pushes.

use crate::guest::cpu::{Cpu, rflags};
use crate::guest::event::{Event, SoftwareKind};
use crate::guest::exception::ExceptionKind;

/// The frame that a delivery pushes, and the marks of its faults.
pub(super) struct EventFrame {
    pub(super) vector: u8,
    pub(super) error_code: Option<u32>,
    /// The gate's DPL must not be below the CPL.
    pub(super) checks_dpl: bool,
    /// Bit 0 of the error code of a fault during the delivery: the event was external to the program.
    pub(super) ext: u32,
    pub(super) return_rip: u64,
    pub(super) rflags: u64,
}

impl EventFrame {
    pub(super) fn new(cpu: &Cpu, event: &Event) -> Self {
        let mut frame = Self {
            vector: event.vector(),
            error_code: None,
            checks_dpl: false,
            ext: 1,
            return_rip: cpu.rip,
            rflags: cpu.rflags,
        };
        match event {
            Event::Interrupt { .. } | Event::Nmi => {}
            Event::Exception(exception) => {
                frame.error_code = exception.error_code;
                if exception.kind() == ExceptionKind::Fault {
                    frame.rflags |= rflags::RF;
                }
            }
            Event::Software { kind, length, .. } => {
                if *kind != SoftwareKind::Int1 {
                    frame.checks_dpl = true;
                    frame.ext = 0;
                }
                frame.return_rip = cpu.rip_after(*length);
                frame.rflags &= !rflags::RF;
            }
        }
        frame
    }

    /// Returns the error code that names the gate.
    pub(super) fn gate_error(&self) -> u32 {
        u32::from(self.vector) * 8 + 2 + self.ext
    }

    /// Returns RFLAGS for the handler. AC is not changed.
    pub(super) fn handler_rflags(&self, clears_if: bool) -> u64 {
        let cleared = rflags::TF | rflags::NT | rflags::RF | rflags::VM;
        self.rflags & !cleared & !if clears_if { rflags::IF } else { 0 }
    }
}
