//! Cuts between packets that a decoder reads together.

use super::{
    check,
    cuts::Cuts,
    whole::{Layer, Step},
};
use pugmark_decoder_core::{
    ErrorKind,
    config::Config,
    errata::Errata,
    image::{AddressSpace, Image, Section},
};

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
const ON: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
/// PSB, PSBEND.
const OFF: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x23";

#[test]
fn a_deferred_tip_is_in_the_slice_after_its_outcomes() {
    // 1000: jmp rax; 1002: call rax; 1004: je 1000; 1006: ret.
    let code = [0xff, 0xe0, 0xff, 0xd0, 0x74, 0xfa, 0xc3];
    let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
    for between in 0..20 {
        // Twice: TIP (1002), TNT (not taken, taken) of je and ret, TIP (1004) of the call before them, TNT (taken).
        let trace = [
            ON,
            b"\x2d\x02\x10\x0a",
            &[0].repeat(between),
            b"\x2d\x04\x10\x06\x2d\x02\x10\x0a\x2d\x04\x10\x06",
            &[0].repeat(40),
        ]
        .concat();
        let seen = Layer::Blocks(5_000).whole(&trace, Image::new(&sections), Config::new()).0;
        let after = seen.iter().filter(|step| matches!(step, Step::Insn(0x1004))).count();
        assert!(
            after >= 2 && !seen.iter().any(|step| matches!(step, Step::Error(_))),
            "{between}: {seen:x?}"
        );
        for at in 0..=trace.len() {
            check(&trace, Image::new(&sections), Config::new(), &Cuts::At(vec![at]), "deferred");
        }
        check(&trace, Image::new(&sections), Config::new(), &Cuts::Each(1), "deferred");
    }
}

#[test]
fn an_error_before_the_packet_that_decides_an_overflow_changes_nothing() {
    // OVF, a TMA without a TSC, padding, FUP (1000).
    let trace = [ON, b"\x06\x02\xf3\x02\x73\x0b\0\0\x20\0", &[0; 20], b"\x3d\0\x10\x06", ON].concat();
    let sections = [Section { base: 0x1000, bytes: &[0x74, 0xfe], space: AddressSpace::Any }];
    let config = Config { errata: Errata { skd010: true, ..Errata::NONE }, ..Config::new() };
    for at in 0..=trace.len() {
        check(&trace, Image::new(&sections), config, &Cuts::At(vec![at]), "overflow");
    }
}

#[test]
fn decoding_goes_back_to_a_psb_that_is_near_only() {
    let sections = [Section { base: 0x1000, bytes: &[0x74, 0xfe], space: AddressSpace::Any }];
    let image = Image::new(&sections);
    for (between, is_near) in [(100, true), (1_000, true), (3_000, false)] {
        // TNT, TIP.PGD, a PSB+ without an address, and later an unknown packet.
        let trace = [ON, b"\x06\x01", OFF, &[0].repeat(between), b"\xc9", ON, b"\x06"].concat();
        let layer = Layer::Blocks(5_000);
        let expected = layer.sliced(&trace, image, Config::new(), &Cuts::At(vec![]));
        let errors = expected.0.iter().filter(
            |step| matches!(step, Step::Error(error) if error.kind == ErrorKind::UnknownOpcode(0xc9)),
        );
        // From the near PSB on, everything is decoded again.
        assert_eq!(errors.count(), if is_near { 2 } else { 1 }, "{between}: {:x?}", expected.0);
        for cuts in [Cuts::Each(1), Cuts::Each(50), Cuts::Each(1_500), Cuts::At(vec![between, between + 40])]
        {
            assert_eq!(layer.sliced(&trace, image, Config::new(), &cuts), expected, "{between} {cuts:?}");
        }
    }
}
