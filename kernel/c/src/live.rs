//! A processor's trace that is decoded while it is recorded, in storage of the kernel's.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pugmark_decoder_core::block_cache::{ExecutionSink, InstructionRun};
use pugmark_decoder_core::calls::Calls;
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::flow::FlowItem;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::Section;
use pugmark_decoder_core::resume::Lost;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::short::{self, ShortError};
use pugmark_kernel::slot::SlotError;

use crate::argument::reference;
use crate::memory::FrameSource;
use crate::outcome::{Failure, Outcome, report};
use crate::processor::{EitherApic, processor};
use crate::trace::{StepCounter, Trace};

/// A PMI, which was served. An NMI of another cause may have merged with it.
pub const PMI_SERVED: c_int = 0;
/// A PMI without a request.
pub const PMI_STRAY: c_int = 1;
/// An NMI of another cause.
pub const PMI_NOT_OURS: c_int = 2;
/// A PMI that is served later.
pub const PMI_LATER: c_int = 3;
/// A PMI or an NMI of another cause: nothing shows which.
pub const PMI_UNKNOWN: c_int = 4;
/// PMIs without end: the trace is left off.
pub const PMI_STUCK: c_int = 5;
/// A register raised #GP; the trace is served later.
pub const PMI_FAULT: c_int = 6;

/// The size of [`Live`], with room for later versions.
pub const LIVE_BYTES: usize = 96 << 10;

/// The storage of a trace: `pugmark_live`. All its bytes are 0 before its first use.
#[repr(C, align(64))]
pub struct Live {
    /// The parts of the trace.
    pub bytes: [u8; LIVE_BYTES],
}

/// The sink in the handler.
struct Counted {
    hash: AddressHash,
    calls: Calls,
    code: [Section<'static>; 1],
    steps: StepCounter,
}

impl ExecutionSink for Counted {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        insns.for_each(|ip| self.hash.add(ip));
        if let Some(step) = self.calls.run(insns, &self.code) {
            self.steps.take(step.into());
        }
    }

    fn event(&mut self, event: &Event) {
        if let Some(step) = self.calls.step(&FlowItem::Event(*event)) {
            self.steps.take(step.into());
        }
    }

    fn lost(&mut self, _: &Lost) {
        self.calls.forget();
    }
}

type Driver = short::Live<GuardedMsr, EitherApic, Counted>;

/// Copied into storage at its first use, because a value that a function returns may pass over the stack.
// SAFETY: each copy belongs to one processor, as `pugmark.h` asks; the original is never used.
static TEMPLATE: Driver = unsafe { Driver::new(Delivery::Nmi, processor) };

/// No trace.
const FREE: u32 = 0;
/// A start or a stop is under way.
const BUSY: u32 = 1;
/// A trace.
const TRACING: u32 = 2;

/// The parts of [`Live`]: bytes that are all 0 are a valid value.
struct Place {
    state: AtomicU32,
    /// True once `driver` has its value.
    is_made: AtomicBool,
    driver: UnsafeCell<MaybeUninit<Driver>>,
    /// The source of the memory, and the number of PMIs served before the start.
    source: UnsafeCell<MaybeUninit<(FrameSource, u64)>>,
}

const _: () = assert!(size_of::<Place>() <= LIVE_BYTES && align_of::<Place>() <= align_of::<Live>());

impl Place {
    /// Returns the parts of storage.
    ///
    /// # Safety
    ///
    /// Storage that is not null or misaligned is the caller's for ever, and nothing but this library changes it.
    unsafe fn of(live: *mut Live) -> Result<&'static Self, Failure> {
        // The reference is to the type with cells: other code may change them in an interrupt.
        let place = if live.is_aligned() { live.cast::<Self>() } else { core::ptr::null_mut() };
        // SAFETY: as the caller promises; a value of `Live` is large enough and aligned.
        unsafe { reference(place, "live is null or misaligned") }
    }

    fn driver(&'static self) -> Option<&'static Driver> {
        // SAFETY: it has its value, and is never changed but through its own cells.
        self.is_made.load(Ordering::Acquire).then(|| unsafe { &*self.driver.get().cast() })
    }

    /// Returns the driver, which is made at the first use.
    fn make(&'static self) -> Result<&'static Driver, SlotError> {
        if self.driver().is_none() {
            let template = (&raw const TEMPLATE).cast();
            // SAFETY: the state is busy, so nobody else writes to it, and nobody reads it before `is_made`.
            unsafe { self.driver.get().copy_from_nonoverlapping(template, 1) };
            self.is_made.store(true, Ordering::Release);
        }
        self.driver().ok_or(SlotError::Empty)
    }

    /// Changes the state to busy, if it is `from`.
    fn begin(&self, from: u32, otherwise: SlotError) -> Result<(), SlotError> {
        let begun = self.state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed);
        begun.map(drop).map_err(|_| otherwise)
    }

    fn end(&self, state: u32) {
        self.state.store(state, Ordering::Release);
    }
}

