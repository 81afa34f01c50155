//! The handler of the performance-monitoring interrupt (PMI): it finds out which unit requested the interrupt, and
//! serves all units in the required order.
//!
//! ```
//! use pugmark_kernel::lapic::{Delivery, LocalApic};
//! use pugmark_kernel::msr::{GeneralProtection, Msr};
//! use pugmark_kernel::pmi::{Handler, Pmi, PmiSource};
//!
//! /// The kernel's NMI handler: true if the NMI was the tracing units'.
//! fn nmi(
//!     handler: &mut Handler,
//!     msr: &mut impl Msr,
//!     apic: &mut impl LocalApic,
//!     source: &mut dyn PmiSource,
//! ) -> Result<bool, GeneralProtection> {
//!     Ok(handler.handle(msr, apic, &mut [source])? != Pmi::NotOurs)
//! }
//!
//! assert_eq!(Handler::new(Delivery::Nmi).counts().served, 0);
//! ```

mod serve;
mod source;
#[cfg(test)]
mod tests;

pub use source::{Abandoned, PmiSource, Requests, Route};

use crate::lapic::{Delivery, LocalApic, LvtPc};
use crate::msr::{GeneralProtection, Msr};
use core::cell::Cell;
use serve::quiesce;

/// The bytes of stack that an interrupt handler needs to call [`Slot::interrupt`](crate::slot::Slot::interrupt) or
/// [`Handler::handle_at`]. The kernel's own code comes on top: the frame that the processor pushes, the registers that
/// the stub saves, the kernel's sink.
///
/// The value is a bound for every unit and every sink of this crate. A test on a painted stack checks it: it serves
/// interrupts, and decodes the decoder's scenarios and damaged copies of them to packets, answers, instructions,
/// blocks, edges and spans, in optimised code and in unoptimised code (assumed here if debug assertions are on), which
/// has a stack slot for each temporary value. A kernel with less than 16 KiB compiles the two crates with
/// `opt-level = 1`, by `[profile.dev.package.NAME]`: then they need about as much as optimised code.
pub const HANDLER_STACK: usize = if cfg!(debug_assertions) { 16 << 10 } else { 8 << 10 };

/// The PMI handler of one logical processor.
///
/// The handler belongs to the processor and not to a trace: the kernel also calls it, without sources, while nothing is
/// traced. A PMI in flight when a trace stopped has masked the LVT entry, and only the handler unmasks it.
#[derive(Debug)]
pub struct Handler {
    delivery: Delivery,
    /// True if [`Handler::disarm`] has masked the entry, so that the mask does not show a PMI.
    disarmed: Cell<bool>,
    /// True if the local APIC masks the LVT entry when it delivers a PMI.
    masks: bool,
    /// True if the PMIs come through LVT Performance Monitoring, so that the handler writes this entry.
    entry: bool,
    repeated: Option<RepeatedNmi>,
    /// True if the last interrupt was not served completely: the sources are stopped, and the entry may still be
    /// masked.
    unfinished: bool,
    /// The number of NMIs that may still arrive from sources that are served or stopped.
    late: u8,
    counts: Counts,
}

/// The fate of sources after service: resumed or left stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterService {
    Resume,
    StayStopped,
}

/// An NMI that may still arrive for a request that is already served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RepeatedNmi {
    /// The interrupted RIP, if known: the processor delivers a latched NMI before it executes anything there.
    at: Option<u64>,
    /// True if the registers have shown that an NMI was latched.
    latched: bool,
}

/// The handler's counts since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Interrupts that a source had requested.
    pub served: u64,
    /// Requests found without an interrupt of their own: they came while another one was served, or their interrupt was
    /// dropped because the LVT entry was masked.
    pub unannounced: u64,
    /// Interrupts that no source had requested, or whose request was served before they arrived.
    pub stray: u64,
    /// The number of times that sources had new requests again and again, in one interrupt or before the slot was free:
    /// they were left stopped.
    pub stuck: u64,
}

