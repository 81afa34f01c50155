//! NMIs that may arrive after a stop.

use crate::pmi::Handler;

/// What a stop returns if NMIs of the unit may still be on their way. The handler must know of them; otherwise the
/// kernel treats them as NMIs of another cause.
#[derive(Clone, Copy, Debug)]
#[must_use = "NMIs may still come: `LateNmis::expect` tells the handler"]
pub struct LateNmis<T> {
    nmis: u8,
    stopped: T,
}

impl<T> LateNmis<T> {
    pub(crate) const fn new(nmis: u8, stopped: T) -> Self {
        Self { nmis, stopped }
    }

    /// Tells the handler how many NMIs may still arrive, and returns what the stop returned.
    pub fn expect(self, handler: &mut Handler) -> T {
        handler.expect_late(self.nmis);
        self.stopped
    }
}