/// Starts a trace of this processor. Returns an error's number, whose text is in `outcome`.
///
/// # Safety
///
/// All arguments are as `pugmark.h` asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pugmark_live_start(
    live: *mut Live,
    trace: *const Trace,
    outcome: *mut Outcome,
) -> c_int {
    let start = || {
        // SAFETY: the caller promises it.
        let place = unsafe { Place::of(live) }?;
        // SAFETY: the caller promises it.
        let trace = unsafe { reference(trace, "trace is null or misaligned") }?;
        // SAFETY: the caller promises it.
        let code = unsafe { trace.code() }?;
        place.begin(FREE, SlotError::Occupied)?;
        let started = start(place, trace, code);
        place.end(if started.is_ok() { TRACING } else { FREE });
        started.map(|()| Outcome::EMPTY)
    };
    // SAFETY: the caller promises it.
    unsafe { report(outcome, start) }
}

/// Starts a trace; the state is busy.
fn start(place: &'static Place, trace: &Trace, code: Section<'static>) -> Result<(), Failure> {
    let driver = place.make()?;
    let served = driver.slot().handler(|handler| handler.counts().served)?;
    let (pool, mut source) = trace.memory.take(trace.context)?;
    let sink = Counted { hash: AddressHash::new(), calls: Calls::new(), code: [code], steps: trace.steps() };
    if let Err(error) = driver.start(pool, [code], &PtConfig::new().os(true), sink) {
        if let Some(pool) = driver.take_memory() {
            pool.release(&mut source);
        }
        return Err(error.into());
    }
    // SAFETY: the state is busy, so nobody else uses it.
    unsafe { place.source.get().cast::<(FrameSource, u64)>().write((source, served)) };
    Ok(())
}

/// Serves an NMI. Returns one of the numbers `PMI_`….
///
/// # Safety
///
/// `live` is as `pugmark.h` asks; `rip` is the address that the processor pushed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pugmark_live_interrupt(live: *mut Live, rip: u64) -> c_int {
    // SAFETY: the caller promises it.
    let driver = unsafe { Place::of(live) }.ok().and_then(Place::driver);
    match driver.map_or(Ok(Pmi::NotOurs), |driver| driver.interrupt(rip)) {
        Ok(pmi) => number(pmi),
        Err(_) => PMI_FAULT,
    }
}

const fn number(pmi: Pmi) -> c_int {
    match pmi {
        Pmi::Served => PMI_SERVED,
        Pmi::Stray => PMI_STRAY,
        Pmi::NotOurs => PMI_NOT_OURS,
        Pmi::Later => PMI_LATER,
        Pmi::Unknown => PMI_UNKNOWN,
        Pmi::Stuck => PMI_STUCK,
    }
}

/// Stops the trace, decodes the rest, and writes its end to `outcome`. Returns an error's number.
///
/// # Safety
///
/// All arguments are as `pugmark.h` asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pugmark_live_stop(live: *mut Live, outcome: *mut Outcome) -> c_int {
    let stop = || {
        // SAFETY: the caller promises it.
        let place = unsafe { Place::of(live) }?;
        place.begin(TRACING, SlotError::Empty)?;
        let stopped = stop(place);
        // The kernel's own function, called by the handler, cannot stop the trace.
        let is_traced = matches!(stopped, Err(Failure::Short(ShortError::Slot(SlotError::InUse))));
        place.end(if is_traced { TRACING } else { FREE });
        stopped
    };
    // SAFETY: the caller promises it.
    unsafe { report(outcome, stop) }
}

