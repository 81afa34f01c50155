//! Errors in an event string.

use core::{error, fmt};

/// An error in an event string, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeError<'a> {
    /// The offset of the wrong part in the request, in bytes.
    pub offset: usize,
    /// The wrong part.
    pub text: &'a str,
    /// The kind of error.
    pub kind: EncodeErrorKind,
}

/// The kinds of errors in an event string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeErrorKind {
    /// A comma or blank, although only one event can be encoded.
    Separator,
    /// There is no `pmu::` in front of the event.
    NoPmu,
    /// No PMU has this name.
    UnknownPmu,
    /// The PMU has no event of this name.
    UnknownEvent,
    /// Only other revisions of the processor have this event.
    OtherRevision,
    /// Neither a unit mask of the event nor a modifier of the PMU.
    UnknownAttribute,
    /// Only other revisions of the processor have this unit mask.
    UnitMaskOfOtherRevision,
    /// A number for the unit mask beside names of unit masks, or two numbers.
    MixedUnitMasks,
    /// The number for the unit mask has more than eight bits.
    RawTooWide(u64),
    /// A value after a number for the unit mask.
    UnitMaskWithValue,
    /// The modifier `c` without a value.
    NoValue,
    /// A value that the modifier cannot have.
    Value,
    /// The counter mask is above 255.
    CounterMask(u64),
    /// The same modifier came before with another value.
    Conflict,
    /// This unit mask and an earlier one cannot be combined.
    Combination,
    /// Nothing was chosen from a group of unit masks without a default.
    MissingUnitMask {
        /// The group, from 0.
        group: u8,
    },
    /// More than 64 attributes.
    TooMany,
}

impl EncodeErrorKind {
    /// Returns the name of libpfm4's error, without its `PFM_ERR_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Separator => "INVAL",
            Self::NoPmu | Self::UnknownPmu | Self::UnknownEvent | Self::OtherRevision => "NOTFOUND",
            Self::UnknownAttribute
            | Self::UnitMaskOfOtherRevision
            | Self::MixedUnitMasks
            | Self::RawTooWide(_) => "ATTR",
            Self::UnitMaskWithValue | Self::NoValue | Self::Value | Self::CounterMask(_) => "ATTR_VAL",
            Self::Conflict => "ATTR_SET",
            Self::Combination => "FEATCOMB",
            Self::MissingUnitMask { .. } => "UMASK",
            Self::TooMany => "TOOMANY",
        }
    }

    /// Returns the number of libpfm4's error.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Separator => -2,
            Self::NoPmu | Self::UnknownPmu | Self::UnknownEvent | Self::OtherRevision => -4,
            Self::Combination => -5,
            Self::MissingUnitMask { .. } => -6,
            Self::UnknownAttribute
            | Self::UnitMaskOfOtherRevision
            | Self::MixedUnitMasks
            | Self::RawTooWide(_) => -8,
            Self::UnitMaskWithValue | Self::NoValue | Self::Value | Self::CounterMask(_) => -9,
            Self::Conflict => -10,
            Self::TooMany => -11,
        }
    }
}

impl<'a> EncodeError<'a> {
    pub(super) fn at(request: &'a str, offset: usize, length: usize, kind: EncodeErrorKind) -> Self {
        Self { offset, text: request.get(offset..offset + length).unwrap_or_default(), kind }
    }

    /// Adjusts the offset for a request with `length` bytes before the encoded part.
    pub(super) const fn with_prefix(self, length: usize) -> Self {
        Self { offset: self.offset + length, ..self }
    }
}

impl fmt::Display for EncodeError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}: {}", self.text, self.offset, self.kind)
    }
}

impl fmt::Display for EncodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Separator => f.write_str("only one event can be encoded"),
            Self::NoPmu => f.write_str("no PMU is named; an event is pmu::EVENT"),
            Self::UnknownPmu => f.write_str("no PMU has this name"),
            Self::UnknownEvent => f.write_str("the PMU has no event of this name"),
            Self::OtherRevision => f.write_str("only other revisions of the processor have this event"),
            Self::UnknownAttribute => {
                f.write_str("neither a unit mask of the event nor a modifier of the PMU")
            }
            Self::UnitMaskOfOtherRevision => {
                f.write_str("only other revisions of the processor have this unit mask")
            }
            Self::MixedUnitMasks => f.write_str("a number for the unit mask has to stand alone"),
            Self::RawTooWide(bits) => write!(f, "the unit mask {bits:#x} has more than eight bits"),
            Self::UnitMaskWithValue => f.write_str("a unit mask has no value"),
            Self::NoValue => f.write_str("the counter mask needs a value"),
            Self::Value => f.write_str("not a value that the modifier can have"),
            Self::CounterMask(mask) => write!(f, "the counter mask {mask} is above 255"),
            Self::Conflict => f.write_str("the modifier has another value before"),
            Self::Combination => f.write_str("the unit mask does not go with an earlier one"),
            Self::MissingUnitMask { group } => {
                write!(f, "a unit mask of group {group} has to be chosen, the event has no default there")
            }
            Self::TooMany => f.write_str("too many attributes"),
        }
    }
}

impl error::Error for EncodeError<'_> {}
