//! A unit in its session: prepared, running, stopped.

use alloc::boxed::Box;
use core::mem::MaybeUninit;
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi, PmiSource};

use super::error::SourceError;
use crate::report::Recorded;

/// A unit with the memory that it records into, prepared to start.
pub(crate) struct Prepared {
    pub(super) unit: Box<dyn Start>,
    pub(super) handler: Handler,
    /// The unit's interrupts are NMIs.
    pub(super) by_nmi: bool,
    pub(super) drained_between_spaces: bool,
}

impl Prepared {
    /// Prepares a unit that `start` will start, and whose interrupts are delivered in this way.
    pub(crate) fn new<R: Running + 'static>(
        delivery: Delivery,
        start: impl FnOnce() -> Result<R, SourceError> + 'static,
    ) -> Self {
        Self::with_handler(Handler::new(delivery), delivery == Delivery::Nmi, start)
    }

    /// Does the same as [`Prepared::new`], for a unit whose interrupts are always NMIs and have a handler of their own.
    pub(crate) fn by_nmi<R: Running + 'static>(
        handler: Handler,
        start: impl FnOnce() -> Result<R, SourceError> + 'static,
    ) -> Self {
        Self::with_handler(handler, true, start)
    }

    fn with_handler<R: Running + 'static>(
        handler: Handler,
        by_nmi: bool,
        start: impl FnOnce() -> Result<R, SourceError> + 'static,
    ) -> Self {
        let unit = Box::new(Startable(Some((start, Box::new_uninit()))));
        Self { unit, handler, by_nmi, drained_between_spaces: false }
    }

    /// Declares that the unit's memory must be drained before another address space becomes current.
    pub(crate) fn drained_between_spaces(self) -> Self {
        Self { drained_between_spaces: true, ..self }
    }
}

/// A unit that can be started once.
pub(super) trait Start {
    fn start(&mut self) -> Result<Box<dyn Running>, SourceError>;
}

/// The function that starts the unit, and memory for the running unit: nothing may be allocated or freed while the unit
/// records the kernel itself.
struct Startable<F, R>(Option<(F, Box<MaybeUninit<R>>)>);

impl<R: Running + 'static, F: FnOnce() -> Result<R, SourceError>> Start for Startable<F, R> {
    fn start(&mut self) -> Result<Box<dyn Running>, SourceError> {
        let (start, memory) = self.0.take().ok_or_else(|| SourceError::failed("it was started before"))?;
        let running: Box<R> = Box::write(memory, start()?);
        Ok(running)
    }
}

/// A unit that records. Its methods, except [`Running::stop`], are also called in interrupt handlers: they must neither
/// block nor allocate.
pub(crate) trait Running {
    /// Passes the unit to `serve` as a source of PMIs, or no source if the unit requests no PMIs. `interrupted` is
    /// the RIP of the interrupted code, if known.
    fn serve(&mut self, interrupted: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection>;

    /// Resumes the unit after [`super::pause`].
    fn resume(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Drains the unit, if [`Prepared::drained_between_spaces`] was called, before a switch of address spaces.
    fn drain(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Stops the unit, and lets `handler` expect the NMIs that may still come.
    fn stop(self: Box<Self>, handler: &mut Handler) -> Result<Stopped, SourceError>;
}

/// Serves an interrupt with the sources that it is called with.
pub(crate) type Serve<'a> = &'a mut dyn FnMut(&mut [&mut dyn PmiSource]) -> Result<Pmi, GeneralProtection>;

/// The recording of a unit.
pub(crate) struct Stopped {
    pub(crate) recorded: Box<dyn Recorded>,
    pub(crate) loss: Loss,
}

impl Stopped {
    pub(crate) fn new(recorded: impl Recorded + 'static, loss: Loss) -> Self {
        Self { recorded: Box::new(recorded), loss }
    }
}
