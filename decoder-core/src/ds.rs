//! The Debug Store (DS) buffer management area: a structure in memory that gives the processor the places and fill
//! levels of the BTS and PEBS buffers. BTS writes branch records, PEBS writes samples.
//!
//! ```
//! use pugmark_decoder_core::ds::{Buffer, Field, ManagementArea, Width};
//!
//! let bts = Buffer { base: 0x1000, index: 0x1000, absolute_maximum: 0x1c00, interrupt_threshold: 0x1900 };
//! let mut memory = [0; 0x60];
//! ManagementArea { bts, pebs: Buffer::default() }.emit(Width::Bits64, &mut memory).unwrap();
//! Field::CounterReset(0).write(Width::Bits64, &mut memory, 0xff_ffff_0000).unwrap();
//!
//! // The processor, after a branch record.
//! Field::BtsIndex.write(Width::Bits64, &mut memory, 0x1018).unwrap();
//! let area = ManagementArea::parse(Width::Bits64, &memory).unwrap();
//! assert_eq!((area.bts.index, area.bts.base), (0x1018, 0x1000));
//! ```
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "BTS and DS Save Area" and "64 Bit
//! Format of the DS Save Area"; the counter reset values beyond the first: Performance Monitoring, "Processor Event
//! Based Sampling (PEBS)".

/// The width of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

/// One of the two buffers. All fields are linear addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// The buffer's first byte.
    pub base: u64,
    /// The address of the next record.
    pub index: u64,
    /// The address after the buffer's last byte.
    pub absolute_maximum: u64,
    /// The record on which an interrupt is generated.
    pub interrupt_threshold: u64,
}

/// The management area without the counter reset values, whose number depends on the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ManagementArea {
    /// The BTS buffer.
    pub bts: Buffer,
    /// The PEBS buffer.
    pub pebs: Buffer,
}

/// A field of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// BTS buffer base.
    BtsBase,
    /// BTS index.
    BtsIndex,
    /// BTS absolute maximum.
    BtsAbsoluteMaximum,
    /// BTS interrupt threshold.
    BtsInterruptThreshold,
    /// PEBS buffer base.
    PebsBase,
    /// PEBS index.
    PebsIndex,
    /// PEBS absolute maximum.
    PebsAbsoluteMaximum,
    /// PEBS interrupt threshold.
    PebsInterruptThreshold,
    /// The reset value of the counter with this number after a PEBS record. The field has 64 bits in both widths; only
    /// as many of them count as the counter has.
    CounterReset(u8),
}

/// An error: the bytes end before the field does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// The number of bytes present.
    pub bytes: usize,
    /// The number of bytes needed.
    pub needed: usize,
}

/// The fields of both buffers, in order.
const FIELDS: [Field; 8] = [
    Field::BtsBase,
    Field::BtsIndex,
    Field::BtsAbsoluteMaximum,
    Field::BtsInterruptThreshold,
    Field::PebsBase,
    Field::PebsIndex,
    Field::PebsAbsoluteMaximum,
    Field::PebsInterruptThreshold,
];

impl Width {
    /// Returns the width that the processor uses: 64 bits with DTES64 (CPUID.01H:ECX\[2\]) or in IA-32e mode.
    #[must_use]
    pub const fn of(dtes64: bool, ia32e: bool) -> Self {
        if dtes64 || ia32e { Self::Bits64 } else { Self::Bits32 }
    }

    /// Returns the size of an address, in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }
}

impl Field {
    /// Returns the field's offset from the start of the area, in bytes.
    #[must_use]
    pub const fn offset(self, width: Width) -> usize {
        let index = match self {
            Self::BtsBase => 0,
            Self::BtsIndex => 1,
            Self::BtsAbsoluteMaximum => 2,
            Self::BtsInterruptThreshold => 3,
            Self::PebsBase => 4,
            Self::PebsIndex => 5,
            Self::PebsAbsoluteMaximum => 6,
            Self::PebsInterruptThreshold => 7,
            Self::CounterReset(n) => return 8 * width.bytes() + 8 * n as usize,
        };
        index * width.bytes()
    }

    /// Returns the field's size, in bytes.
    #[must_use]
    pub const fn bytes(self, width: Width) -> usize {
        match self {
            Self::CounterReset(_) => 8,
            _ => width.bytes(),
        }
    }

    /// Reads the field from the area at the start of `bytes`.
    ///
    /// # Errors
    /// If `bytes` does not hold the whole field.
    pub fn read(self, width: Width, bytes: &[u8]) -> Result<u64, Truncated> {
        let (from, len) = (self.offset(width), self.bytes(width));
        let truncated = Truncated { bytes: bytes.len(), needed: from + len };
        let field = bytes.get(from..from + len).ok_or(truncated)?;
        let mut value = [0; 8];
        value[..len].copy_from_slice(field);
        Ok(u64::from_le_bytes(value))
    }

    /// Writes the field in the area at the start of `bytes`. A value wider than the field is truncated to its low part.
    ///
    /// # Errors
    /// If `bytes` does not hold the whole field.
    pub fn write(self, width: Width, bytes: &mut [u8], value: u64) -> Result<(), Truncated> {
        let (from, len) = (self.offset(width), self.bytes(width));
        let truncated = Truncated { bytes: bytes.len(), needed: from + len };
        let field = bytes.get_mut(from..from + len).ok_or(truncated)?;
        field.copy_from_slice(&value.to_le_bytes()[..len]);
        Ok(())
    }
}

