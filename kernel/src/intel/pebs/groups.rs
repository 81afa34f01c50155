//! The groups of fields in an adaptive PEBS record.

use crate::msr::PebsDataCfg;
use pugmark_decoder_core::pebs::{Format, SampledBranch};

/// The groups of fields that an adaptive record has besides the basic group. Other formats have no selectable groups.
///
/// Source: SDM vol. 3, Performance Monitoring, "Adaptive PEBS".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    memory: bool,
    registers: bool,
    xmm: bool,
    branches: u8,
    general: u16,
    fixed: u8,
    metrics: bool,
}

impl Groups {
    /// Only the basic group.
    pub const BASIC: Self = Self {
        memory: false,
        registers: false,
        xmm: false,
        branches: 0,
        general: 0,
        fixed: 0,
        metrics: false,
    };

    /// Sets whether a record has the memory access.
    #[must_use]
    pub const fn memory(self, memory: bool) -> Self {
        Self { memory, ..self }
    }

    /// Sets whether a record has the general-purpose registers.
    #[must_use]
    pub const fn registers(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    /// Sets whether a record has the XMM registers.
    #[must_use]
    pub const fn xmm(self, xmm: bool) -> Self {
        Self { xmm, ..self }
    }

    /// Sets the number of last branch records in a record, 0 to 32. The kernel must turn the LBRs on itself.
    #[must_use]
    pub const fn branches(self, branches: u8) -> Self {
        Self { branches, ..self }
    }

    /// Sets the counters whose values a record has, a bit for each general-purpose and fixed-function counter. Needs
    /// [`PebsCapabilities::counter_values`](super::PebsCapabilities::counter_values). The counters must be there;
    /// whoever uses them has set them up.
    ///
    /// Source: Linux, `arch/x86/include/asm/perf_event.h`, PEBS_DATACFG_CNTR and those after it.
    #[must_use]
    pub const fn counters(self, general: u16, fixed: u8) -> Self {
        Self { general, fixed, ..self }
    }

    /// Sets whether a record has PERF_METRICS and the slots that they are fractions of. Needs the same as
    /// [`Groups::counters`], and PERF_METRICS.
    #[must_use]
    pub const fn metrics(self, metrics: bool) -> Self {
        Self { metrics, ..self }
    }

    /// Returns the size of a record in `format`; `counter_values`: a record can have those of counters.
    ///
    /// # Errors
    ///
    /// There is no such record.
    pub(crate) fn record_bytes(self, format: Format, counter_values: bool) -> Result<u64, NoSuchRecord> {
        let least = format.least_bytes() as u64;
        if format != Format::Adaptive && self != Self::BASIC {
            return Err(NoSuchRecord::FixedFormat);
        }
        if self.branches > MOST_BRANCHES {
            return Err(NoSuchRecord::Branches(self.branches));
        }
        let values = u64::from(self.general.count_ones() + self.fixed.count_ones());
        let has_counters = values != 0 || self.metrics;
        if has_counters && !counter_values {
            return Err(NoSuchRecord::Counters);
        }
        let counters = if has_counters { COUNTERS_HEADER_BYTES + 8 * values } else { 0 };
        let metrics = if self.metrics { METRICS_BYTES } else { 0 };
        let groups = [(self.memory, MEMORY_BYTES), (self.registers, REGISTERS_BYTES), (self.xmm, XMM_BYTES)];
        let sizes = groups.into_iter().filter(|(there, _)| *there).map(|(_, bytes)| bytes);
        let branches = u64::from(self.branches) * SampledBranch::BYTES as u64;
        Ok(least + sizes.sum::<u64>() + branches + counters + metrics)
    }

    /// Returns the value for MSR_PEBS_DATA_CFG.
    pub(crate) fn data_cfg(self) -> PebsDataCfg {
        let mut cfg = PebsDataCfg::empty();
        cfg.set(PebsDataCfg::MEMORY, self.memory);
        cfg.set(PebsDataCfg::GPRS, self.registers);
        cfg.set(PebsDataCfg::XMMS, self.xmm);
        cfg.set(PebsDataCfg::LBRS, self.branches > 0);
        cfg.set(PebsDataCfg::CNTR, self.general != 0 || self.fixed != 0);
        cfg.set(PebsDataCfg::METRICS, self.metrics);
        let entries = u64::from(self.branches.saturating_sub(1)) << 24;
        let counters = u64::from(self.general) << 32 | u64::from(self.fixed) << 48;
        cfg.union(PebsDataCfg::from_bits_retain(entries | counters))
    }
}

/// The reason why a record cannot have these groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSuchRecord {
    /// The format has no selectable groups.
    FixedFormat,
    /// No processor has this many last branch records.
    Branches(u8),
    /// The processor's records have no values of counters.
    Counters,
}

