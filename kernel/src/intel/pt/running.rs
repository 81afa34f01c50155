//! A PT unit that traces.

use super::session::PtSession;
use super::stretch::Stretches;
use super::{NotSwitched, OperationalError, PtTask, VmxTracing};
use crate::drain::Sink;
use crate::lifecycle::{self, Halted, Source};
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Abandoned, PmiSource};
use pugmark_decoder_core::config::Config;

/// A running trace, with the memory that the processor writes to.
pub type PtRunning<M, F> = lifecycle::Running<PtSession<M, F>>;

/// The state of a started trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtState {
    /// The trace runs.
    Tracing,
    /// The trace is off until bytes are drained.
    Full,
    /// The trace is off because execution entered a TraceStop range.
    TraceStopped,
    /// The trace is off because another owner traces, or records branches (LBR or BTS), which excludes it. Once that
    /// ends, the trace resumes at the next drain, at the end of a PMI, or at [`PtRunning::go_on`].
    Excluded,
    /// The trace is off because the processor reported an operational error when it was resumed.
    Failed(OperationalError),
    /// The trace is off because the kernel suspended it; it resumes at [`PtRunning::wake`] and only there.
    Suspended,
    /// The trace is off because [`Slot::pause`](crate::slot::Slot::pause) paused it; it resumes at
    /// [`Slot::resume`](crate::slot::Slot::resume) and only there.
    Paused,
    /// The trace is off because the PMI handler gave up, or a call reported a fault. It resumes at the next drain, at
    /// the end of the next PMI, or at [`PtRunning::go_on`].
    Abandoned(Abandoned),
}

