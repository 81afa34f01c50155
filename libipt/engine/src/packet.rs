//! `struct pt_packet`, and the decoder's packets in it.
//!
//! The structure is two numbers and a union of structures with bit fields. A `Field` gives the position of one of these
//! in the union's sixteen bytes; a test compares each with the header.

use crate::Release;
use pugmark_decoder_core::packet::{
    Cbr, Cfe, Cyc, Evd, Exstop, Ip, Mnt, ModeExec, ModeTsx, Mtc, Mwait, Packet, Pip, Ptw, PtwPayload, Pwre,
    Pwrx, Tma, Tnt, Trig, Tsc, Vmcs,
};
use std::ffi::c_int;

/// `struct pt_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PtPacket {
    /// Its type, of [`kind`].
    pub kind: c_int,
    /// The size, and three padding bytes that are zero. As one number it is written and read in one piece, several
    /// times as fast.
    pub size: u32,
    /// The union, whose fields are in [`field`].
    pub payload: [u64; 2],
}

/// `enum pt_packet_type`, with the names of libipt's header in short.
#[allow(missing_docs, reason = "each is a name of the header's")]
pub mod kind {
    use std::ffi::c_int;

    pub const INVALID: c_int = 0;
    pub const UNKNOWN: c_int = 1;
    pub const PAD: c_int = 2;
    pub const PSB: c_int = 3;
    pub const PSBEND: c_int = 4;
    pub const FUP: c_int = 5;
    pub const TIP: c_int = 6;
    pub const TIP_PGE: c_int = 7;
    pub const TIP_PGD: c_int = 8;
    pub const TNT_8: c_int = 9;
    pub const TNT_64: c_int = 10;
    pub const MODE: c_int = 11;
    pub const PIP: c_int = 12;
    pub const VMCS: c_int = 13;
    pub const CBR: c_int = 14;
    pub const TSC: c_int = 15;
    pub const TMA: c_int = 16;
    pub const MTC: c_int = 17;
    pub const CYC: c_int = 18;
    pub const STOP: c_int = 19;
    pub const OVF: c_int = 20;
    pub const MNT: c_int = 21;
    pub const EXSTOP: c_int = 22;
    pub const MWAIT: c_int = 23;
    pub const PWRE: c_int = 24;
    pub const PWRX: c_int = 25;
    pub const PTW: c_int = 26;
    // Since 2.1.
    pub const CFE: c_int = 27;
    pub const EVD: c_int = 28;
    // Since 2.2.
    pub const TRIG: c_int = 29;

    /// Returns true if packets of a kind are timing packets.
    #[must_use]
    pub const fn is_time(kind: c_int) -> bool {
        matches!(kind, TSC | CBR | TMA | MTC | CYC)
    }
}

/// `pt_mol_exec`.
pub const LEAF_EXEC: u64 = 0;
/// `pt_mol_tsx`.
pub const LEAF_TSX: u64 = 0x20;

/// A field of the union: its first bit, and its width in bits. No field crosses the two words.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The number of its first bit.
    pub at: u32,
    /// Its width in bits.
    pub width: u32,
}

impl Field {
    const fn new(at: u32, width: u32) -> Self {
        Self { at, width }
    }

    const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }
}

/// The fields, by their names in the header.
#[allow(missing_docs, reason = "each is a name of the header's")]
pub mod field {
    use super::Field;

