//! An estimate of the current time from the timing packets, computed as in libipt.

use super::{Clocks, TimeError};
use crate::packet::{Cyc, Mtc, Tma, Tsc};

/// The estimated TSC at the last timing packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// True after a TSC.
    have_tsc: bool,
    /// True after a TMA since the last TSC.
    have_tma: bool,
    /// True after an MTC since then, or after a TMA that holds all bits of one.
    have_mtc: bool,
    tsc: u64,
    /// The time at the last TSC or MTC.
    base: u64,
    /// TSC ticks since `base` according to CYCs or to the TMA.
    fast_counter: u64,
    /// The crystal clock at the last MTC or TMA.
    ctc: u64,
    /// The crystal clock up to which CYCs are accounted for.
    ctc_cyc: u64,
    /// The number of MTCs since the last TSC that the time excludes.
    lost_mtc: u32,
    /// The number of CYCs since the last MTC that the time excludes.
    lost_cyc: u32,
    /// The last CBR's ratio.
    core_bus_ratio: Option<u8>,
}

impl Estimate {
    /// Before the first timing packet.
    pub(crate) const NOTHING: Self = Self {
        have_tsc: false,
        have_tma: false,
        have_mtc: false,
        tsc: 0,
        base: 0,
        fast_counter: 0,
        ctc: 0,
        ctc_cyc: 0,
        lost_mtc: 0,
        lost_cyc: 0,
        core_bus_ratio: None,
    };

    /// Returns the time at the last timing packet.
    ///
    /// # Errors
    /// [`TimeError::NoTsc`] before the first TSC; then there is only [`relative`](Self::relative).
    pub const fn time(&self) -> Result<u64, TimeError> {
        if self.have_tsc { Ok(self.tsc) } else { Err(TimeError::NoTsc) }
    }

    /// Returns the same as [`time`](Self::time), but the ticks since the start before the first TSC.
    pub const fn relative(&self) -> u64 {
        self.tsc
    }

    /// Returns how many CYC packets since the last TSC or MTC the time excludes because no ratio was known.
    pub const fn lost_cyc(&self) -> u32 {
        self.lost_cyc
    }

    /// Returns how many MTC packets since the last TSC the time excludes because their clock advanced too far.
    pub const fn lost_mtc(&self) -> u32 {
        self.lost_mtc
    }

    /// Returns the ratio of core clock to bus clock in the last CBR packet.
    pub const fn core_bus_ratio(&self) -> Option<u8> {
        self.core_bus_ratio
    }

    /// Applies a TSC, which restarts the estimate.
    pub const fn tsc(&mut self, packet: Tsc) {
        *self = Self {
            have_tsc: true,
            have_tma: false,
            have_mtc: false,
            tsc: packet.tsc,
            base: packet.tsc,
            fast_counter: 0,
            ctc: 0,
            // libipt does not reset it, so a CYC before the next TMA is measured against the last MTC before the TSC.
            ctc_cyc: self.ctc_cyc,
            lost_mtc: 0,
            lost_cyc: 0,
            core_bus_ratio: self.core_bus_ratio,
        };
    }

    /// Applies a TMA.
    ///
    /// # Errors
    /// [`TimeError::UnexpectedTma`] without a TSC, or after another TMA.
    pub fn tma(&mut self, packet: Tma, clocks: &Clocks) -> Result<(), TimeError> {
        if !self.have_tsc || self.have_tma {
            return Err(TimeError::UnexpectedTma);
        }
        let fast_counter = u64::from(packet.fc);
        self.base = self.base.wrapping_sub(fast_counter);
        self.fast_counter = self.fast_counter.wrapping_add(fast_counter);
        self.have_tma = true;
        // Up to this MTCFreq, the TMA's 16 bits hold all bits of an MTC.
        self.have_mtc |= clocks.mtc_freq <= 8;
        self.ctc = u64::from(packet.ctc) & clocks.mtc_period().wrapping_sub(1);
        self.ctc_cyc = self.ctc;
        Ok(())
    }

    /// Applies an MTC.
    ///
    /// # Errors
    /// [`TimeError::UnknownRatio`] and [`TimeError::OutOfRange`].
    pub fn mtc(&mut self, packet: Mtc, clocks: &Clocks) -> Result<(), TimeError> {
        // The start of the count is unknown for an MTC between TSC and TMA.
        if self.have_tsc && !self.have_tma {
            return Ok(());
        }
        let (new, mut last, first) = (clocks.crystal_of(packet.ctc), self.ctc, !self.have_mtc);
        if self.fast_counter != 0 || self.lost_cyc != 0 || first {
            self.ctc_cyc = new;
        }
        self.fast_counter = 0;
        self.ctc = new;
        self.lost_cyc = 0;
        self.have_mtc = true;
        if first {
            if !self.have_tma {
                return Ok(());
            }
            // The TMA gave 16 bits; an MTC has higher ones too. Choose the higher bits that advance the clock least.
            let mut high = new & !0xffff;
            if new & 0xffff < last {
                high = high.wrapping_sub(0x1_0000) & 0xff_u64.wrapping_shl(clocks.mtc_freq.into());
            }
            last |= high;
        }
        let ticks = clocks
            .ticks_between(last, new)
            .inspect_err(|_| self.lost_mtc = self.lost_mtc.saturating_add(1))?;
        self.base = self.base.wrapping_add(clocks.tsc_of(ticks)?);
        self.tsc = self.base;
        Ok(())
    }

