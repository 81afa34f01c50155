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
        let halted = self.halt()?;
        let count = self.session_mut().unit.read(out);
        self.session_mut().go_on(halted)?;
        let count = count?;
        Ok(out.get(..count).unwrap_or_default())
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
}

impl<M: Msr> LbrSession<M> {
    pub(super) const fn new(unit: LbrUnit<M>, config: LbrConfig) -> Self {
        Self { unit, config, claimed: false, excluded: false }
    }

    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        self.excluded = self.unit.is_excluded()?;
        match self.excluded {
            true => Ok(()),
            false => self.unit.turn_on(self.config.freezes()),
        }
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
        Ok(self.unit.begin(&self.config)?)
    }

    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if self.claimed { self.unit.pause() } else { Ok(()) }
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
