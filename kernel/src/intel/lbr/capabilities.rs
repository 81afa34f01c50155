//! Detects last branch records and their capabilities.

use super::{LbrFormat, Stack};
use crate::intel::errata::{Errata, lbrs_do_not_freeze};
use crate::lifecycle::{self, Absent, Missing};
use crate::msr::{
    DebugCtl, DebugCtlLayout, DebugFlags, GeneralProtection, LbrCtl, Msr, PerfCapabilities, Register,
    RegisterAt, RtitCtl, TypedMsr,
};
use raw_cpuid::{CpuId, CpuIdReader};

/// The capabilities of this processor's last branch records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbrCapabilities {
    /// The registers of the records.
    pub(super) stack: Stack,
    /// The format of the records.
    pub(super) format: LbrFormat,
    /// True if the records can be filtered by privilege level.
    pub levels: bool,
    /// True if the records can be filtered by kind of branch.
    pub classes: bool,
    /// True if the processor has call-stack mode.
    pub call_stack: bool,
    /// True if a PMI can freeze the records: FREEZE_LBRS_ON_PMI. On the first Atoms (model 1CH before stepping 10) it
    /// cannot.
    pub freeze_on_pmi: bool,
    /// The general-purpose counters, of the first four, whose events the records can count, a bit for each:
    /// `CPUID.1CH:ECX[19:16]`. A counter does so with
    /// [`IntelEvent::in_branch_records`](crate::intel::counters::IntelEvent::in_branch_records).
    pub event_counters: u8,
    /// True if the records may be empty after a deep C-state: `CPUID.1CH:EAX[30]`.
    pub deep_c_state_reset: bool,
    /// True if the processor has Intel PT (`CPUID.07H.0:EBX[25]`), and PT excludes these records while it traces on
    /// this model.
    pub(super) processor_trace: bool,
    /// True if a filter that leaves jumps out leaves calls and returns out, too.
    pub(super) calls_need_jumps: bool,
    pub(super) control: DebugCtlLayout,
}

