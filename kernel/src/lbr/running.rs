//! Last branch records that are on.

use super::stack::Entries;
use super::{Branch, Unit};
use crate::msr::{GeneralProtection, Msr};
use core::mem::ManuallyDrop;

/// Last branch records that are on. Dropping it turns them off.
#[derive(Debug)]
pub struct Running<M: Msr> {
    unit: ManuallyDrop<Unit<M>>,
    freezes: bool,
}

impl<M: Msr> Running<M> {
    pub(super) const fn new(unit: Unit<M>, freezes: bool) -> Self {
        Self { unit: ManuallyDrop::new(unit), freezes }
    }

    /// Writes the last branches to `out`, the newest first, as far as there are some and there is room, and goes on.
    /// Nothing is recorded meanwhile; what a PMI froze goes on too.
    ///
    /// # Errors
    ///
    /// An access raised #GP. They may stand still; the next call tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Branch]) -> Result<&'a [Branch], GeneralProtection> {
        self.unit.pause()?;
        let count = self.read(out);
        self.unit.turn_on(self.freezes)?;
        let count = count?;
        Ok(out.get(..count).unwrap_or_default())
    }

    /// Turns them off. What was recorded stays until the next start.
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

    fn read(&mut self, out: &mut [Branch]) -> Result<usize, GeneralProtection> {
        let (stack, format) = (self.unit.capabilities().stack, self.unit.capabilities().format);
        let depth = u32::from(stack.depth);
        let top = match stack.top {
            // Reserved bits above the index.
            Some(register) => self.unit.msr.rdmsr(register)? as u32 % depth,
            None => 0,
        };
        let mut count = 0;
        for (n, out) in (0..depth).zip(out) {
            // The older ones are below the top, and above it where there is none.
            let entry = match stack.top {
                Some(_) => (top + depth - n) % depth,
                None => n,
            };
            let (from, to, info) = self.entry(stack.entries, entry, format.has_info())?;
            let Some(branch) = format.branch(from, to, info) else { break };
            *out = branch;
            count += 1;
        }
        Ok(count)
    }

    fn entry(
        &mut self,
        entries: Entries,
        n: u32,
        with_info: bool,
    ) -> Result<(u64, u64, u64), GeneralProtection> {
        let msr = &mut self.unit.msr;
        match entries {
            Entries::One { first } => {
                let both = msr.rdmsr(first + n)?;
                Ok((u64::from(both as u32), both >> 32, 0))
            }
            Entries::Two { from, to } => Ok((msr.rdmsr(from + n)?, msr.rdmsr(to + n)?, 0)),
            Entries::Three { from, to, info } => {
                let info = if with_info { msr.rdmsr(info + n)? } else { 0 };
                Ok((msr.rdmsr(from + n)?, msr.rdmsr(to + n)?, info))
            }
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
