//! Finds the places in a trace at which something takes effect that has a time.

use pugmark_decoder_core::{
    config::Config,
    event::{Event, EventDecoder, EventKind},
};

/// A place at which something takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnPlace {
    /// Which of the times.
    pub number: usize,
    /// The offset in the trace.
    pub offset: usize,
    /// The TSC there.
    pub tsc: u64,
}

/// Where the trace is before an event, as far as the events say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceLocation {
    /// In the kernel, not traced, or not known.
    Elsewhere,
    /// In a program.
    Program,
}

/// The lowest address of the kernel: the upper half of the address space.
pub(super) const KERNEL: u64 = 1 << 63;
/// Packets have this many bits of the TSC.
const TSC_BITS: u32 = 56;

/// Finds where in a trace times are reached, which are TSCs in order. Of several that are reached at the same place
/// the last one counts. `near` is a TSC at most 2^55 ticks from the trace's.
///
/// Returns `None` if the trace has no time.
#[must_use]
pub fn places(trace: &[u8], config: Config<'_>, times: &[u64], near: u64) -> Option<Vec<TurnPlace>> {
    let mut events = EventDecoder::with_config(trace, config);
    let (mut found, mut timed, mut reached) = (vec![], false, 0);
    while events.sync_forward().is_some() {
        let mut location = TraceLocation::Elsewhere;
        while let Ok(Some(event)) = events.next() {
            if let Some(tsc) = event.when.tsc.filter(|_| location == TraceLocation::Elsewhere) {
                timed = true;
                let tsc = whole_tsc(tsc, near);
                let due = times[reached..].partition_point(|time| *time <= tsc);
                if due > 0 {
                    reached += due;
                    found.push(TurnPlace { number: reached - 1, offset: event.offset as usize, tsc });
                }
            }
            location = location_after(&event, location);
        }
    }
    // After an error decoding goes on at a PSB, which may be one that was looked at.
    found.dedup_by(|later, earlier| {
        let replaces = later.offset <= earlier.offset;
        if replaces {
            (earlier.number, earlier.tsc) = (later.number, later.tsc);
        }
        replaces
    });
    timed.then_some(found)
}

/// Returns a TSC of which the upper bits are not known: the one next to `near`.
const fn whole_tsc(tsc: u64, near: u64) -> u64 {
    let all = 1 << TSC_BITS;
    let passed = tsc.wrapping_sub(near) & (all - 1);
    match passed >> (TSC_BITS - 1) {
        0 => near.wrapping_add(passed),
        _ => near.wrapping_add(passed).wrapping_sub(all),
    }
}

fn location_after(event: &Event, before: TraceLocation) -> TraceLocation {
    match (event.kind, event.ip) {
        (
            EventKind::Disabled | EventKind::AsyncDisabled { .. } | EventKind::Overflow | EventKind::Stop,
            _,
        ) => TraceLocation::Elsewhere,
        (EventKind::Paging(_) | EventKind::AsyncPaging(_), _) if !event.status => TraceLocation::Elsewhere,
        (EventKind::Enabled { .. } | EventKind::AsyncBranch { .. } | EventKind::Tip, Some(ip)) => match ip {
            KERNEL.. => TraceLocation::Elsewhere,
            _ => TraceLocation::Program,
        },
        _ => before,
    }
}
