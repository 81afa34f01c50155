//! Wrong decodes must not be explained: the result of the walk that agrees with libipt is changed in small ways, and
//! the judge must notice. The other walk is left out: where it differs from libipt, it has its class without a change.

use crate::{
    classes::{Verdict, judge},
    damage::{MOST_INSTRUCTIONS, damaged_traces},
    own_decoder::OwnResult,
    releases::{READINGS, Reading},
    stream::Stream,
};
use fastrand::Rng;
use pugmark_decoder_core::{Error, ErrorKind};
use pugmark_harness::libipt;

/// A change to the decoder's result at a random place.
type Change = fn(&mut OwnResult, &Stream, &mut Rng);

/// Changes, and the percentage that must be noticed. A change that libipt would report too does not count.
const CHANGES: [(&str, u64, Change); 10] = [
    ("the error's offset is the next packet's", 94, |own, stream, _| {
        if let Some(error) = &mut own.error {
            error.offset = stream.next(error.offset);
        }
    }),
    ("the error's offset is that of a branch before", 67, |own, stream, rng| {
        if let Some(error) = &mut own.error {
            error.offset = stream.branch_before(error.offset, rng.usize(1..4)).unwrap_or(error.offset);
        }
    }),
    ("the error's offset is one more", 95, |own, _, _| {
        if let Some(error) = &mut own.error {
            error.offset += 1;
        }
    }),
    ("the error is not seen", 97, |own, _, _| own.error = None),
    ("the error is another one", 97, |own, _, _| {
        if let Some(error) = &mut own.error {
            let ip = error.kind.ip().unwrap_or(0x1000);
            error.kind = match error.kind {
                ErrorKind::TraceMismatch { .. } => ErrorKind::NoMemory { ip },
                _ => ErrorKind::TraceMismatch { ip },
            };
        }
    }),
    ("an instruction is missing", 95, |own, _, rng| {
        if !own.addresses.is_empty() {
            own.addresses.remove(rng.usize(..own.addresses.len()));
        }
    }),
    ("an address is one more", 98, |own, _, rng| {
        if !own.addresses.is_empty() {
            let at = rng.usize(..own.addresses.len());
            own.addresses[at] += 1;
        }
    }),
    ("a packet is refused", 99, |own, stream, rng| {
        stop(own, stream, rng, |_| ErrorKind::UnexpectedPacket("TIP"))
    }),
    ("an instruction does not fit", 89, |own, stream, rng| {
        stop(own, stream, rng, |ip| ErrorKind::TraceMismatch { ip });
    }),
    ("an event is passed over", 93, |own, _, rng| {
        if !own.events.is_empty() {
            let event = own.events.remove(rng.usize(..own.events.len()));
            own.addresses.truncate(event.after);
            own.error = None;
        }
    }),
];

/// Inserts an error that does not exist, at any packet before the end.
fn stop(own: &mut OwnResult, stream: &Stream, rng: &mut Rng, kind: fn(u64) -> ErrorKind) {
    let share = rng.f64();
    let Some(offset) = stream.offset(share, own.error.map_or(u64::MAX, |error| error.offset)) else { return };
    let keep = (own.addresses.len() as f64 * share) as usize;
    let ip = own.addresses.get(keep).copied().unwrap_or(0x1000);
    own.addresses.truncate(keep);
    own.events.retain(|event| event.after <= keep);
    own.error = Some(Error { offset, kind: kind(ip) });
}

#[test]
fn a_wrong_decode_is_not_explained() {
    for reading in &READINGS {
        let Some(found) = noticed(reading) else { return println!("{}", reading.release.skipped()) };
        let name = reading.release.folder_name();
        for ((what, least, _), (all, noticed)) in CHANGES.iter().zip(found) {
            println!("{name}: {what}: {noticed} of {all} are noticed");
            assert!(
                all > 100 && noticed * 100 >= all * least,
                "{name}: {what}: {noticed} of {all} are noticed"
            );
        }
    }
}

/// Returns the number of traces with each change, and the number in which it was noticed; `None` without libipt.
fn noticed(reading: &Reading) -> Option<[(u64, u64); CHANGES.len()]> {
    let mut rng = Rng::with_seed(0x7065);
    let mut found = [(0, 0); CHANGES.len()];
    for (subject, trace) in damaged_traces() {
        let code = subject.code();
        let theirs = libipt::decode_to_error(reading.release, &trace, &code.theirs, MOST_INSTRUCTIONS)?;
        let own = OwnResult::both(&trace, &code.own);
        let Verdict::Same(walk) = judge(reading, &trace, &code, &own, &theirs) else { continue };
        let stream = Stream::of(&trace);
        for ((_, _, change), (all, noticed)) in CHANGES.iter().zip(&mut found) {
            let mut changed = own[walk].clone();
            change(&mut changed, &stream, &mut Rng::with_seed(rng.u64(..)));
            if own.iter().any(|own| own.said() == changed.said() && own.addresses == changed.addresses) {
                continue;
            }
            let changed = [changed.clone(), changed];
            *all += 1;
            *noticed += u64::from(judge(reading, &trace, &code, &changed, &theirs) == Verdict::Unexplained);
        }
    }
    Some(found)
}
