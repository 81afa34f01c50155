//! Incomplete events: each waits for a later packet.
//!
//! They wait in the order of their packets. If one packet completes several, they are published in that order.

use super::{EventKind, Stamp};
use crate::error::ErrorKind;

/// The packet that an event waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partner {
    /// Its own FUP, which does not begin an asynchronous branch.
    OwnFup,
    /// A FUP, which may also begin an asynchronous branch.
    AnyFup,
    /// A TIP, TIP.PGE or TIP.PGD, or its own FUP: any of these completes a MODE.Exec.
    FupOrTip,
    /// The TIP or TIP.PGD of an asynchronous branch.
    Tip,
    /// An EXSTOP.
    Exstop,
    /// A PWRX.
    Pwrx,
    /// A CFE.
    Cfe,
}

impl Partner {
    /// Returns true if a FUP completes the event.
    pub(super) const fn is_fup(self) -> bool {
        matches!(self, Self::OwnFup | Self::AnyFup | Self::FupOrTip)
    }

    /// Returns true if a FUP that completes the event does not begin a branch.
    pub(super) const fn claims_fup(self) -> bool {
        matches!(self, Self::OwnFup | Self::FupOrTip)
    }

    /// Returns true if only a FUP completes the event.
    pub(super) const fn needs_fup(self) -> bool {
        matches!(self, Self::OwnFup | Self::AnyFup)
    }

    /// Returns true if a TIP completes the event.
    pub(super) const fn is_tip(self) -> bool {
        matches!(self, Self::Tip | Self::FupOrTip)
    }
}

/// An incomplete event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) partner: Partner,
    /// The event; `None` for a packet whose meaning is unknown or not needed here.
    pub(super) kind: Option<EventKind>,
    /// The time of the event, if it differs from the time of its completion.
    pub(super) when: Option<Stamp>,
}

/// Incomplete events, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    waiters: [Waiter; Self::CAPACITY],
    len: usize,
}

impl Waiting {
    /// The same capacity as libipt's; processors leave only a few events incomplete.
    pub(super) const CAPACITY: usize = 14;

    pub(super) const fn new() -> Self {
        const NOBODY: Waiter = Waiter { partner: Partner::Cfe, kind: None, when: None };
        Self { waiters: [NOBODY; Self::CAPACITY], len: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the number of waiting events.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Undoes a [`clear`](Self::clear) of `len` waiters, after which none was added.
    pub(super) const fn restore(&mut self, len: usize) {
        self.len = len;
    }

    pub(super) fn push(
        &mut self,
        partner: Partner,
        kind: Option<EventKind>,
        packet: &'static str,
    ) -> Result<(), ErrorKind> {
        self.push_with(Waiter { partner, kind, when: None }, packet)
    }

    pub(super) fn push_with(&mut self, waiter: Waiter, packet: &'static str) -> Result<(), ErrorKind> {
        *self.waiters.get_mut(self.len).ok_or(ErrorKind::TooManyWaiting(packet))? = waiter;
        self.len += 1;
        Ok(())
    }

    /// Removes and returns the oldest waiter that `is_it` accepts.
    pub(super) fn take(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let at = self.as_slice().iter().position(is_it)?;
        let waiter = self.waiters.get(at).copied()?;
        self.waiters.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(waiter)
    }

    /// Removes and returns the oldest waiter for this packet.
    pub(super) fn take_for(&mut self, partner: Partner) -> Option<Waiter> {
        self.take(|waiter| waiter.partner == partner)
    }

    /// Returns the oldest waiter that `is_it` accepts.
    pub(super) fn find(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Option<&mut Waiter> {
        self.waiters.iter_mut().take(self.len).find(|waiter| is_it(waiter))
    }

    pub(super) fn any(&self, is_it: impl Fn(&Waiter) -> bool) -> bool {
        self.as_slice().iter().any(is_it)
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all waiters.
    pub(super) fn as_slice(&self) -> &[Waiter] {
        self.waiters.get(..self.len).unwrap_or_default()
    }
}
