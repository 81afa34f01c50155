//! Calibration: the length of a core cycle in TSC ticks.

use super::{Clocks, TimeError};
use crate::packet::{Cyc, Mtc, Tsc};

/// The ratio of TSC ticks to core cycles, from CBRs and from the cycles between MTCs or TSCs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calibration {
    /// TSC ticks per cycle, with eight fraction bits.
    ratio: Option<u64>,
    /// The last TSC, or zero.
    tsc: u64,
    /// Cycles since the last TSC.
    cyc_tsc: u64,
    /// The crystal clock at the last MTC.
    mtc: Option<u64>,
    /// Cycles since the last MTC.
    cyc_mtc: u64,
    /// True if the next MTC is the first after a PSB on a processor with erratum SKL168.
    suspect_mtc: bool,
}

impl Calibration {
    /// Before the first timing packet.
    pub(crate) const NOTHING: Self =
        Self { ratio: None, tsc: 0, cyc_tsc: 0, mtc: None, cyc_mtc: 0, suspect_mtc: false };

    /// Returns TSC ticks per core cycle, a fixed-point number with eight fraction bits.
    ///
    /// # Errors
    /// [`TimeError::NotCalibrated`] if the ratio is unknown yet.
    pub const fn ratio(&self) -> Result<u64, TimeError> {
        match self.ratio {
            Some(ratio) => Ok(ratio),
            None => Err(TimeError::NotCalibrated),
        }
    }

    /// Applies a PSB on a processor with erratum SKL168: the first MTC after it may come late.
    pub const fn psb_with_skl168(&mut self) {
        self.suspect_mtc = true;
    }

    /// Applies a TSC; `in_psb` is true inside a PSB+.
    pub fn tsc(&mut self, packet: Tsc, in_psb: bool) {
        // A TSC outside a PSB+ means that tracing was off or packets were lost.
        if in_psb && self.tsc != 0 && self.cyc_tsc != 0 && self.mtc.is_none() {
            // The borrow when the TSC's 56 bits wrap around is shifted out.
            let ticks = packet.tsc.wrapping_sub(self.tsc);
            self.ratio = Some((ticks << 8) / self.cyc_tsc);
        }
        self.tsc = packet.tsc;
        self.cyc_tsc = 0;
    }

    /// Applies a CBR's ratio; `in_psb` is true inside a PSB+.
    ///
    /// # Errors
    /// [`TimeError::OutOfRange`] if the ratio is zero.
    pub fn cbr(&mut self, ratio: u8, in_psb: bool, clocks: &Clocks) -> Result<(), TimeError> {
        // A CBR outside a PSB+ means that the frequency changed.
        if !in_psb {
            *self = Self::default();
        }
        if clocks.nom_freq != 0 {
            let ticks = u64::from(clocks.nom_freq) << 8;
            self.ratio = Some(ticks.checked_div(ratio.into()).ok_or(TimeError::OutOfRange)?);
        }
        Ok(())
    }

    /// Applies an MTC.
    ///
    /// # Errors
    /// [`TimeError::UnknownRatio`] and [`TimeError::OutOfRange`].
    pub fn mtc(&mut self, packet: Mtc, clocks: &Clocks) -> Result<(), TimeError> {
        let new = clocks.crystal_of(packet.ctc);
        let suspect = core::mem::take(&mut self.suspect_mtc);
        let Some(old) = self.mtc else {
            (self.mtc, self.cyc_mtc) = (Some(new), 0);
            return Ok(());
        };
        if self.cyc_mtc == 0 {
            return Ok(());
        }
        self.mtc = Some(new);
        let cycles = core::mem::take(&mut self.cyc_mtc);
        let ticks = clocks.ticks_between(old, new)?;
        let tsc = clocks.tsc_of(ticks)?;
        if suspect && self.comes_late(ticks, cycles, tsc, clocks) {
            return Ok(());
        }
        self.ratio = Some((tsc << 8) / cycles);
        Ok(())
    }

    /// Applies a CYC.
    pub const fn cyc(&mut self, packet: Cyc) {
        self.cyc_mtc = self.cyc_mtc.wrapping_add(packet.cycles);
        self.cyc_tsc = self.cyc_tsc.wrapping_add(packet.cycles);
    }

    /// Applies an OVF: counts across it are meaningless. With `keep_ratio`, the ratio is kept.
    pub fn ovf(&mut self, keep_ratio: bool) {
        if keep_ratio {
            (self.tsc, self.cyc_tsc, self.mtc, self.cyc_mtc) = (0, 0, None, 0);
        } else {
            *self = Self::default();
        }
    }

    /// Returns true if erratum SKL168 shows: an MTC was skipped, or is about 0xf00 cycles late.
    fn comes_late(&self, ticks: u64, cycles: u64, tsc: u64, clocks: &Clocks) -> bool {
        let expected = |ratio: u64| ratio.wrapping_mul(cycles.wrapping_add(0xf00)) >> 8;
        ticks > 1_u64.wrapping_shl(clocks.mtc_freq.into())
            || clocks.mtc_freq < 10 && self.ratio.is_some_and(|ratio| expected(ratio) < tsc)
    }
}
