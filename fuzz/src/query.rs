//! Compares the query layer with the events that it is based on.

use crate::events;
use arbitrary::Unstructured;
use pugmark_decoder_core::{
    Error,
    event::{Event, EventDecoder, EventKind},
    query::{BranchEvent, Pending, QueryDecoder, QueryError},
};

/// Checks that from each PSB on the branch events are exactly those that follow from the event layer.
///
/// # Panics
/// If a branch event differs.
pub fn check(data: &[u8]) {
    let Ok((config, trace)) = events::subject(&mut Unstructured::new(data)) else { return };
    let mut below = EventDecoder::with_config(&trace, config);
    let mut query = QueryDecoder::with_config(&trace, config);
    loop {
        let psb = below.sync_forward();
        assert_eq!(query.sync_forward(), psb);
        let Some(psb) = psb else { break };
        assert_eq!((query.offset(), query.sync_offset()), (psb, Some(psb)));
        let expected = answers(&mut below);
        let mut at = query.clone();
        let _ = at.next();
        assert!(at.sync_at(psb), "no PSB at {psb:#x}");
        assert_eq!(ask(&mut at, trace.len()), expected, "at {psb:#x}");
        assert_eq!(ask(&mut query, trace.len()), expected, "from {psb:#x}");
        assert_eq!(query.counters(), below.counters());
    }
    // Backward synchronisation finds PSBs in descending order and stops at the start.
    let mut before = u64::MAX;
    while let Some(psb) = query.sync_backward() {
        assert!(psb < before, "{psb:#x} after {before:#x}");
        before = psb;
    }
}

fn answers(decoder: &mut EventDecoder<'_>) -> (Vec<BranchEvent>, Option<Error>) {
    let mut answers = vec![];
    loop {
        match decoder.next() {
            Ok(Some(Event { kind: EventKind::Tnt(tnt), .. })) => {
                answers.extend(tnt.outcomes().map(BranchEvent::Conditional));
            }
            Ok(Some(Event { kind: EventKind::Tip, ip, .. })) => answers.push(BranchEvent::Indirect(ip)),
            Ok(Some(event)) => answers.push(BranchEvent::Event(event)),
            Ok(None) => return (answers, None),
            Err(error) => return (answers, Some(error)),
        }
    }
}

/// Queries each item with the function for its kind, after the functions for the other kinds have refused it.
fn ask(query: &mut QueryDecoder<'_>, len: usize) -> (Vec<BranchEvent>, Option<Error>) {
    let mut answers = vec![];
    loop {
        assert!(answers.len() <= 64 * (len + 1), "answers without end");
        assert!(query.offset() <= len as u64);
        let pending = match query.pending() {
            Ok(Some(pending)) => pending,
            Ok(None) => return (answers, None),
            Err(error) => return (answers, Some(error)),
        };
        let other = QueryError::Other { offset: query.offset(), pending };
        if pending != Pending::Conditional {
            assert_eq!(query.conditional(), Err(other));
        }
        if pending != Pending::Indirect {
            assert_eq!(query.indirect(), Err(other));
        }
        if pending != Pending::Event {
            assert_eq!(query.event(), Err(other));
        }
        answers.push(match pending {
            Pending::Conditional => {
                BranchEvent::Conditional(query.conditional().unwrap().expect("an outcome"))
            }
            Pending::Indirect => BranchEvent::Indirect(query.indirect().unwrap().expect("a target")),
            Pending::Event => BranchEvent::Event(query.event().unwrap().expect("an event")),
        });
    }
}
