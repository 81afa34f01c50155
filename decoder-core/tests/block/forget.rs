//! A decoder that goes to a PSB forgets its state: it returns the same items as a new decoder that starts there.

use crate::common::{notation::Scenario, scenarios, sections};
use pugmark_decoder_core::{
    Error,
    block::{BlockDecoder, BlockItem},
    block_cache::BlockCache,
    flow::InsnDecoder,
    image::Image,
};
use std::{cell::RefCell, fmt::Debug};

/// Maximum number of items that the decoder returns before it goes to a PSB, and after that.
const STEPS: usize = 32;

/// The ways to go to a PSB. A way that finds none returns `None`.
const WAYS: [&str; 4] = ["at", "forward", "backward", "resync"];

macro_rules! go {
    ($decoder:ident, $way:ident) => {
        match $way {
            "at" => $decoder.sync_at(0).then_some(0),
            "forward" => $decoder.sync_forward(),
            "backward" => $decoder.sync_backward(),
            _ => $decoder.resync(),
        }
    };
}

/// Returns the state that both decoders report.
macro_rules! said {
    ($decoder:ident) => {
        (
            ($decoder.ip(), $decoder.asid(), $decoder.offset(), $decoder.sync_offset(), $decoder.span()),
            ($decoder.time(), $decoder.lost_mtc(), $decoder.lost_cyc(), $decoder.core_bus_ratio()),
        )
    };
}

/// Takes at most `most` steps, up to an error. Returns the result of each step and the state of the decoder after it.
fn steps<D, I, S>(
    decoder: &mut D,
    most: usize,
    next: impl Fn(&mut D) -> Result<Option<I>, Error>,
    said: impl Fn(&D) -> S,
) -> Vec<(Result<I, Error>, S)> {
    let mut failed = false;
    let step = || {
        let item = next(decoder).transpose().filter(|_| !failed)?;
        failed = item.is_err();
        Some((item, said(decoder)))
    };
    std::iter::from_fn(step).take(most).collect()
}

/// Checks that a decoder that has gone to a PSB reports and returns the same as a new one that `goes` there.
fn like_a_new_one<D, I: PartialEq + Debug, S: PartialEq + Debug>(
    decoder: D,
    mut new: D,
    goes: impl Fn(&mut D) -> bool,
    next: impl Fn(&mut D) -> Result<Option<I>, Error>,
    said: impl Fn(&D) -> S,
    what: &str,
) {
    assert!(goes(&mut new), "{what}");
    assert_eq!(said(&decoder), said(&new), "{what}");
    let [found, expected] = [decoder, new].map(|mut decoder| steps(&mut decoder, STEPS, &next, &said));
    let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    assert_eq!(found.get(same), expected.get(same), "{what}, step {same}");
}

/// Returns the trace of a scenario, twice in a row.
fn twice(scenario: &Scenario) -> Vec<u8> {
    [&scenario.trace[..], &scenario.trace].concat()
}

#[test]
fn an_instruction_decoder_that_synchronises_is_like_a_new_one() {
    let said = |decoder: &InsnDecoder<'_>| (said!(decoder), decoder.placed());
    let next = |decoder: &mut InsnDecoder<'_>| decoder.next();
    let (mut count, mut backward) = (0, 0);
    for (name, scenario) in scenarios() {
        let (sections, trace) = (sections(&scenario), twice(&scenario));
        let new = || InsnDecoder::with_config(&trace, Image::new(&sections), scenario.config);
        for used in 0..STEPS {
            for way in WAYS {
                let (mut decoder, other) = (new(), new());
                decoder.sync_forward();
                if steps(&mut decoder, used, next, said).len() < used {
                    continue;
                }
                let Some(psb) = go!(decoder, way) else { continue };
                let what = format!("{name}, {way} after {used}");
                like_a_new_one(decoder, other, |new| new.sync_at(psb), next, said, &what);
                count += 1;
                backward += u32::from(way == "backward");
            }
        }
    }
    assert!(count > 4000 && backward > 1000, "{count}, {backward} backward");
}

#[test]
fn a_block_decoder_that_synchronises_is_like_a_new_one() {
    let said = |decoder: &BlockDecoder<'_>| said!(decoder);
    let (mut count, mut backward) = (0, 0);
    for (name, scenario) in scenarios() {
        let (sections, trace) = (sections(&scenario), twice(&scenario));
        for used in 0..STEPS {
            // Another trace is one more way, and a block cache makes a difference.
            for (way, words) in WAYS.into_iter().chain(["another"]).flat_map(|way| [(way, 0), (way, 5000)]) {
                let mut memory = vec![0; words];
                let cache = RefCell::new(BlockCache::new(&mut memory));
                let next = |decoder: &mut BlockDecoder<'_>| {
                    if words == 0 {
                        return decoder.next();
                    }
                    let mut item = [BlockItem::NONE];
                    match decoder.fill(&mut cache.borrow_mut(), &mut item) {
                        (1, _) => Ok(Some(item[0])),
                        (_, end) => end.map(|()| None),
                    }
                };
                let new = || BlockDecoder::with_config(&trace, Image::new(&sections), scenario.config);
                let (mut decoder, other) = (new(), new());
                decoder.sync_forward();
                if steps(&mut decoder, used, next, said).len() < used {
                    continue;
                }
                let (before, counters) = (said(&decoder), decoder.counters());
                assert!(!decoder.sync_at(1), "{name}, {way} after {used}");
                assert_eq!((said(&decoder), decoder.counters()), (before, counters), "{name} after {used}");
                let psb = if way == "another" {
                    decoder.set_trace(&trace);
                    assert_eq!(said(&decoder), said(&other), "{name}, {way} after {used}");
                    assert_eq!(decoder.counters(), other.counters(), "{name}, {way} after {used}");
                    decoder.sync_forward()
                } else {
                    go!(decoder, way)
                };
                let Some(psb) = psb else { continue };
                let what = format!("{name}, {way} after {used}, {words} words");
                like_a_new_one(decoder, other, |new| new.sync_at(psb), next, said, &what);
                count += 1;
                backward += u32::from(way == "backward");
            }
        }
    }
    assert!(count > 5000 && backward > 1000, "{count}, {backward} backward");
}
