//! The bytes of traces: parts that follow one another, and snapshots that may overlap.
//!
//! perf finds out what a snapshot has in common with the one before as this does (tools/perf/util/intel-pt-decoder/
//! intel-pt-decoder.c, `intel_pt_find_overlap`): by the time of a PSB+ that both have, and without time by the bytes.

use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::packet::{PSB, Packet, Packets};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An OVF packet.
const OVF: [u8; 2] = [0x02, 0xf3];

/// A trace without gaps: after a gap another one begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxTrace {
    /// The CPU, if a CPU was traced.
    pub cpu: Option<u32>,
    /// The thread, if a thread was traced.
    pub thread: Option<u32>,
    /// The offset of the piece in everything that was traced for this CPU or thread.
    pub offset: u64,
    /// The TSC when perf read the piece; 0 if that is not known.
    pub reference: u64,
    /// The packets.
    pub bytes: Vec<u8>,
}

/// The end of a part of which the driver could not store all: packets are missing there.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceGap {
    pub(super) cpu: Option<u32>,
    pub(super) thread: Option<u32>,
    /// The offset in everything that was traced for this CPU or thread.
    pub(super) offset: u64,
}

impl AuxTrace {
    /// Puts an OVF at each gap inside the trace, in place of a packet that the gap cuts.
    ///
    /// When a buffer is full the processor stops, and Linux' driver starts it again without a PSB: tracing goes on with
    /// a TIP.PGE whose IP is compressed against the last one before the gap. An OVF says just that of lost packets, so
    /// decoders need not wait for a PSB, and every view counts the loss.
    fn mark(&mut self, gaps: &[TraceGap]) {
        let is_own = |gap: &&TraceGap| match self.cpu {
            Some(_) => gap.cpu == self.cpu,
            None => gap.thread == self.thread,
        };
        let places: BTreeSet<usize> = gaps
            .iter()
            .filter(is_own)
            .filter_map(|gap| usize::try_from(gap.offset.checked_sub(self.offset)?).ok())
            .filter(|place| (1..self.bytes.len()).contains(place))
            .collect();
        if places.is_empty() {
            return;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() + places.len() * OVF.len());
        let mut from = 0;
        for place in places {
            let part = &self.bytes[from..place];
            // A recording, and what follows a gap, begins with a whole packet.
            bytes.extend_from_slice(whole_packets(part, from != 0 || self.offset == 0));
            bytes.extend_from_slice(&OVF);
            from = place;
        }
        bytes.extend_from_slice(&self.bytes[from..]);
        self.bytes = bytes;
    }
}

/// Returns the bytes without a packet or a PSB+ that their end cuts. `begins` is true if a packet begins with the first
/// byte: packets can be told apart from there or from a PSB.
///
/// A PSB sets the last IP to zero, and its PSB+ sets it again, so a part of it makes the next IP unreadable.
fn whole_packets(bytes: &[u8], begins: bool) -> &[u8] {
    let mut packets = Packets::with_config(bytes, Config::new());
    packets.set_offset(bytes.len() as u64);
    let mut open = packets.sync_backward();
    if open.is_none() {
        if !begins {
            return bytes;
        }
        packets.set_offset(0);
    }
    for packet in packets.by_ref() {
        match packet {
            Ok((_, Packet::PsbEnd | Packet::Ovf)) => open = None,
            Ok(_) => {}
            Err(_) => return bytes,
        }
    }
    &bytes[..open.unwrap_or(packets.offset()) as usize]
}

impl fmt::Display for AuxTrace {
    /// Writes `cpu-0` or `thread-12`, and where the piece begins if it is not the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cpu, self.thread) {
            (Some(cpu), _) => write!(f, "cpu-{cpu}"),
            (None, Some(thread)) => write!(f, "thread-{thread}"),
            (None, None) => f.write_str("trace"),
        }?;
        if self.offset == 0 { Ok(()) } else { write!(f, " from {:#x}", self.offset) }
    }
}

