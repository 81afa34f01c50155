//! IBS units while they sample: the steps of start, handler and stop.

use super::config::{Levels, Plan};
use super::{IbsRefusal, IbsStopped, IbsUnit};
use crate::lifecycle::{Halted, LateNmis, Recording, Sealed, Serve, StartError};
use crate::msr::amd::{
    IbsBrTarget, IbsDcLinAd, IbsDcPhysAd, IbsFetchCtl, IbsFetchCtl2, IbsFetchLinAd, IbsFetchPhysAd, IbsOpCtl,
    IbsOpCtl2, IbsOpData, IbsOpData2, IbsOpData3, IbsOpData4, IbsOpRip, IcIbsExtdCtl,
};
use crate::msr::{GeneralProtection, Msr, Register, TypedMsr};
use crate::pmi::{Abandoned, Requests, Route};
use pugmark_decoder_core::ibs::{
    Caps, FetchRegisters, FetchSample, IbsErrata, OpRegisters, OpSample, Sample,
};

/// A receiver of samples in the handler: it must not wait, allocate or format.
pub trait SampleSink {
    /// Takes a sample; returns `false` if there is no room for it, and the sample is lost.
    fn sample(&mut self, sample: &Sample) -> bool;
}

/// The samples, counted by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsCounts {
    /// Samples of fetches that the sink took.
    pub fetches: u64,
    /// Samples of ops that the sink took.
    pub ops: u64,
    /// Samples that the sink had no room for.
    pub lost: u64,
    /// Samples of a privilege level that is filtered out.
    pub filtered: u64,
    /// Samples without an address, which cannot be filtered by privilege level, and fetches that erratum 1197
    /// corrupted.
    pub unplaced: u64,
    /// The number of times that the handler gave up, after a fault or because interrupts did not end: units that had a
    /// sample were stopped from then until an interrupt was served again.
    pub abandoned: u64,
    /// The number of times that a unit was found off, or with another period, although the driver had left it on:
    /// another owner or a hypervisor has changed its registers. Samples since then are missing.
    pub turned_off: u64,
}

/// The IBS units with their configuration.
#[derive(Debug)]
pub struct IbsSession<M: Msr> {
    unit: IbsUnit<M>,
    plan: Plan,
    fetch: IbsState,
    op: IbsState,
    counts: IbsCounts,
    /// The samples that the units held when they were stopped.
    last: [Option<Sample>; 2],
    /// The number of units that were served in this interrupt.
    served: u8,
    /// The state of the generator of random periods; never 0.
    random: u16,
    /// IbsOpCtl as last written.
    armed: IbsOpCtl,
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IbsState {
    Off,
    /// The unit counts, or has a sample that was not read yet.
    Armed,
    /// The unit's sample was delivered. For ops, the value is where the next count begins.
    Taken(u64),
    /// Something else has turned the unit off or taken it over: it is started again when it is free.
    TurnedOff,
    /// The unit is being turned off, and an access may have faulted meanwhile.
    Ending,
}

/// The bits of IbsOpCurCnt that the processor fills with a random value when it has a sample.
const RANDOM: u64 = 0x7f << 32;

/// Returns the next state of the generator of random periods: a Fibonacci shift register of 16 bits with the taps 16,
/// 14, 13 and 11, which give the longest period.
pub(super) const fn next_random(random: u16) -> u16 {
    let bit = (random ^ random >> 2 ^ random >> 3 ^ random >> 5) & 1;
    random >> 1 | bit << 15
}

impl<M: Msr> IbsSession<M> {
    pub(super) const fn new(unit: IbsUnit<M>, plan: Plan) -> Self {
        let counts =
            IbsCounts { fetches: 0, ops: 0, lost: 0, filtered: 0, unplaced: 0, abandoned: 0, turned_off: 0 };
        Self {
            unit,
            plan,
            fetch: IbsState::Off,
            op: IbsState::Off,
            counts,
            last: [None; 2],
            served: 0,
            random: 1,
            armed: IbsOpCtl::empty(),
        }
    }

