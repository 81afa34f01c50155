//! Counters that sample, and their buffer.

use super::buffer::UNIT;
use super::{ArchPebsBuffer, ArchPebsConfig, ArchPebsRefusal, ArchPebsStopped, ArchPebsUnit};
use crate::drain::Sink;
use crate::intel::counters::registers::{self, bit, width, write, write_at};
use crate::lifecycle::{Halted, InUse, NotBacked, Recording, Sealed, Serve, StartError};
use crate::loss::{Gap, Loss};
use crate::memory::Frames;
use crate::msr::{
    Counter, GeneralProtection, GlobalCtrl, GlobalStatus, GlobalStatusReset, Msr, PebsBase, PebsIndex,
    Register, TypedMsr, reload_causes, reload_value,
};
use crate::pmi::{Abandoned, Requests};
use core::sync::atomic::{Ordering, fence};

/// The counters with their configuration and buffer.
#[derive(Debug)]
pub struct ArchPebsSession<M: Msr, F: Frames> {
    unit: ArchPebsUnit<M>,
    buffer: ArchPebsBuffer<F>,
    config: ArchPebsConfig,
    /// The counters' bits in IA32_PERF_GLOBAL_CTRL.
    counters: u64,
    /// IA32_PERF_GLOBAL_CTRL before the start, once the counters are this session's.
    before: Option<u64>,
    /// True while the driver has the sampling turned on.
    on: bool,
    /// True while IA32_PEBS_BASE names the buffer, unless something else has written it.
    named: bool,
    /// True if records are missing after those in the buffer, and no sink has noted this.
    gap: bool,
    /// The bytes of records, as of the last halt.
    len: usize,
    pub(super) loss: Loss,
}

impl<M: Msr, F: Frames> ArchPebsSession<M, F> {
    pub(super) fn new(unit: ArchPebsUnit<M>, buffer: ArchPebsBuffer<F>, config: ArchPebsConfig) -> Self {
        let counters = config.counters().fold(0, |bits, (counter, _)| bits | bit(counter));
        let (before, loss) = (None, Loss::NONE);
        Self { unit, buffer, config, counters, before, on: false, named: false, gap: false, len: 0, loss }
    }

    fn status_bits(&self) -> GlobalStatus {
        GlobalStatus::from_bits_retain(self.counters).union(GlobalStatus::ARCH_PEBS_THRESHOLD)
    }

    fn first_value(&self, counter: Counter, period: u32) -> u64 {
        u64::from(period).wrapping_neg() & width(self.unit.capabilities.counters.bits(counter))
    }

    fn in_use(&mut self) -> Result<Option<InUse>, GeneralProtection> {
        let PebsIndex(index) = self.unit.msr.read()?;
        if index & PebsIndex::EN != 0 {
            return Ok(Some(InUse::Sampler { pebs_enable: index }));
        }
        let capabilities = &self.unit.capabilities.counters;
        let reported = registers::reported(&mut self.unit.msr, capabilities.global_in_use);
        for (counter, _) in self.config.counters() {
            if let Some(owner) =
                registers::owner(&mut self.unit.msr, capabilities.addresses, counter, reported)?
            {
                return Ok(Some(owner));
            }
        }
        Ok(None)
    }

    /// Writes the counters, and names the buffer; nothing counts yet.
    fn prepare(&mut self) -> Result<(), GeneralProtection> {
        let GlobalCtrl(counting) = self.unit.msr.read()?;
        self.before = Some(counting);
        write(&mut self.unit.msr, GlobalCtrl(counting & !self.counters))?;
        let capabilities = self.unit.capabilities.counters;
        for (counter, period) in self.config.counters() {
            let first = self.first_value(counter, period);
            let msr = &mut self.unit.msr;
            write_at(msr, capabilities.addresses.value(counter), first)?;
            // An earlier owner may have left its reload.
            if capabilities.reloadable & bit(counter) != 0 {
                write_at(msr, reload_causes(counter), 0)?;
            }
            // Nothing counts, and IA32_PEBS_INDEX is off: no record is stored by this.
            write_at(msr, reload_value(counter), self.config.extended(period))?;
            match counter {
                Counter::General(n) => {
                    write_at(msr, capabilities.addresses.select(n), self.config.select(n))?
                }
                Counter::Fixed(n) => registers::set_fixed(msr, n, self.config.fixed_fields(n))?,
            }
        }
        let left = GlobalStatusReset(self.status_bits());
        write(&mut self.unit.msr, left)?;
        let (base, index) = (PebsBase(self.buffer.base()), PebsIndex(0));
        // SAFETY: the memory is this session's until it is halted and the name is removed.
        unsafe { self.unit.msr.write(base) }?;
        self.named = true;
        write(&mut self.unit.msr, index)
    }

    /// Lets the processor store records after those in the buffer, and the counters count.
    fn go_on(&mut self) -> Result<(), GeneralProtection> {
        let PebsIndex(index) = self.unit.msr.read()?;
        if self.on || !self.named || index & PebsIndex::EN != 0 {
            // It is on already, or another owner has come.
            return Ok(());
        }
        let ours = PebsBase(self.buffer.base());
        match self.unit.msr.read()? {
            base if base == ours => {}
            // SAFETY: the memory is this session's until it is halted and the name is removed.
            PebsBase(0) => unsafe { self.unit.msr.write(ours) }?,
            PebsBase(_) => return Ok(()),
        }
        self.load_again()?;
        let index = PebsIndex::new(self.len as u64 / UNIT, self.buffer.threshold());
        fence(Ordering::SeqCst);
        // SAFETY: records go into the buffer, which IA32_PEBS_BASE names and this session owns until it is halted.
        unsafe { self.unit.msr.write(index) }?;
        self.on = true;
        let GlobalCtrl(counting) = self.unit.msr.read()?;
        // SAFETY: as above.
        unsafe { self.unit.msr.write(GlobalCtrl(counting | self.counters)) }
    }

