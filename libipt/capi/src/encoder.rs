//! The packet encoder: `pt_alloc_encoder`, `pt_enc_*`.

use crate::{
    config::PtConfig,
    error::Code,
    out::write_offset,
    packet::{LEAF_EXEC, LEAF_TSX, PtPacket, field, kind},
};
use pugmark_decoder_core::packet::{
    Cbr, Cyc, EmitError, Exstop, Ip, Mnt, ModeExec, ModeTsx, Mtc, Mwait, Packet, Pip, Ptw, PtwPayload, Pwre,
    Pwrx, Tma, Tsc, Vmcs,
};
use pugmark_ipt::packets::PWRE_HW;
use std::{ffi::c_int, ptr};

/// `struct pt_encoder`.
#[derive(Debug)]
pub struct Encoder {
    config: PtConfig,
    offset: u64,
}

/// The bytes of a packet. PSB is the longest.
type PacketBytes = [u8; Packet::MAX_LEN];

impl Encoder {
    /// Writes a packet's bytes if there is room.
    ///
    /// # Safety
    /// The buffer is writable.
    unsafe fn write(&mut self, bytes: &[u8]) -> c_int {
        let size = bytes.len();
        if self.config.len() - self.offset < size as u64 {
            return Code::EndOfStream.status();
        }
        // An offset in the buffer fits.
        let out = self.config.begin.wrapping_add(self.offset as usize);
        // SAFETY: there is room in the buffer. The caller's packet was copied before, so both do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out, size) };
        self.offset += size as u64;
        // A packet has at most 16 bytes.
        size as c_int
    }

    /// # Safety
    /// The buffer is writable.
    unsafe fn next(&mut self, packet: &PtPacket) -> c_int {
        let mut bytes = PacketBytes::default();
        // libipt checks the room first; only the fields that decide the packet's size are checked before.
        let (size, checked) = encode(packet, &mut bytes);
        match checked {
            Ok(()) => {
                // SAFETY: by contract.
                unsafe { self.write(&bytes[..size]) }
            }
            Err(_) if size > 0 && self.config.len() - self.offset < size as u64 => Code::EndOfStream.status(),
            Err(code) => code.status(),
        }
    }
}

/// Writes the packet's bytes and returns their number, and the packet's error. Where libipt asks for room before it
/// finds the error, the number is the room.
fn encode(packet: &PtPacket, out: &mut PacketBytes) -> (usize, Result<(), Code>) {
    let wrong = |size, code| (size, Err(code));
    let flag = |field| packet.flag(field);
    let size = |field| packet.get(field);
    let value = match packet.kind {
        kind::PAD => Packet::Pad,
        kind::PSB => Packet::Psb,
        kind::PSBEND => Packet::PsbEnd,
        kind::OVF => Packet::Ovf,
        kind::STOP => Packet::TraceStop,
        kind::FUP | kind::TIP | kind::TIP_PGE | kind::TIP_PGD => {
            let payload = size(field::IP_IP);
            let ip = match size(field::IP_IPC) {
                0 => Ip::Suppressed,
                1 => Ip::Update16(payload),
                2 => Ip::Update32(payload),
                3 => Ip::SignExtend48(payload),
                4 => Ip::Update48(payload),
                6 => Ip::Full(payload),
                _ => return wrong(0, Code::Invalid),
            };
            match packet.kind {
                kind::FUP => Packet::Fup(ip),
                kind::TIP => Packet::Tip(ip),
                kind::TIP_PGE => Packet::TipPge(ip),
                _ => Packet::TipPgd(ip),
            }
        }
        kind::TNT_8 => {
            let outcomes = size(field::TNT_BIT_SIZE);
            if outcomes >= 7 {
                return wrong(0, Code::BadPacket);
            }
            // libipt neither refuses a TNT without outcomes nor outcomes after the last one.
            out[0] = (size(field::TNT_PAYLOAD) << 1) as u8 | 2 << outcomes;
            return (1, Ok(()));
        }
        kind::TNT_64 => {
            let (outcomes, bits) = (size(field::TNT_BIT_SIZE), size(field::TNT_PAYLOAD));
            if outcomes >= 48 || bits >> outcomes != 0 {
                return wrong(8, Code::Invalid);
            }
            let payload = (bits | 1 << outcomes).to_le_bytes();
            out[..2].copy_from_slice(&[0x02, 0xa3]);
            out[2..8].copy_from_slice(&payload[..6]);
            return (8, Ok(()));
        }
        kind::MODE => match size(field::MODE_LEAF) {
            LEAF_EXEC => Packet::ModeExec(ModeExec {
                cs_l: flag(field::MODE_EXEC_CSL),
                cs_d: flag(field::MODE_EXEC_CSD),
                iflag: false,
            }),
            LEAF_TSX => Packet::ModeTsx(ModeTsx {
                in_tx: flag(field::MODE_TSX_INTX),
                abort: flag(field::MODE_TSX_ABRT),
            }),
            _ => return wrong(2, Code::BadPacket),
        },
        kind::PIP => Packet::Pip(Pip { cr3: size(field::PIP_CR3), non_root: flag(field::PIP_NR) }),
        kind::VMCS => Packet::Vmcs(Vmcs { base: size(field::VMCS_BASE) }),
        // The casts lose nothing: the fields have as many bits.
        kind::CBR => Packet::Cbr(Cbr { ratio: size(field::CBR_RATIO) as u8, reserved: 0 }),
        kind::TSC => Packet::Tsc(Tsc { tsc: size(field::TSC_TSC) }),
        kind::TMA => {
            let (ctc, fc) = (size(field::TMA_CTC) as u16, size(field::TMA_FC) as u16);
            if fc > 0x1ff {
                return wrong(7, Code::BadPacket);
            }
            Packet::Tma(Tma { ctc, fc })
        }
        kind::MTC => Packet::Mtc(Mtc { ctc: size(field::MTC_CTC) as u8 }),
        kind::CYC => {
            let cycles = size(field::CYC_VALUE);
            if cycles > Cyc::MOST {
                return long_cyc(cycles, out);
            }
            Packet::Cyc(Cyc { cycles })
        }
        kind::MNT => Packet::Mnt(Mnt { payload: size(field::MNT_PAYLOAD) }),
        kind::EXSTOP => Packet::Exstop(Exstop { ip: flag(field::EXSTOP_IP) }),
        kind::MWAIT => Packet::Mwait(Mwait {
            hints: size(field::MWAIT_HINTS) as u32,
            ext: size(field::MWAIT_EXT) as u32,
        }),
        kind::PWRE => Packet::Pwre(Pwre {
            state: size(field::PWRE_STATE) as u8,
            sub_state: size(field::PWRE_SUB_STATE) as u8,
            hw: flag(field::PWRE_HW),
        }),
        kind::PWRX => Packet::Pwrx(Pwrx {
            last: size(field::PWRX_LAST) as u8,
            deepest: size(field::PWRX_DEEPEST) as u8,
            interrupt: flag(field::PWRX_INTERRUPT),
            store: flag(field::PWRX_STORE),
            autonomous: flag(field::PWRX_AUTONOMOUS),
        }),
        kind::PTW => {
            let payload = match size(field::PTW_PLC) {
                0 => PtwPayload::Four(size(field::PTW_PAYLOAD) as u32),
                1 => PtwPayload::Eight(size(field::PTW_PAYLOAD)),
                2 | 3 => return wrong(0, Code::BadPacket),
                _ => return wrong(0, Code::Internal),
            };
            Packet::Ptw(Ptw { payload, ip: flag(field::PTW_IP) })
        }
        _ => return wrong(0, Code::BadOpcode),
    };
    match value.emit(out) {
        Ok(size) => {
            if let Packet::Pwre(pwre) = value {
                out[2] = if pwre.hw { PWRE_HW } else { 0 };
            }
            (size, Ok(()))
        }
        Err(EmitError::Full { size, .. }) => (size, Err(Code::EndOfStream)),
        Err(_) => (0, Err(Code::BadPacket)),
    }
}

