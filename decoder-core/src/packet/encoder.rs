//! Writing the packets of a trace into memory.
//!
//! ```
//! use pugmark_decoder_core::packet::{EmitError, Encoder, Packet, Packets, Tnt};
//!
//! let mut memory = [0; 32];
//! let mut trace = Encoder::new(&mut memory);
//! trace.emit(&Packet::Psb)?;
//! trace.emit(&Packet::PsbEnd)?;
//! // The IPs are compressed against each other.
//! assert_eq!(trace.emit_ip(Packet::TipPge, 0xffff_8000_0000_1000)?, 7);
//! assert_eq!(trace.emit_ip(Packet::Tip, 0xffff_8000_0000_2000)?, 3);
//! let mut outcomes = Tnt::EMPTY;
//! [true, false, true].map(|taken| outcomes.push(taken));
//! trace.emit(&outcomes.packet())?;
//!
//! // What does not fit is not written, and something smaller may still fit.
//! assert_eq!(trace.emit(&Packet::Psb), Err(EmitError::Full { size: 16, room: 3 }));
//! assert_eq!(trace.emit_ip(Packet::Tip, 0xffff_8000_0000_2100)?, 3);
//! assert_eq!((trace.offset(), trace.room()), (32, 0));
//! assert_eq!(Packets::new(trace.trace()).count(), 6);
//! # Ok::<(), EmitError>(())
//! ```

use super::{Bip, BipValue, BlockItemSize, Context, EmitError, Ip, Packet};
use crate::{
    config::{Config, Dialect},
    last_ip::LastIp,
};

/// Writes packets one behind the other into memory of the caller's.
///
/// A reader with the same configuration reads what was written as the packets that were handed in, with the fields that
/// are too wide for their packet cut down to it.
#[derive(Debug)]
pub struct Encoder<'a> {
    memory: &'a mut [u8],
    offset: usize,
    context: Context,
    last_ip: LastIp,
    config: Config<'a>,
}

impl<'a> Encoder<'a> {
    /// An encoder at the first byte of `memory`, for the manual's reading of packets.
    #[must_use]
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self::with_config(memory, Config::new())
    }

    /// An encoder at the first byte of `memory`.
    #[must_use]
    pub fn with_config(memory: &'a mut [u8], config: Config<'a>) -> Self {
        Self { memory, offset: 0, context: Context::OUTSIDE, last_ip: LastIp::new(), config }
    }

    /// For whom the packets are written.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        &self.config
    }

    /// What was written: the memory in front of the next packet.
    #[must_use]
    pub fn trace(&self) -> &[u8] {
        &self.memory[..self.offset]
    }

    /// Where the next packet goes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// How many bytes are left.
    #[must_use]
    pub fn room(&self) -> usize {
        self.memory.len() - self.offset
    }

    /// Goes on at `offset`, outside any block and with no last IP, as behind a PSB; `false`, and nothing changes, when
    /// it is behind the memory's end.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        match usize::try_from(offset) {
            Ok(offset) if offset <= self.memory.len() => {
                (self.offset, self.context, self.last_ip) = (offset, Context::OUTSIDE, LastIp::new());
                true
            }
            _ => false,
        }
    }

    /// Writes a packet and returns its size.
    ///
    /// # Errors
    /// When it does not fit or cannot be written; nothing is written then. [`EmitError::Unreadable`]: the reader of
    /// [`config`](Self::config) knows no such packet (those with block items where libipt reads, a damaged TMA without
    /// erratum SKZ84), or would take it for another one (block items of another size than the block's or outside a
    /// block, and short TNTs inside one).
    pub fn emit(&mut self, packet: &Packet) -> Result<usize, EmitError> {
        if let Some(name) = self.unreadable(packet) {
            return Err(EmitError::Unreadable(name));
        }
        let size = packet.emit_as(self.config.dialect, &mut self.memory[self.offset..])?;
        self.offset += size;
        self.context = self.context.after(packet);
        match *packet {
            Packet::Psb => self.last_ip.reset(),
            Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                self.last_ip.update(ip);
            }
            _ => {}
        }
        Ok(size)
    }

    /// Writes a packet with an IP, compressed as far as the packets before it allow, and returns its size.
    ///
    /// # Errors
    /// When it does not fit; nothing is written then.
    pub fn emit_ip(&mut self, packet: fn(Ip) -> Packet, ip: u64) -> Result<usize, EmitError> {
        let compressed = self.last_ip.clone().compress(ip);
        self.emit(&packet(compressed))
    }

    /// The name of a packet that would be read as something else.
    fn unreadable(&self, packet: &Packet) -> Option<&'static str> {
        let manual = self.config.dialect == Dialect::Manual;
        let readable = match packet {
            Packet::Bbp(_) | Packet::Bep(_) => manual,
            Packet::Bip(bip) => self.context.block == Some(size_of(bip)),
            Packet::DamagedTma(_) => self.config.errata.skz84,
            Packet::TntShort(_) => self.context.block.is_none(),
            _ => true,
        };
        (!readable).then(|| packet.name())
    }
}

