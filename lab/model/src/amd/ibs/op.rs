//! IBS execution sampling: tags one op in each period.

use super::{PHYSICAL, SamplingOutcome, canonical, without_reserved};
use crate::GeneralProtection;
use crate::amd::execution::{DataAccess, Execution};
use crate::amd::profile::{DataSources, Ibs};
use crate::amd::random::Random;
use crate::amd::registers::{ibs_cap, msr, op_ctl, op_ctl2, op_data, op_data2, op_data3};
use crate::amd::{AmdProfile, AmdViolations, Errata};
use crate::branch::InstructionKind;
use crate::{Memory, PageSize};

/// Maximum counts of this number times 16 and fewer are reserved.
const RESERVED_COUNTS: u64 = 8;
/// Instructions between two interrupts of a tagging engine that was left on.
const STUCK_ON_PERIOD: u32 = 64;
/// Number of ops before a tagged op from which data accesses are modelled, so that the caches are filled.
const OPS_WITH_DATA: u64 = 32;
/// Maximum number of ops of an instruction that is not microcoded.
const MAX_OPS: u64 = 2;
/// The bits that stay set if the processor has that erratum.
const STICKY_TLB_BITS: u64 = op_data3::L2_TLB_MISS | op_data3::L2_TLB_HIT_2M | op_data3::L2_TLB_HIT_1G;

/// Counts ops or cycles and samples one op in each period.
#[derive(Debug)]
pub(in crate::amd) struct OpSampling {
    features: u32,
    family: u32,
    sources: DataSources,
    errata: Errata,
    rip_invalid: u32,
    /// IbsOpCtl without IbsOpCurCnt.
    control: u64,
    /// IbsOpCtl2.
    control2: u64,
    counter: u64,
    rip: u64,
    data: [u64; 3],
    linear: u64,
    physical: u64,
    target: u64,
    random: Random,
    samples: u32,
    /// If the tagging engine was left on: the instructions before its next interrupt.
    stuck_on: Option<u32>,
}

/// The tagged op of an instruction.
#[derive(Clone, Copy, Debug)]
struct TaggedOp {
    /// The tagged op is the first, which loads.
    first: bool,
    /// The tagged op is the last, which stores and branches.
    last: bool,
}

impl OpSampling {
    pub(in crate::amd) fn new(profile: &AmdProfile, errata: Errata, rip_invalid: u32, seed: u64) -> Self {
        Self {
            features: profile.ibs_features(),
            family: profile.family(),
            sources: profile.ibs.as_ref().map_or(DataSources::Northbridge, |Ibs { sources, .. }| *sources),
            errata,
            rip_invalid,
            control: 0,
            control2: 0,
            counter: 0,
            rip: 0,
            data: [0; 3],
            linear: 0,
            physical: 0,
            target: 0,
            random: Random::new(!seed),
            samples: 0,
            stuck_on: None,
        }
    }

    pub(in crate::amd) const fn owns_msr(&self, number: u32) -> bool {
        match number {
            msr::IBS_OP_CTL..=msr::IBS_DC_PHYS_AD => self.has(ibs_cap::OP_SAM),
            msr::IBS_BR_TARGET => self.has(ibs_cap::BRN_TRGT),
            msr::IBS_OP_CTL2 => self.has(ibs_cap::DIS),
            _ => false,
        }
    }

    const fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    pub(in crate::amd) const fn read(&self, number: u32) -> u64 {
        match number {
            msr::IBS_OP_CTL => self.control | self.counter << op_ctl::CUR_CNT_SHIFT,
            msr::IBS_OP_RIP => self.rip,
            msr::IBS_OP_DATA..=msr::IBS_OP_DATA3 => self.data[(number - msr::IBS_OP_DATA) as usize],
            msr::IBS_DC_LIN_AD => self.linear,
            msr::IBS_DC_PHYS_AD => self.physical,
            msr::IBS_OP_CTL2 => self.control2,
            _ => self.target,
        }
    }

