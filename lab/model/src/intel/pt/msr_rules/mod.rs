//! The values that WRMSR accepts for Intel PT's MSRs. Source: SDM vol. 3, Intel Processor Trace, "Enabling and
//! Configuration MSRs" and "Detection of Intel Processor Trace and Capability Enumeration".

use crate::GeneralProtection;
use crate::intel::IntelProfile;
use crate::intel::registers::{cap_ebx, cap_ecx, ctl, status};

/// Checks a write of IA32_RTIT_CTL that replaces the value `old` by `new`.
pub(crate) fn check_ctl(profile: &IntelProfile, old: u64, new: u64) -> Result<(), GeneralProtection> {
    let tracing = new & ctl::TRACE_EN != 0;
    // While TraceEn is set, only a write that clears it may change anything.
    let changes_live = old & ctl::TRACE_EN != 0 && tracing && new != old;
    // With neither ToPA nor fabric, output goes to the single range, which needs its capability.
    let no_output =
        tracing && new & (ctl::TOPA | ctl::FABRIC_EN) == 0 && !profile.output(cap_ecx::SINGLE_RANGE);
    let no_branches = tracing && new & ctl::BRANCH_EN == 0 && !profile.feature(cap_ebx::MTC);
    let refused = changes_live
        || new & !writable_ctl(profile) != 0
        || no_output
        || no_branches
        || !encoding_allowed(profile.mtc_freqs, ctl::mtc_freq(new))
        || !encoding_allowed(profile.cyc_thresholds, ctl::cyc_thresh(new))
        || !encoding_allowed(profile.psb_freqs, ctl::psb_freq(new))
        || (0..4).any(|n| ctl::addr_cfg(new, n) > if n < profile.address_ranges { 2 } else { 0 });
    if refused { Err(GeneralProtection) } else { Ok(()) }
}

/// Returns the bits of IA32_RTIT_CTL that are not reserved. The encodings of fields are checked separately.
fn writable_ctl(profile: &IntelProfile) -> u64 {
    let always = ctl::TRACE_EN | ctl::OS | ctl::USER | ctl::TSC_EN | ctl::DIS_RETC | ctl::BRANCH_EN;
    let addr_cfg = 0xffff << 32;
    let by_feature = [
        (cap_ebx::CR3_FILTERING, ctl::CR3_FILTER),
        (cap_ebx::CONFIGURABLE_PSB, ctl::CYC_EN | 0xf << 19 | 0xf << 24),
        (cap_ebx::IP_FILTERING, addr_cfg),
        (cap_ebx::MTC, ctl::MTC_EN | 0xf << 14),
        (cap_ebx::PTWRITE, ctl::PTW_EN | ctl::FUP_ON_PTW),
        (cap_ebx::POWER_EVENT, ctl::PWR_EVT_EN),
        (cap_ebx::PSB_PMI_PRESERVATION, ctl::INJECT_PSB_PMI_ON_ENABLE),
        (cap_ebx::EVENT_TRACE, ctl::EVENT_EN),
        (cap_ebx::TNT_DISABLE, ctl::DIS_TNT),
    ];
    let by_output = [(cap_ecx::TOPA, ctl::TOPA), (cap_ecx::TRACE_TRANSPORT, ctl::FABRIC_EN)];
    let mut writable = always;
    for (capability, bits) in by_feature {
        writable |= if profile.feature(capability) { bits } else { 0 };
    }
    for (capability, bits) in by_output {
        writable |= if profile.output(capability) { bits } else { 0 };
    }
    writable
}

/// Returns true if CPUID enumerates the encoding. A part without the field enumerates none, and 0 is always legal.
fn encoding_allowed(enumerated: u16, encoding: u32) -> bool {
    encoding == 0 || enumerated >> encoding & 1 != 0
}

/// Checks a write of IA32_RTIT_STATUS with TraceEn clear. FilterEn, ContextEn and TriggerEn may have any value: writes
/// of them are ignored.
pub(crate) fn check_status(profile: &IntelProfile, value: u64) -> Result<(), GeneralProtection> {
    let mut writable = 0b111 | status::ERROR | status::STOPPED;
    if profile.counts_packet_bytes() {
        writable |= status::PACKET_BYTE_CNT_MAX << status::PACKET_BYTE_CNT_SHIFT;
    }
    if profile.feature(cap_ebx::PSB_PMI_PRESERVATION) {
        writable |= status::PEND_PSB | status::PEND_TOPA_PMI;
    }
    fault_if_reserved(value, !writable)
}

/// Checks a write of IA32_RTIT_OUTPUT_BASE with TraceEn clear.
pub(crate) fn check_output_base(profile: &IntelProfile, value: u64) -> Result<(), GeneralProtection> {
    output_exists(profile)?;
    fault_if_reserved(value, profile.beyond_physical() | 0x7f)
}

/// Checks that IA32_RTIT_OUTPUT_BASE and IA32_RTIT_OUTPUT_MASK_PTRS exist: output to memory is supported.
pub(crate) fn output_exists(profile: &IntelProfile) -> Result<(), GeneralProtection> {
    fault_unless(profile.output(cap_ecx::TOPA | cap_ecx::SINGLE_RANGE))
}

/// Checks a write of IA32_RTIT_CR3_MATCH with TraceEn clear.
pub(crate) fn check_cr3_match(profile: &IntelProfile, value: u64) -> Result<(), GeneralProtection> {
    cr3_match_exists(profile)?;
    fault_if_reserved(value, 0x1f)
}

/// Checks that IA32_RTIT_CR3_MATCH exists.
pub(crate) fn cr3_match_exists(profile: &IntelProfile) -> Result<(), GeneralProtection> {
    fault_unless(profile.feature(cap_ebx::CR3_FILTERING))
}

/// Checks a write of IA32_RTIT_ADDRn_A or _B with TraceEn clear; `index` counts all of these registers from 0.
pub(crate) fn check_addr(profile: &IntelProfile, index: u32, value: u64) -> Result<(), GeneralProtection> {
    addr_exists(profile, index)?;
    let canonical = ((value << 16) as i64 >> 16) as u64 == value;
    fault_unless(canonical)
}

/// Checks that the IA32_RTIT_ADDRn_A or _B with this index exists.
pub(crate) fn addr_exists(profile: &IntelProfile, index: u32) -> Result<(), GeneralProtection> {
    fault_unless(profile.feature(cap_ebx::IP_FILTERING) && index / 2 < profile.address_ranges)
}

fn fault_if_reserved(value: u64, bits: u64) -> Result<(), GeneralProtection> {
    fault_unless(value & bits == 0)
}

fn fault_unless(it_does: bool) -> Result<(), GeneralProtection> {
    if it_does { Ok(()) } else { Err(GeneralProtection) }
}

#[cfg(test)]
mod tests;
