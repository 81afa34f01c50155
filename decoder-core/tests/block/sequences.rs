//! Traces that repeat themselves, as loops of calls, returns and indirect branches do.

use crate::{
    common::{
        everywhere,
        loops::{A, B, C, D, E, F, G, H, I, J, Processor, all_code, random_trace},
    },
    compare::compare,
};
use pugmark_decoder_core::{
    block::BlockDecoder,
    block_cache::{
        BlockCache,
        edges::{EDGES, EdgeMap},
    },
    config::Config,
    image::{Image, Section},
};

/// Compares all ways to decode a trace. Returns the number of known parts, and the number of errors.
fn compared(what: &str, trace: &[u8], config: Config<'_>) -> (u64, u64) {
    let code = all_code();
    let sum = compare(trace, Image::new(&everywhere(&code)), config)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    (sum.repeated, sum.errors)
}

/// The number of laps of each loop: enough for it to become known.
const LAPS: usize = 30;

#[test]
fn a_return_leads_to_its_call_although_the_bytes_are_those_of_another_call() {
    // C or E calls functions, the last of which is always the same. So the bytes after that call are the same too.
    for others in [&[D][..], &[B, D], &[B, F, D], &[B, F, A, D], &[B, F, A, F, D], &[B, F, A, F, B, D]] {
        let mut processor = Processor::new(C);
        for lap in 0..4 * LAPS {
            for other in others {
                processor.calls(*other);
            }
            for _ in others {
                processor.returns();
            }
            let rare = lap > LAPS && lap % 7 == 0;
            processor.jumps(if rare { E } else { C });
        }
        let (repeated, errors) = compared(&format!("{others:x?}"), &processor.end(), Config::new());
        assert!(repeated > 50 && errors == 0, "{others:x?}: {repeated}, {errors}");
    }
}

#[test]
fn what_a_function_does_is_known_for_each_of_several_callers() {
    for callers in [&[C][..], &[C, E], &[C, E, G], &[C, E, G, A]] {
        let mut processor = Processor::new(B);
        let rounds = 200;
        for caller in callers.iter().cycle().take(rounds) {
            // After the call, the block and the bytes up to B are the same for each caller.
            processor.jumps(*caller).calls(D);
            for _ in 0..4 {
                processor.goes(true).flush();
            }
            processor.jumps(B);
        }
        let (repeated, errors) = compared(&format!("{callers:x?}"), &processor.end(), Config::new());
        assert!(repeated > 1000 && errors == 0, "{callers:x?}: {repeated}, {errors}");
    }
}

#[test]
fn an_ip_is_compressed_against_the_last_one_although_the_block_and_the_bytes_are_those_of_another() {
    // An event is between the return to C and the jump, which the last call leads to another place.
    for (usual, other) in [([D, C, D], [B, A, B]), ([B, C, D], [F, G, H]), ([B, A, B], [J, I, J])] {
        let mut processor = Processor::new(C);
        for lap in 0..4 * LAPS {
            // Few attempts would be made if nothing else repeated itself.
            for _ in 0..8 {
                processor.calls(usual[0]).returns().jumps(C);
            }
            let [first, to, second] = if lap > LAPS && lap % 7 == 0 { other } else { usual };
            processor.calls(first).returns().mnt();
            processor.jumps(to).calls(second).returns().jumps(C);
        }
        let (repeated, errors) =
            compared(&format!("{usual:x?}, {other:x?}"), &processor.end(), Config::new());
        assert!(repeated > 50 && errors == 0, "{usual:x?}, {other:x?}: {repeated}, {errors}");
    }
}

#[test]
fn an_ip_is_compressed_against_an_address_of_more_than_48_bits_before_outcomes_that_are_those_of_another() {
    let mut processor = Processor::new(C);
    for lap in 0..4 * LAPS {
        let (called, to) = if lap > LAPS && lap % 7 == 0 { (J, I) } else { (B, A) };
        processor.calls(called);
        // It returns to C, which calls D and so on, three calls deep: a packet for each outcome, and no target.
        for outcomes in [&[true; 4][..], &[false, true, false, true, false], &[true; 4], &[true; 4]] {
            for taken in outcomes {
                processor.goes(*taken).flush();
            }
        }
        // The last IP is in the function that was called: this has the same bytes in both cases.
        processor.jumps(to).jumps(C);
    }
    let (repeated, errors) = compared("", &processor.end(), Config::new());
    assert!(repeated > 50 && errors == 0, "{repeated}, {errors}");
}

