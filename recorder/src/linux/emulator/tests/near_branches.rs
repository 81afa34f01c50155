//! Code that a thread executes again and again is followed in another way than what it executes once. Packets of the
//! time keep the recorder from that, and change nothing else.

use super::*;

const FAULT: RingEntry<'_> = Message(Kind::Partial, &[1]);

/// The pieces of a program after a return.
const FRAGMENTS: [&[RingEntry<'_>]; 7] = [
    // je 1014, taken; ret
    &[Run(0), Run(4)],
    // jmp 1000 before the same
    &[Run(2), Run(3), Run(0), Run(4)],
    // call rax to 3000; ret
    &[Run(7), Run(12)],
    // A system call.
    &[Run(0), Run(1), CALL, Run(2), Run(3), Run(0), Run(4)],
    // A fault and its handler.
    &[Run(2), FAULT, Run(10), RETURN[0], RETURN[1], RETURN[2], Run(2), Run(3), Run(0), Run(4)],
    // A signal's handler at the place that the return leads to.
    &[Run(12), RETURN[0], RETURN[1], RETURN[2], Run(0), Run(4)],
    // The time goes on, and rep movsb repeats.
    &[
        Message(Kind::Time, &[1 << 20, 0]),
        Run(5),
        Run(5),
        Run(6),
        Run(10),
        RETURN[0],
        RETURN[1],
        RETURN[2],
        Run(0),
        Run(4),
    ],
];

/// Returns a program that does some of this, most often what it did before.
fn script(seed: u64, most: usize) -> Vec<RingEntry<'static>> {
    let mut random = seed;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut entries = vec![];
    for _ in 0..most {
        let fragment = next(FRAGMENTS.len());
        for _ in 0..1 + next(20) {
            entries.extend_from_slice(FRAGMENTS[fragment]);
        }
    }
    entries
}

#[test]
fn what_is_executed_often_is_the_flow_that_it_stands_for() {
    let script_of = |name: &str, clocks: bool, limit: Option<u64>| {
        let mut script = Script::new(name);
        script.options =
            RecordOptions { tsc: clocks, mtc: clocks.then_some(0), limit, ..script.options.clone() };
        script
    };
    for seed in 0..4 {
        let entries = script(seed, 60);
        for limit in [None, Some(1), Some(777), Some(1000 + 333 * seed)] {
            let [quick, slow] = [false, true].map(|clocks| {
                let script = script_of(if clocks { "clocks" } else { "near" }, clocks, limit);
                let part = one_thread(&script, &entries);
                (part.truth, part.tsc, flow(&part))
            });
            assert!(quick == slow, "{seed} {limit:?}:\n{}\n{}", quick.2, slow.2);
            let count = quick.0.count();
            assert!(limit.map_or(count > 3000, |limit| count == limit), "{seed} {limit:?}: {count}");
        }
    }
}
