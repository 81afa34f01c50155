//! Packets by their first bytes, and their meaning for a query.

use crate::error::Code;
use pugmark_ipt::{Release, is_known};

/// The kind of a packet that its first bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Unknown,
    Pad,
    Psb,
    Tip,
    Tnt8,
    Tnt64,
    TipPge,
    TipPgd,
    Fup,
    Pip,
    Ovf,
    Mode,
    PsbEnd,
    Tsc,
    Cbr,
    Tma,
    Mtc,
    Cyc,
    Stop,
    Vmcs,
    Mnt,
    Exstop,
    Mwait,
    Pwre,
    Pwrx,
    Ptw,
    Cfe,
    /// A CFE that is no event.
    OtherCfe,
    Evd,
    /// One that the second byte decides.
    Extended,
}

/// The packet answers a query for an indirect branch.
pub(super) const TIP: u8 = 1 << 0;
/// The packet answers queries for conditional branches.
pub(super) const TNT: u8 = 1 << 1;
/// The packet is an event, or publishes the events that wait for it.
pub(super) const EVENT: u8 = 1 << 2;
/// The packet is a FUP, for which events may wait.
pub(super) const FUP: u8 = 1 << 3;
/// The packet ends a PSB+.
pub(super) const PSBEND: u8 = 1 << 4;

impl Opcode {
    #[inline(always)]
    pub(super) const fn flags(self) -> u8 {
        FLAGS[self as usize]
    }

    const fn find_flags(self) -> u8 {
        match self {
            Self::Tip => TIP,
            Self::Tnt8 | Self::Tnt64 => TNT,
            Self::Fup => FUP,
            Self::PsbEnd => PSBEND,
            Self::Ovf => PSBEND | EVENT,
            Self::TipPge
            | Self::TipPgd
            | Self::Pip
            | Self::Mode
            | Self::Cbr
            | Self::Stop
            | Self::Vmcs
            | Self::Mnt
            | Self::Exstop
            | Self::Mwait
            | Self::Pwre
            | Self::Pwrx
            | Self::Ptw
            | Self::Cfe => EVENT,
            Self::Unknown
            | Self::Pad
            | Self::Psb
            | Self::Tsc
            | Self::Tma
            | Self::Mtc
            | Self::Cyc
            | Self::OtherCfe
            | Self::Evd
            | Self::Extended => 0,
        }
    }

    const fn of_first(byte: u8) -> Self {
        match byte {
            0x00 => Self::Pad,
            0x02 => Self::Extended,
            0x99 => Self::Mode,
            0x19 => Self::Tsc,
            0x59 => Self::Mtc,
            _ if byte & 1 == 0 => Self::Tnt8,
            _ if byte & 3 == 3 => Self::Cyc,
            _ => match byte & 0x1f {
                0x0d => Self::Tip,
                0x1d => Self::Fup,
                0x11 => Self::TipPge,
                0x01 => Self::TipPgd,
                _ => Self::Unknown,
            },
        }
    }

    const fn of_second(byte: u8) -> Self {
        match byte {
            0x82 => Self::Psb,
            0xf3 => Self::Ovf,
            0xa3 => Self::Tnt64,
            0x23 => Self::PsbEnd,
            0x03 => Self::Cbr,
            0x43 => Self::Pip,
            0x73 => Self::Tma,
            0x83 => Self::Stop,
            0xc8 => Self::Vmcs,
            0x62 | 0xe2 => Self::Exstop,
            0xc2 => Self::Mwait,
            0x22 => Self::Pwre,
            0xa2 => Self::Pwrx,
            0x53 => Self::Evd,
            _ if byte & 0x1f == 0x12 => Self::Ptw,
            _ => Self::Unknown,
        }
    }

    /// Returns the opcode at the start of `bytes`.
    #[inline(always)]
    pub(super) fn fetch(bytes: &[u8]) -> Result<Self, Code> {
        let first = *bytes.first().ok_or(Code::EndOfStream)?;
        match FIRST[usize::from(first)] {
            Self::Extended => Self::fetch_extended(bytes),
            opcode => Ok(opcode),
        }
    }

    #[inline(never)]
    fn fetch_extended(bytes: &[u8]) -> Result<Self, Code> {
        match *bytes.get(1).ok_or(Code::EndOfStream)? {
            0xc3 => match *bytes.get(2).ok_or(Code::EndOfStream)? {
                0x88 => Ok(Self::Mnt),
                _ => Ok(Self::Unknown),
            },
            // The lowest five bits are the type.
            0x13 if is_known(*bytes.get(2).ok_or(Code::EndOfStream)? & 0x1f, Release::V2_1) => Ok(Self::Cfe),
            0x13 => Ok(Self::OtherCfe),
            second => Ok(Self::of_second(second)),
        }
    }
}

const FIRST: [Opcode; 256] = {
    let mut table = [Opcode::Unknown; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = Opcode::of_first(byte as u8);
        byte += 1;
    }
    table
};

/// The flags by opcode.
const FLAGS: [u8; Opcode::Extended as usize + 1] = {
    let mut table = [0; Opcode::Extended as usize + 1];
    // Opcodes that the third byte decides.
    table[Opcode::Mnt as usize] = Opcode::Mnt.find_flags();
    table[Opcode::Cfe as usize] = Opcode::Cfe.find_flags();
    let mut byte = 0;
    while byte < 256 {
        let (first, second) = (Opcode::of_first(byte as u8), Opcode::of_second(byte as u8));
        table[first as usize] = first.find_flags();
        table[second as usize] = second.find_flags();
        byte += 1;
    }
    table
};
