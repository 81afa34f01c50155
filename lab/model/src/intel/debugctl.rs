//! The debug control register, which switches branch recording on and off.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "IA32_DEBUGCTL MSR",
//! "MSR_DEBUGCTLA MSR" and "Last Branch, Interrupt, and Exception Recording (Pentium M Processors)"; vol. 4, the table
//! "IA-32 Architectural MSRs", for what each bit depends on.

use crate::GeneralProtection;
use crate::intel::IntelProfile;
use crate::intel::profile::DebugCtlLayout;

/// The bit of each function in a family's layout; 0 if the family lacks it.
#[derive(Clone, Copy, Debug)]
struct DebugCtlBits {
    lbr: u64,
    tr: u64,
    bts: u64,
    btint: u64,
    bts_off_os: u64,
    bts_off_usr: u64,
    freeze_lbrs: u64,
    freeze_perfmon: u64,
    freeze_while_smm: u64,
    uncore_pmi: u64,
    /// BTF, and the Pentium M's breakpoint pins: these bits can be set and have no effect here.
    inert: u64,
}

const CORE: DebugCtlBits = DebugCtlBits {
    lbr: 1 << 0,
    inert: 1 << 1,
    tr: 1 << 6,
    bts: 1 << 7,
    btint: 1 << 8,
    bts_off_os: 1 << 9,
    bts_off_usr: 1 << 10,
    freeze_lbrs: 1 << 11,
    freeze_perfmon: 1 << 12,
    uncore_pmi: 1 << 13,
    freeze_while_smm: 1 << 14,
};

const NET_BURST: DebugCtlBits = DebugCtlBits {
    lbr: 1 << 0,
    inert: 1 << 1,
    tr: 1 << 2,
    bts: 1 << 3,
    btint: 1 << 4,
    bts_off_os: 1 << 5,
    bts_off_usr: 1 << 6,
    freeze_lbrs: 0,
    freeze_perfmon: 0,
    uncore_pmi: 0,
    freeze_while_smm: 0,
};

const PENTIUM_M: DebugCtlBits = DebugCtlBits {
    lbr: 1 << 0,
    inert: 1 << 1 | 0b1111 << 2,
    tr: 1 << 6,
    bts: 1 << 7,
    btint: 1 << 8,
    bts_off_os: 0,
    bts_off_usr: 0,
    freeze_lbrs: 0,
    freeze_perfmon: 0,
    uncore_pmi: 0,
    freeze_while_smm: 0,
};

/// The register. In a profile without it, it stays 0.
#[derive(Debug)]
pub(crate) struct DebugCtl {
    bits: DebugCtlBits,
    writable: u64,
    value: u64,
}

impl DebugCtl {
    pub(crate) fn new(profile: &IntelProfile) -> Self {
        let bits = match profile.debugctl_layout() {
            Some(DebugCtlLayout::NetBurst) => NET_BURST,
            Some(DebugCtlLayout::PentiumM) => PENTIUM_M,
            Some(DebugCtlLayout::Core) | None => CORE,
        };
        Self { bits, writable: writable(profile, &bits), value: 0 }
    }

    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    pub(crate) fn write(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value & !self.writable != 0 {
            return Err(GeneralProtection);
        }
        self.value = value;
        Ok(())
    }

    fn has(&self, bit: u64) -> bool {
        self.value & bit != 0
    }

    /// Returns true if last branches are recorded in the stack.
    pub(crate) fn lbr(&self) -> bool {
        self.has(self.bits.lbr)
    }

    /// Returns true if branch trace messages are generated.
    pub(crate) fn tr(&self) -> bool {
        self.has(self.bits.tr)
    }

    /// Returns true if branch trace messages are stored in memory.
    pub(crate) fn stores_branches(&self) -> bool {
        self.tr() && self.has(self.bits.bts)
    }

    /// Returns true if an interrupt is generated when the buffer is nearly full.
    pub(crate) fn btint(&self) -> bool {
        self.has(self.bits.btint)
    }

    /// Returns true if branch trace messages of this privilege level are suppressed.
    pub(crate) fn leaves_out_level(&self, cpl: u8) -> bool {
        self.has(if cpl == 0 { self.bits.bts_off_os } else { self.bits.bts_off_usr })
    }

    pub(crate) fn freezes_lbrs(&self) -> bool {
        self.has(self.bits.freeze_lbrs)
    }

    pub(crate) fn freezes_perfmon(&self) -> bool {
        self.has(self.bits.freeze_perfmon)
    }

    /// Clears LBR, as the processor does at a debug exception and to freeze the stack.
    pub(crate) fn clear_lbr(&mut self) {
        self.value &= !self.bits.lbr;
    }

    /// Clears the register, as a VM exit does.
    pub(crate) fn clear(&mut self) {
        self.value = 0;
    }

    /// Ends recording in memory, as INIT and machine checks do.
    pub(crate) fn clear_tr_and_bts(&mut self) {
        self.value &= !(self.bits.tr | self.bits.bts | self.bits.btint);
    }
}