impl<M: Msr, F: Frames> PtRunning<M, F> {
    /// Returns the losses so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        self.session().loss()
    }

    /// Returns the state, as of the last PMI or drain.
    ///
    /// An operational error, a TraceStop range and a STOP region end a trace without a PMI. To notice that, a kernel
    /// must call [`PtRunning::drain`], which checks, from time to time; a kernel that relies on PMIs alone may wait
    /// forever. The same holds if VMXON, INIT or another owner clears TraceEn. The driver finds out when it turns the
    /// unit off the next time: it notes a [`Gap::TurnedOff`](crate::loss::Gap) and resumes.
    #[must_use]
    pub fn state(&self) -> PtState {
        self.session().state()
    }

    /// Returns the configuration of a decoder for this trace: see
    /// [`PtConfig::for_decoder`](super::PtConfig::for_decoder).
    #[must_use]
    pub fn decoder_config(&self) -> Config<'static> {
        self.session().decoder_config()
    }

    /// Returns the number of undrained bytes, as of the last PMI or drain.
    #[must_use]
    pub fn undrained(&self) -> u64 {
        self.session().undrained()
    }

    /// Offers the trace so far to `sink`, and resumes the trace. A full trace resumes if `sink` took something.
    ///
    /// # Errors
    ///
    /// An access raised #GP. If TraceEn could not be cleared, the trace still runs and nothing was handed over.
    /// Otherwise it is off, which [`PtRunning::state`] and a [`Gap`](crate::loss::Gap) report, and the next call tries
    /// again.
    pub fn drain(&mut self, sink: &mut (impl Sink + ?Sized)) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, halted| session.deliver(sink, halted))
    }

    /// Resumes a trace that is off after a TraceStop or an error; it begins with a PSB.
    ///
    /// # Errors
    ///
    /// As for [`PtRunning::drain`].
    pub fn go_on(&mut self) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, _| session.forgive())
    }

    /// Suspends the trace: the unit stays off in spite of PMIs, drains and [`PtRunning::go_on`], until
    /// [`PtRunning::wake`]. This counts as no loss: code that runs meanwhile should not be traced. The driver then
    /// expects nothing of the unit's registers, and writes them all when the trace wakes.
    ///
    /// A kernel suspends its traces
    ///
    /// - before VMXON, if [`PtRunning::vmx_tracing`] is [`VmxTracing::ClearedByVmxon`]: no write to IA32_RTIT_CTL is
    ///   legal until VMXOFF;
    /// - before the processor loses its registers: a sleep state, or INIT of a processor that is taken offline. The
    ///   local APIC loses the LVT entry then, too: after the kernel has enabled it again,
    ///   [`Slot::rearm`](crate::slot::Slot::rearm) programs the entry;
    /// - when it panics, to read the newest trace ([`PtRunning::stretches`]);
    /// - while no code runs that should be traced.
    ///
    /// ```
    /// use pugmark_kernel::intel::pt::{PtRunning, VmxTracing};
    /// use pugmark_kernel::{memory::Frames, msr::{GeneralProtection, Msr}};
    ///
    /// /// Enters and leaves VMX operation with a trace that runs outside of it.
    /// fn run_guest<M: Msr, F: Frames>(
    ///     trace: &mut PtRunning<M, F>,
    ///     vmxon_to_vmxoff: impl FnOnce(),
    /// ) -> Result<(), GeneralProtection> {
    ///     let off = trace.vmx_tracing() == VmxTracing::ClearedByVmxon;
    ///     if off {
    ///         trace.suspend()?;
    ///     }
    ///     vmxon_to_vmxoff();
    ///     if off {
    ///         trace.wake()?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Tracing of VMX Operations", "Configuration MSRs".
    ///
    /// # Errors
    ///
    /// An access raised #GP. If TraceEn could not be cleared, the trace still runs and is not suspended. Otherwise it
    /// is suspended, and another call reads its position.
    pub fn suspend(&mut self) -> Result<(), GeneralProtection> {
        self.with(|session| {
            let halted = Halted::halt(session)?;
            session.suspend(&halted)
        })
    }

    /// Resumes a suspended trace; it begins with a PSB. A trace that was off for another reason when it was suspended
    /// stays off for that reason.
    ///
    /// # Errors
    ///
    /// As for [`PtRunning::drain`].
    pub fn wake(&mut self) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, _| session.wake())
    }

    /// Resumes a trace that was paused, if the gate is open; [`Traced::resume`](crate::slot::Traced::resume) calls it.
    /// A trace that is off for another reason stays off.
    ///
    /// # Errors
    ///
    /// As for [`PtRunning::drain`].
    pub fn resume(&mut self) -> Result<PtState, GeneralProtection> {
        let same = self.with(|session| {
            session.resume_paused().inspect_err(|&fault| session.leave_off(Abandoned::Fault(fault)))
        })?;
        if same {
            return Ok(self.state());
        }
        // Another owner records branches: from now on the trace is off for that reason.
        self.while_halted(|_, _| ())
    }

    /// Returns the effect of VMX on a trace on this processor.
    pub fn vmx_tracing(&mut self) -> VmxTracing {
        self.session_mut().vmx_tracing()
    }

    /// Returns the undrained bytes of a suspended trace, in place; `None` if the trace is not suspended.
    /// [`Stretches::newest`] leaves out all but the end, for a kernel that panics:
    ///
    /// ```
    /// use pugmark_kernel::intel::pt::PtRunning;
    /// use pugmark_kernel::{memory::Frames, msr::Msr};
    ///
    /// /// Gives the last 16 KiB of a trace to the kernel's decoder, or to a port or memory that survives.
    /// fn on_panic<M: Msr, F: Frames>(trace: &mut PtRunning<M, F>, mut keep: impl FnMut(&[u8])) {
    ///     if trace.suspend().is_err() {
    ///         return;
    ///     }
    ///     for stretch in trace.stretches().into_iter().flat_map(|all| all.newest(16 << 10)) {
    ///         stretch.slices().for_each(&mut keep);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn stretches(&self) -> Option<Stretches<'_, F>> {
        self.session().stretches()
    }

    /// Returns the last operational error, if there was one: the processor's place, and the ToPA entry that it read
    /// there. The trace has resumed since, unless [`PtRunning::state`] is [`PtState::Failed`].
    #[must_use]
    pub fn last_error(&self) -> Option<OperationalError> {
        self.session().last_error()
    }

    /// Switches to the trace `coming`, as a kernel does when it switches threads, and returns the trace that ran
    /// here. That trace resumes when it is switched to again, here or on another processor.
    ///
    /// The unit is stopped and started once. That takes 5 writes of MSRs and 7 reads, one more write for a CR3 filter
    /// and two for each address range; a processor on which branch records exclude PT reads IA32_DEBUGCTL, too. The
    /// trace resumes with a PSB, which resets the last IP and the return stack: the processor compresses packets by
    /// them, and they are those of the other trace. Threads that are not traced need no trace: [`PtRunning::suspend`].
    /// A suspended unit stays off after a switch, too.
    ///
    /// A PMI of the trace that left may arrive after the switch. It drains the trace that came.
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "IP Compression", "Indirect Transfer Compression for Returns (RET)".
    ///
    /// # Errors
    ///
    /// Nothing was switched: `coming` was made for a processor with other capabilities, or an access raised #GP before
    /// the position of the trace here was read. If an access raises #GP after that, the switch is done, and
    /// [`PtRunning::state`] reports that the trace is off; its next drain tries again.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn switch(&mut self, coming: PtTask<F>) -> Result<PtTask<F>, NotSwitched<F>> {
        if let Err(error) = self.session().accepts(&coming) {
            return Err(NotSwitched { coming, error });
        }
        self.with(|session| match session.halt_and_collect() {
            Ok(halted) => Ok(session.exchange(coming, halted)),
            Err(fault) => Err(NotSwitched { coming, error: fault.into() }),
        })
    }

    /// Returns this trace as a source for a PMI handler, with the sink that receives its bytes.
    pub fn source<S: Sink + ?Sized>(&mut self, sink: &mut S) -> impl PmiSource {
        Source::new(self, sink)
    }

    /// Calls `work` while the unit is halted, and resumes it.
    fn while_halted(
        &mut self,
        work: impl FnOnce(&mut PtSession<M, F>, &Halted),
    ) -> Result<PtState, GeneralProtection> {
        self.with(|session| {
            let halted = session.halt_and_collect()?;
            work(session, &halted);
            session.go_on(halted).inspect_err(|&fault| session.leave_off(Abandoned::Fault(fault)))?;
            Ok(session.state())
        })
    }
}
