//! The value of a counter's event select register, PERFEVTSELn, as libpfm composes it.

use bitflags::bitflags;

bitflags! {
    /// The fields of PERFEVTSELn that libpfm's names set. The values that leave this crate are plain numbers: a driver
    /// has its own type for the register.
    ///
    /// Source: APM vol. 2, Debug and Performance Resources, "Performance Event-Select Registers".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EventSelect: u64 {
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
        /// HostOnly: count only in the host, since family 10h.
        const HOST_ONLY = 1 << 41;
    }
}

impl EventSelect {
    /// The fields that only family 10h and later have.
    pub(crate) const SINCE_FAM10H: Self = Self::EVENT_HIGH.union(Self::GUEST_ONLY).union(Self::HOST_ONLY);

    /// Returns the value with which a counter counts `event` (12 bits) and interrupts at an overflow.
    pub(crate) const fn counting(event: u16) -> Self {
        let event = event as u64;
        let select = Self::from_bits_retain(event & 0xff | (event & 0xf00) << 24);
        select.union(Self::EN).union(Self::INT)
    }

    /// Returns the counter mask.
    pub(crate) const fn counter_mask(self) -> u8 {
        (self.bits() >> 24) as u8
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
        let full = EventSelect::all();
        // Typed from the manual again: bits 21, 39:36 and 63:42 are reserved. Libpfm sets no pin control, bit 19.
        assert_eq!(full.bits(), 0x0000_030f_ffd7_ffff);
        assert_eq!(full.counter_mask(), 0xff);
        for (select, bits) in [
            (full.with_unit_mask(0), 0x0000_030f_ffd7_00ff),
            (full.with_counter_mask(0), 0x0000_030f_00d7_ffff),
            (EventSelect::counting(0x4e3), 0x0000_0004_0050_00e3),
            (EventSelect::counting(0xffff), 0x0000_000f_0050_00ff),
            (EventSelect::empty().with_unit_mask(0x81), 0x8100),
            (EventSelect::empty().with_counter_mask(0x81), 0x8100_0000),
        ] {
            assert_eq!(select.bits(), bits);
        }
    }
}
