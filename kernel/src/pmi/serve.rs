//! The service of an interrupt: finds the requests, then stops, serves and resumes the sources in order.
//!
//! A sink that decodes is called from here, on a stack that may be small: code needed before and after that call is in
//! separate functions.

use super::{AfterService, Handler, Pmi, PmiSource, ROUNDS, RepeatedNmi, Requests, set};
use crate::lapic::{Delivery, LocalApic, LvtPc};
use crate::msr::{GeneralProtection, GlobalStatus, GlobalStatusReset, Msr, TypedMsr};

/// The evidence of an interrupt, before and after it is served.
#[derive(Debug)]
struct SeenInterrupt {
    /// True if the mask shows that the local APIC has delivered a PMI.
    delivered: bool,
    /// The expected NMI at this address, which the interrupt may be.
    repeated: Option<RepeatedNmi>,
    /// True if the interrupt belongs to this handler in any case.
    claimed: bool,
    /// True if another PMI may be latched.
    latched: bool,
    /// True if the interrupt before was not served completely.
    unfinished: bool,
    /// True if the handler owns LVT Performance Monitoring.
    entry: bool,
    /// All requests that the status may show.
    ours: Requests,
    /// The number of rounds in which a source had a request.
    rounds: u32,
    /// The status after the sources were resumed.
    status: GlobalStatus,
}

impl Handler {
    /// Serves an interrupt, as [`Handler::handle_at`] describes; after a fault the sources stay as they are.
    pub(super) fn serve_all(
        &mut self,
        interrupted: Option<u64>,
        after: AfterService,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        let mut seen = self.look(interrupted, apic, sources)?;
        if !seen.delivered && !seen.unfinished && !may_ask(msr, seen.ours, sources)? {
            return Ok(self.without_request(&seen));
        }
        // A verdict here ends the service early.
        match self.serve_rounds(after, &mut seen, msr, apic, sources)? {
            Some(pmi) => Ok(pmi),
            None => self.conclude(interrupted, &seen, msr),
        }
    }

    /// Reads the evidence that the interrupt is a PMI, and clears the expectations for this interrupt.
    fn look(
        &mut self,
        interrupted: Option<u64>,
        apic: &mut impl LocalApic,
        sources: &[&mut dyn PmiSource],
    ) -> Result<SeenInterrupt, GeneralProtection> {
        let masked = apic.lvt_pc()?.is_masked();
        let delivered = masked && self.masks && !self.disarmed.get();
        let repeated = self.repeated.take().filter(|nmi| nmi.at == interrupted);
        Ok(SeenInterrupt {
            delivered,
            repeated,
            // Nothing else uses the vector of a fixed interrupt.
            claimed: delivered || repeated.is_some() || self.late > 0 || self.delivery != Delivery::Nmi,
            // If a delivery masks the entry, an unmasked entry means an NMI of another cause, and a PMI may be latched
            // after it.
            latched: self.masks && !masked,
            // Set until the service has ended, because a source may unwind.
            unfinished: core::mem::replace(&mut self.unfinished, true),
            entry: self.serves_entry(sources),
            ours: sources.iter().fold(Requests::NONE, |all, source| all.union(source.status())),
            rounds: 0,
            status: GlobalStatus::empty(),
        })
    }

    /// Returns the verdict on an interrupt without any request.
    fn without_request(&mut self, seen: &SeenInterrupt) -> Pmi {
        if !seen.claimed {
            return Pmi::NotOurs;
        }
        let pmi = self.stray(seen.repeated.is_some());
        let shown = self.delivery != Delivery::Nmi || seen.repeated.is_some_and(|nmi| nmi.latched);
        // The NMI at this address may be one of another cause right after a PMI, and a late NMI may come from
        // anywhere.
        if shown { pmi } else { Pmi::Unknown }
    }

