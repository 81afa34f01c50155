//! Reads event strings of libpfm3.

use super::error::{FindError, FindErrorKind};
use crate::{
    cpu::Cpu,
    levels::Levels,
    number,
    table::{Event, NotFound, UnitMask},
};

/// An event of a processor, with the selected unit masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    pub(super) cpu: &'static Cpu,
    pub(super) event: &'static Event,
    /// Bit n stands for unit mask n of the event's table.
    masks: u64,
    pub(super) levels: Levels,
}

impl Selection {
    /// Sets the levels to count at. If they are empty, the request's levels apply.
    #[must_use]
    pub const fn with_levels(self, levels: Levels) -> Self {
        Self { levels, ..self }
    }

    /// Returns the event.
    #[must_use]
    pub const fn event(&self) -> &'static Event {
        self.event
    }

    /// Returns the unit masks, in the table's order.
    pub fn unit_masks(&self) -> impl Iterator<Item = &'static UnitMask> {
        let masks = self.masks;
        (0..u64::BITS)
            .zip(self.event.all_masks())
            .filter(move |(n, _)| masks >> n & 1 != 0)
            .map(|(_, mask)| mask)
    }

    pub(super) fn lacks_mask(&self) -> bool {
        self.masks == 0 && masks_of_all_revisions(self.cpu, self.event).next().is_some()
    }

    pub(super) const fn has_many_masks(&self) -> bool {
        self.masks.count_ones() > 1
    }
}

/// Finds the event and the unit masks of a string.
pub(crate) fn find<'a>(cpu: &'static Cpu, request: &'a str) -> Result<Selection, FindError<'a>> {
    let (name, words) = match request.split_once(':') {
        Some((name, words)) => (name, Some(words)),
        None => (request, None),
    };
    let error = |offset, text, kind| FindError { offset, text, kind };
    let event = cpu.find(name).map_err(|absent| match absent {
        NotFound::Unknown => error(0, name, FindErrorKind::UnknownEvent),
        NotFound::OtherRevision => error(0, name, FindErrorKind::OtherRevision),
    })?;
    let mut selection = Selection { cpu, event, masks: 0, levels: Levels::empty() };
    let Some(words) = words else {
        let needs_one = masks_of_all_revisions(cpu, event).next().is_some();
        return if needs_one { Err(error(0, name, FindErrorKind::MissingUnitMask)) } else { Ok(selection) };
    };
    let mut offset = name.len() + 1;
    if masks_of_all_revisions(cpu, event).next().is_none() {
        return Err(error(offset, words, FindErrorKind::NoUnitMasks));
    }
    for word in words.split(':') {
        let found = mask_by_name(cpu, event, word).or_else(|| masks_by_number(cpu, event, word));
        selection.masks |= found.ok_or_else(|| error(offset, word, FindErrorKind::UnknownUnitMask))?;
        offset += word.len() + 1;
    }
    Ok(selection)
}

/// Finds the unit mask of a name.
fn mask_by_name(cpu: &Cpu, event: &Event, word: &str) -> Option<u64> {
    let mut masks = cpu.scope().masks(event);
    masks.find(|(_, mask)| mask.name().eq_ignore_ascii_case(word)).map(|(index, _)| 1 << index)
}

/// Finds the first unit mask with this code; without one, all unit masks whose bits are in the number, if together they
/// have all of its bits.
///
/// As in libpfm3, unit masks of other revisions are included.
fn masks_by_number(cpu: &Cpu, event: &Event, word: &str) -> Option<u64> {
    let number = number::parse(word)?;
    if let Some((index, _)) =
        masks_of_all_revisions(cpu, event).find(|(_, mask)| u64::from(mask.code()) == number)
    {
        return Some(1 << index);
    }
    let parts = masks_of_all_revisions(cpu, event)
        .filter(|(_, mask)| number & u64::from(mask.code()) == u64::from(mask.code()));
    let (bits, all) = parts.fold((0, 0), |(bits, all), (index, mask)| (bits | mask.code(), all | 1 << index));
    (u64::from(bits) == number).then_some(all)
}

/// Returns the unit masks of all revisions.
fn masks_of_all_revisions(cpu: &Cpu, event: &Event) -> impl Iterator<Item = (u8, &'static UnitMask)> + use<> {
    let without = cpu.scope().without;
    (0..).zip(event.all_masks()).filter(move |(_, mask)| !mask.flags().intersects(without))
}
