//! The options of a recording: the program, the processor, the packets, the engine.

use super::{Range, Trigger};
use pugmark_decoder_core::errata::Cpu;
use pugmark_model::intel::IntelProfile;
use std::{ffi::OsString, path::PathBuf};

/// The options of a recording: the program, the processor, the packets, the engine.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// The program's name and its arguments; none, if `pid` is given.
    pub program: Vec<OsString>,
    /// The running process to record, instead of a program that is started. It goes on after the recording.
    pub pid: Option<i32>,
    /// The directory for the files; it is created if it does not exist.
    pub out: PathBuf,
    /// The processor.
    pub profile: &'static IntelProfile,
    /// True to trace with TSC packets.
    pub tsc: bool,
    /// Trace with MTC packets, each 2 to the power of this many ticks of the crystal clock (MTCFreq).
    pub mtc: Option<u8>,
    /// Trace with CYC packets with this threshold (CycThresh).
    pub cyc: Option<u8>,
    /// Write a PSB each 2 to the power of 11 plus this many bytes (PSBFreq).
    pub psb: u8,
    /// True to compress returns: a return to the instruction after its call is then one TNT bit instead of a TIP
    /// packet.
    pub ret_compression: bool,
    /// True to write long TNT packets of up to 47 branches; otherwise short ones of up to 6.
    pub long_tnt: bool,
    /// The addresses to trace; all, if empty.
    pub ranges: Vec<Range>,
    /// The trigger that starts the tracing of a task; nothing is traced before. If it is `None`, all is traced from the
    /// begin.
    pub start: Option<Trigger>,
    /// The trigger that stops the tracing of a task, until `start` starts it again. Without `start` it ends all
    /// tracing, as `limit` does.
    pub stop: Option<Trigger>,
    /// True to trace the threads and children that the program starts as well, each by its own processor.
    pub follow: bool,
    /// The number of instructions, of all tasks together, after which tracing ends. The program continues.
    pub limit: Option<u64>,
    /// True if the program and its children are killed at `limit` instead, as fuzzers need it.
    pub kill_at_limit: bool,
    /// True if the system randomises the program's addresses. The emulator never does.
    pub aslr: bool,
    /// Who executes the program.
    pub engine: Engine,
    /// True if the program is QEMU's system emulator, and the machine that it emulates is recorded: every processor, at
    /// all levels.
    pub machine: bool,
    /// The file with the names of a machine's functions, at which its tracing starts and stops: an ELF file, or a
    /// text as System.map and /proc/kallsyms are. If it is `None`, the emulator's kernel, if that is an ELF file.
    pub kernel_symbols: Option<PathBuf>,
    /// The distance of a machine's functions from where that file has them: that by which Linux has moved itself
    /// (KASLR).
    pub kernel_offset: u64,
    /// True if signals that would end this process end the recording instead and are passed on to the program. This
    /// changes the signal handlers of the whole process, so it is for a process that does nothing else.
    pub signals: bool,
}

/// Who executes the program while it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The emulator if it is installed and can execute the program, otherwise stepping.
    Auto,
    /// This processor, one instruction at a time, by ptrace. The reference.
    Stepping,
    /// QEMU's user-mode emulator, which is some thousand times as fast.
    Emulator,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Stepping, Self::Emulator];

    /// Returns its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Stepping => "stepping",
            Self::Emulator => "emulator",
        }
    }
}

/// MTCFreq, unless another one is asked for.
const MTC_FREQ: u8 = 3;

impl RecordOptions {
    /// Returns the options to trace the whole program on a Skylake, without timing packets, into the directory
    /// `pugmark-record`.
    pub fn new<S: Into<OsString>>(program: impl IntoIterator<Item = S>) -> Self {
        Self {
            program: program.into_iter().map(Into::into).collect(),
            pid: None,
            out: "pugmark-record".into(),
            profile: IntelProfile::by_name("skylake").unwrap_or(&IntelProfile::all()[0]),
            tsc: false,
            mtc: None,
            cyc: None,
            psb: 0,
            ret_compression: true,
            long_tnt: false,
            ranges: vec![],
            start: None,
            stop: None,
            follow: true,
            limit: None,
            kill_at_limit: false,
            aslr: false,
            engine: Engine::Stepping,
            machine: false,
            kernel_symbols: None,
            kernel_offset: 0,
            signals: false,
        }
    }