    /// Serves the sources until none has a request and the entry is unmasked. Returns a verdict if that does not end.
    fn serve_rounds(
        &mut self,
        after: AfterService,
        seen: &mut SeenInterrupt,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Option<Pmi>, GeneralProtection> {
        for pass in 0.. {
            let settled = serve(msr, seen.ours, sources, &mut seen.rounds)?;
            let too_often = seen.rounds > 0 && after == AfterService::StayStopped;
            if !settled || too_often || pass >= ROUNDS {
                self.counts.stuck += 1;
                return self.mask(seen, apic).map(|()| Some(Pmi::Stuck));
            }
            match self.let_go_on(seen, msr, apic, sources) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    /// Resumes the sources and unmasks the entry, which dropped any request that came meanwhile. Returns whether there
    /// is a new request: then the entry is masked again.
    fn let_go_on(
        &mut self,
        seen: &mut SeenInterrupt,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<bool, GeneralProtection> {
        resume(sources)?;
        // An unfinished interrupt may have masked the entry. Otherwise an unclaimed interrupt writes nothing.
        if seen.rounds == 0 && !seen.claimed && !seen.unfinished {
            return Ok(false);
        }
        if seen.entry {
            set(apic, self.entry())?;
        }
        seen.status = read_status(msr, seen.ours)?;
        if seen.status.intersection(seen.ours.0).is_empty() && !any_asks(sources)? {
            return Ok(false);
        }
        seen.latched = true;
        self.mask(seen, apic).map(|()| true)
    }

    /// Masks the entry, if it is this handler's.
    fn mask(&self, seen: &SeenInterrupt, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        if seen.entry { set(apic, LvtPc::new(self.delivery).masked()) } else { Ok(()) }
    }

    /// Counts an interrupt whose requests were served, notes the NMI that may repeat it, and returns the verdict.
    fn conclude(
        &mut self,
        interrupted: Option<u64>,
        seen: &SeenInterrupt,
        msr: &mut impl Msr,
    ) -> Result<Pmi, GeneralProtection> {
        let SeenInterrupt { latched, rounds, .. } = *seen;
        if rounds > 0 {
            release(msr, seen.status)?;
            self.repeated =
                (interrupted.is_some() || latched).then_some(RepeatedNmi { at: interrupted, latched });
        }
        if rounds == 0 && !seen.claimed {
            return Ok(Pmi::NotOurs);
        }
        if rounds == 0 {
            let is_repeated = seen.repeated.is_some();
            let pmi = self.stray(is_repeated || seen.delivered);
            // The unfinished interrupt has masked the entry, so the mask is no evidence for this one.
            return Ok(if seen.unfinished && !is_repeated { Pmi::Unknown } else { pmi });
        }
        self.counts.served += 1;
        self.counts.unannounced += u64::from(rounds - 1);
        Ok(Pmi::Served)
    }
}

/// Stops all sources and serves them until none has a request; returns `false` if that does not end. Adds the number of
/// rounds in which some source had a request to `rounds`.
fn serve(
    msr: &mut impl Msr,
    ours: Requests,
    sources: &mut [&mut dyn PmiSource],
    rounds: &mut u32,
) -> Result<bool, GeneralProtection> {
    quiesce(sources)?;
    while *rounds < ROUNDS {
        let seen = Requests(read_status(msr, ours)?).intersection(ours);
        if !seen.is_empty() {
            // SAFETY: this clears bits of sources that are stopped; no memory is written.
            unsafe { msr.write(GlobalStatusReset(seen.0)) }?;
        }
        let mut asked = false;
        for source in sources.iter_mut() {
            asked |= source.service(seen.intersection(source.status()))?;
        }
        if !asked {
            return Ok(true);
        }
        *rounds += 1;
    }
    Ok(false)
}

/// Reads IA32_PERF_GLOBAL_STATUS if a source has a bit in it: on processors without this register, no source has one.
fn read_status(msr: &mut impl Msr, ours: Requests) -> Result<GlobalStatus, GeneralProtection> {
    match ours.is_empty() {
        true => Ok(GlobalStatus::empty()),
        false => msr.read(),
    }
}

fn any_asks(sources: &mut [&mut dyn PmiSource]) -> Result<bool, GeneralProtection> {
    for source in sources.iter_mut() {
        if source.asks()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether there may be a request, as far as is visible while all sources run.
fn may_ask(
    msr: &mut impl Msr,
    ours: Requests,
    sources: &mut [&mut dyn PmiSource],
) -> Result<bool, GeneralProtection> {
    if read_status(msr, ours)?.intersects(ours.0) {
        return Ok(true);
    }
    for source in sources.iter_mut() {
        if source.may_ask()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Unfreezes counters and LBRs that a PMI froze because IA32_DEBUGCTL says so. Does nothing if the PMI also belongs to
/// an owner that is not served yet: that owner must inspect the frozen state and release it.
///
/// The bits exist from architectural performance monitoring version 4 on. Before that, a PMI clears enable bits
/// instead, and their owner sets them again. Source: SDM vol. 3, Debug, Branch Profile, TSC, "Freezing LBR and
/// Performance Counters on PMI".
fn release(msr: &mut impl Msr, status: GlobalStatus) -> Result<(), GeneralProtection> {
    let frozen = GlobalStatus::CTR_FRZ.union(GlobalStatus::LBR_FRZ);
    let no_request = frozen.union(GlobalStatus::ASCI).union(GlobalStatus::COND_CHGD);
    let mine = status.intersection(frozen);
    if mine.is_empty() || !status.difference(no_request).is_empty() {
        return Ok(());
    }
    // SAFETY: this resumes counters and LBRs that their owner has enabled; no memory is written.
    unsafe { msr.write(GlobalStatusReset(mine)) }
}

/// Stops all sources, also those after one that cannot be stopped.
pub(super) fn quiesce(sources: &mut [&mut dyn PmiSource]) -> Result<(), GeneralProtection> {
    let mut result = Ok(());
    for source in sources.iter_mut() {
        result = source.quiesce().and(result);
    }
    result
}

fn resume(sources: &mut [&mut dyn PmiSource]) -> Result<(), GeneralProtection> {
    for source in sources.iter_mut() {
        if let Err(fault) = source.resume() {
            // Only this fault is reported; sources that can be stopped are stopped.
            let _ = quiesce(sources);
            return Err(fault);
        }
    }
    Ok(())
}
