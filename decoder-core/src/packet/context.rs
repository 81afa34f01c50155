//! What a packet's reading depends on besides its own bytes.
//!
//! ```
//! use pugmark_decoder_core::packet::{Context, Dialect, Packet};
//!
//! // BBP: the manual has it, libipt does not.
//! assert!(Packet::parse(&[0x02, 0x63, 0x01], Context::default()).is_ok());
//! let libipt = Context { dialect: Dialect::Libipt, ..Context::default() };
//! assert!(Packet::parse(&[0x02, 0x63, 0x01], libipt).is_err());
//! ```

use super::{BlockItemSize, Packet};
use crate::errata::Errata;

/// What the bytes before a packet, and the reader's wishes, decide about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    /// Between BBP and BEP: the items' size. Bytes with bits 2:0 = 100 begin a BIP there.
    pub block: Option<BlockItemSize>,
    /// Whose reading of the bytes counts.
    pub dialect: Dialect,
    /// The processor's errata. SKD007 and SKZ84 change what bytes mean.
    pub errata: Errata,
}

/// Whose reading of packets' bytes counts, where readings differ.
///
/// Emission always follows the manual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The SDM's.
    #[default]
    Manual,
    /// libipt 2.3's: no block packets (their opcodes are unknown), PWRE.HW is bit 3 of byte 2 instead of bit 7,
    /// EVD.Type has five bits instead of six.
    Libipt,
}

impl Context {
    /// A context outside any block.
    pub const fn new(dialect: Dialect) -> Self {
        Self { block: None, dialect, errata: Errata::NONE }
    }

    /// The context of the packet that follows `packet`.
    ///
    /// BBP opens a block. Items, padding, timing, power and maintenance packets and FUPs leave it open; everything
    /// else closes it, so that a lost BEP does no harm beyond the next packet that cannot be inside a block.
    #[inline]
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
            | Packet::Fup(_) => {}
            _ => self.block = None,
        }
        self
    }
}
