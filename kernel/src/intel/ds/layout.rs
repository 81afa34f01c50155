//! The two layouts of the DS save area.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "BTS and DS Save
//! Area", "64 Bit Format of the DS Save Area".

/// The width of the fields of the DS save area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsLayout {
    /// Fields of 4 bytes: processors without DTES64. Addresses above 4 GiB are truncated.
    Bits32,
    /// Fields of 8 bytes, in all modes: `CPUID.1:ECX[2]` (DTES64).
    Bits64,
}

/// The two halves of the DS save area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The BTS buffer: branch records.
    Bts,
    /// The PEBS buffer: samples.
    Pebs,
}

/// The fields that each half has in the buffer management area, in their order in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Base,
    Index,
    Maximum,
    Threshold,
}

impl Field {
    /// Returns the field's offset from the half's first field.
    pub(crate) const fn offset(self, layout: DsLayout) -> u64 {
        self as u64 * layout.field_bytes()
    }
}

impl DsLayout {
    /// Returns the size of a branch record: from, to, flags.
    pub(crate) const fn branch_record_bytes(self) -> u64 {
        3 * self.field_bytes()
    }

    /// Returns the offset of a half's first field.
    pub(crate) const fn fields(self, half: Half) -> u64 {
        match half {
            Half::Bts => 0,
            Half::Pebs => 4 * self.field_bytes(),
        }
    }

    /// Returns the offset of the first PEBS counter reset value. These values have 8 bytes in both layouts.
    pub(crate) const fn counter_resets(self) -> u64 {
        8 * self.field_bytes()
    }

    /// Returns the size of the management area with this many counter reset values.
    pub(crate) const fn management_bytes(self, counters: u32) -> u64 {
        self.counter_resets() + 8 * counters as u64
    }

    /// Returns the first linear address that a field cannot hold, if any.
    pub(crate) const fn limit(self) -> Option<u64> {
        match self {
            Self::Bits32 => Some(1 << 32),
            Self::Bits64 => None,
        }
    }

    /// Returns the size of a field that holds an address.
    pub(crate) const fn field_bytes(self) -> u64 {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_manual_has_them() {
        // (field, 32-bit, 64-bit)
        let table = [
            (Field::Base, 0x00, 0x00),
            (Field::Index, 0x04, 0x08),
            (Field::Maximum, 0x08, 0x10),
            (Field::Threshold, 0x0c, 0x18),
        ];
        for (field, narrow, wide) in table {
            assert_eq!(field.offset(DsLayout::Bits32), narrow, "{field:?}");
            assert_eq!(field.offset(DsLayout::Bits64), wide, "{field:?}");
        }
        assert_eq!((DsLayout::Bits32.fields(Half::Bts), DsLayout::Bits32.fields(Half::Pebs)), (0, 0x10));
        assert_eq!((DsLayout::Bits64.fields(Half::Bts), DsLayout::Bits64.fields(Half::Pebs)), (0, 0x20));
        assert_eq!(DsLayout::Bits32.counter_resets(), 0x20);
        assert_eq!(DsLayout::Bits64.counter_resets(), 0x40);
        for (counters, narrow, wide) in [(0, 0x20, 0x40), (1, 0x28, 0x48), (4, 0x40, 0x60), (12, 0x80, 0xa0)]
        {
            assert_eq!(DsLayout::Bits32.management_bytes(counters), narrow);
            assert_eq!(DsLayout::Bits64.management_bytes(counters), wide);
        }
        assert_eq!(DsLayout::Bits32.branch_record_bytes(), 12);
        assert_eq!(DsLayout::Bits64.branch_record_bytes(), 24);
    }
}