    /// Restarts the counters that have overflowed without a record. They stand still.
    fn load_again(&mut self) -> Result<(), GeneralProtection> {
        for (counter, period) in self.config.counters() {
            let register = self.unit.capabilities.counters.addresses.value(counter);
            let first = self.first_value(counter, period);
            let mask = width(self.unit.capabilities.counters.bits(counter));
            if self.unit.msr.read_at(register)? & mask < first {
                write_at(&mut self.unit.msr, register, first)?;
                self.loss.samples += 1;
            }
        }
        Ok(())
    }

    /// Offers the records to a sink, and moves those that it does not take to the start of the buffer.
    fn deliver(&mut self, sink: &mut (impl Sink + ?Sized), _: &Halted) {
        let bytes = self.buffer.bytes();
        // SAFETY: the unit is halted, and the slice lasts as long as this call.
        let records = unsafe { bytes.slice(self.len) };
        let taken = match self.len {
            0 => 0,
            _ => sink.bytes(records).min(self.len),
        };
        let rest = records.len() - taken;
        // SAFETY: the unit is halted; the slice above is not used any more.
        unsafe { bytes.move_to_start(taken, rest) };
        self.len = rest;
        if self.gap && rest == 0 {
            self.gap = !sink.gap(Gap::Full);
        }
    }

    pub(super) fn drain(&mut self, sink: &mut impl Sink) -> Result<(), GeneralProtection> {
        let halted = Halted::halt(self)?;
        self.deliver(sink, &halted);
        self.go_on()
    }
}

impl<M: Msr, F: Frames> Sealed for ArchPebsSession<M, F> {}

impl<M: Msr, F: Frames> Recording for ArchPebsSession<M, F> {
    type Unit = ArchPebsUnit<M>;
    type Memory = ArchPebsBuffer<F>;
    type Stopped = ArchPebsStopped<M, F>;
    type Refusal = ArchPebsRefusal;

    const WRITES_MEMORY: bool = true;

    fn begin(&mut self) -> Result<(), StartError<ArchPebsRefusal>> {
        if let Some(in_use) = self.in_use()? {
            return Err(in_use.into());
        }
        self.prepare()?;
        self.go_on()?;
        let written = PebsIndex::new(0, self.buffer.threshold()).0 & PebsIndex::SETTINGS;
        let PebsIndex(read) = self.unit.msr.read()?;
        match read & PebsIndex::SETTINGS == written {
            true => Ok(()),
            false => Err(StartError::NotBacked(NotBacked { address: PebsIndex::ADDRESS, written, read })),
        }
    }

    /// Stops the counters, then the records.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if !self.named {
            return Ok(());
        }
        let msr = &mut self.unit.msr;
        let PebsBase(base) = msr.read()?;
        let is_named = base == self.buffer.base();
        if !is_named && base != 0 {
            // Another owner has its own buffer there: this one is written no more.
            self.loss.turned_off += u64::from(core::mem::take(&mut self.on));
            (self.named, self.before) = (false, None);
            fence(Ordering::SeqCst);
            return Ok(());
        }
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters))?;
        let PebsIndex(index) = msr.read()?;
        write(msr, PebsIndex(index & !PebsIndex::EN))?;
        fence(Ordering::SeqCst);
        if core::mem::take(&mut self.on) {
            let counted = counting & self.counters == self.counters;
            let kept = is_named && counted && index & PebsIndex::EN != 0;
            self.loss.turned_off += u64::from(!kept);
            self.len = PebsIndex(index).bytes().min(self.buffer.size()) as usize;
            let full = index & PebsIndex::FULL != 0;
            self.loss.full += u64::from(full);
            self.gap |= full;
        }
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let Some(before) = self.before else { return Ok(()) };
        let msr = &mut self.unit.msr;
        let addresses = self.unit.capabilities.counters.addresses;
        for (counter, _) in self.config.counters() {
            registers::release(msr, addresses, counter)?;
            write_at(msr, reload_value(counter), 0)?;
        }
        if self.named {
            write(msr, PebsIndex(0))?;
            write(msr, PebsBase(0))?;
            self.named = false;
        }
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters | before & self.counters))?;
        self.before = None;
        Ok(())
    }

    fn abandon(&mut self, _: Abandoned) {
        self.loss.abandoned += u64::from(self.halt().is_ok());
    }

    fn into_stopped(self) -> ArchPebsStopped<M, F> {
        let Self { unit, buffer, loss, len, .. } = self;
        ArchPebsStopped { unit, loss, buffer, len }
    }

    fn into_parts(self) -> (ArchPebsUnit<M>, ArchPebsBuffer<F>) {
        (self.unit, self.buffer)
    }
}

impl<M: Msr, F: Frames, S: Sink> Serve<S> for ArchPebsSession<M, F> {
    fn status(&self) -> Requests {
        self.status_bits().into()
    }

    fn serve(&mut self, seen: Requests, sink: &mut S, halted: &Halted) -> Result<bool, GeneralProtection> {
        if seen.is_empty() {
            return Ok(false);
        }
        self.deliver(sink, halted);
        Ok(true)
    }

    fn resume(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        self.go_on()
    }
}
