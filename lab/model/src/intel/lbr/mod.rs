//! The last branch record (LBR) stack: registers that hold the most recent taken branches.
//!
//! The unit owns the stack's registers, MSR_LBR_SELECT and the registers of the last exception. `write_msr` here has
//! the rules for the registers of each processor and the values that they accept. `filter.rs` has the rules of
//! MSR_LBR_SELECT, `stack.rs` the records, which the samples of `pebs` read as well. IA32_DEBUGCTL.LBR switches the
//! stack on (`intel/debugctl.rs`).
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "LBR Stack" of each
//! microarchitecture, "LBR Stack and Intel 64 Processors", "Filtering of Last Branch Records", "Last Exception
//! Records", "LBR Stack Enhancement" and "MSR_LBR_INFO_x MSR".

mod filter;
pub(crate) mod stack;
#[cfg(test)]
mod tests;

use crate::intel::IntelProfile;
use crate::intel::profile::LbrProfile;
use crate::intel::registers::{LBR_FRZ, msr};
use crate::intel::taken_branch::{TakenBranch, TakenBranchKind};
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::{Context, Delivery, GeneralProtection, Retired};
use filter::BranchFilter;
use stack::{LastBranch, LbrStack};

/// MISPRED in MSR_LASTBRANCH_x_FROM_IP or MSR_LBR_INFO_x.
const MISPRED: u64 = 1 << 63;
/// MSR_LBR_INFO_x: bits 60:16 are reserved.
const INFO_RESERVED: u64 = 0x1fff_ffff_ffff_0000;
/// IA32_PERF_CAPABILITIES\[5:0\]: linear addresses. In the other formats addresses are offsets in the code segment.
const FORMAT_LIP: u8 = 1;
/// MISPRED is in the FROM register.
const FORMAT_FLAGS: u8 = 3;
/// The same with IN_TSX and TSX_ABORT in bits 62:61. The modelled processors lack TSX: in a recorded address these bits
/// are 0, and in a written one they must equal bit 47.
const FORMAT_FLAGS_TSX: u8 = 4;
/// IN_TSX and TSX_ABORT.
const TSX: u64 = 1 << 62 | 1 << 61;

/// The stack's registers except the records. In a profile without a stack there are none.
#[derive(Debug)]
pub(crate) struct Lbr {
    stack: Option<&'static LbrProfile>,
    select: BranchFilter,
    /// The last branch, and (in `last_before_exception`) the one before the last exception or interrupt.
    last: LastBranch,
    last_before_exception: LastBranch,
    /// The time of the last record.
    tsc: u64,
}

/// One of the registers.
enum LbrRegister {
    From(usize),
    To(usize),
    Info(usize),
    Tos,
    Select,
    ExceptionFrom,
    ExceptionTo,
}

impl Lbr {
    pub(crate) fn new(profile: &'static IntelProfile) -> Self {
        Self {
            stack: profile.lbr.as_ref(),
            select: BranchFilter::default(),
            last: LastBranch::default(),
            last_before_exception: LastBranch::default(),
            tsc: 0,
        }
    }

    fn register(&self, number: u32) -> Option<(&'static LbrProfile, LbrRegister)> {
        let stack = self.stack?;
        let of = |first: u32| number.checked_sub(first).filter(|index| *index < stack.entries);
        let index = |index: u32| index as usize;
        let register = if let Some(at) = of(stack.from) {
            LbrRegister::From(index(at))
        } else if let Some(at) = of(stack.to) {
            LbrRegister::To(index(at))
        } else if let Some(at) = stack.info.and_then(of) {
            LbrRegister::Info(index(at))
        } else if number == stack.tos {
            LbrRegister::Tos
        } else if number == msr::MSR_LBR_SELECT && stack.select != 0 {
            LbrRegister::Select
        } else if number == stack.ler {
            LbrRegister::ExceptionFrom
        } else if number == stack.ler + 1 {
            LbrRegister::ExceptionTo
        } else {
            return None;
        };
        Some((stack, register))
    }

    /// Records a branch from code in the state `before` to code in the state `after`.
    fn record(
        &mut self,
        stack: &LbrProfile,
        taken: &TakenBranch,
        (before, after): (Context, Context),
        tsc: u64,
        bus: &mut Bus,
    ) {
        if stack.excludes_tr && bus.shared.debugctl.tr() {
            bus.shared.violations.lbr_undefined += 1;
            return;
        }
        if !self.select.is_valid() {
            bus.shared.violations.lbr_undefined += 1;
            return;
        }
        if self.select.flushes(taken) {
            bus.shared.last_branches.flush();
            return;
        }
        if !self.select.captures(taken, stack.jumps_include_calls) {
            return;
        }
        let shown = match stack.format {
            FORMAT_LIP => *taken,
            _ => {
                let from = Context { ip: taken.from, ..before }.effective().ip;
                TakenBranch { from, to: after.effective().ip, ..*taken }
            }
        };
        let entry = self.entry(stack, &shown, tsc);
        bus.shared.last_branches.push(entry);
        self.last = LastBranch { from: taken.from, to: taken.to, info: 0 };
    }

