//! The counters' registers: what goes in before, what goes on and off, and what comes back behind.

use super::{Counter, PebsCapabilities, PebsConfig};
use crate::lifecycle::InUse;
use crate::msr::{
    FixedCtrCtrl, GeneralProtection, GlobalCtrl, GlobalStatus, Msr, PebsDataCfg, PebsEnable, PerfEvtSel,
    fixed_counter, full_width_pmc, pmc,
};
use pugmark_decoder_core::pebs::Format;

/// Counters that sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    config: PebsConfig,
    capabilities: PebsCapabilities,
    data_cfg: PebsDataCfg,
    /// The counters' bits in IA32_PERF_GLOBAL_CTRL, which are those in IA32_PEBS_ENABLE too.
    counters: u64,
    /// What was there before, once something was written.
    before: Option<Before>,
    /// They count.
    on: bool,
    /// Some of what lets them count may be set.
    dirty: bool,
}

/// Registers that others have a part in, as they were.
#[derive(Clone, Copy, Debug)]
struct Before {
    global_ctrl: u64,
    data_cfg: PebsDataCfg,
}

impl Program {
    /// For a configuration that was checked.
    pub(crate) fn new(config: PebsConfig, capabilities: PebsCapabilities, data_cfg: PebsDataCfg) -> Self {
        let counters = config.counters().fold(0, |bits, (counter, _)| bits | bit(counter));
        Self { config, capabilities, data_cfg, counters, before: None, on: false, dirty: false }
    }

    /// The bits of its counters in IA32_PERF_GLOBAL_STATUS. Processors set them now and then though it was the record
    /// that the overflow asked for.
    pub(crate) const fn status(&self) -> GlobalStatus {
        GlobalStatus::from_bits_retain(self.counters)
    }

