//! Keeps the timer of a stepped guest from taking all of its time.
//!
//! A guest that is stepped executes a thousandth of what its processor would, but its timer goes on in real time: the
//! handler of a tick may take longer than the time between two ticks, and the guest would do nothing else. Interrupts
//! of the local APIC's timer are held back until the guest has executed a given number of instructions since the last
//! one. The guest's clocks stay those of the machine, and no other interrupt is held back.

/// Decides when a timer interrupt reaches a stepped guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerLimit {
    /// Instructions between two interrupts.
    apart: u32,
    /// Instructions until the next may come.
    left: u32,
    held: Option<u8>,
}

impl TimerLimit {
    /// Lets at least `apart` instructions retire between two interrupts; 0: holds back none.
    #[must_use]
    pub const fn new(apart: u32) -> Self {
        Self { apart, left: 0, held: None }
    }

    /// An instruction retired while the guest was stepped.
    #[inline]
    pub const fn retired(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Interrupt `vector` came, and the guest could take it; `lvt_timer`: content of [`crate::local_apic::LVT_TIMER`].
    /// Returns whether the interrupt is held back until [`Self::release`] returns it.
    #[must_use]
    pub const fn holds(&mut self, vector: u8, lvt_timer: u32) -> bool {
        if vector != lvt_timer as u8 {
            return false;
        }
        if self.left > 0 {
            self.held = Some(vector);
            return true;
        }
        self.left = self.apart;
        false
    }

    /// Returns the vector that was held back, if it is due.
    pub const fn release(&mut self) -> Option<u8> {
        if self.left > 0 { None } else { self.held.take() }
    }

    /// The guest waits, or is no longer stepped: an interrupt that was held back is due.
    pub const fn end(&mut self) {
        self.left = 0;
    }

    /// Forgets the interrupt that was held back, as INIT does.
    pub const fn init(&mut self) {
        *self = Self::new(self.apart);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTOR: u8 = 0xec;
    /// Periodic.
    const LVT: u32 = 0x2_00ec;

    /// A limit of three instructions whose first interrupt has just come.
    fn after_the_first() -> TimerLimit {
        let mut limit = TimerLimit::new(3);
        assert!(!limit.holds(VECTOR, LVT), "the first one is due");
        limit
    }

    #[test]
    fn a_timer_interrupt_waits_until_enough_instructions_have_retired_since_the_last() {
        let mut limit = after_the_first();
        limit.retired();
        assert!(limit.holds(VECTOR, LVT));
        for _ in 0..2 {
            assert_eq!(limit.release(), None);
            limit.retired();
        }
        assert_eq!(limit.release(), Some(VECTOR));
        assert_eq!(limit.release(), None, "it comes once");
        assert!(!limit.holds(VECTOR, LVT), "when it comes again it is due");
        assert!(limit.holds(VECTOR, LVT), "the next one is not");
    }

    #[test]
    fn two_timer_interrupts_that_are_held_back_become_one() {
        let mut limit = after_the_first();
        assert!(limit.holds(VECTOR, LVT) && limit.holds(VECTOR, LVT));
        limit.end();
        assert_eq!([limit.release(), limit.release()], [Some(VECTOR), None]);
    }

    #[test]
    fn other_interrupts_are_not_held_back() {
        let mut limit = after_the_first();
        assert!(!limit.holds(0xfd, LVT));
        assert!(limit.holds(VECTOR, LVT), "and do not count as the timer's");
    }

    #[test]
    fn a_guest_that_waits_or_runs_freely_gets_what_was_held_back_at_once() {
        let mut limit = after_the_first();
        assert!(limit.holds(VECTOR, LVT));
        limit.end();
        assert_eq!(limit.release(), Some(VECTOR));
    }

    #[test]
    fn init_forgets_what_was_held_back() {
        let mut limit = after_the_first();
        assert!(limit.holds(VECTOR, LVT));
        limit.init();
        assert_eq!((limit, limit.release()), (TimerLimit::new(3), None));
    }

    #[test]
    fn without_a_limit_nothing_is_held_back() {
        let mut limit = TimerLimit::new(0);
        assert!((0..3).all(|_| !limit.holds(VECTOR, LVT)));
    }
}
