//! Cuts a trace into segments that several threads can decode at the same time.
//!
//! A segment begins at a PSB, where a decoder needs no state from before the segment: a PSB+ repeats the state, and
//! no return after it is compressed by a call before it. But a block that spans a PSB belongs to the segment before,
//! where it began. So each segment is decoded into the next one, over some branches after that one's PSB: its *lead*.
//! The content of the lead is counted twice and subtracted once; at its end both decoders must be at the same place.
//!
//! A PSB is not used where something other than branches and time comes soon after it, or where tracing is off. A
//! trace with an error is decoded again from its start by one thread: after an error, a decoder that starts in
//! mid-trace may recover differently. A trace is not cut either if its events depend on the time or mode from before
//! the segment. The times of other events are those of a decoder that starts at the segment's PSB.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Packet Stream Boundary (PSB) Packet"; "Indirect
//! TakenBranch Compression for Returns (RET)".

use pugmark_decoder_core::{
    config::Config,
    packet::{Ip, Packet, Packets},
};
use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// The number of packets with branches in a lead.
const BRANCHES: usize = 8;

/// The minimum size of a segment, in bytes. A lead has some hundred bytes.
const LEAST: usize = 1 << 16;

/// Desired segments per thread, so that no thread waits long for the others at the end.
const EACH: usize = 8;

/// A part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceSegment<'a> {
    /// Its bytes, from a PSB to the end of the next segment's lead.
    pub(super) bytes: &'a [u8],
    /// Its first bytes, which the segment before has as well; empty in the first segment.
    pub(super) lead: &'a [u8],
    /// The offset of its first byte.
    pub(super) offset: usize,
}

/// Returns the segments of a trace for that many threads.
pub(super) fn segments<'a>(
    trace: &'a [u8],
    config: Config<'a>,
    threads: NonZeroUsize,
) -> Vec<TraceSegment<'a>> {
    let least = (trace.len() / (EACH * threads.get())).max(LEAST);
    // These events depend on state from before the segment.
    let depends = config.flags.ticks || config.flags.iflags;
    if threads.get() == 1 || depends {
        return vec![TraceSegment { bytes: trace, lead: &[], offset: 0 }];
    }
    cut(trace, config, least)
}

/// Cuts a trace into segments of at least that many bytes, if it has PSBs for it.
pub(super) fn cut<'a>(trace: &'a [u8], config: Config<'a>, least: usize) -> Vec<TraceSegment<'a>> {
    let mut segments = vec![];
    let (mut offset, mut lead_end) = (0, 0);
    let mut packets = Packets::with_config(trace, config);
    packets.set_offset(least as u64);
    while let Some(psb) = packets.sync_forward() {
        packets.set_offset(psb + 1);
        let psb = psb as usize;
        if psb - offset < least {
            continue;
        }
        let Some(end) = lead(trace, config, psb) else { continue };
        segments.push(TraceSegment { bytes: &trace[offset..end], lead: &trace[offset..lead_end], offset });
        (offset, lead_end) = (psb, end);
        packets.set_offset((psb + least) as u64);
    }
    segments.push(TraceSegment { bytes: &trace[offset..], lead: &trace[offset..lead_end], offset });
    segments
}

/// Finds the end of the lead of a segment that begins at `psb`; `None` if no segment should begin there.
fn lead(trace: &[u8], config: Config<'_>, psb: usize) -> Option<usize> {
    let mut packets = Packets::with_config(trace, config);
    packets.set_offset(psb as u64);
    let (mut has_place, mut has_mode) = (false, false);
    loop {
        match packets.next()?.ok()?.1 {
            Packet::PsbEnd => break,
            Packet::Fup(ip) => has_place = ip != Ip::Suppressed,
            Packet::ModeExec(_) => has_mode = true,
            Packet::Ovf => return None,
            _ => {}
        }
    }
    let mut branches = 0;
    while has_place && has_mode && branches < BRANCHES {
        match packets.next()?.ok()?.1 {
            Packet::Tip(ip) if ip != Ip::Suppressed => branches += 1,
            Packet::TntShort(_) | Packet::TntLong(_) => branches += 1,
            Packet::Pad | Packet::Cyc(_) | Packet::Mtc(_) | Packet::Tsc(_) | Packet::Tma(_) => {}
            _ => return None,
        }
    }
    (branches == BRANCHES).then(|| packets.offset() as usize)
}