/// The handler's verdict on an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmi {
    /// A PMI of a source. All sources were resumed.
    ///
    /// A processor keeps only one pending NMI: an NMI of another cause that was pending together with this PMI has
    /// merged with it and will not arrive. A kernel that must not miss an NMI asks its other handlers now, too.
    Served,
    /// The local APIC's interrupt without any request: the repeated NMI of a PMI that is already served, or the PMI of
    /// a source that is gone. All sources were resumed, and the LVT entry is unmasked.
    Stray,
    /// Not a PMI. If PMIs are delivered as NMIs, this is an NMI of another cause, and the kernel must ask its other
    /// handlers. Nothing was stopped or written, unless an earlier interrupt had not been served completely.
    NotOurs,
    /// A PMI that is served as soon as the interrupted code releases the [`Slot`](crate::slot::Slot).
    Later,
    /// Nothing shows whether this is a PMI or an NMI of another cause. The kernel asks its other handlers too; if none
    /// of them claims it, it was a PMI. Any request that this NMI announced is, or will be, served.
    Unknown,
    /// Sources have new requests each time they are served: they are left stopped, and the LVT entry is masked.
    Stuck,
}

impl Pmi {
    /// Returns whether the NMI may have another cause, so that the kernel must ask its other handlers. This does not
    /// cover an NMI that has merged with a PMI: see [`Pmi::Served`].
    #[must_use]
    pub const fn may_be_anothers(self) -> bool {
        matches!(self, Self::NotOurs | Self::Unknown)
    }
}

impl Handler {
    /// Creates a handler of PMIs with this delivery.
    #[must_use]
    pub const fn new(delivery: Delivery) -> Self {
        let counts = Counts { served: 0, unannounced: 0, stray: 0, stuck: 0 };
        Self {
            delivery,
            disarmed: Cell::new(false),
            masks: true,
            entry: true,
            repeated: None,
            unfinished: false,
            late: 0,
            counts,
        }
    }

    /// Creates a handler of PMIs that AMD's local APIC delivers. That local APIC does not mask the LVT entry when it
    /// delivers a PMI, so a masked entry does not show one.
    ///
    /// Source: APM vol. 2, Advanced Programmable Interrupt Controller (APIC), "Performance-Monitor Counter Interrupts".
    #[must_use]
    pub const fn amd(delivery: Delivery) -> Self {
        let mut handler = Self::new(delivery);
        handler.masks = false;
        handler
    }

    /// Creates a handler of NMIs that AMD's processors deliver only through an extended entry, such as those of IBS.
    /// LVT Performance Monitoring has another owner, and the handler does not write it.
    #[must_use]
    pub const fn extended() -> Self {
        let mut handler = Self::amd(Delivery::Nmi);
        handler.entry = false;
        handler
    }

    /// Returns the same handler, with its entry known as masked.
    pub(crate) const fn unarmed(self) -> Self {
        Self { disarmed: Cell::new(true), ..self }
    }

    /// Returns the delivery of the handler's interrupts.
    pub(crate) const fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Returns whether a masked entry shows that a PMI was delivered.
    pub(crate) fn is_shown_by_the_mask(&self) -> bool {
        self.masks && !self.disarmed.get()
    }

    /// Returns whether the entry is unmasked, except while a PMI waits to be served.
    pub(crate) fn is_armed(&self) -> bool {
        !self.disarmed.get()
    }

    /// Sets whether the entry is unmasked; the caller keeps track of that.
    pub(crate) fn set_armed(&self, armed: bool) {
        self.disarmed.set(!armed);
    }

    /// Expects up to `nmis` NMIs from a source that was stopped while they may still be in flight. This number of NMIs
    /// that no source has requested, at most four, will be [`Pmi::Unknown`].
    pub(crate) fn expect_late(&mut self, nmis: u8) {
        self.late = self.late.saturating_add(nmis).min(LATE);
    }

