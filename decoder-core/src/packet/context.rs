//! The state, set by earlier packets, that affects how a packet is parsed.
//!
//! ```
//! use pugmark_decoder_core::config::Config;
//! use pugmark_decoder_core::packet::{BlockItemSize, Context, Packet};
//!
//! // Between BBP and BEP these bytes are an item with four bytes, elsewhere a TNT.
//! let bytes = [0x14, 1, 0, 0, 0];
//! let inside = Context { block: Some(BlockItemSize::Four) };
//! assert!(matches!(Packet::parse_with(&bytes, &Config::new(), inside), Ok(Some((Packet::Bip(_), 5)))));
//! assert!(matches!(Packet::parse(&bytes), Ok(Some((Packet::TntShort(_), 1)))));
//! ```

use super::{Context, Packet};

impl Context {
    /// Outside any block.
    pub const OUTSIDE: Self = Self { block: None };

    /// Returns the context of the packet that follows `packet`.
    ///
    /// BBP opens a block. Items, padding, timing, power, maintenance and unknown packets and FUPs leave it open; every
    /// other packet closes it. So a lost BEP has no effect after the next packet that cannot be inside a block.
    #[inline]
    #[must_use]
    pub fn after(mut self, packet: &Packet) -> Self {
        match packet {
            Packet::Bbp(bbp) => self.block = Some(bbp.size),
            _ if self.block.is_none() => {}
            Packet::Bip(_)
            | Packet::Pad
            | Packet::Tsc(_)
            | Packet::Cbr(_)
            | Packet::Tma(_)
            | Packet::DamagedTma(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Mnt(_)
            | Packet::Exstop(_)
            | Packet::Pwre(_)
            | Packet::Pwrx(_)
            | Packet::Fup(_)
            | Packet::Unknown(_) => {}
            _ => self.block = None,
        }
        self
    }
}
