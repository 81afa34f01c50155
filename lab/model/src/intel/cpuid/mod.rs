//! The CPUID results of the profile's processor.

use crate::CpuidResult;
use crate::intel::IntelProfile;
use crate::intel::profile::CounterProfile;

/// The highest extended leaf of an Intel processor.
const HIGHEST_EXTENDED: u32 = 0x8000_0008;

/// The number of the state component of Intel PT's MSRs.
const PT_STATE: u32 = 8;

/// Returns the profile's leaves over `hardware`, the result of the physical processor for the same leaf. Everything
/// unrelated to tracing, time or identity stays as in `hardware`, except features that this Intel processor lacks.
pub(crate) fn overlay(profile: &IntelProfile, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
    match leaf {
        0 => vendor(profile),
        1 => version_and_features(profile, hardware),
        0x02..=0x3fff_ffff if leaf > profile.highest_leaf => CpuidResult::default(),
        7 if subleaf == 0 => structured_features(profile, hardware),
        0x0a => perfmon(profile),
        0x23 => extended_perfmon(profile, subleaf),
        0x0d if subleaf == 1 => without_pt_state(hardware),
        // A sub-leaf of a state component that is not supported returns zeros.
        0x0d if subleaf == PT_STATE => CpuidResult::default(),
        0x14 if subleaf == 0 => pt_main(profile),
        0x14 if subleaf == 1 && has_second_pt_leaf(profile) => pt_encodings(profile),
        0x15 if profile.highest_leaf >= 0x15 => {
            let (ebx, eax) = profile.tsc_ratio;
            CpuidResult { eax, ebx, ecx: profile.crystal_hz, edx: 0 }
        }
        0x16 if profile.highest_leaf >= 0x16 => {
            let base = u32::from(profile.non_turbo_ratio) * 100;
            CpuidResult { eax: base, ebx: profile.max_mhz, ecx: 100, edx: 0 }
        }
        // The physical processor may lack these leaves, and then it returns another leaf's data.
        0x0e..=0x3fff_ffff => CpuidResult::default(),
        0x8000_0000 => CpuidResult { eax: HIGHEST_EXTENDED, ..CpuidResult::default() },
        0x8000_0001 => extended_features(profile, hardware),
        // InvariantTSC.
        0x8000_0007 => CpuidResult { edx: 1 << 8, ..CpuidResult::default() },
        0x8000_0008 => CpuidResult {
            eax: hardware.eax & !0xff | profile.physical_address_bits,
            ..CpuidResult::default()
        },
        0x8000_0009.. => CpuidResult::default(),
        _ => hardware,
    }
}

/// Clears the state component of Intel PT's MSRs, which the model's XSAVES does not save: bit 8 of ECX, the components
/// that IA32_XSS can enable. Source: SDM vol. 1, Managing State Using the XSAVE Feature Set, "Enumeration of CPU
/// Support for XSAVE Instructions and XSAVE-Supported Features".
fn without_pt_state(hardware: CpuidResult) -> CpuidResult {
    CpuidResult { ecx: hardware.ecx & !(1 << PT_STATE), ..hardware }
}

fn vendor(profile: &IntelProfile) -> CpuidResult {
    let word = |bytes| u32::from_le_bytes(bytes);
    CpuidResult { eax: profile.highest_leaf, ebx: word(*b"Genu"), edx: word(*b"ineI"), ecx: word(*b"ntel") }
}

fn version_and_features(profile: &IntelProfile, hardware: CpuidResult) -> CpuidResult {
    let store = profile.debug_store.as_ref();
    // DTES64, DS-CPL, VMX, SMX, PDCM, "a hypervisor is present".
    let own_ecx = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 15 | 1 << 31;
    // FMA, XSAVE, OSXSAVE, AVX, F16C: features that need leaf 0DH.
    let extended_state = 1 << 12 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 29;
    let mut ecx = hardware.ecx & !own_ecx;
    if profile.highest_leaf < 0x0d {
        ecx &= !extended_state;
    }
    for (there, bit) in [
        (store.is_some_and(|store| store.dtes64), 1 << 2),
        (store.is_some_and(|store| store.ds_cpl), 1 << 4),
        (profile.perf_capabilities.is_some(), 1 << 15),
    ] {
        ecx |= if there { bit } else { 0 };
    }
    // DS.
    let ds = if store.is_some() { 1 << 21 } else { 0 };
    let edx = hardware.edx & !(1 << 21) | ds;
    CpuidResult { eax: profile.signature, ecx, edx, ..hardware }
}

fn structured_features(profile: &IntelProfile, hardware: CpuidResult) -> CpuidResult {
    // SGX is always absent, HLE and RTM are optional; Intel PT depends on the profile.
    let pt = if profile.has_pt() { 1 << 25 } else { 0 };
    CpuidResult { ebx: hardware.ebx & !(1 << 2 | 1 << 4 | 1 << 11 | 1 << 25) | pt, ..hardware }
}

