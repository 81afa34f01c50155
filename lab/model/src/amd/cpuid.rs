//! The CPUID results of the profile's processor.
//!
//! Source: APM vol. 3, Obtaining Processor Information Via the CPUID Instruction.

use super::{AmdProfile, LastBranchKind};
use crate::CpuidResult;

/// Returns the profile's leaves over `hardware`, the result of the physical processor for the same leaf. Everything
/// unrelated to counters, sampling or identity stays as in `hardware`, except features that an AMD processor of that
/// family lacks.
pub(super) fn overlay(profile: &AmdProfile, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
    match leaf {
        0 => vendor(profile.highest_leaf),
        1 => version_and_features(profile, hardware),
        7 if profile.highest_leaf >= 7 => structured_features(subleaf, hardware),
        0x0d if profile.highest_leaf >= 0x0d => hardware,
        // Cache descriptors, Intel's counters, and leaves beyond the highest one.
        2..=0x3fff_ffff => CpuidResult::default(),
        0x8000_0000 => vendor(profile.highest_extended_leaf),
        0x8000_0001 => extended_features(profile, hardware),
        // The name of the physical processor is not this processor's.
        0x8000_0002..=0x8000_0004 => CpuidResult::default(),
        0x8000_0005 | 0x8000_0006 => {
            let [eax, ebx, ecx, edx] = profile.caches[leaf as usize - 0x8000_0005];
            CpuidResult { eax, ebx, ecx, edx }
        }
        0x8000_0007 => CpuidResult { edx: u32::from(profile.invariant_tsc) << 8, ..CpuidResult::default() },
        0x8000_0008 => {
            let eax = hardware.eax & !0xff | profile.physical_address_bits;
            let sampling = profile.branches == Some(LastBranchKind::Sampling);
            CpuidResult { eax, ebx: u32::from(sampling) << 31, ..CpuidResult::default() }
        }
        0x8000_001b => {
            let eax = profile.ibs.as_ref().and_then(|ibs| ibs.leaf).unwrap_or(0);
            CpuidResult { eax, ..CpuidResult::default() }
        }
        0x8000_0022 if profile.perf_mon_v2 => {
            let stack = profile.branches.filter(|records| *records == LastBranchKind::Stack);
            // The stack exists, and an overflow can freeze it and the counters.
            let eax = if stack.is_some() { 0b111 } else { 0b001 };
            let ebx = profile.counters | stack.map_or(0, LastBranchKind::depth) << 4;
            CpuidResult { eax, ebx, ..CpuidResult::default() }
        }
        0x8000_0009.. => CpuidResult::default(),
        _ => hardware,
    }
}

fn vendor(highest: u32) -> CpuidResult {
    let word = |bytes| u32::from_le_bytes(bytes);
    CpuidResult { eax: highest, ebx: word(*b"Auth"), edx: word(*b"enti"), ecx: word(*b"cAMD") }
}

fn version_and_features(profile: &AmdProfile, hardware: CpuidResult) -> CpuidResult {
    // DTES64, DS-CPL, VMX, SMX, EIST, TM2, CNXT-ID, SDBG, xTPR, PDCM, PCID, DCA, TSC deadline,
    // "a hypervisor is present".
    let intel_ecx = 1 << 2 | 0b1_1111 << 4 | 0b11 << 10 | 0b11 << 14 | 0b11 << 17 | 1 << 24 | 1 << 31;
    // FMA, XSAVE, OSXSAVE, AVX, F16C: features that need leaf 0DH.
    let extended_state = 1 << 12 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 29;
    let mut ecx = hardware.ecx & !intel_ecx;
    if profile.highest_leaf < 0x0d {
        ecx &= !extended_state;
    }
    // Processor serial number, DS, ACPI, SS, TM, PBE.
    let intel_edx = 1 << 18 | 1 << 21 | 1 << 22 | 1 << 27 | 1 << 29 | 1 << 31;
    CpuidResult { eax: profile.signature, ecx, edx: hardware.edx & !intel_edx, ..hardware }
}

fn structured_features(subleaf: u32, hardware: CpuidResult) -> CpuidResult {
    // SGX, HLE, RTM, MPX, AVX-512 and Intel PT are Intel's, and not among the bits that are kept.
    const KEPT: u32 = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 0b11 << 18 | 0b11 << 23 | 1 << 29;
    if subleaf == 0 {
        CpuidResult { ebx: hardware.ebx & KEPT, ..CpuidResult::default() }
    } else {
        CpuidResult::default()
    }
}

fn extended_features(profile: &AmdProfile, hardware: CpuidResult) -> CpuidResult {
    const EXT_APIC_SPACE: u32 = 1 << 3;
    const IBS: u32 = 1 << 10;
    const PERF_CTR_EXT_CORE: u32 = 1 << 23;
    // LAHF, MOV CR8 by LOCK, LZCNT, SSE4A, misaligned SSE, PREFETCHW.
    let mut ecx = hardware.ecx & (1 << 0 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8);
    for (there, bit) in [
        (profile.extended_lvts != 0, EXT_APIC_SPACE),
        (profile.ibs.is_some(), IBS),
        (profile.has_extended_counters(), PERF_CTR_EXT_CORE),
    ] {
        ecx |= if there { bit } else { 0 };
    }
    CpuidResult { eax: profile.signature, ebx: 0, ecx, edx: hardware.edx & !FFXSR }
}

/// Fast FXSAVE needs a bit of EFER that the physical processor may not have.
const FFXSR: u32 = 1 << 25;
