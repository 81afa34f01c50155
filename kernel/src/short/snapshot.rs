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

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::calls::StepKind::{Call, Return};
    use pugmark_decoder_core::image::AddressSpace;

    /// 1000: call 1010, which calls the traced function; 1005: call 1020; 1010: call 1020; 1015: ret; 1020: call 1030;
    /// 1025: ret; 1030: ret.
    const CODE: [u8; 0x31] = {
        let mut code = [0x90; 0x31];
        let calls = [(0x00, 0x0b), (0x05, 0x16), (0x10, 0x0b), (0x20, 0x0b)];
        let mut n = 0;
        while n < calls.len() {
            let (at, displacement) = calls[n];
            (code[at], code[at + 1]) = (0xe8, displacement);
            (code[at + 2], code[at + 3], code[at + 4]) = (0, 0, 0);
            n += 1;
        }
        (code[0x15], code[0x25], code[0x30]) = (0xc3, 0xc3, 0xc3);
        code
    };

    /// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
    const START: &[u8] = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";

    fn steps(packets: &[u8]) -> Vec<Result<Step, ShortError>> {
        let code = [Section { base: 0x1000, bytes: &CODE, space: AddressSpace::Any }];
        let trace = [START, packets].concat();
        let mut flow = InsnDecoder::new(&trace, Image::new(&code));
        flow.sync_forward();
        let mut steps = CallSteps { flow, calls: Calls::new(), enter: 0x1010, root: None, ended: false };
        let found = steps.by_ref().take(20).collect();
        assert!(steps.next().is_none(), "it goes on after its end");
        found
    }

    #[test]
    fn the_steps_are_those_of_the_traced_function_from_its_call_to_its_return() {
        // Five compressed returns: the last two are of the second call of 1020.
        let found = steps(&[0x7e]);
        let found: Vec<_> =
            found.into_iter().map(|step| step.map(|step| (step.kind, step.to, step.depth))).collect();
        let expected = [(Call, 0x1020, 1), (Call, 0x1030, 2), (Return, 0x1025, 1), (Return, 0x1015, 0)];
        assert_eq!(found, expected.map(Ok));
    }

    #[test]
    fn the_steps_end_with_the_trace_and_with_an_error() {
        // One return, to a return of which the trace knows nothing.
        assert_eq!(steps(&[0x06]).len(), 2);
        let found = steps(&[0x06, 0x02, 0xff]);
        assert!(matches!(found[..], [Ok(_), Ok(_), Err(ShortError::Decode(_))]), "{found:?}");
    }
}
