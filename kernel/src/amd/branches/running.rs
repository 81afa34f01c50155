//! A recorder of branches that is on.

use super::unit::POISON;
use super::{BranchConfig, BranchRefusal, BranchUnit, Recorded, Recorder};
use crate::lifecycle::{self, Halted, NotCurrent, Recording, Sealed, StartError};
use crate::loss::Gap;
use crate::msr::amd::{DbgExtnCfg, branch_from, branch_to};
use crate::msr::{GeneralProtection, Msr, TypedMsr};
use crate::pmi::Abandoned;

/// A recorder that is on. A stop returns the unit; the records stay readable until the next start.
pub type BranchRunning<M> = lifecycle::Running<BranchSession<M>>;

impl<M: Msr> BranchRunning<M> {
    /// Writes the last branches to `out`, the newest first, up to the length of `out`, and resumes. Nothing is recorded
    /// meanwhile. This also resumes records that a PMI froze; branch sampling restarts with empty records.
    ///
    /// # Errors
    ///
    /// LBR version 2 was off before this call: something else had turned it off or changed its filter, or an access
    /// raised #GP at the last call. The error has its branches, which are not the last ones. This call has cleared the
    /// records and turned the recorder on again. Or an access raised #GP: the recorder may be off, and the next call
    /// tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Recorded]) -> Result<&'a [Recorded], NotCurrent<'a, Recorded>> {
        let (count, missing) = self.with(|session| session.read(out))?;
        NotCurrent::check(out, count, missing)
    }

    /// Discards the records, because another task runs from now on.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn forget(&mut self) -> Result<(), GeneralProtection> {
        self.with(|session| {
            let halted = Halted::halt(session)?;
            session
                .forget()
                .and_then(|()| session.go_on(halted))
                .inspect_err(|_| session.miss(Gap::Abandoned))
        })
    }

    /// Pauses the recorder. Branch sampling must be off while the processor sleeps, because it would delay an interrupt
    /// until branches are executed again.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the recorder may be on.
    pub fn pause(&mut self) -> Result<(), GeneralProtection> {
        self.with(|session| Halted::halt(session).map(|_| ()))
    }

    /// Resumes the recorder after [`BranchRunning::pause`], and keeps its records.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the recorder may be off.
    pub fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.with(|session| {
            let halted = Halted::halt(session)?;
            session.go_on(halted).inspect_err(|_| session.miss(Gap::Abandoned))
        })
    }
}

/// A recorder with its configuration.
#[derive(Debug)]
pub struct BranchSession<M: Msr> {
    unit: BranchUnit<M>,
    config: BranchConfig,
    /// The value of DBG_EXTN_CFG when the recorder was halted.
    found: DbgExtnCfg,
    /// True if the recorder's registers belong to this session.
    claimed: bool,
    /// True while the driver has the recorder turned on.
    on: bool,
    /// The reason why branches are missing after those that are recorded.
    missing: Option<Gap>,
}

impl<M: Msr> BranchSession<M> {
    pub(super) const fn new(unit: BranchUnit<M>, config: BranchConfig) -> Self {
        Self { unit, config, found: DbgExtnCfg::empty(), claimed: false, on: false, missing: None }
    }

    /// Reads the records and resumes. Returns the number of branches, and the reason if others are missing after them.
    fn read(&mut self, out: &mut [Recorded]) -> Result<(usize, Option<Gap>), GeneralProtection> {
        let halted = Halted::halt(self)?;
        let missing = self.missing;
        let count = match self.unit.recorder {
            Recorder::LbrV2 { depth, .. } => self.read_entries(0..depth, out),
            Recorder::Sampling { .. } => self.read_entries((0..self.found.recorded()).rev(), out),
        };
        self.begin_anew(halted).inspect_err(|_| self.miss(Gap::Abandoned))?;
        Ok((count?, missing))
    }

    /// Resumes the recorder; branch sampling restarts with empty records.
    fn begin_anew(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        if self.missing.is_some() {
            return self.go_on(halted);
        }
        self.unit.resume(self.config.freeze_on_pmi)?;
        self.on = true;
        Ok(())
    }

    /// Resumes the recorder and keeps its records, unless branches are missing after them.
    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        match self.missing {
            // Records from before and after would look like one run of branches.
            Some(_) => self.unit.begin(&self.config)?,
            None => self.unit.go_on()?,
        }
        (self.on, self.missing) = (true, None);
        Ok(())
    }

    fn forget(&mut self) -> Result<(), GeneralProtection> {
        match self.unit.recorder {
            Recorder::LbrV2 { depth, .. } => {
                for n in 0..depth {
                    self.unit.write_at(branch_to(n), 0)?;
                }
            }
            // Branch sampling delays a counter's interrupt until it is full, and must not restart for a change of
            // tasks.
            Recorder::Sampling { .. } => {
                if let Some(newest) = self.found.recorded().checked_sub(1) {
                    self.unit.write_at(branch_to(newest), POISON)?;
                }
            }
        }
        Ok(())
    }

    /// Notes that branches are missing from here on. Of several reasons the first one is kept. Does nothing for branch
    /// sampling, which records only at times.
    fn miss(&mut self, why: Gap) {
        if let Recorder::LbrV2 { .. } = self.unit.recorder {
            self.missing.get_or_insert(why);
        }
    }

    /// Reads the records of `entries`, the newest first.
    fn read_entries(
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

    /// Pauses the recorder, and notes if something else had turned it off before.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if self.on && !self.unit.is_as_left(&self.config)? {
            self.miss(Gap::TurnedOff);
        }
        if self.claimed {
            self.found = self.unit.pause()?;
        }
        self.on = false;
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        if self.claimed { self.unit.freeze_no_more(self.config.freeze_on_pmi) } else { Ok(()) }
    }

    /// Notes that the recorder was left off. One that cannot be paused continues.
    fn abandon(&mut self, _: Abandoned) {
        if self.halt().is_ok() {
            self.miss(Gap::Abandoned);
        }
    }

    fn into_stopped(self) -> BranchUnit<M> {
        self.unit
    }

    fn into_parts(self) -> (BranchUnit<M>, ()) {
        (self.unit, ())
    }
}