    pub const TNT_BIT_SIZE: Field = Field::new(0, 8);
    pub const TNT_PAYLOAD: Field = Field::new(64, 64);
    pub const IP_IPC: Field = Field::new(0, 32);
    pub const IP_IP: Field = Field::new(64, 64);
    pub const MODE_LEAF: Field = Field::new(0, 32);
    pub const MODE_EXEC_CSL: Field = Field::new(32, 1);
    pub const MODE_EXEC_CSD: Field = Field::new(33, 1);
    pub const MODE_EXEC_IFLAG: Field = Field::new(34, 1);
    pub const MODE_TSX_INTX: Field = Field::new(32, 1);
    pub const MODE_TSX_ABRT: Field = Field::new(33, 1);
    pub const PIP_CR3: Field = Field::new(0, 64);
    pub const PIP_NR: Field = Field::new(64, 1);
    pub const VMCS_BASE: Field = Field::new(0, 64);
    pub const CBR_RATIO: Field = Field::new(0, 8);
    pub const TSC_TSC: Field = Field::new(0, 64);
    pub const TMA_CTC: Field = Field::new(0, 16);
    pub const TMA_FC: Field = Field::new(16, 16);
    pub const MTC_CTC: Field = Field::new(0, 8);
    pub const CYC_VALUE: Field = Field::new(0, 64);
    pub const MNT_PAYLOAD: Field = Field::new(0, 64);
    pub const EXSTOP_IP: Field = Field::new(0, 1);
    pub const MWAIT_HINTS: Field = Field::new(0, 32);
    pub const MWAIT_EXT: Field = Field::new(32, 32);
    pub const PWRE_STATE: Field = Field::new(0, 8);
    pub const PWRE_SUB_STATE: Field = Field::new(8, 8);
    pub const PWRE_HW: Field = Field::new(16, 1);
    pub const PWRX_LAST: Field = Field::new(0, 8);
    pub const PWRX_DEEPEST: Field = Field::new(8, 8);
    pub const PWRX_INTERRUPT: Field = Field::new(16, 1);
    pub const PWRX_STORE: Field = Field::new(17, 1);
    pub const PWRX_AUTONOMOUS: Field = Field::new(18, 1);
    pub const PTW_PAYLOAD: Field = Field::new(0, 64);
    pub const PTW_PLC: Field = Field::new(64, 8);
    pub const PTW_IP: Field = Field::new(72, 1);
    pub const CFE_TYPE: Field = Field::new(0, 32);
    pub const CFE_VECTOR: Field = Field::new(32, 8);
    pub const CFE_IP: Field = Field::new(40, 1);
    pub const EVD_TYPE: Field = Field::new(0, 32);
    pub const EVD_PAYLOAD: Field = Field::new(64, 64);
    pub const TRIG_TRBV: Field = Field::new(0, 8);
    pub const TRIG_ICNT: Field = Field::new(16, 16);
    pub const TRIG_IP: Field = Field::new(32, 1);
    pub const TRIG_ICNTV: Field = Field::new(33, 1);
    pub const TRIG_MULT: Field = Field::new(34, 1);
    pub const UNKNOWN_PACKET: Field = Field::new(0, 64);
    pub const UNKNOWN_PRIV: Field = Field::new(64, 64);
}

/// Converts a mode to `enum pt_exec_mode`.
#[must_use]
pub const fn exec_mode(ModeExec { cs_l, cs_d, .. }: ModeExec) -> u64 {
    match (cs_l, cs_d) {
        (true, true) => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, false) => 3,
    }
}

impl PtPacket {
    /// Returns a packet of a type, without a size and with a union of zeros.
    #[must_use]
    pub const fn new(kind: c_int) -> Self {
        Self { kind, size: 0, payload: [0; 2] }
    }

    /// Sets the bits of a field of the union.
    #[must_use]
    #[inline(always)]
    pub const fn with(mut self, field: Field, value: u64) -> Self {
        self.payload[(field.at / 64) as usize] |= (value & field.mask()) << (field.at % 64);
        self
    }

    /// Returns the structure as words.
    #[must_use]
    #[inline(always)]
    pub const fn words(&self) -> [u64; 3] {
        [self.kind.cast_unsigned() as u64 | (self.size as u64) << 32, self.payload[0], self.payload[1]]
    }

    /// Returns a field of the union.
    #[must_use]
    pub const fn get(&self, field: Field) -> u64 {
        self.payload[(field.at / 64) as usize] >> (field.at % 64) & field.mask()
    }

    /// Returns true if a field of the union is not zero.
    #[must_use]
    pub const fn flag(&self, field: Field) -> bool {
        self.get(field) != 0
    }