impl LbrCapabilities {
    /// Detects the records. If no other owner uses them, this turns them on and off again.
    ///
    /// # Errors
    ///
    /// The records are absent.
    pub fn detect(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<Self, Absent> {
        let architectural = Architectural::read(&cpuid);
        let id = CpuId::with_cpuid_reader(cpuid);
        let vendor = id.get_vendor_info();
        if vendor.is_none_or(|vendor| vendor.as_str() != "GenuineIntel") {
            return Err(Missing::Intel.into());
        }
        let features = id.get_feature_info().ok_or(Missing::Intel)?;
        let (family, model) = (features.family_id(), features.model_id());
        let control = DebugCtlLayout::of(family, model).ok_or(Missing::LastBranchModel { family, model })?;
        let errata = Errata::of(family, model);
        let found = Self {
            stack: Stack::architectural(0),
            format: LbrFormat::Lip,
            levels: false,
            classes: false,
            call_stack: false,
            freeze_on_pmi: features.has_pdcm()
                && control.has(DebugFlags::FREEZE_LBRS_ON_PMI)
                && !lbrs_do_not_freeze(family, model, features.stepping_id()),
            event_counters: 0,
            deep_c_state_reset: false,
            processor_trace: id.get_extended_feature_info().is_some_and(|f| f.has_processor_trace())
                && errata.contains(Errata::TRACE_EXCLUDES_BRANCH_RECORDS),
            calls_need_jumps: errata.contains(Errata::LBR_CALLS_NEED_JUMPS),
            control,
        };
        let found = match architectural {
            Some(architectural) => found.with_architectural(&architectural)?,
            None => {
                let stack = Stack::of(family, model).ok_or(Missing::LastBranchModel { family, model })?;
                let format = stack_format(&id, &stack, msr)?;
                found.with_stack(stack, format)
            }
        };
        found.probe(msr)?;
        Ok(found)
    }

    /// Returns the number of branches that the records hold.
    #[must_use]
    pub const fn depth(&self) -> u8 {
        self.stack.depth
    }

    /// Returns whether the records are the architectural ones.
    pub(super) const fn is_architectural(&self) -> bool {
        self.stack.top.is_none()
    }

    fn with_architectural(self, found: &Architectural) -> Result<Self, Absent> {
        // Bit n: 8 × (n + 1) entries.
        let depth = match found.depths.checked_ilog2() {
            Some(bit) => 8 * (bit as u8 + 1),
            None => return Err(Missing::LastBranchDepth.into()),
        };
        let bit = |register: u32, n: u32| register >> n & 1 == 1;
        let format = LbrFormat::Architectural {
            linear: found.linear,
            mispredicted: bit(found.ecx, 0),
            cycles: bit(found.ecx, 1),
            kind: bit(found.ecx, 2),
            events: found.event_counters() != 0,
        };
        let [levels, classes, call_stack] = [0, 1, 2].map(|n| bit(found.ebx, n));
        let stack = Stack::architectural(depth);
        let (event_counters, deep_c_state_reset) = (found.event_counters(), found.deep_c_state_reset);
        Ok(Self { stack, format, levels, classes, call_stack, event_counters, deep_c_state_reset, ..self })
    }

    const fn with_stack(self, stack: Stack, format: LbrFormat) -> Self {
        let (levels, classes, call_stack) = (stack.select, stack.select, stack.call_stack);
        Self { stack, format, levels, classes, call_stack, ..self }
    }

    /// Checks that the register that turns the records on works, unless the check would disturb another owner.
    fn probe(&self, msr: &mut impl Msr) -> Result<(), Absent> {
        let register = self.enabling();
        let before = msr.read_at(register)?;
        if before & LBR != 0 || self.is_excluded(msr)? {
            // Either the bit is set, so the register works, or the start refuses.
            return Ok(());
        }
        // SAFETY: branches go into registers that nothing else uses now; no memory is written.
        unsafe { lifecycle::probe(msr, register, |before| before | LBR, LBR) }
    }

    /// Returns whether BTS is on, or PT traces on a model where it excludes last branch records.
    pub(super) fn is_excluded(&self, msr: &mut impl Msr) -> Result<bool, GeneralProtection> {
        if self.control.flags(msr.read()?).intersects(DebugFlags::RECORDERS) {
            return Ok(true);
        }
        Ok(self.processor_trace && msr.read::<RtitCtl>()?.contains(RtitCtl::TRACE_EN))
    }

    /// Returns the register whose bit 0 turns the records on.
    pub(super) const fn enabling(&self) -> RegisterAt {
        RegisterAt::new(match self.is_architectural() {
            true => <LbrCtl as Register>::ADDRESS,
            false => DebugCtl::ADDRESS,
        })
    }
}

/// Returns the format of the records in a stack that is not architectural.
fn stack_format<R: CpuIdReader>(
    id: &CpuId<R>,
    stack: &Stack,
    msr: &mut impl Msr,
) -> Result<LbrFormat, Absent> {
    let pdcm = id.get_feature_info().is_some_and(|features| features.has_pdcm());
    let format = match (pdcm, stack.entries) {
        (true, _) => {
            let number = msr.read::<PerfCapabilities>()?.lbr_format();
            LbrFormat::of(number).ok_or(Missing::LastBranchFormat { number })?
        }
        (false, super::stack::Entries::One { .. }) => LbrFormat::Bits32,
        (false, _) => LbrFormat::Lip,
    };
    let tsx = id.get_extended_feature_info().is_some_and(|features| features.has_hle() || features.has_rtm());
    Ok(match format {
        // Without TSX, its two bits have no meaning: they are 0 in records of the processor, and the address's sign in
        // records that software wrote.
        LbrFormat::EipFlagsTsx if !tsx => LbrFormat::EipFlags,
        format => format,
    })
}

/// The bit LBR of the control register, and LBREn of IA32_LBR_CTL.
pub(super) const LBR: u64 = 1 << 0;

/// CPUID leaf 1CH.
pub(crate) struct Architectural {
    depths: u8,
    deep_c_state_reset: bool,
    linear: bool,
    ebx: u32,
    ecx: u32,
}

impl Architectural {
    /// Reads the leaf; it exists if `CPUID.07H.0:EDX[19]` is 1.
    pub(crate) fn read(cpuid: &impl CpuIdReader) -> Option<Self> {
        let highest = cpuid.cpuid1(0).eax;
        if highest < 0x1c || cpuid.cpuid2(7, 0).edx >> 19 & 1 == 0 {
            return None;
        }
        let leaf = cpuid.cpuid2(0x1c, 0);
        Some(Self {
            depths: leaf.eax as u8,
            deep_c_state_reset: leaf.eax >> 30 & 1 == 1,
            linear: leaf.eax >> 31 == 1,
            ebx: leaf.ebx,
            ecx: leaf.ecx,
        })
    }

    /// Returns the counters whose events the records can count, as bits. Source: Linux,
    /// `arch/x86/include/asm/perf_event.h`, `union cpuid28_ecx`.
    pub(crate) const fn event_counters(&self) -> u8 {
        (self.ecx >> 16 & 0xf) as u8
    }
}
