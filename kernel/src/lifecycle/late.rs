//! NMIs that may come after a stop.

use crate::pmi::Handler;

/// What a stop gives back where NMIs of the unit may still be on their way: the handler must know of them, or the kernel
/// takes them for somebody else's.
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

    /// Tells the handler of the NMIs that may come, and gives what the stop gave back.
    pub fn expect(self, handler: &mut Handler) -> T {
        handler.expect_late(self.nmis);
        self.stopped
    }
}
