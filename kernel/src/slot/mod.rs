//! A place for a processor's trace that its PMI handler and the code that the handler interrupts can share.
//!
//! ```
//! use pugmark_kernel::{arch::PlainMsr, lapic::{Delivery, X2Apic}, pmi::Handler, slot::Slot};
//!
//! type Registers = fn() -> (PlainMsr, X2Apic<PlainMsr>);
//!
//! fn registers() -> (PlainMsr, X2Apic<PlainMsr>) {
//!     // SAFETY: only this processor's handler and its threads, at CPL 0, use the slot.
//!     unsafe { (PlainMsr::new(), X2Apic::new(PlainMsr::new())) }
//! }
//!
//! // SAFETY: this processor alone uses the slot.
//! static SLOT: Slot<(), Registers> = unsafe { Slot::new(Handler::new(Delivery::Nmi), registers) };
//!
//! // Nothing is traced yet, and no interrupt had to wait.
//! assert_eq!(SLOT.waits(), 0);
//! ```

mod gate;
mod traced;

pub use gate::PauseGate;
pub use traced::{Interrupt, NotTraced, SlotError, Traced};

use crate::lapic::{Delivery, LocalApic};
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Handler, Pmi, ROUNDS};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use spin::{Mutex, MutexGuard};
use traced::Arrival;

/// A holder of a processor's [`Handler`] and its traces.
///
/// Only the slot arms the LVT entry, so that the order of steps is always right: [`Slot::start`] unmasks the entry
/// before the trace starts, and holds the slot until the trace is in it. A PMI that arrives in between waits, as does
/// one that arrives while [`Slot::with`] works: the handler notes it, and it is served before the method returns. No
/// PMI can find a trace that runs but is not in the slot.
///
/// Nothing waits for the slot, so the code that uses it must be quick: **until the slot is free no PMI is served**, the
/// LVT entry stays masked, and a trace whose buffer fills meanwhile stops and counts a loss. A thread that is preempted
/// in [`Slot::with`] holds the slot until it runs again. The kernel must disable preemption (or interrupts) around
/// these methods; moving to another processor meanwhile is unsound anyway, see [`Slot::new`]. [`Slot::waits`] counts
/// the PMIs that found the slot in use.
///
/// Interrupts that waited are served outside a handler, so further ones can arrive meanwhile and wait too. A source
/// whose period is so short that it has a new request each time before the slot is free is left stopped after some
/// rounds ([`Abandoned::Stuck`](crate::pmi::Abandoned), counted in [`Counts::stuck`](crate::pmi::Counts)). The next
/// interrupt, or the next use of the slot, resumes it.
///
/// `P` creates accessors of the processor's registers and local APIC. Each user creates its own accessor, also a
/// handler that finds the slot in use.
#[derive(Debug)]
pub struct Slot<T, P> {
    processor: P,
    inner: Mutex<OneProcessor<Inner<T>>>,
    /// True if an interrupt found the slot in use, or could not be served.
    noted: AtomicBool,
    /// True while a handler serves an interrupt in the slot: the LVT entry is masked because of that interrupt.
    serving: AtomicBool,
    /// The interrupt's own evidence, as an [`Evidence`].
    evidence: AtomicU8,
    waits: AtomicU64,
    gate: PauseGate,
    /// True if a resume found the slot in use.
    resuming: AtomicBool,
}

#[derive(Debug)]
struct Inner<T> {
    handler: Handler,
    traced: Option<T>,
}

/// The evidence of an interrupt for a handler that finds the slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Evidence {
    /// Nothing: the entry is masked anyway, or a delivery does not mask it.
    Nothing,
    /// A masked LVT entry: a PMI has masked it.
    Mask,
    /// The interrupt's vector, which nothing else uses.
    Vector,
}

impl<T, P> Slot<T, P> {
    /// Creates an empty slot. The LVT entry is left as it is (masked after a reset) until the first [`Slot::start`].
    ///
    /// # Safety
    ///
    /// Only one logical processor may ever use the slot: the slot is in a per-processor variable, and no thread moves
    /// to another processor while it is in one of the methods. `processor` creates values for that processor.
    #[must_use]
    pub const unsafe fn new(handler: Handler, processor: P) -> Self {
        let inner = Inner { handler: handler.unarmed(), traced: None };
        Self {
            processor,
            inner: Mutex::new(OneProcessor(inner)),
            noted: AtomicBool::new(false),
            serving: AtomicBool::new(false),
            evidence: AtomicU8::new(Evidence::Nothing as u8),
            waits: AtomicU64::new(0),
            gate: PauseGate::new(),
            resuming: AtomicBool::new(false),
        }
    }

