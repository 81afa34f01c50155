//! Paths: sequences of blocks that follow from the code and a few outcomes, cached together.
//!
//! Looking up the code of a single block is expensive. So the whole way that the walk takes from an address with the
//! next outcomes is cached. When the same outcomes come at that address again, the path is followed block by block.

/// The most outcomes that a path depends on: as many as a short TNT packet has.
pub(super) const OUTCOMES: usize = 6;

/// A sequence of blocks: where they start, how their branches go, and where they lead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) key: Key,
    /// How many legs end with an outcome.
    pub(super) decided: u8,
    /// Whether one more leg follows, whose target the trace names.
    pub(super) named: bool,
    /// The section that all legs are in.
    pub(super) section: u32,
    pub(super) legs: [Leg; OUTCOMES],
}

/// The key to look up a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) ip: u64,
    pub(super) space: u64,
    /// The oldest outcome in the highest bit, with a set bit above it. So no path has 0 here; unused slots have,
    /// because they are all zeros, which are fastest to write.
    pub(super) outcomes: u8,
    pub(super) mode: u8,
}

/// One block of a path. Addresses are relative to the path's first one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leg {
    /// Of the last instruction.
    pub(super) last: i32,
    /// The address of what comes next; for a branch whose target the trace names, the address after the branch.
    pub(super) next: i32,
    /// The return address of the leg's direct call, if it has one.
    pub(super) returns_to: i32,
    pub(super) insns: u16,
    pub(super) calls: bool,
    pub(super) end: End,
}

/// How a leg ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// A conditional branch, by an outcome, with no call in the leg.
    #[default]
    Plain,
    /// A conditional branch, by an outcome, after a call in the leg.
    Cond,
    /// A compressed return, by an outcome.
    Return,
    /// A return whose target the trace names.
    NamedReturn,
    /// An indirect call whose target the trace names.
    NamedCall,
    /// Any other branch whose target the trace names.
    Named,
}

impl Path {
    /// Appends a leg, if there is room.
    pub(super) fn push(&mut self, leg: Leg) {
        if let Some(place) = self.legs.get_mut(usize::from(self.decided)) {
            *place = leg;
            match leg.end {
                End::Plain | End::Cond | End::Return => self.decided += 1,
                End::NamedReturn | End::NamedCall | End::Named => self.named = true,
            }
        }
    }

    /// Whether another leg can be appended.
    pub(super) const fn is_open(&self) -> bool {
        !self.named && (self.decided as usize) < OUTCOMES
    }

    /// Whether the path has no legs.
    pub(super) const fn is_empty(&self) -> bool {
        self.decided == 0 && !self.named
    }
}
