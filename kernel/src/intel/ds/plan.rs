//! The sizes of the DS save area's buffers, and their division into records: arithmetic only.

use super::DsCapabilities;
use crate::intel::pebs::{Groups, NoSuchRecord, PebsCapabilities};
use crate::lifecycle::Missing;
use core::fmt;

/// The buffers that a kernel requests for a DS save area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaPlan {
    bts: Option<BufferPlan>,
    pebs: Option<(BufferPlan, Groups)>,
}

impl AreaPlan {
    /// Returns a plan without buffers.
    #[must_use]
    pub const fn new() -> Self {
        Self { bts: None, pebs: None }
    }

    /// Adds a buffer for branch records.
    #[must_use]
    pub const fn bts(self, buffer: BufferPlan) -> Self {
        Self { bts: Some(buffer), ..self }
    }

    /// Adds a buffer for samples with these groups of fields.
    #[must_use]
    pub const fn pebs(self, buffer: BufferPlan, groups: Groups) -> Self {
        Self { pebs: Some((buffer, groups)), ..self }
    }

    /// Returns the groups of fields that the samples have.
    pub(super) fn groups(&self) -> Groups {
        self.pebs.map_or(Groups::BASIC, |(_, groups)| groups)
    }

    /// Divides both buffers into records.
    pub(super) fn divide(&self, capabilities: &DsCapabilities) -> Result<(Part, Part), PlanError> {
        let branch_bytes = capabilities.layout.branch_record_bytes();
        let bts = self.bts.map(|plan| Ok((plan, Division::of(&plan, branch_bytes)?))).transpose()?;
        let pebs = self.pebs.map(|(plan, groups)| {
            let PebsCapabilities { format, counter_values, .. } =
                capabilities.pebs.map_err(PlanError::NoPebs)?;
            if plan.mode == BufferMode::Circular {
                return Err(PlanError::PebsIsNotCircular);
            }
            let record_bytes = groups.record_bytes(format, counter_values).map_err(PlanError::of)?;
            Ok((plan, Division::of(&plan, record_bytes)?))
        });
        match (bts, pebs.transpose()?) {
            (None, None) => Err(PlanError::NoBuffer),
            both => Ok(both),
        }
    }
}

/// A requested buffer, and its division into records.
pub(super) type Part = Option<(BufferPlan, Division)>;

/// A requested buffer for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPlan {
    /// The size in bytes. It should be a multiple of the record size: a remainder is not used.
    pub bytes: u64,
    /// The offset in the first page at which the buffer starts. A buffer may share a page with other data.
    pub page_offset: u16,
    /// The behaviour when the buffer is full.
    pub mode: BufferMode,
}

/// The behaviour of a buffer that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferMode {
    /// The buffer is overwritten from the beginning and holds the most recent records. No interrupt. Branch records
    /// only.
    Circular,
    /// A PMI is requested while there is still room for `spare` records, which may come until the PMI is served.
    Interrupt {
        /// The number of records to keep free; at least 1.
        spare: u32,
    },
}

impl BufferMode {
    /// A mode with enough spare room for the branch records of the time that a PMI may take on current processors.
    pub const INTERRUPT: Self = Self::Interrupt { spare: ENOUGH };
}

/// The number of records in 4 KiB, which other drivers keep free.
pub(super) const ENOUGH: u32 = 170;

/// A buffer divided into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// The number of complete records that fit.
    pub(super) records: u64,
    /// The size of a record.
    pub(super) record_bytes: u64,
    /// The offset of the threshold from the base.
    pub(super) threshold: u64,
}

impl Division {
    /// Divides a buffer.
    pub(super) const fn of(plan: &BufferPlan, record_bytes: u64) -> Result<Self, PlanError> {
        let BufferPlan { bytes, page_offset, mode } = *plan;
        if page_offset >= 0x1000 || page_offset % 4 != 0 {
            return Err(PlanError::PageOffset { page_offset });
        }
        let records = bytes / record_bytes;
        // The processor's behaviour is undefined for a buffer that is smaller than one record.
        if records == 0 {
            return Err(PlanError::TooSmall { bytes, record_bytes });
        }
        let end = records * record_bytes;
        let threshold = match mode {
            // The threshold is above the absolute maximum: the manual says that clearing BTINT alone does not prevent
            // the interrupt.
            BufferMode::Circular => end + record_bytes,
            BufferMode::Interrupt { spare } => {
                if spare == 0 || spare as u64 >= records {
                    return Err(PlanError::Spare { spare, records });
                }
                end - spare as u64 * record_bytes
            }
        };
        Ok(Self { records, record_bytes, threshold })
    }