/// Writes a CYC of more cycles than can be read back: ten bytes, which libipt writes nevertheless.
fn long_cyc(cycles: u64, out: &mut PacketBytes) -> (usize, Result<(), Code>) {
    // The casts keep the bits of that byte only.
    out[0] = (cycles << 3) as u8 | 0b111;
    let further = 9;
    for index in 0..further {
        let more = u8::from(index + 1 < further);
        out[1 + index] = (cycles >> (5 + 7 * index) << 1) as u8 | more;
    }
    (1 + further, Ok(()))
}

/// Makes an encoder at the start of the buffer; null if the configuration is too short or has no buffer.
///
/// # Safety
/// `config` is null or points to a `struct pt_config` with as many bytes as it says. The buffer is writable until the
/// encoder is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_alloc_encoder(config: *const PtConfig) -> *mut Encoder {
    // SAFETY: by contract.
    let config = unsafe { PtConfig::from_user(config) };
    config.map_or(ptr::null_mut(), |config| Box::into_raw(Box::new(Encoder { config, offset: 0 })))
}

/// Frees the encoder.
///
/// # Safety
/// `encoder` is null or from [`pt_alloc_encoder`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_free_encoder(encoder: *mut Encoder) {
    if !encoder.is_null() {
        // SAFETY: `pt_alloc_encoder` made it from a box.
        drop(unsafe { Box::from_raw(encoder) });
    }
}

/// Goes to `offset`.
///
/// # Safety
/// `encoder` is null or from [`pt_alloc_encoder`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_sync_set(encoder: *mut Encoder, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(encoder) = (unsafe { encoder.as_mut() }) else { return Code::Invalid.status() };
    let Some(offset) = encoder.config.checked(offset) else { return Code::EndOfStream.status() };
    encoder.offset = offset;
    0
}

/// Writes the offset of the next packet.
///
/// # Safety
/// As for [`pt_enc_sync_set`]; `offset` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_get_offset(encoder: *const Encoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let encoder = unsafe { encoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(encoder.map(|encoder| Some(encoder.offset)), offset) }
}

/// Returns the encoder's copy of its configuration, which lives as long as the encoder.
///
/// # Safety
/// As for [`pt_enc_sync_set`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_get_config(encoder: *const Encoder) -> *const PtConfig {
    // SAFETY: by contract.
    let encoder = unsafe { encoder.as_ref() };
    encoder.map_or(ptr::null(), |encoder| &raw const encoder.config)
}

/// Writes a packet and returns its size.
///
/// # Safety
/// As for [`pt_enc_sync_set`]; `packet` is null or points to the header's structure. Nobody else uses the buffer during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_next(encoder: *mut Encoder, packet: *const PtPacket) -> c_int {
    // SAFETY: by contract.
    let Some(encoder) = (unsafe { encoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    let Some(packet) = (unsafe { packet.as_ref() }) else { return Code::Invalid.status() };
    let packet = *packet;
    // SAFETY: the buffer is writable by the contract of `pt_alloc_encoder`.
    unsafe { encoder.next(&packet) }
}
