//! Branch trace messages without memory.

use super::Control;
use crate::ds::Unit;
use crate::msr::{GeneralProtection, Msr};
use core::mem::ManuallyDrop;

/// Branch trace messages are sent and not stored.
#[derive(Debug)]
pub struct Messages<M: Msr> {
    unit: ManuallyDrop<Unit<M>>,
}

impl<M: Msr> Messages<M> {
    pub(crate) const fn new(unit: Unit<M>) -> Self {
        Self { unit: ManuallyDrop::new(unit) }
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// The control register raised #GP: they are still sent.
    pub fn stop(mut self) -> Result<Unit<M>, (Self, GeneralProtection)> {
        match self.unit.clear(Control::TR) {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: taken once; `this` is neither used nor dropped any more.
                Ok(unsafe { ManuallyDrop::take(&mut this.unit) })
            }
            Err(fault) => Err((self, fault)),
        }
    }
}

impl<M: Msr> Drop for Messages<M> {
    fn drop(&mut self) {
        // Without BTS nothing is written to memory: a TR that cannot be cleared only costs bus cycles.
        let _ = self.unit.clear(Control::TR);
        // SAFETY: dropped once, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.unit) };
    }
}