    /// Returns the size of all records, which is the offset of the absolute maximum from the base.
    pub(super) const fn end(&self) -> u64 {
        self.records * self.record_bytes
    }
}

/// The reason why a buffer cannot be divided as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A buffer must start on a doubleword boundary within a page of 4 KiB.
    PageOffset {
        /// The requested offset.
        page_offset: u16,
    },
    /// There is no room for one record.
    TooSmall {
        /// The requested size.
        bytes: u64,
        /// The size of a record.
        record_bytes: u64,
    },
    /// No record is left before the threshold, or none after it.
    Spare {
        /// The number of records to keep free.
        spare: u32,
        /// The number of records.
        records: u64,
    },
    /// A PEBS buffer cannot be circular: the processor does not overwrite samples.
    PebsIsNotCircular,
    /// The processor has no PEBS, so there is no buffer for samples to plan.
    NoPebs(Missing),
    /// The PEBS records of this processor have no selectable groups.
    FixedFormat,
    /// No processor has this many last branch records.
    Branches {
        /// The requested number.
        branches: u8,
    },
    /// The PEBS records of this processor have no values of counters.
    CounterValues,
    /// No buffer was requested.
    NoBuffer,
}

impl PlanError {
    /// Converts the reason why a buffer cannot be divided into such records.
    const fn of(record: NoSuchRecord) -> Self {
        match record {
            NoSuchRecord::FixedFormat => Self::FixedFormat,
            NoSuchRecord::Branches(branches) => Self::Branches { branches },
            NoSuchRecord::Counters => Self::CounterValues,
        }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageOffset { page_offset } => {
                write!(
                    f,
                    "a buffer cannot start at offset {page_offset:#x} of a page: a multiple of 4 below 4096"
                )
            }
            Self::TooSmall { bytes, record_bytes } => {
                write!(f, "a buffer of {bytes} bytes does not hold one record of {record_bytes}")
            }
            Self::Spare { spare, records } => {
                write!(f, "{spare} spare records of {records}: at least 1 must be spare and at least 1 not")
            }
            Self::PebsIsNotCircular => f.write_str("a PEBS buffer cannot be circular"),
            Self::NoPebs(absent) => write!(f, "no buffer for samples: {absent}"),
            Self::FixedFormat => f.write_str("the PEBS records of this processor have no groups to choose"),
            Self::Branches { branches } => write!(f, "{branches} last branches in a PEBS record"),
            Self::CounterValues => {
                f.write_str("the PEBS records of this processor have no values of counters")
            }
            Self::NoBuffer => f.write_str("no buffer is asked for"),
        }
    }
}

impl core::error::Error for PlanError {}

#[cfg(test)]
mod tests {
    use super::*;

    const fn plan(bytes: u64, mode: BufferMode) -> BufferPlan {
        BufferPlan { bytes, page_offset: 0, mode }
    }

    #[test]
    fn the_threshold_is_at_a_record() {
        // (bytes, record, spare, records, threshold)
        let table = [
            (0x1000, 24, 10, 170, 160 * 24),
            (0x1000, 12, 1, 341, 340 * 12),
            (48, 24, 1, 2, 24),
            (71, 24, 1, 2, 24),
            (0x10000, 24, 170, 2730, 2560 * 24),
        ];
        for (bytes, record, spare, records, threshold) in table {
            let division = Division::of(&plan(bytes, BufferMode::Interrupt { spare }), record).unwrap();
            assert_eq!(division, Division { records, record_bytes: record, threshold }, "{bytes:#x}");
            assert!(division.end() <= bytes && division.end() + record > bytes);
        }
    }

    #[test]
    fn a_circular_buffer_never_reaches_its_threshold() {
        let division = Division::of(&plan(0x1000, BufferMode::Circular), 24).unwrap();
        assert!(division.threshold > division.end());
    }

    #[test]
    fn refuses_what_does_not_work() {
        let spare = |spare| BufferMode::Interrupt { spare };
        let table = [
            (plan(23, BufferMode::Circular), PlanError::TooSmall { bytes: 23, record_bytes: 24 }),
            (plan(48, spare(0)), PlanError::Spare { spare: 0, records: 2 }),
            (plan(48, spare(2)), PlanError::Spare { spare: 2, records: 2 }),
            (
                BufferPlan { page_offset: 0x1000, ..plan(48, spare(1)) },
                PlanError::PageOffset { page_offset: 0x1000 },
            ),
            (BufferPlan { page_offset: 6, ..plan(48, spare(1)) }, PlanError::PageOffset { page_offset: 6 }),
        ];
        for (plan, error) in table {
            assert_eq!(Division::of(&plan, 24), Err(error));
        }
    }
}
