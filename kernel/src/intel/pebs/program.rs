//! The registers of the counters that sample: set up, enabled, disabled and restored.

use super::{Counter, PebsCapabilities, PebsConfig};
use crate::intel::counters::registers::{self, bit, release, set_fixed, width, write, write_at};
use crate::lifecycle::InUse;
use crate::msr::{
    CounterAddresses, FixedCtrCtrl, GeneralProtection, GlobalCtrl, GlobalStatus, Ia32PerfEvtSel, Msr,
    PebsDataCfg, PebsEnable, PebsLdLatThreshold, TypedMsr, fixed_counter, full_width_pmc, pmc,
    reload_fixed_counter, reload_pmc,
};
use pugmark_decoder_core::pebs::Format;

/// The counters that sample, and the state of their registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    config: PebsConfig,
    capabilities: PebsCapabilities,
    data_cfg: PebsDataCfg,
    /// The counters' bits in IA32_PERF_GLOBAL_CTRL; IA32_PEBS_ENABLE has the same bits.
    counters: u64,
    /// The other bits of IA32_PEBS_ENABLE, which select the records' destination.
    output: u64,
    /// The registers' old values, once a register was written.
    before: Option<Before>,
    /// True while the counters count.
    on: bool,
    /// True if registers that enable the counters may be set.
    dirty: bool,
}

/// The old values of registers that other owners use too.
#[derive(Clone, Copy, Debug)]
struct Before {
    global_ctrl: u64,
    data_cfg: PebsDataCfg,
    latency_threshold: Option<PebsLdLatThreshold>,
}

impl Program {
    /// Creates the program of a checked configuration.
    pub(crate) fn new(config: PebsConfig, capabilities: PebsCapabilities, data_cfg: PebsDataCfg) -> Self {
        let counters = config.counters().fold(0, |bits, (counter, _)| bits | bit(counter));
        Self { config, capabilities, data_cfg, counters, output: 0, before: None, on: false, dirty: false }
    }

    /// Directs the records into the trace of Intel PT instead of the DS area. The processor must support this.
    pub(crate) const fn into_trace(self, pmi_after_each_record: bool) -> Self {
        let pmi = if pmi_after_each_record { PebsEnable::PMI_AFTER_EACH_RECORD } else { 0 };
        Self { output: PebsEnable::OUTPUT_PT | pmi, ..self }
    }

    /// Returns IA32_PEBS_ENABLE while the counters sample.
    pub(crate) const fn enable(&self) -> PebsEnable {
        let has_enable = match self.capabilities.load_latency {
            Some(facility) => facility.has_enable,
            None => false,
        };
        let load_latency = match self.config.latency_threshold() {
            Some((n, _)) if has_enable => PebsEnable::load_latency(n),
            _ => 0,
        };
        PebsEnable(self.counters | self.output | load_latency)
    }

    /// Returns the bits of the counters in IA32_PERF_GLOBAL_STATUS. Processors sometimes set them although the overflow
    /// requested a record, not a PMI.
    pub(crate) const fn status(&self) -> GlobalStatus {
        GlobalStatus::from_bits_retain(self.counters)
    }

    /// Returns whether the counters count.
    pub(crate) const fn is_on(&self) -> bool {
        self.on
    }