    /// Returns the address, if the packet has one.
    #[must_use]
    pub fn address(&self) -> Ip {
        let payload = self.get(field::IP_IP);
        match self.get(field::IP_IPC) {
            1 => Ip::Update16(payload),
            2 => Ip::Update32(payload),
            3 => Ip::SignExtend48(payload),
            4 => Ip::Update48(payload),
            6 => Ip::Full(payload),
            _ => Ip::Suppressed,
        }
    }

    /// Returns the mode, if the packet is a MODE.Exec.
    #[must_use]
    pub const fn exec_mode(&self) -> ModeExec {
        ModeExec {
            cs_l: self.flag(field::MODE_EXEC_CSL),
            cs_d: self.flag(field::MODE_EXEC_CSD),
            iflag: self.flag(field::MODE_EXEC_IFLAG),
        }
    }

    /// Returns the packet's fields, if it is a CFE.
    #[must_use]
    pub const fn cfe(&self) -> Cfe {
        // Each field is as wide as the type, but for the type of event, which has five bits.
        Cfe {
            kind: self.get(field::CFE_TYPE) as u8,
            vector: self.get(field::CFE_VECTOR) as u8,
            ip: self.flag(field::CFE_IP),
        }
    }

    /// Returns the packet's fields, if it is an EVD.
    #[must_use]
    pub const fn evd(&self) -> Evd {
        // The type has six bits.
        Evd { kind: self.get(field::EVD_TYPE) as u8, payload: self.get(field::EVD_PAYLOAD) }
    }

    /// Returns the bits of an event, if the packet is a MODE.TSX.
    #[must_use]
    pub const fn tsx(&self) -> u64 {
        // Both have the bits in the same order.
        self.get(field::MODE_TSX_INTX) | self.get(field::MODE_TSX_ABRT) << 1
    }

    fn tnt(kind: c_int, tnt: Tnt) -> Self {
        Self::new(kind).with(field::TNT_BIT_SIZE, tnt.len.into()).with(field::TNT_PAYLOAD, tnt.bits)
    }

    fn ip(kind: c_int, ip: Ip) -> Self {
        let (form, payload) = match ip {
            Ip::Suppressed => (0, 0),
            Ip::Update16(payload) => (1, payload),
            Ip::Update32(payload) => (2, payload),
            Ip::SignExtend48(payload) => (3, payload),
            Ip::Update48(payload) => (4, payload),
            Ip::Full(payload) => (6, payload),
        };
        Self::new(kind).with(field::IP_IPC, form).with(field::IP_IP, payload)
    }

