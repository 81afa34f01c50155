//! Branch trace messages on the bus, without memory.

use super::{DsRefusal, DsUnit};
use crate::lifecycle::{Recording, Running, Sealed, StartError};
use crate::msr::{DebugFlags, GeneralProtection, Msr};
use crate::pmi::Abandoned;

/// A unit that sends branch trace messages without storing them. A stop returns the unit.
pub type Messages<M> = Running<MessageSession<M>>;

/// The debug store while it sends messages without storing them.
#[derive(Debug)]
pub struct MessageSession<M: Msr> {
    unit: DsUnit<M>,
    /// True while TR is set.
    on: bool,
}

impl<M: Msr> MessageSession<M> {
    pub(crate) const fn new(unit: DsUnit<M>) -> Self {
        Self { unit, on: false }
    }
}

impl<M: Msr> Sealed for MessageSession<M> {}

impl<M: Msr> Recording for MessageSession<M> {
    type Unit = DsUnit<M>;
    type Memory = ();
    type Stopped = DsUnit<M>;
    type Refusal = DsRefusal;

    // Without BTS nothing is written to memory: if TR cannot be cleared, that only costs bus cycles.
    const WRITES_MEMORY: bool = false;

    fn begin(&mut self) -> Result<(), StartError<DsRefusal>> {
        self.unit.claim_branches()?;
        self.unit.claim_area()?;
        self.on = true;
        Ok(self.unit.set(DebugFlags::TR)?)
    }

    fn halt(&mut self) -> Result<(), GeneralProtection> {
        // With BTS the messages are another owner's records.
        if self.on && !self.unit.stores_branches()? {
            self.unit.clear(DebugFlags::TR)?;
        }
        self.on = false;
        Ok(())
    }

    /// Does nothing: only a stop halts the messages.
    fn abandon(&mut self, _: Abandoned) {}

    fn into_stopped(self) -> DsUnit<M> {
        self.unit
    }

    fn into_parts(self) -> (DsUnit<M>, ()) {
        (self.unit, ())
    }
}
