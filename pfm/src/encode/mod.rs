//! Converts event strings to event selects, like libpfm4.
//!
//! ```
//! use pugmark_pfm::{Levels, encode};
//!
//! let encoding = encode("amd64_fam10h_barcelona::RETIRED_INSTRUCTIONS:u", Levels::default())?;
//! assert_eq!(encoding.select(), 0x51_00c0);
//! # Ok::<(), pugmark_pfm::EncodeError<'_>>(())
//! ```

mod attribute;
mod choice;
mod encoding;
mod error;

pub use encoding::Encoding;
pub use error::{EncodeError, EncodeErrorKind};

use crate::{
    event_select::EventSelect,
    family::Modifier,
    levels::Levels,
    pmu::Pmu,
    table::{Event, NotFound},
};
use attribute::{AttributeKind, Attributes};
use choice::UnitMaskChoice;

/// Encodes `pmu::EVENT`, followed by unit masks and modifiers, each after a `:` or `.`.
///
/// Unit masks are names, or one hexadecimal number instead. Modifiers are `k`, `u`, `e`, `i`, `h`, `g`, with `=0` or
/// `=1` or alone for 1, and `c=0` to `c=255`. The case of names is ignored. If none of `k`, `u` and `h` is given, the
/// counter counts at `levels`; if no unit mask of a group is given, the group's defaults are chosen. EN and INT are
/// always set.
///
/// # Errors
/// The first error in the string, in the order in which libpfm4 checks.
///
/// ```
/// use pugmark_pfm::{Levels, encode};
///
/// let encoding = encode("amd64_fam10h_barcelona::DISPATCHED_FPU:OPS_ADD:k", Levels::default())?;
/// assert_eq!(encoding.select(), 0x52_0100);
/// assert_eq!(
///     encoding.to_string(),
///     "amd64_fam10h_barcelona::DISPATCHED_FPU:OPS_ADD:k=1:u=0:e=0:i=0:c=0:h=0:g=0"
/// );
///
/// let error = encode("amd64_k8_revb::PROBE:ALL:MISS", Levels::default()).unwrap_err();
/// assert_eq!((error.offset, error.text, error.kind.name()), (25, "MISS", "FEATCOMB"));
/// # Ok::<(), pugmark_pfm::EncodeError<'_>>(())
/// ```
pub fn encode(request: &str, levels: Levels) -> Result<Encoding, EncodeError<'_>> {
    if let Some(at) = request.find(SEPARATORS) {
        return Err(EncodeError::at(request, at, 1, EncodeErrorKind::Separator));
    }
    let Some((name, event)) = request.split_once("::") else {
        return Err(EncodeError::at(request, 0, request.len(), EncodeErrorKind::NoPmu));
    };
    let Some(pmu) = Pmu::by_name(name) else {
        return Err(EncodeError::at(request, 0, name.len(), EncodeErrorKind::UnknownPmu));
    };
    encode_on(pmu, event, levels).map_err(|error| error.with_prefix(name.len() + 2))
}

impl Pmu {
    /// Encodes a string for one of its events, like [`encode()`] but without `pmu::`.
    ///
    /// # Errors
    /// Those of [`encode()`].
    pub fn encode<'a>(&'static self, event: &'a str, levels: Levels) -> Result<Encoding, EncodeError<'a>> {
        encode_on(self, event, levels)
    }
}

/// Encodes an event string without its `pmu::`.
fn encode_on<'a>(pmu: &'static Pmu, request: &'a str, levels: Levels) -> Result<Encoding, EncodeError<'a>> {
    if let Some(at) = request.find(SEPARATORS) {
        return Err(EncodeError::at(request, at, 1, EncodeErrorKind::Separator));
    }
    let name = request.find([':', '.']).unwrap_or(request.len());
    let event = pmu.find(&request[..name]).map_err(|absent| {
        let kind = match absent {
            NotFound::Unknown => EncodeErrorKind::UnknownEvent,
            NotFound::OtherRevision => EncodeErrorKind::OtherRevision,
        };
        EncodeError::at(request, 0, name, kind)
    })?;
    let attributes = Attributes::parse(pmu, event, request, name)?;
    let mut select = EventSelect::counting(event.code());
    let mut choice = apply(pmu, event, &attributes, levels, &mut select)?;
    choice.add_defaults().map_err(|kind| EncodeError::at(request, 0, name, kind))?;
    Ok(Encoding::new(pmu, event, choice, select.with_unit_mask(choice.unit_mask())))
}

/// The characters between the events in libpfm4's lists.
const SEPARATORS: [char; 4] = [',', ' ', '\t', '\n'];

/// Applies the attributes to `select`, and returns the unit masks that they choose.
fn apply<'a>(
    pmu: &'static Pmu,
    event: &Event,
    attributes: &Attributes<'a>,
    levels: Levels,
    select: &mut EventSelect,
) -> Result<UnitMaskChoice, EncodeError<'a>> {
    let mut choice = UnitMaskChoice::new(pmu.scope(), event);
    let mut leveled = false;
    for attribute in attributes.iter() {
        let set = attribute.value != 0;
        match attribute.kind {
            AttributeKind::UnitMask(index) => choice.add(index),
            AttributeKind::RawUnitMask => choice.set_raw(attribute.value),
            AttributeKind::Modifier(Modifier::CounterMask) => match u8::try_from(attribute.value) {
                Ok(mask) => {
                    *select = select.with_counter_mask(mask);
                    Ok(())
                }
                Err(_) => Err(EncodeErrorKind::CounterMask(attribute.value)),
            },
            AttributeKind::Modifier(modifier) => {
                leveled |= matches!(modifier, Modifier::Kernel | Modifier::User | Modifier::Host);
                select.set(bit(modifier), set);
                Ok(())
            }
        }
        .map_err(|kind| attribute.error(kind))?;
    }
    if !leveled {
        for (level, modifier) in LEVELS {
            // If the PMU lacks a modifier, its bit is reserved.
            let known = pmu.modifiers().contains(&modifier);
            select.set(bit(modifier), known && levels.contains(level));
        }
    }
    Ok(choice)
}

const LEVELS: [(Levels, Modifier); 3] =
    [(Levels::KERNEL, Modifier::Kernel), (Levels::USER, Modifier::User), (Levels::HOST, Modifier::Host)];

/// Returns the bit of a modifier, or all bits of the field for `c`.
pub(super) const fn bit(modifier: Modifier) -> EventSelect {
    match modifier {
        Modifier::Kernel => EventSelect::OS,
        Modifier::User => EventSelect::USR,
        Modifier::Edge => EventSelect::EDGE,
        Modifier::Invert => EventSelect::INV,
        Modifier::CounterMask => EventSelect::CNT_MASK,
        Modifier::Host => EventSelect::HOST_ONLY,
        Modifier::Guest => EventSelect::GUEST_ONLY,
    }
}

#[cfg(test)]
mod tests;
