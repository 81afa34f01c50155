//! One sample of perf, with the fields that describe a memory access.
//!
//! Source: Linux, include/uapi/linux/perf_event.h, `PERF_RECORD_SAMPLE`, and kernel/events/core.c,
//! `perf_output_sample`, for the fields that the header omits.

use std::fmt;
use std::ops::Range;

/// Bits of `perf_event_attr.sample_type`.
mod has {
    pub(super) const IP: u64 = 1;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const BRANCH_STACK: u64 = 1 << 11;
    pub(super) const REGS_USER: u64 = 1 << 12;
    pub(super) const STACK_USER: u64 = 1 << 13;
    pub(super) const WEIGHT: u64 = 1 << 14;
    pub(super) const DATA_SRC: u64 = 1 << 15;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
    pub(super) const TRANSACTION: u64 = 1 << 17;
    pub(super) const REGS_INTR: u64 = 1 << 18;
    pub(super) const PHYS_ADDR: u64 = 1 << 19;
    pub(super) const CGROUP: u64 = 1 << 21;
    pub(super) const DATA_PAGE_SIZE: u64 = 1 << 22;
    pub(super) const CODE_PAGE_SIZE: u64 = 1 << 23;
    pub(super) const WEIGHT_STRUCT: u64 = 1 << 24;
}

/// The bit for a part of a trace.
pub(super) const AUX: u64 = 1 << 20;

/// Bits of `perf_event_attr.read_format`.
const READ_TIMES: [u64; 2] = [1, 1 << 1];
const READ_ID: u64 = 1 << 2;
const READ_GROUP: u64 = 1 << 3;
const READ_LOST: u64 = 1 << 4;

/// Bits of `perf_event_attr.branch_sample_type`.
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;

/// Returns the offset of the event's identifier in a sample's body, if the sample has one.
pub(super) const fn id_at(sample_type: u64) -> Option<usize> {
    if sample_type & has::IDENTIFIER != 0 {
        Some(0)
    } else if sample_type & has::ID != 0 {
        Some(8 * (sample_type & (has::IP | has::TID | has::TIME | has::ADDR)).count_ones() as usize)
    } else {
        None
    }
}

/// The fields that an event's samples have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleLayout {
    /// `perf_event_attr.sample_type`.
    pub sample_type: u64,
    /// `perf_event_attr.read_format`.
    pub read_format: u64,
    /// `perf_event_attr.branch_sample_type`.
    pub branch_sample_type: u64,
    /// The number of saved registers of the program: the number of bits set in `perf_event_attr.sample_regs_user`.
    pub user_registers: u32,
    /// The number of saved registers of the interrupted code: the number of bits set in
    /// `perf_event_attr.sample_regs_intr`.
    pub interrupt_registers: u32,
}

/// A sample of perf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfSample {
    /// The instruction.
    pub ip: Option<u64>,
    /// The process and the thread. The kernel's own threads have process 0 or their own process.
    pub ids: Option<(i32, i32)>,
    /// The time of the sample, in perf's clock.
    pub time: Option<u64>,
    /// The data's address; 0 if there is none.
    pub address: Option<u64>,
    /// The processor's number.
    pub cpu: Option<u32>,
    /// The content of `PERF_SAMPLE_RAW`.
    pub raw: Option<Vec<u8>>,
    /// The latency of the access in cycles: all of `PERF_SAMPLE_WEIGHT`, or the first field of
    /// `PERF_SAMPLE_WEIGHT_STRUCT`.
    pub weight: Option<u64>,
    /// `PERF_SAMPLE_DATA_SRC`: `union perf_mem_data_src`.
    pub data_src: Option<u64>,
    /// `PERF_SAMPLE_AUX`: the place in the body of a part of a trace.
    pub aux: Option<Range<usize>>,
}

/// An error for a record of a sample that ends before a field does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortSample {
    /// The field.
    pub field: &'static str,
    /// The field's offset after the record's header.
    pub offset: usize,
    /// The record's size without its header.
    pub bytes: usize,
}

impl fmt::Display for ShortSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, offset, bytes } = self;
        write!(f, "a sample of {bytes} bytes ends within its field {field} at {offset:#x}")
    }
}

impl std::error::Error for ShortSample {}

/// The unread part of a record.
struct SampleFields<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The current field.
    field: &'static str,
    begin: usize,
}

impl<'a> SampleFields<'a> {
    /// Begins a field.
    fn begin(&mut self, field: &'static str) -> &mut Self {
        (self.field, self.begin) = (field, self.at);
        self
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], ShortSample> {
        let short = ShortSample { field: self.field, offset: self.begin, bytes: self.bytes.len() };
        let count = usize::try_from(count).map_err(|_| short)?;
        let end = self.at.checked_add(count).ok_or(short)?;
        let found = self.bytes.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(found)
    }