    pub(in crate::amd) fn write(
        &mut self,
        number: u32,
        value: u64,
        violations: &mut AmdViolations,
    ) -> Result<(), GeneralProtection> {
        match number {
            msr::IBS_OP_CTL => self.write_control(value, violations)?,
            msr::IBS_OP_RIP => self.rip = canonical(value)?,
            msr::IBS_OP_DATA => self.data[0] = without_reserved(value, self.data_bits())?,
            msr::IBS_OP_DATA2 => self.data[1] = without_reserved(value, self.data2_bits())?,
            msr::IBS_OP_DATA3 => self.data[2] = value,
            msr::IBS_DC_LIN_AD => self.linear = canonical(value)?,
            msr::IBS_DC_PHYS_AD => self.physical = without_reserved(value, PHYSICAL)?,
            msr::IBS_OP_CTL2 => self.control2 = without_reserved(value, self.control2_bits())?,
            _ => self.target = canonical(value)?,
        }
        Ok(())
    }

    /// Returns the bits of IbsOpCtl2 that are not reserved. The others must be zero.
    const fn control2_bits(&self) -> u64 {
        let mut bits = op_ctl2::DIS;
        if self.has(ibs_cap::BIT_63_FILTERING) {
            bits |= op_ctl2::EXCLUDE_RIP_63_0 | op_ctl2::EXCLUDE_RIP_63_1;
        }
        if self.has(ibs_cap::STREAMING_STORES) {
            bits |= op_ctl2::STREAMING_STORES_ONLY;
        }
        bits
    }

    /// Returns the bits of IbsOpData that are not reserved. All processors have those up to IbsOpBrnRet.
    const fn data_bits(&self) -> u64 {
        let mut bits = op_data::BRN_RET * 2 - 1;
        if self.has(ibs_cap::RIP_INVALID_CHK) {
            bits |= op_data::RIP_INVALID;
        }
        if self.has(ibs_cap::OP_BRN_FUSE) {
            bits |= op_data::BRN_FUSE;
        }
        if self.family >= 0x17 {
            bits |= op_data::MICROCODE;
        }
        bits
    }

    const fn data2_bits(&self) -> u64 {
        let mut common = op_data2::SOURCE_LOW | op_data2::RMT_NODE;
        if self.has(ibs_cap::STREAMING_STORES) {
            common |= op_data2::STREAMING_STORE | op_data2::REMOTE_SOCKET;
        }
        match self.sources {
            DataSources::NodeWithoutState => common,
            DataSources::Northbridge | DataSources::Node => common | op_data2::CACHE_HIT_ST,
            DataSources::Extended => common | op_data2::CACHE_HIT_ST | op_data2::SOURCE_HIGH,
        }
    }

    fn write_control(&mut self, value: u64, violations: &mut AmdViolations) -> Result<(), GeneralProtection> {
        let old = self.control;
        let counter = self.counter_mask() << op_ctl::CUR_CNT_SHIFT;
        without_reserved(value, self.control_bits() | counter)?;
        self.control = value & self.control_bits();
        let enabled = old & op_ctl::EN == 0 && value & op_ctl::EN != 0;
        let restarted = old & !value & op_ctl::VAL != 0;
        if self.has(ibs_cap::RD_WR_OP_CNT) {
            self.counter = (value & counter) >> op_ctl::CUR_CNT_SHIFT;
        } else if enabled || restarted {
            self.counter = 0;
        }
        let maximum = op_ctl::max_cnt(value);
        if enabled && (1..=RESERVED_COUNTS).contains(&maximum) {
            violations.reserved_op_counts += 1;
        }
        violations.counts_beyond_maximum +=
            u32::from(self.is_counting() && maximum != 0 && self.counter >> 4 > maximum);
        let stopped = old & !value & op_ctl::EN != 0;
        if stopped && op_ctl::max_cnt(old) != 0 && self.errata.has(Errata::IBS_INTERRUPT_CANNOT_BE_CLEARED) {
            self.stuck_on = Some(STUCK_ON_PERIOD);
        } else if maximum == 0 || value & op_ctl::EN != 0 {
            self.stuck_on = None;
        }
        Ok(())
    }

    /// Returns the bits of IbsOpCtl that are not reserved, except the current count. The others must be zero.
    const fn control_bits(&self) -> u64 {
        let mut bits = op_ctl::MAX_CNT_LOW | op_ctl::EN | op_ctl::VAL;
        if self.has(ibs_cap::OP_CNT) {
            bits |= op_ctl::CNT_CTL;
        }
        if self.has(ibs_cap::OP_CNT_EXT) {
            bits |= op_ctl::MAX_CNT_EXT;
        }
        if self.has(ibs_cap::L3_MISS_FILTERING) {
            bits |= op_ctl::L3_MISS_ONLY;
        }
        if self.has(ibs_cap::LD_LAT_FILTERING) {
            bits |= op_ctl::LD_LAT_THRESHOLD | op_ctl::LD_LAT_EN;
        }
        bits
    }