    /// Returns the decoder's packet, without its size, or `None` if that release of libipt does not know it.
    #[must_use]
    #[inline(always)]
    pub fn from_packet(packet: Packet, release: Release) -> Option<Self> {
        Some(match packet {
            Packet::Pad => Self::new(kind::PAD),
            Packet::Psb => Self::new(kind::PSB),
            Packet::PsbEnd => Self::new(kind::PSBEND),
            Packet::Ovf => Self::new(kind::OVF),
            Packet::TraceStop => Self::new(kind::STOP),
            Packet::TntShort(tnt) => Self::tnt(kind::TNT_8, tnt),
            Packet::TntLong(tnt) => Self::tnt(kind::TNT_64, tnt),
            Packet::Tip(ip) => Self::ip(kind::TIP, ip),
            Packet::TipPge(ip) => Self::ip(kind::TIP_PGE, ip),
            Packet::TipPgd(ip) => Self::ip(kind::TIP_PGD, ip),
            Packet::Fup(ip) => Self::ip(kind::FUP, ip),
            Packet::ModeExec(ModeExec { cs_l, cs_d, iflag }) => Self::new(kind::MODE)
                .with(field::MODE_LEAF, LEAF_EXEC)
                .with(field::MODE_EXEC_CSL, cs_l.into())
                .with(field::MODE_EXEC_CSD, cs_d.into())
                .with(field::MODE_EXEC_IFLAG, iflag.into()),
            Packet::ModeTsx(ModeTsx { in_tx, abort }) => Self::new(kind::MODE)
                .with(field::MODE_LEAF, LEAF_TSX)
                .with(field::MODE_TSX_INTX, in_tx.into())
                .with(field::MODE_TSX_ABRT, abort.into()),
            Packet::Pip(Pip { cr3, non_root }) => {
                Self::new(kind::PIP).with(field::PIP_CR3, cr3).with(field::PIP_NR, non_root.into())
            }
            Packet::Vmcs(Vmcs { base }) => Self::new(kind::VMCS).with(field::VMCS_BASE, base),
            Packet::Tsc(Tsc { tsc }) => Self::new(kind::TSC).with(field::TSC_TSC, tsc),
            Packet::Cbr(Cbr { ratio, .. }) => Self::new(kind::CBR).with(field::CBR_RATIO, ratio.into()),
            Packet::Tma(Tma { ctc, fc }) => {
                Self::new(kind::TMA).with(field::TMA_CTC, ctc.into()).with(field::TMA_FC, fc.into())
            }
            Packet::DamagedTma(_) => Self::new(kind::INVALID),
            Packet::Mtc(Mtc { ctc }) => Self::new(kind::MTC).with(field::MTC_CTC, ctc.into()),
            Packet::Cyc(Cyc { cycles }) => Self::new(kind::CYC).with(field::CYC_VALUE, cycles),
            Packet::Mnt(Mnt { payload }) => Self::new(kind::MNT).with(field::MNT_PAYLOAD, payload),
            Packet::Exstop(Exstop { ip }) => Self::new(kind::EXSTOP).with(field::EXSTOP_IP, ip.into()),
            Packet::Mwait(Mwait { hints, ext }) => Self::new(kind::MWAIT)
                .with(field::MWAIT_HINTS, hints.into())
                .with(field::MWAIT_EXT, ext.into()),
            Packet::Pwre(Pwre { state, sub_state, hw }) => Self::new(kind::PWRE)
                .with(field::PWRE_STATE, state.into())
                .with(field::PWRE_SUB_STATE, sub_state.into())
                .with(field::PWRE_HW, hw.into()),
            Packet::Pwrx(Pwrx { last, deepest, interrupt, store, autonomous }) => Self::new(kind::PWRX)
                .with(field::PWRX_LAST, last.into())
                .with(field::PWRX_DEEPEST, deepest.into())
                .with(field::PWRX_INTERRUPT, interrupt.into())
                .with(field::PWRX_STORE, store.into())
                .with(field::PWRX_AUTONOMOUS, autonomous.into()),
            Packet::Ptw(Ptw { payload, ip }) => {
                let (code, payload) = match payload {
                    PtwPayload::Four(payload) => (0, payload.into()),
                    PtwPayload::Eight(payload) => (1, payload),
                };
                Self::new(kind::PTW)
                    .with(field::PTW_PAYLOAD, payload)
                    .with(field::PTW_PLC, code)
                    .with(field::PTW_IP, ip.into())
            }
            Packet::Cfe(Cfe { kind, vector, ip }) => Self::new(kind::CFE)
                .with(field::CFE_TYPE, kind.into())
                .with(field::CFE_VECTOR, vector.into())
                .with(field::CFE_IP, ip.into()),
            Packet::Evd(Evd { kind, payload }) => {
                Self::new(kind::EVD).with(field::EVD_TYPE, kind.into()).with(field::EVD_PAYLOAD, payload)
            }
            Packet::Trig(Trig { trbv, icnt, ip, mult }) if release >= Release::V2_3 => Self::new(kind::TRIG)
                .with(field::TRIG_TRBV, trbv.into())
                .with(field::TRIG_ICNT, icnt.unwrap_or(0).into())
                .with(field::TRIG_IP, ip.into())
                .with(field::TRIG_ICNTV, icnt.is_some().into())
                .with(field::TRIG_MULT, mult.into()),
            Packet::Trig(_) | Packet::Bbp(_) | Packet::Bip(_) | Packet::Bep(_) | Packet::Unknown(_) => {
                return None;
            }
        })
    }
}
