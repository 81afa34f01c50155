//! Takes the trace, and reads the targets of the machine's jumps from it.

use super::Ram;
use pugmark_decoder_core::last_ip::LastIp;
use pugmark_decoder_core::packet::{Packet, Packets};
use pugmark_kernel::drain::{Chunk, Sink};
use pugmark_kernel::intel::pt::Trace;
use pugmark_kernel::loss::Gap;

/// A sink that takes everything, or a limited number of bytes.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// The bytes between two gaps.
    pub(crate) stretches: Vec<Vec<u8>>,
    pub(crate) gaps: Vec<Gap>,
    /// The number of bytes that the sink still takes.
    pub(crate) appetite: Option<usize>,
}

impl Collector {
    pub(crate) fn new() -> Self {
        Self { stretches: vec![Vec::new()], ..Self::default() }
    }

    /// Takes the rest of a stopped trace.
    pub(crate) fn finish(&mut self, trace: &Trace<&Ram>) {
        for chunk in trace.chunks() {
            match chunk {
                Chunk::Bytes(bytes) => assert_eq!(self.bytes(bytes), bytes.len()),
                Chunk::Gap(gap) => assert!(self.gap(gap)),
            }
        }
    }

    /// Returns the only stretch of a trace without gaps.
    pub(crate) fn whole(&self) -> &[u8] {
        assert_eq!(self.gaps, []);
        &self.stretches[0]
    }
}

impl Sink for Collector {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let taken = self.appetite.unwrap_or(usize::MAX).min(bytes.len());
        if let Some(appetite) = &mut self.appetite {
            *appetite -= taken;
        }
        self.stretches.last_mut().unwrap().extend_from_slice(&bytes[..taken]);
        taken
    }

    fn gap(&mut self, gap: Gap) -> bool {
        if self.appetite == Some(0) {
            return false;
        }
        self.gaps.push(gap);
        self.stretches.push(Vec::new());
        true
    }
}

/// Returns the targets of a stretch's TIP packets. A last packet that is cut ends it.
pub(crate) fn tips(bytes: &[u8]) -> Vec<u64> {
    let mut last_ip = LastIp::new();
    let mut targets = Vec::new();
    for packet in Packets::new(bytes) {
        let (_, packet) = packet.unwrap();
        match packet {
            Packet::Psb => last_ip.reset(),
            Packet::Tip(ip) => targets.extend(last_ip.update(ip)),
            Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                last_ip.update(ip);
            }
            _ => {}
        }
    }
    targets
}

/// Panics with the first difference only, because the lists are long.
#[track_caller]
pub(crate) fn assert_same(is: &[u64], should: &[u64], what: &str) {
    let same = is.iter().zip(should).take_while(|(is, should)| is == should).count();
    assert!(
        is.len() == should.len() && same == is.len(),
        "{what}: {} of {}, {:x?} instead of {:x?} at {same}",
        is.len(),
        should.len(),
        is.get(same),
        should.get(same)
    );
}

/// Returns a stretch from its first PSB on.
pub(crate) fn synced(bytes: &[u8]) -> &[u8] {
    let mut packets = Packets::new(bytes);
    let offset = packets.sync_forward().expect("a PSB");
    &bytes[offset as usize..]
}

/// Returns the end of `part` in `whole`, if it is a contiguous run of it.
pub(crate) fn run_within(part: &[u64], whole: &[u64], from: usize) -> Option<usize> {
    (from..=whole.len().checked_sub(part.len())?)
        .find(|&at| whole[at..].starts_with(part))
        .map(|at| at + part.len())
}
