//! The packet decoder: reads the packets of a trace from any offset, and synchronises.

use crate::{
    Release,
    code::{Answer, Code},
    packet::{PtPacket, field, kind},
    packets::as_libipt,
    sync,
};
use pugmark_decoder_core::{
    ErrorKind,
    config::Config,
    errata::Errata,
    packet::{Context, PSB, Packet},
};

/// The bytes of a trace, and the answers of a caller who knows more packets.
pub trait TraceBytes: Clone {
    /// Returns the whole trace.
    fn bytes(&self) -> &[u8];

    /// Returns the trace's address in memory: a search backwards goes by words there.
    fn address(&self) -> usize;

    /// Returns the packet at an offset whose opcode is unknown, and its size in bytes.
    ///
    /// # Errors
    /// [`Code::BadOpcode`], or an error of the caller.
    fn unknown(&self, offset: u64) -> Answer<(PtPacket, u64)>;
}

/// A slice, without a reader of unknown packets.
impl TraceBytes for &[u8] {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    fn unknown(&self, _: u64) -> Answer<(PtPacket, u64)> {
        Err(Code::BadOpcode.status())
    }
}

/// A reader of packets, which handles erratum SKZ84.
#[derive(Clone, Copy, Debug)]
pub struct PacketDecoder<T> {
    trace: T,
    errata: Errata,
    release: Release,
    /// The offset of the next packet; `None` before the first synchronisation. Erratum SKZ84 can lead one byte past the
    /// end.
    position: Option<u64>,
    sync: Option<u64>,
}

impl<T: TraceBytes> PacketDecoder<T> {
    /// Starts without a position.
    pub const fn new(trace: T, errata: Errata, release: Release) -> Self {
        Self { trace, errata, release, position: None, sync: None }
    }

    /// Returns the trace.
    pub const fn trace(&self) -> &T {
        &self.trace
    }

    fn synced(&mut self, offset: u64) {
        self.position = Some(offset);
        self.sync = Some(offset);
    }

    fn len(&self) -> u64 {
        self.trace.bytes().len() as u64
    }

    /// Goes to the next PSB.
    ///
    /// # Errors
    /// [`Code::EndOfStream`] if there is none.
    pub fn sync_forward(&mut self) -> Answer<()> {
        let psb = PSB.len() as u64;
        let position = match self.position {
            // The current PSB is not the next one.
            Some(position) if self.sync == Some(position) => position + psb,
            position => position.unwrap_or(0),
        };
        // The packet before may have swallowed the first bytes of a PSB.
        let from = position - position.min(psb - 1);
        if from > self.len() {
            return Err(Code::Internal.status());
        }
        // A position in the trace fits.
        let found = pugmark_decoder_core::sync::forward(self.trace.bytes(), from as usize);
        self.synced(found.ok_or(Code::EndOfStream.status())? as u64);
        Ok(())
    }

    /// Goes to the last PSB before the position.
    ///
    /// # Errors
    /// [`Code::EndOfStream`] if there is none.
    pub fn sync_backward(&mut self) -> Answer<()> {
        let before = self.position.unwrap_or(self.len());
        if before > self.len() {
            return Err(Code::Internal.status());
        }
        // A position in the trace fits.
        let found = sync::backward(self.trace.bytes(), self.trace.address(), before as usize);
        self.synced(found.ok_or(Code::EndOfStream.status())? as u64);
        Ok(())
    }

    /// Goes to an offset, without looking for a PSB.
    ///
    /// # Errors
    /// [`Code::EndOfStream`] if it is outside the trace.
    pub fn sync_set(&mut self, offset: u64) -> Answer<()> {
        if offset > self.len() {
            return Err(Code::EndOfStream.status());
        }
        self.synced(offset);
        Ok(())
    }

    /// Returns the offset of the next packet; `None` before the first synchronisation.
    pub const fn position(&self) -> Option<u64> {
        self.position
    }

