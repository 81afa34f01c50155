//! The performance-monitoring interrupt: who asked for it, and in which order it is served.

#[cfg(test)]
mod tests;

use crate::lapic::{Delivery, LocalApic, LvtPc};
use crate::msr::{GeneralProtection, GlobalStatus, GlobalStatusReset, Msr};
use core::cell::Cell;

/// Something that asks for PMIs: a running PT unit, a debug store, counters, IBS.
///
/// The calls come in this order, from the interrupt handler: they must not wait, allocate or format.
pub trait PmiSource {
    /// Where the processor notes its requests; nowhere, if it must look for itself.
    fn status(&self) -> Requests;

    /// The entry of the local vector table through which its interrupts come.
    fn route(&self) -> Route {
        Route::Counters
    }

    /// Stops it, so that it asks for no more. May be called when it is stopped.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn quiesce(&mut self) -> Result<(), GeneralProtection>;

    /// Whether it asks though none of its [`Requests`] need say so. Called while it runs.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(false)
    }

    /// Whether there may be a request beyond its [`Requests`], or one that was not served to its end: a few reads while it
    /// runs, and nothing is stopped. Where neither this nor the status nor the LVT entry says so, an
    /// interrupt is somebody else's.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.asks()
    }

    /// Serves it; `seen` are those of its requests that were noted, which are acknowledged already. Returns whether the PMI
    /// was, among others, its own. Called again until no source says so.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection>;

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn resume(&mut self) -> Result<(), GeneralProtection>;

    /// It is left stopped, and nobody asks it to go on before it is used the next time: what runs until then is lost.
    ///
    /// Called where the handler gives up, after all were told to stop, as far as they let themselves be stopped.
    fn abandon(&mut self, _why: Abandoned) {}

    /// How many requests this interrupt found whose NMIs may come late: each asked for one of its own, and it need not
    /// come before other code runs, so that no address tells it.
    fn late_requests(&self) -> u8 {
        0
    }
}

/// Requests for PMIs that the processor notes by itself: bits of one register, of which each source has its own.
///
/// Intel's processors note them in IA32_PERF_GLOBAL_STATUS. AMD's sources have none: they look into their own registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests(GlobalStatus);

impl Requests {
    /// None.
    pub const NONE: Self = Self(GlobalStatus::empty());

    /// Those of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0.union(other.0))
    }

    /// Those that are in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0.intersection(other.0))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl From<GlobalStatus> for Requests {
    fn from(status: GlobalStatus) -> Self {
        Self(status)
    }
}

/// Why a source was left stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// An access to a register raised #GP.
    Fault(GeneralProtection),
    /// Sources asked again each time they were served.
    Stuck,
}

/// Which entry of the local vector table delivers a source's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// LVT Performance Monitoring: [`LocalApic`].
    Counters,
    /// An extended entry of AMD's local APIC, which whoever started the source has programmed. The handler does not
    /// touch it: its mask is not set on delivery.
    Extended,
}

/// The PMI handler of one logical processor.
///
/// It belongs to the processor and not to a trace: while nothing is traced it is called too, without sources. A PMI that
/// was on its way when a trace stopped has masked the LVT entry, and nobody else unmasks it.
#[derive(Debug)]
pub struct Handler {
    delivery: Delivery,
    /// [`Handler::disarm`] has masked the entry, so a masked one says nothing.
    disarmed: Cell<bool>,
    /// The local APIC masks the LVT entry when it delivers.
    masks: bool,
    /// LVT Performance Monitoring delivers what it is for.
    entry: bool,
    echo: Option<Echo>,
    /// The last interrupt was not served to its end: the sources are stopped, and the entry may be masked because of it.
    unfinished: bool,
    /// NMIs that may still come from sources that are served or stopped.
    late: u8,
    counts: Counts,
}

/// Whether sources that were served go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoOn {
    Yes,
    No,
}

/// An NMI that may still come for a request that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Echo {
    /// The interrupted RIP, where it is known: the processor delivers a latched NMI before it executes anything there.
    at: Option<u64>,
    /// The registers have shown that one was latched.
    latched: bool,
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
    /// Times when sources asked again and again, in one interrupt or before the slot was given back: they were left stopped.
    pub stuck: u64,
}

