//! BBP, BIP and BEP: block begin, item and end. A block is a group of items, such as the registers of a PEBS record.
//!
//! Between BBP and BEP a first byte whose bits 2:0 are 100 begins a BIP; elsewhere it is a TNT. The
//! [`Context`](super::Context) tells the parser which one.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Block Begin Packet (BBP)", "Block Item Packet
//! (BIP)", "Block End Packet (BEP)".
//!
//! ```
//! use pugmark_decoder_core::packet::{Bip, BipValue, Packet, Packets};
//!
//! // BBP with four-byte items, item 2, BEP.
//! let trace = [0x02, 0x63, 0x81, 0x14, 0xef, 0xbe, 0xad, 0xde, 0x02, 0x33];
//! let item = Packets::new(&trace).nth(1).unwrap().unwrap();
//! assert_eq!(item, (3, Packet::Bip(Bip { id: 2, value: BipValue::Four(0xdead_beef) })));
//! ```

use super::{BlockItemSize, EmitError, Parsed, emit::put};

/// The start of a group of block items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bbp {
    /// The items' size.
    pub size: BlockItemSize,
    /// The type of the group, 5 bits; emitted modulo 32.
    pub kind: u8,
}

impl Bbp {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, payload, ..] = bytes else { return Ok(None) };
        let size = if payload & 1 << 7 != 0 { BlockItemSize::Four } else { BlockItemSize::Eight };
        Ok(Some((Self { size, kind: payload & 0x1f }, 3)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let four = u8::from(self.size == BlockItemSize::Four);
        put(out, &[0x02, 0x63, four << 7 | self.kind & 0x1f])
    }
}

/// One item of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bip {
    /// The item's number, 5 bits; emitted modulo 32.
    pub id: u8,
    /// The item's value, with the width that the BBP gave.
    pub value: BipValue,
}

/// A block item's payload by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BipValue {
    /// Four bytes.
    Four(u32),
    /// Eight bytes.
    Eight(u64),
}

impl Bip {
    /// The opcode in bits 2:0 of the first byte.
    pub(super) const OPCODE: u8 = 0b100;

    pub(super) fn parse(bytes: &[u8], size: BlockItemSize) -> Parsed<Self> {
        Ok(match (size, bytes) {
            (BlockItemSize::Four, &[first, a, b, c, d, ..]) => {
                let value = BipValue::Four(u32::from_le_bytes([a, b, c, d]));
                Some((Self { id: first >> 3, value }, 5))
            }
            (BlockItemSize::Eight, &[first, a, b, c, d, e, f, g, h, ..]) => {
                let value = BipValue::Eight(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
                Some((Self { id: first >> 3, value }, 9))
            }
            _ => None,
        })
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let first = self.id << 3 | Self::OPCODE;
        match self.value {
            BipValue::Four(value) => {
                let [a, b, c, d] = value.to_le_bytes();
                put(out, &[first, a, b, c, d])
            }
            BipValue::Eight(value) => {
                let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
                put(out, &[first, a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// The end of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bep {
    /// True if a FUP with the IP follows.
    pub ip: bool,
}

impl Bep {
    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[0x02, 0x33 | u8::from(self.ip) << 7])
    }
}
