//! `ptxed`: shows the instructions of an Intel PT trace, one line each, and the events between them.

mod command;
mod decode;
mod diagnose;
mod insn_line;
mod lines;
mod load;
mod reading;

pub use command::{Console, Decoder, GivenCode, PtxedCommand, PtxedFailure, PtxedOptions};
pub use decode::decode;

/// The text that `--help` prints.
pub const HELP: &str = "\
Usage: ptxed [options]

Print the instructions of an Intel PT trace, one a line, as libipt's ptxed does. Options count in their order: --cpu,
--image and the decoder come before --pt. Numbers are C's: 16, 0x10, 020.

  --help|-h                print this text
  --version                print the version
  --pt FILE[:FROM[-TO]]    the trace
  --raw FILE[:FROM[-TO]]:BASE
                           code from a file without headers, at address BASE
  --elf FILE[:BASE]        code from an ELF file, moved so that its lowest segment is at BASE
  --image FILE|FOLDER      code, processor and clocks from a recording's image.json or folder; its trace if there is no
                           --pt
  --insn-decoder           decode one instruction after the other
  --block-decoder          decode block by block (default)
  --no-inst                print addresses only
  --raw-insn               print the bytes of each instruction
  --att                    print instructions in AT&T syntax
  --quiet|-q               print only errors
  --offset, --time         print the offset in the trace and the time before each line
  --event:time, --event:ip print the time and the address of each event
  --event:tick             report events where time advances
  --event:iflags           report changes of RFLAGS.IF as events
  --filter:addrN_cfg V, --filter:addrN_a V, --filter:addrN_b V
                           the address filter that was set, N from 0 to 3
  --check                  check each instruction with a second decoder
  --resync-on-error        after an error, continue at the next event that has an address
  --stat, --stat:insn, --stat:blocks
                           print counts at the end
  --block:show-blocks      print a line before each block
  --block:end-on-call, --block:end-on-jump
                           end blocks at calls, at jumps
  --insn:keep-tcal-on-ovf, --block:keep-tcal-on-ovf
                           keep the calibration of time across an overflow
  --iscache-limit N        accepted, without effect here
  --verbose|-v             print what is loaded
  --cpu NAME|F/M[/S]       the traced processor, for its errata; also auto (this one), none, list (print the names)
  --mtc-freq N, --nom-freq N, --cpuid-0x15.eax N, --cpuid-0x15.ebx N
                           the processor's clocks, as for ptdump
  --sb:switch              print a line where the traced process changes
  --pevent:kcore F         code of the kernel from an ELF file
  --sb:*, --pevent:*       perf's records, as for ptdump

Example: ptxed --cpu skylake --elf a.out:0x400000 --pt trace.pt
";