/// The maximum number of last branch records that a processor has.
const MOST_BRANCHES: u8 = 32;
/// Address, source, latency, TX abort information.
const MEMORY_BYTES: u64 = 4 * 8;
/// RFLAGS, RIP, and 16 registers.
const REGISTERS_BYTES: u64 = 18 * 8;
/// XMM0 to XMM15.
const XMM_BYTES: u64 = 16 * 16;
/// The list of the counters whose values follow.
const COUNTERS_HEADER_BYTES: u64 = 2 * 8;
/// The slots and PERF_METRICS.
const METRICS_BYTES: u64 = 2 * 8;

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::pebs::{CounterValues, Memory, PebsRecord, Registers, SampledBranches};

    #[test]
    fn a_records_size_is_that_of_its_groups() {
        let xmm = [0; 256];
        let branches = [[0; 24]; 32];
        let all = Groups::BASIC.memory(true).registers(true).xmm(true).branches(32);
        let record = PebsRecord {
            memory: Some(Memory::default()),
            registers: Some(Registers::default()),
            xmm: Some(&xmm),
            branches: Some(SampledBranches::new(&branches)),
            ..PebsRecord::default()
        };
        let none = PebsRecord::default();
        // (groups, a record with them, MSR_PEBS_DATA_CFG)
        let table = [
            (Groups::BASIC, none, 0),
            (Groups::BASIC.memory(true), PebsRecord { memory: record.memory, ..none }, 1),
            (Groups::BASIC.registers(true), PebsRecord { registers: record.registers, ..none }, 2),
            (Groups::BASIC.xmm(true), PebsRecord { xmm: record.xmm, ..none }, 4),
            (
                Groups::BASIC.branches(1),
                PebsRecord { branches: Some(SampledBranches::new(&branches[..1])), ..none },
                0x8,
            ),
            (all, record, 0x1f00_000f),
        ];
        for (groups, record, data_cfg) in table {
            let mut out = [0; 2048];
            let bytes = record.emit(Format::Adaptive, &mut out).unwrap() as u64;
            assert_eq!(groups.record_bytes(Format::Adaptive, false), Ok(bytes), "{groups:?}");
            assert_eq!(groups.data_cfg().bits(), data_cfg, "{groups:?}");
        }
    }

    #[test]
    fn refuses_groups_that_are_not_there() {
        let memory = Groups::BASIC.memory(true);
        for (format, bytes) in [
            (Format::Registers, 144),
            (Format::Latency, 176),
            (Format::Transaction, 192),
            (Format::Time, 200),
        ] {
            assert_eq!(Groups::BASIC.record_bytes(format, false), Ok(bytes));
            assert_eq!(memory.record_bytes(format, true), Err(NoSuchRecord::FixedFormat));
        }
        let many = Groups::BASIC.branches(33);
        assert_eq!(many.record_bytes(Format::Adaptive, false), Err(NoSuchRecord::Branches(33)));
        for counters in
            [Groups::BASIC.counters(1, 0), Groups::BASIC.counters(0, 1), Groups::BASIC.metrics(true)]
        {
            assert_eq!(counters.record_bytes(Format::Adaptive, false), Err(NoSuchRecord::Counters));
            assert_eq!(counters.record_bytes(Format::Time, true), Err(NoSuchRecord::FixedFormat));
        }
    }

    #[test]
    fn values_of_counters_are_as_many_as_were_asked_for() {
        let values = [[0; 8]; 20];
        // (general-purpose counters, fixed-function counters, metrics, MSR_PEBS_DATA_CFG)
        for (general, fixed, metrics, data_cfg) in [
            (0b101, 0, false, 0x5_0000_0010),
            (0, 0b1_0001, false, 0x11_0000_0000_0010),
            (0, 0, true, 0x20),
            (0xffff, 0b11, true, 0x3_ffff_0000_0030),
        ] {
            let groups = Groups::BASIC.counters(general, fixed).metrics(metrics);
            let count = (general.count_ones() + fixed.count_ones()) as usize + if metrics { 2 } else { 0 };
            let counters = CounterValues::new(general.into(), fixed.into(), metrics, &values[..count]);
            assert!(counters.is_some());
            let record = PebsRecord { counters, ..PebsRecord::default() };
            let mut out = [0; 512];
            let bytes = record.emit(Format::Adaptive, &mut out).unwrap() as u64;
            assert_eq!(groups.record_bytes(Format::Adaptive, true), Ok(bytes), "{groups:?}");
            assert_eq!(groups.data_cfg().bits(), data_cfg, "{groups:?}");
        }
    }
}
