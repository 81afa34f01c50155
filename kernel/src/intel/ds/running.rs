//! A debug store that records.

use super::session::DsSession;
use super::{DsState, Half, LinearMemory};
use crate::drain::Sink;
use crate::lifecycle::{self, Halted, Source};
use crate::loss::Loss;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::PmiSource;

/// A running recording of branches, samples or both, with the memory that the processor writes to. A stop also releases
/// the counters.
pub type DsRunning<M, L> = lifecycle::Running<DsSession<M, L>>;

impl<M: Msr, L: LinearMemory> DsRunning<M, L> {
    /// Returns the losses of a half, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self, half: Half) -> &Loss {
        self.session().loss(half)
    }

    /// Returns the state of a half, as of the last PMI or drain; `None` if it is not recorded.
    #[must_use]
    pub fn state(&self, half: Half) -> Option<DsState> {
        self.session().state(half)
    }

    /// Offers the records so far to the sinks, oldest first, and resumes. Records that they take are removed from the
    /// buffers; a circular buffer is only shown and keeps all records.
    ///
    /// # Errors
    ///
    /// An access raised #GP. If TR or a counter could not be stopped, that half still runs and nothing was handed over.
    /// Otherwise it is off, and the next call tries again.
    pub fn drain(
        &mut self,
        branches: &mut (impl Sink + ?Sized),
        samples: &mut (impl Sink + ?Sized),
    ) -> Result<(), GeneralProtection> {
        self.while_halted(|session, halted| session.deliver(branches, samples, halted))
    }

    /// Stops recording until [`DsRunning::resume`], for example while another task runs on this processor. IA32_DS_AREA
    /// stays set. If a task moves to another processor, stop the recording here and start one there, with that
    /// processor's unit. Drain the records first, because a start empties the area.
    ///
    /// # Errors
    ///
    /// TR or a counter could not be stopped: that half still runs.
    pub fn suspend(&mut self) -> Result<(), GeneralProtection> {
        self.with(|session| {
            session.halt_and_collect()?;
            session.suspend();
            Ok(())
        })
    }

    /// Resumes after [`DsRunning::suspend`].
    ///
    /// # Errors
    ///
    /// An access raised #GP: a part of the recording is off, and the next call tries again.
    pub fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.while_halted(|session, _| session.wake())
    }

    /// Runs a guest (VMX non-root operation) with both halves off: `run` enters it, and returns after the VM exit. Then
    /// the halves that were on resume; nothing is lost, because the guest is not to be recorded.
    ///
    /// **No VM entry may happen while this recording runs.** IA32_DS_AREA and the buffers' addresses are linear, and
    /// the processor translates them by the page tables in CR3. Those of the guest map other memory there: records
    /// would overwrite memory of the guest, or of a hypervisor without EPT, at these addresses.
    ///
    /// ```
    /// use pugmark_kernel::intel::ds::{DsRunning, LinearMemory};
    /// use pugmark_kernel::msr::{GeneralProtection, Msr};
    ///
    /// /// Enters a guest from a kernel that may be recording.
    /// fn run<M: Msr, L: LinearMemory>(
    ///     recording: Option<&mut DsRunning<M, L>>,
    ///     enter: impl FnOnce(),
    /// ) -> Result<(), GeneralProtection> {
    ///     match recording {
    ///         Some(recording) => recording.run_guest(enter),
    ///         None => Ok(enter()),
    ///     }
    /// }
    /// ```
    ///
    /// Source: SDM vol. 3, Debug, Branch Profile, TSC, "BTS and DS Save Area"; VM Exits, "Loading Host Control
    /// Registers, Debug Registers, MSRs": a VM exit clears IA32_DEBUGCTL.
    ///
    /// # Errors
    ///
    /// TR or a counter could not be stopped, and `run` was not called. A fault after `run` is reported by
    /// [`DsRunning::state`] and the next drain.
    pub fn run_guest<R>(&mut self, run: impl FnOnce() -> R) -> Result<R, GeneralProtection> {
        self.with(|session| {
            let halted = session.halt_and_collect()?;
            let result = run();
            if let Err(fault) = session.go_on(halted) {
                session.note_what_is_off(fault);
            }
            Ok(result)
        })
    }

    /// Calls `work` while both halves are halted, and resumes them.
    fn while_halted(
        &mut self,
        work: impl FnOnce(&mut DsSession<M, L>, &Halted),
    ) -> Result<(), GeneralProtection> {
        self.with(|session| {
            let halted = session.halt_and_collect()?;
            work(session, &halted);
            session.go_on(halted).inspect_err(|&fault| session.note_what_is_off(fault))
        })
    }

    /// Returns this recording as a source for a PMI handler, with the sinks that receive its records.
    pub fn source<B: Sink + ?Sized, P: Sink + ?Sized>(
        &mut self,
        branches: &mut B,
        samples: &mut P,
    ) -> impl PmiSource {
        Source::new(self, (branches, samples))
    }
}
