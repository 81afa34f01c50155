//! EXSTOP, MWAIT, PWRE and PWRX: the power packets, sent when the processor sleeps and wakes.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", the packets' sections.
//!
//! ```
//! use pugmark_decoder_core::packet::{Exstop, Packet};
//!
//! let (packet, _) = Packet::parse(&[0x02, 0xe2]).unwrap().unwrap();
//! assert_eq!(packet, Packet::Exstop(Exstop { ip: true }));
//! ```

use super::{EmitError, Parsed, emit::put};

/// Execution stopped (C-state, T-state, frequency change).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exstop {
    /// True if a FUP with the IP follows.
    pub ip: bool,
}

impl Exstop {
    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[0x02, 0x62 | u8::from(self.ip) << 7])
    }
}

/// MWAIT's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mwait {
    /// EAX. Processors send bits 7:0.
    pub hints: u32,
    /// ECX. Processors send bits 1:0.
    pub ext: u32,
}

impl Mwait {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, a, b, c, d, e, f, g, h, ..] = bytes else { return Ok(None) };
        let (hints, ext) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        Ok(Some((Self { hints, ext }, 10)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let ([a, b, c, d], [e, f, g, h]) = (self.hints.to_le_bytes(), self.ext.to_le_bytes());
        put(out, &[0x02, 0xc2, a, b, c, d, e, f, g, h])
    }
}

/// A C-state was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pwre {
    /// Resolved thread C-state, 4 bits; emitted modulo 16.
    pub state: u8,
    /// Resolved thread sub C-state, 4 bits; emitted modulo 16.
    pub sub_state: u8,
    /// True if entered by hardware, not by MWAIT.
    pub hw: bool,
}

/// HW in byte 2 of a PWRE.
const PWRE_HW: u8 = 1 << 7;

impl Pwre {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, flags, states, ..] = bytes else { return Ok(None) };
        let hw = flags & PWRE_HW != 0;
        Ok(Some((Self { state: states >> 4, sub_state: states & 0xf, hw }, 4)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let flags = if self.hw { PWRE_HW } else { 0 };
        put(out, &[0x02, 0x22, flags, self.state << 4 | self.sub_state & 0xf])
    }
}

/// A C-state was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pwrx {
    /// Last core C-state, 4 bits; emitted modulo 16.
    pub last: u8,
    /// Deepest core C-state, 4 bits; emitted modulo 16.
    pub deepest: u8,
    /// True if woken by an interrupt.
    pub interrupt: bool,
    /// True if woken by a store to the monitored address.
    pub store: bool,
    /// True if woken by hardware.
    pub autonomous: bool,
}

impl Pwrx {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, states, wake, _, _, _, ..] = bytes else { return Ok(None) };
        let packet = Self {
            last: states >> 4,
            deepest: states & 0xf,
            interrupt: wake & 1 != 0,
            store: wake & 1 << 2 != 0,
            autonomous: wake & 1 << 3 != 0,
        };
        Ok(Some((packet, 7)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let wake = u8::from(self.interrupt) | u8::from(self.store) << 2 | u8::from(self.autonomous) << 3;
        put(out, &[0x02, 0xa2, self.last << 4 | self.deepest & 0xf, wake, 0, 0, 0])
    }
}
