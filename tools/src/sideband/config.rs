//! The configuration of a stream of records.

use crate::code::elf::Abi;
use crate::perf_clock::PerfClock;
use std::collections::HashMap;

/// The values that reading a stream's records requires and that the records do not hold.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// `perf_event_attr.sample_type`.
    pub sample_type: u64,
    /// The `sample_type` of events by identifier, if the stream's events have different ones.
    pub sample_configs: Vec<(u64, u64)>,
    /// `perf_event_mmap_page.time_zero`.
    pub time_zero: u64,
    /// `perf_event_mmap_page.time_shift`.
    pub time_shift: u16,
    /// `perf_event_mmap_page.time_mult`.
    pub time_mult: u32,
    /// Subtracted from a record's TSC, so that records do not take effect too late.
    pub tsc_offset: u64,
    /// The lowest address of the kernel.
    pub kernel_start: u64,
    /// The folder that names of mapped files are relative to.
    pub sysroot: String,
    /// The files to map for `[vdso]`.
    pub vdso: HashMap<Abi, String>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            sample_type: 0,
            sample_configs: Vec::new(),
            time_zero: 0,
            time_shift: 0,
            time_mult: 1,
            tsc_offset: 0,
            kernel_start: u64::MAX,
            sysroot: String::new(),
            vdso: HashMap::new(),
        }
    }
}

impl StreamConfig {
    /// Returns a time of perf's clock as TSC; `None` if the configuration cannot convert it.
    pub fn tsc_of(&self, time: u64) -> Option<u64> {
        if time == 0 {
            return Some(self.earlier(0));
        }
        let clock = PerfClock { zero: self.time_zero, shift: self.time_shift, mult: self.time_mult };
        Some(self.earlier(clock.tsc(time)?))
    }

    /// Subtracts the offset, or adds its magnitude if it is negative. The subtraction stops at 0.
    fn earlier(&self, tsc: u64) -> u64 {
        let offset = self.tsc_offset;
        match tsc.checked_sub(offset) {
            Some(tsc) => tsc,
            None if offset.cast_signed() >= 0 => 0,
            None => tsc.wrapping_sub(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_perf_time_to_tsc() {
        let config = StreamConfig { time_zero: 100, time_shift: 4, time_mult: 10, ..StreamConfig::default() };
        for (config, time, tsc) in [
            (StreamConfig::default(), 7, Some(7)),
            (config.clone(), 0, Some(0)),
            (StreamConfig { tsc_offset: 5_u64.wrapping_neg(), ..config.clone() }, 0, Some(5)),
            (config.clone(), 100, Some(0)),
            (config.clone(), 123, Some(2 * 16 + 3 * 16 / 10)),
            (StreamConfig { tsc_offset: 6, ..config.clone() }, 123, Some(30)),
            (StreamConfig { tsc_offset: 1000, ..config.clone() }, 123, Some(0)),
            (StreamConfig { tsc_offset: 5_u64.wrapping_neg(), ..config.clone() }, 123, Some(41)),
            (StreamConfig { time_mult: 0, ..config.clone() }, 123, None),
            (StreamConfig { time_shift: 0xffff, ..config }, 123, Some(0)),
        ] {
            assert_eq!(config.tsc_of(time), tsc, "{config:?}");
        }
    }
}
