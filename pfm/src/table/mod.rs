//! Events, their unit masks, and the tables that hold them.

mod text;

use bitflags::bitflags;
use core::{cmp::Ordering, fmt, iter};
use text::Text;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// A revision of a processor family, by AMD's letter. It is `A` in families whose revisions all have the same events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Revision {
    A,
    B,
    C,
    D,
    E,
    F,
    G,
}

/// An event that a counter can count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event {
    name: Text,
    words: Text,
    code: u16,
    flags: Flags,
    revisions: (Option<Revision>, Option<Revision>),
    groups: u8,
    masks: &'static [UnitMask],
}

/// A part of an event: bits of the unit mask, and the meaning of the count with these bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UnitMask {
    name: Text,
    words: Text,
    code: u8,
    flags: Flags,
    revisions: (Option<Revision>, Option<Revision>),
    group: u8,
}

impl Event {
    /// Returns libpfm's name, in capitals.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.as_str()
    }

    /// Returns a description of the event.
    #[must_use]
    pub fn description(&self) -> &'static str {
        self.words.as_str()
    }

    /// Returns the event select, 12 bits.
    #[must_use]
    pub const fn code(&self) -> u16 {
        self.code
    }

    /// Returns the number of groups of unit masks, 0 to 4. A request must choose a unit mask from each group.
    #[must_use]
    pub const fn groups(&self) -> u8 {
        self.groups
    }

    /// Returns all unit masks, including those of other revisions and of the other library.
    pub(crate) const fn all_masks(&self) -> &'static [UnitMask] {
        self.masks
    }

    pub(crate) const fn flags(&self) -> Flags {
        self.flags
    }
}

impl UnitMask {
    /// Returns libpfm's name, in capitals.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.as_str()
    }

    /// Returns a description of the part of the event that it selects.
    #[must_use]
    pub fn description(&self) -> &'static str {
        self.words.as_str()
    }

    /// Returns its bits in the unit mask.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// Returns the number of the group that it belongs to, from 0.
    #[must_use]
    pub const fn group(&self) -> u8 {
        self.group
    }

    /// Returns true if it is chosen when the request names no unit mask of its group.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        self.flags.contains(Flags::DEFAULT)
    }

    /// Returns true if it cannot be combined with others of its group.
    #[must_use]
    pub const fn is_exclusive(&self) -> bool {
        self.flags.contains(Flags::EXCLUSIVE)
    }

    /// Returns true if a request may choose nothing from its group.
    #[must_use]
    pub const fn is_omittable(&self) -> bool {
        self.flags.contains(Flags::OMITTED)
    }

    pub(crate) const fn flags(&self) -> Flags {
        self.flags
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} {:#x})", self.name(), self.code)
    }
}

impl fmt::Debug for UnitMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitMask({} {:#x})", self.name(), self.code)
    }
}

bitflags! {
    /// Further properties of an event or a unit mask.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u8 {
        /// Chosen if the request names no unit mask of its group.
        const DEFAULT = 1 << 0;
        /// Cannot be combined with others of its group.
        const EXCLUSIVE = 1 << 1;
        /// A request may choose nothing from its group.
        const OMITTED = 1 << 2;
        /// Only libpfm3 has it.
        const PFM3_ONLY = 1 << 3;
        /// Only libpfm4 has it.
        const PFM4_ONLY = 1 << 4;
        /// Stands for the IBS fetch unit.
        const IBS_FETCH = 1 << 5;
        /// Stands for the IBS op unit.
        const IBS_OP = 1 << 6;
    }
}

/// A filter of a table: the entries of a revision, according to one of the libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableScope {
    pub(crate) revision: Revision,
    /// [`Flags::PFM3_ONLY`] or [`Flags::PFM4_ONLY`], the mark of entries that only the other library has.
    pub(crate) without: Flags,
}

impl TableScope {
    pub(crate) fn has_event(self, event: &Event) -> bool {
        self.has(event.flags, event.revisions)
    }

    pub(crate) fn has_mask(self, mask: &UnitMask) -> bool {
        self.has(mask.flags, mask.revisions)
    }

    /// Returns the unit masks of an event, with their indices in [`Event::all_masks`].
    pub(crate) fn masks(self, event: &Event) -> impl Iterator<Item = (u8, &'static UnitMask)> + use<> {
        (0..).zip(event.masks).filter(move |(_, mask)| self.has_mask(mask))
    }

    fn has(self, flags: Flags, (from, till): (Option<Revision>, Option<Revision>)) -> bool {
        !flags.intersects(self.without)
            && from.is_none_or(|from| self.revision >= from)
            && till.is_none_or(|till| self.revision <= till)
    }
}

/// A table of events, in libpfm's order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    events: &'static [Event],
    /// The indices of the events, sorted by name.
    by_name: &'static [u16],
}

impl Table {
    pub(crate) fn events(&self, scope: TableScope) -> impl Iterator<Item = &'static Event> + use<> {
        self.events.iter().filter(move |event| scope.has_event(event))
    }

    /// Finds the event of a name. Case is ignored.
    pub(crate) fn find(&self, scope: TableScope, name: &str) -> Result<&'static Event, NotFound> {
        let mut absent = NotFound::Unknown;
        for event in self.named(name) {
            if scope.has_event(event) {
                return Ok(event);
            }
            absent = NotFound::OtherRevision;
        }
        Err(absent)
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &'static Event> {
        let of = |&index: &u16| self.events.get(usize::from(index));
        let is_before = |index: &u16| {
            of(index).is_some_and(|event| compare_ignoring_case(event.name(), name) == Ordering::Less)
        };
        let mut rest = self.by_name.iter().skip(self.by_name.partition_point(is_before)).filter_map(of);
        iter::from_fn(move || rest.next().filter(|event| event.name().eq_ignore_ascii_case(name)))
    }
}

/// The reason why an event was not found in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFound {
    /// The table has no event of this name.
    Unknown,
    /// Only other revisions of the family, or only the other library, have the event.
    OtherRevision,
}

fn compare_ignoring_case(name: &str, other: &str) -> Ordering {
    let [name, other] = [name, other].map(|name| name.bytes().map(|byte| byte.to_ascii_uppercase()));
    name.cmp(other)
}

#[cfg(test)]
mod tests;