fn writable(profile: &IntelProfile, bits: &DebugCtlBits) -> u64 {
    let Some(store) = &profile.debug_store else { return 0 };
    let freezes = profile.perf_capabilities.is_some() && profile.perfmon_version > 1;
    let mut writable = bits.lbr | bits.inert | bits.tr | bits.bts | bits.btint;
    for (there, more) in [
        (store.ds_cpl, bits.bts_off_os | bits.bts_off_usr),
        (freezes, bits.freeze_lbrs | bits.freeze_perfmon),
        (profile.uncore_pmi, bits.uncore_pmi),
        (profile.smm_freeze(), bits.freeze_while_smm),
    ] {
        writable |= if there { more } else { 0 };
    }
    writable
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intel::DebugStoreProfile;

    fn register(name: &str) -> DebugCtl {
        DebugCtl::new(IntelProfile::by_name(name).expect(name))
    }

    /// Bits typed from the figures of the register in each family, and from the column "Comment" of IA32_DEBUGCTL.
    #[test]
    fn each_family_has_its_bits_and_no_others() {
        let rows: [(&str, u64); 7] = [
            ("prescott", 0b111_1111),
            ("core2", 0b0001_1111_1100_0011),
            ("nehalem", 0b0111_1111_1100_0011),
            ("skylake", 0b0111_1111_1100_0011),
            ("icelake", 0b0111_1111_1100_0011),
            ("tremont", 0b0101_1111_1100_0011),
            ("pentium-m", 0b1_1111_1111),
        ];
        for (name, legal) in rows {
            for bit in 0..64 {
                let mut register = register(name);
                let written = register.write(1 << bit);
                assert_eq!(written.is_ok(), legal >> bit & 1 != 0, "{name} bit {bit}");
                let value = if written.is_ok() { 1 << bit } else { 0 };
                assert_eq!(register.value(), value, "{name} bit {bit}");
            }
            assert!(register(name).write(legal).is_ok(), "{name}");
        }
    }

    /// Checks a processor with all capabilities, and then without one capability at a time.
    #[test]
    fn what_the_processor_lacks_is_reserved() {
        const ALL: u64 = 0b0111_1111_1100_0011;
        let store = |ds_cpl| {
            Some(DebugStoreProfile {
                debugctl: DebugCtlLayout::Core,
                dtes64: true,
                ds_cpl,
                predicted: false,
                pebs: None,
            })
        };
        let all = || IntelProfile {
            perfmon_version: 2,
            perf_capabilities: Some(1 << 12),
            uncore_pmi: true,
            debug_store: store(true),
            counters: None,
            lbr: None,
            ..*IntelProfile::by_name("nehalem").expect("nehalem")
        };
        // Without DS-CPL, with version 1, without SMM_FREEZE, without PDCM, without an uncore's PMI.
        let rows = [
            (all(), ALL),
            (IntelProfile { debug_store: store(false), ..all() }, ALL & !(0b11 << 9)),
            (IntelProfile { perfmon_version: 1, ..all() }, ALL & !(0b11 << 11)),
            (IntelProfile { perf_capabilities: Some(0), ..all() }, ALL & !(1 << 14)),
            (IntelProfile { perf_capabilities: None, ..all() }, ALL & !(0b11 << 11 | 1 << 14)),
            (IntelProfile { uncore_pmi: false, ..all() }, ALL & !(1 << 13)),
        ];
        for (profile, legal) in rows {
            for bit in 0..64 {
                let written = DebugCtl::new(&profile).write(1 << bit);
                assert_eq!(written.is_ok(), legal >> bit & 1 != 0, "{legal:#x} bit {bit}");
            }
        }
    }

    #[test]
    fn bits_mean_the_same_in_each_layout() {
        // LBR, TR, BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR.
        let rows: [(&str, [u32; 6]); 3] = [
            ("prescott", [0, 2, 3, 4, 5, 6]),
            ("core2", [0, 6, 7, 8, 9, 10]),
            ("skylake", [0, 6, 7, 8, 9, 10]),
        ];
        for (name, [lbr, tr, bts, btint, off_os, off_usr]) in rows {
            let with = |bits: &[u32]| {
                let mut register = register(name);
                register.write(bits.iter().map(|bit| 1 << bit).sum()).expect(name);
                register
            };
            assert!(with(&[lbr]).lbr() && !with(&[tr, bts, btint, off_os, off_usr]).lbr(), "{name}");
            assert!(with(&[tr]).tr() && !with(&[lbr, bts, btint]).tr(), "{name}");
            assert!(with(&[tr, bts]).stores_branches(), "{name}");
            assert!(!with(&[tr]).stores_branches() && !with(&[bts]).stores_branches(), "{name}");
            assert!(with(&[btint]).btint() && !with(&[tr, bts]).btint(), "{name}");
            let off = with(&[off_os]);
            assert_eq!(
                [0, 1, 2, 3].map(|cpl| off.leaves_out_level(cpl)),
                [true, false, false, false],
                "{name}"
            );
            let off = with(&[off_usr]);
            assert_eq!(
                [0, 1, 2, 3].map(|cpl| off.leaves_out_level(cpl)),
                [false, true, true, true],
                "{name}"
            );
        }
    }

    #[test]
    fn what_the_processor_clears_leaves_the_rest() {
        let mut register = register("skylake");
        register.write(0x1fc3).expect("all");
        register.clear_lbr();
        assert_eq!(register.value(), 0x1fc2);
        register.clear_tr_and_bts();
        assert_eq!(register.value(), 0x1e02, "BTS_OFF, freeze and BTF stay");
        register.clear();
        assert_eq!(register.value(), 0, "a VM exit clears all of it");
    }

    #[test]
    fn a_profile_without_the_register_has_no_bits() {
        assert_eq!(register("sapphire-rapids").write(1), Err(GeneralProtection));
    }
}
