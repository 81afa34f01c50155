//! The trace of a thread that does not run.

use super::config::{Checked, PtConfig};
use super::gaps::Gaps;
use super::ring::Ring;
use super::{Buffer, OperationalError, PtCapabilities, PtRefusal, PtState};
use crate::lifecycle::StartError;
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::{RtitCtl, RtitStatus};
use core::fmt;

/// The trace of a thread while the thread does not run: its memory, configuration and position. A kernel keeps it with
/// the thread and gives it to [`PtRunning::switch`](super::PtRunning::switch) when the thread is to run. Unlike a unit
/// it may move to another processor of the same kind.
///
/// ```
/// use pugmark_kernel::intel::pt::{PtRunning, PtTask};
/// use pugmark_kernel::{memory::Frames, msr::Msr};
///
/// /// A thread's trace, in a kernel. `None` while the thread runs: then the processor's trace is this thread's.
/// struct Thread<F: Frames> {
///     trace: Option<PtTask<F>>,
/// }
///
/// /// Called with interrupts disabled, in the processor's slot, when `next` is to run in place of `last`.
/// fn on_switch<M: Msr, F: Frames>(here: &mut PtRunning<M, F>, last: &mut Thread<F>, next: &mut Thread<F>) {
///     let Some(coming) = next.trace.take() else { return };
///     match here.switch(coming) {
///         Ok(left) => last.trace = Some(left),
///         Err(failed) => {
///             println!("{failed}");
///             next.trace = Some(failed.coming);
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct PtTask<F: Frames> {
    pub(super) capabilities: PtCapabilities,
    pub(super) buffer: Buffer<F>,
    pub(super) checked: Checked,
    pub(super) ctl: RtitCtl,
    pub(super) status: RtitStatus,
    pub(super) ring: Ring,
    pub(super) gaps: Gaps,
    pub(super) loss: Loss,
    pub(super) state: PtState,
    pub(super) error: Option<OperationalError>,
    pub(super) filled: bool,
    pub(super) guarded: bool,
    /// True if the trace has run before.
    pub(super) begun: bool,
}

impl<F: Frames> PtTask<F> {
    /// Creates the trace of a thread that has not run yet, for processors with these capabilities.
    ///
    /// # Errors
    ///
    /// The processor refuses the configuration or the buffer, which is returned.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn new(
        capabilities: &PtCapabilities,
        config: &PtConfig,
        buffer: Buffer<F>,
    ) -> Result<Self, (Buffer<F>, PtRefusal)> {
        let checked = match buffer.check(capabilities) {
            Ok(()) => config.checked(capabilities).map_err(PtRefusal::from),
            Err(error) => Err(error.into()),
        };
        let checked = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Err((buffer, refusal)),
        };
        Ok(Self {
            capabilities: *capabilities,
            ctl: checked.ctl.union(buffer.ctl()),
            ring: Ring::new(buffer.shape()),
            buffer,
            checked,
            status: RtitStatus::empty(),
            gaps: Gaps::new(),
            loss: Loss::NONE,
            state: PtState::Tracing,
            error: None,
            filled: false,
            guarded: false,
            begun: false,
        })
    }

    /// Returns the losses so far.
    #[must_use]
    pub const fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Returns the undrained trace, and the memory for another trace: for a thread that has ended.
    #[must_use]
    pub fn into_trace(self) -> super::Trace<F> {
        super::Trace::new(self.buffer, self.ring, self.gaps)
    }
}

/// A switch that did not happen.
pub struct NotSwitched<F: Frames> {
    /// The trace that should have run.
    pub coming: PtTask<F>,
    /// The reason.
    pub error: StartError<PtRefusal>,
}

impl<F: Frames> fmt::Debug for NotSwitched<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotSwitched").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<F: Frames> fmt::Display for NotSwitched<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the trace was not switched: {}", self.error)
    }
}

impl<F: Frames> core::error::Error for NotSwitched<F> {}