/// What an interrupt was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmi {
    /// A source's. All go on.
    ///
    /// A processor keeps one NMI that waits: another's that waited together with this PMI has become one with it, and
    /// comes no more. A kernel that may miss none asks its other handlers now, too.
    Served,
    /// The local APIC's, but no source has anything to say: the echo of one that is served, or the PMI of a source that
    /// is gone. All go on, and the LVT entry is unmasked.
    Stray,
    /// Not a PMI: where PMIs are NMIs, one of another cause, which the kernel's other handlers are to look for. Nothing
    /// was stopped, and nothing was written, unless an earlier interrupt had not been served to its end.
    NotOurs,
    /// A PMI that is served as soon as the code that it interrupted is done with the [`Slot`](crate::slot::Slot).
    Later,
    /// Nothing tells whether it is a PMI: it may be an NMI of another cause. The kernel asks its other handlers too; if
    /// none of them knows it, it was a PMI. What it may have asked for is, or will be, served.
    Unknown,
    /// Sources ask again each time they are served: they are left stopped, and the LVT entry masked.
    Stuck,
}

impl Pmi {
    /// Whether an NMI may have another cause, so that the kernel is to ask its other handlers. Not told: whether another's
    /// has become one with a PMI, see [`Pmi::Served`].
    #[must_use]
    pub const fn may_be_anothers(self) -> bool {
        matches!(self, Self::NotOurs | Self::Unknown)
    }
}

impl Handler {
    /// For PMIs that are delivered so.
    #[must_use]
    pub const fn new(delivery: Delivery) -> Self {
        let counts = Counts { served: 0, unannounced: 0, stray: 0, stuck: 0 };
        Self {
            delivery,
            disarmed: Cell::new(false),
            masks: true,
            entry: true,
            echo: None,
            unfinished: false,
            late: 0,
            counts,
        }
    }

    /// For PMIs that are delivered so by a local APIC of AMD: it leaves the LVT entry as it is when it delivers one, so
    /// that a masked entry says nothing.
    ///
    /// Source: APM vol. 2, Advanced Programmable Interrupt Controller (APIC), "Performance-Monitor Counter Interrupts".
    #[must_use]
    pub const fn amd(delivery: Delivery) -> Self {
        let mut handler = Self::new(delivery);
        handler.masks = false;
        handler
    }

    /// For NMIs of AMD's that come through an extended entry alone, as those of IBS do: LVT Performance Monitoring is
    /// somebody else's, and is not written.
    #[must_use]
    pub const fn extended() -> Self {
        let mut handler = Self::amd(Delivery::Nmi);
        handler.entry = false;
        handler
    }

    /// The same with its entry masked.
    pub(crate) const fn unarmed(self) -> Self {
        Self { disarmed: Cell::new(true), ..self }
    }

    /// How its interrupts come.
    pub(crate) const fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Whether a masked entry says that a PMI was delivered.
    pub(crate) fn is_told_by_the_mask(&self) -> bool {
        self.masks && !self.disarmed.get()
    }

    /// Whether the entry is unmasked but for a PMI that is to be served.
    pub(crate) fn is_armed(&self) -> bool {
        !self.disarmed.get()
    }

    /// Whether the entry is unmasked is known to somebody else.
    pub(crate) fn set_armed(&self, armed: bool) {
        self.disarmed.set(!armed);
    }

    /// A source was stopped while up to `nmis` of its NMIs may still be on their way. That number of NMIs that no source
    /// has asked for, at the most four, will be [`Pmi::Unknown`].
    pub fn expect_late(&mut self, nmis: u8) {
        self.late = self.late.saturating_add(nmis).min(LATE);
    }

    /// Enough time has passed: no late NMI comes any more.
    pub fn forget_late(&mut self) {
        self.late = 0;
    }

    /// What it met.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Programs the LVT entry: from here on PMIs are delivered. [`Slot`](crate::slot::Slot) alone does so, before
    /// anything asks for one.
    ///
    /// # Errors
    ///
    /// The local APIC raised #GP.
    pub(crate) fn arm(&self, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        self.disarmed.set(false);
        if self.entry { set(apic, self.entry()) } else { Ok(()) }
    }

    /// Masks the LVT entry: until [`Handler::arm`] it stays masked, also when a source is served.
    ///
    /// # Errors
    ///
    /// The local APIC raised #GP.
    pub(crate) fn disarm(&self, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        self.disarmed.set(true);
        if self.entry { set(apic, self.entry()) } else { Ok(()) }
    }

