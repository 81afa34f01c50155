//! Reads the attributes after an event in an event string: unit masks and modifiers.

use super::error::{EncodeError, EncodeErrorKind};
use crate::{family::Modifier, number, pmu::Pmu, table::Event};

/// Maximum number of attributes of an event.
const MAX_ATTRIBUTES: usize = 64;

/// The attributes of an event, in the order of the request.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    all: [Attribute<'a>; MAX_ATTRIBUTES],
    length: usize,
}

/// An attribute: its kind, its value, and its place in the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute<'a> {
    pub(super) kind: AttributeKind,
    /// The value; 0 for a unit mask.
    pub(super) value: u64,
    request: &'a str,
    at: usize,
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributeKind {
    /// A unit mask of the event, by index.
    UnitMask(u8),
    /// The bits of the unit mask.
    RawUnitMask,
    Modifier(Modifier),
}

impl<'a> Attributes<'a> {
    /// Reads the attributes that follow the name of the event, which ends at `from`.
    pub(super) fn parse(
        pmu: &Pmu,
        event: &Event,
        request: &'a str,
        from: usize,
    ) -> Result<Self, EncodeError<'a>> {
        let none = Attribute { kind: AttributeKind::RawUnitMask, value: 0, request, at: 0, length: 0 };
        let mut attributes = Self { all: [none; MAX_ATTRIBUTES], length: 0 };
        let mut at = from;
        while at < request.len() {
            at += 1;
            let length = request[at..].find([':', '.']).unwrap_or(request.len() - at);
            let error = |kind| EncodeError::at(request, at, length, kind);
            let word = &request[at..at + length];
            let (kind, value) = attributes.read(pmu, event, word).map_err(error)?;
            let place =
                attributes.all.get_mut(attributes.length).ok_or_else(|| error(EncodeErrorKind::TooMany))?;
            *place = Attribute { kind, value, request, at, length };
            attributes.length += 1;
            at += length;
        }
        attributes.merge()?;
        Ok(attributes)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attribute<'a>> {
        self.all.iter().take(self.length)
    }

    /// Returns the kind and the value of an attribute.
    fn read(&self, pmu: &Pmu, event: &Event, word: &str) -> Result<(AttributeKind, u64), EncodeErrorKind> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if matches!(name.as_bytes(), [b'0', b'x' | b'X', ..]) {
            self.check_mix(true)?;
            let bits = number::parse(name).ok_or(EncodeErrorKind::UnknownAttribute)?;
            return match value {
                Some(_) => Err(EncodeErrorKind::UnitMaskWithValue),
                None => Ok((AttributeKind::RawUnitMask, bits)),
            };
        }
        // A value distinguishes a modifier from a unit mask of the same name.
        if value.is_none() {
            let mut masks = pmu.scope().masks(event);
            if let Some((index, _)) = masks.find(|(_, mask)| mask.name().eq_ignore_ascii_case(name)) {
                self.check_mix(false)?;
                return Ok((AttributeKind::UnitMask(index), 0));
            }
        }
        let mut modifiers = pmu.modifiers().iter();
        let modifier = modifiers.find(|modifier| modifier.letter().eq_ignore_ascii_case(name));
        let &modifier = modifier.ok_or_else(|| unknown(event, name))?;
        let value = match (modifier, value) {
            (Modifier::CounterMask, value) => number::parse(value.ok_or(EncodeErrorKind::NoValue)?),
            (_, None) => Some(1),
            (_, Some(value)) => boolean(value),
        };
        Ok((AttributeKind::Modifier(modifier), value.ok_or(EncodeErrorKind::Value)?))
    }

    /// Checks that a number for the unit mask stands alone: it cannot be combined with names or with another number.
    /// `bits` is true if the attribute being read is a number.
    fn check_mix(&self, bits: bool) -> Result<(), EncodeErrorKind> {
        let clash = |other: &Attribute<'_>| match other.kind {
            AttributeKind::RawUnitMask => true,
            AttributeKind::UnitMask(_) => bits,
            AttributeKind::Modifier(_) => false,
        };
        if self.iter().any(clash) { Err(EncodeErrorKind::MixedUnitMasks) } else { Ok(()) }
    }

    /// Drops attributes that repeat an earlier one with the same value; another value is an error.
    ///
    /// As in libpfm4, the attribute that moves up to the place of a dropped one is not compared: of three equal ones,
    /// two remain.
    fn merge(&mut self) -> Result<(), EncodeError<'a>> {
        let mut first = 0;
        while first < self.length {
            let mut second = first + 1;
            while second < self.length {
                let (kept, other) = (self.all[first], self.all[second]);
                if kept.kind == other.kind {
                    if kept.value != other.value {
                        return Err(other.error(EncodeErrorKind::Conflict));
                    }
                    self.all.copy_within(second + 1..self.length, second);
                    self.length -= 1;
                }
                second += 1;
            }
            first += 1;
        }
        Ok(())
    }
}

impl<'a> Attribute<'a> {
    pub(super) fn error(&self, kind: EncodeErrorKind) -> EncodeError<'a> {
        EncodeError::at(self.request, self.at, self.length, kind)
    }
}

fn unknown(event: &Event, name: &str) -> EncodeErrorKind {
    if event.all_masks().iter().any(|mask| mask.name().eq_ignore_ascii_case(name)) {
        EncodeErrorKind::UnitMaskOfOtherRevision
    } else {
        EncodeErrorKind::UnknownAttribute
    }
}

/// Reads `1`, `y`, `t` or `0`, `n`, `f`.
fn boolean(value: &str) -> Option<u64> {
    match value.as_bytes() {
        [b'1' | b'y' | b'Y' | b't' | b'T'] => Some(1),
        [b'0' | b'n' | b'N' | b'f' | b'F'] => Some(0),
        _ => None,
    }
}
