//! Checks the event layer.

use crate::{decoder_config, reference, trace, wire::Places};
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    Error, ErrorKind,
    config::Config,
    event::{Event, EventDecoder},
};

/// The addresses in traces without code.
pub const PLACES: Places = Places { base: 0x1000, len: 0x100 };

/// Makes a trace without code, and a configuration for its decoder.
///
/// # Errors
/// If there are not enough bytes to choose with.
pub fn subject(u: &mut Unstructured<'_>) -> Result<(Config<'static>, Vec<u8>)> {
    let config = decoder_config::config(u)?;
    Ok((config, trace::made(u, PLACES)?))
}

/// Checks that events are within the trace, that there are not many more of them than packets, that after an error the
/// next PSB can be reached, and that from each PSB on the trace before it has no effect.
///
/// # Panics
/// If any of this is wrong.
pub fn check(data: &[u8]) {
    let Ok((config, trace)) = subject(&mut Unstructured::new(data)) else { return };
    let mut decoder = EventDecoder::with_config(&trace, config);
    let mut last = None;
    while let Some(psb) = decoder.sync_forward() {
        assert!(last < Some(psb), "{psb:#x} after {last:x?}");
        last = Some(psb);
        let (events, end) = run(&mut decoder, trace.len());
        alone(&trace, config, psb, &events, end);
        let Some(error) = end else { return };
        assert!(psb <= error.offset && error.offset <= trace.len() as u64, "{error} after {psb:#x}");
        let again = Error { offset: decoder.offset(), kind: ErrorKind::OutOfSync };
        assert_eq!(decoder.next(), Err(again), "goes on after {error}");
        next_is_in_reach(&trace, psb, error, decoder.clone().sync_forward());
    }
}

/// Returns the events up to the end or an error.
fn run(decoder: &mut EventDecoder<'_>, len: usize) -> (Vec<Event>, Option<Error>) {
    let mut events = vec![];
    loop {
        // Several events can be reported together: a CFE with its EVDs, MODE.TSX, the branch of an abort.
        assert!(events.len() <= 16 * (len + 1), "events without end");
        match decoder.next() {
            Ok(Some(event)) => {
                let end = len as u64;
                assert!(event.offset <= end, "{event:?} in {end:#x} bytes");
                events.push(event);
            }
            Ok(None) => return (events, None),
            Err(error) => return (events, Some(error)),
        }
    }
}

/// Checks that the part of the trace from a PSB on has the same events.
fn alone(trace: &[u8], config: Config<'_>, psb: u64, events: &[Event], end: Option<Error>) {
    let part = &trace[usize::try_from(psb).expect("an offset in the trace")..];
    let mut decoder = EventDecoder::with_config(part, config);
    assert_eq!(decoder.sync_forward(), Some(0), "from {psb:#x}");
    let (mut same, same_end) = run(&mut decoder, part.len());
    for event in &mut same {
        event.offset += psb;
    }
    assert_eq!(same, events, "from {psb:#x}");
    let moved = same_end.map(|error| Error { offset: error.offset + psb, ..error });
    assert_eq!(moved, end, "from {psb:#x}");
}

/// Checks that the next synchronisation does not skip the first PSB after an error.
///
/// # Panics
/// If it does.
pub fn next_is_in_reach(trace: &[u8], psb: u64, error: Error, next: Option<u64>) {
    let after = usize::try_from(error.offset.max(psb + 1)).expect("an offset in the trace");
    if let Some(first) = reference::psb_forward(trace, after) {
        let first = first as u64;
        assert!(next.is_some_and(|next| psb < next && next <= first), "{error}: {next:x?}, not {first:#x}");
    }
}
