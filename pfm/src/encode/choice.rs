//! Collects the unit masks that a request chooses.

use super::error::EncodeErrorKind;
use crate::table::{Event, TableScope, UnitMask};

/// Maximum number of groups of unit masks of an event.
const MAX_GROUPS: usize = 4;

/// Maximum number of unit masks in a choice: one for each attribute, and a few defaults.
const MAX_UNIT_MASKS: usize = 80;

/// The unit masks chosen so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitMaskChoice {
    scope: TableScope,
    event: Event,
    /// The indices of the chosen unit masks among those of the event.
    chosen: [u8; MAX_UNIT_MASKS],
    length: usize,
    raw: Option<u8>,
    groups: [GroupState; MAX_GROUPS],
}

#[derive(Clone, Copy, Debug, Default)]
struct GroupState {
    is_chosen: bool,
    has_exclusive: bool,
}

impl UnitMaskChoice {
    pub(super) const fn new(scope: TableScope, event: &Event) -> Self {
        let none = GroupState { is_chosen: false, has_exclusive: false };
        Self {
            scope,
            event: *event,
            chosen: [0; MAX_UNIT_MASKS],
            length: 0,
            raw: None,
            groups: [none; MAX_GROUPS],
        }
    }

    /// Chooses a unit mask by its index.
    pub(super) fn add(&mut self, index: u8) -> Result<(), EncodeErrorKind> {
        let Some(mask) = self.event.all_masks().get(usize::from(index)) else { return Ok(()) };
        if let Some(group) = self.groups.get_mut(usize::from(mask.group())) {
            group.has_exclusive |= mask.is_exclusive();
            if group.is_chosen && group.has_exclusive {
                return Err(EncodeErrorKind::Combination);
            }
            group.is_chosen = true;
        }
        self.push(index)
    }

    /// Sets the bits by a number, which counts as a choice from each group.
    pub(super) fn set_raw(&mut self, value: u64) -> Result<(), EncodeErrorKind> {
        self.raw = Some(u8::try_from(value).map_err(|_| EncodeErrorKind::RawTooWide(value))?);
        for group in &mut self.groups {
            group.is_chosen = true;
        }
        Ok(())
    }

    /// Chooses the defaults of the groups from which nothing was chosen.
    pub(super) fn add_defaults(&mut self) -> Result<(), EncodeErrorKind> {
        let event = self.event;
        for group in 0..event.groups() {
            if self.groups.get(usize::from(group)).is_none_or(|group| group.is_chosen) {
                continue;
            }
            let mut members = self.scope.masks(&event).filter(|(_, mask)| mask.group() == group);
            let can_stay_out = members.all(|(_, mask)| mask.is_omittable());
            let before = self.length;
            for (index, _) in
                self.scope.masks(&event).filter(|(_, it)| it.group() == group && it.is_default())
            {
                self.push(index)?;
            }
            if self.length == before && !can_stay_out {
                return Err(EncodeErrorKind::MissingUnitMask { group });
            }
        }
        let length = self.length;
        if let Some(chosen) = self.chosen.get_mut(..length) {
            chosen.sort_unstable();
        }
        Ok(())
    }

    /// Returns the bits of the choice.
    pub(super) fn unit_mask(&self) -> u8 {
        self.raw.unwrap_or_else(|| self.masks().fold(0, |bits, mask| bits | mask.code()))
    }

    /// Returns the bits, if they were set by a number.
    pub(super) const fn raw(&self) -> Option<u8> {
        self.raw
    }

    /// Returns the unit masks. After [`add_defaults`](Self::add_defaults) they are in the table's order.
    pub(super) fn masks(&self) -> impl Iterator<Item = &'static UnitMask> {
        let all = self.event.all_masks();
        self.chosen.iter().take(self.length).filter_map(|&index| all.get(usize::from(index)))
    }

    fn push(&mut self, index: u8) -> Result<(), EncodeErrorKind> {
        let place = self.chosen.get_mut(self.length).ok_or(EncodeErrorKind::TooMany)?;
        *place = index;
        self.length += 1;
        Ok(())
    }
}