/// Returns the leaf of the counters. A set bit in EBX is an architectural event that the general-purpose counters
/// cannot count: those of the last-level cache, references (bit 3) and misses (4), which the model lacks. ECX has the
/// fixed-function counters, a bit each, from version 5. EDX is reserved in version 1, and has their number (bits 4:0)
/// and width (12:5) after it.
fn perfmon(profile: &IntelProfile) -> CpuidResult {
    let Some(counters) = profile.counters.as_ref() else { return CpuidResult::default() };
    let &CounterProfile { count, fixed, width, any_thread_deprecated, .. } = counters;
    let events = events(counters);
    let listed = if profile.perfmon_version < 5 { 0 } else { (1 << fixed) - 1 };
    CpuidResult {
        eax: profile.perfmon_version | count << 8 | width << 16 | events << 24,
        ebx: CACHE_EVENTS,
        ecx: listed,
        edx: fixed | width << 5 | u32::from(any_thread_deprecated) << 15,
    }
}

/// The events of the last-level cache: references and misses.
const CACHE_EVENTS: u32 = 1 << 3 | 1 << 4;

/// Returns the number of architectural events; topdown slots are the eighth. If the processor has several kinds of
/// cores, leaf 0AH has no more than all of them have.
fn events(counters: &CounterProfile) -> u32 {
    if counters.slots == 0 || counters.extended.is_some() { 7 } else { 8 }
}

/// Returns leaf 23H, which describes the counters of the core that executes CPUID: sub-leaf 0 has the valid sub-leaves
/// and features, 1 the counters, 2 Auto Counter Reload, 3 the events that the counters can count, unlike leaf 0AH with
/// set bits.
///
/// Source: x86-cpuid-db, leaf 23H, and Linux, `arch/x86/events/intel/core.c`, `update_pmu_cap`. That ECX of sub-leaf 0
/// has the issue slots of a clock is an assumption: in the dump of a processor it is 8 for one kind of cores.
fn extended_perfmon(profile: &IntelProfile, subleaf: u32) -> CpuidResult {
    let Some(counters) = profile.counters.as_ref() else { return CpuidResult::default() };
    let Some(extended) = counters.extended.as_ref() else { return CpuidResult::default() };
    let reload = extended.reload.as_ref();
    let eax = |eax| CpuidResult { eax, ..CpuidResult::default() };
    match (subleaf, reload) {
        (0, _) => CpuidResult {
            // Sub-leaves 0, 1 and 3.
            eax: 0b1011 | u32::from(reload.is_some()) << 2,
            ebx: extended.features,
            ecx: extended.slots,
            edx: 0,
        },
        (1, _) => CpuidResult { ebx: extended.fixed, ..eax(extended.general) },
        (2, Some(reload)) => {
            let ([eax, ebx], [ecx, edx]) = (reload.reloadable, reload.causes);
            CpuidResult { eax, ebx, ecx, edx }
        }
        (3, _) => {
            let slots = u32::from(counters.slots != 0) << 7;
            eax(((1 << events(counters)) - 1) & !CACHE_EVENTS | slots)
        }
        _ => CpuidResult::default(),
    }
}

fn has_second_pt_leaf(profile: &IntelProfile) -> bool {
    profile.address_ranges != 0 || profile.psb_freqs != 0
}

fn pt_main(profile: &IntelProfile) -> CpuidResult {
    let eax = u32::from(has_second_pt_leaf(profile));
    CpuidResult { eax, ebx: profile.pt_features, ecx: profile.pt_outputs, edx: 0 }
}

fn pt_encodings(profile: &IntelProfile) -> CpuidResult {
    CpuidResult {
        eax: profile.address_ranges | u32::from(profile.mtc_freqs) << 16,
        ebx: u32::from(profile.cyc_thresholds) | u32::from(profile.psb_freqs) << 16,
        ecx: 0,
        edx: 0,
    }
}

fn extended_features(profile: &IntelProfile, hardware: CpuidResult) -> CpuidResult {
    // LAHF, LZCNT, PREFETCHW; SYSCALL, NX, 1 GiB pages, RDTSCP, long mode. The other bits are AMD's.
    let ecx = hardware.ecx & (1 << 0 | 1 << 5 | 1 << 8);
    let mut edx = hardware.edx & (1 << 11 | 1 << 20 | 1 << 26 | 1 << 27 | 1 << 29);
    if !profile.long_mode {
        edx &= !(1 << 29);
    }
    CpuidResult { eax: 0, ebx: 0, ecx, edx }
}

#[cfg(test)]
mod tests;
