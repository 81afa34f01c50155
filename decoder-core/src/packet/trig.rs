//! TRIG: a trigger that software set up fired.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Trigger (TRIG) Packet".
//!
//! ```
//! use pugmark_decoder_core::packet::{Packet, Trig};
//!
//! let (packet, _) = Packet::parse(&[0xd9, 0x40, 0x01, 0x17, 0]).unwrap().unwrap();
//! assert_eq!(packet, Packet::Trig(Trig { trbv: 1, icnt: Some(23), mult: false, ip: false }));
//! ```

use super::{EmitError, Parsed, emit::put};

const IP: u8 = 1 << 7;
const ICNT_VALID: u8 = 1 << 6;
const MULT: u8 = 1 << 5;

/// A trigger fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trig {
    /// Trigger bit vector.
    pub trbv: u8,
    /// Instructions since the last anchor, if the packet marks the count as valid.
    pub icnt: Option<u16>,
    /// True for more than one trigger.
    pub mult: bool,
    /// True if a FUP with the IP follows.
    pub ip: bool,
}

impl Trig {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let [_, flags, trbv, rest @ ..] = bytes else { return Ok(None) };
        let (icnt, size) = match (flags & ICNT_VALID, rest) {
            (0, _) => (None, 3),
            (_, &[a, b, ..]) => (Some(u16::from_le_bytes([a, b])), 5),
            _ => return Ok(None),
        };
        Ok(Some((Self { trbv: *trbv, icnt, mult: flags & MULT != 0, ip: flags & IP != 0 }, size)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.ip, IP) | flag(self.icnt.is_some(), ICNT_VALID) | flag(self.mult, MULT);
        match self.icnt {
            None => put(out, &[0xd9, flags, self.trbv]),
            Some(icnt) => {
                let [a, b] = icnt.to_le_bytes();
                put(out, &[0xd9, flags, self.trbv, a, b])
            }
        }
    }
}