    pub(super) const fn counts(&self) -> &IbsCounts {
        &self.counts
    }

    /// Returns the number of units that were started.
    fn units(&self) -> u8 {
        u8::from(self.plan.fetch.is_some()) + u8::from(self.plan.op.is_some())
    }

    /// Takes the samples of both units, if there are any; returns whether there was one.
    fn collect(&mut self, sink: &mut (impl SampleSink + ?Sized)) -> Result<bool, GeneralProtection> {
        let served = self.served;
        if let Some(sample) = self.read_fetch()? {
            self.fetch = IbsState::Taken(0);
            self.served += 1;
            self.deliver(Sample::Fetch(sample), sink);
        }
        if let Some(sample) = self.read_op()? {
            self.op = IbsState::Taken(self.random_begin(sample.registers().ctl));
            self.served += 1;
            self.deliver(Sample::Op(sample), sink);
        }
        Ok(self.served > served)
    }

    /// Starts units again that something else has turned off.
    pub(super) fn check(&mut self) -> Result<(), GeneralProtection> {
        let halted = Halted::halt(self)?;
        self.fetch_with_sample()?;
        self.op_with_sample()?;
        self.go_on(halted)
    }

    /// Resumes the units whose samples were taken, and those that something else has turned off.
    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        // If the register of one unit faults, the other unit still resumes.
        let fetch = self.resume_fetch();
        let op = self.resume_op();
        fetch.and(op)
    }

    /// Returns IbsFetchCtl if the unit has a sample; notes if it has none and something else has turned it off.
    fn fetch_with_sample(&mut self) -> Result<Option<IbsFetchCtl>, GeneralProtection> {
        let (IbsState::Armed, Some((planned, planned2))) = (self.fetch, self.plan.fetch) else {
            return Ok(None);
        };
        let ctl: IbsFetchCtl = self.unit.msr.read()?;
        if ctl.contains(IbsFetchCtl::VAL) {
            return Ok(Some(ctl));
        }
        let second = if self.has_dis() { self.unit.msr.read()? } else { planned2 };
        if !same_fetches(ctl, planned | IbsFetchCtl::EN) || second != planned2 {
            self.fetch = IbsState::TurnedOff;
            self.counts.turned_off += 1;
        }
        Ok(None)
    }

    /// Returns IbsOpCtl, like [`IbsSession::fetch_with_sample`].
    fn op_with_sample(&mut self) -> Result<Option<IbsOpCtl>, GeneralProtection> {
        let (IbsState::Armed, Some((_, planned2))) = (self.op, self.plan.op) else { return Ok(None) };
        let ctl: IbsOpCtl = self.unit.msr.read()?;
        if ctl.contains(IbsOpCtl::VAL) {
            return Ok(Some(ctl));
        }
        let second = if self.has_dis() { self.unit.msr.read()? } else { planned2 };
        if !same_ops(ctl, self.armed) || second != planned2 {
            self.op = IbsState::TurnedOff;
            self.counts.turned_off += 1;
        }
        Ok(None)
    }

    /// Returns whether a unit has a sample, or was not resumed after one.
    fn may_have_a_sample(&mut self) -> Result<bool, GeneralProtection> {
        Ok(match (self.fetch, self.op) {
            (IbsState::Taken(_), _) | (_, IbsState::Taken(_)) => true,
            (fetch, op) => {
                fetch == IbsState::Armed && self.unit.msr.read::<IbsFetchCtl>()?.contains(IbsFetchCtl::VAL)
                    || op == IbsState::Armed && self.unit.msr.read::<IbsOpCtl>()?.contains(IbsOpCtl::VAL)
            }
        })
    }

    /// Notes that another interrupt begins.
    pub(super) const fn begin_interrupt(&mut self) {
        self.served = 0;
    }

