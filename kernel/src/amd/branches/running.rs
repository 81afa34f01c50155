//! A recorder of branches that is on.

use super::unit::POISON;
use super::{BranchConfig, BranchRefusal, BranchUnit, Recorded, Recorder};
use crate::lifecycle::{self, Halted, Recording, Sealed, StartError};
use crate::msr::amd::{DbgExtnCfg, branch_from, branch_to};
use crate::msr::{GeneralProtection, Msr, TypedMsr};

/// A recorder that is on. A stop returns the unit; the records stay readable until the next start.
pub type BranchRunning<M> = lifecycle::Running<BranchSession<M>>;

impl<M: Msr> BranchRunning<M> {
    /// Writes the last branches to `out`, the newest first, up to the length of `out`, and resumes. Nothing is recorded
    /// meanwhile. This also resumes records that a PMI froze; branch sampling restarts with empty records.
    ///
    /// # Errors
    ///
    /// An access raised #GP. The recorder may be off; the next call tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Recorded]) -> Result<&'a [Recorded], GeneralProtection> {
        let was_on = core::mem::take(&mut self.session_mut().on);
        let halted = self.halt()?;
        let session = self.session_mut();
        // Branch sampling ends by itself when it is full.
        let ends_itself = matches!(session.unit.recorder, Recorder::Sampling { .. });
        session.turned_off =
            was_on && !ends_itself && !session.found.contains(session.unit.recorder.enable());
        let count = match session.unit.recorder {
            Recorder::LbrV2 { depth, .. } => session.read(0..depth, out),
            Recorder::Sampling { .. } => session.read((0..session.found.recorded()).rev(), out),
        };
        session.begin_anew(halted)?;
        let count = count?;
        Ok(out.get(..count).unwrap_or_default())
    }

    /// Returns whether the last [`BranchRunning::last`] found LBR version 2 turned off by something else than the
    /// driver: what it returned are the branches before that. The call has turned it on again.
    #[must_use]
    pub fn was_turned_off(&self) -> bool {
        self.session().turned_off
    }

    /// Forgets what was recorded, because another task runs from now on.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn forget(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.halt()?;
        let session = self.session_mut();
        match session.unit.recorder {
            Recorder::LbrV2 { depth, .. } => {
                for n in 0..depth {
                    session.unit.write_at(branch_to(n), 0)?;
                }
            }
            // Branch sampling delays a counter's interrupt until it is full, and must not restart because of this.
            Recorder::Sampling { .. } => {
                if let Some(newest) = session.found.recorded().checked_sub(1) {
                    session.unit.write_at(branch_to(newest), POISON)?;
                }
            }
        }
        session.go_on(halted)
    }

    /// Pauses the recorder. Branch sampling must be off while the processor sleeps, because it would delay an interrupt
    /// until branches are executed again.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the recorder may be on.
    pub fn pause(&mut self) -> Result<(), GeneralProtection> {
        self.halt().map(|_| ())
    }

    /// Resumes the recorder after [`BranchRunning::pause`], and keeps its records.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the recorder may be off.
    pub fn resume(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.halt()?;
        self.session_mut().go_on(halted)
    }
}

/// A recorder with its configuration.
#[derive(Debug)]
pub struct BranchSession<M: Msr> {
    unit: BranchUnit<M>,
    config: BranchConfig,
    /// The value of DBG_EXTN_CFG when the recorder was halted.
    found: DbgExtnCfg,
    /// Its registers belong to this session.
    claimed: bool,
    /// The driver has turned it on, and not off since.
    on: bool,
    /// It was found off.
    turned_off: bool,
}

impl<M: Msr> BranchSession<M> {
    pub(super) const fn new(unit: BranchUnit<M>, config: BranchConfig) -> Self {
        Self { unit, config, found: DbgExtnCfg::empty(), claimed: false, on: false, turned_off: false }
    }

    /// Resumes the recorder; branch sampling restarts with empty records.
    fn begin_anew(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        // Records from before and after would look like one run of branches.
        match self.turned_off {
            true => self.unit.begin(&self.config)?,
            false => self.unit.resume(self.config.freeze_on_pmi)?,
        }
        self.on = true;
        Ok(())
    }

    /// Resumes the recorder and keeps its records.
    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        self.unit.go_on()?;
        self.on = true;
        Ok(())
    }

    /// Reads the records of `entries`, the newest first.
    fn read(
        &mut self,
        mut entries: impl Iterator<Item = u8>,
        out: &mut [Recorded],
    ) -> Result<usize, GeneralProtection> {
        let mut count = 0;
        while let Some(place) = out.get_mut(count) {
            let Some(n) = entries.next() else { break };
            let to = self.unit.msr.read_at(branch_to(n))?;
            if to == POISON {
                break;
            }
            let from = self.unit.msr.read_at(branch_from(n))?;
            let recorded = Recorded::of(self.unit.recorder, from, to);
            if let Some(recorded) = recorded.filter(|recorded| self.config.keeps(&recorded.branch)) {
                *place = recorded;
                count += 1;
            }
        }
        Ok(count)
    }
}

impl<M: Msr> Sealed for BranchSession<M> {}

impl<M: Msr> Recording for BranchSession<M> {
    type Unit = BranchUnit<M>;
    type Memory = ();
    type Stopped = BranchUnit<M>;
    type Refusal = BranchRefusal;

    // Records that cannot be turned off only overwrite each other.
    const WRITES_MEMORY: bool = false;

    fn begin(&mut self) -> Result<(), StartError<BranchRefusal>> {
        if let Some(in_use) = self.unit.in_use()? {
            return Err(in_use.into());
        }
        self.claimed = true;
        self.unit.begin(&self.config)?;
        self.on = true;
        Ok(())
    }

    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if self.claimed {
            self.found = self.unit.pause()?;
        }
        self.on = false;
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        if self.claimed { self.unit.freeze_no_more(self.config.freeze_on_pmi) } else { Ok(()) }
    }

    fn into_stopped(self) -> BranchUnit<M> {
        self.unit
    }

    fn into_parts(self) -> (BranchUnit<M>, ()) {
        (self.unit, ())
    }
}
