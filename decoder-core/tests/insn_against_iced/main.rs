//! The instruction decoder against iced-x86: millions of byte strings, and real code, in three modes.
//!
//! Every difference falls into a named class of `differences::CLASSES` or fails the test. Strings that iced accepts are
//! accepted with the same length, class and target, without exception. `PUGMARK_LONG=1` takes a hundred times as many
//! strings and all of /usr/bin.

mod classes;
mod differences;
mod newest;
mod strings;

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction};
use pugmark_decoder_core::insn::{Class, Insn, InsnError, decode};
use pugmark_decoder_core::mode::ExecMode;

/// The modes, and iced's names for them.
const MODES: [(ExecMode, u32); 3] = [(ExecMode::Bits16, 16), (ExecMode::Bits32, 32), (ExecMode::Bits64, 64)];

/// 0F 1A and 0F 1B are NOPs, as on all processors without MPX.
const OPTIONS: u32 = DecoderOptions::NONE;

/// Returns true if the long form of the test was requested.
fn long() -> bool {
    std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1")
}

/// Returns iced's reading of `bytes` at `ip`, unless it is invalid.
fn iced(bytes: &[u8], bits: u32, ip: u64, options: u32) -> Result<Instruction, DecoderError> {
    let mut decoder = Decoder::with_ip(bits, bytes, ip, options);
    let insn = decoder.decode();
    if insn.is_invalid() { Err(decoder.last_error()) } else { Ok(insn) }
}

/// Returns the name of the known class of differences that `bytes` fall into, `None` if both agree.
///
/// # Panics
/// For a difference of no known class.
fn compare(bytes: &[u8], mode: ExecMode, bits: u32, ip: u64) -> Option<&'static str> {
    let ours = decode(bytes, mode, ip);
    match (iced(bytes, bits, ip, OPTIONS), ours) {
        (Ok(theirs), Ok(ours)) => {
            let (class, direct) = classes::class(&theirs);
            let target = direct.then(|| theirs.near_branch_target());
            assert_eq!(
                (ours.len as usize, ours.class, ours.target),
                (theirs.len(), class, target),
                "{bits}-bit {bytes:02x?} at {ip:#x}: {:?}",
                theirs.code()
            );
            None
        }
        (Ok(theirs), Err(error)) => panic!("{bits}-bit {bytes:02x?}: {error}, but {:?}", theirs.code()),
        (Err(_), Err(_)) => None,
        (Err(_), Ok(ours)) => {
            let case = differences::Case::new(bytes, mode, bits, ours.len.into());
            let class = differences::CLASSES.iter().find(|class| (class.is)(&case));
            let Some(class) = class else {
                panic!("{bits}-bit {bytes:02x?} is refused by iced, but {ours:?}")
            };
            Some(class.name)
        }
    }
}

#[test]
fn agrees_on_random_strings() {
    let count = if long() { 100_000_000 } else { 2_000_000 };
    let mut strings = strings::Strings::new(0x7075_676d_6172_6b31);
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for at in 0..count {
        let (mode, bits) = MODES[at % 3];
        let (bytes, ip) = strings.next(mode);
        if let Some(class) = compare(&bytes, mode, bits, ip) {
            *seen.entry(class).or_default() += 1;
        }
    }
    for class in differences::CLASSES {
        let times = seen.get(class.name).copied().unwrap_or(0);
        assert!(times > 0, "no string shows `{}` ({}): is it still true?", class.name, class.why);
    }
}

#[test]
fn agrees_on_real_code() {
    let limit = if long() { usize::MAX } else { 8 << 20 };
    let mut total = 0;
    for text in strings::texts() {
        if total >= limit {
            break;
        }
        let text = &text[..text.len().min(limit - total)];
        total += text.len();
        let mut at = 0;
        while at + 16 <= text.len() {
            let ip = 0x5555_5555_0000 + at as u64;
            compare(&text[at..at + 16], ExecMode::Bits64, 64, ip);
            at += decode(&text[at..], ExecMode::Bits64, ip).map_or(1, |insn| insn.len.into());
        }
    }
    assert!(total > 100_000, "found {total} bytes of code only");
}

#[test]
fn every_cut_needs_more_bytes() {
    let mut strings = strings::Strings::new(0x6375_7473);
    for at in 0..if long() { 3_000_000 } else { 100_000 } {
        let (mode, bits) = MODES[at % 3];
        let (bytes, ip) = strings.next(mode);
        let whole = decode(&bytes, mode, ip);
        let Ok(insn) = whole else { continue };
        assert_eq!(decode(&bytes[..insn.len.into()], mode, ip), whole, "{bits}-bit {bytes:02x?}");
        for cut in 0..insn.len.into() {
            assert_eq!(
                decode(&bytes[..cut], mode, ip),
                Err(InsnError::Truncated),
                "{bits}-bit {bytes:02x?}, {cut}"
            );
        }
    }
}

#[test]
fn every_vector_opcode_is_in_iced_or_in_the_list_of_newer_ones() {
    for (name, map, head) in differences::VECTOR_MAPS {
        for opcode in 0..=255 {
            for pp in 0..4 {
                let forms = || differences::vector_forms(head, map, opcode, pp);
                let ours = forms().next().is_some_and(|bytes| decode(&bytes, ExecMode::Bits64, 0).is_ok());
                let theirs = forms().any(|bytes| iced(&bytes, 64, 0, OPTIONS).is_ok());
                let newer = differences::NEWER.iter().any(|row| {
                    (row.0, row.1) == (name, map) && row.2.contains(&opcode) && row.3 >> pp & 1 != 0
                });
                assert_eq!(ours, theirs || newer, "{name} map {map} opcode {opcode:#04x} pp {pp}");
            }
        }
    }
}

#[test]
fn knows_the_instructions_that_iced_does_not_have() {
    let mut count = 0;
    for (name, bytes) in newest::newest() {
        let insn = decode(&bytes, ExecMode::Bits64, 0);
        let Ok(Insn { len, class, target: None, .. }) = insn else { panic!("{name} {bytes:02x?}: {insn:?}") };
        assert_eq!((usize::from(len), class), (bytes.len(), Class::Other), "{name} {bytes:02x?}");
        assert!(iced(&bytes, 64, 0, OPTIONS).is_err(), "iced has {name} by now");
        count += 1;
    }
    assert_eq!(count, 296);
}