    /// Starts the fetch unit with a count of 0.
    fn start_fetch(&mut self) -> Result<(), GeneralProtection> {
        let Some((ctl, ctl2)) = self.plan.fetch else { return Ok(()) };
        if self.has_dis() {
            self.write(ctl2 | IbsFetchCtl2::DIS)?;
        }
        // This discards the old content, including an old sample. Then the enable bit rises, which resets the count.
        self.write(IbsFetchCtl::empty())?;
        self.write(ctl | IbsFetchCtl::EN)?;
        self.fetch = IbsState::Armed;
        if self.has_dis() { self.write(ctl2) } else { Ok(()) }
    }

    /// Starts the op unit with a count of 0.
    fn start_op(&mut self) -> Result<(), GeneralProtection> {
        let Some((ctl, ctl2)) = self.plan.op else { return Ok(()) };
        if self.has_dis() {
            self.write(ctl2 | IbsOpCtl2::DIS)?;
        }
        self.write(IbsOpCtl::empty())?;
        self.arm_op(ctl, 0)?;
        self.op = IbsState::Armed;
        if self.has_dis() { self.write(ctl2) } else { Ok(()) }
    }

    fn resume_fetch(&mut self) -> Result<(), GeneralProtection> {
        let off = self.fetch == IbsState::TurnedOff && !self.fetches_for_another()?;
        if off || self.fetch == IbsState::Ending {
            return self.start_fetch();
        }
        if let (IbsState::Taken(_), Some((ctl, _))) = (self.fetch, self.plan.fetch) {
            let errata = self.unit.part.errata();
            if errata.has(IbsErrata::FETCH_COUNT_RESET) || errata.has(IbsErrata::FETCH_COUNT_QUIRK) {
                self.write(IbsFetchCtl::empty())?;
            }
            self.write(ctl | IbsFetchCtl::EN)?;
            self.fetch = IbsState::Armed;
        }
        Ok(())
    }

    fn resume_op(&mut self) -> Result<(), GeneralProtection> {
        let off = self.op == IbsState::TurnedOff && !self.samples_ops_for_another()?;
        if off || self.op == IbsState::Ending {
            return self.start_op();
        }
        if let (IbsState::Taken(begin), Some((ctl, _))) = (self.op, self.plan.op) {
            if self.unit.part.errata().has(IbsErrata::STICKY_DATA3) {
                // This register belongs to the sample that was taken; writing it has no other effect.
                self.write(IbsOpData3(0))?;
            }
            let ctl = self.next_period(ctl);
            self.arm_op(ctl, begin)?;
            self.op = IbsState::Armed;
        }
        Ok(())
    }

    /// Returns whether the fetch unit is on with another configuration than planned.
    fn fetches_for_another(&mut self) -> Result<bool, GeneralProtection> {
        let Some((planned, _)) = self.plan.fetch else { return Ok(false) };
        let ctl: IbsFetchCtl = self.unit.msr.read()?;
        Ok(ctl.contains(IbsFetchCtl::EN) && !same_fetches(ctl, planned | IbsFetchCtl::EN))
    }

    /// Returns whether the op unit is on with another configuration than last written.
    fn samples_ops_for_another(&mut self) -> Result<bool, GeneralProtection> {
        let ctl: IbsOpCtl = self.unit.msr.read()?;
        Ok(ctl.contains(IbsOpCtl::EN) && !same_ops(ctl, self.armed))
    }

    fn end_fetch(&mut self) -> Result<(), GeneralProtection> {
        if self.fetch == IbsState::TurnedOff && self.fetches_for_another()? {
            self.fetch = IbsState::Off;
        }
        if let Some((ctl, ctl2)) = self.plan.fetch.filter(|_| self.fetch != IbsState::Off) {
            self.fetch = IbsState::Ending;
            if self.has_dis() {
                self.write(ctl2 | IbsFetchCtl2::DIS)?;
            }
            if self.unit.part.errata().has(IbsErrata::LATE_OP_INTERRUPT) {
                self.write(ctl.difference(IbsFetchCtl::MAX_CNT) | IbsFetchCtl::EN)?;
            }
            self.write(IbsFetchCtl::empty())?;
            self.fetch = IbsState::Off;
        }
        Ok(())
    }

