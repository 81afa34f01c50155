//! What a processor traces, shared by its PMI handler and the code that it interrupts.

mod traced;

pub use traced::{Interrupt, NotTraced, SlotError, Traced};

use crate::lapic::{Delivery, LocalApic};
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Handler, Pmi, ROUNDS};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use spin::{Mutex, MutexGuard};
use traced::Came;

/// A place for a processor's [`Handler`] and for what is traced on it.
///
/// It alone arms the LVT entry, so that the order is always right: [`Slot::start`] unmasks the entry before the trace
/// starts, and keeps the slot until the trace is in it. A PMI that comes in between waits, as does one that comes while
/// [`Slot::with`] works: the handler notes it, and it is served before the method returns. No PMI finds a trace
/// that runs and is not there.
///
/// Nobody waits for the slot, so whoever has it has to be quick: **until the slot is given back no PMI is served**, the
/// LVT entry stays masked, and a trace whose buffer fills meanwhile stops and counts a loss. A thread that is preempted in
/// [`Slot::with`] holds it until it runs again. The kernel disables preemption (or interrupts) around these methods;
/// moving to another processor inside is unsound anyway, see [`Slot::new`]. [`Slot::waits`] counts how often a PMI found
/// the slot in use.
///
/// Interrupts that waited are served outside a handler, so the next ones come meanwhile and wait too. A source that asks
/// again each time before the slot is given back, because its period is too short, is left stopped after some rounds
/// ([`Abandoned::Stuck`](crate::pmi::Abandoned), counted in [`Counts::stuck`](crate::pmi::Counts)). The next interrupt, and
/// whoever uses the slot next, lets it go on.
///
/// `P` makes the processor's registers and local APIC; whoever needs them makes his own, also the handler that
/// finds the slot in use.
#[derive(Debug)]
pub struct Slot<T, P> {
    processor: P,
    inner: Mutex<OneProcessor<Inner<T>>>,
    /// An interrupt found the slot in use, or could not be served.
    noted: AtomicBool,
    /// A handler is at work in the slot: the LVT entry is masked because of the interrupt that it serves.
    serving: AtomicBool,
    /// What an interrupt tells by itself, as [`Tell`].
    tell: AtomicU8,
    waits: AtomicU64,
}

#[derive(Debug)]
struct Inner<T> {
    handler: Handler,
    traced: Option<T>,
}

/// What an interrupt tells to a handler that finds the slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Tell {
    /// Nothing: the entry is masked anyway, or a delivery does not mask it.
    Nothing,
    /// A PMI has masked the LVT entry.
    Mask,
    /// Nobody else has the vector.
    Vector,
}

impl<T, P> Slot<T, P> {
    /// One with nothing traced. The LVT entry is left as it is, masked after a reset, until the first [`Slot::start`].
    ///
    /// # Safety
    ///
    /// Only one logical processor ever uses it: it is in a per-processor variable, and no thread is moved to another
    /// processor while it is in one of the methods. `processor` makes values for that processor.
    #[must_use]
    pub const unsafe fn new(handler: Handler, processor: P) -> Self {
        let inner = Inner { handler: handler.unarmed(), traced: None };
        Self {
            processor,
            inner: Mutex::new(OneProcessor(inner)),
            noted: AtomicBool::new(false),
            serving: AtomicBool::new(false),
            tell: AtomicU8::new(Tell::Nothing as u8),
            waits: AtomicU64::new(0),
        }
    }

    /// How many interrupts found the slot in use, and waited.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn lock(&self) -> Result<MutexGuard<'_, OneProcessor<Inner<T>>>, SlotError> {
        self.inner.try_lock().ok_or(SlotError::InUse)
    }
}

impl<T: Traced, P: Fn() -> (M, A), M: Msr, A: LocalApic> Slot<T, P> {
    /// Starts a trace and puts it into the slot, with PMIs delivered from before its start on.
    ///
    /// # Errors
    ///
    /// The slot is in use or has a trace, and nothing was done; the local APIC raised #GP; or what `start` says.
    pub fn start<E>(&self, start: impl FnOnce() -> Result<T, E>) -> Result<(), NotTraced<E>> {
        let result = self.try_start(start);
        if !matches!(result, Err(NotTraced::Slot(SlotError::InUse))) {
            self.serve_noted();
        }
        result
    }

