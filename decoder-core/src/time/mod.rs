//! Time from TSC, TMA, MTC, CYC and CBR packets.
//!
//! [`Estimate`] tells the time at each packet; [`Calibration`] finds out how many TSC ticks a core cycle takes, which
//! the estimate needs for CYC packets. Whoever reads packets feeds both, the calibration first.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Tracing Post-Processing" and the packets' sections; the arithmetic is
//! libipt's, so that both show the same time.
//!
//! ```
//! use pugmark_decoder_core::config::Clocks;
//! use pugmark_decoder_core::packet::{Cyc, Tsc};
//! use pugmark_decoder_core::time::{Calibration, Estimate};
//!
//! let clocks = Clocks { nom_freq: 4, ..Clocks::default() };
//! let (mut estimate, mut calibration) = (Estimate::default(), Calibration::default());
//! estimate.tsc(Tsc { tsc: 0x1000 });
//! // The core runs at half the TSC's frequency.
//! calibration.cbr(2, false, &clocks).unwrap();
//! estimate.cyc(Cyc { cycles: 0x10 }, calibration.ratio().unwrap(), &clocks).unwrap();
//! assert_eq!(estimate.time(), Ok(0x1020));
//! ```

mod calibrate;
mod estimate;
#[cfg(test)]
mod tests;

pub use calibrate::Calibration;
pub use estimate::Estimate;

use crate::config::Clocks;
use core::fmt;

impl Clocks {
    /// Crystal clock ticks as TSC ticks.
    fn tsc_of(&self, crystal: u64) -> Result<u64, TimeError> {
        match (self.cpuid_15h_eax, self.cpuid_15h_ebx) {
            (0, _) | (_, 0) => Err(TimeError::UnknownRatio),
            (eax, ebx) => Ok(crystal.wrapping_mul(u64::from(ebx)) / u64::from(eax)),
        }
    }

    /// An MTC's payload as a count of the crystal clock.
    fn crystal_of(&self, ctc: u8) -> u64 {
        u64::from(ctc).wrapping_shl(self.mtc_freq.into())
    }

    /// How far MTC payloads count before they start again.
    fn mtc_period(&self) -> u64 {
        1_u64.wrapping_shl(u32::from(self.mtc_freq) + 8)
    }

    /// Crystal clock ticks from `old` to `new`, between which the payload started again at most once.
    fn ticks_between(&self, old: u64, new: u64) -> Result<u64, TimeError> {
        let new = if new < old { new.wrapping_add(self.mtc_period()) } else { new };
        new.checked_sub(old).ok_or(TimeError::OutOfRange)
    }
}

/// Why a packet tells no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeError {
    /// The TSC to crystal clock ratio is needed and not in [`Clocks`].
    UnknownRatio,
    /// The packet's value cannot be: a CBR of zero, a clock that ran too far.
    OutOfRange,
    /// A TMA without a TSC, or a second one.
    UnexpectedTma,
    /// There was no TSC yet.
    NoTsc,
    /// The ratio of core cycles to TSC ticks is not known yet.
    NotCalibrated,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownRatio => "the TSC to crystal clock ratio is not known",
            Self::OutOfRange => "a timing packet has a value that cannot be",
            Self::UnexpectedTma => "a TMA packet does not follow a TSC packet",
            Self::NoTsc => "no TSC packet so far",
            Self::NotCalibrated => "the core cycle to TSC ratio is not known yet",
        })
    }
}

impl core::error::Error for TimeError {}
