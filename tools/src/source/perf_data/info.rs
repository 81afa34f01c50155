//! The AUXTRACE_INFO record: Intel PT's configuration, as perf writes it.
//!
//! Source: Linux, tools/perf/util/intel-pt.h, the fields of the record.

use super::file::EventAttr;
use crate::perf_clock::PerfClock;
use anyhow::{Context, Result, ensure};
use pugmark_decoder_core::config::Clocks;

/// The type of an AUXTRACE_INFO record of Intel PT.
const INTEL_PT: u32 = 1;

/// The fields of the record, by their place.
mod field {
    pub(super) const PMU_TYPE: usize = 0;
    pub(super) const TIME_SHIFT: usize = 1;
    pub(super) const TIME_MULT: usize = 2;
    pub(super) const TIME_ZERO: usize = 3;
    pub(super) const CAP_USER_TIME_ZERO: usize = 4;
    pub(super) const SNAPSHOT_MODE: usize = 8;
    pub(super) const MTC_FREQ_BITS: usize = 11;
    pub(super) const TSC_CTC_N: usize = 12;
    pub(super) const TSC_CTC_D: usize = 13;
    pub(super) const MAX_NONTURBO_RATIO: usize = 15;
}

/// The record.
#[derive(Debug)]
pub(super) struct PtInfo(Vec<u64>);

impl PtInfo {
    /// Parses the record after its header.
    pub(super) fn parse(data: &[u8]) -> Result<Self> {
        let (kind, data) = data.split_first_chunk().context("an AUXTRACE_INFO record that is too short")?;
        let kind = u32::from_le_bytes(*kind);
        ensure!(kind == INTEL_PT, "its traces are not of Intel PT: AUXTRACE_INFO has type {kind}");
        let fields = data.get(4..).unwrap_or_default().as_chunks().0;
        Ok(Self(fields.iter().map(|field| u64::from_le_bytes(*field)).collect()))
    }

    /// Returns a field; 0 if an older perf did not write it.
    fn field(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Returns the clocks, with the MTC frequency that the event was opened with.
    pub(super) fn clocks(&self, events: &[EventAttr]) -> Clocks {
        let config = events
            .iter()
            .find(|event| u64::from(event.kind) == self.field(field::PMU_TYPE))
            .map_or(0, |event| event.config);
        let bits = self.field(field::MTC_FREQ_BITS);
        let mtc_freq = (config & bits).checked_shr(bits.trailing_zeros()).unwrap_or(0);
        Clocks {
            mtc_freq: mtc_freq as u8,
            nom_freq: self.field(field::MAX_NONTURBO_RATIO) as u8,
            cpuid_15h_eax: self.field(field::TSC_CTC_D) as u32,
            cpuid_15h_ebx: self.field(field::TSC_CTC_N) as u32,
            ..Clocks::default()
        }
    }

    /// Returns the relation of perf's clock to the TSC, if the kernel provided it.
    pub(super) fn clock(&self) -> Option<PerfClock> {
        let clock = PerfClock {
            zero: self.field(field::TIME_ZERO),
            shift: self.field(field::TIME_SHIFT) as u16,
            mult: self.field(field::TIME_MULT) as u32,
        };
        (self.field(field::CAP_USER_TIME_ZERO) != 0 && clock.mult != 0).then_some(clock)
    }

    /// Returns true if traces were taken on request, as snapshots, of which two may have the same bytes.
    pub(super) fn has_snapshots(&self) -> bool {
        self.field(field::SNAPSHOT_MODE) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_perf_did_not_write_is_0() {
        // The type, four ignored bytes, and fields 0 to 12; field 13 is cut off.
        let fields = (100..113_u64).flat_map(u64::to_le_bytes);
        let bytes: Vec<u8> = [1, 0, 0, 0, 9, 9, 9, 9].into_iter().chain(fields).chain([7; 7]).collect();
        let info = PtInfo::parse(&bytes).unwrap();
        assert_eq!([0, 12, 13, 15].map(|index| info.field(index)), [100, 112, 0, 0]);
        let clocks = info.clocks(&[]);
        assert_eq!((clocks.cpuid_15h_ebx, clocks.cpuid_15h_eax, clocks.nom_freq), (112, 0, 0));
        assert_eq!(info.clock(), Some(PerfClock { zero: 103, shift: 101, mult: 102 }));
        let none = PtInfo::parse(&bytes[..4]).unwrap();
        assert_eq!((none.clocks(&[]), none.clock(), none.has_snapshots()), (Clocks::default(), None, false));
        assert!(PtInfo::parse(&bytes[..3]).is_err());
        assert!(PtInfo::parse(&[2, 0, 0, 0]).is_err(), "Intel BTS");
    }
}