    /// Returns the gate that [`Slot::pause`] closes, for [`PtUnit::gated_by`](crate::intel::pt::PtUnit::gated_by).
    #[must_use]
    pub const fn gate(&self) -> &PauseGate {
        &self.gate
    }

    /// Returns the number of interrupts that found the slot in use and waited.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn lock(&self) -> Result<MutexGuard<'_, OneProcessor<Inner<T>>>, SlotError> {
        self.inner.try_lock().ok_or(SlotError::InUse)
    }
}

impl<T: Traced, P: Fn() -> (M, A), M: Msr, A: LocalApic> Slot<T, P> {
    /// Starts a trace and puts it into the slot. PMIs are delivered from before the trace starts.
    ///
    /// # Errors
    ///
    /// The slot is in use or already has a trace, or the local APIC is disabled by software (nothing was done); the
    /// local APIC raised #GP; or the error of `start`.
    pub fn start<E>(&self, start: impl FnOnce() -> Result<T, E>) -> Result<(), NotTraced<E>> {
        let _then = Finally(|| self.serve_noted());
        self.try_start(start)
    }

    fn try_start<E>(&self, start: impl FnOnce() -> Result<T, E>) -> Result<(), NotTraced<E>> {
        let mut inner = self.lock()?;
        let Inner { handler, traced } = &mut inner.0;
        if traced.is_some() {
            return Err(SlotError::Occupied.into());
        }
        let (_, mut apic) = (self.processor)();
        if !apic.is_enabled().map_err(SlotError::Fault)? {
            return Err(SlotError::ApicDisabled.into());
        }
        let was_armed = handler.is_armed();
        let armed = match was_armed {
            // A PMI that masked the entry is in flight, or waits: it is served when the trace is in the slot.
            true => apic.lvt_pc().map(|entry| {
                if entry.is_masked() {
                    self.note()
                }
            }),
            false => handler.arm(&mut apic),
        };
        self.publish_evidence(handler);
        armed.map_err(SlotError::Fault)?;
        match start() {
            Ok(started) => {
                *traced = Some(started);
                Ok(())
            }
            Err(error) => {
                // An entry that stays unmasked does no harm: the handler claims the interrupts that it delivers.
                if !was_armed && handler.disarm(&mut apic).is_ok() {
                    handler.expect_latched();
                    self.publish_evidence(handler);
                }
                Err(NotTraced::Start(error))
            }
        }
    }