    fn long(&mut self) -> Result<u64, ShortSample> {
        self.take(8).map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Reads the two halves of a word, the lower one first.
    fn halves(&mut self) -> Result<(u32, u32), ShortSample> {
        self.long().map(|word| (word as u32, (word >> 32) as u32))
    }

    /// Skips `count` entries of `each` longs.
    fn skip(&mut self, count: u64, each: u64) -> Result<(), ShortSample> {
        self.take(count.saturating_mul(each).saturating_mul(8)).map(drop)
    }
}

impl PerfSample {
    /// Reads the body of a record.
    ///
    /// # Errors
    /// If the body ends before a field does.
    pub fn parse(body: &[u8], layout: &SampleLayout) -> Result<Self, ShortSample> {
        let mut fields = SampleFields { bytes: body, at: 0, field: "", begin: 0 };
        let with = |bit| layout.sample_type & bit != 0;
        let mut sample = Self::default();
        if with(has::IDENTIFIER) {
            fields.begin("IDENTIFIER").long()?;
        }
        if with(has::IP) {
            sample.ip = Some(fields.begin("IP").long()?);
        }
        if with(has::TID) {
            let (pid, tid) = fields.begin("TID").halves()?;
            sample.ids = Some((pid as i32, tid as i32));
        }
        if with(has::TIME) {
            sample.time = Some(fields.begin("TIME").long()?);
        }
        if with(has::ADDR) {
            sample.address = Some(fields.begin("ADDR").long()?);
        }
        for (bit, field) in [(has::ID, "ID"), (has::STREAM_ID, "STREAM_ID")] {
            if with(bit) {
                fields.begin(field).long()?;
            }
        }
        if with(has::CPU) {
            sample.cpu = Some(fields.begin("CPU").halves()?.0);
        }
        if with(has::PERIOD) {
            fields.begin("PERIOD").long()?;
        }
        if with(has::READ) {
            read(fields.begin("READ"), layout.read_format)?;
        }
        if with(has::CALLCHAIN) {
            let count = fields.begin("CALLCHAIN").long()?;
            fields.skip(count, 1)?;
        }
        if with(has::RAW) {
            let size = fields.begin("RAW").take(4)?;
            let size = size.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            sample.raw = Some(fields.take(size)?.to_vec());
        }
        if with(has::BRANCH_STACK) {
            let count = fields.begin("BRANCH_STACK").long()?;
            let flag = |bit| u64::from(layout.branch_sample_type & bit != 0);
            fields.skip(flag(BRANCH_HW_INDEX), 1)?;
            fields.skip(count, 3 + flag(BRANCH_COUNTERS))?;
        }
        if with(has::REGS_USER) && fields.begin("REGS_USER").long()? != 0 {
            fields.skip(u64::from(layout.user_registers), 1)?;
        }
        if with(has::STACK_USER) {
            let size = fields.begin("STACK_USER").long()?;
            fields.take(size)?;
            // The size of the part that was copied.
            fields.skip(u64::from(size != 0), 1)?;
        }
        if with(has::WEIGHT) {
            sample.weight = Some(fields.begin("WEIGHT").long()?);
        } else if with(has::WEIGHT_STRUCT) {
            sample.weight = Some(fields.begin("WEIGHT_STRUCT").halves()?.0.into());
        }
        if with(has::DATA_SRC) {
            sample.data_src = Some(fields.begin("DATA_SRC").long()?);
        }
        if with(has::TRANSACTION) {
            fields.begin("TRANSACTION").long()?;
        }
        if with(has::REGS_INTR) && fields.begin("REGS_INTR").long()? != 0 {
            fields.skip(u64::from(layout.interrupt_registers), 1)?;
        }
        for (bit, field) in [
            (has::PHYS_ADDR, "PHYS_ADDR"),
            (has::CGROUP, "CGROUP"),
            (has::DATA_PAGE_SIZE, "DATA_PAGE_SIZE"),
            (has::CODE_PAGE_SIZE, "CODE_PAGE_SIZE"),
        ] {
            if with(bit) {
                fields.begin(field).long()?;
            }
        }
        if with(AUX) {
            let size = fields.begin("AUX").long()?;
            let begin = fields.at;
            fields.take(size)?;
            sample.aux = Some(begin..fields.at);
        }
        Ok(sample)
    }
}

/// Skips the counts of `PERF_SAMPLE_READ`.
fn read(fields: &mut SampleFields<'_>, format: u64) -> Result<(), ShortSample> {
    let count = |bits: &[u64]| bits.iter().filter(|bit| format & **bit != 0).count() as u64;
    let (times, each) = (count(&READ_TIMES), 1 + count(&[READ_ID, READ_LOST]));
    match format & READ_GROUP {
        0 => fields.skip(1, times + each),
        _ => {
            let entries = fields.long()?;
            fields.skip(1, times)?;
            fields.skip(entries, each)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longs(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Returns the fields up to the weight, each with the bit that requests it.
    fn fields(layout: &SampleLayout) -> Vec<(u64, Vec<u8>)> {
        let flag = |bit| layout.branch_sample_type & bit != 0;
        let mut branches = longs(&[2]);
        branches.extend(longs(&[7; 1][..usize::from(flag(BRANCH_HW_INDEX))]));
        branches.extend(longs(&[7; 8][..if flag(BRANCH_COUNTERS) { 8 } else { 6 }]));
        let read = match layout.read_format {
            0 => longs(&[7]),
            // The value, two times, the identifier and the number of lost samples.
            0b1_0111 => longs(&[7; 5]),
            // Two members of a group, each with its value and its identifier.
            0b1101 => longs(&[2, 7, 7, 7, 7, 7]),
            other => panic!("{other}"),
        };
        vec![
            (has::IDENTIFIER, longs(&[7])),
            (has::IP, longs(&[0x1001])),
            (has::TID, longs(&[5 | 6 << 32])),
            (has::TIME, longs(&[0x3003])),
            (has::ADDR, longs(&[0x2002])),
            (has::ID, longs(&[7])),
            (has::STREAM_ID, longs(&[7])),
            (has::CPU, longs(&[3 | 7 << 32])),
            (has::PERIOD, longs(&[7])),
            (has::READ, read),
            (has::CALLCHAIN, longs(&[2, 7, 7])),
            // Four bytes of size, and as many bytes: perf pads the content.
            (has::RAW, [12, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12].into()),
            (has::BRANCH_STACK, branches),
            (has::REGS_USER, longs(&[2, 7, 7])),
            (has::STACK_USER, longs(&[16, 7, 7, 7])),
            (has::WEIGHT, longs(&[0x5_0000_0004])),
            (has::DATA_SRC, longs(&[0x2908_0142])),
            (has::TRANSACTION, longs(&[7])),
            (has::REGS_INTR, longs(&[2, 7, 7, 7])),
            (has::PHYS_ADDR, longs(&[7])),
            (has::CGROUP, longs(&[7])),
            (has::DATA_PAGE_SIZE, longs(&[7])),
            (has::CODE_PAGE_SIZE, longs(&[7])),
            (AUX, longs(&[16, 0x1234, 0x5678])),
        ]
    }

    fn expected(sample_type: u64, size: usize) -> PerfSample {
        let with = |bit| sample_type & bit != 0;
        PerfSample {
            ip: with(has::IP).then_some(0x1001),
            ids: with(has::TID).then_some((5, 6)),
            time: with(has::TIME).then_some(0x3003),
            address: with(has::ADDR).then_some(0x2002),
            cpu: with(has::CPU).then_some(3),
            raw: with(has::RAW).then(|| (1..=12).collect()),
            weight: with(has::WEIGHT).then_some(0x5_0000_0004),
            data_src: with(has::DATA_SRC).then_some(0x2908_0142),
            aux: with(AUX).then(|| size - 16..size),
        }
    }

    #[test]
    fn each_field_is_in_its_place_whatever_others_there_are() {
        for (read_format, branch_sample_type) in
            [(0, 0), (0b1_0111, BRANCH_HW_INDEX), (0b1101, BRANCH_COUNTERS | BRANCH_HW_INDEX)]
        {
            let layout = SampleLayout {
                read_format,
                branch_sample_type,
                user_registers: 2,
                interrupt_registers: 3,
                ..SampleLayout::default()
            };
            let all = fields(&layout);
            // All fields; each field together with the last one only; and all fields except one, for each.
            let every: u64 = all.iter().map(|(bit, _)| bit).sum();
            let alone = all.iter().map(|(bit, _)| bit | has::DATA_SRC);
            let without = all.iter().map(|(bit, _)| every & !bit);
            for sample_type in [every].into_iter().chain(alone).chain(without) {
                let layout = SampleLayout { sample_type, ..layout };
                let body: Vec<u8> = all
                    .iter()
                    .filter(|(bit, _)| sample_type & bit != 0)
                    .flat_map(|(_, bytes)| bytes.clone())
                    .collect();
                assert_eq!(
                    PerfSample::parse(&body, &layout),
                    Ok(expected(sample_type, body.len())),
                    "{sample_type:#x}"
                );
                for cut in 0..body.len() {
                    let error = PerfSample::parse(&body[..cut], &layout).unwrap_err();
                    assert!(error.bytes == cut && error.offset <= cut, "{error}");
                }
            }
        }
    }

    #[test]
    fn a_weight_of_parts_begins_with_the_accesss_latency() {
        let layout = SampleLayout { sample_type: has::WEIGHT_STRUCT, ..SampleLayout::default() };
        let body = longs(&[0x7_0006_0000_0005]);
        assert_eq!(PerfSample::parse(&body, &layout).map(|sample| sample.weight), Ok(Some(5)));
    }

    #[test]
    fn a_count_that_no_record_has_is_too_long() {
        let layout = SampleLayout { sample_type: has::IP | has::CALLCHAIN, ..SampleLayout::default() };
        let error = PerfSample::parse(&longs(&[1, u64::MAX]), &layout).unwrap_err();
        assert_eq!(error.to_string(), "a sample of 16 bytes ends within its field CALLCHAIN at 0x8");
    }

    #[test]
    fn a_thread_of_the_kernel_has_no_registers_of_a_program() {
        let layout = SampleLayout {
            sample_type: has::REGS_USER | has::WEIGHT,
            user_registers: 9,
            ..SampleLayout::default()
        };
        let sample = PerfSample::parse(&longs(&[0, 8]), &layout).unwrap();
        assert_eq!(sample.weight, Some(8));
    }
}