/// A part of a trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracePart<'a> {
    /// The number of what was traced.
    pub(super) index: u32,
    pub(super) cpu: Option<u32>,
    pub(super) thread: Option<u32>,
    pub(super) offset: u64,
    pub(super) reference: u64,
    pub(super) bytes: &'a [u8],
}

/// The pieces of each trace, by its number in the file.
#[derive(Debug, Default)]
pub(super) struct TracePieces {
    pieces: BTreeMap<u32, Vec<AuxTrace>>,
    /// The begin of the last part in each last piece.
    last: BTreeMap<u32, usize>,
    /// True if the parts are snapshots: the offset of one means nothing, and it may overlap the one before.
    pub(super) are_snapshots: bool,
}

impl TracePieces {
    /// Pieces of which the parts are snapshots.
    pub(super) fn of_snapshots() -> Self {
        Self { are_snapshots: true, ..Self::default() }
    }

    /// Adds a part: to the last piece if it follows that one.
    pub(super) fn add(&mut self, part: TracePart<'_>) {
        if part.bytes.is_empty() {
            return;
        }
        let pieces = self.pieces.entry(part.index).or_default();
        let last_at = self.last.entry(part.index).or_default();
        if let Some(last) = pieces.last_mut() {
            let place = match self.are_snapshots {
                true => after_snapshot(last.bytes.get(*last_at..).unwrap_or_default(), part.bytes),
                false => after_part(last, part),
            };
            match place {
                PartPlace::Follows { fill, from } => {
                    last.bytes.truncate(last.bytes.len().saturating_sub(fill));
                    // The next snapshot is compared with all of this one.
                    *last_at = last.bytes.len().saturating_sub(from);
                    last.bytes.extend_from_slice(&part.bytes[from..]);
                    last.reference = part.reference;
                    return;
                }
                PartPlace::Known => return,
                PartPlace::Apart => {}
            }
        }
        *last_at = 0;
        let TracePart { cpu, thread, offset, reference, bytes, .. } = part;
        pieces.push(AuxTrace { cpu, thread, offset, reference, bytes: bytes.to_vec() });
    }

    /// Adds the traces of the next file of the same recording.
    pub(super) fn append(&mut self, later: Self) {
        self.are_snapshots |= later.are_snapshots;
        for piece in later.into_traces() {
            let is_its = |pieces: &Vec<AuxTrace>| {
                pieces.first().is_some_and(|own| (own.cpu, own.thread) == (piece.cpu, piece.thread))
            };
            let known = self.pieces.iter().find(|(_, pieces)| is_its(pieces)).map(|(index, _)| *index);
            let next = || self.pieces.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
            let index = known.unwrap_or_else(next);
            let AuxTrace { cpu, thread, offset, reference, bytes } = piece;
            self.add(TracePart { index, cpu, thread, offset, reference, bytes: &bytes });
        }
    }

    /// Returns the pieces, in the order of their numbers.
    pub(super) fn into_traces(self) -> Vec<AuxTrace> {
        self.pieces.into_values().flatten().collect()
    }

    /// Returns the pieces with an OVF at each gap.
    pub(super) fn marked(self, gaps: &[TraceGap]) -> Vec<AuxTrace> {
        // The offset of a snapshot means nothing.
        let gaps = if self.are_snapshots { &[] } else { gaps };
        let mut traces = self.into_traces();
        traces.iter_mut().for_each(|trace| trace.mark(gaps));
        traces
    }
}

/// The place of a part, relative to the bytes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartPlace {
    /// It follows, except that the last bytes of the part before are padding.
    Follows { fill: usize, from: usize },
    /// All of it is in the bytes before.
    Known,
    /// A gap lies between them.
    Apart,
}

