//! One entry of a ToPA table.

use super::TopaError;
use bitflags::bitflags;
use core::fmt;

/// An entry: a memory region with its size, or a pointer to the next table. 8 bytes.
///
/// Source: SDM vol. 3, Intel Processor Trace, "ToPA Table Entry Fields".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Entry(u64);

bitflags! {
    /// The flags of an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EntryFlags: u64 {
        /// END: the entry points to the next table.
        const END = 1 << 0;
        /// INT: the processor requests a PMI when the region fills.
        const INT = 1 << 2;
        /// STOP: the trace stops when the region fills.
        const STOP = 1 << 4;
    }
}

impl Entry {
    /// Creates the entry of a region.
    ///
    /// # Errors
    ///
    /// The base is not a multiple of the size, or the region does not end at or below `limit`.
    pub(crate) const fn region(base: u64, size: RegionSize, limit: u64) -> Result<Self, TopaError> {
        match checked(base, size.bytes(), size.bytes(), limit) {
            Ok(base) => Ok(Self(base | (size.0 as u64) << SIZE_SHIFT)),
            Err(error) => Err(error),
        }
    }

    /// Creates an END entry, which points to the next table at `base`.
    ///
    /// # Errors
    ///
    /// The base is not a multiple of 4 KiB, or the table does not end at or below `limit`.
    pub(crate) const fn end(base: u64, limit: u64) -> Result<Self, TopaError> {
        match checked(base, TABLE_BYTES, TABLE_BYTES, limit) {
            Ok(base) => Ok(Self(base | EntryFlags::END.bits())),
            Err(error) => Err(error),
        }
    }

    /// Returns the same region with exactly the flags in `flags` among [`EntryFlags::INT`] and [`EntryFlags::STOP`].
    ///
    /// An END entry, which may have neither flag, is returned unchanged.
    pub(crate) const fn with_flags(self, flags: EntryFlags) -> Self {
        let both = EntryFlags::INT.union(EntryFlags::STOP);
        match self.flags().contains(EntryFlags::END) {
            true => self,
            false => Self(self.0 & !both.bits() | flags.intersection(both).bits()),
        }
    }

    /// Returns the flags.
    pub(crate) const fn flags(self) -> EntryFlags {
        EntryFlags::from_bits_truncate(self.0)
    }

    /// Returns the physical address of the region or of the next table.
    pub(crate) const fn base(self) -> u64 {
        self.0 & BASE
    }

    /// Returns the eight bytes as a number.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// The size of a region: `4 KiB << n`, n = 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionSize(u8);

impl RegionSize {
    /// 4 KiB, the smallest.
    pub const K4: Self = Self(0);
    /// 64 KiB.
    pub const K64: Self = Self(4);
    /// 2 MiB.
    pub const M2: Self = Self(9);
    /// 128 MiB, the largest.
    pub const M128: Self = Self(15);

    /// Returns the region size of this many bytes.
    ///
    /// # Errors
    ///
    /// No region has this size.
    pub const fn from_bytes(bytes: u64) -> Result<Self, TopaError> {
        if bytes.is_power_of_two() && bytes >= Self::K4.bytes() && bytes <= Self::M128.bytes() {
            Ok(Self((bytes.trailing_zeros() - 12) as u8))
        } else {
            Err(TopaError::RegionSize { bytes })
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        0x1000 << self.0
    }

    /// Returns half of the size, which is not the smallest one.
    pub(super) const fn half(self) -> Self {
        Self(self.0 - 1)
    }
}

impl fmt::Display for RegionSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() >> 10 {
            kib @ ..1024 => write!(f, "{kib} KiB"),
            kib => write!(f, "{} MiB", kib >> 10),
        }
    }
}

pub(super) const TABLE_BYTES: u64 = 0x1000;
const SIZE_SHIFT: u32 = 6;
const BASE: u64 = 0x000f_ffff_ffff_f000;

pub(super) const fn checked(base: u64, bytes: u64, align: u64, limit: u64) -> Result<u64, TopaError> {
    if base % align != 0 {
        return Err(TopaError::Misaligned { address: base, align });
    }
    match base.checked_add(bytes) {
        Some(end) if end <= limit => Ok(base),
        _ => Err(TopaError::AboveLimit { address: base, limit }),
    }
}