    fn entry(&mut self, stack: &LbrProfile, taken: &TakenBranch, tsc: u64) -> LastBranch {
        let branch = !matches!(taken.kind, TakenBranchKind::Event | TakenBranchKind::DebugException);
        let mispredicted = if branch && !taken.predicted { MISPRED } else { 0 };
        let TakenBranch { from, to, .. } = *taken;
        let cycles = tsc.saturating_sub(core::mem::replace(&mut self.tsc, tsc)).min(0xffff);
        match (stack.info, stack.format) {
            (Some(_), _) => LastBranch { from, to, info: mispredicted | cycles },
            // Bits 62:48 are the sign of bit 47.
            (None, FORMAT_FLAGS) => LastBranch { from: from & !MISPRED | mispredicted, to, info: 0 },
            // Bits 60:48 are the sign of bit 47.
            (None, FORMAT_FLAGS_TSX) => {
                LastBranch { from: from & !(MISPRED | TSX) | mispredicted, to, info: 0 }
            }
            (None, _) => LastBranch { from, to, info: 0 },
        }
    }
}

/// Returns true if bits 62:48 (`bits` = 63) or 63:48 (`bits` = 64) are the sign of bit 47.
fn is_sign_extended(value: u64, bits: u32) -> bool {
    let extended = ((value << 16) as i64 >> 16) as u64;
    (extended ^ value) << (64 - bits) == 0
}

impl TracingUnit for Lbr {
    fn owns_msr(&self, number: u32) -> bool {
        self.register(number).is_some()
    }

    fn read_msr(&self, number: u32, shared: &SharedState) -> Result<u64, GeneralProtection> {
        let (_, register) = self.register(number).ok_or(GeneralProtection)?;
        let LbrStack { entries, tos, .. } = &shared.last_branches;
        Ok(match register {
            LbrRegister::From(index) => entries[index].from,
            LbrRegister::To(index) => entries[index].to,
            LbrRegister::Info(index) => entries[index].info,
            LbrRegister::Tos => *tos,
            LbrRegister::Select => self.select.bits(),
            LbrRegister::ExceptionFrom => self.last_before_exception.from,
            LbrRegister::ExceptionTo => self.last_before_exception.to,
        })
    }

    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        _: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection> {
        let (stack, register) = self.register(number).ok_or(GeneralProtection)?;
        let has_flags = matches!(stack.format, FORMAT_FLAGS | FORMAT_FLAGS_TSX);
        let from_bits = if has_flags { 63 } else { 64 };
        let legal = match register {
            LbrRegister::From(_) => stack.writable && is_sign_extended(value, from_bits),
            LbrRegister::To(_) => stack.writable && is_sign_extended(value, 64),
            LbrRegister::Info(_) => stack.writable && value & INFO_RESERVED == 0,
            LbrRegister::Tos => stack.writable && value < u64::from(stack.entries),
            LbrRegister::Select => value & !stack.select == 0,
            LbrRegister::ExceptionFrom | LbrRegister::ExceptionTo => false,
        };
        if !legal {
            return Err(GeneralProtection);
        }
        let LbrStack { entries, tos, .. } = &mut bus.shared.last_branches;
        match register {
            LbrRegister::From(index) => entries[index].from = value,
            LbrRegister::To(index) => entries[index].to = value,
            LbrRegister::Info(index) => entries[index].info = value,
            LbrRegister::Tos => *tos = value,
            LbrRegister::Select => self.select = BranchFilter::new(value),
            LbrRegister::ExceptionFrom | LbrRegister::ExceptionTo => {}
        }
        Ok(())
    }

    fn needs_each_instruction(&self, shared: &SharedState) -> bool {
        self.stack.is_some() && shared.debugctl.lbr() && !shared.perfmon.has(LBR_FRZ)
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus) {
        if let (Some(stack), Some(taken)) = (self.stack, &info.taken) {
            self.record(stack, taken, (retired.before, retired.after), retired.tsc, bus);
        }
    }

    fn deliver(&mut self, delivery: &Delivery, taken: &TakenBranch, bus: &mut Bus) {
        if taken.kind == TakenBranchKind::DebugException {
            bus.shared.debugctl.clear_lbr();
            return;
        }
        self.last_before_exception = self.last;
        if let Some(stack) = self.stack {
            self.record(stack, taken, (delivery.before, delivery.after), delivery.tsc, bus);
        }
    }
}
