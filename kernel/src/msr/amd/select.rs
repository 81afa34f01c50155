//! The event select register of a counter, PERFEVTSELn.

use bitflags::bitflags;

bitflags! {
    /// PERFEVTSELn (`C001_0000 + n`, since family 15h `C001_0200 + 2n`): the event that counter n counts.
    ///
    /// Reset: 0. Scope: logical processor. Source: APM vol. 2, Debug and Performance Resources,
    /// "Performance Event-Select Registers".
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PerfEvtSel: u64 {
        /// EventSelect: the low eight bits of the event.
        const EVENT_LOW = 0xff;
        /// UnitMask: the parts of the event to count.
        const UNIT_MASK = 0xff << 8;
        /// USR: count above CPL 0.
        const USR = 1 << 16;
        /// OS: count at CPL 0.
        const OS = 1 << 17;
        /// EDGE: count edges instead of levels.
        const EDGE = 1 << 18;
        /// PC: pin control; reserved on newer families.
        const PC = 1 << 19;
        /// INT: an overflow raises the performance interrupt of the local APIC.
        const INT = 1 << 20;
        /// EN: the counter counts.
        const EN = 1 << 22;
        /// INV: invert the comparison with the counter mask.
        const INV = 1 << 23;
        /// CNT_MASK: if n is above 0, count the clocks with at least n events; with INV those with fewer.
        const CNT_MASK = 0xff << 24;
        /// EventSelect: the high four bits of the event, since family 10h.
        const EVENT_HIGH = 0xf << 32;
        /// GuestOnly: count only in guests, since family 10h.
        const GUEST_ONLY = 1 << 40;
        /// HostOnly: count only in the host, since family 10h; with SVM off nothing is counted.
        const HOST_ONLY = 1 << 41;
    }
}

impl PerfEvtSel {
    /// The fields that only family 10h and later have.
    pub const SINCE_FAM10H: Self = Self::EVENT_HIGH.union(Self::GUEST_ONLY).union(Self::HOST_ONLY);

    /// Returns the event select, 12 bits.
    #[must_use]
    pub const fn event(self) -> u16 {
        (self.bits() & 0xff | self.bits() >> 24 & 0xf00) as u16
    }

    /// Returns the unit mask.
    #[must_use]
    pub const fn unit_mask(self) -> u8 {
        (self.bits() >> 8) as u8
    }

    /// Returns the counter mask.
    #[must_use]
    pub const fn counter_mask(self) -> u8 {
        (self.bits() >> 24) as u8
    }

    /// Sets the event select to the low 12 bits of `event`.
    pub(crate) const fn with_event(self, event: u16) -> Self {
        let rest = self.difference(Self::EVENT_LOW.union(Self::EVENT_HIGH));
        let event = event as u64;
        Self::from_bits_retain(rest.bits() | event & 0xff | (event & 0xf00) << 24)
    }

    /// Sets the unit mask.
    pub(crate) const fn with_unit_mask(self, mask: u8) -> Self {
        Self::from_bits_retain(self.difference(Self::UNIT_MASK).bits() | (mask as u64) << 8)
    }

    /// Sets the counter mask.
    pub(crate) const fn with_counter_mask(self, mask: u8) -> Self {
        Self::from_bits_retain(self.difference(Self::CNT_MASK).bits() | (mask as u64) << 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_out_of_each_other() {
        let full = PerfEvtSel::all();
        // The manual once more: bits 21, 39:36 and 63:42 are reserved.
        assert_eq!(full.bits(), 0x0000_030f_ffdf_ffff);
        assert_eq!((full.event(), full.unit_mask(), full.counter_mask()), (0xfff, 0xff, 0xff));
        for (with, bits) in [
            (full.with_event(0), 0x0000_0300_ffdf_ff00),
            (full.with_unit_mask(0), 0x0000_030f_ffdf_00ff),
            (full.with_counter_mask(0), 0x0000_030f_00df_ffff),
            (PerfEvtSel::empty().with_event(0x4e3), 0x0000_0004_0000_00e3),
            (PerfEvtSel::empty().with_event(0xffff), 0x0000_000f_0000_00ff),
            (PerfEvtSel::empty().with_unit_mask(0x81), 0x8100),
            (PerfEvtSel::empty().with_counter_mask(0x81), 0x8100_0000),
        ] {
            assert_eq!(with.bits(), bits);
        }
        assert_eq!(PerfEvtSel::empty().with_event(0x4e3).event(), 0x4e3);
    }
}