    /// Expects the NMI of a PMI that may have been delivered just before the LVT entry was masked.
    pub(crate) fn expect_latched(&mut self) {
        if self.delivery == Delivery::Nmi && self.entry {
            self.late = self.late.max(1);
        }
    }

    /// Takes over the late NMIs that its predecessor expected.
    pub(crate) fn inherit_late(&mut self, before: &Self) {
        self.late = self.late.max(before.late);
    }

    /// Expects no more late NMIs, because enough time has passed.
    pub fn forget_late(&mut self) {
        self.late = 0;
    }

    /// Returns the handler's counts.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Programs the LVT entry: from now on PMIs are delivered. Only [`Slot`](crate::slot::Slot) does this, before any
    /// unit can request a PMI.
    ///
    /// # Errors
    ///
    /// The local APIC raised #GP.
    pub(crate) fn arm(&self, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        self.disarmed.set(false);
        if self.entry { set(apic, self.entry()) } else { Ok(()) }
    }

    /// Masks the LVT entry. It stays masked until [`Handler::arm`], also after a source was served.
    ///
    /// # Errors
    ///
    /// The local APIC raised #GP.
    pub(crate) fn disarm(&self, apic: &mut impl LocalApic) -> Result<(), GeneralProtection> {
        self.disarmed.set(true);
        if self.entry { set(apic, self.entry()) } else { Ok(()) }
    }

    /// Serves an interrupt that may be a PMI and that interrupted the code at the address `interrupted`.
    ///
    /// First the handler decides whether there may be a request: a PMI has masked the LVT entry, a bit of a source is
    /// set in IA32_PERF_GLOBAL_STATUS, or [`PmiSource::may_ask`] returns true. If there is none, nothing is stopped,
    /// and the interrupt is a repeated NMI, another late NMI, or not a PMI. A request that is visible only when its
    /// source is stopped is not lost: the entry is unmasked, so the request has its own interrupt.
    ///
    /// If there may be a request, the order is:
    ///
    /// 1. Stop all sources.
    /// 2. Read IA32_PERF_GLOBAL_STATUS and acknowledge the bits that were set. Serve the sources. Repeat until no
    ///    source has a request.
    /// 3. Resume the sources.
    /// 4. Unmask the LVT entry, unless all sources use another entry ([`PmiSource::route`]): then LVT Performance
    ///    Monitoring has another owner.
    /// 5. Read the status once more: the masked entry dropped any request that came between the last two steps.
    /// 6. Release counters and LBRs that this PMI froze, if no other owner has a request. This is last because, while
    ///    frozen, they make no request that the masked entry could drop.
    ///
    /// While an NMI is handled, another one may be latched, and its request may be served with the first one. If the
    /// registers have shown that one is latched, the next NMI at the same RIP repeats it, [`Pmi::Stray`]: nothing ran
    /// between the two. If the registers have not shown it, the next NMI at the same RIP is [`Pmi::Unknown`]: it is
    /// either such a repeated NMI (the PMI was latched while an NMI of another cause was in flight to the handler) or
    /// an NMI of another cause. If code waits in one place, as in an idle loop, [`Handler::forget_repeated_nmi`] tells
    /// the handler that code did run.
    ///
    /// # Errors
    ///
    /// An access raised #GP. The sources that can be stopped are stopped, and this is reported to all of them
    /// ([`PmiSource::abandon`]). The LVT entry is left as it was: masked, if this was a PMI. The next call serves them
    /// again, whichever interrupt it handles.
    pub fn handle_at(
        &mut self,
        interrupted: u64,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.interrupt(Some(interrupted), AfterService::Resume, msr, apic, sources)
    }