    const fn counter_mask(&self) -> u64 {
        let bits = if self.has(ibs_cap::OP_CNT_EXT) { 27 } else { 20 };
        (1 << bits) - 1
    }

    /// Returns true if IbsOpEn is set, and the unit is not disabled.
    pub(in crate::amd) const fn is_on(&self) -> bool {
        self.control & op_ctl::EN != 0 && self.control2 & op_ctl2::DIS == 0
    }

    /// Returns true if sampling was stopped in a way that leaves the tagging engine on.
    pub(in crate::amd) const fn is_stuck_on(&self) -> bool {
        self.stuck_on.is_some()
    }

    const fn is_counting(&self) -> bool {
        self.is_on() && self.control & op_ctl::VAL == 0
    }

    /// Returns true if the data accesses of the next instruction may matter: a count of cycles depends on them, and
    /// with a count of ops, one op of this instruction or of the next few may be tagged, and the caches must then be up
    /// to date.
    pub(in crate::amd) fn wants_data(&self) -> bool {
        self.instructions_until_data() == 0
    }

    /// Returns the minimum number of instructions before data accesses matter, if none of them is microcoded.
    pub(in crate::amd) fn instructions_until_data(&self) -> u64 {
        if !self.is_counting() || op_ctl::max_cnt(self.control) == 0 {
            return u64::MAX;
        }
        if self.control & op_ctl::CNT_CTL == 0 {
            return 0;
        }
        self.count_left().saturating_sub(OPS_WITH_DATA).div_ceil(MAX_OPS)
    }

    /// Counts an instruction that retired.
    pub(in crate::amd) fn retire(&mut self, execution: &Execution) -> SamplingOutcome {
        if let Some(left) = &mut self.stuck_on {
            *left -= 1;
            if *left == 0 {
                *left = STUCK_ON_PERIOD;
                return SamplingOutcome::Interrupt;
            }
        }
        if !self.is_counting() {
            return SamplingOutcome::Nothing;
        }
        let counts_ops = self.control & op_ctl::CNT_CTL != 0;
        let Some(tagged) =
            (if counts_ops { self.count_ops(execution.ops) } else { self.count_cycles(execution) })
        else {
            return SamplingOutcome::Nothing;
        };
        if self.is_filtered_out(tagged, execution) {
            self.counter = self.random.bits(7);
            return SamplingOutcome::Nothing;
        }
        self.sample(tagged, execution);
        SamplingOutcome::Interrupt
    }

    /// Handles a fault: a tagged op does not retire, and the count restarts.
    pub(in crate::amd) fn abort(&mut self) {
        if self.is_counting() && self.count_left() == 0 {
            self.counter = self.random.bits(7);
        }
    }

    /// Returns the ops or cycles left to count before an op is tagged. A maximum of 0 tags nothing.
    fn count_left(&self) -> u64 {
        match op_ctl::max_cnt(self.control) {
            0 => u64::MAX,
            maximum if self.counter >> 4 == maximum => 0,
            maximum => (maximum << 4).wrapping_sub(self.counter) & self.counter_mask(),
        }
    }

    fn advance(&mut self, by: u64) {
        self.counter = (self.counter + by) & self.counter_mask();
    }

    /// Counts the ops of an instruction, up to the tagged one if there is one.
    fn count_ops(&mut self, ops: u32) -> Option<TaggedOp> {
        let left = self.count_left();
        self.advance(left.min(ops.into()));
        let index = u32::try_from(left).ok().filter(|index| *index < ops)?;
        Some(TaggedOp { first: index == 0, last: index == ops - 1 })
    }

    /// Counts the cycles of an instruction. If the count was complete before it, its first op is tagged instead.
    fn count_cycles(&mut self, execution: &Execution) -> Option<TaggedOp> {
        let left = self.count_left();
        self.advance(left.min(u64::from(execution.stall()) + 1));
        (left == 0).then_some(TaggedOp { first: true, last: execution.ops == 1 })
    }

