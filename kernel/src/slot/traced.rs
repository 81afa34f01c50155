//! The content of a slot, and its service in an interrupt.

use crate::lapic::LocalApic;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Handler, Pmi, PmiSource};
use core::fmt;

/// The content of a [`Slot`](super::Slot): the traces of a processor, with the sinks that receive their bytes.
pub trait Traced {
    /// Passes the sources to the interrupt, `interrupt.serve(&mut [&mut self.running.source(&mut self.sink)])`, and
    /// returns the result. Called from the interrupt handler, so it must not wait, allocate or format.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection>;

    /// Resumes the trace that [`Slot::pause`](super::Slot::pause) has paused: `self.running.resume().map(|_| ())`. If
    /// no trace obeys the slot's gate, nothing needs to be done. Called in the context of
    /// [`Slot::resume`](super::Slot::resume), or when the slot is released.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn resume(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }
}

/// An interrupt that may be a PMI.
#[derive(Debug)]
pub struct Interrupt<'a, M, A> {
    handler: &'a mut Handler,
    msr: &'a mut M,
    apic: &'a mut A,
    arrival: Arrival,
}

/// The way in which an interrupt came to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The interrupt arrived just now; the RIP of the interrupted code, if known.
    Now(Option<u64>),
    /// The interrupt waited for the slot.
    Waited,
    /// The interrupt waited for the slot, as did many others since the holder of the slot began to release it.
    WaitedTooOften,
}

impl<'a, M: Msr, A: LocalApic> Interrupt<'a, M, A> {
    pub(super) const fn new(
        handler: &'a mut Handler,
        msr: &'a mut M,
        apic: &'a mut A,
        arrival: Arrival,
    ) -> Self {
        Self { handler, msr, apic, arrival }
    }

    /// Returns the RIP of the interrupted code, if known. It is unknown for an interrupt that waited for the slot.
    #[must_use]
    pub const fn interrupted(&self) -> Option<u64> {
        match self.arrival {
            Arrival::Now(interrupted) => interrupted,
            Arrival::Waited | Arrival::WaitedTooOften => None,
        }
    }

    /// Serves the interrupt with these sources, which must be all that run on this processor and may request PMIs.
    ///
    /// # Errors
    ///
    /// An access raised #GP: see [`Handler::handle_at`].
    pub fn serve(self, sources: &mut [&mut dyn PmiSource]) -> Result<Pmi, GeneralProtection> {
        let Self { handler, msr, apic, arrival } = self;
        match arrival {
            Arrival::Now(Some(rip)) => handler.handle_at(rip, msr, apic, sources),
            Arrival::Now(None) | Arrival::Waited => handler.handle(msr, apic, sources),
            Arrival::WaitedTooOften => handler.give_up(msr, apic, sources),
        }
    }
}

/// The reason why a slot refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// The slot is in use by the calling code, or by code that was interrupted or preempted.
    InUse,
    /// Nothing is traced.
    Empty,
    /// The slot already has a trace.
    Occupied,
    /// Software has not enabled the local APIC ([`LocalApic::is_enabled`]): no PMI would arrive.
    ApicDisabled,
    /// The local APIC raised #GP.
    Fault(GeneralProtection),
}

impl From<GeneralProtection> for SlotError {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("the slot is in use"),
            Self::Empty => f.write_str("nothing is traced"),
            Self::Occupied => f.write_str("there is a trace in the slot"),
            Self::ApicDisabled => f.write_str(
                "software has not enabled the local APIC: bit 8 of the spurious-interrupt vector register is 0",
            ),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for SlotError {}

/// The reason why a slot did not start a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTraced<E> {
    /// The slot refused: the trace was not asked to start.
    Slot(SlotError),
    /// The trace did not start.
    Start(E),
}

impl<E> From<SlotError> for NotTraced<E> {
    fn from(error: SlotError) -> Self {
        Self::Slot(error)
    }
}

impl<E: fmt::Display> fmt::Display for NotTraced<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
        }
    }
}

impl<E: core::error::Error> core::error::Error for NotTraced<E> {}
