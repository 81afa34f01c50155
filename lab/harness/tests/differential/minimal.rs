//! A minimal case for each difference that has a name.

use crate::{
    classes::{Class, Verdict, judge},
    own_decoder::OwnResult,
    releases::READINGS,
    subject::{Code, START},
};
use pugmark_harness::libipt;
use std::ptr;

/// The class, a name, the packets after [`START`], the code at 1000, and the first report: of the decoder under test,
/// and of each release of [`READINGS`]. The first of these differs everywhere.
type Case = (Class, &'static str, &'static [u8], &'static [u8], FirstReport, [FirstReport; 2]);
type FirstReport = Option<(&'static str, u64)>;

const NOP: &[u8] = b"\x90\x90\x90";
const JNZ: &[u8] = b"\x75\xfe";
const JMP_RAX: &[u8] = b"\xff\xe0";
const RET: &[u8] = b"\xc3";
const MOV_CR3: &[u8] = b"\x0f\x22\xd8";

const NO_MEMORY: &str = "no memory mapped at this address";
const MISMATCH: &str = "trace stream does not match query";
const CONTEXT: &str = "unexpected packet context";
const SUPPRESSED: &str = "ip has been suppressed";

const CASES: &[Case] = &[
    (
        Class::ReadsAhead,
        "TNT (N) for a return, then no packet",
        b"\x04\x09",
        RET,
        Some(("bad compressed return", 28)),
        [Some(("unknown opcode", 28)), Some(("bad compressed return", 28))],
    ),
    (
        Class::ReadsAhead,
        "TNT (N) that is not used",
        b"\x04",
        NOP,
        Some((NO_MEMORY, 28)),
        [Some((NO_MEMORY, 27)), Some((NO_MEMORY, 28))],
    ),
    (
        Class::ReadsAhead,
        "TIP.PGE while tracing is on",
        b"\x31\0\x10",
        NOP,
        Some((CONTEXT, 27)),
        [Some((CONTEXT, 30)), Some((CONTEXT, 30))],
    ),
    (Class::OpcodeOnly, "TIP that is cut off", b"\x4d", JNZ, None, [Some((MISMATCH, 27)), None]),
    (
        Class::OpcodeOnly,
        "TIP with IPBytes 7",
        b"\xed\0\0",
        JNZ,
        Some(("unknown packet", 27)),
        [Some((MISMATCH, 27)), Some(("unknown packet", 27))],
    ),
    (
        Class::Context,
        "TIP.PGD (), then TNT (N)",
        b"\x01\x04",
        MOV_CR3,
        Some((CONTEXT, 28)),
        [Some(("expected tracing enabled event", 28)), Some((CONTEXT, 28))],
    ),
    (
        Class::Context,
        "TIP () for a jump",
        b"\x0d",
        JMP_RAX,
        Some((SUPPRESSED, 27)),
        [Some(("no ip", 28)), Some(("no ip", 28))],
    ),
    (
        Class::Context,
        "MODE.Exec (32 bit), then TNT (N)",
        b"\x99\x02\x04",
        JNZ,
        None,
        [Some((MISMATCH, 29)), None],
    ),
    (
        Class::EventPlace,
        "TIP.PGD (1000) without a branch",
        b"\x21\0\x10",
        NOP,
        None,
        [Some((NO_MEMORY, 30)), Some((NO_MEMORY, 30))],
    ),
    (
        Class::EventPlace,
        "TIP.PGD (), then TIP.PGE (1000), for a conditional jump",
        b"\x01\x31\0\x10",
        JNZ,
        None,
        [Some((MISMATCH, 28)), Some((MISMATCH, 28))],
    ),
    (Class::EventPlace, "TNT (N) for an indirect jump", b"\x04", JMP_RAX, Some((MISMATCH, 28)), [None, None]),
    (
        Class::Instruction,
        "TNT (N) for a conditional jump after prefix D5",
        b"\x04",
        b"\xd5\0\x75\xfe",
        Some(("unknown instruction", 28)),
        [None, None],
    ),
];

#[test]
fn each_named_difference_has_a_minimal_case() {
    for &(class, what, packets, code, own, theirs) in CASES {
        let trace = [START, packets].concat();
        let code = Code::new(&[(0x1000, code)]);
        let decoded = OwnResult::both(&trace, &code.own);
        assert_eq!(decoded[1].said(), own, "{what}");
        for (reading, theirs) in READINGS.iter().zip(theirs) {
            let libipt = libipt::decode_to_error(reading.release, &trace, &code.theirs, 16);
            let Some(libipt) = libipt else { return println!("{}", reading.release.skipped()) };
            let said = libipt.errors.first().map(|error| (error.text, error.offset));
            let name = reading.release.folder_name();
            assert_eq!(said, theirs, "{name}: {what}");
            let same = decoded.iter().position(|own| own.said() == said && own.addresses == libipt.addresses);
            let expected = same.map_or(Verdict::Differs(class), Verdict::Same);
            assert_eq!(judge(reading, &trace, &code, &decoded, &libipt), expected, "{name}: {what}");
            assert!(same.is_none() || !ptr::eq(reading, &raw const READINGS[0]), "{what}");
        }
    }
    let has_case = |class| CASES.iter().any(|case| case.0 == class);
    assert!(Class::ALL.into_iter().all(has_case));
}
