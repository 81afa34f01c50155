//! Taken branches, in the form that branch records need.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "Last Branch, Interrupt, and
//! Exception Recording (Processors based on Intel NetBurst Microarchitecture)", "LBR Stack": the meaning of the from
//! and to addresses.

use crate::branch::{DecodedInstruction, InstructionKind};
use crate::intel::settings::BranchLevel;
use crate::{Delivery, DeliveryKind, Retired};

/// A taken branch, an interrupt or an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenBranch {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) kind: TakenBranchKind,
    /// The privilege level for filters by level.
    pub(crate) cpl: u8,
    pub(crate) predicted: bool,
}

/// The kind of instruction or event that branched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBranchKind {
    Conditional,
    RelativeJump,
    IndirectJump,
    /// `to_next`: with a displacement of 0.
    RelativeCall {
        to_next: bool,
    },
    IndirectCall,
    Return,
    FarBranch,
    /// An interrupt, or an exception other than #DB.
    Event,
    /// A debug exception.
    DebugException,
}

/// The vector of #DB.
const DEBUG: u8 = 1;

impl TakenBranch {
    /// Returns the branch that an instruction took, if any. A conditional branch to the next instruction counts as not
    /// taken, because its outcome is not observable.
    pub(crate) fn of_instruction(
        retired: &Retired,
        decoded: DecodedInstruction,
        level: BranchLevel,
        predicted: bool,
    ) -> Option<Self> {
        let kind = match decoded.kind {
            InstructionKind::Conditional if retired.after.ip != decoded.next_ip(&retired.before) => {
                TakenBranchKind::Conditional
            }
            InstructionKind::DirectJump => TakenBranchKind::RelativeJump,
            InstructionKind::IndirectJump => TakenBranchKind::IndirectJump,
            InstructionKind::DirectCall { to_next } => TakenBranchKind::RelativeCall { to_next },
            InstructionKind::IndirectCall => TakenBranchKind::IndirectCall,
            InstructionKind::Return => TakenBranchKind::Return,
            InstructionKind::Far | InstructionKind::InterruptReturn => TakenBranchKind::FarBranch,
            InstructionKind::Conditional
            | InstructionKind::Other
            | InstructionKind::MovCr3
            | InstructionKind::Ptwrite { .. }
            | InstructionKind::Hlt
            | InstructionKind::Mwait => return None,
        };
        let cpl = level.choose(retired.before.cpl, retired.after.cpl);
        Some(Self { from: retired.before.ip, to: retired.after.ip, kind, cpl, predicted })
    }

    /// Returns the record of an interrupt or exception. The source of a trap is the instruction that caused it, which
    /// is the one that retired last, at `last_ip`.
    pub(crate) fn of_delivery(delivery: &Delivery, last_ip: u64, level: BranchLevel) -> Self {
        let from = match delivery.kind {
            DeliveryKind::Trap => last_ip,
            DeliveryKind::Interrupt
            | DeliveryKind::Nmi
            | DeliveryKind::Fault
            | DeliveryKind::SoftwareInterrupt => delivery.before.ip,
        };
        let debug = delivery.vector == DEBUG && delivery.kind.is_exception();
        let kind = if debug { TakenBranchKind::DebugException } else { TakenBranchKind::Event };
        let cpl = level.choose(delivery.before.cpl, delivery.after.cpl);
        Self { from, to: delivery.after.ip, kind, cpl, predicted: false }
    }
}
