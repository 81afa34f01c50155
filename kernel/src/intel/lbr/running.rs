//! Last branch records that are on.

use super::{Branch, LbrConfig, LbrRefusal, LbrUnit};
use crate::lifecycle::{self, Halted, Recording, Sealed, StartError};
use crate::msr::{GeneralProtection, Msr};

/// Last branch records that are on. A stop returns the unit. The records stay readable until the next start:
/// [`LbrUnit::last`].
pub type LbrRunning<M> = lifecycle::Running<LbrSession<M>>;

impl<M: Msr> LbrRunning<M> {
    /// Writes the last branches to `out`, the newest first, up to the length of `out`, and resumes. Nothing is recorded
    /// meanwhile. This also resumes records that a PMI froze, unless another owner has begun to record what excludes
    /// them.
    ///
    /// # Errors
    ///
    /// An access raised #GP. The records may be off; the next call tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Branch]) -> Result<&'a [Branch], GeneralProtection> {
        self.session_mut().look()?;
        let halted = self.halt()?;
        let count = self.session_mut().unit.read(out);
        self.session_mut().go_on(halted)?;
        let count = count?;
        Ok(out.get(..count).unwrap_or_default())
    }

    /// Returns whether the last [`LbrRunning::last`] found the records turned off, or filtered by others: what it
    /// returned are the branches before that, and branches since are missing. A debug exception turns them off, so that
    /// its handler sees what led there; a VM exit does, and so can another owner. The call has cleared the records and
    /// turned them on again.
    ///
    /// Source: SDM vol. 3, Debug, Branch Profile, TSC, "Monitoring Branches, Exceptions, and Interrupts"; VM Exits,
    /// "Loading Host Control Registers, Debug Registers, MSRs".
    #[must_use]
    pub fn was_turned_off(&self) -> bool {
        self.session().turned_off
    }

    /// Returns whether the records are off, as of the last [`LbrRunning::last`], because PT or the branch trace store
    /// was turned on while a PMI had frozen them. The next call of that method checks again.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        self.session().excluded
    }
}

/// The last branch records with their configuration.
#[derive(Debug)]
pub struct LbrSession<M: Msr> {
    unit: LbrUnit<M>,
    config: LbrConfig,
    /// Their registers belong to this session.
    claimed: bool,
    /// Another owner uses what excludes them.
    excluded: bool,
    /// The driver has turned them on, and not off since.
    on: bool,
    /// They were found off, or filtered by others.
    turned_off: bool,
}

impl<M: Msr> LbrSession<M> {
    pub(super) const fn new(unit: LbrUnit<M>, config: LbrConfig) -> Self {
        Self { unit, config, claimed: false, excluded: false, on: false, turned_off: false }
    }

    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        self.excluded = self.unit.is_excluded()?;
        match (self.excluded, self.turned_off) {
            (true, _) => return Ok(()),
            // Records from before and after would look like one run of branches.
            (false, true) => self.unit.begin(&self.config)?,
            (false, false) => self.unit.turn_on(self.config.freezes())?,
        }
        self.on = true;
        Ok(())
    }

    /// Looks whether something else has turned the records off. They must not be halted.
    fn look(&mut self) -> Result<(), GeneralProtection> {
        self.turned_off = self.on && !self.unit.is_as_left(&self.config)?;
        Ok(())
    }
}

impl<M: Msr> Sealed for LbrSession<M> {}

impl<M: Msr> Recording for LbrSession<M> {
    type Unit = LbrUnit<M>;
    type Memory = ();
    type Stopped = LbrUnit<M>;
    type Refusal = LbrRefusal;

    // Records that cannot be turned off only overwrite each other.
    const WRITES_MEMORY: bool = false;

    fn begin(&mut self) -> Result<(), StartError<LbrRefusal>> {
        self.unit.claim()?;
        self.claimed = true;
        self.unit.begin(&self.config)?;
        self.on = true;
        Ok(())
    }

    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if self.claimed {
            self.unit.pause()?;
        }
        self.on = false;
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        if self.claimed { self.unit.freeze_no_more(self.config.freezes()) } else { Ok(()) }
    }

    fn into_stopped(self) -> LbrUnit<M> {
        self.unit
    }

    fn into_parts(self) -> (LbrUnit<M>, ()) {
        (self.unit, ())
    }
}
