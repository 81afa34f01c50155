//! The last branches, in registers: the Last Branch Record Stack (LBR), or branch sampling.
//!
//! Assumptions where the manual is unclear: interrupts and exceptions are far branches; if an overflow freezes the
//! stack, the branch that caused the overflow is still recorded; branch sampling records every control transfer, as
//! does the event that it samples.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Debug-Extension-Control MSR (DebugExtnCtl)", "Last Branch
//! Stack Registers", "Last Branch Record Stack"; for branch sampling PPR for AMD Family 19h Model 01h, as described by
//! Linux in `arch/x86/events/amd/brs.c`.

use super::profile::{LAST_BRANCHES, LastBranchKind};
use super::registers::{debug_extn, lbr, msr, sampling};
use super::{AmdProfile, AmdViolations, Errata};
use crate::GeneralProtection;
use crate::branch::InstructionKind;

/// A control transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchTransfer {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The privilege level of the target.
    pub(super) to_cpl: u8,
    pub(super) kind: InstructionKind,
    pub(super) mispredicted: bool,
}

#[derive(Debug)]
pub(super) struct LastBranches {
    records: Option<LastBranchKind>,
    /// DebugExtnCtl.
    control: u64,
    /// LastBranchStackSelect.
    select: u64,
    entries: [RecordedBranch; LAST_BRANCHES],
    /// Branch sampling: an overflow has started it, so its interrupt is held back.
    holds_interrupt: bool,
    /// Erratum 1452: branches to record before the next entry without one; `None`: there are no such entries.
    until_no_branch: Option<u32>,
}

/// Erratum 1452: the branches from one entry without a branch to the next.
const BRANCHES_BETWEEN: u32 = 8;
/// Erratum 1452: the bit of a target that only an entry without a branch has.
const NO_BRANCH: u64 = 1 << 61;

#[derive(Clone, Copy, Debug)]
struct RecordedBranch {
    from: u64,
    to: u64,
}

impl LastBranches {
    pub(super) fn new(profile: &AmdProfile, errata: Errata) -> Self {
        let entries = [RecordedBranch { from: 0, to: 0 }; LAST_BRANCHES];
        let control = match profile.branches {
            Some(LastBranchKind::Sampling) => sampling::ONES,
            _ => 0,
        };
        let until_no_branch = errata.has(Errata::LBR_ENTRIES_WITHOUT_BRANCH).then_some(BRANCHES_BETWEEN);
        Self {
            records: profile.branches,
            control,
            select: 0,
            entries,
            holds_interrupt: false,
            until_no_branch,
        }
    }

    pub(super) fn owns_msr(&self, number: u32) -> bool {
        match (self.records, number) {
            (None, _) => false,
            (Some(_), msr::DEBUG_EXTN_CTL) => true,
            (Some(records), msr::LBR_SELECT) => records == LastBranchKind::Stack,
            (Some(_), _) => self.entry(number).is_some(),
        }
    }

    /// Returns the entry of a register, and whether the register holds the target.
    fn entry(&self, number: u32) -> Option<(usize, bool)> {
        let offset = number.checked_sub(msr::LAST_BRANCH_STACK)? as usize;
        (offset / 2 < LAST_BRANCHES).then_some((offset / 2, offset % 2 == 1))
    }

    pub(super) fn read(&self, number: u32) -> u64 {
        match (number, self.entry(number)) {
            (_, Some((index, false))) => self.entries[index].from,
            (_, Some((index, true))) => self.entries[index].to,
            (msr::LBR_SELECT, None) => self.select,
            _ => self.control,
        }
    }

    /// Writes one of the registers. Returns whether a held-back interrupt is raised now.
    pub(super) fn write(
        &mut self,
        number: u32,
        value: u64,
        violations: &mut AmdViolations,
    ) -> Result<bool, GeneralProtection> {
        match (number, self.entry(number)) {
            (_, Some((index, false))) => self.entries[index].from = value,
            (_, Some((index, true))) => self.entries[index].to = value,
            (msr::LBR_SELECT, None) => self.select = value & lbr::SELECT,
            _ => return self.write_control(value, violations),
        }
        Ok(false)
    }

    fn write_control(
        &mut self,
        value: u64,
        violations: &mut AmdViolations,
    ) -> Result<bool, GeneralProtection> {
        if self.records == Some(LastBranchKind::Stack) {
            // All other bits must be zero.
            if value & !debug_extn::LBRSE != 0 {
                return Err(GeneralProtection);
            }
            self.control = value;
            return Ok(false);
        }
        violations.cleared_branch_bits += u32::from(value & sampling::ONES != sampling::ONES);
        self.control = value & sampling::ALL | sampling::ONES;
        let off = value & sampling::BRSMEN == 0;
        Ok(off && core::mem::take(&mut self.holds_interrupt))
    }

