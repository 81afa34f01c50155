//! What is in a slot, and how it is served.

use crate::lapic::LocalApic;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Handler, Pmi, PmiSource};
use core::fmt;

/// What a processor traces, with those who take the bytes: what a [`Slot`](super::Slot) holds.
pub trait Traced {
    /// Hands the sources to the interrupt: `interrupt.serve(&mut [&mut self.running.source(&mut self.sink)])`, and returns
    /// what that returns. Called from the interrupt handler: it must not wait, allocate or format.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection>;
}

/// An interrupt that may be a PMI.
#[derive(Debug)]
pub struct Interrupt<'a, M, A> {
    handler: &'a mut Handler,
    msr: &'a mut M,
    apic: &'a mut A,
    came: Came,
}

/// How an interrupt came to whoever serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Just now; RIP of the code that was interrupted, where it is known.
    Now(Option<u64>),
    /// It has waited for the slot.
    Waited,
    /// It has waited for the slot, as many did before it since somebody wanted to give the slot back.
    WaitedOnceMore,
}

impl<'a, M: Msr, A: LocalApic> Interrupt<'a, M, A> {
    pub(super) const fn new(handler: &'a mut Handler, msr: &'a mut M, apic: &'a mut A, came: Came) -> Self {
        Self { handler, msr, apic, came }
    }

    /// RIP of the code that was interrupted, where it is known: not where the interrupt has waited for the slot.
    #[must_use]
    pub const fn interrupted(&self) -> Option<u64> {
        match self.came {
            Came::Now(interrupted) => interrupted,
            Came::Waited | Came::WaitedOnceMore => None,
        }
    }

    /// Serves it with these sources: all that run on this processor and may ask for PMIs.
    ///
    /// # Errors
    ///
    /// An access raised #GP: see [`Handler::handle_at`].
    pub fn serve(self, sources: &mut [&mut dyn PmiSource]) -> Result<Pmi, GeneralProtection> {
        let Self { handler, msr, apic, came } = self;
        match came {
            Came::Now(Some(rip)) => handler.handle_at(rip, msr, apic, sources),
            Came::Now(None) | Came::Waited => handler.handle(msr, apic, sources),
            Came::WaitedOnceMore => handler.give_up(msr, apic, sources),
        }
    }
}

/// Why a slot does not do what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// It is in use by the code that calls, or by code that was interrupted or preempted.
    InUse,
    /// Nothing is traced.
    Empty,
    /// There is a trace in it.
    Occupied,
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
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for SlotError {}

/// Why a slot has no new trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTraced<E> {
    /// The slot's reason: the trace was not told to start.
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
