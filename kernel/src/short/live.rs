//! A processor's trace that is decoded while it is recorded.

use super::{FramePool, ShortError};
use crate::intel::pt::{Buffer, Feature, Layout, Mode, PtConfig, PtDecoder, PtTracer, PtUnit, RegionSize};
use crate::lapic::{Delivery, LocalApic};
use crate::lifecycle::Absent;
use crate::loss::Loss;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Handler, Pmi};
use crate::slot::{Slot, SlotError};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::resume::{BlockStream, Kept};

/// One processor's trace with all that decoding it takes: a `static` of the kernel, which never moves. Each interrupt
/// decodes what the processor has written since the last one, and passes it to the sink `S`.
///
/// `BLOCKS` is the number of words for the code that was decoded, four for each block at least; with few of them code
/// is decoded again. `SECTIONS` is the number of sections of code: one for the kernel, and one for each program. The
/// handler needs [`HANDLER_STACK`](crate::pmi::HANDLER_STACK) bytes of stack, and the sink comes
/// on top.
///
/// A kernel with several processors has an array of these.
///
/// ```
/// use pugmark_kernel::arch::PlainMsr;
/// use pugmark_kernel::intel::pt::PtConfig;
/// use pugmark_kernel::lapic::{Delivery, XApic};
/// use pugmark_kernel::pmi::Pmi;
/// use pugmark_kernel::short::{FramePool, Live, ShortError};
/// use pugmark_decoder_core::event::Event;
/// use pugmark_decoder_core::block_cache::{ExecutionSink, InstructionRun};
/// use pugmark_decoder_core::image::Section;
///
/// const OFFSET: u64 = 0xffff_8000_0000_0000;
///
/// /// Counts instructions.
/// struct Count(u64);
///
/// impl ExecutionSink for Count {
///     const INSNS: bool = true;
///     fn insns(&mut self, insns: InstructionRun) {
///         self.0 += insns.count() as u64;
///     }
///     fn event(&mut self, _: &Event) {}
/// }
///
/// fn processor() -> (PlainMsr, XApic) {
///     // SAFETY: the kernel runs at CPL 0; it has mapped the local APIC's page there, uncached.
///     unsafe { (PlainMsr::new(), XApic::at_offset(OFFSET)) }
/// }
///
/// // SAFETY: this kernel has one processor.
/// static LIVE: Live<PlainMsr, XApic, Count> = unsafe { Live::new(Delivery::Nmi, processor) };
///
/// /// The kernel's NMI handler, with the RIP that the processor pushed.
/// fn nmi(rip: u64) {
///     assert!(LIVE.interrupt(rip).is_ok_and(|pmi| pmi != Pmi::NotOurs), "an NMI of something else");
/// }
///
/// fn trace(memory: FramePool, code: Section<'static>, work: fn()) -> Result<u64, ShortError> {
///     LIVE.start(memory, [code], &PtConfig::new().os(true), Count(0))?;
///     work();
///     let ended = LIVE.stop()?;
///     assert!(ended.is_whole(), "{}, {} errors", ended.loss, ended.errors);
///     Ok(ended.sink.0)
/// }
/// ```
#[derive(Debug)]
pub struct Live<
    M: Msr + 'static,
    A,
    S: 'static,
    const BLOCKS: usize = { 16 << 10 },
    const SECTIONS: usize = 1,
> {
    slot: LiveSlot<M, A, S>,
    processor: fn() -> (M, A),
    /// True from a start to the end of its stop: what is in `parts` is in use.
    in_use: AtomicBool,
    parts: UnsafeCell<Parts<BLOCKS, SECTIONS>>,
}

/// The trace of a [`Live`], with its decoder.
pub type LiveTracer<M, S> = PtTracer<M, &'static FramePool, PtDecoder<'static, 'static, 'static, S>>;
/// The slot of a [`Live`].
pub type LiveSlot<M, A, S> = Slot<LiveTracer<M, S>, fn() -> (M, A)>;

/// The parts that a trace borrows.
#[derive(Debug)]
struct Parts<const BLOCKS: usize, const SECTIONS: usize> {
    kept: Kept,
    blocks: [u32; BLOCKS],
    code: [Section<'static>; SECTIONS],
    memory: Option<FramePool>,
}

// SAFETY: the slot is, `in_use` is atomic, and who has set it is the only user of `parts`.
unsafe impl<M: Msr, A, S, const BLOCKS: usize, const SECTIONS: usize> Sync
    for Live<M, A, S, BLOCKS, SECTIONS>
{
}

/// The end of a trace.
#[derive(Debug)]
pub struct Ended<S> {
    /// The sink.
    pub sink: S,
    /// The losses of the driver.
    pub loss: Loss,
    /// The number of places where the trace could not be decoded.
    pub errors: u64,
    /// The number of bytes decoded.
    pub bytes: u64,
    /// The memory.
    pub memory: FramePool,
}

impl<S> Ended<S> {
    /// Returns whether nothing was lost and everything was decoded.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.loss.is_none() && self.errors == 0
    }
}