    /// Returns the counter reset values with their places in the management area.
    pub(crate) fn resets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.config.counters().map(|(counter, period)| match counter {
            Counter::General(n) => (u64::from(n), first_value(period, self.capabilities.general_bits)),
            Counter::Fixed(n) => {
                let place = u64::from(self.capabilities.general_resets) + u64::from(n);
                (place, first_value(period, self.capabilities.fixed_bits))
            }
        })
    }

    /// Returns the other owner of the counters or of PEBS, if there is one.
    pub(crate) fn in_use(&self, msr: &mut impl Msr) -> Result<Option<InUse>, GeneralProtection> {
        let PebsEnable(pebs_enable) = msr.read()?;
        if pebs_enable != 0 {
            return Ok(Some(InUse::Sampler { pebs_enable }));
        }
        let reported = registers::reported(msr, self.capabilities.global_in_use);
        for (counter, _) in self.config.counters() {
            if let Some(owner) = registers::owner(msr, ADDRESSES, counter, reported)? {
                return Ok(Some(owner));
            }
        }
        Ok(None)
    }

    /// Writes the counters and their events; nothing counts yet.
    pub(crate) fn prepare(&mut self, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        let GlobalCtrl(global_ctrl) = msr.read()?;
        let adaptive = self.capabilities.format == Format::Adaptive;
        let data_cfg = match adaptive {
            true => msr.read()?,
            false => PebsDataCfg::empty(),
        };
        let threshold = self.config.latency_threshold().map(|(_, threshold)| threshold);
        let latency_threshold = threshold.map(|_| msr.read()).transpose()?;
        self.before.get_or_insert(Before { global_ctrl, data_cfg, latency_threshold });
        // After a reset, all general-purpose counters are enabled in this register.
        write(msr, GlobalCtrl(global_ctrl & !self.counters))?;
        for (counter, period) in self.config.counters() {
            if let (true, Counter::General(n)) = (self.capabilities.counters_need_clearing, counter) {
                registers::clear(msr, n)?;
            }
            self.load(counter, period, msr)?;
            self.set_reload(counter, period, msr)?;
            match counter {
                Counter::General(n) => {
                    write_at(msr, Ia32PerfEvtSel::at(n), self.config.select(n, adaptive))?;
                }
                Counter::Fixed(n) => {
                    let (os, user) = self.config.levels();
                    set_fixed(msr, n, FixedCtrCtrl::counting(n, os, user, adaptive))?;
                }
            }
        }
        if let Some(threshold) = threshold {
            write(msr, PebsLdLatThreshold(threshold.into()))?;
        }
        match adaptive {
            true => write(msr, self.data_cfg),
            false => Ok(()),
        }
    }

    /// Enables sampling, then counting. Adds 1 to `lost` for each sample whose counter had already overflowed and whose
    /// record was not stored when the counters were stopped.
    ///
    /// # Safety
    ///
    /// IA32_DS_AREA (for records into a trace, the output of Intel PT) must name memory that belongs to the processor
    /// until [`Program::stop`].
    pub(crate) unsafe fn go_on(
        &mut self,
        msr: &mut impl Msr,
        lost: &mut u64,
    ) -> Result<(), GeneralProtection> {
        if self.on {
            return Ok(());
        }
        self.load_again(msr, lost)?;
        self.dirty = true;
        // SAFETY: records go where the caller promises.
        unsafe { msr.write(self.enable()) }?;
        let GlobalCtrl(counting) = msr.read()?;
        // SAFETY: as above.
        unsafe { msr.write(GlobalCtrl(counting | self.counters)) }?;
        self.on = true;
        Ok(())
    }

    /// Restarts the counters that have overflowed. They must be stopped. An overflow requests a record for the next
    /// event, and stopping the sampling drops this request: without a restart, the counter would count its whole width
    /// until the next overflow.
    fn load_again(&self, msr: &mut impl Msr, lost: &mut u64) -> Result<(), GeneralProtection> {
        for (counter, period) in self.config.counters() {
            let (register, bits) = match counter {
                Counter::General(n) => (pmc(n), self.capabilities.general_bits),
                Counter::Fixed(n) => (fixed_counter(n), self.capabilities.fixed_bits),
            };
            if msr.read_at(register)? & width(bits) < first_value(period, bits) {
                self.load(counter, period, msr)?;
                *lost += 1;
            }
        }
        Ok(())
    }

    /// Makes a counter overflow after `period` events. It must be stopped.
    fn load(&self, counter: Counter, period: u64, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        let (register, value) = match counter {
            Counter::General(n) if self.capabilities.full_width => {
                (full_width_pmc(n), first_value(period, self.capabilities.general_bits))
            }
            // The upper bits are copies of bit 31.
            Counter::General(n) => (pmc(n), first_value(period, 32)),
            Counter::Fixed(n) => (fixed_counter(n), first_value(period, self.capabilities.fixed_bits)),
        };
        write_at(msr, register, value)
    }

    /// Sets a counter's reload value after a record that went into a trace. For other records the management area has
    /// this value.
    fn set_reload(&self, counter: Counter, period: u64, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        if self.output & PebsEnable::OUTPUT_PT == 0 {
            return Ok(());
        }
        match counter {
            Counter::General(n) => {
                write_at(msr, reload_pmc(n), first_value(period, self.capabilities.general_bits))
            }
            Counter::Fixed(n) => {
                write_at(msr, reload_fixed_counter(n), first_value(period, self.capabilities.fixed_bits))
            }
        }
    }

    /// Stops the counters, then the sampling: no record is written any more. Returns whether the counters were as
    /// [`Program::go_on`] had left them, or already stopped: if not, something else has turned them off.
    pub(crate) fn stop(&mut self, msr: &mut impl Msr) -> Result<bool, GeneralProtection> {
        if !self.dirty {
            return Ok(true);
        }
        let GlobalCtrl(counting) = msr.read()?;
        let enabled: PebsEnable = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters))?;
        let was_on = core::mem::replace(&mut self.on, false);
        write(msr, PebsEnable(0))?;
        self.dirty = false;
        let kept = counting & self.counters == self.counters && enabled == self.enable();
        Ok(!was_on || kept)
    }

    /// Forgets registers that another owner has taken over, until [`Program::prepare`] writes them again.
    pub(crate) const fn forget(&mut self) {
        (self.on, self.dirty, self.before) = (false, false, None);
    }

    /// Returns whether the registers were prepared and not taken over since.
    pub(crate) const fn is_prepared(&self) -> bool {
        self.before.is_some()
    }

    /// Returns whether the counters count, or may do so.
    pub(crate) const fn may_count(&self) -> bool {
        self.dirty
    }

    /// Stops the counters that another owner has left sampling, and releases them. Returns IA32_PEBS_ENABLE as it was.
    pub(crate) fn turn_off(msr: &mut impl Msr) -> Result<u64, GeneralProtection> {
        let PebsEnable(sampling) = msr.read()?;
        if sampling == 0 {
            return Ok(0);
        }
        write(msr, PebsEnable(0))?;
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !(sampling & COUNTERS)))?;
        for n in 0..8 {
            if sampling >> n & 1 == 1 {
                release(msr, ADDRESSES, Counter::General(n))?;
            }
        }
        for n in 0..4 {
            if sampling >> (32 + n) & 1 == 1 {
                release(msr, ADDRESSES, Counter::Fixed(n))?;
            }
        }
        Ok(sampling)
    }

    /// Restores the registers and so releases the counters, which must be stopped. May be called again if an access
    /// raised #GP.
    pub(crate) fn put_back(&mut self, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        let Some(before) = self.before else { return Ok(()) };
        for (counter, _) in self.config.counters() {
            release(msr, ADDRESSES, counter)?;
        }
        if self.capabilities.format == Format::Adaptive {
            write(msr, before.data_cfg)?;
        }
        if let Some(threshold) = before.latency_threshold {
            write(msr, threshold)?;
        }
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters | before.global_ctrl & self.counters))?;
        self.before = None;
        Ok(())
    }
}

/// The addresses of the counters that sample into the DS area: there are eight of general purpose.
const ADDRESSES: CounterAddresses = CounterAddresses::ByKind;

/// The bits of IA32_PEBS_ENABLE that name counters: eight of general purpose, four with a fixed function.
const COUNTERS: u64 = 0xf_0000_00ff;

/// Returns the start value with which a counter of `bits` bits overflows after `period` events.
const fn first_value(period: u64, bits: u8) -> u64 {
    period.wrapping_neg() & width(bits)
}