    /// Returns true if a filter rejects the sample.
    fn is_filtered_out(&self, tagged: TaggedOp, execution: &Execution) -> bool {
        let load = execution.data.filter(|data| data.access.read && tagged.first);
        let other = execution.data.filter(|data| !data.access.read && tagged.last);
        let missed_l3 = load.or(other).is_some_and(|data| data.found.missed_l3);
        let threshold = (self.control & op_ctl::LD_LAT_THRESHOLD) >> 59;
        // In units of 128 cycles, starting at 128.
        let long = load.is_some_and(|data| u64::from(data.found.miss_cycles) > (threshold + 1) * 128);
        let half = match execution.ip >> 63 {
            0 => op_ctl2::EXCLUDE_RIP_63_0,
            _ => op_ctl2::EXCLUDE_RIP_63_1,
        };
        let streams_only = self.control2 & op_ctl2::STREAMING_STORES_ONLY != 0;
        let by_l3 = self.control & op_ctl::L3_MISS_ONLY != 0;
        let by_latency = by_l3 || !self.errata.has(Errata::IBS_LATENCY_FILTER_LEAKS);
        by_l3 && !missed_l3
            || self.control & op_ctl::LD_LAT_EN != 0 && by_latency && !long
            || self.control2 & half != 0
            || streams_only && !streams(tagged, execution)
    }

    fn sample(&mut self, tagged: TaggedOp, execution: &Execution) {
        self.samples += 1;
        self.control |= op_ctl::VAL;
        self.counter = if self.has(ibs_cap::RD_WR_OP_CNT) { self.random.bits(7) } else { 0 };
        self.rip = execution.ip;
        self.data[0] = self.op_data(tagged, execution);
        if self.rip_invalid != 0
            && self.has(ibs_cap::RIP_INVALID_CHK)
            && self.samples.is_multiple_of(self.rip_invalid)
        {
            self.rip = 0;
            self.data[0] |= op_data::RIP_INVALID;
        }
        if tagged.last && execution.decoded.may_transfer() {
            self.target = execution.next;
        }
        let data = execution.data.filter(|data| {
            let loads = data.access.read || data.access.prefetch;
            loads && tagged.first || data.access.write && tagged.last
        });
        self.data[1] = data.map_or(0, |data| self.op_data2(&data));
        if self.has(ibs_cap::STREAMING_STORES) && streams(tagged, execution) {
            self.data[1] |= op_data2::STREAMING_STORE;
        }
        let kept =
            if self.errata.has(Errata::IBS_STICKY_TLB_BITS) { self.data[2] & STICKY_TLB_BITS } else { 0 };
        self.data[2] = kept | data.map_or(0, |data| self.op_data3(tagged, &data));
        if let Some(DataAccess { address, .. }) = data {
            self.linear = address.linear;
            self.physical = address.mapping.map_or(0, |mapping| mapping.physical) & PHYSICAL;
        }
    }

    fn op_data(&self, tagged: TaggedOp, execution: &Execution) -> u64 {
        // An op completes one cycle before it retires.
        let mut value = 1 | u64::from(execution.stall() + 4).min(0xffff) << op_data::TAG_TO_RET_SHIFT;
        let branch = tagged.last && execution.decoded.may_transfer();
        let returns = execution.decoded.kind == InstructionKind::Return;
        for (is, bit) in [
            (branch, op_data::BRN_RET),
            (branch && returns, op_data::RETURN),
            (branch && execution.taken, op_data::BRN_TAKEN),
            (branch && execution.mispredicted, op_data::BRN_MISP),
            (branch && returns && execution.mispredicted && self.family < 0x17, op_data::MISP_RETURN),
            (execution.microcoded && self.family >= 0x17, op_data::MICROCODE),
        ] {
            value |= if is { bit } else { 0 };
        }
        value
    }