    fn try_start<E>(&self, start: impl FnOnce() -> Result<T, E>) -> Result<(), NotTraced<E>> {
        let mut inner = self.lock()?;
        let Inner { handler, traced } = &mut inner.0;
        if traced.is_some() {
            return Err(SlotError::Occupied.into());
        }
        let (_, mut apic) = (self.processor)();
        let was_armed = handler.is_armed();
        let armed = match was_armed {
            // A PMI that masked the entry is on its way, or waits: it is served when the trace is there.
            true => apic.lvt_pc().map(|entry| {
                if entry.is_masked() {
                    self.note()
                }
            }),
            false => handler.arm(&mut apic),
        };
        self.tell(handler);
        armed.map_err(SlotError::Fault)?;
        match start() {
            Ok(started) => {
                *traced = Some(started);
                Ok(())
            }
            Err(error) => {
                // An entry that stays unmasked does no harm: what it delivers is claimed.
                if !was_armed && handler.disarm(&mut apic).is_ok() {
                    self.tell(handler);
                }
                Err(NotTraced::Start(error))
            }
        }
    }

    /// Works with what is traced; then an interrupt that came meanwhile is served, and one that could not be served
    /// before. To be called without preemption, and left soon: see [`Slot`].
    ///
    /// # Errors
    ///
    /// Nothing was done: nothing is traced, or the slot is in use, as where this is called from within itself.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, SlotError> {
        let result = {
            let mut inner = self.lock()?;
            inner.0.traced.as_mut().map(work)
        };
        self.serve_noted();
        result.ok_or(SlotError::Empty)
    }

    /// Takes the trace out and stops it, with the handler that claims interrupts that are still to come. The handler stays,
    /// and PMIs are delivered as before, until [`Slot::disarm`].
    ///
    /// # Errors
    ///
    /// As [`Slot::with`]. Where `stop` fails, what it gives back can be put into the slot again by [`Slot::start`].
    pub fn stop<R>(&self, stop: impl FnOnce(T, &mut Handler) -> R) -> Result<R, SlotError> {
        let result = {
            let mut inner = self.lock()?;
            let Inner { handler, traced } = &mut inner.0;
            traced.take().map(|traced| self.with_handler(handler, |handler| stop(traced, handler)))
        };
        self.serve_noted();
        result.ok_or(SlotError::Empty)
    }

    /// Works with the handler: for what it has counted, and for what it is to expect.
    ///
    /// # Errors
    ///
    /// The slot is in use, and nothing was done.
    pub fn handler<R>(&self, work: impl FnOnce(&mut Handler) -> R) -> Result<R, SlotError> {
        let result = self.with_handler(&mut self.lock()?.0.handler, work);
        self.serve_noted();
        Ok(result)
    }

    /// Whatever handler `work` leaves there, whether the entry is unmasked is the slot's to know.
    fn with_handler<R>(&self, handler: &mut Handler, work: impl FnOnce(&mut Handler) -> R) -> R {
        let armed = handler.is_armed();
        let result = work(handler);
        handler.set_armed(armed);
        self.tell(handler);
        result
    }

    /// Another handler for the traces to come, such as one for another kind of delivery. PMIs are not delivered until the
    /// next [`Slot::start`].
    ///
    /// # Errors
    ///
    /// The slot is in use or has a trace, or the local APIC raised #GP: the handler is as before.
    pub fn replace(&self, handler: Handler) -> Result<(), SlotError> {
        self.disarm()?;
        let mut inner = self.lock()?;
        inner.0.handler = handler.unarmed();
        Ok(())
    }

    /// Masks the LVT entry: no PMI is delivered until the next [`Slot::start`].
    ///
    /// # Errors
    ///
    /// The slot is in use or has a trace, and nothing was done; or the local APIC raised #GP.
    pub fn disarm(&self) -> Result<(), SlotError> {
        let result = {
            let mut inner = self.lock()?;
            let Inner { handler, traced } = &mut inner.0;
            if traced.is_some() {
                return Err(SlotError::Occupied);
            }
            let (_, mut apic) = (self.processor)();
            let result = handler.disarm(&mut apic).map_err(SlotError::Fault);
            self.tell(handler);
            result
        };
        self.serve_noted();
        result
    }

    /// For the handler of the interrupt that the [`Handler`] was made for, and of no other one: serves what may be a PMI.
    /// `interrupted` is RIP, where it is known.
    ///
    /// An NMI that is not a PMI costs one access to the local APIC, one to IA32_PERF_GLOBAL_STATUS where a source has bits
    /// there, and those of [`PmiSource::may_ask`](crate::pmi::PmiSource::may_ask). Nothing is stopped, and the answer is
    /// [`Pmi::NotOurs`].
    ///
    /// An interrupt that finds the slot in use costs one access to the local APIC. Intel's masks the LVT entry when it
    /// delivers a PMI: an NMI that finds it unmasked is [`Pmi::NotOurs`]; one that finds it masked is noted and
    /// [`Pmi::Later`]. Where one is noted already, the entry is masked because of that one, and where AMD's local APIC
    /// delivers, the entry tells nothing: then the NMI is noted and [`Pmi::Unknown`].
    ///
    /// # Errors
    ///
    /// An access raised #GP. It is noted: the next [`Slot::with`] tries again.
    pub fn interrupt(&self, interrupted: Option<u64>) -> Result<Pmi, GeneralProtection> {
        match self.inner.try_lock() {
            Some(mut inner) => self.serve(&mut inner.0, Came::Now(interrupted)),
            None => self.wait(),
        }
    }

    /// The slot is in use by the code that was interrupted.
    fn wait(&self) -> Result<Pmi, GeneralProtection> {
        let tell = self.tell.load(Ordering::Relaxed);
        let (_, mut apic) = (self.processor)();
        let masked = apic.lvt_pc().inspect_err(|_| self.note())?.is_masked();
        if tell == Tell::Mask as u8 && !masked {
            return Ok(Pmi::NotOurs);
        }
        let known = !self.noted.load(Ordering::Relaxed) && !self.serving.load(Ordering::Relaxed);
        self.note();
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(match tell {
            tell if tell == Tell::Vector as u8 => Pmi::Later,
            tell if tell == Tell::Mask as u8 && known => Pmi::Later,
            _ => Pmi::Unknown,
        })
    }

    fn serve(&self, inner: &mut Inner<T>, came: Came) -> Result<Pmi, GeneralProtection> {
        let (mut msr, mut apic) = (self.processor)();
        self.serving.store(true, Ordering::Relaxed);
        let Inner { handler, traced } = inner;
        let interrupt = Interrupt::new(handler, &mut msr, &mut apic, came);
        let served = match traced {
            Some(traced) => traced.serve(interrupt),
            None => interrupt.serve(&mut []),
        };
        self.serving.store(false, Ordering::Relaxed);
        if matches!(served, Err(_) | Ok(Pmi::Stuck)) {
            self.note();
        }
        served
    }

    /// Serves the interrupts that found the slot in use, also those that come meanwhile. A source whose period is shorter
    /// than the way from where it goes on to where the slot is free asks again each time: after some rounds it is left stopped.
    fn serve_noted(&self) {
        let mut rounds = 0;
        while self.noted.swap(false, Ordering::Acquire) {
            let Ok(mut inner) = self.lock() else {
                // Whoever has it looks when he is done.
                return self.note();
            };
            let came = if rounds < ROUNDS { Came::Waited } else { Came::WaitedOnceMore };
            rounds = ROUNDS.min(rounds + 1);
            if matches!(self.serve(&mut inner.0, came), Err(_) | Ok(Pmi::Stuck)) {
                // It stays noted for the next time.
                return;
            }
        }
    }

    fn note(&self) {
        self.noted.store(true, Ordering::Release);
    }

    fn tell(&self, handler: &Handler) {
        let tell = match handler.delivery() {
            Delivery::Fixed(_) => Tell::Vector,
            Delivery::Nmi if handler.is_told_by_the_mask() => Tell::Mask,
            Delivery::Nmi => Tell::Nothing,
        };
        self.tell.store(tell as u8, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct OneProcessor<T>(T);

// SAFETY: the value is used by one processor only, by the promise of `Slot::new`; the lock keeps its contexts apart.
unsafe impl<T> Send for OneProcessor<T> {}
