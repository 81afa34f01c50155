//! Damaged traces: both decoders find the same instructions and the same first error at the same place, or the
//! difference has a name.

use crate::{
    Tally, cases, classes::judge, own_decoder::OwnResult, releases::READINGS, stream::Stream,
    subject::Subject,
};
use fastrand::Rng;
use pugmark_decoder_core::config::Config;
use pugmark_harness::libipt::{self, release::RELEASES};
use pugmark_ipt::{Code, packets::LibiptPackets};

/// libipt does not detect an endless loop in the code, so it stops after this many instructions.
pub(crate) const MOST_INSTRUCTIONS: usize = 1 << 14;

/// Number of programs whose traces are damaged.
const PROGRAMS: u64 = 2000;

#[test]
fn packets_of_damaged_traces_have_the_same_first_error() {
    for release in RELEASES {
        let (mut packets, mut errors) = (0, 0);
        for (_, trace) in damaged_traces() {
            let Some((count, error)) = libipt::packets(release, &trace) else {
                return println!("{}", release.skipped());
            };
            let mut own = LibiptPackets::new(&trace, Config::new());
            let (mut own_count, mut own_error) = (0, None);
            if own.sync_forward().is_some() {
                for packet in own.by_ref() {
                    match packet {
                        Ok(_) => own_count += 1,
                        Err(error) => own_error = Some((Code::from(error.kind).text(), error.offset)),
                    }
                }
            }
            let error = error.map(|error| (error.text, error.offset));
            assert_eq!((own_count, own_error), (count, error), "{}", hex(&trace));
            packets += count;
            errors += u64::from(error.is_some());
        }
        println!("{} damaged traces, {packets} packets, {errors} errors", cases());
        assert!(errors > cases() / 20);
    }
}

/// Checks the error of one of the two walks: that of libipt 2.3 follows a later version than both.
#[test]
fn damaged_traces_have_the_same_first_error() {
    let mut tallies = READINGS.each_ref().map(|reading| (reading, Tally::default()));
    for (subject, trace) in damaged_traces() {
        let code = subject.code();
        let own = OwnResult::both(&trace, &code.own);
        for (reading, tally) in &mut tallies {
            let theirs = libipt::decode_to_error(reading.release, &trace, &code.theirs, MOST_INSTRUCTIONS);
            let Some(theirs) = theirs else { return println!("{}", reading.release.skipped()) };
            tally.add(judge(reading, &trace, &code, &own, &theirs), || {
                let said = theirs.errors.first().map(|error| (error.text, error.offset));
                format!(
                    "{:?}: own {:x?} after {}, libipt {said:x?} after {}: {}",
                    subject.topic,
                    own.each_ref().map(|own| own.error),
                    own[1].addresses.len(),
                    theirs.addresses.len(),
                    hex(&trace)
                )
            });
        }
    }
    for (reading, tally) in &tallies {
        // Thirteen of a hundred thousand have no class for 2.0.5, sixteen for 2.1.2: libipt has a change of mode at the
        // first of two places that a TIP names, blames another packet for the same mismatch, or counts more events in
        // a PSB+.
        tally.check("damaged", reading, cases() / 5000, &reading.damaged);
    }
}

/// Returns as many damaged traces as there are cases, each with its program.
pub(crate) fn damaged_traces() -> impl Iterator<Item = (Subject, Vec<u8>)> {
    let mut rng = Rng::with_seed(0x7075_676d);
    let damaged = std::iter::from_fn(move || {
        let subject = Subject::of(rng.u64(..PROGRAMS));
        let mut trace = subject.run.trace.clone();
        damage(&mut trace, &mut rng);
        Some((subject, trace))
    });
    damaged
        .filter(|(_, trace)| !Stream::of(trace).is_newer())
        .take(usize::try_from(cases()).unwrap_or(usize::MAX))
}

/// Makes one to three changes: bits, bytes, removed or repeated stretches, or noise.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.usize(1..=3) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.usize(..bytes.len());
        let end = bytes.len().min(at + rng.usize(1..=64));
        match rng.u8(..6) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = rng.u8(..),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            4 => bytes[at..end].iter_mut().for_each(|byte| *byte = rng.u8(..)),
            _ => bytes.truncate(bytes.len().max(64) - rng.usize(..64)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
