//! Damaged traces whose rest is known: the place where decoders continue after an error, and their results after it.

use crate::recover::{Step, recovered};
use pugmark_decoder_core::{
    config::Config,
    flow::Recovered,
    image::{AddressSpace, Image, Section},
};

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
const START: &[u8] =
    b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
const TIP_1000: &[u8] = b"\x2d\0\x10";
/// TIP (3000), where there is no code.
const NOWHERE: &[u8] = b"\x2d\0\x30";

/// Returns the results as text.
fn words(steps: &[Step]) -> Vec<String> {
    let word = |step: &Step| match step {
        Step::Insn(ip) => format!("{ip:x}"),
        Step::Event(event) => match event.ip {
            Some(ip) => format!("{:x?} ip {ip:x}", event.kind),
            None => format!("{:x?}", event.kind),
        },
        Step::Error(error) => format!("error {:x}", error.offset),
        Step::Recovery(Ok(Recovered::Place)) => "place".into(),
        Step::Recovery(Ok(Recovered::Event(event))) => format!("on the way {:x?}", event.kind),
        Step::Recovery(Ok(Recovered::End)) => "end".into(),
        Step::Recovery(Err(error)) => format!("no place: error {:x}", error.offset),
    };
    steps.iter().map(word).collect()
}

#[test]
fn after_an_error_all_that_comes_from_the_next_known_place_on_is_found() {
    // 1000: nop; 1001: jmp rax; 1003: nop; 1004: jmp rax
    let code = [0x90, 0xff, 0xe0, 0x90, 0xff, 0xe0];
    let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
    // Packets after the error, the decoders' results for them, and the instructions before the targets at the end.
    let rows: &[(&str, &[u8], &str)] = &[
        ("a target", b"\x2d\x03\x10", "error 21, place, 1003, 1004"),
        (
            "an interrupt",
            b"\x3d\x04\x10\x2d\x03\x10",
            "error 24, place, AsyncBranch { from: 1004 } ip 1003, 1003, 1004",
        ),
        ("an overflow, which no error comes before", b"\x02\xf3\x3d\x03\x10", "Overflow ip 1003, 1003, 1004"),
        (
            "tracing ends between two instructions, and begins",
            b"\x3d\x04\x10\x01\x31\x03\x10",
            "error 24, place, AsyncDisabled { at: 1004 }, Enabled { resumed: false } ip 1003, 1003, 1004",
        ),
        (
            "tracing ends, and begins",
            b"\x01\x31\x03\x10",
            "error 21, place, Enabled { resumed: false } ip 1003, 1003, 1004",
        ),
        (
            "tracing ends with an address, and begins there",
            b"\x21\x03\x10\x31\x03\x10",
            "error 21, place, Enabled { resumed: true } ip 1003, 1003, 1004",
        ),
        (
            "a PTWRITE without an address comes before the target",
            b"\x02\x12\x78\x56\x34\x12\x2d\x03\x10",
            "error 21, on the way Ptwrite(Four(12345678)), place, 1003, 1004",
        ),
        (
            "a PTWRITE with an address",
            b"\x02\x92\x78\x56\x34\x12\x3d\x03\x10",
            "error 27, place, 1003, Ptwrite(Four(12345678)) ip 1003, 1004",
        ),
        ("another CR3", b"\x02\x43\x02\0\0\0\0\0\x2d\x03\x10", "error 21, place, 1003, 1004"),
        (
            "a transaction begins",
            b"\x99\x21\x3d\x03\x10",
            "error 23, place, Tsx { speculative: true, aborted: false } ip 1003, 1003, 1004",
        ),
        ("outcomes of a walk that is lost", b"\x04\x0e\x2d\x03\x10", "error 22, place, 1003, 1004"),
    ];
    for (what, packets, expected) in rows {
        let trace = [START, TIP_1000, NOWHERE, packets, TIP_1000, TIP_1000, &[0; 16]].concat();
        let found = words(&recovered(&trace, Image::new(&sections), Config::new(), what));
        assert_eq!(found.join(", "), format!("1000, 1001, 1000, 1001, {expected}, 1000, 1001"), "{what}");
    }
}

#[test]
fn where_no_place_is_known_the_trace_ends_or_the_next_psb_is_looked_for() {
    let sections = [Section { base: 0x1000, bytes: &[0x90, 0xff, 0xe0], space: AddressSpace::Any }];
    for (what, packets, expected) in [
        (
            "tracing ends, and a target follows",
            &b"\x01\x2d\0\x10"[..],
            ", error 21, place, error 22, no place: error 22",
        ),
        ("nothing but outcomes", b"\x04\x0e", ", error 22, end"),
        ("tracing begins although it is on", b"\x31\0\x10", ", error 21, no place: error 21"),
        ("nothing, so that no code is needed there", b"", ""),
    ] {
        let trace = [START, TIP_1000, NOWHERE, packets, &[0; 16]].concat();
        let found = words(&recovered(&trace, Image::new(&sections), Config::new(), what));
        assert_eq!(found.join(", "), format!("1000, 1001, 1000, 1001{expected}"), "{what}");
    }
}