    /// Applies a CBR.
    ///
    /// # Errors
    /// [`TimeError::OutOfRange`] if the ratio is zero.
    pub const fn cbr(&mut self, ratio: u8) -> Result<(), TimeError> {
        if ratio == 0 {
            return Err(TimeError::OutOfRange);
        }
        // A CBR changes the core's speed, which the calibration handles, not the time.
        self.core_bus_ratio = Some(ratio);
        Ok(())
    }

    /// Returns the rule by which the next CYCs are applied, with `ratio` as in [`cyc`](Self::cyc).
    #[inline(always)]
    pub(crate) const fn cycs(&self, ratio: u64) -> Cycs {
        Cycs { plain: ratio == 0 || self.ctc == self.ctc_cyc, ratio }
    }

    /// Returns the estimate after these CYCs, which were [plain](Cycs::are_plain).
    #[inline]
    pub(crate) const fn after_cycs(mut self, cycs: &Cycs, sums: CycSums) -> Self {
        if sums.packets == 0 {
            return self;
        }
        if cycs.ratio == 0 {
            let lost = self.lost_cyc as u64;
            let lost = lost.saturating_add(sums.packets);
            self.lost_cyc = if lost > u32::MAX as u64 { u32::MAX } else { lost as u32 };
        } else {
            self.fast_counter = self.fast_counter.wrapping_add(sums.ticks);
            self.tsc = self.base.wrapping_add(self.fast_counter);
        }
        self
    }

    /// Applies a CYC with `ratio` TSC ticks per cycle, a fixed-point number with eight fraction bits; 0 if unknown.
    ///
    /// # Errors
    /// [`TimeError::UnknownRatio`] and [`TimeError::OutOfRange`].
    pub fn cyc(&mut self, packet: Cyc, ratio: u64, clocks: &Clocks) -> Result<(), TimeError> {
        let mut cycles = packet.cycles;
        // The packet counts cycles since the last CYC. The time of the last MTC already includes those before it.
        if ratio != 0 && self.fast_counter == 0 && self.ctc != self.ctc_cyc {
            let ticks = clocks.ticks_between(self.ctc_cyc, self.ctc)?;
            let before = (clocks.tsc_of(ticks)? << 8) / ratio;
            cycles = cycles.saturating_sub(before);
        }
        let (cycs, mut sums) = (self.cycs(ratio), CycSums::default());
        cycs.add(&mut sums, cycles);
        *self = self.after_cycs(&cycs, sums);
        Ok(())
    }
}

/// The rule by which CYCs are added up outside of the estimate, so that the sums can be in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycs {
    plain: bool,
    ratio: u64,
}

/// The sums of consecutive CYCs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CycSums {
    packets: u64,
    cycles: u64,
    /// Each packet's cycles in TSC ticks, rounded down.
    ticks: u64,
}

impl Cycs {
    /// Returns true if a CYC only adds ticks or is lost. Others must be applied to the estimate.
    #[inline(always)]
    pub(crate) const fn are_plain(&self) -> bool {
        self.plain
    }

    /// Adds a CYC packet with this number of cycles to the sums.
    #[inline(always)]
    pub(crate) const fn add(&self, sums: &mut CycSums, cycles: u64) {
        sums.packets += 1;
        sums.cycles = sums.cycles.wrapping_add(cycles);
        sums.ticks = sums.ticks.wrapping_add(cycles.wrapping_mul(self.ratio) >> 8);
    }
}

impl CycSums {
    /// Returns the cycles of all packets.
    #[inline(always)]
    pub(crate) const fn cycles(self) -> u64 {
        self.cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_without_a_cyc_change_nothing() {
        // After an MTC that cannot be converted, the time is not `base` plus `fast_counter`.
        let mut estimate = Estimate::default();
        estimate.tsc(Tsc { tsc: 0x1000 });
        estimate.tma(Tma { ctc: 0, fc: 0x20 }, &Clocks::UNKNOWN).expect("a TSC came before");
        assert_eq!(estimate.mtc(Mtc { ctc: 1 }, &Clocks::UNKNOWN), Err(TimeError::UnknownRatio));
        assert_eq!(estimate.time(), Ok(0x1000));
        for ratio in [0, 0x100] {
            assert_eq!(estimate.after_cycs(&estimate.cycs(ratio), CycSums::default()), estimate, "{ratio}");
        }
    }

    #[test]
    fn lost_cycs_are_counted_up_to_the_greatest_number() {
        let lost = |before, packets| {
            let estimate = Estimate { lost_cyc: before, ..Estimate::default() };
            estimate.after_cycs(&estimate.cycs(0), CycSums { packets, ..CycSums::default() }).lost_cyc()
        };
        let most = u64::from(u32::MAX);
        for (before, packets, expected) in [
            (0, 1, 1),
            (7, most - 7, u32::MAX),
            (7, most - 6, u32::MAX),
            (0, most + 2, u32::MAX),
            (1, u64::MAX, u32::MAX),
        ] {
            assert_eq!(lost(before, packets), expected, "{before} and {packets}");
        }
    }
}
