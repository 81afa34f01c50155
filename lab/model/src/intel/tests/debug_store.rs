//! A machine with a Debug Store save area.

use std::format;
use std::string::String;
use std::vec::Vec;

use crate::intel::tests::machine::*;
use crate::intel::{IntelProfile, IntelSettings};

pub(crate) const DS_AREA: u32 = 0x600;
pub(crate) const GLOBAL_STATUS: u32 = 0x38e;
pub(crate) const GLOBAL_STATUS_RESET: u32 = 0x390;
pub(crate) const OVF_DS_BUFFER: u64 = 1 << 62;

/// The addresses of the parts of the save area.
pub(crate) const AREA: u64 = 0x2_0000;
pub(crate) const BUFFER: u64 = 0x2_1000;
pub(crate) const SAMPLES: u64 = 0x2_3000;

/// The bits of a family's debug control register, named by function.
#[derive(Clone, Copy)]
pub(crate) struct Control {
    pub(crate) lbr: u64,
    pub(crate) tr: u64,
    pub(crate) bts: u64,
    pub(crate) btint: u64,
    pub(crate) off_os: u64,
    pub(crate) off_usr: u64,
}

const NET_BURST: Control = Control { lbr: 1, tr: 4, bts: 8, btint: 0x10, off_os: 0x20, off_usr: 0x40 };
const CORE: Control = Control { lbr: 1, tr: 0x40, bts: 0x80, btint: 0x100, off_os: 0x200, off_usr: 0x400 };

pub(crate) fn control(profile: &str) -> Control {
    if profile == "prescott" { NET_BURST } else { CORE }
}

/// The register's number is the same in all families.
pub(crate) const DEBUGCTL: u32 = 0x1d9;
/// Freeze_LBRs_On_PMI and Freeze_Perfmon_On_PMI.
pub(crate) const FREEZE_LBRS: u64 = 1 << 11;
pub(crate) const FREEZE_PERFMON: u64 = 1 << 12;

/// The profiles that have a Debug Store and 64-bit code.
pub(crate) const PROFILES: [&str; 4] = ["prescott", "core2", "nehalem", "skylake"];

/// Returns a machine whose branch buffer holds `records`, with the threshold at `threshold` records.
pub(crate) fn machine(profile: &str, settings: IntelSettings, records: u64, threshold: u64) -> Machine {
    let mut machine = Machine::new(profile, settings);
    assert!(IntelProfile::by_name(profile).is_some_and(|profile| profile.debug_store.is_some()));
    machine.write(DS_AREA, AREA);
    machine.set_area(&[BUFFER, BUFFER, BUFFER + records * 24, BUFFER + threshold * 24]);
    machine
}

impl Machine {
    /// Executes WRMSR of the debug control register, with the next instruction at 400000h.
    pub(crate) fn control(&mut self, value: u64) {
        self.at.ip = 0x3f_fffe;
        self.write(DEBUGCTL, value);
    }

    fn word(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_le_bytes(self.ram[at..at + 8].try_into().expect("eight bytes"))
    }

    pub(crate) fn set_word(&mut self, at: u64, value: u64) {
        self.ram[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets base, index, absolute maximum and threshold of the branch buffer.
    pub(crate) fn set_area(&mut self, fields: &[u64; 4]) {
        for (index, value) in fields.iter().enumerate() {
            self.set_word(AREA + index as u64 * 8, *value);
        }
    }

    /// Reads the branch buffer's index, in records.
    pub(crate) fn index(&self) -> u64 {
        (self.word(AREA + 8) - BUFFER) / 24
    }

    pub(crate) fn sample_index(&self) -> u64 {
        self.word(AREA + 0x28) - SAMPLES
    }

    /// Returns the first records of the branch buffer, as text: from, to, and `*` if the branch was predicted.
    pub(crate) fn records(&self, count: u64) -> Vec<String> {
        (0..count)
            .map(|slot| {
                let at = BUFFER + slot * 24;
                let flags = self.word(at + 16);
                assert_eq!(flags & !0x10, 0, "record {slot}");
                let predicted = if flags != 0 { "*" } else { "" };
                format!("{:x} {:x}{predicted}", self.word(at), self.word(at + 8))
            })
            .collect()
    }

    /// Returns the records below the index.
    pub(crate) fn stored(&self) -> Vec<String> {
        self.records(self.index())
    }

    /// Executes `count` taken branches.
    pub(crate) fn jumps(&mut self, count: u32) {
        for n in 0..count {
            self.go(JMP_RAX, 0x40_0000 + u64::from(n % 2) * 0x10);
        }
    }
}