/// Places a part after the last one. perf pads a part to a multiple of eight bytes, so that it may end a little after
/// the next one begins. Two files of a recording may both have a part.
fn after_part(last: &AuxTrace, part: TracePart<'_>) -> PartPlace {
    if let Some(fill @ 0..8) = last.offset.saturating_add(last.bytes.len() as u64).checked_sub(part.offset) {
        return PartPlace::Follows { fill: fill as usize, from: 0 };
    }
    let known =
        part.offset.checked_sub(last.offset).and_then(|at| last.bytes.get(usize::try_from(at).ok()?..));
    match known {
        Some(known) if known.starts_with(part.bytes) => PartPlace::Known,
        Some(known) if !known.is_empty() && part.bytes.starts_with(known) => {
            PartPlace::Follows { fill: 0, from: known.len() }
        }
        _ => PartPlace::Apart,
    }
}

/// Finds where a snapshot goes on after the one before.
fn after_snapshot(before: &[u8], snapshot: &[u8]) -> PartPlace {
    let Some(first) = psbs(snapshot).next() else { return PartPlace::Known };
    let Some(known) = psbs(before).next() else { return PartPlace::Apart };
    let (begin, mut known) = (&snapshot[first..], &before[known..]);
    // The last PSB+ with a time in the snapshot before, and the number of bytes after that.
    let last = psbs(known).collect::<Vec<_>>().into_iter().rev().find_map(|psb| tsc_after(&known[psb..]));
    if let Some((tsc, after)) = last {
        for psb in psbs(begin) {
            match tsc_after(&begin[psb..]) {
                Some((other, left)) if other == tsc && left >= after => {
                    return goes_on(before, snapshot, snapshot.len() - (left - after));
                }
                Some((other, _)) if is_later(other, tsc) => return PartPlace::Apart,
                _ => {}
            }
        }
        return PartPlace::Known;
    }
    loop {
        // perf pads with zeros.
        let with_fill = |fill: &usize| {
            let split = known.len().checked_sub(*fill).and_then(|len| known.split_at_checked(len));
            split.is_some_and(|(own, fill)| begin.starts_with(own) && fill.iter().all(|byte| *byte == 0))
        };
        if let Some(fill) = (0..8).find(with_fill) {
            let from = first + known.len() - fill;
            return if from == snapshot.len() { PartPlace::Known } else { PartPlace::Follows { fill, from } };
        }
        // At the next PSB.
        match psbs(&known[1..]).next() {
            Some(psb) => known = &known[1 + psb..],
            None => return PartPlace::Apart,
        }
    }
}

/// Places the part of the snapshot from `from` after the bytes before. The last of those may be padding: from the
/// first one on that differs from the snapshot.
fn goes_on(before: &[u8], snapshot: &[u8], from: usize) -> PartPlace {
    let most = 7.min(before.len()).min(from);
    let (end, other) = (&before[before.len() - most..], &snapshot[from - most..from]);
    let fill = most - end.iter().zip(other).take_while(|(own, other)| own == other).count();
    match snapshot.len() == from && fill == 0 {
        true => PartPlace::Known,
        false => PartPlace::Follows { fill, from: from - fill },
    }
}

/// Finds the offsets of PSBs.
fn psbs(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..)?;
        let found = at + rest.windows(PSB.len()).position(|window| window == PSB)?;
        at = found + PSB.len();
        Some(found)
    })
}

/// Returns the TSC of the PSB+ that the bytes begin with, and the number of bytes after its TSC packet.
fn tsc_after(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut packets = Packets::with_config(bytes, Config::new());
    packets.sync_forward()?;
    loop {
        let (_, packet) = packets.next()?.ok()?;
        match packet {
            Packet::Tsc(tsc) => {
                return Some((tsc.tsc, bytes.len().saturating_sub(packets.offset() as usize)));
            }
            Packet::PsbEnd => return None,
            _ => {}
        }
    }
}

/// Returns true if a TSC of 56 bits comes after another one.
const fn is_later(tsc: u64, than: u64) -> bool {
    let passed = tsc.wrapping_sub(than) & ((1 << 56) - 1);
    passed != 0 && passed < 1 << 55
}