    fn end_op(&mut self) -> Result<(), GeneralProtection> {
        if self.op == IbsState::TurnedOff && self.samples_ops_for_another()? {
            self.op = IbsState::Off;
        }
        if let Some((ctl, ctl2)) = self.plan.op.filter(|_| self.op != IbsState::Off) {
            self.op = IbsState::Ending;
            if self.has_dis() {
                self.write(ctl2 | IbsOpCtl2::DIS)?;
            }
            // Only for this erratum: on other processors a count that does not restart would be beyond its maximum.
            if self.unit.part.errata().has(IbsErrata::LATE_OP_INTERRUPT) {
                self.write(ctl.difference(IbsOpCtl::MAX_CNT) | IbsOpCtl::EN)?;
            }
            self.write(IbsOpCtl::empty())?;
            self.op = IbsState::Off;
        }
        Ok(())
    }

    fn read_fetch(&mut self) -> Result<Option<FetchSample>, GeneralProtection> {
        let Some(ctl) = self.fetch_with_sample()? else { return Ok(None) };
        let physical = ctl.contains(IbsFetchCtl::PHY_ADDR_VALID);
        let registers = FetchRegisters {
            ctl: ctl.bits(),
            linear: self.read::<IbsFetchLinAd>(true)?,
            physical: self.read::<IbsFetchPhysAd>(physical)?,
            extended: self.read::<IcIbsExtdCtl>(self.unit.part.caps.has(Caps::FETCH_CTL_EXTD))?,
        };
        Ok(FetchSample::new(self.unit.part, registers))
    }

    fn read_op(&mut self) -> Result<Option<OpSample>, GeneralProtection> {
        let Some(ctl) = self.op_with_sample()? else { return Ok(None) };
        let caps = self.unit.part.caps;
        let registers = OpRegisters {
            ctl: ctl.bits(),
            rip: self.read::<IbsOpRip>(true)?,
            data: self.read::<IbsOpData>(true)?,
            data2: self.read::<IbsOpData2>(true)?,
            data3: self.read::<IbsOpData3>(true)?,
            dc_linear: self.read::<IbsDcLinAd>(true)?,
            dc_physical: self.read::<IbsDcPhysAd>(true)?,
            br_target: self.read::<IbsBrTarget>(caps.has(Caps::BRN_TRGT))?,
            data4: self.read::<IbsOpData4>(caps.has(Caps::OP_DATA4))?,
        };
        Ok(OpSample::new(self.unit.part, registers))
    }

    /// Returns the value of a sample's register; 0 if the processor does not have it.
    fn read<R: Register>(&mut self, there: bool) -> Result<u64, GeneralProtection> {
        if there { Ok(self.unit.msr.read::<R>()?.to_bits()) } else { Ok(0) }
    }

    fn deliver(&mut self, sample: Sample, sink: &mut (impl SampleSink + ?Sized)) {
        let (address, spoiled) = match &sample {
            Sample::Fetch(fetch) => (fetch.linear_address(), fetch.linear_address().is_none()),
            Sample::Op(op) => (op.rip(), false),
        };
        let levels: Levels = self.plan.levels;
        match levels.keep(address) {
            None => self.counts.unplaced += 1,
            _ if spoiled => self.counts.unplaced += 1,
            Some(false) => self.counts.filtered += 1,
            Some(true) => {
                // Counted as lost before the call, in case it unwinds.
                self.counts.lost += 1;
                if sink.sample(&sample) {
                    self.counts.lost -= 1;
                    match sample {
                        Sample::Fetch(_) => self.counts.fetches += 1,
                        Sample::Op(_) => self.counts.ops += 1,
                    }
                }
            }
        }
    }

    /// Returns the start of the next count: the processor's random value, so that periods do not synchronize with the
    /// executed code. The value is less than the shortest period.
    const fn random_begin(&self, ctl: u64) -> u64 {
        match self.unit.part.caps.has(Caps::RD_WR_OP_CNT) {
            true => ctl & RANDOM,
            false => 0,
        }
    }

