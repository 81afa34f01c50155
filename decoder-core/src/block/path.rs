//! Paths: the blocks that code and a few outcomes make, remembered together.
//!
//! Finding the code of one block costs more than what is to be known of it. So the way that the walk takes from an
//! address under the outcomes that come next is remembered as a whole, and when the same outcomes come there again, it
//! is followed block by block.

/// The most outcomes that a path depends on: as many as a short TNT packet has.
pub(super) const OUTCOMES: usize = 6;

/// Where some blocks begin, how their branches go, and where they lead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) key: Key,
    /// How many legs end with an outcome.
    pub(super) decided: u8,
    /// Whether another one comes behind them, at whose end the trace names a target.
    pub(super) named: bool,
    /// The section that all are in.
    pub(super) section: u32,
    pub(super) legs: [Leg; OUTCOMES],
}

/// What a path is found by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) ip: u64,
    pub(super) space: u64,
    /// The oldest outcome in the highest bit, with a bit set in front of it. No path has a 0, as slots that are not in
    /// use have: those are all zeros, which are written fastest.
    pub(super) outcomes: u8,
    pub(super) mode: u8,
}

/// One block of a path. Addresses are relative to the path's first one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leg {
    /// Of the last instruction.
    pub(super) last: i32,
    /// Of what comes next; behind a branch whose target the trace names, of the byte behind that.
    pub(super) next: i32,
    /// What the direct call in it will return to, if there is one.
    pub(super) returns_to: i32,
    pub(super) insns: u16,
    pub(super) calls: bool,
    pub(super) end: End,
}

/// How a leg ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// A conditional branch, by an outcome, behind no call.
    #[default]
    Plain,
    /// A conditional branch, by an outcome, behind a call.
    Cond,
    /// A compressed return, by an outcome.
    Return,
    /// A return, where the trace says to.
    NamedReturn,
    /// An indirect call, where the trace says to.
    NamedCall,
    /// Any other branch, where the trace says to.
    Named,
}

impl Path {
    /// One more leg, if there is room.
    pub(super) fn push(&mut self, leg: Leg) {
        if let Some(place) = self.legs.get_mut(usize::from(self.decided)) {
            *place = leg;
            match leg.end {
                End::Plain | End::Cond | End::Return => self.decided += 1,
                End::NamedReturn | End::NamedCall | End::Named => self.named = true,
            }
        }
    }

    /// Whether another leg can join.
    pub(super) const fn is_open(&self) -> bool {
        !self.named && (self.decided as usize) < OUTCOMES
    }

    /// Whether it leads nowhere.
    pub(super) const fn is_empty(&self) -> bool {
        self.decided == 0 && !self.named
    }
}