    /// Serves an interrupt that may be a PMI, and that interrupted the code at RIP `interrupted`.
    ///
    /// First it is decided whether anybody asks: the LVT entry is masked by a PMI, a bit of a source is set in
    /// IA32_PERF_GLOBAL_STATUS, or [`PmiSource::may_ask`] says so. If not, nothing is stopped, and the interrupt is an
    /// echo or another late one, or not a PMI. A request that shows only when its source is stopped is not lost: the
    /// entry is unmasked, so it has an interrupt of its own.
    ///
    /// Otherwise the order is: all sources are stopped; IA32_PERF_GLOBAL_STATUS is read and what was seen acknowledged; the sources are
    /// served, and this is repeated until none asks; they go on; the LVT entry is unmasked, unless all sources ask
    /// through another one ([`PmiSource::route`]): then it is somebody else's. A request that came
    /// between the last two steps was dropped by the masked entry, so the status is read once more. Last, counters and
    /// LBRs that this PMI froze are released, if nobody else has a request: frozen, they make none that the masked
    /// entry could drop.
    ///
    /// While an NMI is handled another one may be latched, and its request be served with the first. Where the registers
    /// have shown that, the next one at the same RIP is [`Pmi::Stray`]: nothing ran between them. Where they have not, it
    /// may be such an echo (the PMI was latched while another's NMI was on its way to the handler) or another's NMI, and
    /// is [`Pmi::Unknown`]. Where code waits in one place, as in an idle loop, [`Handler::forget_echo`] says that something
    /// did run.
    ///
    /// # Errors
    ///
    /// An access raised #GP. The sources are stopped as far as they let themselves be, and told so
    /// ([`PmiSource::abandon`]); the LVT entry is left as it was: masked, if this was a PMI. The next call serves them
    /// again, whatever interrupt it is for.
    pub fn handle_at(
        &mut self,
        interrupted: u64,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.interrupt(Some(interrupted), GoOn::Yes, msr, apic, sources)
    }

    /// As [`Handler::handle_at`] for a kernel that does not say where the interrupt came.
    ///
    /// The next interrupt is then an echo only where the registers show that one may be latched: the entry was not
    /// masked when this one came, or a request came after it was unmasked. An entry of AMD's local APIC is never masked
    /// by a delivery and shows nothing: there only [`PmiSource::late_requests`] count. The PMI that was latched while
    /// somebody else's NMI was on its way to the handler is not noticed, and its echo is [`Pmi::NotOurs`].
    ///
    /// # Errors
    ///
    /// As [`Handler::handle_at`].
    pub fn handle(
        &mut self,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.interrupt(None, GoOn::Yes, msr, apic, sources)
    }

    /// As [`Handler::handle`], but if a source asks, all are left stopped: they have asked too often.
    ///
    /// # Errors
    ///
    /// As [`Handler::handle_at`].
    pub(crate) fn give_up(
        &mut self,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.interrupt(None, GoOn::No, msr, apic, sources)
    }

    /// Code ran since the last interrupt, even if the next one comes at the same RIP: no echo is to come any more.
    pub fn forget_echo(&mut self) {
        self.echo = None;
    }

    fn interrupt(
        &mut self,
        interrupted: Option<u64>,
        go_on: GoOn,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        let pmi = self.serve_all(interrupted, go_on, msr, apic, sources);
        let why = match pmi {
            Err(fault) => Some(Abandoned::Fault(fault)),
            Ok(Pmi::Stuck) => Some(Abandoned::Stuck),
            Ok(_) => None,
        };
        if let Some(why) = why {
            self.unfinished = true;
            abandon(sources, why);
        }
        let requests = sources.iter().fold(0, |all: u8, source| all.saturating_add(source.late_requests()));
        // One of them is the interrupt that is handled. Where an access faulted another call may handle the rest of it.
        self.expect_late(requests.saturating_sub(u8::from(pmi.is_ok())));
        pmi
    }