    /// Returns the offset of the last synchronisation.
    pub const fn sync_position(&self) -> Option<u64> {
        self.sync
    }

    /// Returns the next packet and its size.
    ///
    /// # Errors
    /// There is no packet at the position, or an unknown one.
    #[allow(clippy::should_implement_trait, reason = "after an error it goes on")]
    pub fn next(&mut self) -> Answer<(PtPacket, u64)> {
        let Some(position) = self.position.filter(|&position| position <= self.len()) else {
            return Err(Code::NoSync.status());
        };
        let rest = self.rest(position);
        // Errata are not the packets' reader's: libipt handles them in its own way.
        let (packet, size) = match Packet::parse_with(rest, &Config::new(), Context::OUTSIDE) {
            Ok(Some((packet, size))) => {
                match PtPacket::from_packet(as_libipt(packet, rest), self.release) {
                    // The longest packet has 16 bytes.
                    Some(packet) => (PtPacket { size: size as u32, ..packet }, size as u64),
                    None => self.trace.unknown(position)?,
                }
            }
            Ok(None) if self.is_newer(rest) => self.trace.unknown(position)?,
            Ok(None) => return Err(Code::EndOfStream.status()),
            Err(error) => self.failed(position, error)?,
        };
        if packet.kind == kind::PSB && self.release >= Release::V2_3 {
            self.sync = Some(position);
        }
        self.position = Some(position + size);
        Ok((packet, size))
    }

    /// Handles an error of the decoder in `next`.
    #[cold]
    fn failed(&self, position: u64, error: ErrorKind) -> Answer<(PtPacket, u64)> {
        match error {
            ErrorKind::MalformedPacket { packet: "TMA", .. } if self.errata.skz84 => {
                Ok((PtPacket { size: 8, ..PtPacket::new(kind::INVALID) }, 8))
            }
            _ => match Code::from(error) {
                Code::BadOpcode => self.trace.unknown(position),
                code => Err(code.status()),
            },
        }
    }

    /// Returns the next packet as libipt's event decoder reads it: erratum SKD007 is repaired here, and the trace ends
    /// where SKZ84 has led past its end.
    ///
    /// # Errors
    /// There is no packet at the position, or an unknown one.
    pub(crate) fn next_repaired(&mut self) -> Answer<PtPacket> {
        if self.position.is_some_and(|position| position > self.len()) {
            return Err(Code::EndOfStream.status());
        }
        let (packet, _) = self.next()?;
        if packet.kind == kind::CYC && self.errata.skd007 && self.skip_cut_off_cyc(&packet) {
            return Ok(PtPacket { size: 2, ..PtPacket::new(kind::OVF) });
        }
        Ok(packet)
    }

    /// Skips bytes without reading them.
    pub fn skip(&mut self, bytes: u64) {
        self.position = self.position.map(|position| position + bytes);
    }

    /// Handles erratum SKD007: an OVF follows a CYC that was cut off after its first byte. If that is true of this CYC,
    /// which was just read, skips to the OVF and returns true.
    fn skip_cut_off_cyc(&mut self, cyc: &PtPacket) -> bool {
        let next = self.position.and_then(|position| self.rest(position).first());
        // The field of a CYC of two bytes has twelve bits.
        let is_cut_off = cyc.size == 2 && cyc.get(field::CYC_VALUE) & !0x1f == 0x20 && next == Some(&0xf3);
        if is_cut_off {
            self.skip(1);
        }
        is_cut_off
    }

    /// Returns the bytes from a position on.
    fn rest(&self, position: u64) -> &[u8] {
        // A position in the trace fits.
        self.trace.bytes().get(position as usize..).unwrap_or_default()
    }

    /// Returns true if a packet begins here that the decoder knows but this release of libipt does not: TRIG or BBP.
    #[cold]
    fn is_newer(&self, rest: &[u8]) -> bool {
        matches!(rest, [0xd9, ..] if self.release < Release::V2_3) || matches!(rest, [0x02, 0x63, ..])
    }
}
