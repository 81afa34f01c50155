//! The recordings, their processors, and the expectations.

use std::fmt;
use std::ops::Range;

/// The kind of a row's recording, and its comparison with the truth.
#[derive(Clone, Debug)]
pub enum Check {
    /// Every instruction of the program, and of every other with `-a`, by `perf record` with Intel PT: perf's decoder
    /// and ours find those of the truth. Functions have perf's names.
    Instructions,
    /// As [`Self::Instructions`], on a processor without MTC packets. perf dates the execution of such a processor to
    /// the last TSC packet. If that is before a program's file was mapped, perf knows no code for it: perf reports an
    /// error and finds the instructions from the next PSB on. Our decoder finds all.
    Undated,
    /// As [`Self::Instructions`], with the kernel's, whose code is in perf's copy (`--kcore`).
    Everything,
    /// As [`Self::Instructions`], only of those at these addresses.
    Within(Range<u64>),
    /// The last instructions of the program, by `perf record --snapshot` with Intel PT: equal to the truth's last ones.
    Last,
    /// The program's branches, by `perf record` with branch records: equal to those of the truth.
    Branches,
    /// As [`Self::Instructions`], of the guest's program `ptwrite`, with the numbers that it wrote.
    Written,
    /// The addresses of samples: each is one of the truth's instructions.
    Samples,
    /// As [`Self::Samples`], where the interrupt may be so late that the kernel is executing, or where that is sampled.
    Skidding,
    /// As [`Self::Skidding`], of addresses that were fetched.
    Fetches,
    /// As [`Self::Skidding`], with the memory accesses: Linux and Pugmark decode their registers alike.
    Accesses,
    /// As [`Self::Samples`], of samples in a trace of Intel PT, with their period in instructions: perf's decoder and
    /// ours find all of them, and each at its instruction.
    Traced(usize),
    /// The last branches, or the calls that have not returned, at each sample: each is in the truth.
    Stacks,
    /// A number of instructions, by `perf stat`: equal to that of the truth.
    Count,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The processor that the monitor presents.
    pub profile: &'static str,
    /// Number of processors of the machine.
    pub processors: u16,
    /// The machine's memory in MiB.
    pub memory: Option<u64>,
    /// The arguments of `perf record`, or of `perf stat` for [`Check::Count`], as a shell reads them.
    pub arguments: &'static str,
    /// The expectation.
    pub check: Check,
}

impl Row {
    /// Returns the properties of the row's machine.
    #[must_use]
    pub const fn machine(&self) -> (&'static str, u16, Option<u64>) {
        (self.profile, self.processors, self.memory)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (profile, arguments) = (self.profile, self.arguments);
        match self.processors {
            1 => write!(f, "{profile:9} {arguments}"),
            number => write!(f, "{profile} × {number} {arguments}"),
        }
    }
}

const fn row(profile: &'static str, arguments: &'static str) -> Row {
    Row { profile, processors: 1, memory: None, arguments, check: Check::Instructions }
}

const fn checked(profile: &'static str, arguments: &'static str, check: Check) -> Row {
    Row { profile, processors: 1, memory: None, arguments, check }
}

/// Returns the short table.
#[must_use]
pub fn short() -> Vec<Row> {
    vec![
        row("skylake", "-e intel_pt//u -- gzip -kc /etc/passwd"),
        row("skylake", "--per-thread -e intel_pt//u -- sha256sum /etc/passwd"),
        row("skylake", "-e intel_pt//u -- /usr/bin/seq 1 10"),
        checked("skylake", FILTERED, Check::Within(FILTERED_ADDRESSES)),
    ]
}

/// A recording of the first pages of busybox's code, which begins at 0x1000 in the file and at 0x401000 in memory.
const FILTERED: &str =
    "-e intel_pt//u --filter 'filter 0x1000/0x10000@/bin/busybox' -- sha256sum /etc/passwd";
const FILTERED_ADDRESSES: Range<u64> = 0x40_1000..0x41_1000;

/// A recording whose samples are in the trace of Intel PT, which otherwise has only the time.
const TRACED_SAMPLES: &str =
    "-c 1009 -e '{intel_pt/branch=0/u,instructions/aux-output/upp}' -- sha256sum /etc/passwd";
/// The same with registers and call chains, which no PEBS record has, so Linux wants a PMI after each.
const TRACED_REGISTERS: &str = "-g --intr-regs=ax,ip -c 1009 \
    -e '{intel_pt/branch=0/u,instructions/aux-output/upp}' -- sha256sum /etc/passwd";
/// The same within a trace of all instructions.
const SAMPLES_AMONG_BRANCHES: &str =
    "-c 1009 -e '{intel_pt//u,instructions/aux-output/upp}' -- sha256sum /etc/passwd";

