//! Packets, chosen by input bytes.

use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::packet::{
    Bbp, Bep, Bip, BipValue, BlockItemSize, Cbr, Cfe, Cyc, Evd, Exstop, Ip, Mnt, ModeExec, ModeTsx, Mtc,
    Mwait, Packet, Pip, Ptw, PtwPayload, Pwre, Pwrx, Tma, Tnt, Trig, Tsc, Vmcs,
};

/// The addresses that packets name: those of the code, and sometimes any other.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The first address of the code.
    pub base: u64,
    /// The number of bytes of the code.
    pub len: u16,
}

impl Places {
    /// Returns an address, usually in the code.
    ///
    /// # Errors
    /// If there are not enough bytes left to choose with.
    pub fn ip(self, u: &mut Unstructured<'_>) -> Result<u64> {
        if u.ratio(1, 16)? { u.arbitrary() } else { Ok(self.base + u64::from(u.int_in_range(0..=self.len)?)) }
    }

    /// Returns an IP in one of the forms that packets have. The short forms are only correct after an IP that differs
    /// in few bytes.
    fn payload(self, u: &mut Unstructured<'_>) -> Result<Ip> {
        let ip = self.ip(u)?;
        let low_48 = ip & ((1 << 48) - 1);
        // The masks reduce the address to the bytes of the form.
        Ok(match u.int_in_range(0..=8)? {
            0 => Ip::Suppressed,
            1..=4 => Ip::Update16(ip & 0xffff),
            5 => Ip::Update32(ip & 0xffff_ffff),
            6 => Ip::SignExtend48(low_48),
            7 => Ip::Update48(low_48),
            _ => Ip::Full(ip),
        })
    }
}

/// Makes any packet that can be emitted, with each field in its range.
///
/// # Errors
/// If there are not enough bytes left to choose with.
pub fn packet(u: &mut Unstructured<'_>, places: Places) -> Result<Packet> {
    Ok(match u.int_in_range(0..=40)? {
        0 => Packet::Pad,
        1 => Packet::Psb,
        2 => Packet::PsbEnd,
        3 => Packet::Ovf,
        4 => Packet::TraceStop,
        5..=7 => Packet::TntShort(outcomes(u, Tnt::SHORT)?),
        8 => Packet::TntLong(outcomes(u, Tnt::LONG)?),
        9 | 10 => Packet::Tip(places.payload(u)?),
        11 | 12 => Packet::TipPge(places.payload(u)?),
        13 | 14 => Packet::TipPgd(places.payload(u)?),
        15..=17 => Packet::Fup(places.payload(u)?),
        18 => {
            Packet::ModeExec(ModeExec { cs_l: u.arbitrary()?, cs_d: u.arbitrary()?, iflag: u.arbitrary()? })
        }
        19 => Packet::ModeTsx(ModeTsx { in_tx: u.arbitrary()?, abort: u.arbitrary()? }),
        20 => Packet::Pip(Pip { cr3: bits(u, 52)? & !0x1f, non_root: u.arbitrary()? }),
        21 => Packet::Vmcs(Vmcs { base: bits(u, 52)? & !0xfff }),
        22 => Packet::Tsc(Tsc { tsc: bits(u, 56)? }),
        23 => Packet::Cbr(Cbr { ratio: u.arbitrary()?, reserved: u.arbitrary()? }),
        24 => Packet::Tma(Tma { ctc: u.arbitrary()?, fc: u.int_in_range(0..=0x1ff)? }),
        25 => Packet::Mtc(Mtc { ctc: u.arbitrary()? }),
        26 => Packet::Cyc(Cyc { cycles: cycles(u)? }),
        27 => Packet::Mnt(Mnt { payload: u.arbitrary()? }),
        28 => Packet::Exstop(Exstop { ip: u.arbitrary()? }),
        29 => Packet::Mwait(Mwait { hints: u.arbitrary()?, ext: u.arbitrary()? }),
        30 => Packet::Pwre(Pwre { state: nibble(u)?, sub_state: nibble(u)?, hw: u.arbitrary()? }),
        31 => Packet::Pwrx(Pwrx {
            last: nibble(u)?,
            deepest: nibble(u)?,
            interrupt: u.arbitrary()?,
            store: u.arbitrary()?,
            autonomous: u.arbitrary()?,
        }),
        32 => Packet::Ptw(Ptw { payload: operand(u)?, ip: u.arbitrary()? }),
        33 => Packet::Bbp(Bbp { size: size(u)?, kind: u.int_in_range(0..=0x1f)? }),
        34 => Packet::Bip(Bip { id: u.int_in_range(0..=0x1f)?, value: item(u)? }),
        35 => Packet::Bep(Bep { ip: u.arbitrary()? }),
        36 => {
            Packet::Cfe(Cfe { kind: u.int_in_range(0..=0x1f)?, vector: u.arbitrary()?, ip: u.arbitrary()? })
        }
        37 => Packet::Evd(Evd { kind: u.int_in_range(0..=0x3f)?, payload: u.arbitrary()? }),
        38 => Packet::Trig(Trig {
            trbv: u.arbitrary()?,
            icnt: if u.arbitrary()? { Some(u.int_in_range(0..=40)?) } else { None },
            mult: u.arbitrary()?,
            ip: u.arbitrary()?,
        }),
        39 => {
            let [a, b, reserved, c, d, last] = u.arbitrary()?;
            Packet::DamagedTma([0x02, 0x73, a, b, reserved | 1, c, d, last])
        }
        _ => Packet::Trig(Trig { trbv: u.arbitrary()?, icnt: Some(u.arbitrary()?), mult: false, ip: false }),
    })
}

fn outcomes(u: &mut Unstructured<'_>, most: u8) -> Result<Tnt> {
    let len = u.int_in_range(1..=most)?;
    Ok(Tnt { bits: bits(u, len.into())?, len })
}

fn bits(u: &mut Unstructured<'_>, count: u32) -> Result<u64> {
    u.int_in_range(0..=(1 << count) - 1)
}

fn nibble(u: &mut Unstructured<'_>) -> Result<u8> {
    u.int_in_range(0..=0xf)
}

/// Returns a count that needs any of the lengths of CYC packets.
fn cycles(u: &mut Unstructured<'_>) -> Result<u64> {
    let unused = u.int_in_range(0..=61)?;
    Ok(bits(u, 61)? >> unused)
}

fn size(u: &mut Unstructured<'_>) -> Result<BlockItemSize> {
    Ok(if u.arbitrary()? { BlockItemSize::Four } else { BlockItemSize::Eight })
}

fn item(u: &mut Unstructured<'_>) -> Result<BipValue> {
    Ok(match size(u)? {
        BlockItemSize::Four => BipValue::Four(u.arbitrary()?),
        BlockItemSize::Eight => BipValue::Eight(u.arbitrary()?),
    })
}

fn operand(u: &mut Unstructured<'_>) -> Result<PtwPayload> {
    Ok(if u.arbitrary()? { PtwPayload::Four(u.arbitrary()?) } else { PtwPayload::Eight(u.arbitrary()?) })
}
