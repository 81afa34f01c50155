//! Time as libipt keeps it: the decoder's estimate with its calibration, and libipt's answers to packets that
//! contradict it.

use crate::{
    config::PtConfig, error::Code, event::PtEvent, event::flag, packet::PtPacket, packet::field, packet::kind,
};
use pugmark_decoder_core::{
    config::Clocks,
    packet::{Cyc, Mtc, Tma, Tsc},
    time::{Calibration, Estimate, TimeError},
};
use std::ffi::c_int;

/// The current time, and the state that later packets update it from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    pub(crate) time: Estimate,
    pub(crate) calibration: Calibration,
}

/// Converts an error of the time layer. A configuration without the processor's clocks is no error: it only makes the
/// time less exact.
fn answer(result: Result<(), TimeError>) -> Result<(), c_int> {
    match result {
        Ok(()) | Err(TimeError::UnknownRatio) => Ok(()),
        Err(error) => Err(Code::from(error).status()),
    }
}

impl Clock {
    pub(crate) fn tsc(&mut self, packet: Tsc, in_psb: bool) {
        self.calibration.tsc(packet, in_psb);
        self.time.tsc(packet);
    }

    pub(crate) fn cbr(&mut self, ratio: u8, in_psb: bool, clocks: &Clocks) -> Result<(), c_int> {
        answer(self.calibration.cbr(ratio, in_psb, clocks))?;
        answer(self.time.cbr(ratio))
    }

    pub(crate) fn tma(&mut self, packet: Tma, clocks: &Clocks) -> Result<(), c_int> {
        answer(self.time.tma(packet, clocks))
    }

    pub(crate) fn mtc(&mut self, packet: Mtc, clocks: &Clocks) -> Result<(), c_int> {
        answer(self.calibration.mtc(packet, clocks))?;
        answer(self.time.mtc(packet, clocks))
    }

    pub(crate) fn cyc(&mut self, packet: Cyc, clocks: &Clocks) -> Result<(), c_int> {
        self.calibration.cyc(packet);
        let ratio = self.calibration.ratio().unwrap_or(0);
        answer(self.time.cyc(packet, ratio, clocks))
    }

    /// Applies a packet outside a PSB+ if it is a timing packet.
    pub(crate) fn apply(&mut self, packet: &PtPacket, clocks: &Clocks) -> Result<(), c_int> {
        // Each field is as wide as the type.
        match packet.kind {
            kind::TSC => {
                self.tsc(Tsc { tsc: packet.get(field::TSC_TSC) }, false);
                Ok(())
            }
            kind::CBR => self.cbr(packet.get(field::CBR_RATIO) as u8, false, clocks),
            kind::TMA => {
                let (ctc, fc) = (packet.get(field::TMA_CTC) as u16, packet.get(field::TMA_FC) as u16);
                self.tma(Tma { ctc, fc }, clocks)
            }
            kind::MTC => self.mtc(Mtc { ctc: packet.get(field::MTC_CTC) as u8 }, clocks),
            kind::CYC => self.cyc(Cyc { cycles: packet.get(field::CYC_VALUE) }, clocks),
            _ => Ok(()),
        }
    }

    /// Gives an event the current time.
    pub(crate) fn stamp(&self, event: &mut PtEvent) {
        event.tsc = self.time.relative();
        event.lost_mtc = self.time.lost_mtc();
        event.lost_cyc = self.time.lost_cyc();
        if self.time.time().is_ok() {
            event.flags |= flag::HAS_TSC;
        }
    }
}

/// Returns the processor's clocks in a configuration.
pub(crate) fn clocks(config: &PtConfig) -> Clocks {
    Clocks {
        mtc_freq: config.mtc_freq,
        nom_freq: config.nom_freq,
        cpuid_15h_eax: config.cpuid_15h_eax,
        cpuid_15h_ebx: config.cpuid_15h_ebx,
        ..Clocks::UNKNOWN
    }
}