    fn serve_all(
        &mut self,
        interrupted: Option<u64>,
        go_on: GoOn,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        let masked = apic.lvt_pc()?.is_masked();
        let delivered = masked && self.masks && !self.disarmed.get();
        let echo = self.echo.take().filter(|echo| echo.at == interrupted);
        let echoed = echo.is_some();
        // Nobody else has the vector of a fixed interrupt.
        let claimed = delivered || echoed || self.late > 0 || self.delivery != Delivery::Nmi;
        // Where a delivery masks the entry, one that is not masked shows an NMI of another cause, and a PMI may be latched.
        let mut latched = self.masks && !masked;
        let counters = self.serves_entry(sources);
        let mut set_entry = |entry| if counters { set(apic, entry) } else { Ok(()) };
        let ours = sources.iter().fold(Requests::NONE, |all, source| all.union(source.status()));
        let unfinished = core::mem::take(&mut self.unfinished);
        if !delivered && !unfinished && !may_ask(msr, ours, sources)? {
            if !claimed {
                return Ok(Pmi::NotOurs);
            }
            let pmi = self.stray(echoed);
            let shown = self.delivery != Delivery::Nmi || echo.is_some_and(|echo| echo.latched);
            // An address alone may be that of another's NMI right after a PMI, and a late one may be anybody's.
            return Ok(if shown { pmi } else { Pmi::Unknown });
        }
        let mut rounds = 0;
        let mut status = GlobalStatus::empty();
        for pass in 0.. {
            let settled = serve(msr, ours, sources, &mut rounds)?;
            let too_often = rounds > 0 && go_on == GoOn::No;
            if !settled || too_often || pass >= ROUNDS {
                self.counts.stuck += 1;
                set_entry(LvtPc::new(self.delivery).masked())?;
                return Ok(Pmi::Stuck);
            }
            resume(sources)?;
            // What was left may have masked the entry; where nothing was, an interrupt that is nobody's writes nothing.
            if rounds == 0 && !claimed && !unfinished {
                return Ok(Pmi::NotOurs);
            }
            set_entry(self.entry())?;
            status = read_status(msr, ours)?;
            if status.intersection(ours.0).is_empty() && !any_asks(sources)? {
                break;
            }
            latched = true;
            set_entry(LvtPc::new(self.delivery).masked())?;
        }
        if rounds > 0 {
            release(msr, status)?;
            self.echo = (interrupted.is_some() || latched).then_some(Echo { at: interrupted, latched });
        }
        if rounds == 0 && !claimed {
            return Ok(Pmi::NotOurs);
        }
        if rounds == 0 {
            let pmi = self.stray(echoed || delivered);
            // What was left has masked the entry, whatever this one is.
            return Ok(if unfinished && !echoed { Pmi::Unknown } else { pmi });
        }
        self.counts.served += 1;
        self.counts.unannounced += u64::from(rounds - 1);
        Ok(Pmi::Served)
    }

    /// An interrupt that is claimed though nobody asks; `known` by its address or by the entry, so that no late one is
    /// spent on it.
    fn stray(&mut self, known: bool) -> Pmi {
        self.late = self.late.saturating_sub(u8::from(!known));
        self.counts.stray += 1;
        Pmi::Stray
    }

    /// The LVT entry while no PMI is served.
    fn entry(&self) -> LvtPc {
        let entry = LvtPc::new(self.delivery);
        if self.disarmed.get() { entry.masked() } else { entry }
    }

    /// Whether LVT Performance Monitoring is this handler's to mask and unmask: some source asks through it, or there is
    /// none and one that is gone may have left it masked, by its PMI or because it was given up.
    fn serves_entry(&self, sources: &[&mut dyn PmiSource]) -> bool {
        let gone = sources.is_empty();
        self.entry && (gone || sources.iter().any(|source| source.route() == Route::Counters))
    }
}

/// So many late NMIs are waited for at the most. Some may have become one, and then they do not come: whoever else has
/// NMIs should not lose more of them.
const LATE: u8 = 4;

/// How often sources are served in one interrupt.
pub(crate) const ROUNDS: u32 = 16;

/// Stops all sources, and serves them until none asks; `false` where there is no end to it. Counts the rounds in
/// which one asked.
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
            // SAFETY: clears bits of sources that are stopped; no memory is written.
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

/// Writes the LVT entry.
fn set(apic: &mut impl LocalApic, entry: LvtPc) -> Result<(), GeneralProtection> {
    // SAFETY: an entry of `LvtPc::new`: an NMI, or a vector that is no exception's.
    unsafe { apic.set_lvt_pc(entry) }
}

/// Reads IA32_PERF_GLOBAL_STATUS where a source has a bit in it: processors without it have none.
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

/// Whether anybody may have asked, as far as it shows while all run.
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

/// Unfreezes counters and LBRs that IA32_DEBUGCTL lets a PMI freeze, unless the PMI is also that of somebody who is not
/// served yet: it is theirs to look at what stands still, and to release it.
///
/// The bits are there from version 4 on. Before, a PMI clears enable bits instead, and the one who set them sets them
/// again. Source: SDM vol. 3, Debug, Branch Profile, TSC, "Freezing LBR and Performance Counters on PMI".
fn release(msr: &mut impl Msr, status: GlobalStatus) -> Result<(), GeneralProtection> {
    let frozen = GlobalStatus::CTR_FRZ.union(GlobalStatus::LBR_FRZ);
    let no_request = frozen.union(GlobalStatus::ASCI).union(GlobalStatus::COND_CHGD);
    let mine = status.intersection(frozen);
    if mine.is_empty() || !status.difference(no_request).is_empty() {
        return Ok(());
    }
    // SAFETY: lets counters and LBRs go on that their owner has enabled; no memory is written.
    unsafe { msr.write(GlobalStatusReset(mine)) }
}

/// Leaves all stopped.
fn abandon(sources: &mut [&mut dyn PmiSource], why: Abandoned) {
    // What can be stopped is; the first fault is reported.
    let _ = quiesce(sources);
    for source in sources.iter_mut() {
        source.abandon(why);
    }
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
