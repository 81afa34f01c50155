//! A recorder that is on.

use super::unit::POISON;
use super::{Recorded, Recorder, Unit};
use crate::msr::amd::{branch_from, branch_to};
use crate::msr::{GeneralProtection, Msr};
use core::mem::ManuallyDrop;

/// A recorder that is on. Dropping it turns it off.
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
    /// Nothing is recorded meanwhile; what a PMI froze goes on too, and branch sampling begins anew.
    ///
    /// # Errors
    ///
    /// An access raised #GP. It may stand still; the next call tries again.
    pub fn last<'a>(&mut self, out: &'a mut [Recorded]) -> Result<&'a [Recorded], GeneralProtection> {
        let config = self.unit.pause()?;
        let count = match self.unit.recorder {
            Recorder::LbrV2 { depth, .. } => self.read(0..depth, out),
            Recorder::Sampling { .. } => self.read((0..config.recorded()).rev(), out),
        };
        self.unit.resume(self.freezes)?;
        let count = count?;
        Ok(out.get(..count).unwrap_or_default())
    }

    /// What was recorded is somebody else's: another task runs from here on.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn forget(&mut self) -> Result<(), GeneralProtection> {
        let config = self.unit.pause()?;
        match self.unit.recorder {
            Recorder::LbrV2 { depth, .. } => {
                for n in 0..depth {
                    self.unit.wrmsr(branch_to(n), 0)?;
                }
            }
            // It holds a counter's interrupt back until it is full, and must not begin anew for that.
            Recorder::Sampling { .. } => {
                if let Some(newest) = config.recorded().checked_sub(1) {
                    self.unit.wrmsr(branch_to(newest), POISON)?;
                }
                return self.unit.go_on();
            }
        }
        self.unit.resume(false)
    }

    /// Stops it for a while: branch sampling must be off while the processor sleeps, for it would hold an interrupt
    /// back until there are branches again.
    ///
    /// # Errors
    ///
    /// An access raised #GP: it may be on.
    pub fn pause(&mut self) -> Result<(), GeneralProtection> {
        self.unit.pause().map(|_| ())
    }

    /// Lets it go on behind [`Running::pause`], with what it has.
    ///
    /// # Errors
    ///
    /// An access raised #GP: it may be off.
    pub fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.unit.go_on()
    }

    /// Turns it off. What was recorded stays until the next start.
    ///
    /// # Errors
    ///
    /// An access raised #GP: it may be on.
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

    /// The records of `entries`, the newest first.
    fn read(
        &mut self,
        mut entries: impl Iterator<Item = u8>,
        out: &mut [Recorded],
    ) -> Result<usize, GeneralProtection> {
        let mut count = 0;
        while let Some(place) = out.get_mut(count) {
            let Some(n) = entries.next() else { break };
            let to = self.unit.msr.rdmsr(branch_to(n))?;
            if to == POISON {
                break;
            }
            let from = self.unit.msr.rdmsr(branch_from(n))?;
            if let Some(recorded) = Recorded::of(self.unit.recorder, from, to) {
                *place = recorded;
                count += 1;
            }
        }
        Ok(count)
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

/// A recorder that could not be turned off: an access raised #GP. Another [`Running::stop`] tries again.
#[derive(Debug)]
pub struct StopFailed<M: Msr> {
    /// The recorder.
    pub running: Running<M>,
    /// The access.
    pub fault: GeneralProtection,
}