/// A recording of all programs while each processor has a program of its own, all at the same time.
const ON_TWO: &str = "-a -e intel_pt//u -- sh -c \
    'taskset 1 sha256sum /etc/passwd & taskset 2 gzip -kc /etc/passwd & wait'";
const ON_FOUR: &str = "-a -e intel_pt//u -- sh -c 'taskset 1 sha256sum /etc/passwd & \
    taskset 2 gzip -kc /etc/passwd & taskset 4 ls -l / & taskset 8 md5sum /etc/passwd & wait'";

/// A program with shared libraries, whose functions it calls: busybox has none.
pub(super) const SEQ: &str = "/usr/bin/seq";

/// A recording of the kernel, too. It needs much memory: for the trace, and for the copies of the kernel's code.
const WITH_KERNEL: &str = "--kcore -m,4096 -e intel_pt// -- /usr/bin/seq 1 10";

const ON_TWO_WITH_KERNEL: &str = "-a --kcore -m,2048 -e intel_pt// -- taskset 2 true";

/// Returns the whole table. The rows of one machine are adjacent.
#[must_use]
pub fn all() -> Vec<Row> {
    let mut rows = short();
    rows.extend([
        row("skylake", "-e intel_pt/noretcomp/u -- ls -l /"),
        row("skylake", "-e intel_pt/cyc,mtc,tsc/u -- sha256sum /etc/passwd"),
        row("skylake", "--per-thread -e intel_pt/tsc=0,mtc=0/u -- ls -l /"),
        checked("skylake", "--snapshot=e -m,16 -e intel_pt//u -- gzip -kc /etc/passwd", Check::Last),
        checked("skylake", "-j any,u -e instructions:u -c 1009 -- sha256sum /etc/passwd", Check::Stacks),
        checked("skylake", "--per-thread -e intel_bts//u -- sha256sum /etc/passwd", Check::Branches),
        checked("broadwell", "-e intel_pt//u -- gzip -kc /etc/passwd", Check::Undated),
        row("broadwell", "--per-thread -e intel_pt//u -- gzip -kc /etc/passwd"),
        row("icelake", "-e intel_pt//u -- gzip -kc /etc/passwd"),
        checked("icelake", "-e instructions:upp -c 1009 -- sha256sum /etc/passwd", Check::Samples),
        checked("icelake", "-e instructions:u -- sha256sum /etc/passwd", Check::Count),
        checked("icelake", "-j any,u -e instructions:u -c 1009 -- sha256sum /etc/passwd", Check::Stacks),
        checked(
            "icelake",
            "--call-cache lbr -e instructions:u -c 1009 -- sha256sum /etc/passwd",
            Check::Stacks,
        ),
        checked("icelake", "-e intel_pt/ptw,fup_on_ptw/u -- ptwrite", Check::Written),
        checked("icelake", "-e intel_pt/ptw/u -- ptwrite", Check::Written),
        checked("tremont", TRACED_SAMPLES, Check::Traced(1009)),
        checked("tremont", TRACED_REGISTERS, Check::Traced(1009)),
        row("tremont", SAMPLES_AMONG_BRANCHES),
        row("sapphire-rapids", "-e intel_pt//u -- gzip -kc /etc/passwd"),
        checked("zen4", "-e instructions:u -- sha256sum /etc/passwd", Check::Count),
        checked("zen4", "-e instructions:u -c 1009 -- sha256sum /etc/passwd", Check::Skidding),
        checked("zen4", "-j any,u -e instructions:u -c 1009 -- sha256sum /etc/passwd", Check::Stacks),
        // A stepped instruction takes a hundred cycles.
        checked("zen4", "-a -e ibs_op// -c 1000000 -- true", Check::Skidding),
        checked("zen4", "-a -e ibs_op/cnt_ctl=1/ -c 10000 -- true", Check::Skidding),
        checked("zen4", "-a -e ibs_fetch// -c 10000 -- true", Check::Fetches),
        // A machine of its own: the log of all of Zen 4's rows would be too large.
        Row {
            memory: Some(512),
            ..checked("zen4", "-a -d -W -R -e ibs_op/cnt_ctl=1/ -c 10000 -- true", Check::Accesses)
        },
        Row { processors: 2, ..row("skylake", "-e intel_pt//u -- taskset 1 sha256sum /etc/passwd") },
        Row { processors: 2, ..row("skylake", "-e intel_pt//u -- gzip -kc /etc/passwd") },
        Row { processors: 2, ..row("skylake", ON_TWO) },
        Row { memory: Some(512), ..checked("skylake", WITH_KERNEL, Check::Everything) },
        Row { processors: 2, memory: Some(512), ..checked("skylake", ON_TWO_WITH_KERNEL, Check::Everything) },
        Row { processors: 4, ..row("icelake", ON_FOUR) },
    ]);
    rows
}
