//! The performance-monitoring interrupt: who asked for it, and in which order it is served.

#[cfg(test)]
mod tests;

use crate::lapic::{Delivery, LocalApic, LvtPc};
use crate::msr::{GeneralProtection, GlobalStatus, GlobalStatusReset, Msr};

/// Something that asks for PMIs: a running PT unit, and in time BTS, counters, IBS.
///
/// The calls come in this order, from the interrupt handler: they must not wait, allocate or format.
pub trait PmiSource {
    /// Its bits in IA32_PERF_GLOBAL_STATUS; none where it must look for itself.
    fn status(&self) -> GlobalStatus;

    /// Stops it, so that it asks for no more. May be called when it is stopped.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn quiesce(&mut self) -> Result<(), GeneralProtection>;

    /// Serves it; `seen` are those of its bits that were set, which are acknowledged already. Returns whether the PMI
    /// was, among others, its own. Called again until no source says so.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn service(&mut self, seen: GlobalStatus) -> Result<bool, GeneralProtection>;

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn resume(&mut self) -> Result<(), GeneralProtection>;
}

/// The PMI handler of one logical processor.
#[derive(Debug)]
pub struct Handler {
    delivery: Delivery,
    /// A PMI that was served just now may be delivered once more.
    echo: bool,
    counts: Counts,
}

/// What the handler met since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Interrupts that a source had asked for.
    pub served: u64,
    /// Requests found without an interrupt of their own: while another one was served, or dropped because the LVT entry
    /// was masked.
    pub unannounced: u64,
    /// Interrupts that no source had asked for, or that were served before they came.
    pub stray: u64,
    /// Times when sources asked again and again: they were left stopped.
    pub stuck: u64,
}

/// What an interrupt was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmi {
    /// A source's. All go on.
    Served,
    /// The local APIC's, but no source has anything to say: the echo of one that is served, or of a source that is
    /// gone. All go on.
    Stray,
    /// Not a PMI: where PMIs are NMIs, one of another cause.
    NotOurs,
    /// Sources ask again each time they are served: they are left stopped, and the LVT entry masked.
    Stuck,
}

impl Handler {
    /// For PMIs that are delivered so.
    #[must_use]
    pub const fn new(delivery: Delivery) -> Self {
        Self { delivery, echo: false, counts: Counts { served: 0, unannounced: 0, stray: 0, stuck: 0 } }
    }

    /// What it met.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Programs the LVT entry: from here on PMIs are delivered.
    ///
    /// # Errors
    ///
    /// The local APIC raised #GP.
    pub fn arm(&self, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        apic.set_lvt_pc(LvtPc::new(self.delivery))
    }

    /// Masks the LVT entry.
    ///
    /// # Errors
    ///
    /// The local APIC raised #GP.
    pub fn disarm(&self, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        apic.set_lvt_pc(LvtPc::new(self.delivery).masked())
    }

    /// Serves an interrupt that may be a PMI.
    ///
    /// Order: all sources are stopped; IA32_PERF_GLOBAL_STATUS is read and what was seen acknowledged; the sources are
    /// served, and this is repeated until none asks; they go on; the LVT entry is unmasked last. A request that came
    /// between the last two steps was dropped by the masked entry, so the status is read once more.
    ///
    /// # Errors
    ///
    /// An access raised #GP. The sources are stopped as far as they let themselves be, and the LVT entry is left as it
    /// was: masked, if this was a PMI.
    pub fn handle(
        &mut self,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        let delivered = apic.lvt_pc()?.is_masked();
        let ours = sources.iter().fold(GlobalStatus::empty(), |all, source| all.union(source.status()));
        let mut rounds = 0;
        for pass in 0.. {
            let settled = serve(msr, ours, sources, &mut rounds)?;
            if !settled || pass >= ROUNDS {
                self.counts.stuck += 1;
                apic.set_lvt_pc(LvtPc::new(self.delivery).masked())?;
                return Ok(Pmi::Stuck);
            }
            resume(sources)?;
            if rounds == 0 && !delivered && !self.echo {
                return Ok(Pmi::NotOurs);
            }
            apic.set_lvt_pc(LvtPc::new(self.delivery))?;
            if msr.read::<GlobalStatus>()?.intersection(ours).is_empty() {
                break;
            }
            apic.set_lvt_pc(LvtPc::new(self.delivery).masked())?;
        }
        self.echo = rounds > 0;
        if rounds == 0 {
            self.counts.stray += 1;
            return Ok(Pmi::Stray);
        }
        self.counts.served += 1;
        self.counts.unannounced += u64::from(rounds - 1);
        Ok(Pmi::Served)
    }
}

/// How often sources are served in one interrupt.
const ROUNDS: u32 = 16;

/// Stops all sources, and serves them until none asks; `false` where there is no end to it. Counts the rounds in
/// which one asked.
fn serve(
    msr: &mut impl Msr,
    ours: GlobalStatus,
    sources: &mut [&mut dyn PmiSource],
    rounds: &mut u32,
) -> Result<bool, GeneralProtection> {
    quiesce(sources)?;
    while *rounds < ROUNDS {
        let seen = msr.read::<GlobalStatus>()?.intersection(ours);
        if !seen.is_empty() {
            // SAFETY: clears bits of sources that are stopped; no memory is written.
            unsafe { msr.write(GlobalStatusReset(seen)) }?;
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

/// Stops all, also those behind one that does not let itself be stopped.
fn quiesce(sources: &mut [&mut dyn PmiSource]) -> Result<(), GeneralProtection> {
    let mut result = Ok(());
    for source in sources.iter_mut() {
        result = source.quiesce().and(result);
    }
    result
}

fn resume(sources: &mut [&mut dyn PmiSource]) -> Result<(), GeneralProtection> {
    for source in sources.iter_mut() {
        if let Err(fault) = source.resume() {
            // One fault is reported; what can be stopped is.
            let _ = quiesce(sources);
            return Err(fault);
        }
    }
    Ok(())
}