impl<M: Msr, A: LocalApic, S: ExecutionSink, const BLOCKS: usize, const SECTIONS: usize>
    Live<M, A, S, BLOCKS, SECTIONS>
{
    /// Creates it without a trace.
    ///
    /// # Safety
    ///
    /// Only one logical processor may ever use it, and no thread may move to another one while it is in one of the
    /// methods. `processor` creates values for that processor.
    #[must_use]
    pub const unsafe fn new(delivery: Delivery, processor: fn() -> (M, A)) -> Self {
        let code = [Section { base: 0, bytes: &[], space: AddressSpace::Any }; SECTIONS];
        let parts = Parts { kept: Kept::new(), blocks: [0; BLOCKS], code, memory: None };
        // SAFETY: the caller promises the same.
        let slot = unsafe { Slot::new(Handler::new(delivery), processor) };
        Self { slot, processor, in_use: AtomicBool::new(false), parts: UnsafeCell::new(parts) }
    }

    /// Returns the slot, to pause and resume the trace, and to read the handler's counts.
    #[must_use]
    pub const fn slot(&self) -> &LiveSlot<M, A, S> {
        &self.slot
    }

    /// Starts a trace into all of this memory, over this code. It starts paused if the slot is
    /// [paused](Slot::pause).
    ///
    /// # Errors
    ///
    /// There is a trace (the frames of `memory` are lost then); the processor has no Intel PT; another owner uses it;
    /// it refuses the configuration or the memory; or the local APIC is disabled. [`Live::take_memory`] returns the
    /// memory.
    pub fn start(
        &'static self,
        memory: FramePool,
        code: [Section<'static>; SECTIONS],
        config: &PtConfig,
        sink: S,
    ) -> Result<(), ShortError> {
        self.start_by(memory, code, config, sink, PtUnit::of_this_processor)
    }

    /// Does the same with a unit that was detected before, such as one that was
    /// [taken over](PtUnit::take_over).
    ///
    /// # Errors
    ///
    /// As for [`Live::start`].
    pub fn start_unit(
        &'static self,
        unit: PtUnit<M>,
        memory: FramePool,
        code: [Section<'static>; SECTIONS],
        config: &PtConfig,
        sink: S,
    ) -> Result<(), ShortError> {
        self.start_by(memory, code, config, sink, |_| Ok(unit))
    }

    fn start_by(
        &'static self,
        memory: FramePool,
        code: [Section<'static>; SECTIONS],
        config: &PtConfig,
        sink: S,
        unit: impl FnOnce(M) -> Result<PtUnit<M>, Absent>,
    ) -> Result<(), ShortError> {
        let use_ = Use::begin(&self.in_use)?;
        // SAFETY: nobody else uses the parts.
        let Parts { kept, blocks, code: place, memory: pool } = unsafe { &mut *self.parts.get() };
        let pool: &'static FramePool = pool.insert(memory);
        *place = code;
        let unit = unit((self.processor)().0)?.gated_by(self.slot.gate());
        let regions = match unit.capabilities().has(Feature::TopaMultipleEntries) {
            true => pool.bytes() / RegionSize::K4.bytes(),
            // Each region has a table of its own.
            false => pool.frames() / 2,
        } as u32;
        // The other half is for what is traced until the interrupt is served.
        let (layout, mode) =
            (Layout::topa(RegionSize::K4, regions), Mode::StopWhenFull { spare: regions / 2 });
        let buffer = Buffer::allocate(pool, unit.capabilities(), layout, mode)?;
        let stream = BlockStream::new(Image::new(place), config.for_decoder(unit.capabilities())?, kept);
        let decoder = PtDecoder::new(stream, BlockCache::new(blocks), sink);
        self.slot.start(|| PtTracer::start(unit, config, buffer, decoder))?;
        core::mem::forget(use_);
        Ok(())
    }

    /// Serves an interrupt, in the handler of the delivery. `rip` is the address that the processor pushed.
    ///
    /// # Errors
    ///
    /// An access raised #GP: see [`Slot::interrupt`].
    pub fn interrupt(&self, rip: u64) -> Result<Pmi, GeneralProtection> {
        self.slot.interrupt(Some(rip))
    }

    /// Stops the trace, and decodes the rest.
    ///
    /// # Errors
    ///
    /// There is no trace, or the slot is in use; or the unit does not stop: then the sink is dropped.
    pub fn stop(&'static self) -> Result<Ended<S>, ShortError> {
        let stopped = self.slot.stop(|tracer, _| tracer.stop())?;
        // The trace is out of the slot, so nothing else uses the parts when this function returns.
        let _use = Use(&self.in_use);
        let (stopped, mut decoder) = stopped?;
        decoder.finish();
        let (loss, errors, bytes) = (stopped.loss, decoder.stream.errors(), decoder.bytes_decoded());
        let PtDecoder { sink, .. } = decoder;
        // Its memory goes back to the pool.
        drop(stopped);
        // SAFETY: `in_use` is true, and the trace that borrowed the parts is gone.
        let memory = unsafe { (*self.parts.get()).memory.take() };
        let memory = memory.ok_or(SlotError::Empty)?;
        Ok(Ended { sink, loss, errors, bytes, memory })
    }

    /// Returns the memory of a trace that did not start or stop, without blocks that the processor may still write to.
    pub fn take_memory(&'static self) -> Option<FramePool> {
        let _use = Use::begin(&self.in_use).ok()?;
        // SAFETY: nobody else uses the parts.
        unsafe { (*self.parts.get()).memory.take() }
    }
}

/// The right to use the parts, given back on drop.
struct Use<'a>(&'a AtomicBool);

impl<'a> Use<'a> {
    fn begin(in_use: &'a AtomicBool) -> Result<Self, SlotError> {
        match in_use.swap(true, Ordering::Acquire) {
            true => Err(SlotError::Occupied),
            false => Ok(Self(in_use)),
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
