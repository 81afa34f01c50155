//! Time: keeps the time from the timing packets, to stamp the events between them.

use super::{EventDecoder, Stamp};
use crate::{
    config::Config,
    error::ErrorKind,
    keeper::Keeper,
    packet::{Cyc, Packet},
    time::{Calibration, CycSums, Cycs, Estimate, TimeError},
};

/// The current time, and the length of a core cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    estimate: Estimate,
    calibration: Calibration,
    /// True between PSB and PSBEND, where TSC and CBR repeat known state.
    in_psb: bool,
}

impl Clock {
    /// Before the first timing packet.
    pub(super) const STOPPED: Self =
        Self { estimate: Estimate::NOTHING, calibration: Calibration::NOTHING, in_psb: false };

    /// Enters a PSB+. `suspect_mtc`: erratum SKL168 applies, which libipt's event decoder does not allow for.
    pub(super) fn enter_psb(&mut self, suspect_mtc: bool) {
        self.in_psb = true;
        if suspect_mtc {
            self.calibration.psb_with_skl168();
        }
    }

    /// Leaves a PSB+.
    pub(super) fn leave_psb(&mut self) {
        self.in_psb = false;
    }

    /// Returns the rule by which the next CYCs are added up.
    #[inline(always)]
    pub(super) fn cycs(&self) -> Cycs {
        self.estimate.cycs(self.calibration.ratio().unwrap_or(0))
    }

    /// Applies CYCs.
    #[inline]
    pub(super) fn apply_cycs(&mut self, cycs: &Cycs, sums: CycSums) {
        self.estimate = self.estimate.after_cycs(cycs, sums);
        self.calibration.cyc(Cyc { cycles: sums.cycles() });
    }

    /// Returns the time after these CYCs.
    #[inline]
    pub(super) fn after_cycs(&self, cycs: &Cycs, sums: CycSums) -> Stamp {
        Self { estimate: self.estimate.after_cycs(cycs, sums), ..*self }.now()
    }

    #[inline]
    pub(super) fn now(&self) -> Stamp {
        Stamp {
            tsc: self.estimate.time().ok(),
            time: self.estimate.relative(),
            lost_mtc: self.estimate.lost_mtc(),
            lost_cyc: self.estimate.lost_cyc(),
            core_bus_ratio: self.estimate.core_bus_ratio(),
        }
    }
}

impl<K: Keeper> EventDecoder<'_, K> {
    /// Applies a packet that concerns time.
    #[inline]
    pub(super) fn track_time(&mut self, packet: Packet) -> Result<(), ErrorKind> {
        self.state.clock.track(packet, self.packets.config())
    }
}

impl Clock {
    /// Applies a packet that concerns time.
    #[inline]
    pub(super) fn track(&mut self, packet: Packet, config: &Config<'_>) -> Result<(), ErrorKind> {
        match packet {
            Packet::Tsc(_)
            | Packet::Cbr(_)
            | Packet::Tma(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Ovf => self.apply(packet, config),
            _ => Ok(()),
        }
    }

    fn apply(&mut self, packet: Packet, config: &Config<'_>) -> Result<(), ErrorKind> {
        let Config { clocks, flags, .. } = config;
        let Self { estimate, calibration, in_psb } = self;
        match packet {
            Packet::Tsc(tsc) => {
                calibration.tsc(tsc, *in_psb);
                estimate.tsc(tsc);
                Ok(())
            }
            Packet::Cbr(cbr) => check("CBR", cbr.ratio.into(), calibration.cbr(cbr.ratio, *in_psb, clocks))
                .and_then(|()| check("CBR", cbr.ratio.into(), estimate.cbr(cbr.ratio))),
            Packet::Tma(tma) => check("TMA", tma.ctc.into(), estimate.tma(tma, clocks)),
            Packet::Mtc(mtc) => check("MTC", mtc.ctc.into(), calibration.mtc(mtc, clocks))
                .and_then(|()| check("MTC", mtc.ctc.into(), estimate.mtc(mtc, clocks))),
            Packet::Cyc(cyc) => {
                calibration.cyc(cyc);
                let ratio = calibration.ratio().unwrap_or(0);
                check("CYC", cyc.cycles, estimate.cyc(cyc, ratio, clocks))
            }
            Packet::Ovf => {
                calibration.ovf(flags.keep_calibration);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Returns an error only for a packet with an impossible value or place. Missing parameters of the clocks are no error
/// of the trace.
fn check(packet: &'static str, value: u64, step: Result<(), TimeError>) -> Result<(), ErrorKind> {
    match step {
        Err(TimeError::OutOfRange) => Err(ErrorKind::MalformedPacket { packet, value }),
        Err(TimeError::UnexpectedTma) => Err(ErrorKind::UnexpectedPacket(packet)),
        Ok(()) | Err(TimeError::UnknownRatio | TimeError::NoTsc | TimeError::NotCalibrated) => Ok(()),
    }
}
