//! One function, traced into memory.

use super::ShortError;
use crate::intel::pt::{Buffer, Layout, Mode, PtConfig, PtStopped, PtUnit};
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::Msr;
use core::hint::black_box;
use pugmark_decoder_core::calls::{Calls, Step};
use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::flow::InsnDecoder;
use pugmark_decoder_core::image::{Image, Section};

/// The trace of one function.
#[derive(Debug)]
pub struct Snapshot<M: Msr, F: Frames> {
    /// The stopped trace, with the unit, which can be started again.
    pub stopped: PtStopped<M, F>,
    config: Config<'static>,
    /// The address of the function that calls the traced one.
    enter: u64,
}

/// Traces `work` on this processor, into up to `bytes` bytes of memory. When they are full the trace ends, and
/// [`Snapshot::loss`] tells. On a processor whose ToPA has single entries (Broadwell) it ends when the first region is
/// full, which is 4 KiB of a [`FramePool`](super::FramePool): no interrupt moves it to the next one.
///
/// Call it with preemption disabled: the trace has what the processor executes meanwhile, whichever thread that is, and
/// interrupts. What it has depends on `config`, which must at least name a level ([`PtConfig::os`],
/// [`PtConfig::user`]).
///
/// # Errors
///
/// The processor has no Intel PT, another owner uses it, it refuses the configuration, there is no memory (`work` was
/// not called), or the unit does not stop.
pub fn snapshot<M: Msr, F: Frames, W: FnOnce()>(
    msr: M,
    memory: F,
    bytes: u64,
    config: &PtConfig,
    work: W,
) -> Result<Snapshot<M, F>, ShortError> {
    let unit = PtUnit::of_this_processor(msr)?;
    snapshot_of(unit, memory, bytes, config, work)
}

/// Does the same as [`snapshot`] with a unit that was detected before, such as one that was
/// [taken over](PtUnit::take_over).
///
/// # Errors
///
/// As for [`snapshot`], but for the detection.
pub fn snapshot_of<M: Msr, F: Frames, W: FnOnce()>(
    unit: PtUnit<M>,
    memory: F,
    bytes: u64,
    config: &PtConfig,
    work: W,
) -> Result<Snapshot<M, F>, ShortError> {
    let mode = Mode::StopWhenFull { spare: 1 };
    let buffer = Buffer::allocate(memory, unit.capabilities(), Layout::mixed_topa(bytes), mode)?;
    let decoder = config.for_decoder(unit.capabilities())?;
    // A pointer, so that the call is one in the trace, too.
    let enter: fn(W) = black_box(enter::<W>);
    let running = unit.start(config, buffer).map_err(|failed| failed.error())?;
    enter(work);
    let stopped = running.stop().map_err(|failed| failed.fault)?;
    Ok(Snapshot { stopped, config: decoder, enter: enter as *const () as u64 })
}

/// Calls `work`; the trace shows where that begins and ends.
#[inline(never)]
fn enter<W: FnOnce()>(work: W) {
    work();
    // No tail call: the return from here is after the one from `work`.
    black_box(());
}

impl<M: Msr, F: Frames> Snapshot<M, F> {
    /// Returns what was lost.
    #[must_use]
    pub const fn loss(&self) -> &Loss {
        &self.stopped.loss
    }

    /// Returns a decoder of the whole trace over this code. It begins in the driver, before `work`.
    ///
    /// The trace is copied to `scratch` where it is not one slice already: [`Trace::len`](crate::intel::pt::Trace::len)
    /// bytes.
    ///
    /// # Errors
    ///
    /// `scratch` is too small.
    pub fn decoder<'a>(
        &'a self,
        code: &'a [Section<'a>],
        scratch: &'a mut [u8],
    ) -> Result<InsnDecoder<'a>, ShortError> {
        let bytes = match self.stopped.trace.stretches().next() {
            None => &[],
            Some(stretch) => match stretch.as_slices() {
                Some((bytes, [])) => bytes,
                _ => stretch.copy_to(scratch).ok_or(ShortError::Scratch { needed: stretch.len() })?,
            },
        };
        let mut decoder = InsnDecoder::with_config(bytes, Image::new(code), self.config);
        decoder.sync_forward();
        Ok(decoder)
    }

    /// Returns the calls and returns in `work`, in order; a function that `work` calls is at depth 1.
    ///
    /// # Errors
    ///
    /// `scratch` is too small: see [`Snapshot::decoder`].
    pub fn calls<'a>(
        &'a self,
        code: &'a [Section<'a>],
        scratch: &'a mut [u8],
    ) -> Result<CallSteps<'a>, ShortError> {
        let flow = self.decoder(code, scratch)?;
        Ok(CallSteps { flow, calls: Calls::new(), enter: self.enter, root: None, ended: false })
    }
}

/// An iterator over calls and returns. It ends where the traced function returns, where the trace ends, and after an
/// error.
#[derive(Debug)]
pub struct CallSteps<'a> {
    flow: InsnDecoder<'a>,
    calls: Calls,
    enter: u64,
    /// The depth of the traced function, once it was called.
    root: Option<i64>,
    ended: bool,
}

impl Iterator for CallSteps<'_> {
    type Item = Result<Step, ShortError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let item = match self.flow.next() {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error.into()));
                }
            };
            let Some(step) = self.calls.step(&item) else { continue };
            match self.root {
                None if step.kind.enters() && step.to == self.enter => self.root = Some(step.depth),
                None => {}
                Some(root) if step.depth < root => break,
                Some(root) => return Some(Ok(Step { depth: step.depth - root, ..step })),
            }
        }
        self.ended = true;
        None
    }
}