fn size_of(item: &Bip) -> BlockItemSize {
    match item.value {
        BipValue::Four(_) => BlockItemSize::Four,
        BipValue::Eight(_) => BlockItemSize::Eight,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::{
        errata::Errata,
        packet::{Bbp, Bep, Cyc, Packets, Pwre, Tnt, Unknown},
    };
    use std::{vec, vec::Vec};

    const TNT: Packet = Packet::TntShort(Tnt { bits: 0b10, len: 2 });
    const BBP: Packet = Packet::Bbp(Bbp { size: BlockItemSize::Four, kind: 1 });
    const FOUR: Packet = Packet::Bip(Bip { id: 1, value: BipValue::Four(2) });
    const EIGHT: Packet = Packet::Bip(Bip { id: 1, value: BipValue::Eight(2) });
    const BEP: Packet = Packet::Bep(Bep { ip: false });
    const DAMAGED: Packet = Packet::DamagedTma([0x02, 0x73, 0, 0, 1, 0, 0, 0]);
    const CYC: Packet = Packet::Cyc(Cyc { cycles: 1 });

    fn config(dialect: Dialect, skz84: bool) -> Config<'static> {
        Config { dialect, errata: Errata { skz84, ..Errata::NONE }, ..Config::new() }
    }

    #[test]
    fn refuses_what_its_reader_would_take_for_something_else() {
        let (manual, libipt) = (Dialect::Manual, Dialect::Libipt);
        let unknown = Packet::Unknown(Unknown { size: 1, value: 0 });
        for (dialect, skz84, before, packet, error) in [
            (manual, false, &[][..], FOUR, Some(EmitError::Unreadable("BIP"))),
            (manual, false, &[BBP], FOUR, None),
            (manual, false, &[BBP, CYC, FOUR], FOUR, None),
            (manual, false, &[BBP], EIGHT, Some(EmitError::Unreadable("BIP"))),
            (manual, false, &[BBP], TNT, Some(EmitError::Unreadable("TNT"))),
            (manual, false, &[BBP, BEP], TNT, None),
            (manual, false, &[BBP, BEP], FOUR, Some(EmitError::Unreadable("BIP"))),
            (libipt, false, &[], BBP, Some(EmitError::Unreadable("BBP"))),
            (libipt, false, &[], BEP, Some(EmitError::Unreadable("BEP"))),
            (manual, false, &[], DAMAGED, Some(EmitError::Unreadable("TMA"))),
            (libipt, true, &[], DAMAGED, None),
            (manual, true, &[], unknown, Some(EmitError::Unknown(Unknown { size: 1, value: 0 }))),
            (libipt, false, &[], Packet::Pwre(Pwre { state: 1, sub_state: 2, hw: true }), None),
        ] {
            let mut memory = [0xee; 64];
            let mut encoder = Encoder::with_config(&mut memory, config(dialect, skz84));
            before.iter().for_each(|packet| assert!(encoder.emit(packet).is_ok()));
            let offset = encoder.offset();
            assert_eq!(encoder.emit(&packet).err(), error, "{before:?} {packet:?}");
            assert_eq!(encoder.offset() > offset, error.is_none());
            let written = encoder.trace().to_vec();
            assert!(memory[written.len()..].iter().all(|&byte| byte == 0xee), "{packet:?}");
            let read: Vec<_> = Packets::with_config(&written, config(dialect, skz84)).flatten().collect();
            assert_eq!(read.len(), before.len() + usize::from(error.is_none()), "{packet:?}");
            if error.is_none() {
                assert_eq!(read.last().unwrap().1, packet);
            }
        }
    }

    #[test]
    fn ips_are_compressed_against_those_before_them_and_begin_anew_at_a_psb() {
        let mut memory = vec![0; 100];
        let mut encoder = Encoder::new(&mut memory);
        let mut sizes = vec![];
        for ip in [0x7fff_0000_1000, 0x7fff_0000_2000, 0x7fff_1000_0000] {
            sizes.push(encoder.emit_ip(Packet::Tip, ip).unwrap());
        }
        encoder.emit(&Packet::Fup(Ip::Full(0x1234_5678_9abc_def0))).unwrap();
        sizes.push(encoder.emit_ip(Packet::TipPgd, 0x1234_5678_9abc_0000).unwrap());
        encoder.emit(&Packet::Psb).unwrap();
        sizes.push(encoder.emit_ip(Packet::Fup, 0x7fff_1000_0000).unwrap());
        // What did not fit was not compressed against.
        assert!(encoder.sync_at(97));
        sizes.push(encoder.emit_ip(Packet::Fup, 0x1000).unwrap());
        assert!(encoder.emit_ip(Packet::Fup, 0x2000).is_err());
        assert!(encoder.sync_at(90));
        sizes.push(encoder.emit_ip(Packet::TipPge, 0x7fff_1000_0000).unwrap());
        assert_eq!(sizes, [7, 3, 5, 3, 7, 3, 7]);
        assert!(encoder.sync_at(100) && !encoder.sync_at(101) && !encoder.sync_at(u64::MAX));
        assert_eq!((encoder.offset(), encoder.room()), (100, 0));
    }
}