    /// Returns the period of the next op sample: with random low bits if they are wanted and the processor provides
    /// none.
    fn next_period(&mut self, ctl: IbsOpCtl) -> IbsOpCtl {
        if !self.plan.op_random {
            return ctl;
        }
        self.random = next_random(self.random);
        let period = ctl.extended_max_count() & !0xff | u32::from(self.random & 0xf) << 4;
        ctl.with_extended_max_count(period)
    }

    fn arm_op(&mut self, ctl: IbsOpCtl, begin: u64) -> Result<(), GeneralProtection> {
        self.armed = ctl | IbsOpCtl::EN;
        self.write(IbsOpCtl::from_bits_retain(self.armed.bits() | begin))
    }

    const fn has_dis(&self) -> bool {
        self.unit.part.caps.has(Caps::DIS)
    }

    fn write<R: Register>(&mut self, register: R) -> Result<(), GeneralProtection> {
        // SAFETY: the registers of the units: they write to no memory, and their interrupt is routed.
        unsafe { self.unit.msr.write(register) }
    }
}

/// Returns whether both select the same fetches.
fn same_fetches(one: IbsFetchCtl, other: IbsFetchCtl) -> bool {
    let what = IbsFetchCtl::MAX_CNT | IbsFetchCtl::EN;
    one & what == other & what
}

/// Returns whether both select the same ops.
fn same_ops(one: IbsOpCtl, other: IbsOpCtl) -> bool {
    let what = IbsOpCtl::MAX_CNT | IbsOpCtl::MAX_CNT_EXT | IbsOpCtl::CNT_CTL | IbsOpCtl::EN;
    one & what == other & what
}

/// Room for the samples that both units hold at the end.
struct Last([Option<Sample>; 2]);

impl SampleSink for Last {
    fn sample(&mut self, sample: &Sample) -> bool {
        let free = self.0.iter_mut().find(|place| place.is_none());
        free.map(|place| *place = Some(*sample)).is_some()
    }
}

impl<M: Msr> Sealed for IbsSession<M> {}

impl<M: Msr> Recording for IbsSession<M> {
    type Unit = IbsUnit<M>;
    type Memory = ();
    type Stopped = LateNmis<IbsStopped<M>>;
    type Refusal = IbsRefusal;

    // A unit that cannot be stopped requests one more interrupt, and then waits.
    const WRITES_MEMORY: bool = false;

    /// Starts the units with a count of 0.
    fn begin(&mut self) -> Result<(), StartError<IbsRefusal>> {
        self.unit.claim()?;
        self.start_fetch()?;
        Ok(self.start_op()?)
    }

    /// Does nothing: a unit with a sample waits by itself, and one without a sample continues to count, so that
    /// interrupts of other sources do not cost it its count.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Takes the samples that the units still hold.
    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let mut last = Last(self.last);
        let collected = self.collect(&mut last);
        self.last = last.0;
        collected.map(|_| ())
    }

    /// Stops the units. A sample that was not taken is lost.
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let fetch = self.end_fetch();
        let op = self.end_op();
        fetch.and(op)
    }

    /// Leaves the units as they are: those whose samples were taken stay stopped.
    fn abandon(&mut self, _: Abandoned) {
        self.counts.abandoned += 1;
    }

    fn into_stopped(self) -> LateNmis<IbsStopped<M>> {
        let Self { counts, last, .. } = self;
        LateNmis::new(self.units(), IbsStopped { unit: self.unit, counts, last })
    }

    fn into_parts(self) -> (IbsUnit<M>, ()) {
        (self.unit, ())
    }
}

/// The units report their samples in their own registers.
impl<M: Msr, K: SampleSink + ?Sized> Serve<&mut K> for IbsSession<M> {
    fn route(&self) -> Route {
        Route::Extended
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.may_have_a_sample()
    }

    fn serve(&mut self, _: Requests, sink: &mut &mut K, _: &Halted) -> Result<bool, GeneralProtection> {
        self.collect(*sink)
    }

    fn resume(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        self.go_on(halted)
    }

    /// Returns the number of units that were served: each has requested its own NMI.
    fn late_requests(&self) -> u8 {
        self.served
    }
}
