//! What to record and how.

use super::Range;
use pugmark_decoder_core::errata::Cpu;
use pugmark_model::intel::Profile;
use std::{ffi::OsString, path::PathBuf};

/// What to record and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program's name and its arguments.
    pub program: Vec<OsString>,
    /// The directory for the files; it is made if there is none.
    pub out: PathBuf,
    /// The processor.
    pub profile: &'static Profile,
    /// TSC packets.
    pub tsc: bool,
    /// MTC packets, each 2 to the power of this many ticks of the crystal clock (MTCFreq).
    pub mtc: Option<u8>,
    /// CYC packets, with this threshold (CycThresh).
    pub cyc: Option<u8>,
    /// A PSB each 2 to the power of 11 and this many bytes (PSBFreq).
    pub psb: u8,
    /// A return to where its call came from is one TNT bit.
    pub ret_compression: bool,
    /// Long TNT packets, of up to 47 branches; otherwise short ones, of up to 6.
    pub long_tnt: bool,
    /// The addresses to trace; none: all.
    pub ranges: Vec<Range>,
    /// Threads and children that the program starts are traced as well, each by a processor of its own.
    pub follow: bool,
    /// After so many instructions, of all tasks together, tracing ends, and the program runs on.
    pub limit: Option<u64>,
    /// Leave it to the system where the program is in memory.
    pub aslr: bool,
    /// Signals that would end this process end the recording instead and are passed on to the program. They are the
    /// whole process's: for one that does nothing else.
    pub signals: bool,
}

impl Options {
    /// All of the program on a Skylake, without timing packets, into the directory `pugmark-record`.
    pub fn new<S: Into<OsString>>(program: impl IntoIterator<Item = S>) -> Self {
        Self {
            program: program.into_iter().map(Into::into).collect(),
            out: "pugmark-record".into(),
            profile: Profile::by_name("skylake").unwrap_or(&Profile::all()[0]),
            tsc: false,
            mtc: None,
            cyc: None,
            psb: 0,
            ret_compression: true,
            long_tnt: false,
            ranges: vec![],
            follow: true,
            limit: None,
            aslr: false,
            signals: false,
        }
    }

    /// The processor as decoders know it.
    pub(super) fn cpu(&self) -> Cpu {
        Cpu::from_signature(self.profile.signature)
    }

    /// IA32_RTIT_CTL. Source: SDM vol. 3, Intel Processor Trace, "IA32_RTIT_CTL MSR".
    pub(super) fn ctl(&self) -> u64 {
        const TRACE_EN: u64 = 1 << 0;
        const CYC_EN: u64 = 1 << 1;
        const USER: u64 = 1 << 3;
        const TOPA: u64 = 1 << 8;
        const MTC_EN: u64 = 1 << 9;
        const TSC_EN: u64 = 1 << 10;
        const DIS_RETC: u64 = 1 << 11;
        const BRANCH_EN: u64 = 1 << 13;
        let fields = [
            Some(TRACE_EN | USER | TOPA | BRANCH_EN),
            self.tsc.then_some(TSC_EN),
            self.mtc.map(|freq| MTC_EN | u64::from(freq & 0xf) << 14),
            self.cyc.map(|threshold| CYC_EN | u64::from(threshold & 0xf) << 19),
            Some(u64::from(self.psb & 0xf) << 24),
            (!self.ret_compression).then_some(DIS_RETC),
        ];
        let ranges = (0..self.ranges.len()).map(|index| 1 << (32 + 4 * index));
        // No two of them share a bit.
        fields.into_iter().flatten().chain(ranges).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_its_bits() {
        let plain = Options::new(["true"]);
        let range: Range = "0x1000-0x1fff".parse().expect("a range");
        let rows = [
            (plain.clone(), 0x2109),
            (Options { tsc: true, ..plain.clone() }, 0x2509),
            (Options { mtc: Some(3), ..plain.clone() }, 0xe309),
            (Options { cyc: Some(1), ..plain.clone() }, 0x8_210b),
            (Options { psb: 2, ..plain.clone() }, 0x200_2109),
            // Bits above the field's own are left out.
            (Options { mtc: Some(0x1f), cyc: Some(0x1f), psb: 0x1f, ..plain.clone() }, 0xf7b_e30b),
            (Options { ret_compression: false, ..plain.clone() }, 0x2909),
            (Options { long_tnt: true, ..plain.clone() }, 0x2109),
            (Options { ranges: vec![range.clone(), range], ..plain }, 0x11_0000_2109),
        ];
        for (options, expected) in rows {
            assert_eq!(options.ctl(), expected, "{options:?}");
        }
    }
}
