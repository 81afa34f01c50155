//! `ptdump`: shows the packets of an Intel PT trace, one line each. Packets are the units that the processor writes,
//! such as branch outcomes (TNT), branch targets (TIP) and times (TSC).

mod columns;
mod dump;
mod line;
mod options;
mod tracking;

pub use dump::{dump, errata};
pub use options::{PtdumpCommand, PtdumpOptions};

/// The text that `--help` prints.
pub const HELP: &str = "\
Usage: ptdump [options] FILE[:FROM[-TO]]

Print the Intel PT packets of FILE, one a line, as libipt's ptdump does. Numbers are C's: 16, 0x10, 020.

  --help|-h               print this text
  --version               print the version
  --no-sync               begin at the first byte instead of the first PSB
  --quiet                 print only errors, no packets
  --no-pad                leave out PAD packets
  --no-timing             leave out TSC, CBR, TMA, MTC and CYC packets
  --no-cyc                leave out CYC packets, and do not use them for time
  --no-offset             leave out the offsets
  --raw                   print the bytes of each packet
  --lastip                print the last IP after each packet with an IP
  --exec-mode             print the execution mode after each MODE.Exec packet
  --time                  print the estimated TSC
  --tcal                  print the estimated ratio of core cycles to the TSC
  --time-delta            print TSC or ratio as the difference from the one before
  --no-tcal               do not calibrate the ratio
  --no-wall-clock         print relative time where no TSC is known
  --keep-tcal-on-ovf      keep the calibration across an overflow
  --cpu NAME|F/M[/S]      the traced processor, for its errata; also auto (this one), none, list (print the names)
  --image FILE|FOLDER     a recording's image.json or folder: its processor and clocks; its trace if no FILE is given
  --mtc-freq N            IA32_RTIT_CTL.MTCFreq of the trace
  --nom-freq N            MSR_PLATFORM_INFO[15:8] of the processor
  --cpuid-0x15.eax N      CPUID.15H:EAX of the processor
  --cpuid-0x15.ebx N      CPUID.15H:EBX of the processor
  --sb[:compact]          print perf's records, one a line
  --sb:verbose            print perf's records, one field a line
  --sb:filename           print the file of each record
  --sb:offset             print the offset of each record in its file
  --sb:time               print the time of each record as TSC
  --pevent[:primary] F    FILE[:FROM[-TO]] with perf's records of the traced processor
  --pevent:secondary F    FILE[:FROM[-TO]] with perf's records of another processor
  --pevent:sample-type V  perf_event_attr.sample_type; applies, as all below do, to the record files after it
  --pevent:sample-config ID:V, --pevent:time-zero V, --pevent:time-shift V, --pevent:time-mult V,
  --pevent:tsc-offset V, --pevent:kernel-start V
                          how the records were taken
  --sb:warn, --pevent:sysroot V, --pevent:kcore V, --pevent:vdso-x64 V, --pevent:vdso-x32 V, --pevent:vdso-ia32 V
                          accepted, without effect here

Example: ptdump --cpu skylake --raw --lastip trace.pt
";
