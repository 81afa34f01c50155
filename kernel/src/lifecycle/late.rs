//! NMIs that may arrive after a stop.

use crate::pmi::Handler;

/// The result of a stop if in-flight NMIs of the unit may still arrive. The handler must know of them; otherwise the
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

    /// Tells the handler the number of NMIs that may still arrive, and returns the stop's result.
    pub fn expect(self, handler: &mut Handler) -> T {
        handler.expect_late(self.nmis);
        self.stopped
    }
}
