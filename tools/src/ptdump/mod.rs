//! `ptdump`: shows the packets of an Intel PT trace, one line each. Packets are the units that the processor writes,
//! such as branch outcomes (TNT), branch targets (TIP) and times (TSC).

mod columns;
mod dump;
mod line;
mod options;
mod tracking;

pub use dump::{dump, errata};
pub use options::{PtdumpCommand, PtdumpOptions};

/// What `--help` prints.
pub const HELP: &str = "\
ptdump [options] FILE[:FROM[-TO]]: show the Intel PT packets of FILE.

  --help|-h               this text
  --version               the version
  --no-sync               begin at the first byte, not at the first PSB
  --quiet                 no packets, only what is wrong with them
  --no-pad                no PAD packets
  --no-timing             no TSC, CBR, TMA, MTC and CYC packets
  --no-cyc                no CYC packets, and no time from them
  --no-offset             no offsets
  --raw                   the packets' bytes
  --lastip                the last IP behind each packet
  --exec-mode             the execution mode behind each MODE.Exec
  --time                  the estimated TSC
  --tcal                  the estimated core cycle to TSC ratio
  --time-delta            the above as differences
  --no-tcal               no calibration
  --no-wall-clock         relative time where no TSC is known
  --keep-tcal-on-ovf      an overflow keeps the calibration
  --cpu NAME|F/M[/S]      the processor, for its errata; also none, auto (this one), list (print the names)
  --image FILE|DIR        a recording's image.json or folder: its processor and clocks, and its trace if no FILE is given
  --mtc-freq N            IA32_RTIT_CTL.MTCFreq
  --nom-freq N            MSR_PLATFORM_INFO[15:8]
  --cpuid-0x15.eax N      CPUID.15H:EAX
  --cpuid-0x15.ebx N      CPUID.15H:EBX
  --sb[:compact]          perf's records, a line each
  --sb:verbose            perf's records, a line a field
  --sb:filename           with their file
  --sb:offset             with their offset in it
  --sb:time               with their time as TSC
  --sb:warn               (no effect here)
  --pevent[:primary] F    perf's records of the traced processor, FILE[:FROM[-TO]]
  --pevent:secondary F    perf's records of another
  --pevent:sample-type V  perf_event_attr.sample_type; this and the following before the files
  --pevent:sample-config ID:V, --pevent:time-zero V, --pevent:time-shift V, --pevent:time-mult V,
  --pevent:tsc-offset V, --pevent:kernel-start V
                          more about the records
  --pevent:sysroot V, --pevent:kcore V, --pevent:vdso-x64 V, --pevent:vdso-x32 V, --pevent:vdso-ia32 V
                          (no effect here)

Numbers are C's: 16, 0x10, 020.
";