#[test]
fn no_more_returns_are_compressed_than_the_stack_has_room_for_calls() {
    let mut errors = 0;
    for calls in 60..70 {
        for (laps, depth) in [(0, 0), (LAPS, 1), (LAPS, 3), (LAPS, 6)] {
            let mut processor = Processor::new(C);
            for call in 0..calls {
                processor.calls(if call % 2 == 0 { D } else { C });
            }
            // Calls that return, with the stack full or nearly full.
            for _ in 0..laps {
                match depth {
                    1 => processor.calls(A).returns(),
                    3 => processor.calls(A).calls(D).calls(F).returns().returns().returns(),
                    _ => processor.nests(depth),
                };
                processor.jumps(C);
            }
            while processor.known > 0 {
                processor.returns();
            }
            processor.flush();
            let (_, none) = compared(&format!("{calls}, {laps}, {depth}"), &processor.trace, Config::new());
            assert_eq!(none, 0, "{calls}, {laps}, {depth}");
            // One more return, which no processor would compress.
            processor.known = 1;
            processor.returns();
            errors +=
                compared(&format!("{calls}, {laps}, {depth}, too many"), &processor.end(), Config::new()).1;
        }
    }
    assert!(errors >= 20, "{errors}");
}

#[test]
fn outcomes_without_a_target_repeat_themselves_too() {
    for (event, rare) in [(false, 7), (true, 7), (false, 1000), (true, 1000)] {
        let mut processor = Processor::new(C);
        for lap in 0..4 * LAPS {
            // Three calls that return, with a packet for each outcome.
            let mut outcomes =
                [true, false, true, false, true, false, true, true, true, true, true, true, true, true];
            if lap > LAPS && lap % rare == 0 {
                // The last call is followed by one more call.
                outcomes[7] = false;
            }
            for taken in outcomes {
                processor.goes(taken).flush();
            }
            if event {
                processor.mnt();
            }
            processor.jumps(C);
        }
        let what = format!("{event}, {rare}");
        let (repeated, errors) = compared(&what, &processor.end(), Config::new());
        // Each event begins a new walk, in which the first attempt may be far.
        assert!(repeated > if event { 30 } else { 500 } && errors == 0, "{what}: {repeated}, {errors}");
    }
}

#[test]
fn returns_whose_target_is_named_take_a_call_from_the_stack() {
    let mut processor = Processor::new(C);
    for _ in 0..4 * LAPS {
        processor.calls(D).calls(A).named_return().returns().jumps(C);
        processor.calls(D).named_return().jumps(C);
    }
    // Calls before a PSB have no compressed return.
    for call in 0..40 {
        processor.calls(if call % 2 == 0 { D } else { C });
    }
    processor.psb();
    for _ in 0..40 {
        processor.returns();
    }
    let trace = processor.end();
    let (repeated, _) = compared("named returns", &trace, Config::new());
    assert!(repeated > 50, "{repeated}");
}

#[test]
fn what_repeats_itself_is_forgotten_with_the_code() {
    let mut processor = Processor::new(C);
    for _ in 0..4 * LAPS {
        processor.calls(D).returns().jumps(A).calls(F).returns().jumps(C);
    }
    let trace = processor.end();
    // The same branches, but the return is one byte later.
    let code = all_code();
    let mut other = code.clone();
    for (_, bytes) in &mut other {
        bytes.splice(11.., [0x74, 0x03, 0xff, 0xe0, 0x90, 0xc3]);
    }
    let counts = |sections: &[Section<'_>], cache: &mut BlockCache<'_>| {
        let mut map = Box::new([0; EDGES]);
        let mut decoder = BlockDecoder::new(&trace, Image::new(sections));
        decoder.sync_forward();
        decoder.visit(cache, &mut EdgeMap::<true>::new(&mut map)).expect("the trace fits the code");
        map
    };
    let (mut memory, mut other_memory) = (vec![0; 100_000], vec![0; 100_000]);
    let mut cache = BlockCache::new(&mut memory);
    for sections in [everywhere(&code), everywhere(&other), everywhere(&code)] {
        let expected = counts(&sections, &mut BlockCache::new(&mut other_memory));
        for _ in 0..5 {
            assert!(counts(&sections, &mut cache) == expected);
        }
    }
    assert!(cache.statistics().repeated > 50, "{:?}", cache.statistics());
}

#[test]
fn loops_whose_trace_repeats_itself_have_the_same_edges_however_they_are_counted() {
    let mut random = fastrand::Rng::with_seed(0x7374_7265_7463);
    let (mut repeated, mut errors) = (0, 0);
    for round in 0..200 {
        let mut trace = random_trace(&mut random, 5 + round % 60);
        let (these, none) = compared(&format!("{round}"), &trace, Config::new());
        assert_eq!(none, 0, "{round}: {trace:x?}");
        repeated += these;
        for _ in 0..1 + trace.len() / 400 {
            let at = random.usize(..trace.len());
            trace[at] = random.u8(..);
        }
        errors += compared(&format!("{round}, damaged"), &trace, Config::new()).1;
    }
    println!("{repeated} repeats, {errors} errors");
    assert!(repeated > 5_000, "{repeated}");
    assert!(errors > 100, "{errors}");
}
