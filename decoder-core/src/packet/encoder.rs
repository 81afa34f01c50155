//! Writes the packets of a trace into memory.
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
//! // A packet that does not fit is not written, but a smaller one may still fit.
//! assert_eq!(trace.emit(&Packet::Psb), Err(EmitError::Full { size: 16, room: 3 }));
//! assert_eq!(trace.emit_ip(Packet::Tip, 0xffff_8000_0000_2100)?, 3);
//! assert_eq!((trace.offset(), trace.room()), (32, 0));
//! assert_eq!(Packets::new(trace.trace()).count(), 6);
//! # Ok::<(), EmitError>(())
//! ```

use super::last_ip::LastIp;
use super::{Bip, BipValue, BlockItemSize, Context, Cyc, EmitError, Ip, Packet, timing};
use crate::config::Config;

/// A writer of packets into the caller's memory.
///
/// A reader with the same configuration reads back the packets that were passed in, except that fields too wide for
/// their packet are truncated.
#[derive(Debug)]
pub struct Encoder<'a> {
    memory: &'a mut [u8],
    offset: usize,
    context: Context,
    last_ip: LastIp,
    /// The last packet, if it is a CYC.
    last_cyc: Option<Cyc>,
    config: Config<'a>,
}

impl<'a> Encoder<'a> {
    /// Creates an encoder at the first byte of `memory`, for the manual's reading of packets.
    #[must_use]
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self::with_config(memory, Config::new())
    }

    /// Creates an encoder at the first byte of `memory`.
    #[must_use]
    pub fn with_config(memory: &'a mut [u8], config: Config<'a>) -> Self {
        Self { memory, offset: 0, context: Context::OUTSIDE, last_ip: LastIp::new(), last_cyc: None, config }
    }

    /// Returns the bytes written so far: the memory before the next packet.
    #[must_use]
    pub fn trace(&self) -> &[u8] {
        &self.memory[..self.offset]
    }

    /// Returns the offset of the next packet.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Returns the number of bytes left.
    #[must_use]
    pub fn room(&self) -> usize {
        self.memory.len() - self.offset
    }

    /// Continues at `offset`, outside any block and with no last IP, as after a PSB. Returns `false` and changes
    /// nothing if `offset` is after the memory's end.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        match usize::try_from(offset) {
            Ok(offset) if offset <= self.memory.len() => {
                (self.offset, self.context) = (offset, Context::OUTSIDE);
                (self.last_ip, self.last_cyc) = (LastIp::new(), None);
                true
            }
            _ => false,
        }
    }

    /// Writes a packet and returns its size.
    ///
    /// # Errors
    /// If the packet does not fit or cannot be written; then nothing is written. [`EmitError::Unreadable`]: the reader
    /// of the [configuration](Self::with_config) does not know the packet (a damaged TMA without erratum SKZ84 or with
    /// another packet's bytes), or would read it as another one (a block item outside a block or of another size than
    /// the block's; a short TNT inside a block; with erratum SKD007 a CYC of 30 cycles directly after one of 32 to 63,
    /// which together look like that erratum's OVF: put a PAD between them).
    pub fn emit(&mut self, packet: &Packet) -> Result<usize, EmitError> {
        if let Some(name) = self.unreadable(packet) {
            return Err(EmitError::Unreadable(name));
        }
        let size = packet.emit(&mut self.memory[self.offset..])?;
        self.offset += size;
        self.context = self.context.after(packet);
        self.last_cyc = None;
        match *packet {
            Packet::Cyc(cyc) => self.last_cyc = Some(cyc),
            Packet::Psb => self.last_ip.reset(),
            Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                self.last_ip.update(ip);
            }
            _ => {}
        }
        Ok(size)
    }

    /// Writes a packet with an IP, compressed as far as earlier packets allow, and returns its size.
    ///
    /// # Errors
    /// If the packet does not fit; then nothing is written.
    pub fn emit_ip(&mut self, packet: fn(Ip) -> Packet, ip: u64) -> Result<usize, EmitError> {
        let compressed = self.last_ip.clone().compress(ip);
        self.emit(&packet(compressed))
    }

    /// Returns the name of a packet that would be read as another one.
    fn unreadable(&self, packet: &Packet) -> Option<&'static str> {
        let readable = match packet {
            Packet::Bip(bip) => self.context.block == Some(size_of(bip)),
            Packet::DamagedTma(bytes) => self.config.errata.skz84 && timing::is_damaged_tma(bytes),
            Packet::Cyc(cyc) if self.config.errata.skd007 => {
                self.last_cyc.is_none_or(|last| !timing::are_ovf_by_skd007(last, *cyc))
            }
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
        packet::{Bbp, Bep, Packets, Pwre, Tnt, Unknown},
    };
    use std::{vec, vec::Vec};

    const TNT: Packet = Packet::TntShort(Tnt { bits: 0b10, len: 2 });
    const BBP: Packet = Packet::Bbp(Bbp { size: BlockItemSize::Four, kind: 1 });
    const FOUR: Packet = Packet::Bip(Bip { id: 1, value: BipValue::Four(2) });
    const EIGHT: Packet = Packet::Bip(Bip { id: 1, value: BipValue::Eight(2) });
    const BEP: Packet = Packet::Bep(Bep { ip: false });
    const DAMAGED: Packet = Packet::DamagedTma([0x02, 0x73, 0, 0, 1, 0, 0, 0]);
    const CYC: Packet = Packet::Cyc(Cyc { cycles: 1 });

    fn config(skz84: bool) -> Config<'static> {
        Config { errata: Errata { skz84, ..Errata::NONE }, ..Config::new() }
    }

    const fn cyc(cycles: u64) -> Packet {
        Packet::Cyc(Cyc { cycles })
    }

    #[test]
    fn refuses_what_its_reader_would_take_for_something_else() {
        let unknown = Packet::Unknown(Unknown { size: 1, value: 0 });
        let refused = |name| Some(EmitError::Unreadable(name));
        for (skz84, before, packet, error) in [
            (false, &[][..], FOUR, refused("BIP")),
            (false, &[BBP], FOUR, None),
            (false, &[BBP, CYC, FOUR], FOUR, None),
            (false, &[BBP], EIGHT, refused("BIP")),
            (false, &[BBP], TNT, refused("TNT")),
            (false, &[BBP, BEP], TNT, None),
            (false, &[BBP, BEP], FOUR, refused("BIP")),
            (false, &[], DAMAGED, refused("TMA")),
            (true, &[], DAMAGED, None),
            (true, &[], Packet::DamagedTma([0x02, 0x73, 0, 0, 0, 0, 0, 0]), refused("TMA")),
            (true, &[], Packet::DamagedTma([0x02, 0x72, 0, 0, 1, 0, 0, 0]), refused("TMA")),
            (true, &[], unknown, Some(EmitError::Unknown(Unknown { size: 1, value: 0 }))),
            (false, &[], Packet::Pwre(Pwre { state: 1, sub_state: 2, hw: true }), None),
        ] {
            let mut memory = [0xee; 64];
            let mut encoder = Encoder::with_config(&mut memory, config(skz84));
            before.iter().for_each(|packet| assert!(encoder.emit(packet).is_ok()));
            let offset = encoder.offset();
            assert_eq!(encoder.emit(&packet).err(), error, "{before:?} {packet:?}");
            assert_eq!(encoder.offset() > offset, error.is_none());
            let written = encoder.trace().to_vec();
            assert!(memory[written.len()..].iter().all(|&byte| byte == 0xee), "{packet:?}");
            let read: Vec<_> = Packets::with_config(&written, config(skz84)).flatten().collect();
            assert_eq!(read.len(), before.len() + usize::from(error.is_none()), "{packet:?}");
            if error.is_none() {
                assert_eq!(read.last().unwrap().1, packet);
            }
        }
    }

    #[test]
    fn two_cycs_that_skd007_makes_an_ovf_of_are_refused() {
        for (before, packet, is_ovf) in [
            (&[cyc(32)][..], cyc(30), true),
            (&[cyc(63)], cyc(30), true),
            (&[cyc(30), cyc(40)], cyc(30), true),
            (&[cyc(31)], cyc(30), false),
            (&[cyc(64)], cyc(30), false),
            (&[cyc((1 << 12) + 32)], cyc(30), false),
            (&[cyc(32)], cyc(29), false),
            (&[cyc(32)], cyc(62), false),
            (&[cyc(32), Packet::Pad], cyc(30), false),
            (&[cyc(32)], TNT, false),
        ] {
            for skd007 in [false, true] {
                let config = Config { errata: Errata { skd007, ..Errata::NONE }, ..Config::new() };
                let mut memory = [0; 16];
                let mut encoder = Encoder::with_config(&mut memory, config);
                before.iter().for_each(|packet| assert!(encoder.emit(packet).is_ok()));
                let refused = (skd007 && is_ovf).then_some(EmitError::Unreadable("CYC"));
                assert_eq!(encoder.emit(&packet).err(), refused, "{before:?} {packet:?}");
                let read = Packets::with_config(encoder.trace(), config).flatten().map(|(_, packet)| packet);
                let written = before.iter().chain(refused.is_none().then_some(&packet));
                assert!(read.eq(written.copied()), "{before:?} {packet:?}");
                // At another place the CYC does not follow the earlier packets.
                assert!(encoder.sync_at(8));
                assert_eq!(encoder.emit(&cyc(30)), Ok(1));
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
        sizes.push(encoder.emit_ip(Packet::Tip, 0x7fff_1000_0000).unwrap());
        encoder.emit(&Packet::Psb).unwrap();
        sizes.push(encoder.emit_ip(Packet::Fup, 0x7fff_1000_0000).unwrap());
        // A packet that did not fit does not become the last IP.
        assert!(encoder.sync_at(94));
        sizes.push(encoder.emit_ip(Packet::Fup, 0x1000).unwrap());
        assert!(encoder.emit_ip(Packet::Fup, 0x7fff_1000_0000).is_err());
        sizes.push(encoder.emit_ip(Packet::Fup, 0x2000).unwrap());
        assert!(encoder.sync_at(90));
        sizes.push(encoder.emit_ip(Packet::TipPge, 0x7fff_1000_0000).unwrap());
        assert_eq!(sizes, [7, 3, 5, 3, 7, 7, 3, 3, 7]);
        assert!(encoder.sync_at(100) && !encoder.sync_at(101) && !encoder.sync_at(u64::MAX));
        assert_eq!((encoder.offset(), encoder.room()), (100, 0));

        // The encoder continues outside any block.
        assert!(encoder.sync_at(0));
        encoder.emit(&BBP).unwrap();
        assert!(encoder.sync_at(50));
        assert_eq!(encoder.emit(&TNT), Ok(1));
    }
}
