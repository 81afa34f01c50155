//! A trace for Perfetto, written as protocol buffers.
//!
//! Source: Perfetto, protos/perfetto/trace/trace_packet.proto and track_event/*.proto; the encoding: Protocol Buffers,
//! "Encoding".

use super::{Change, Drawing, Slice, SourceLine, Track, TrackLoss, TrackMark};
use crate::pugmark::protobuf::Message;

/// The type of a TrackEvent.
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
        // Each thread has two tracks, because losses would not nest with functions.
        let (functions, losses) = (2 * number as u64 + 1, 2 * number as u64 + 2);
        trace = trace.bytes(1, &thread(functions, track).0);
        trace = trace.bytes(1, &lost(losses, functions).0);
        for change in track.changes() {
            let packet = match change {
                Change::Begin(slice) => begin(drawing, slice, functions),
                Change::End(slice) => event(slice.to, Type::End, functions, None),
                Change::Lost(_) => continue,
            };
            trace = trace.bytes(1, &packet.0);
        }
        for TrackLoss { from, to, why, .. } in &track.losses {
            trace = trace.bytes(1, &event(*from, Type::Begin, losses, Some(&format!("LOST: {why}"))).0);
            trace = trace.bytes(1, &event(*to, Type::End, losses, None).0);
        }
        for TrackMark { at, text, .. } in &track.marks {
            trace = trace.bytes(1, &event(*at, Type::Instant, functions, Some(text)).0);
        }
    }
    trace.0
}

/// Returns the packet that describes a thread's track.
fn thread(track_uuid: u64, track: &Track) -> Message {
    let id = |number: i32| u64::from(number.unsigned_abs());
    let thread = Message::default().number(1, id(track.pid)).number(2, id(track.tid));
    let thread = thread.bytes(5, track.name.as_bytes());
    let descriptor = Message::default().number(1, track_uuid).bytes(4, &thread.0);
    Message::default().bytes(60, &descriptor.0)
}

/// Returns the packet that describes the track of a thread's losses.
fn lost(track_uuid: u64, parent: u64) -> Message {
    let descriptor = Message::default().number(1, track_uuid).bytes(2, b"lost").number(5, parent);
    Message::default().bytes(60, &descriptor.0)
}

/// Returns the packet of a function's begin, with the source line that called it.
fn begin(drawing: &Drawing, slice: &Slice, track_uuid: u64) -> Message {
    let name = drawing.names[slice.name].as_bytes();
    let event = Message::default().number(9, Type::Begin as u64).number(11, track_uuid).bytes(23, name);
    let Some(call) = slice.call else { return packet(slice.from, &event) };
    let SourceLine { file, line } = &drawing.places[call];
    let called = Message::default().bytes(2, file.as_bytes()).number(4, u64::from(*line));
    packet(slice.from, &event.bytes(33, &called.0))
}

/// Returns the packet of an event.
fn event(at: u64, what: Type, track_uuid: u64, name: Option<&str>) -> Message {
    let event = Message::default().number(9, what as u64).number(11, track_uuid);
    let event = name.map_or(event.0.clone(), |name| Message(event.0).bytes(23, name.as_bytes()).0);
    packet(at, &Message(event))
}

/// Returns the packet of an event at this time. All packets are of one sequence, in order.
fn packet(at: u64, event: &Message) -> Message {
    Message::default().number(8, at).number(10, 1).bytes(11, &event.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::timeline::MarkRow;
    use crate::pugmark::visitors::Unit;

    /// Returns the fields of a message: numbers as they are, messages and texts as bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
        let mut found = vec![];
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = varint(&mut bytes);
            let inner = if tag & 7 == 2 { value as usize } else { 0 };
            found.push((tag >> 3, value, &bytes[..inner]));
            bytes = &bytes[inner..];
        }
        found
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (own, rest) = bytes.split_at(length);
        *bytes = rest;
        own.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }

    /// Returns a message as text: `field=number`, `field=(…)` for the messages in `inner`, `field=text` for others.
    fn shown(bytes: &[u8], inner: &[u64]) -> String {
        let field = |(field, value, bytes): (u64, u64, &[u8])| match bytes {
            [] => format!("{field}={value}"),
            _ if inner.contains(&field) => format!("{field}=({})", shown(bytes, &[4, 33])),
            _ => format!("{field}={}", String::from_utf8_lossy(bytes)),
        };
        fields(bytes).into_iter().map(field).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn threads_have_a_track_for_functions_and_one_for_losses() {
        let slice = |from, to, depth, order, name| {
            let call = (order == 2).then_some(0);
            Slice { from, to, depth, order, name, call, insns: 0 }
        };
        let one = Track {
            name: "one".into(),
            pid: 7,
            tid: 300,
            // The slices are in the order of their ends.
            slices: vec![slice(20, 30, 1, 1, 1), slice(40, 50, 1, 2, 1), slice(10, 200, 0, 0, 0)],
            losses: vec![TrackLoss { from: 60, to: 70, why: "a loss".into(), order: 3 }],
            marks: vec![TrackMark { at: 15, row: MarkRow::Off, text: "a mark".into() }],
        };
        let two = Track {
            name: "two".into(),
            pid: 7,
            tid: 8,
            slices: vec![slice(5, 6, 0, 0, 1)],
            ..Track::default()
        };
        let names = vec!["main".into(), "leaf".into()];
        let places = vec![SourceLine { file: "a.c".into(), line: 300 }];
        let bytes = trace(&Drawing { unit: Unit::Nanoseconds, names, places, tracks: vec![one, two] });
        let packets: Vec<_> = fields(&bytes)
            .into_iter()
            .map(|(field, _, packet)| {
                assert_eq!(field, 1);
                shown(packet, &[11, 60])
            })
            .collect();
        assert_eq!(
            packets,
            [
                "60=(1=1 4=(1=7 2=300 5=one))",
                "60=(1=2 2=lost 5=1)",
                "8=10 10=1 11=(9=1 11=1 23=main)",
                "8=20 10=1 11=(9=1 11=1 23=leaf)",
                "8=30 10=1 11=(9=2 11=1)",
                "8=40 10=1 11=(9=1 11=1 23=leaf 33=(2=a.c 4=300))",
                "8=50 10=1 11=(9=2 11=1)",
                "8=200 10=1 11=(9=2 11=1)",
                "8=60 10=1 11=(9=1 11=2 23=LOST: a loss)",
                "8=70 10=1 11=(9=2 11=2)",
                "8=15 10=1 11=(9=3 11=1 23=a mark)",
                "60=(1=3 4=(1=7 2=8 5=two))",
                "60=(1=4 2=lost 5=3)",
                "8=5 10=1 11=(9=1 11=3 23=leaf)",
                "8=6 10=1 11=(9=2 11=3)",
            ]
        );
    }
}