    /// Returns the value of IbsOpData2: the source of data that missed level 2.
    fn op_data2(&self, data: &DataAccess) -> u64 {
        if data.access.prefetch && self.errata.has(Errata::IBS_DATA_SOURCE_WRONG) {
            return u64::from(data.found.miss_cycles) & 0b111;
        }
        // The state of a line alternates by address; no other processor has the line.
        let line = data.address.linear / LINE;
        let state = if line.is_multiple_of(2) { 0 } else { op_data2::CACHE_HIT_ST };
        match (data.found.missed_l2 && (data.access.read || data.access.prefetch), self.sources) {
            (false, _) => 0,
            (true, _) if memory_type(data) == Memory::Device => 7,
            (true, _) if data.found.missed_l3 => 3,
            (true, DataSources::Northbridge) => 1,
            (true, DataSources::Extended) => 1 | state,
            (true, DataSources::Node) => 2 | state,
            (true, DataSources::NodeWithoutState) => 2,
        }
    }

    fn op_data3(&self, tagged: TaggedOp, data: &DataAccess) -> u64 {
        let DataAccess { access, address, found } = data;
        let end = address.linear % LINE + u64::from(access.bytes);
        let load = access.read && tagged.first;
        let recent = self.family >= 0x17;
        let mut value = 0;
        for (is, bit) in [
            (load, op_data3::LD_OP),
            (access.write && tagged.last, op_data3::ST_OP),
            (found.missed_l1_tlb, op_data3::L1_TLB_MISS),
            (found.missed_l2_tlb, op_data3::L2_TLB_MISS),
            (found.missed_l1, op_data3::DC_MISS),
            (end > LINE, op_data3::MIS_ACC),
            (access.locked, op_data3::LOCKED),
            (memory_type(data) != Memory::Cached, op_data3::UC_MEM_ACC),
            (true, op_data3::LIN_ADDR_VALID),
            (address.mapping.is_some(), op_data3::PHY_ADDR_VALID),
            (found.missed_l2 && recent, op_data3::L2_MISS),
            (access.prefetch && recent, op_data3::SW_PF),
        ] {
            value |= if is { bit } else { 0 };
        }
        if load {
            value |= u64::from(found.miss_cycles) << op_data3::DC_MISS_LAT_SHIFT;
        }
        if recent {
            value |= u64::from(found.refill_cycles) << op_data3::TLB_REFILL_LAT_SHIFT;
            value |= width(access.bytes) << op_data3::WIDTH_SHIFT;
        }
        value | self.page_size(data)
    }

    /// Returns the bits of IbsOpData3 for the page's size.
    ///
    /// Source: BKDG for AMD Family 10h Processors, "IBS Op Data 3 Register"; for the field of later processors Linux,
    /// `tools/perf/util/amd-sample-raw.c`.
    fn page_size(&self, data: &DataAccess) -> u64 {
        let Some(page) = data.address.mapping.map(|mapping| mapping.page) else { return 0 };
        if self.has(ibs_cap::OP_DTLB_PAGE_SIZE) {
            return (page as u64) << op_data3::PAGE_SIZE_SHIFT;
        }
        match (page, data.found.missed_l1_tlb, data.found.missed_l2_tlb) {
            (PageSize::K4, _, _) | (_, true, true) => 0,
            (PageSize::M2, false, _) => op_data3::L1_TLB_HIT_2M,
            (PageSize::G1, false, _) => op_data3::L1_TLB_HIT_1G,
            (PageSize::M2, true, false) => op_data3::L2_TLB_HIT_2M,
            (PageSize::G1, true, false) => op_data3::L2_TLB_HIT_1G,
        }
    }
}

/// Returns true if the tagged op is a streaming store.
fn streams(tagged: TaggedOp, execution: &Execution) -> bool {
    tagged.last && execution.data.is_some_and(|data| data.access.streaming)
}

/// Bytes of a cache line.
const LINE: u64 = 64;

fn memory_type(data: &DataAccess) -> Memory {
    data.address.mapping.map_or(Memory::Cached, |mapping| mapping.memory)
}

/// Returns the value of IbsOpMemWidth: 0 if the width is unknown.
fn width(bytes: u32) -> u64 {
    if bytes.is_power_of_two() && bytes <= 64 { u64::from(bytes.trailing_zeros()) + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_that_the_field_has_no_value_for_is_unknown() {
        // 0: unknown, for example of XSAVE; 128: two vectors of AVX-512; 512: FXSAVE.
        let rows =
            [(0, 0), (1, 1), (2, 2), (4, 3), (8, 4), (16, 5), (32, 6), (64, 7), (128, 0), (512, 0), (10, 0)];
        for (bytes, expected) in rows {
            assert_eq!(width(bytes), expected, "{bytes}");
        }
    }
}
