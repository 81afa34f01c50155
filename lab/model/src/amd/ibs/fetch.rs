//! IBS fetch sampling.

use super::{PHYSICAL, SamplingOutcome, without_reserved};
use crate::amd::execution::Fetch;
use crate::amd::random::Random;
use crate::amd::registers::{fetch_ctl, fetch_ctl2, ibs_cap, msr};
use crate::amd::{AmdProfile, AmdViolations, Errata};
use crate::{GeneralProtection, PageSize};

/// The bits of the fetch interval counter.
const COUNTER: u64 = (1 << 20) - 1;
/// One sample in this number has the address 0, if the processor has that erratum.
const ZERO_ADDRESS: u32 = 8;

/// Counts fetches and samples one in each period.
#[derive(Debug)]
pub(in crate::amd) struct FetchSampling {
    features: u32,
    has_l2_miss: bool,
    errata: Errata,
    /// IbsFetchCtl without IbsFetchCnt.
    control: u64,
    /// IbsFetchCtl2.
    control2: u64,
    counter: u64,
    linear: u64,
    physical: u64,
    /// IbsItlbRefillLat.
    extended: u64,
    random: Random,
    samples: u32,
}

impl FetchSampling {
    pub(in crate::amd) const fn new(profile: &AmdProfile, errata: Errata, seed: u64) -> Self {
        Self {
            features: profile.ibs_features(),
            has_l2_miss: profile.family() >= 0x17,
            errata,
            control: 0,
            control2: 0,
            counter: 0,
            linear: 0,
            physical: 0,
            extended: 0,
            random: Random::new(seed),
            samples: 0,
        }
    }

    pub(in crate::amd) const fn owns_msr(&self, number: u32) -> bool {
        match number {
            msr::IBS_FETCH_CTL..=msr::IBS_FETCH_PHYS_AD => self.has(ibs_cap::FETCH_SAM),
            msr::IBS_FETCH_CTL_EXTD => self.has(ibs_cap::FETCH_CTL_EXTD),
            msr::IBS_FETCH_CTL2 => self.has(ibs_cap::DIS),
            _ => false,
        }
    }

    const fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    pub(in crate::amd) const fn read(&self, number: u32) -> u64 {
        match number {
            msr::IBS_FETCH_CTL => self.control | self.counter >> 4 << fetch_ctl::CNT_SHIFT,
            msr::IBS_FETCH_LIN_AD => self.linear,
            msr::IBS_FETCH_PHYS_AD => self.physical,
            msr::IBS_FETCH_CTL2 => self.control2,
            _ => self.extended,
        }
    }

    pub(in crate::amd) fn write(
        &mut self,
        number: u32,
        value: u64,
        violations: &mut AmdViolations,
    ) -> Result<(), GeneralProtection> {
        if number == msr::IBS_FETCH_CTL2 {
            self.control2 = without_reserved(value, self.control2_bits())?;
            return Ok(());
        }
        // The others are read-only.
        if number != msr::IBS_FETCH_CTL {
            return Err(GeneralProtection);
        }
        let old = self.control;
        self.control = value & self.writable() & !fetch_ctl::CNT;
        let enabled = old & fetch_ctl::EN == 0 && value & fetch_ctl::EN != 0;
        let restarted = old & value & fetch_ctl::EN != 0 && old & !value & fetch_ctl::VAL != 0;
        if restarted && self.errata.has(Errata::IBS_FETCH_STARTS_AT_MAXIMUM) {
            self.counter = (value & fetch_ctl::MAX_CNT) << 4;
        } else if enabled || !self.errata.has(Errata::IBS_FETCH_COUNT_BY_ENABLE_ALONE) {
            let low = if value & fetch_ctl::RAND_EN != 0 { self.random.bits(4) } else { 0 };
            self.counter = (value & fetch_ctl::CNT) >> fetch_ctl::CNT_SHIFT << 4 | low;
        }
        let beyond = self.is_counting() && self.counter >> 4 > self.control & fetch_ctl::MAX_CNT;
        violations.counts_beyond_maximum += u32::from(beyond);
        Ok(())
    }

    /// Returns the bits that are not reserved. Reserved bits read as zero and ignore writes.
    const fn writable(&self) -> u64 {
        let mut bits = fetch_ctl::MAX_CNT
            | fetch_ctl::CNT
            | fetch_ctl::LAT
            | fetch_ctl::EN
            | fetch_ctl::VAL
            | fetch_ctl::COMP
            | fetch_ctl::IC_MISS
            | fetch_ctl::PHY_ADDR_VALID
            | fetch_ctl::L1_TLB_PG_SZ
            | fetch_ctl::L1_TLB_MISS
            | fetch_ctl::L2_TLB_MISS
            | fetch_ctl::RAND_EN;
        if self.has_l2_miss {
            bits |= fetch_ctl::L2_MISS;
        }
        if self.has(ibs_cap::L3_MISS_FILTERING) {
            bits |= fetch_ctl::L3_MISS_ONLY | fetch_ctl::OC_MISS | fetch_ctl::L3_MISS;
        }
        bits
    }

