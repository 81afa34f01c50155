//! Packets as libipt reads and writes them: no block packets, another bit for PWRE.HW, five bits of EVD.Type.
//!
//! libipt is older than the manual's block packets, and takes their opcodes for unknown ones.

use pugmark_decoder_core::{
    Error, ErrorKind,
    config::Config,
    packet::{Context, Evd, Packet, Packets, Pwre},
};

/// PWRE.HW in byte 2 of the packet: bit 3, where the manual's figure has bit 7.
pub const PWRE_HW: u8 = 1 << 3;
/// The bits of EVD.Type: the manual has six.
const EVD_TYPES: u8 = 0x1f;

/// Reads the packet at the front of `bytes`; `None` if it is cut off.
///
/// # Errors
/// Those of [`Packet::parse_with`], and [`ErrorKind::UnknownExtendedOpcode`] for a block packet.
pub fn parse(bytes: &[u8], config: &Config<'_>) -> Result<Option<(Packet, usize)>, ErrorKind> {
    if let Some(refused) = block_packet(bytes) {
        return Err(refused);
    }
    let read = Packet::parse_with(bytes, config, Context::OUTSIDE)?;
    Ok(read.map(|(packet, size)| (as_libipt(packet, bytes), size)))
}

/// Returns a packet that was read by the manual as libipt reads its bytes. Block packets stay as they are.
#[must_use]
pub fn as_libipt(packet: Packet, bytes: &[u8]) -> Packet {
    match packet {
        Packet::Pwre(pwre) => {
            Packet::Pwre(Pwre { hw: bytes.get(2).is_some_and(|flags| flags & PWRE_HW != 0), ..pwre })
        }
        Packet::Evd(evd) => Packet::Evd(Evd { kind: evd.kind & EVD_TYPES, ..evd }),
        other => other,
    }
}

/// Returns the error for a block packet: BBP and BEP, before which no BIP is one.
fn block_packet(bytes: &[u8]) -> Option<ErrorKind> {
    match bytes {
        &[0x02, second @ (0x63 | 0x33 | 0xb3), ..] => Some(ErrorKind::UnknownExtendedOpcode(second)),
        _ => None,
    }
}

/// The packets of a trace, in order, as [`Packets`] returns them.
#[derive(Clone, Debug)]
pub struct LibiptPackets<'a> {
    packets: Packets<'a>,
    failed: bool,
}

impl<'a> LibiptPackets<'a> {
    /// Starts at the trace's first byte. Of the configuration the errata count.
    #[must_use]
    pub fn new(trace: &'a [u8], config: Config<'a>) -> Self {
        Self { packets: Packets::with_config(trace, config), failed: false }
    }

    /// Returns the offset of the next packet, or of the one that cannot be read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.packets.offset()
    }

    /// Goes to the next PSB and returns its offset.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.failed = false;
        self.packets.sync_forward()
    }
}

impl Iterator for LibiptPackets<'_> {
    type Item = Result<(u64, Packet), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let offset = self.offset();
        let place = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.packets.bytes().get(place..).unwrap_or_default();
        if let Some(kind) = block_packet(bytes) {
            self.failed = true;
            return Some(Err(Error { offset, kind }));
        }
        let read = self.packets.next()?;
        Some(read.map(|(offset, packet)| (offset, as_libipt(packet, bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::PSB;

    const MANUAL: Config<'static> = Config::new();

    #[test]
    fn block_packets_are_unknown_opcodes_even_where_they_are_cut_off() {
        for second in [0x63, 0x33, 0xb3] {
            for bytes in [&[0x02, second, 0x01][..], &[0x02, second]] {
                let error = ErrorKind::UnknownExtendedOpcode(second);
                assert_eq!(parse(bytes, &MANUAL), Err(error), "{bytes:02x?}");
                let trace = [&PSB, bytes, &PSB, &[0x02, 0x23]].concat();
                let mut packets = LibiptPackets::new(&trace, MANUAL);
                assert_eq!(packets.sync_forward(), Some(0));
                let read: Vec<_> = packets.by_ref().collect();
                assert_eq!(read, [Ok((0, Packet::Psb)), Err(Error { offset: 16, kind: error })]);
                assert_eq!((packets.offset(), packets.sync_forward()), (16, Some(16 + bytes.len() as u64)));
                assert!(
                    packets.map(Result::unwrap).map(|(_, packet)| packet).eq([Packet::Psb, Packet::PsbEnd])
                );
            }
        }
        assert_eq!(parse(&[0x02], &MANUAL), Ok(None));
    }

    #[test]
    fn a_packet_has_the_bits_that_libipt_reads() {
        for (flags, manual, libipt) in [(0x80, true, false), (0x08, false, true), (0x77, false, false)] {
            let bytes = [0x02, 0x22, flags, 0];
            let pwre = |hw| Ok(Some((Packet::Pwre(Pwre { state: 0, sub_state: 0, hw }), 4)));
            assert_eq!(Packet::parse_with(&bytes, &MANUAL, Context::OUTSIDE), pwre(manual), "{flags:02x}");
            assert_eq!(parse(&bytes, &MANUAL), pwre(libipt), "{flags:02x}");
        }
        let evd = [0x02, 0x53, 0xe2, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse(&evd, &MANUAL), Ok(Some((Packet::Evd(Evd { kind: 2, payload: 0 }), 11))));
    }
}
