//! Event Trace in the instruction and block decoders, compared with libipt 2.1.2.

use crate::{
    damage,
    flow::{Call, DecoderKind, Decoders, recorded_with_event_trace},
    library::{Config, both_with_2_1_2},
};

/// The flags of an event that do not depend on the time: no address, and only the state at a PSB.
const FLAGS: u32 = 3;
/// The size of an event in the header of 2.1.2.
const EVENT: usize = 72;

/// `enable_iflags_events` in the flags of instruction and block decoders, which users of Event Trace set.
const INTERRUPT_FLAG_EVENTS: [u32; 2] = [1 << 2, 1 << 4];

/// An answer of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    /// An instruction's address, or the number of instructions in blocks without an event in between.
    Insns(u64),
    /// Kind, flags, and the union.
    Event(i32, u32, [u64; 4]),
    Error(i32),
}

/// Returns all answers of one of the libraries.
fn given(decoders: &Decoders, at: usize, kind: DecoderKind) -> Vec<Given> {
    let (mut given, mut next) = (vec![], Call::Forward);
    for _ in 0..1000 {
        let answer = decoders.answer(at, next);
        match next {
            Call::Forward if answer.status < 0 => return given,
            Call::Event(_) if answer.status >= 0 => {
                let event = answer.event;
                let [.., first, second, third] = event.rest;
                given.push(Given::Event(
                    event.kind,
                    event.flags & FLAGS,
                    [first, second, third, event.after],
                ));
            }
            Call::Next(_) if answer.status >= 0 => match (kind, given.last_mut()) {
                (DecoderKind::Insns, _) => given.push(Given::Insns(answer.item.0[0])),
                (DecoderKind::Blocks, before) => match (answer.item.0[3] >> 32 & 0xffff, before) {
                    // Since 2.1 there may be an empty block before the first event.
                    (0, _) => {}
                    (more, Some(Given::Insns(before))) => *before += more,
                    (more, _) => given.push(Given::Insns(more)),
                },
            },
            _ => {}
        }
        next = match answer.status {
            status @ ..0 => {
                given.push(Given::Error(status));
                Call::Forward
            }
            status if status & 1 != 0 => Call::Event(EVENT),
            _ => Call::Next(kind.size()),
        };
    }
    panic!("it does not end");
}

/// Returns whether an event only gives the state at a PSB. Since 2.1 there is one more of these, for tracing itself,
/// and an error comes after them.
fn is_of_psb(given: &Given) -> bool {
    matches!(given, Given::Event(_, flags, _) if flags & 2 != 0)
}

#[test]
fn the_events_of_event_trace_are_at_the_same_instructions() {
    let Some(both) = both_with_2_1_2() else { return };
    let mut kinds = [0; 34];
    for (trace, file, base) in recorded_with_event_trace() {
        if !damage::has_event_trace(&trace) {
            continue;
        }
        for kind in [DecoderKind::Insns, DecoderKind::Blocks] {
            let mut config = Config::new(&trace);
            config.flags[0] = INTERRUPT_FLAG_EVENTS[kind as usize];
            let decoders = Decoders::new(both, kind, &config);
            decoders.add_file(&file, 0, u64::MAX, base, None);
            let [theirs, ours] = [0, 1].map(|at| {
                let mut given = given(&decoders, at, kind);
                given.retain(|given| !is_of_psb(given));
                given
            });
            assert_eq!(theirs, ours, "{kind:?} {}", file.display());
            for given in theirs {
                if let Given::Event(kind, ..) = given {
                    kinds[kind as usize] += 1;
                }
            }
        }
    }
    // From the interrupt flag to the VM exit.
    assert!(kinds[22..=30].iter().all(|count| *count > 0), "{kinds:?}");
}
