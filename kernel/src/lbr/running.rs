//! Last branch records that are on.

use super::{Branch, Unit};
use crate::msr::{GeneralProtection, Msr};
use core::mem::ManuallyDrop;

/// Last branch records that are on. Dropping it turns them off.
#[derive(Debug)]
pub struct Running<M: Msr> {
    unit: ManuallyDrop<Unit<M>>,
    freezes: bool,
    /// Somebody else records what excludes them.
    excluded: bool,
}

impl<M: Msr> Running<M> {
    pub(super) const fn new(unit: Unit<M>, freezes: bool) -> Self {
        Self { unit: ManuallyDrop::new(unit), freezes, excluded: false }
    }

    /// Writes the last branches to `out`, the newest first, as far as there are some and there is room, and goes on.
    /// Nothing is recorded meanwhile; what a PMI froze goes on too, unless somebody has begun to record what excludes it.
    ///
    /// # Errors
    ///
    /// An access raised #GP. They may stand still; the next call tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Branch]) -> Result<&'a [Branch], GeneralProtection> {
        self.unit.pause()?;
        let count = self.unit.read(out);
        self.excluded = self.unit.is_excluded()?;
        if !self.excluded {
            self.unit.turn_on(self.freezes)?;
        }
        let count = count?;
        Ok(out.get(..count).unwrap_or_default())
    }

    /// Whether they are off, as of the last [`Running::last`], because PT or the branch trace store came while a PMI had
    /// frozen them. The next call looks again.
    #[must_use]
    pub const fn is_excluded(&self) -> bool {
        self.excluded
    }

    /// Turns them off. What was recorded stays until the next start: [`Unit::last`].
    ///
    /// # Errors
    ///
    /// An access raised #GP: they may be on.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(mut self) -> Result<Unit<M>, StopFailed<M>> {
        match self.unit.turn_off(self.freezes) {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: taken once; `this` is neither used nor dropped any more.
                Ok(unsafe { ManuallyDrop::take(&mut this.unit) })
            }
            Err(fault) => Err(StopFailed { running: self, fault }),
        }
    }
}

impl<M: Msr> Drop for Running<M> {
    fn drop(&mut self) {
        // No memory is written: records that cannot be turned off only overwrite each other.
        let _ = self.unit.turn_off(self.freezes);
        // SAFETY: dropped once, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.unit) };
    }
}

/// Last branch records that could not be turned off: an access raised #GP. Another [`Running::stop`] tries again.
#[derive(Debug)]
pub struct StopFailed<M: Msr> {
    /// The records.
    pub running: Running<M>,
    /// The access.
    pub fault: GeneralProtection,
}