    /// Returns true if recording is on.
    pub(super) const fn is_on(&self) -> bool {
        self.control & self.enable() != 0
    }

    const fn enable(&self) -> u64 {
        match self.records {
            None => 0,
            Some(LastBranchKind::Stack) => debug_extn::LBRSE,
            Some(LastBranchKind::Sampling) => sampling::BRSMEN,
        }
    }

    /// Handles the overflow of a counter that interrupts. Returns whether branch sampling holds the interrupt back.
    pub(super) fn overflow(&mut self, counter: u32) -> bool {
        let samples = self.records == Some(LastBranchKind::Sampling) && self.is_on();
        if samples && !self.holds_interrupt {
            self.holds_interrupt = true;
            self.control = self.control & !sampling::PMC | u64::from(counter) << sampling::PMC_SHIFT;
        }
        samples
    }

    /// Records a control transfer that retired. `frozen`: the stack is frozen. Returns whether a held-back interrupt is
    /// raised now.
    pub(super) fn transfer(&mut self, transfer: &BranchTransfer, frozen: bool) -> bool {
        match self.records {
            Some(LastBranchKind::Stack) if self.is_on() && !frozen => self.push(transfer),
            Some(LastBranchKind::Sampling) if self.holds_interrupt => return self.append(transfer),
            _ => {}
        }
        false
    }

    /// Turns the stack off, as #DB does.
    pub(super) fn debug_exception(&mut self) {
        if self.records == Some(LastBranchKind::Stack) {
            self.control &= !debug_extn::LBRSE;
        }
    }

    /// Adds a branch as entry 0, which is always the newest.
    fn push(&mut self, transfer: &BranchTransfer) {
        let level = if transfer.to_cpl == 0 { lbr::CPL_EQ_0 } else { lbr::CPL_GT_0 };
        if self.select & (level | suppressed_by(transfer.kind)) != 0 {
            return;
        }
        self.entries.rotate_right(1);
        let mispredicted = if transfer.mispredicted { lbr::MISPREDICT } else { 0 };
        self.entries[0] = RecordedBranch {
            from: transfer.from & lbr::ADDRESS | mispredicted,
            // The model does not speculate, so the speculation bit is never set.
            to: transfer.to & lbr::ADDRESS | lbr::VALID,
        };
        self.push_no_branch(transfer);
    }

    /// Adds an entry without a branch at the places of erratum 1452.
    fn push_no_branch(&mut self, transfer: &BranchTransfer) {
        let Some(left) = &mut self.until_no_branch else { return };
        *left -= 1;
        if *left == 0 {
            *left = BRANCHES_BETWEEN;
            self.entries.rotate_right(1);
            let to = !transfer.to & lbr::ADDRESS | lbr::VALID | lbr::SPECULATIVE | NO_BRANCH;
            self.entries[0] = RecordedBranch { from: transfer.to & lbr::ADDRESS, to };
        }
    }

    /// Adds a branch after the previous one. Returns true when all entries are filled.
    fn append(&mut self, transfer: &BranchTransfer) -> bool {
        let index = (self.control & sampling::MSROFF) >> sampling::MSROFF_SHIFT;
        self.entries[index as usize] = RecordedBranch { from: transfer.from, to: transfer.to & sampling::TO };
        let next = (index + 1) % LAST_BRANCHES as u64;
        self.control = self.control & !sampling::MSROFF | next << sampling::MSROFF_SHIFT | sampling::VB;
        if next != 0 {
            return false;
        }
        self.control &= !sampling::BRSMEN;
        core::mem::take(&mut self.holds_interrupt)
    }
}

/// Returns the bit of LastBranchStackSelect that excludes branches of a kind.
const fn suppressed_by(kind: InstructionKind) -> u64 {
    match kind {
        InstructionKind::Conditional => lbr::JCC,
        InstructionKind::DirectCall { .. } => lbr::CALL_NEAR_REL,
        InstructionKind::IndirectCall => lbr::CALL_NEAR_IND,
        InstructionKind::Return => lbr::RET_NEAR,
        InstructionKind::IndirectJump => lbr::JMP_NEAR_IND,
        InstructionKind::DirectJump => lbr::JMP_NEAR_REL,
        _ => lbr::FAR_BRANCH,
    }
}
