//! The formulas that relate the three clocks.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Time Domain Relationships"; vol. 3, "Invariant Time-Keeping".

use super::TimeError;
use crate::config::Clocks;

/// TimeStampValue = CoreCrystalClockValue · P + AdjustedProcessorCycles + Software_Offset.
///
/// P is CPUID.15H:EBX / EAX and Software_Offset is [`tsc_adjust`](Clocks::tsc_adjust), the value that software added to
/// the TSC. All values are modulo 2^64, like the TSC.
///
/// ```
/// use pugmark_decoder_core::config::Clocks;
///
/// let clocks = Clocks { cpuid_15h_eax: 2, cpuid_15h_ebx: 250, nom_freq: 30, tsc_adjust: -1_000, ..Clocks::default() };
/// // 125 TSC ticks for each tick of the crystal, and 30 core cycles since its last edge, at 15 cycles a bus clock.
/// let adjusted = clocks.adjusted_cycles(30, 15)?;
/// assert_eq!(adjusted, 60);
/// assert_eq!(clocks.timestamp(80, adjusted)?, 80 * 125 + 60 - 1_000);
/// assert_eq!(clocks.crystal(9_060)?, (80, 60));
/// # Ok::<(), pugmark_decoder_core::time::TimeError>(())
/// ```
impl Clocks {
    /// Returns the TSC at `adjusted_cycles` TSC ticks after the edge at which the crystal clock became `crystal`.
    ///
    /// # Errors
    /// [`TimeError::UnknownRatio`] without CPUID.15H.
    pub fn timestamp(&self, crystal: u64, adjusted_cycles: u64) -> Result<u64, TimeError> {
        let (numerator, denominator) = self.crystal_ratio()?;
        // An edge is visible at the first whole tick after it.
        let edge = (u128::from(crystal) * u128::from(numerator)).div_ceil(denominator.into());
        Ok((edge as u64).wrapping_add(adjusted_cycles).wrapping_add_signed(self.tsc_adjust))
    }

    /// Returns the crystal clock at a TSC value, and the TSC ticks since its edge: AdjustedProcessorCycles.
    ///
    /// A TMA packet at that TSC has the low 16 bits of the first and the low 9 bits of the second.
    ///
    /// # Errors
    /// [`TimeError::UnknownRatio`] without CPUID.15H.
    pub fn crystal(&self, timestamp: u64) -> Result<(u64, u64), TimeError> {
        let (numerator, denominator) = self.crystal_ratio()?;
        let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
        let ticks = u128::from(timestamp.wrapping_sub(self.tsc_adjust as u64));
        let crystal = ticks * denominator / numerator;
        let edge = (crystal * numerator).div_ceil(denominator);
        Ok((crystal as u64, (ticks - edge) as u64))
    }

    /// Converts core cycles at the ratio of a CBR packet to TSC ticks: cycles · P1 / CBR, rounded down.
    ///
    /// P1 is the maximum non-turbo ratio, [`nom_freq`](Clocks::nom_freq). The bus clock is not exactly the crystal's:
    /// expect an error of half a percent.
    ///
    /// # Errors
    /// [`TimeError::UnknownRatio`] without a `nom_freq`, [`TimeError::OutOfRange`] for a ratio of zero or for cycles
    /// that take more than 2^64 ticks.
    pub fn adjusted_cycles(&self, core_cycles: u64, core_bus_ratio: u8) -> Result<u64, TimeError> {
        if self.nom_freq == 0 {
            return Err(TimeError::UnknownRatio);
        }
        let ticks = u128::from(core_cycles) * u128::from(self.nom_freq);
        let ticks = ticks.checked_div(core_bus_ratio.into()).ok_or(TimeError::OutOfRange)?;
        u64::try_from(ticks).map_err(|_| TimeError::OutOfRange)
    }

    /// Returns P as a fraction, neither part zero.
    pub(super) const fn crystal_ratio(&self) -> Result<(u32, u32), TimeError> {
        match (self.cpuid_15h_ebx, self.cpuid_15h_eax) {
            (0, _) | (_, 0) => Err(TimeError::UnknownRatio),
            ratio => Ok(ratio),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn clocks(eax: u32, ebx: u32, tsc_adjust: i64) -> Clocks {
        Clocks { cpuid_15h_eax: eax, cpuid_15h_ebx: ebx, tsc_adjust, ..Clocks::UNKNOWN }
    }

    #[test]
    fn the_tsc_is_crystal_ticks_and_the_rest_and_what_software_added() {
        for (clocks, tsc, crystal, adjusted) in [
            (clocks(2, 250, 0), 0, 0, 0),
            (clocks(2, 250, 0), 124, 0, 124),
            (clocks(2, 250, 0), 125, 1, 0),
            (clocks(2, 250, 1000), 1125, 1, 0),
            (clocks(2, 250, -1000), 0, 8, 0),
            (clocks(2, 250, 1000), 999, 147_573_952_589_676_412, 115),
            // Edges at 0, 3 1/2, 7.
            (clocks(2, 7, 0), 3, 0, 3),
            (clocks(2, 7, 0), 4, 1, 0),
            (clocks(2, 7, 0), 6, 1, 2),
            (clocks(2, 7, 0), 7, 2, 0),
            // More than one crystal tick a TSC tick.
            (clocks(3, 2, 0), 5, 7, 0),
            (clocks(1, 1, 0), u64::MAX, u64::MAX, 0),
            (clocks(1, u32::MAX, 0), u64::MAX, 0x1_0000_0001, 0),
            (clocks(1, u32::MAX, -1), u64::MAX, 0, 0),
            (clocks(2, 250, i64::MIN), 1 << 63 | 126, 1, 1),
        ] {
            assert_eq!(clocks.crystal(tsc), Ok((crystal, adjusted)), "{clocks:?} {tsc}");
        }
    }

    #[test]
    fn a_tsc_value_comes_back() {
        let mut state = 3_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> (state >> 58)
        };
        for _ in 0..crate::rounds(5_000) {
            let clocks = clocks(random() as u32 | 1, random() as u32 | 1, random() as i64);
            let tsc = random();
            let (crystal, adjusted) = clocks.crystal(tsc).unwrap();
            // Real crystals are not faster than the TSC.
            if clocks.cpuid_15h_ebx >= clocks.cpuid_15h_eax {
                assert_eq!(clocks.timestamp(crystal, adjusted), Ok(tsc), "{clocks:?} {crystal} {adjusted}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        for (eax, ebx) in [(0, 0), (0, 250), (2, 0)] {
            let clocks = clocks(eax, ebx, 0);
            assert_eq!(clocks.timestamp(1, 0), Err(TimeError::UnknownRatio));
            assert_eq!(clocks.crystal(1), Err(TimeError::UnknownRatio));
        }
        let clocks = Clocks { nom_freq: 30, ..Clocks::UNKNOWN };
        assert_eq!(Clocks::UNKNOWN.adjusted_cycles(1, 10), Err(TimeError::UnknownRatio));
        assert_eq!(clocks.adjusted_cycles(1, 0), Err(TimeError::OutOfRange));
        assert_eq!(clocks.adjusted_cycles(u64::MAX, 29), Err(TimeError::OutOfRange));
        assert_eq!(clocks.adjusted_cycles(u64::MAX, 30), Ok(u64::MAX));
    }
}
