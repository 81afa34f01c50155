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
}

impl Groups {
    /// Only the basic group.
    pub const BASIC: Self = Self { memory: false, registers: false, xmm: false, branches: 0 };

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

    /// Returns the size of a record in `format`.
    ///
    /// # Errors
    ///
    /// There is no such record.
    pub(crate) fn record_bytes(self, format: Format) -> Result<u64, NoSuchRecord> {
        let least = format.least_bytes() as u64;
        if format != Format::Adaptive && self != Self::BASIC {
            return Err(NoSuchRecord::FixedFormat);
        }
        if self.branches > MOST_BRANCHES {
            return Err(NoSuchRecord::Branches(self.branches));
        }
        let groups = [(self.memory, MEMORY_BYTES), (self.registers, REGISTERS_BYTES), (self.xmm, XMM_BYTES)];
        let sizes = groups.into_iter().filter(|(there, _)| *there).map(|(_, bytes)| bytes);
        Ok(least + sizes.sum::<u64>() + u64::from(self.branches) * SampledBranch::BYTES as u64)
    }

    /// Returns the value for MSR_PEBS_DATA_CFG.
    pub(crate) fn data_cfg(self) -> PebsDataCfg {
        let mut cfg = PebsDataCfg::empty();
        cfg.set(PebsDataCfg::MEMORY, self.memory);
        cfg.set(PebsDataCfg::GPRS, self.registers);
        cfg.set(PebsDataCfg::XMMS, self.xmm);
        cfg.set(PebsDataCfg::LBRS, self.branches > 0);
        let entries = u64::from(self.branches.saturating_sub(1)) << 24;
        cfg.union(PebsDataCfg::from_bits_retain(entries))
    }
}

/// The reason why a record cannot have these groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSuchRecord {
    /// The format has no selectable groups.
    FixedFormat,
    /// No processor has this many last branch records.
    Branches(u8),
}

/// The maximum number of last branch records that a processor has.
const MOST_BRANCHES: u8 = 32;
/// Address, source, latency, TX abort information.
const MEMORY_BYTES: u64 = 4 * 8;
/// RFLAGS, RIP, and 16 registers.
const REGISTERS_BYTES: u64 = 18 * 8;
/// XMM0 to XMM15.
const XMM_BYTES: u64 = 16 * 16;

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::pebs::{Memory, PebsRecord, Registers, SampledBranches};

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
            assert_eq!(groups.record_bytes(Format::Adaptive), Ok(bytes), "{groups:?}");
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
            assert_eq!(Groups::BASIC.record_bytes(format), Ok(bytes));
            assert_eq!(memory.record_bytes(format), Err(NoSuchRecord::FixedFormat));
        }
        let many = Groups::BASIC.branches(33);
        assert_eq!(many.record_bytes(Format::Adaptive), Err(NoSuchRecord::Branches(33)));
    }
}
