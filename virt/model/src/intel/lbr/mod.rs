//! The last branch record stack.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "LBR Stack" of each
//! microarchitecture, "LBR Stack and Intel 64 Processors", "Filtering of Last Branch Records", "Last Exception Records", "LBR Stack Enhancement" and
//! "MSR_LBR_INFO_x MSR".

mod filter;
mod stack;
#[cfg(test)]
mod tests;

use crate::intel::IntelProfile;
use crate::intel::profile::LbrStack;
use crate::intel::registers::{LBR_FRZ, msr};
use crate::intel::taken::{Taken, TakenKind};
use crate::intel::unit::{Bus, Seen, Shared, TracingUnit};
use crate::{Context, Delivery, GeneralProtection, Retired};
use filter::Filter;
pub(crate) use stack::{Entry, Stack};

/// MISPRED in MSR_LASTBRANCH_x_FROM_IP or MSR_LBR_INFO_x.
const MISPRED: u64 = 1 << 63;
/// MSR_LBR_INFO_x: bits 60:16 are reserved.
const INFO_RESERVED: u64 = 0x1fff_ffff_ffff_0000;
/// IA32_PERF_CAPABILITIES\[5:0\]: linear addresses. In the other formats they are offsets in the code segment.
const FORMAT_LIP: u8 = 1;
/// MISPRED is in the FROM register.
const FORMAT_FLAGS: u8 = 3;
/// The same with IN_TSX and TSX_ABORT in bits 62:61. On processors without TSX, as all of these are, they are 0 in what is
/// recorded, and the sign of bit 47 in what can be written.
const FORMAT_FLAGS_TSX: u8 = 4;
/// IN_TSX and TSX_ABORT.
const TSX: u64 = 1 << 62 | 1 << 61;

/// The stack's registers but for the records; nothing in a profile that has none.
#[derive(Debug)]
pub(crate) struct Lbr {
    stack: Option<&'static LbrStack>,
    select: Filter,
    /// The last branch, and the one before the last exception or interrupt.
    last: Entry,
    exception: Entry,
    /// The time of the last record.
    tsc: u64,
}

/// One of the registers.
enum Register {
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
            select: Filter::default(),
            last: Entry::default(),
            exception: Entry::default(),
            tsc: 0,
        }
    }

    fn register(&self, number: u32) -> Option<(&'static LbrStack, Register)> {
        let stack = self.stack?;
        let of = |first: u32| number.checked_sub(first).filter(|index| *index < stack.entries);
        let index = |index: u32| index as usize;
        let register = if let Some(at) = of(stack.from) {
            Register::From(index(at))
        } else if let Some(at) = of(stack.to) {
            Register::To(index(at))
        } else if let Some(at) = stack.info.and_then(of) {
            Register::Info(index(at))
        } else if number == stack.tos {
            Register::Tos
        } else if number == msr::MSR_LBR_SELECT && stack.select != 0 {
            Register::Select
        } else if number == stack.ler {
            Register::ExceptionFrom
        } else if number == stack.ler + 1 {
            Register::ExceptionTo
        } else {
            return None;
        };
        Some((stack, register))
    }

    /// Records a branch from code like `before` to `after`.
    fn record(
        &mut self,
        stack: &LbrStack,
        taken: &Taken,
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
        if !self.select.captures(taken) {
            return;
        }
        let shown = match stack.format {
            FORMAT_LIP => *taken,
            _ => {
                let from = Context { ip: taken.from, ..before }.effective().ip;
                Taken { from, to: after.effective().ip, ..*taken }
            }
        };
        let entry = self.entry(stack, &shown, tsc);
        bus.shared.last_branches.push(entry);
        self.last = Entry { from: taken.from, to: taken.to, info: 0 };
    }

    fn entry(&mut self, stack: &LbrStack, taken: &Taken, tsc: u64) -> Entry {
        let branch = !matches!(taken.kind, TakenKind::Event | TakenKind::DebugException);
        let mispredicted = if branch && !taken.predicted { MISPRED } else { 0 };
        let Taken { from, to, .. } = *taken;
        let cycles = tsc.saturating_sub(core::mem::replace(&mut self.tsc, tsc)).min(0xffff);
        match (stack.info, stack.format) {
            (Some(_), _) => Entry { from, to, info: mispredicted | cycles },
            // Bits 62:48 are the sign of bit 47.
            (None, FORMAT_FLAGS) => Entry { from: from & !MISPRED | mispredicted, to, info: 0 },
            // Bits 60:48 are.
            (None, FORMAT_FLAGS_TSX) => Entry { from: from & !(MISPRED | TSX) | mispredicted, to, info: 0 },
            (None, _) => Entry { from, to, info: 0 },
        }
    }
}

/// Whether bits 62:48, or 63:48, are the sign of bit 47.
fn is_sign_extended(value: u64, bits: u32) -> bool {
    let extended = ((value << 16) as i64 >> 16) as u64;
    (extended ^ value) << (64 - bits) == 0
}

impl TracingUnit for Lbr {
    fn owns_msr(&self, number: u32) -> bool {
        self.register(number).is_some()
    }

    fn read_msr(&self, number: u32, shared: &Shared) -> Result<u64, GeneralProtection> {
        let (_, register) = self.register(number).ok_or(GeneralProtection)?;
        let Stack { entries, tos, .. } = &shared.last_branches;
        Ok(match register {
            Register::From(index) => entries[index].from,
            Register::To(index) => entries[index].to,
            Register::Info(index) => entries[index].info,
            Register::Tos => *tos,
            Register::Select => self.select.bits(),
            Register::ExceptionFrom => self.exception.from,
            Register::ExceptionTo => self.exception.to,
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
            Register::From(_) => stack.writable && is_sign_extended(value, from_bits),
            Register::To(_) => stack.writable && is_sign_extended(value, 64),
            Register::Info(_) => stack.writable && value & INFO_RESERVED == 0,
            Register::Tos => stack.writable && value < u64::from(stack.entries),
            Register::Select => value & !stack.select == 0,
            Register::ExceptionFrom | Register::ExceptionTo => false,
        };
        if !legal {
            return Err(GeneralProtection);
        }
        let Stack { entries, tos, .. } = &mut bus.shared.last_branches;
        match register {
            Register::From(index) => entries[index].from = value,
            Register::To(index) => entries[index].to = value,
            Register::Info(index) => entries[index].info = value,
            Register::Tos => *tos = value,
            Register::Select => self.select = Filter::new(value),
            Register::ExceptionFrom | Register::ExceptionTo => {}
        }
        Ok(())
    }

    fn steps(&self, shared: &Shared) -> bool {
        self.stack.is_some() && shared.debugctl.lbr() && !shared.perfmon.has(LBR_FRZ)
    }

    fn retire(&mut self, retired: &Retired, seen: &Seen, bus: &mut Bus) {
        if let (Some(stack), Some(taken)) = (self.stack, &seen.taken) {
            self.record(stack, taken, (retired.before, retired.after), retired.tsc, bus);
        }
    }

    fn deliver(&mut self, delivery: &Delivery, taken: &Taken, bus: &mut Bus) {
        if taken.kind == TakenKind::DebugException {
            bus.shared.debugctl.clear_lbr();
            return;
        }
        self.exception = self.last;
        if let Some(stack) = self.stack {
            self.record(stack, taken, (delivery.before, delivery.after), delivery.tsc, bus);
        }
    }
}
