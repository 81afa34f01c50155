//! `ptxed`: shows the instructions of an Intel PT trace, one line each, and the events between them.

mod block;

mod command;
mod decode;
mod diagnose;
mod insn_line;
mod lines;
mod load;
mod reading;

pub use command::{Console, Decoder, GivenCode, PtxedCommand, PtxedFailure, PtxedOptions};
pub use decode::decode;

/// What `--help` prints.
pub const HELP: &str = "\
ptxed [options]: show the instructions of an Intel PT trace. PtxedOptions count in their order.

  --help|-h                this text
  --version                the version
  --pt FILE[:FROM[-TO]]    the trace
  --raw FILE[:FROM[-TO]]:BASE
                           code, and its address
  --elf FILE[:BASE]        code from an ELF file
  --image FILE|DIR         code from a recording's image.json or folder; its processor and clocks, and its trace if no
                           --pt is given
  --insn-decoder           one instruction after the other
  --block-decoder          block by block (default)
  --no-inst                addresses only
  --raw-insn               with the instructions' bytes
  --att                    AT&T syntax
  --quiet|-q               errors only
  --offset, --time         where and when of each line
  --event:time, --event:ip when and where of each event
  --event:tick             events when time goes on
  --event:iflags           events when RFLAGS.IF changes
  --filter:addrN_cfg V, --filter:addrN_a V, --filter:addrN_b V
                           the address filter, N from 0 to 3
  --check                  check each instruction
  --resync-on-error        go on at the next event that has a place
  --stat, --stat:insn, --stat:blocks
                           counts at the end
  --block:show-blocks      a line before each block
  --block:end-on-call, --block:end-on-jump
                           blocks end there
  --insn:keep-tcal-on-ovf, --block:keep-tcal-on-ovf
                           an overflow keeps the calibration
  --iscache-limit N        (no effect)
  --verbose|-v             say what is loaded
  --cpu NAME|F/M[/S]       the processor, for its errata; also none, auto (this one), list (print the names)
  --mtc-freq N, --nom-freq N, --cpuid-0x15.eax N, --cpuid-0x15.ebx N
                           its clocks
  --sb:switch              a line where the traced process changes
  --pevent:kcore F         the kernel's code, an ELF file
  --sb:*, --pevent:*       perf's records, as for ptdump

Numbers are C's: 16, 0x10, 020.
";