    /// Calls `work` with the trace. Then serves an interrupt that arrived meanwhile, or that could not be served
    /// before. Call this with preemption disabled, and make `work` short: see [`Slot`].
    ///
    /// # Errors
    ///
    /// Nothing was done: nothing is traced, or the slot is in use, for example when this is called from within `work`.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, SlotError> {
        let _then = Finally(|| self.serve_noted());
        let mut inner = self.lock()?;
        inner.0.traced.as_mut().map(work).ok_or(SlotError::Empty)
    }

    /// Takes the trace out of the slot and stops it. The handler remains in the slot and claims interrupts that are
    /// still to arrive; PMIs are delivered as before, until [`Slot::disarm`].
    ///
    /// # Errors
    ///
    /// As for [`Slot::with`]. If `stop` fails, [`Slot::start`] can put the running trace that `stop` returns into the
    /// slot again.
    pub fn stop<R>(&self, stop: impl FnOnce(T, &mut Handler) -> R) -> Result<R, SlotError> {
        let _then = Finally(|| self.serve_noted());
        let mut inner = self.lock()?;
        let Inner { handler, traced } = &mut inner.0;
        let stopped = traced.take().map(|traced| self.with_handler(handler, |handler| stop(traced, handler)));
        stopped.ok_or(SlotError::Empty)
    }

    /// Calls `work` with the handler, to read its counts or to announce NMIs.
    ///
    /// # Errors
    ///
    /// The slot is in use; nothing was done.
    pub fn handler<R>(&self, work: impl FnOnce(&mut Handler) -> R) -> Result<R, SlotError> {
        let _then = Finally(|| self.serve_noted());
        Ok(self.with_handler(&mut self.lock()?.0.handler, work))
    }

    /// Calls `work`, which may replace the handler; the slot's state of the entry (masked or not) is kept.
    fn with_handler<R>(&self, handler: &mut Handler, work: impl FnOnce(&mut Handler) -> R) -> R {
        let armed = handler.is_armed();
        let result = work(handler);
        handler.set_armed(armed);
        self.publish_evidence(handler);
        result
    }

    /// Replaces the handler for the next traces, for example by one with another delivery. PMIs are not delivered until
    /// the next [`Slot::start`].
    ///
    /// # Errors
    ///
    /// The slot is in use or has a trace, or the local APIC raised #GP: the handler is unchanged.
    pub fn replace(&self, handler: Handler) -> Result<(), SlotError> {
        self.disarm()?;
        let mut inner = self.lock()?;
        let before = core::mem::replace(&mut inner.0.handler, handler.unarmed());
        inner.0.handler.inherit_late(&before);
        Ok(())
    }

    /// Masks the LVT entry: no PMI is delivered until the next [`Slot::start`].
    ///
    /// The NMI of a PMI that was delivered just before arrives afterwards, when nothing identifies it as a PMI: the
    /// next NMI without a request is [`Pmi::Unknown`], and only those after it are [`Pmi::NotOurs`]. A kernel that
    /// knows that enough time has passed calls [`Handler::forget_late`].
    ///
    /// # Errors
    ///
    /// The slot is in use or has a trace (nothing was done), or the local APIC raised #GP.
    pub fn disarm(&self) -> Result<(), SlotError> {
        let _then = Finally(|| self.serve_noted());
        let mut inner = self.lock()?;
        let Inner { handler, traced } = &mut inner.0;
        if traced.is_some() {
            return Err(SlotError::Occupied);
        }
        let (_, mut apic) = (self.processor)();
        let was_armed = handler.is_armed();
        let result = handler.disarm(&mut apic).map_err(SlotError::Fault);
        if was_armed {
            handler.expect_latched();
        }
        self.publish_evidence(handler);
        result
    }

    /// Programs the LVT entry again, for a processor whose local APIC has lost it: after a sleep state, or after INIT.
    /// Call it before traces that were suspended meanwhile wake
    /// ([`PtRunning::suspend`](crate::intel::pt::PtRunning::suspend)). Does nothing in a slot that is disarmed.
    ///
    /// # Errors
    ///
    /// The slot is in use, the local APIC is disabled by software, or it raised #GP.
    pub fn rearm(&self) -> Result<(), SlotError> {
        let _then = Finally(|| self.serve_noted());
        let inner = self.lock()?;
        let (_, mut apic) = (self.processor)();
        match inner.0.handler.is_armed() {
            false => Ok(()),
            true if !apic.is_enabled().map_err(SlotError::Fault)? => Err(SlotError::ApicDisabled),
            true => inner.0.handler.arm(&mut apic).map_err(SlotError::Fault),
        }
    }

    /// Pauses tracing on this processor: when this returns, nothing is traced until [`Slot::resume`], in spite of PMIs,
    /// drains, switches and new starts. A kernel calls it on an event that ends the interesting part: in the handler of
    /// an NMI, in the service of a counter's overflow ([`PmiSource::service`](crate::pmi::PmiSource::service)), or
    /// anywhere else on this processor. The call also works while the slot is in use, and before [`Slot::start`]: such
    /// a trace starts paused.
    ///
    /// Nothing is lost. The trace has a TIP.PGD at the pause and a TIP.PGE at the resume, unless the code there is
    /// filtered out anyway; a decoder reports both. Until the resume,
    /// [`PtRunning::state`](crate::intel::pt::PtRunning::state) is [`Paused`](crate::intel::pt::PtState::Paused).
    ///
    /// The cost is one RDMSR and one WRMSR; nothing if the unit is off anyway. Only a PT unit with this gate obeys
    /// ([`PtUnit::gated_by`](crate::intel::pt::PtUnit::gated_by)); other units keep recording. If this interrupts the
    /// driver while it sets TraceEn, the driver clears TraceEn again at once. A guest that is about to be entered is
    /// traced until its VM exit.
    ///
    /// ```
    /// use pugmark_kernel::lapic::LocalApic;
    /// use pugmark_kernel::msr::{GeneralProtection, Msr};
    /// use pugmark_kernel::slot::{Slot, Traced};
    ///
    /// /// Called in the NMI handler when a counter has overflowed: pauses what runs, and resumes what is paused.
    /// fn on_overflow<T: Traced, M: Msr, A: LocalApic, P: Fn() -> (M, A)>(
    ///     slot: &Slot<T, P>,
    /// ) -> Result<(), GeneralProtection> {
    ///     match slot.gate().is_closed() {
    ///         true => slot.resume().map(|_| ()),
    ///         false => slot.pause(),
    ///     }
    /// }
    /// ```
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Disabling Packet Generation".
    ///
    /// # Errors
    ///
    /// An access raised #GP: the trace may run until the driver turns it off the next time, and then stays off.
    pub fn pause(&self) -> Result<(), GeneralProtection> {
        let (mut msr, _) = (self.processor)();
        self.gate.close(&mut msr)?;
        // A handler that came before TraceEn was cleared may have opened the gate, and found the trace on.
        if !self.gate.is_closed() {
            self.resume()?;
        }
        Ok(())
    }

    /// Resumes tracing after [`Slot::pause`]. A trace that is off for another reason, too, stays off for that one.
    ///
    /// Returns whether the trace has resumed: if the interrupted code uses the slot, the trace resumes when that code
    /// releases the slot. The cost is three RDMSR, which show that the registers are still those of the trace, and one
    /// WRMSR; one more RDMSR if branch records exclude PT. No PSB is forced: a decoder continues. If another unit was
    /// used meanwhile and is not stopped, all registers are written.
    ///
    /// # Errors
    ///
    /// An access raised #GP; [`PtRunning::state`](crate::intel::pt::PtRunning::state) reports that the trace is off.
    pub fn resume(&self) -> Result<bool, GeneralProtection> {
        self.gate.open();
        let _then = Finally(|| self.serve_noted());
        let Ok(mut inner) = self.lock() else {
            self.resuming.store(true, Ordering::SeqCst);
            return Ok(false);
        };
        inner.0.traced.as_mut().map_or(Ok(true), |traced| traced.resume().map(|()| true))
    }

    /// Resumes the trace if a handler wanted that while the slot was in use. Returns `false` if the slot is in use now.
    fn resume_noted(&self) -> bool {
        while self.resuming.swap(false, Ordering::SeqCst) {
            let Ok(mut inner) = self.lock() else {
                // The code that holds the slot checks this flag when it is done.
                self.resuming.store(true, Ordering::SeqCst);
                return false;
            };
            // After a fault the trace is off and says so.
            let _ = inner.0.traced.as_mut().map_or(Ok(()), Traced::resume);
        }
        true
    }

    /// Calls `work` with the trace, even if the slot is in use: for a kernel that panics and reads its trace.
    ///
    /// # Errors
    ///
    /// Nothing is traced.
    ///
    /// # Safety
    ///
    /// The code that holds the slot, if any, never runs again: the panic began in it, or interrupted it. State that
    /// this code was changing may be incomplete.
    pub unsafe fn with_in_panic<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, SlotError> {
        if self.inner.is_locked() {
            // SAFETY: the guard that holds the lock is never used or dropped afterwards, as the caller promised.
            unsafe { self.inner.force_unlock() };
        }
        let mut inner = self.lock()?;
        inner.0.traced.as_mut().map(work).ok_or(SlotError::Empty)
    }

    /// Serves an interrupt that may be a PMI. Call it from the kernel's handler of the interrupt that the [`Handler`]
    /// was created for, and from no other handler. `interrupted` is the interrupted RIP, if known.
    ///
    /// An NMI that is not a PMI costs one access to the local APIC, one to IA32_PERF_GLOBAL_STATUS if a source has bits
    /// there, and those of [`PmiSource::may_ask`](crate::pmi::PmiSource::may_ask). Nothing is stopped, and the result
    /// is [`Pmi::NotOurs`].
    ///
    /// An interrupt that finds the slot in use costs one access to the local APIC. Intel's local APIC masks the LVT
    /// entry when it delivers a PMI: an NMI that finds the entry unmasked is [`Pmi::NotOurs`]; one that finds it masked
    /// is noted and is [`Pmi::Later`]. If an interrupt is noted already, the entry is masked because of that one, and
    /// AMD's local APIC never masks it: in both cases the mask shows nothing, and the NMI is noted and is
    /// [`Pmi::Unknown`].
    ///
    /// # Errors
    ///
    /// An access raised #GP. The interrupt is noted: the next [`Slot::with`] tries again.
    pub fn interrupt(&self, interrupted: Option<u64>) -> Result<Pmi, GeneralProtection> {
        match self.inner.try_lock() {
            Some(mut inner) => {
                let served = self.serve(&mut inner.0, Arrival::Now(interrupted));
                drop(inner);
                self.resume_noted();
                served
            }
            None => self.wait(),
        }
    }

    /// Notes an interrupt that found the slot in use by the code that it interrupted.
    fn wait(&self) -> Result<Pmi, GeneralProtection> {
        let evidence = self.evidence.load(Ordering::Relaxed);
        let (_, mut apic) = (self.processor)();
        let masked = apic.lvt_pc().inspect_err(|_| self.note())?.is_masked();
        if evidence == Evidence::Mask as u8 && !masked {
            return Ok(Pmi::NotOurs);
        }
        let known = !self.noted.load(Ordering::Relaxed) && !self.serving.load(Ordering::Relaxed);
        self.note();
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(match evidence {
            evidence if evidence == Evidence::Vector as u8 => Pmi::Later,
            evidence if evidence == Evidence::Mask as u8 && known => Pmi::Later,
            _ => Pmi::Unknown,
        })
    }

    fn serve(&self, inner: &mut Inner<T>, arrival: Arrival) -> Result<Pmi, GeneralProtection> {
        let (mut msr, mut apic) = (self.processor)();
        self.serving.store(true, Ordering::Relaxed);
        let Inner { handler, traced } = inner;
        let interrupt = Interrupt::new(handler, &mut msr, &mut apic, arrival);
        // If a sink unwinds, too, the interrupt waits for the next use of the slot.
        let unserved = Finally(|| {
            self.serving.store(false, Ordering::Relaxed);
            self.note();
        });
        let served = match traced {
            Some(traced) => traced.serve(interrupt),
            None => interrupt.serve(&mut []),
        };
        if !matches!(served, Err(_) | Ok(Pmi::Stuck)) {
            self.serving.store(false, Ordering::Relaxed);
            core::mem::forget(unserved);
        }
        served
    }

    /// Serves the interrupts that found the slot in use, also those that arrive meanwhile. A source whose period is
    /// shorter than the time from its resume until the slot is free has a new request each time: after some rounds it
    /// is left stopped.
    fn serve_noted(&self) {
        let mut rounds = 0;
        while self.resume_noted() {
            if !self.noted.swap(false, Ordering::Acquire) {
                match self.resuming.load(Ordering::SeqCst) {
                    true => continue,
                    false => return,
                }
            }
            let Ok(mut inner) = self.lock() else {
                // The code that holds the slot checks this flag when it is done.
                return self.note();
            };
            let arrival = if rounds < ROUNDS { Arrival::Waited } else { Arrival::WaitedTooOften };
            rounds = ROUNDS.min(rounds + 1);
            if matches!(self.serve(&mut inner.0, arrival), Err(_) | Ok(Pmi::Stuck)) {
                // The interrupt stays noted for the next time.
                drop(inner);
                self.resume_noted();
                return;
            }
        }
    }

    fn note(&self) {
        self.noted.store(true, Ordering::Release);
    }

    fn publish_evidence(&self, handler: &Handler) {
        let evidence = match handler.delivery() {
            Delivery::Fixed(_) => Evidence::Vector,
            Delivery::Nmi if handler.is_shown_by_the_mask() => Evidence::Mask,
            Delivery::Nmi => Evidence::Nothing,
        };
        self.evidence.store(evidence as u8, Ordering::Relaxed);
    }
}

/// A function to call on drop, also by a panic that unwinds.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[derive(Debug)]
struct OneProcessor<T>(T);

// SAFETY: only one processor uses the value, as the caller of `Slot::new` promised; the lock separates its contexts.
unsafe impl<T> Send for OneProcessor<T> {}