    /// Returns the bits of IbsFetchCtl2 that are not reserved. The others must be zero.
    const fn control2_bits(&self) -> u64 {
        let mut bits = fetch_ctl2::DIS;
        if self.has(ibs_cap::FETCH_LAT_FILTERING) {
            bits |= fetch_ctl2::LAT_FILTER;
        }
        if self.has(ibs_cap::BIT_63_FILTERING) {
            bits |= fetch_ctl2::EXCLUDE_RIP_63_0 | fetch_ctl2::EXCLUDE_RIP_63_1;
        }
        bits
    }

    /// Returns true if IbsFetchEn is set, and the unit is not disabled.
    pub(in crate::amd) const fn is_on(&self) -> bool {
        self.control & fetch_ctl::EN != 0 && self.control2 & fetch_ctl2::DIS == 0
    }

    const fn is_counting(&self) -> bool {
        self.is_on() && self.control & fetch_ctl::VAL == 0
    }

    /// Returns true if a filter rejects the fetch.
    fn is_filtered_out(&self, fetch: &Fetch) -> bool {
        let missed_l3 = fetch.completed && fetch.found.missed_l3;
        // In units of 128 cycles; 0 disables the filter.
        let least = (self.control2 & fetch_ctl2::LAT_FILTER) >> fetch_ctl2::LAT_FILTER_SHIFT << 7;
        let half = match fetch.address >> 63 {
            0 => fetch_ctl2::EXCLUDE_RIP_63_0,
            _ => fetch_ctl2::EXCLUDE_RIP_63_1,
        };
        self.control & fetch_ctl::L3_MISS_ONLY != 0 && !missed_l3
            || latency(fetch) < least
            || self.control2 & half != 0
    }

    /// Counts a fetch that completed or was aborted. With a maximum of 0 no fetch is tagged.
    pub(in crate::amd) fn fetch(&mut self, fetch: &Fetch) -> SamplingOutcome {
        if !self.is_counting() {
            return SamplingOutcome::Nothing;
        }
        let maximum = self.control & fetch_ctl::MAX_CNT;
        if maximum == 0 || self.counter >> 4 != maximum {
            self.counter = (self.counter + 1) & COUNTER;
            return SamplingOutcome::Nothing;
        }
        if self.is_filtered_out(fetch) {
            self.counter = if self.control & fetch_ctl::RAND_EN != 0 { self.random.bits(7) } else { 0 };
            return SamplingOutcome::Nothing;
        }
        self.sample(fetch);
        SamplingOutcome::Interrupt
    }

    fn sample(&mut self, fetch: &Fetch) {
        let found = &fetch.found;
        self.samples += 1;
        let ic_miss =
            found.missed_l1 ^ (self.errata.has(Errata::IBS_IC_MISS_WRONG) && self.random.bits(1) != 0);
        let mut control =
            self.control & !fetch_ctl::RESULT | fetch_ctl::VAL | latency(fetch) << fetch_ctl::LAT_SHIFT;
        for (is, bit) in [
            (fetch.completed, fetch_ctl::COMP),
            (ic_miss, fetch_ctl::IC_MISS),
            (fetch.mapping.is_some(), fetch_ctl::PHY_ADDR_VALID),
            (found.missed_l1_tlb, fetch_ctl::L1_TLB_MISS),
            (found.missed_l2_tlb, fetch_ctl::L2_TLB_MISS),
            (found.missed_l2, fetch_ctl::L2_MISS),
            (found.missed_l3, fetch_ctl::L3_MISS),
            // There is no op cache, so each fetch has missed it.
            (fetch.completed, fetch_ctl::OC_MISS),
        ] {
            control |= if is { bit & self.writable() } else { 0 };
        }
        self.control = control | self.page_size(fetch) << fetch_ctl::L1_TLB_PG_SZ_SHIFT;
        let zero =
            self.errata.has(Errata::IBS_FETCH_ADDRESS_ZERO) && self.samples.is_multiple_of(ZERO_ADDRESS);
        self.linear = if zero { 0 } else { fetch.address };
        self.physical = fetch.mapping.map_or(0, |mapping| mapping.physical) & PHYSICAL;
        self.extended = u64::from(found.refill_cycles);
    }
}

impl FetchSampling {
    /// Returns the value of IbsL1TlbPgSz.
    fn page_size(&self, fetch: &Fetch) -> u64 {
        match (fetch.mapping.map(|mapping| mapping.page), self.errata.has(Errata::IBS_FETCH_PAGE_SIZES)) {
            (None | Some(PageSize::K4), _) => 0,
            (Some(PageSize::M2), false) => 1,
            (Some(PageSize::M2), true) | (Some(PageSize::G1), false) => 2,
            (Some(PageSize::G1), true) => 3,
        }
    }
}

/// Returns the cycles from the start of a fetch to its end.
fn latency(fetch: &Fetch) -> u64 {
    u64::from(fetch.found.stall() + 1).min(0xffff)
}
