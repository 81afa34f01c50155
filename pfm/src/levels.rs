//! Privilege levels at which a counter counts.

use bitflags::bitflags;

bitflags! {
    /// The levels at which a counter counts: libpfm's mask of privilege levels.
    ///
    /// AMD's counters distinguish the kernel, the user and, since family 10h, the host of virtual machines. The mask
    /// has levels 1 and 2 because libpfm3 refuses them with an error.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Levels: u32 {
        /// CPL 0.
        const KERNEL = 1 << 0;
        /// Level 1, which no counter can select.
        const LEVEL1 = 1 << 1;
        /// Level 2, which no counter can select.
        const LEVEL2 = 1 << 2;
        /// CPL above 0.
        const USER = 1 << 3;
        /// The host of virtual machines.
        const HOST = 1 << 4;
    }
}

impl Default for Levels {
    /// Returns kernel and user.
    fn default() -> Self {
        Self::KERNEL | Self::USER
    }
}
