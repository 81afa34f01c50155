//! Checks the instruction flow.

use crate::{events::next_is_in_reach, subject::Subject};
use arbitrary::Unstructured;
use pugmark_decoder_core::{
    Error, ErrorKind,
    flow::{ExecutedInsn, FlowItem, InsnDecoder, Recovered},
    image::Image,
    insn::{self, Class, MAX_LEN},
};

/// Checks that instructions are those of the code and follow each other as in the code, that errors are within the
/// trace, that after an error the next PSB can be reached, and that decoding ends.
///
/// # Panics
/// If any of this is wrong.
pub fn check(data: &[u8]) {
    let Ok(subject) = Subject::made(&mut Unstructured::new(data)) else { return };
    let sections = subject.sections();
    let decoder = InsnDecoder::with_config(&subject.trace, Image::new(&sections), subject.config);
    from_psb_to_psb(&subject, decoder.clone());
    from_event_to_event(&subject, decoder);
}

/// Decodes like users of the library: after an error it continues at the next PSB.
fn from_psb_to_psb(subject: &Subject, mut decoder: InsnDecoder<'_>) {
    let mut steps = 0;
    let mut last = None;
    while let Some(psb) = decoder.resync() {
        assert!(last < Some(psb), "{psb:#x} after {last:x?}");
        last = Some(psb);
        let Err(error) = until_error(subject, &mut decoder, &mut steps) else { return };
        assert!(psb <= error.offset && error.offset <= subject.trace.len() as u64, "{error} after {psb:#x}");
        let again = decoder.next().map_err(|error| error.kind);
        assert_eq!(again, Err(ErrorKind::OutOfSync), "goes on after {error}");
        next_is_in_reach(&subject.trace, psb, error, decoder.clone().resync());
    }
}

/// Continues after an error at the next event that has a place, or at a PSB if there is none.
fn from_event_to_event(subject: &Subject, mut decoder: InsnDecoder<'_>) {
    let mut steps = 0;
    let mut last = None;
    while let Some(psb) = decoder.sync_forward() {
        assert!(last < Some(psb), "{psb:#x} after {last:x?}");
        last = Some(psb);
        loop {
            if until_error(subject, &mut decoder, &mut steps).is_ok() {
                return;
            }
            if !recovers(subject, &mut decoder, &mut steps) {
                break;
            }
        }
    }
}

fn recovers(subject: &Subject, decoder: &mut InsnDecoder<'_>, steps: &mut usize) -> bool {
    loop {
        count(subject, steps);
        match decoder.recover() {
            Ok(Recovered::Place) => return true,
            Ok(Recovered::Event(_)) => {}
            Ok(Recovered::End) => return false,
            Err(error) => {
                assert!(error.offset <= subject.trace.len() as u64, "{error}");
                return false;
            }
        }
    }
}

fn until_error(subject: &Subject, decoder: &mut InsnDecoder<'_>, steps: &mut usize) -> Result<(), Error> {
    let mut before = None;
    loop {
        count(subject, steps);
        let end = subject.trace.len() as u64;
        assert!(decoder.offset() <= end);
        match decoder.next()? {
            Some(FlowItem::Insn(insn)) => {
                let target = in_the_code(decoder, &insn);
                if let Some((before, target)) = before {
                    follows(&before, target, &insn);
                }
                before = Some((insn, target));
            }
            Some(FlowItem::Event(event)) => {
                assert!(event.offset <= end, "{event:?} in {end:#x} bytes");
                before = None;
            }
            None => return Ok(()),
        }
    }
}

fn count(subject: &Subject, steps: &mut usize) {
    *steps += 1;
    assert!(*steps <= subject.most_steps(), "more than {} steps", subject.most_steps());
}

/// Checks that the code has this instruction at its address, and returns the instruction's target.
fn in_the_code(decoder: &InsnDecoder<'_>, found: &ExecutedInsn) -> Option<u64> {
    let mut bytes = [0; MAX_LEN];
    let len = decoder.image().read(found.ip, decoder.asid().cr3, &mut bytes);
    let insn = insn::decode(&bytes[..len], found.mode, found.ip);
    let insn = insn.unwrap_or_else(|error| panic!("{found:x?}: {error:?} in {:02x?}", &bytes[..len]));
    assert_eq!((insn.len, insn.class), (found.len, found.class), "{found:x?} in {:02x?}", &bytes[..len]);
    insn.target
}

/// Checks two instructions without an event between them: one that is no branch must be followed by the next in memory,
/// and a direct branch by its target or, if it is conditional, by the next in memory.
fn follows(before: &ExecutedInsn, target: Option<u64>, insn: &ExecutedInsn) {
    let next = before.ip.wrapping_add(u64::from(before.len));
    let right = match before.class {
        Class::Other | Class::Ptwrite => insn.ip == next,
        Class::NearJump | Class::NearCall => Some(insn.ip) == target,
        Class::CondJump => insn.ip == next || Some(insn.ip) == target,
        _ => true,
    };
    assert!(right, "{insn:x?} after {before:x?}");
}
