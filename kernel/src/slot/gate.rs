//! The gate that pauses and resumes a processor's trace from any handler.

use crate::msr::{GeneralProtection, Msr, RtitCtl, clear_trace_en};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The permission of a processor's Intel PT unit to trace. Each [`Slot`](super::Slot) has one, which
/// [`Slot::pause`](super::Slot::pause) closes and [`Slot::resume`](super::Slot::resume) opens.
///
/// A unit obeys the gate after [`PtUnit::gated_by`](crate::intel::pt::PtUnit::gated_by). The gate belongs to the
/// processor and not to a trace: a trace that a thread switch brings here is paused, too.
#[derive(Debug)]
pub struct PauseGate {
    closed: AtomicBool,
    /// True if the unit's registers are those of a trace that the driver has begun and not halted: TraceEn may be set.
    on: AtomicBool,
    pauses: AtomicU64,
    /// The number of times that the gate cleared TraceEn.
    clears: AtomicU64,
    /// The number of calls that are about to clear TraceEn: handlers may interrupt one another in that call.
    closing: AtomicU32,
}

impl PauseGate {
    pub(super) const fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            on: AtomicBool::new(false),
            pauses: AtomicU64::new(0),
            clears: AtomicU64::new(0),
            closing: AtomicU32::new(0),
        }
    }

    /// Returns whether the trace is paused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns how often the gate was closed.
    #[must_use]
    pub fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Relaxed)
    }

    /// Notes whether the unit may be on.
    pub(crate) fn note(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    /// Returns how often the gate cleared TraceEn.
    pub(crate) fn clears(&self) -> u64 {
        self.clears.load(Ordering::SeqCst)
    }

    /// Returns whether a call of [`PauseGate::close`] was interrupted, which may have cleared TraceEn without counting
    /// it yet.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst) != 0
    }

    pub(super) fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Closes the gate, and clears TraceEn if the trace is on.
    pub(super) fn close(&self, msr: &mut impl Msr) -> Result<(), GeneralProtection> {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.pauses.fetch_add(1, Ordering::Relaxed);
        }
        if !self.on.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.closing.fetch_add(1, Ordering::SeqCst);
        let before = clear_trace_en(msr);
        if before.is_ok_and(|before| before.contains(RtitCtl::TRACE_EN)) {
            self.clears.fetch_add(1, Ordering::SeqCst);
        }
        self.closing.fetch_sub(1, Ordering::SeqCst);
        before.map(|_| ())
    }
}