/// Lets each worker take one item after the other, such as a segment, and returns what they made of them, in the order
/// of the items. The first worker is the calling thread's.
pub(super) fn each<T: Sync, W: Send, R: Send>(
    items: &[T],
    workers: &mut [W],
    work: impl Fn(&mut W, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let go = |worker: &mut W| {
        let mut done = vec![];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return done };
            done.push((number, work(worker, item)));
        }
    };
    let go = &go;
    let mut done = thread::scope(|scope| {
        let Some((first, others)) = workers.split_first_mut() else { return vec![] };
        // A thread that cannot be started leaves its work to the others. None of them panics.
        let others: Vec<_> = others
            .iter_mut()
            .filter_map(|worker| thread::Builder::new().spawn_scoped(scope, move || go(worker)).ok())
            .collect();
        let mut done = go(first);
        others.into_iter().for_each(|other| done.extend(other.join().unwrap_or_default()));
        done
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::PSB;

    /// MODE.Exec (64 bit), FUP (1000), PSBEND.
    const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    /// MODE.Exec, PSBEND.
    const OFF: &[u8] = b"\x99\x01\x02\x23";

    #[test]
    fn a_segment_begins_where_only_branches_and_time_follow_a_psb() {
        let (tnts, cycs) = ([0x0c; BRANCHES], [0x13; 3]);
        let ends = |rest: &[&[u8]]| {
            let trace = [&PSB[..], &rest.concat()].concat();
            lead(&trace, Config::new(), 0).map(|end| trace.len() - end)
        };
        assert_eq!(ends(&[STATE, &tnts]), Some(0));
        assert_eq!(ends(&[STATE, &cycs, &tnts, &[0x0c]]), Some(1));
        assert_eq!(ends(&[STATE, &[0x2d, 0, 0x10], &tnts[1..], &cycs]), Some(3));
        assert_eq!(ends(&[STATE, &tnts[1..]]), None, "too few");
        assert_eq!(ends(&[OFF, &tnts]), None, "tracing is off");
        assert_eq!(ends(&[&STATE[2..], &tnts]), None, "no mode");
        assert_eq!(ends(&[&STATE[..9], &[0x02, 0xf3], &tnts]), None, "OVF within the PSB+");
        for other in [&[0x02, 0xf3][..], &[0x3d, 0, 0x10], &[0x0d], &[0x01], &[0x99, 0x01], &[0x02, 0x05]] {
            assert_eq!(ends(&[STATE, &tnts[1..], other, &tnts]), None, "{other:x?}");
        }
    }

    #[test]
    fn segments_meet_and_overlap_by_their_leads() {
        let part = [&PSB[..], STATE, &[0x0c; 100]].concat();
        let trace = [&[0; 5][..], &part.repeat(20)].concat();
        let segments = cut(&trace, Config::new(), 500);
        // Five bytes and four parts, then a segment each four parts.
        let offsets: Vec<_> = segments.iter().map(|segment| segment.offset).collect();
        assert_eq!(offsets, [0, 5 + 4 * 127, 5 + 8 * 127, 5 + 12 * 127, 5 + 16 * 127]);
        let leads: Vec<_> = segments.iter().map(|segment| segment.lead.len()).collect();
        assert_eq!(leads, [0, 35, 35, 35, 35]);
        for pair in segments.windows(2) {
            let [TraceSegment { bytes, offset, .. }, next] = *pair else { unreachable!() };
            assert_eq!(offset + bytes.len(), next.offset + next.lead.len());
            assert!(next.bytes.starts_with(next.lead) && bytes.ends_with(next.lead));
        }
        let last = segments.last().unwrap();
        assert_eq!(last.offset + last.bytes.len(), trace.len());
        assert_eq!(cut(&trace, Config::new(), 5000).len(), 1);
        assert_eq!(cut(&[], Config::new(), 500), [TraceSegment { bytes: &[], lead: &[], offset: 0 }]);
    }

    #[test]
    fn what_depends_on_what_was_long_before_is_not_cut() {
        let part = [&PSB[..], STATE, &[0x0c; LEAST]].concat().repeat(8);
        let two = NonZeroUsize::new(2).unwrap();
        let cuts = |change: fn(&mut Config<'_>), threads| {
            let mut config = Config::new();
            change(&mut config);
            segments(&part, config, threads).len() > 1
        };
        assert!(cuts(|_| {}, two) && !cuts(|_| {}, NonZeroUsize::MIN));
        let changes: [fn(&mut Config<'_>); 2] =
            [|config| config.flags.ticks = true, |config| config.flags.iflags = true];
        assert!(!changes.into_iter().any(|change| cuts(change, two)));
    }

    #[test]
    fn results_come_in_the_order_of_the_trace() {
        let trace = [0; 1000];
        let segments: Vec<_> =
            (0..1000).map(|offset| TraceSegment { bytes: &trace, lead: &[], offset }).collect();
        let mut workers = [0; 3];
        let offsets = each(&segments, &mut workers, |taken, segment| {
            *taken += 1;
            thread::yield_now();
            segment.offset
        });
        assert!(offsets.into_iter().eq(0..1000));
        assert_eq!(workers.iter().sum::<i32>(), 1000);
    }
}
