//! Packets of a trace that comes in slices.

use super::{Lost, tail::Tail};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    last_ip::LastIp,
    packet::{Input, PacketSink, Packets, before_psb},
};

/// The packets of a trace that comes in slices: [`Packets::visit`], from slice to slice.
///
/// The first packet is the first PSB.
#[derive(Debug)]
pub struct PacketStream<'c, 'm> {
    tail: Tail<'m>,
    reading: Reading<'c>,
}

/// The state of a stream, without its bytes.
#[derive(Debug)]
struct Reading<'c> {
    packets: Packets<'c>,
    last_ip: LastIp,
    synced: bool,
    errors: u64,
}

impl<'c, 'm> PacketStream<'c, 'm> {
    /// Creates a stream in front of its first slice. `kept` holds the parts of slices that must be kept: 1024 bytes are
    /// enough; fewer do not compile.
    #[must_use]
    pub fn new<const N: usize>(config: Config<'c>, kept: &'m mut [u8; N]) -> Self {
        let packets = Packets::with_config(&[], config);
        let reading = Reading { packets, last_ip: LastIp::new(), synced: false, errors: 0 };
        Self { tail: Tail::new(kept), reading }
    }

    /// Decodes the next slice, and passes to `sink` all packets that end in it.
    pub fn decode<S: PacketSink>(&mut self, slice: &[u8], sink: &mut S) {
        let Self { tail, reading } = self;
        tail.feed(slice, |input| reading.run(input, sink));
    }

    /// Reports that `bytes` bytes are missing before the next slice; 0 if the number is unknown. Decodes the bytes that
    /// were kept, then restarts at the next PSB.
    pub fn gap<S: PacketSink>(&mut self, bytes: u64, sink: &mut S) {
        let offset = self.tail.end();
        self.end(sink);
        sink.lost(&Lost::Gap { offset, bytes });
        self.go_to(offset + bytes);
    }

    /// Ends the stream: decodes the bytes that were kept. The next slice begins another stream, with offset 0.
    pub fn finish<S: PacketSink>(&mut self, sink: &mut S) {
        self.end(sink);
        self.go_to(0);
    }

    /// Returns the offset of the next slice's first byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.tail.end()
    }

    /// Returns how many times decoding had to skip to the next PSB because of an error.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.reading.errors
    }

    fn end<S: PacketSink>(&mut self, sink: &mut S) {
        let Self { tail, reading } = self;
        tail.finish(|input| reading.run(input, sink));
    }

    fn go_to(&mut self, offset: u64) {
        self.tail.go_to(offset);
        self.reading.synced = false;
        self.reading.packets.restart(offset);
    }
}

impl Reading<'_> {
    /// Decodes the bytes at hand, and returns the offset from which on bytes are needed again.
    fn run<S: PacketSink>(&mut self, input: Input<'_>, sink: &mut S) -> u64 {
        let mut packets = self.packets.resumed(input, *self.packets.config());
        while self.synced || packets.sync_forward().is_some() {
            self.synced = true;
            match packets.visit(&mut self.last_ip, sink) {
                Ok(()) | Err(Error { kind: ErrorKind::EndOfSlice, .. }) => break,
                Err(error) => {
                    self.synced = false;
                    self.errors += 1;
                    sink.lost(&Lost::Error(error));
                }
            }
        }
        let keep = before_psb(packets.offset());
        self.packets.continue_after(&packets, keep);
        keep
    }
}
