//! Last branch records that are on.

use super::{Branch, LbrConfig, LbrRefusal, LbrUnit};
use crate::lifecycle::{self, Halted, NotCurrent, Recording, Sealed, StartError};
use crate::loss::Gap;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::Abandoned;

/// Last branch records that are on. A stop returns the unit. The records stay readable until the next start:
/// [`LbrUnit::last`].
pub type LbrRunning<M> = lifecycle::Running<LbrSession<M>>;

impl<M: Msr> LbrRunning<M> {
    /// Writes the last branches to `out`, the newest first, up to the length of `out`, and resumes. Nothing is recorded
    /// meanwhile. This also resumes records that a PMI froze, unless another owner has begun a recording that excludes
    /// them.
    ///
    /// Source: SDM vol. 3, Debug, Branch Profile, TSC, "Monitoring Branches, Exceptions, and Interrupts"; VM Exits,
    /// "Loading Host Control Registers, Debug Registers, MSRs".
    ///
    /// # Errors
    ///
    /// The records were off before this call. The error has their branches, which are not the last ones:
    ///
    /// - something else had turned them off, or changed their filter. A debug exception turns them off, so that its
    ///   handler sees the branches that led there; a VM exit does, and so can another owner;
    /// - at the last call, PT or the branch trace store was on, which excludes them ([`LbrRunning::is_excluded`]);
    /// - at the last call, an access raised #GP.
    ///
    /// This call has cleared the records and turned them on again, unless they are still excluded. Or an access raised
    /// #GP: the records may be off, and the next call tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Branch]) -> Result<&'a [Branch], NotCurrent<'a, Branch>> {
        let (count, missing) = self.with(|session| session.read(out))?;
        NotCurrent::check(out, count, missing)
    }

    /// Returns whether the records are off, as of the last [`LbrRunning::last`], because PT or the branch trace store
    /// was turned on while a PMI had frozen them. The next call of that method checks again.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        self.session().missing == Some(Gap::Excluded)
    }
}

/// The last branch records with their configuration.
#[derive(Debug)]
pub struct LbrSession<M: Msr> {
    unit: LbrUnit<M>,
    config: LbrConfig,
    /// True if the records' registers belong to this session.
    claimed: bool,
    /// True while the driver has the records turned on.
    on: bool,
    /// The reason why branches are missing after those that are recorded.
    missing: Option<Gap>,
}

impl<M: Msr> LbrSession<M> {
    pub(super) const fn new(unit: LbrUnit<M>, config: LbrConfig) -> Self {
        Self { unit, config, claimed: false, on: false, missing: None }
    }

    /// Reads the records and resumes. Returns the number of branches, and the reason if others are missing after them.
    fn read(&mut self, out: &mut [Branch]) -> Result<(usize, Option<Gap>), GeneralProtection> {
        let halted = Halted::halt(self)?;
        let count = self.unit.read(out);
        let missing = self.missing;
        self.go_on(halted).inspect_err(|_| self.miss(Gap::Abandoned))?;
        Ok((count?, missing))
    }

    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        if self.unit.is_excluded()? {
            self.miss(Gap::Excluded);
            return Ok(());
        }
        match self.missing {
            // Records from before and after would look like one run of branches.
            Some(_) => self.unit.begin(&self.config)?,
            None => self.unit.turn_on(self.config.freezes())?,
        }
        (self.on, self.missing) = (true, None);
        Ok(())
    }

    /// Notes that branches are missing from here on. Of several reasons the first one is kept.
    fn miss(&mut self, why: Gap) {
        self.missing.get_or_insert(why);
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

    /// Turns the records off, and notes if something else had already done so.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if self.on && !self.unit.is_as_left(&self.config)? {
            self.miss(Gap::TurnedOff);
        }
        if self.claimed {
            self.unit.pause()?;
        }
        self.on = false;
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        if self.claimed { self.unit.freeze_no_more(self.config.freezes()) } else { Ok(()) }
    }

    /// Notes that the records were left off. Those that cannot be turned off continue.
    fn abandon(&mut self, _: Abandoned) {
        if self.halt().is_ok() {
            self.miss(Gap::Abandoned);
        }
    }

    fn into_stopped(self) -> LbrUnit<M> {
        self.unit.stopped(self.missing)
    }

    fn into_parts(self) -> (LbrUnit<M>, ()) {
        (self.unit, ())
    }
}