impl ManagementArea {
    /// Returns the size of both buffers' fields, in bytes.
    #[must_use]
    pub const fn bytes(width: Width) -> usize {
        Field::CounterReset(0).offset(width)
    }

    /// Reads the area at the start of `bytes`.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(width: Width, bytes: &[u8]) -> Result<Self, Truncated> {
        let bytes = bytes.get(..Self::bytes(width)).ok_or(Self::truncated(width, bytes))?;
        let mut area = Self::default();
        for field in FIELDS {
            if let Some(place) = area.place(field) {
                *place = field.read(width, bytes)?;
            }
        }
        Ok(area)
    }

    /// Writes the area to the start of `bytes`. An address wider than its field is truncated to its low part.
    ///
    /// # Errors
    /// If there are too few bytes; then nothing is written.
    pub fn emit(mut self, width: Width, bytes: &mut [u8]) -> Result<(), Truncated> {
        let truncated = Self::truncated(width, bytes);
        let bytes = bytes.get_mut(..Self::bytes(width)).ok_or(truncated)?;
        for field in FIELDS {
            if let Some(place) = self.place(field) {
                field.write(width, bytes, *place)?;
            }
        }
        Ok(())
    }

    fn truncated(width: Width, bytes: &[u8]) -> Truncated {
        Truncated { bytes: bytes.len(), needed: Self::bytes(width) }
    }

    fn place(&mut self, field: Field) -> Option<&mut u64> {
        let Self { bts, pebs } = self;
        Some(match field {
            Field::BtsBase => &mut bts.base,
            Field::BtsIndex => &mut bts.index,
            Field::BtsAbsoluteMaximum => &mut bts.absolute_maximum,
            Field::BtsInterruptThreshold => &mut bts.interrupt_threshold,
            Field::PebsBase => &mut pebs.base,
            Field::PebsIndex => &mut pebs.index,
            Field::PebsAbsoluteMaximum => &mut pebs.absolute_maximum,
            Field::PebsInterruptThreshold => &mut pebs.interrupt_threshold,
            Field::CounterReset(_) => return None,
        })
    }
}

impl core::fmt::Display for Truncated {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes of a DS management area, where {} are needed", self.bytes, self.needed)
    }
}

impl core::error::Error for Truncated {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the figures "DS Save Area", "IA-32e Mode DS Save Area" and "PEBS Programming Environment".
    #[test]
    fn fields_lie_where_the_figures_have_them() {
        let rows = [
            (Field::BtsBase, 0x00, 0x00),
            (Field::BtsIndex, 0x04, 0x08),
            (Field::BtsAbsoluteMaximum, 0x08, 0x10),
            (Field::BtsInterruptThreshold, 0x0c, 0x18),
            (Field::PebsBase, 0x10, 0x20),
            (Field::PebsIndex, 0x14, 0x28),
            (Field::PebsAbsoluteMaximum, 0x18, 0x30),
            (Field::PebsInterruptThreshold, 0x1c, 0x38),
            (Field::CounterReset(0), 0x20, 0x40),
            (Field::CounterReset(3), 0x38, 0x58),
        ];
        for (field, narrow, wide) in rows {
            for (width, offset) in [(Width::Bits32, narrow), (Width::Bits64, wide)] {
                let mut bytes = [0; 0x60];
                field.write(width, &mut bytes, 0x1122_3344_5566_7788).unwrap();
                let whole = field.bytes(width) == 8;
                assert_eq!(whole, width == Width::Bits64 || matches!(field, Field::CounterReset(_)));
                let value = if whole { 0x1122_3344_5566_7788 } else { 0x5566_7788 };
                assert_eq!(field.read(width, &bytes), Ok(value), "{field:?} {width:?}");
                assert_eq!(bytes[offset..][..4], [0x88, 0x77, 0x66, 0x55], "{field:?} {width:?}");
                let written = bytes.iter().filter(|byte| **byte != 0).count();
                assert_eq!(written, field.bytes(width), "{field:?} {width:?}");
            }
        }
    }

    #[test]
    fn an_area_is_emitted_and_parsed_and_never_cut_short() {
        let buffer =
            |n: u64| Buffer { base: n, index: n + 1, absolute_maximum: n + 2, interrupt_threshold: n + 3 };
        let area = ManagementArea { bts: buffer(0x10), pebs: buffer(0x20) };
        for width in [Width::Bits32, Width::Bits64] {
            let needed = 8 * width.bytes();
            let mut bytes = [0xaa; 0x60];
            area.emit(width, &mut bytes).unwrap();
            assert_eq!(ManagementArea::parse(width, &bytes), Ok(area));
            assert!(bytes[needed..].iter().all(|byte| *byte == 0xaa), "counter reset values stay");
            let places: [usize; 8] = core::array::from_fn(|n| n * width.bytes());
            assert_eq!(places.map(|at| bytes[at]), [0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x22, 0x23]);
            for len in 0..needed {
                let truncated = Err(Truncated { bytes: len, needed });
                assert_eq!(ManagementArea::parse(width, &bytes[..len]), truncated.map(|()| area));
                assert_eq!(area.emit(width, &mut bytes[..len]), truncated);
            }
        }
    }

    #[test]
    fn the_width_is_that_of_the_processor_or_of_the_mode() {
        for (dtes64, ia32e, width) in [
            (false, false, Width::Bits32),
            (false, true, Width::Bits64),
            (true, false, Width::Bits64),
            (true, true, Width::Bits64),
        ] {
            assert_eq!(Width::of(dtes64, ia32e), width);
        }
    }
}
