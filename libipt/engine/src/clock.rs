//! Time as libipt keeps it: the decoder's estimate with its calibration, and libipt's answers to packets that
//! contradict it.

use crate::{
    code::{Answer, Code},
    event::{PtEvent, flag},
    packet::{PtPacket, field, kind},
};
use pugmark_decoder_core::{
    config::Clocks,
    packet::{Cyc, Mtc, Tma, Tsc},
    time::{Calibration, Estimate, TimeError},
};

/// The current time, and the state that later packets update it from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// The time.
    pub time: Estimate,
    /// The length of core cycles.
    pub calibration: Calibration,
}

/// Converts an error of the time layer. A configuration without the processor's clocks is no error: it only makes the
/// time less exact.
fn answer(result: Result<(), TimeError>) -> Answer<()> {
    match result {
        Ok(()) | Err(TimeError::UnknownRatio) => Ok(()),
        Err(error) => Err(Code::from(error).status()),
    }
}

impl Clock {
    /// Applies a TSC.
    pub fn tsc(&mut self, packet: Tsc, in_psb: bool) {
        self.calibration.tsc(packet, in_psb);
        self.time.tsc(packet);
    }

    /// Applies a CBR.
    ///
    /// # Errors
    /// The packet contradicts the time.
    pub fn cbr(&mut self, ratio: u8, in_psb: bool, clocks: &Clocks) -> Answer<()> {
        answer(self.calibration.cbr(ratio, in_psb, clocks))?;
        answer(self.time.cbr(ratio))
    }

    /// Applies a TMA.
    ///
    /// # Errors
    /// The packet contradicts the time.
    pub fn tma(&mut self, packet: Tma, clocks: &Clocks) -> Answer<()> {
        answer(self.time.tma(packet, clocks))
    }

    /// Applies a MTC.
    ///
    /// # Errors
    /// The packet contradicts the time.
    pub fn mtc(&mut self, packet: Mtc, clocks: &Clocks) -> Answer<()> {
        answer(self.calibration.mtc(packet, clocks))?;
        answer(self.time.mtc(packet, clocks))
    }

    /// Applies a CYC.
    ///
    /// # Errors
    /// The packet contradicts the time.
    pub fn cyc(&mut self, packet: Cyc, clocks: &Clocks) -> Answer<()> {
        self.calibration.cyc(packet);
        let ratio = self.calibration.ratio().unwrap_or(0);
        answer(self.time.cyc(packet, ratio, clocks))
    }

    /// Applies a packet outside a PSB+ if it is a timing packet.
    ///
    /// # Errors
    /// The packet contradicts the time.
    pub fn apply(&mut self, packet: &PtPacket, clocks: &Clocks) -> Answer<()> {
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
    pub fn stamp(&self, event: &mut PtEvent) {
        event.tsc = self.time.relative();
        event.lost_mtc = self.time.lost_mtc();
        event.lost_cyc = self.time.lost_cyc();
        if self.time.time().is_ok() {
            event.flags |= flag::HAS_TSC;
        }
    }
}