    /// Serves an interrupt like [`Handler::handle_at`], for a kernel that does not know the interrupted address.
    ///
    /// The next interrupt is then a repeated NMI only if the registers show that one may be latched: the entry was not
    /// masked when this one arrived, or a request came after it was unmasked. A delivery never masks an entry of AMD's
    /// local APIC, so the mask shows nothing there: only [`PmiSource::late_requests`] count. A PMI that was latched
    /// while an NMI of another cause was in flight to the handler is not noticed, and the NMI that repeats it is
    /// [`Pmi::NotOurs`].
    ///
    /// # Errors
    ///
    /// As for [`Handler::handle_at`].
    pub fn handle(
        &mut self,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.interrupt(None, AfterService::Resume, msr, apic, sources)
    }

    /// Serves an interrupt like [`Handler::handle`], but leaves all sources stopped if one has a request: they had
    /// requests too often.
    ///
    /// # Errors
    ///
    /// As for [`Handler::handle_at`].
    pub(crate) fn give_up(
        &mut self,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.interrupt(None, AfterService::StayStopped, msr, apic, sources)
    }

    /// Tells the handler that code ran since the last interrupt, even if the next one arrives at the same RIP: that one
    /// is no repeated NMI.
    pub fn forget_repeated_nmi(&mut self) {
        self.repeated = None;
    }

    fn interrupt(
        &mut self,
        interrupted: Option<u64>,
        after: AfterService,
        msr: &mut impl Msr,
        apic: &mut impl LocalApic,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        let pmi = self.serve_all(interrupted, after, msr, apic, sources);
        let why = match pmi {
            Err(fault) => Some(Abandoned::Fault(fault)),
            Ok(Pmi::Stuck) => Some(Abandoned::Stuck),
            Ok(_) => None,
        };
        self.unfinished = why.is_some();
        if let Some(why) = why {
            abandon(sources, why);
        }
        let requests = sources.iter().fold(0, |all: u8, source| all.saturating_add(source.late_requests()));
        // One of these requests belongs to the current interrupt. If an access faulted, another call may handle the
        // rest of that interrupt.
        self.expect_late(requests.saturating_sub(u8::from(pmi.is_ok())));
        pmi
    }

    /// Counts an interrupt that is claimed although there is no request. If its address or the entry identifies it
    /// (`known`), it does not use up one of the expected late NMIs.
    fn stray(&mut self, known: bool) -> Pmi {
        self.late = self.late.saturating_sub(u8::from(!known));
        self.counts.stray += 1;
        Pmi::Stray
    }

    /// Returns the LVT entry for the time when no PMI is being served.
    fn entry(&self) -> LvtPc {
        let entry = LvtPc::new(self.delivery);
        if self.disarmed.get() { entry.masked() } else { entry }
    }

    /// Returns whether this handler masks and unmasks LVT Performance Monitoring: either it delivers some source's
    /// interrupts, or there are no sources, and an earlier one may have left it masked, by its PMI or because the
    /// handler gave up.
    fn serves_entry(&self, sources: &[&mut dyn PmiSource]) -> bool {
        let gone = sources.iter().all(|source| source.route() == Route::None);
        self.entry && (gone || sources.iter().any(|source| source.route() == Route::Counters))
    }
}

/// The maximum number of late NMIs to expect. Late NMIs can merge, and then fewer arrive: the limit bounds the NMIs of
/// another cause that the handler then claims by mistake.
const LATE: u8 = 4;

/// The maximum number of times that sources are served in one interrupt.
pub(crate) const ROUNDS: u32 = 16;

/// Writes the LVT entry.
fn set(apic: &mut impl LocalApic, entry: LvtPc) -> Result<(), GeneralProtection> {
    // SAFETY: `LvtPc::new` made the entry, which delivers an NMI, or a vector that is not an exception's.
    unsafe { apic.set_lvt_pc(entry) }
}

/// Leaves all sources stopped.
fn abandon(sources: &mut [&mut dyn PmiSource], why: Abandoned) {
    // Stops the sources that can be stopped; the caller reports the first fault.
    let _ = quiesce(sources);
    for source in sources.iter_mut() {
        source.abandon(why);
    }
}
