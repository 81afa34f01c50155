//! The interface of a unit to the PMI handler: its requests, service and resume.

use crate::msr::{GeneralProtection, GlobalStatus};

/// A unit that requests PMIs: a running PT unit, a debug store, counters, IBS.
///
/// The handler calls the methods in the order in which they are listed here. They must not wait, allocate or format.
pub trait PmiSource {
    /// Returns the status bits by which the processor reports this source's requests; empty if the source must check
    /// its own registers.
    fn status(&self) -> Requests;

    /// Returns the entry of the local vector table that delivers this source's interrupts.
    fn route(&self) -> Route {
        Route::Counters
    }

    /// Stops the source so that it makes no more requests. May be called while it is stopped.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn quiesce(&mut self) -> Result<(), GeneralProtection>;

    /// Returns whether the source has a request, which its [`Requests`] may not show. Called while the source runs.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(false)
    }

    /// Returns whether there may be a request that its [`Requests`] do not show, or one that was not served completely.
    /// The call takes a few reads while the source runs, and stops nothing. If neither this method nor the status nor
    /// the LVT entry shows a request, the interrupt is not a PMI of these sources.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.asks()
    }

    /// Serves the source. `seen` are its requests that the status register showed; they are already acknowledged.
    /// Returns whether the source had requested this PMI (other sources may have, too). Called again until no source
    /// returns true.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection>;

    /// Resumes the source.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn resume(&mut self) -> Result<(), GeneralProtection>;

    /// Reports that the source is left stopped until it is used again: execution until then is not recorded.
    ///
    /// The handler calls this when it gives up, after it has stopped all sources that can be stopped.
    fn abandon(&mut self, _why: Abandoned) {}

    /// Returns the number of requests that this interrupt found and whose NMIs may still arrive. Each request has its
    /// own NMI, which may arrive after other code has run, so that the interrupted address does not identify it.
    fn late_requests(&self) -> u8 {
        0
    }
}

/// Serves a source if there is one, so that a kernel can pass sources that may be off unchanged.
impl<S: PmiSource> PmiSource for Option<S> {
    fn status(&self) -> Requests {
        self.as_ref().map_or(Requests::NONE, S::status)
    }

    fn route(&self) -> Route {
        self.as_ref().map_or(Route::None, S::route)
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.as_mut().map_or(Ok(()), S::quiesce)
    }

    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        self.as_mut().map_or(Ok(false), S::asks)
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.as_mut().map_or(Ok(false), S::may_ask)
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        self.as_mut().map_or(Ok(false), |source| source.service(seen))
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.as_mut().map_or(Ok(()), S::resume)
    }

    fn abandon(&mut self, why: Abandoned) {
        if let Some(source) = self {
            source.abandon(why);
        }
    }

    fn late_requests(&self) -> u8 {
        self.as_ref().map_or(0, S::late_requests)
    }
}

/// Requests for PMIs that the processor reports by itself: bits of one register. Each source has its own bits.
///
/// Intel's processors set them in IA32_PERF_GLOBAL_STATUS. AMD's sources have none: they check their own registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests(pub(super) GlobalStatus);

impl Requests {
    /// No requests.
    pub const NONE: Self = Self(GlobalStatus::empty());

    /// Returns the requests that the processor reports by these bits of IA32_PERF_GLOBAL_STATUS, for a source outside
    /// this crate.
    #[must_use]
    pub const fn in_global_status(bits: u64) -> Self {
        Self(GlobalStatus::from_bits_retain(bits))
    }

    /// Returns the requests that are in either set.
    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0.union(other.0))
    }

    /// Returns the requests that are in both sets.
    pub(super) const fn intersection(self, other: Self) -> Self {
        Self(self.0.intersection(other.0))
    }

    /// Returns whether the set is empty.
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

/// The reason why a source was left stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// An access to a register raised #GP.
    Fault(GeneralProtection),
    /// Sources had new requests each time they were served.
    Stuck,
    /// The code that had stopped the source ended without resuming it: a panic unwound through a sink or another
    /// callback, or a [`PmiSource`] was dropped before its [`PmiSource::resume`].
    NotResumed,
}

/// The entry of the local vector table that delivers a source's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// LVT Performance Monitoring: [`LocalApic`](crate::lapic::LocalApic).
    Counters,
    /// An extended entry of AMD's local APIC, programmed by the code that started the source. The handler does not
    /// write it: a delivery does not set its mask.
    Extended,
    /// None: the source is absent.
    None,
}
