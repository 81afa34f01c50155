//! A trace for Perfetto, written as protocol buffers.
//!
//! Source: Perfetto, protos/perfetto/trace/trace_packet.proto and track_event/*.proto; the encoding: Protocol Buffers,
//! "Encoding".

use super::{Drawing, Slice, Track};

/// The fields of a message, in order.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A number.
    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    /// A string or another message.
    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// What a TrackEvent is.
#[derive(Clone, Copy)]
enum Type {
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// Returns the whole trace.
pub(super) fn trace(drawing: &Drawing) -> Vec<u8> {
    let mut trace = Message::default();
    for (number, track) in drawing.tracks.iter().enumerate() {
        // Two tracks for each thread: losses would not nest with functions.
        let (functions, losses) = (2 * number as u64 + 1, 2 * number as u64 + 2);
        trace = trace.bytes(1, &thread(functions, track).0);
        trace = trace.bytes(1, &lost(losses, functions).0);
        for packet in calls(drawing, track, functions) {
            trace = trace.bytes(1, &packet.0);
        }
        for (from, to, why) in &track.losses {
            trace = trace.bytes(1, &event(*from, Type::Begin, losses, Some(&format!("LOST: {why}"))).0);
            trace = trace.bytes(1, &event(*to, Type::End, losses, None).0);
        }
        for (at, text) in &track.marks {
            trace = trace.bytes(1, &event(*at, Type::Instant, functions, Some(text)).0);
        }
    }
    trace.0
}

/// The packet that describes a thread's track.
fn thread(track_uuid: u64, track: &Track) -> Message {
    let id = |number: i32| u64::from(number.unsigned_abs());
    let thread = Message::default().number(1, id(track.pid)).number(2, id(track.tid));
    let thread = thread.bytes(5, track.name.as_bytes());
    let descriptor = Message::default().number(1, track_uuid).bytes(4, &thread.0);
    Message::default().bytes(60, &descriptor.0)
}

/// The packet that describes the track of a thread's losses.
fn lost(track_uuid: u64, parent: u64) -> Message {
    let descriptor = Message::default().number(1, track_uuid).bytes(2, b"lost").number(5, parent);
    Message::default().bytes(60, &descriptor.0)
}

/// The packet of an event.
fn event(at: u64, what: Type, track_uuid: u64, name: Option<&str>) -> Message {
    let event = Message::default().number(9, what as u64).number(11, track_uuid);
    let event = name.map_or(event.0.clone(), |name| Message(event.0).bytes(23, name.as_bytes()).0);
    // All packets are of one sequence, in order.
    Message::default().number(8, at).number(10, 1).bytes(11, &event)
}

/// Where the functions begin and end, each inside the one that called it.
fn calls(drawing: &Drawing, track: &Track, track_uuid: u64) -> Vec<Message> {
    let mut slices: Vec<&Slice> = track.slices.iter().collect();
    slices.sort_by_key(|slice| slice.order);
    let (mut packets, mut open) = (vec![], Vec::<&Slice>::new());
    let end = |slice: &Slice| event(slice.to, Type::End, track_uuid, None);
    for slice in slices {
        while open.last().is_some_and(|outer| outer.depth >= slice.depth) {
            packets.extend(open.pop().map(end));
        }
        packets.push(event(slice.from, Type::Begin, track_uuid, Some(&drawing.names[slice.name])));
        open.push(slice);
    }
    packets.extend(open.into_iter().rev().map(end));
    packets
}