    /// Adds all packets of time that the profile's processor has, where `time` is true.
    ///
    /// Source: SDM vol. 2, "CPUID", leaf 14H: EBX bit 1 (cycle-accurate mode), bit 3 (MTC packets).
    #[must_use]
    pub fn with_time(self, time: bool) -> Self {
        let default = |bit: u32, value| (time && self.profile.pt_features >> bit & 1 != 0).then_some(value);
        let (mtc, cyc) = (self.mtc.or(default(3, MTC_FREQ)), self.cyc.or(default(1, 0)));
        Self { tsc: self.tsc || time, mtc, cyc, ..self }
    }

    /// Returns the processor as the decoder identifies it.
    pub(super) fn cpu(&self) -> Cpu {
        Cpu::from_signature(self.profile.signature)
    }

    /// Returns the value of IA32_RTIT_CTL. Source: SDM vol. 3, Intel Processor Trace, "IA32_RTIT_CTL MSR".
    pub(super) fn ctl(&self) -> u64 {
        const TRACE_EN: u64 = 1 << 0;
        const CYC_EN: u64 = 1 << 1;
        const OS: u64 = 1 << 2;
        const USER: u64 = 1 << 3;
        const TOPA: u64 = 1 << 8;
        const MTC_EN: u64 = 1 << 9;
        const TSC_EN: u64 = 1 << 10;
        const DIS_RETC: u64 = 1 << 11;
        const BRANCH_EN: u64 = 1 << 13;
        let fields = [
            Some(TRACE_EN | USER | TOPA | BRANCH_EN),
            self.machine.then_some(OS),
            self.tsc.then_some(TSC_EN),
            self.mtc.map(|freq| MTC_EN | u64::from(freq & 0xf) << 14),
            self.cyc.map(|threshold| CYC_EN | u64::from(threshold & 0xf) << 19),
            Some(u64::from(self.psb & 0xf) << 24),
            (!self.ret_compression).then_some(DIS_RETC),
        ];
        let ranges = (0..self.ranges.len()).map(|index| 1 << (32 + 4 * index));
        // No two summands share a bit.
        fields.into_iter().flatten().chain(ranges).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_time_is_what_the_processor_has() {
        for (profile, time, expected) in [
            ("skylake", true, (true, Some(MTC_FREQ), Some(0))),
            ("skylake", false, (false, None, None)),
            ("broadwell", true, (true, None, None)),
        ] {
            let profile = IntelProfile::by_name(profile).expect("a profile");
            let options = RecordOptions { profile, ..RecordOptions::new(["true"]) }.with_time(time);
            assert_eq!((options.tsc, options.mtc, options.cyc), expected, "{}", profile.name);
        }
        let own =
            RecordOptions { mtc: Some(9), cyc: Some(4), ..RecordOptions::new(["true"]) }.with_time(true);
        assert_eq!((own.tsc, own.mtc, own.cyc), (true, Some(9), Some(4)));
    }

    #[test]
    fn every_option_is_its_bits() {
        let plain = RecordOptions::new(["true"]);
        let range: Range = "0x1000-0x1fff".parse().expect("a range");
        let rows = [
            (plain.clone(), 0x2109),
            (RecordOptions { tsc: true, ..plain.clone() }, 0x2509),
            (RecordOptions { machine: true, ..plain.clone() }, 0x210d),
            (RecordOptions { mtc: Some(3), ..plain.clone() }, 0xe309),
            (RecordOptions { cyc: Some(1), ..plain.clone() }, 0x8_210b),
            (RecordOptions { psb: 2, ..plain.clone() }, 0x200_2109),
            // Bits above a field's width are dropped.
            (RecordOptions { mtc: Some(0x1f), cyc: Some(0x1f), psb: 0x1f, ..plain.clone() }, 0xf7b_e30b),
            (RecordOptions { ret_compression: false, ..plain.clone() }, 0x2909),
            (RecordOptions { long_tnt: true, ..plain.clone() }, 0x2109),
            (RecordOptions { ranges: vec![range.clone(), range], ..plain }, 0x11_0000_2109),
        ];
        for (options, expected) in rows {
            assert_eq!(options.ctl(), expected, "{options:?}");
        }
    }
}
