//! iptr-decoder: the packets of a trace.

use crate::{Outcome, bytes};
use iptr_decoder::{
    DecodeOptions, DecoderContext, HandlePacket, IpReconstructionPattern, PtwPayload, decode,
    error::DecoderError, utils::reconstruct_ip_and_update_last,
};
use std::{convert::Infallible, num::NonZero};

/// A consumer of packets: counts them, and adds up their contents; of packets with an IP, the full address.
#[derive(Default)]
struct Sum {
    last_ip: u64,
    count: u64,
    sum: u64,
}

impl Sum {
    #[inline(always)]
    fn add(&mut self, value: u64) -> Result<(), Infallible> {
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
        Ok(())
    }

    #[inline(always)]
    fn ip(&mut self, ip: IpReconstructionPattern) -> Result<(), Infallible> {
        let known = reconstruct_ip_and_update_last(&mut self.last_ip, ip);
        self.add(if known { self.last_ip } else { 0 })
    }
}

/// A packet of which only the kind is used. These are rare.
macro_rules! counted {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name(&mut self, _: &DecoderContext, $($argument: $kind),*) -> Result<(), Infallible> {
            $(let _ = $argument;)*
            self.add(0)
        })*
    };
}

impl HandlePacket for Sum {
    type Error = Infallible;

    fn at_decode_begin(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn on_short_tnt_packet(
        &mut self,
        _: &DecoderContext,
        byte: NonZero<u8>,
        highest: u32,
    ) -> Result<(), Infallible> {
        // The byte holds the outcomes above bit 0 and a stop bit above them.
        let bits = u64::from(byte.get() >> 1) ^ 1 << highest;
        self.add(bits + u64::from(highest))
    }

    fn on_long_tnt_packet(
        &mut self,
        _: &DecoderContext,
        bytes: NonZero<u64>,
        highest: u32,
    ) -> Result<(), Infallible> {
        // Here there is no bit below the outcomes, and `highest` is the number of the oldest one.
        let len = highest.wrapping_add(1);
        self.add((bytes.get() ^ 1 << len) + u64::from(len))
    }

    fn on_tip_packet(&mut self, _: &DecoderContext, ip: IpReconstructionPattern) -> Result<(), Infallible> {
        self.ip(ip)
    }

    fn on_tip_pgd_packet(
        &mut self,
        _: &DecoderContext,
        ip: IpReconstructionPattern,
    ) -> Result<(), Infallible> {
        self.ip(ip)
    }

    fn on_tip_pge_packet(
        &mut self,
        _: &DecoderContext,
        ip: IpReconstructionPattern,
    ) -> Result<(), Infallible> {
        self.ip(ip)
    }

    fn on_fup_packet(&mut self, _: &DecoderContext, ip: IpReconstructionPattern) -> Result<(), Infallible> {
        self.ip(ip)
    }

    fn on_cyc_packet(&mut self, _: &DecoderContext, packet: &[u8]) -> Result<(), Infallible> {
        // This decoder leaves the assembly of the count to its user.
        let mut cycles = u64::from(packet[0] >> 3);
        for (index, byte) in packet[1..].iter().enumerate() {
            cycles |= u64::from(byte >> 1) << (5 + 7 * index);
        }
        self.add(cycles)
    }

    fn on_mtc_packet(&mut self, _: &DecoderContext, ctc: u8) -> Result<(), Infallible> {
        self.add(ctc.into())
    }

    fn on_tsc_packet(&mut self, _: &DecoderContext, tsc: u64) -> Result<(), Infallible> {
        self.add(tsc)
    }

    fn on_psb_packet(&mut self, _: &DecoderContext) -> Result<(), Infallible> {
        self.last_ip = 0;
        self.add(0)
    }

    counted! {
        on_pad_packet();
        on_mode_packet(leaf: u8, mode: u8);
        on_cbr_packet(ratio: u8);
        on_tma_packet(ctc: u16, counter: u8, bit: bool);
        on_vmcs_packet(pointer: u64);
        on_ovf_packet();
        on_psbend_packet();
        on_trace_stop_packet();
        on_pip_packet(cr3: u64, bit: bool);
        on_mnt_packet(payload: u64);
        on_ptw_packet(ip: bool, payload: PtwPayload);
        on_exstop_packet(ip: bool);
        on_mwait_packet(hints: u8, ext: u8);
        on_pwre_packet(hardware: bool, state: u8, sub: u8);
        on_pwrx_packet(last: u8, deepest: u8, reason: u8);
        on_evd_packet(kind: u8, payload: u64);
        on_cfe_packet(ip: bool, kind: u8, vector: u8);
        on_bbp_packet(wide: bool, kind: u8);
        on_bep_packet(ip: bool);
        on_bip_packet(id: u8, payload: &[u8], kind: u8);
    }
}

/// Decodes the packets of a trace.
///
/// # Safety
/// `trace` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iptr_packets(trace: *const u8, len: usize) -> Outcome {
    // SAFETY: as the caller promises.
    let trace = unsafe { bytes(trace, len) };
    let mut handler = Sum::default();
    let result: Result<(), DecoderError<Sum>> = decode(trace, DecodeOptions::default(), &mut handler);
    // The decoder reports a trace that is cut off within a packet by an error at its end.
    let complete = matches!(result, Ok(()) | Err(DecoderError::UnexpectedEOF));
    Outcome { count: handler.count, sum: handler.sum, complete }
}