/// Stops a trace; the state is busy.
fn stop(place: &'static Place) -> Result<Outcome, Failure> {
    let driver = place.make()?;
    // SAFETY: the start has written it, and the state is busy, so nobody else uses it.
    let (mut source, before) = unsafe { place.source.get().cast::<(FrameSource, u64)>().read() };
    let ended = driver.stop();
    let served = driver.slot().handler(|handler| handler.counts().served);
    match ended {
        Ok(ended) => {
            ended.memory.release(&mut source);
            let short::Ended { sink: Counted { hash, steps, .. }, loss, errors, bytes, .. } = ended;
            let mut outcome = Outcome {
                calls: steps.calls,
                instructions: hash.count(),
                hash: hash.value(),
                bytes,
                errors,
                pmis: served? - before,
                ..Outcome::EMPTY
            };
            outcome.lost(&loss);
            Ok(outcome)
        }
        Err(error) => {
            if let Some(pool) = driver.take_memory() {
                pool.release(&mut source);
            }
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::counter;
    use pugmark_decoder_core::event::{EventKind, Stamp};
    use pugmark_decoder_core::image::AddressSpace;

    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn each_verdict_on_an_interrupt_has_its_number() {
        let all = [Pmi::Served, Pmi::Stray, Pmi::NotOurs, Pmi::Later, Pmi::Unknown, Pmi::Stuck];
        assert!(all.map(number).into_iter().eq(PMI_SERVED..PMI_FAULT));
    }

    #[test]
    fn a_start_or_a_stop_goes_on_from_one_state_alone() {
        let storage = Box::leak(Box::new(Live { bytes: [0; LIVE_BYTES] }));
        // SAFETY: storage of zeros that is never freed.
        let Ok(place) = (unsafe { Place::of(storage) }) else { panic!("an error") };
        assert_eq!(place.begin(TRACING, SlotError::Empty), Err(SlotError::Empty));
        assert_eq!(place.begin(FREE, SlotError::Occupied), Ok(()));
        assert!(place.driver().is_none());
        assert!(core::ptr::eq(place.make().unwrap(), place.driver().unwrap()));
        for from in [FREE, TRACING] {
            assert_eq!(place.begin(from, SlotError::Occupied), Err(SlotError::Occupied));
        }
        place.end(TRACING);
        assert_eq!(place.begin(FREE, SlotError::Occupied), Err(SlotError::Occupied));
        assert_eq!(place.begin(TRACING, SlotError::Empty), Ok(()));
    }

    #[test]
    fn the_sink_counts_instructions_and_passes_on_steps_but_none_over_a_loss() {
        // 1000: call 1010; 1005: nop; 1010: ret
        static CODE: [u8; 17] = {
            let mut code = [0x90; 17];
            (code[0], code[1], code[2], code[3], code[4], code[16]) = (0xe8, 11, 0, 0, 0, 0xc3);
            code
        };
        let mut all = Vec::new();
        let code = Section { base: 0x1000, bytes: &CODE, space: AddressSpace::Any };
        let steps = counter(&mut all);
        let mut sink = Counted { hash: AddressHash::new(), calls: Calls::new(), code: [code], steps };
        let run = |ip, lengths| InstructionRun { ip, lengths };
        let interrupt = Event {
            kind: EventKind::AsyncBranch { from: 0x1005 },
            ip: None,
            when: Stamp::default(),
            offset: 0,
            status: false,
        };
        sink.insns(run(0x1000, 5));
        sink.insns(run(0x1010, 1));
        sink.event(&interrupt);
        sink.insns(run(0x1000, 5));
        sink.lost(&Lost::Gap { offset: 0, bytes: 1 });
        sink.insns(run(0x1010, 1));
        let mut expected = AddressHash::new();
        [0x1000, 0x1010, 0x1000, 0x1010].into_iter().for_each(|ip| expected.add(ip));
        assert_eq!((sink.hash, sink.steps.calls), (expected, 1));
        let kinds: Vec<_> = all.iter().map(|step| (step.kind, step.to)).collect();
        assert_eq!(kinds, [(0, 0x1010), (1, 0x1005), (2, 0x1000)]);
    }
}