    /// The counter reset values, by their places in the management area.
    pub(crate) fn resets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.config.counters().map(|(counter, period)| match counter {
            Counter::General(n) => (u64::from(n), first_value(period, self.capabilities.general_bits)),
            Counter::Fixed(n) => {
                let place = u64::from(self.capabilities.general_resets) + u64::from(n);
                (place, first_value(period, self.capabilities.fixed_bits))
            }
        })
    }

    /// Who has its counters, or samples.
    ///
    /// An event select that is not 0 means a counter in use, as in IA32_PERF_GLOBAL_INUSE, which not all processors
    /// have.
    pub(crate) fn in_use(&self, msr: &mut impl Msr) -> Result<Option<InUse>, GeneralProtection> {
        let PebsEnable(pebs_enable) = msr.read()?;
        if pebs_enable != 0 {
            return Ok(Some(InUse::Sampler { pebs_enable }));
        }
        for (counter, _) in self.config.counters() {
            let (control, used) = match counter {
                Counter::General(n) => {
                    let control = msr.rdmsr(PerfEvtSel::address(n))?;
                    (control, control & PerfEvtSel::EVENT.union(PerfEvtSel::EN).bits())
                }
                Counter::Fixed(n) => {
                    let FixedCtrCtrl(control) = msr.read()?;
                    (control, control & FixedCtrCtrl::mask(n))
                }
            };
            if used != 0 {
                return Ok(Some(InUse::Counter { counter, control }));
            }
        }
        Ok(None)
    }

    /// Writes the counters and what they count; none counts yet.
    pub(crate) fn prepare(&mut self, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        let GlobalCtrl(global_ctrl) = msr.read()?;
        let adaptive = self.capabilities.format == Format::Adaptive;
        let data_cfg = match adaptive {
            true => msr.read()?,
            false => PebsDataCfg::empty(),
        };
        self.before = Some(Before { global_ctrl, data_cfg });
        // A reset lets all general-purpose counters count.
        write(msr, GlobalCtrl(global_ctrl & !self.counters))?;
        for (counter, period) in self.config.counters() {
            self.load(counter, period, msr)?;
            match counter {
                Counter::General(n) => {
                    wrmsr(msr, PerfEvtSel::address(n), self.config.select(n, adaptive).bits())?;
                }
                Counter::Fixed(n) => {
                    let FixedCtrCtrl(control) = msr.read()?;
                    let (os, user) = self.config.levels();
                    let mine = FixedCtrCtrl::counting(n, os, user, adaptive);
                    write(msr, FixedCtrCtrl(control & !FixedCtrCtrl::mask(n) | mine))?;
                }
            }
        }
        match adaptive {
            true => write(msr, self.data_cfg),
            false => Ok(()),
        }
    }

    /// Lets its counters sample, then count. `lost` goes up by one for each sample whose counter has overflowed already,
    /// and whose record was not stored when the counters were stopped.
    ///
    /// # Safety
    ///
    /// IA32_DS_AREA leads to memory that is the processor's until [`Program::stop`].
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
        // SAFETY: records go where the caller says.
        unsafe { msr.write(PebsEnable(self.counters)) }?;
        let GlobalCtrl(counting) = msr.read()?;
        // SAFETY: as above.
        unsafe { msr.write(GlobalCtrl(counting | self.counters)) }?;
        self.on = true;
        Ok(())
    }

    /// Lets the counters that went past their end start again. An overflow asks for the record of the next event, and
    /// what was asked for ends with the sampling: the counter would have its whole width before it. They are stopped.
    fn load_again(&self, msr: &mut impl Msr, lost: &mut u64) -> Result<(), GeneralProtection> {
        for (counter, period) in self.config.counters() {
            let (address, bits) = match counter {
                Counter::General(n) => (pmc(n), self.capabilities.general_bits),
                Counter::Fixed(n) => (fixed_counter(n), self.capabilities.fixed_bits),
            };
            if msr.rdmsr(address)? & width(bits) < first_value(period, bits) {
                self.load(counter, period, msr)?;
                *lost += 1;
            }
        }
        Ok(())
    }

    /// Makes a counter overflow after `period` events. It is stopped.
    fn load(&self, counter: Counter, period: u64, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        let (address, value) = match counter {
            Counter::General(n) if self.capabilities.full_width => {
                (full_width_pmc(n), first_value(period, self.capabilities.general_bits))
            }
            // The rest is bit 31, sign-extended.
            Counter::General(n) => (pmc(n), first_value(period, 32)),
            Counter::Fixed(n) => (fixed_counter(n), first_value(period, self.capabilities.fixed_bits)),
        };
        wrmsr(msr, address, value)
    }

    /// Stops its counters, then the sampling: no record is written any more.
    pub(crate) fn stop(&mut self, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        if !self.dirty {
            return Ok(());
        }
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters))?;
        self.on = false;
        write(msr, PebsEnable(0))?;
        self.dirty = false;
        Ok(())
    }

    /// Puts the registers back: its counters are free. It is stopped. May be called again where an access raised #GP.
    pub(crate) fn put_back(&mut self, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        let Some(before) = self.before else { return Ok(()) };
        for (counter, _) in self.config.counters() {
            match counter {
                Counter::General(n) => wrmsr(msr, PerfEvtSel::address(n), 0)?,
                Counter::Fixed(n) => {
                    let FixedCtrCtrl(control) = msr.read()?;
                    write(msr, FixedCtrCtrl(control & !FixedCtrCtrl::mask(n)))?;
                }
            }
        }
        if self.capabilities.format == Format::Adaptive {
            write(msr, before.data_cfg)?;
        }
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters | before.global_ctrl & self.counters))?;
        self.before = None;
        Ok(())
    }
}

/// The bit of a counter in the registers that have one for each.
const fn bit(counter: Counter) -> u64 {
    match counter {
        Counter::General(n) => 1 << n,
        Counter::Fixed(n) => 1 << (32 + n),
    }
}

/// What a counter of so many bits starts from to overflow after `period` events.
const fn first_value(period: u64, bits: u8) -> u64 {
    period.wrapping_neg() & width(bits)
}

/// All bits of a counter of so many.
const fn width(bits: u8) -> u64 {
    match bits {
        64.. => u64::MAX,
        _ => (1 << bits) - 1,
    }
}

/// Writes a register that does not let records be written.
fn write<R: crate::msr::Register>(msr: &mut impl Msr, value: R) -> Result<(), GeneralProtection> {
    wrmsr(msr, R::ADDRESS, value.to_bits())
}

fn wrmsr(msr: &mut impl Msr, address: u32, value: u64) -> Result<(), GeneralProtection> {
    // SAFETY: a register of a counter that is stopped, or what makes counters stop: nothing is written to memory for
    // it, and nobody else uses the counter.
    unsafe { msr.wrmsr(address, value) }
}
