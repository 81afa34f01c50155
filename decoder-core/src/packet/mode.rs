//! MODE: the execution mode and the transactional state.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "MODE Packets".
//!
//! ```
//! use pugmark_decoder_core::packet::{ModeExec, Packet};
//!
//! let (packet, _) = Packet::parse(&[0x99, 0x01]).unwrap().unwrap();
//! assert_eq!(packet, Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }));
//! ```

use super::{EmitError, Packet, Parsed, emit::put};
use crate::error::ErrorKind;

const OPCODE: u8 = 0x99;
const LEAF_TSX: u8 = 1 << 5;

/// MODE leaf 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModeExec {
    /// CS.L, with IA32_EFER.LMA.
    pub cs_l: bool,
    /// CS.D.
    pub cs_d: bool,
    /// RFLAGS.IF; valid only when event trace is on.
    pub iflag: bool,
}

/// MODE leaf 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModeTsx {
    /// True in a transaction.
    pub in_tx: bool,
    /// True if a transaction aborted.
    pub abort: bool,
}

/// Parses either leaf. Reserved bits are ignored.
pub(super) fn parse(bytes: &[u8]) -> Parsed<Packet> {
    let &[_, payload, ..] = bytes else { return Ok(None) };
    let bit = |bit: u8| payload & 1 << bit != 0;
    let packet = match payload >> 5 {
        0 => Packet::ModeExec(ModeExec { cs_l: bit(0), cs_d: bit(1), iflag: bit(2) }),
        1 => Packet::ModeTsx(ModeTsx { in_tx: bit(0), abort: bit(1) }),
        _ => return Err(ErrorKind::MalformedPacket { packet: "MODE", value: u64::from(payload) }),
    };
    Ok(Some((packet, 2)))
}

impl ModeExec {
    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[OPCODE, u8::from(self.cs_l) | u8::from(self.cs_d) << 1 | u8::from(self.iflag) << 2])
    }
}

impl ModeTsx {
    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[OPCODE, LEAF_TSX | u8::from(self.in_tx) | u8::from(self.abort) << 1])
    }
}
