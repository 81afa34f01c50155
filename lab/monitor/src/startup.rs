//! The start of one processor by another: by INIT and the start-up interrupt (SIPI).
//!
//! Source: SDM vol. 3, Multiple-Processor Management, "MP Initialization Protocol Algorithm for MP Systems"; Advanced
//! Programmable Interrupt Controller (APIC), "Interrupt Command Register (ICR)", on INIT and start-up.

use core::sync::atomic::{AtomicU32, Ordering};

/// The start-up commands that have reached a processor. Other processors send them; the processor itself takes them.
///
/// As on hardware, a processor takes a start-up interrupt only while it waits for one, and it takes only the first one.
/// A start-up interrupt that arrives before the processor has handled its INIT is kept, because on hardware INIT takes
/// no time.
#[derive(Debug)]
pub struct StartupState(AtomicU32);

/// The processor executes.
const RUNNING: u32 = 0;
/// INIT has arrived, and the processor has not handled it yet.
const INIT: u32 = 1 << 8;
/// The processor waits for a start-up interrupt.
const WAITING: u32 = 1 << 9;
/// A start-up interrupt has arrived; bits 7:0 are its vector.
const STARTED: u32 = 1 << 10;

impl StartupState {
    /// Returns the state of a processor that executes.
    #[must_use]
    pub const fn running() -> Self {
        Self(AtomicU32::new(RUNNING))
    }

    /// Returns the state of a processor that waits to be started.
    #[must_use]
    pub const fn waiting() -> Self {
        Self(AtomicU32::new(WAITING))
    }

    /// Sends INIT; called by another processor.
    pub fn send_init(&self) {
        self.0.store(INIT, Ordering::Release);
    }

    /// Sends a start-up interrupt; called by another processor. Returns `false` if it is ignored.
    pub fn send_start_up(&self, vector: u8) -> bool {
        let started = |state| match state {
            INIT | WAITING => Some(state & INIT | STARTED | u32::from(vector)),
            _ => None,
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, started).is_ok()
    }

    /// Returns whether INIT has arrived. If so, the processor must reset itself and then call
    /// [`StartupState::finish_init`].
    #[must_use]
    pub fn has_received_init(&self) -> bool {
        self.0.load(Ordering::Acquire) & INIT != 0
    }

    /// Records that the processor has reset itself and waits.
    pub fn finish_init(&self) {
        // Changes nothing if no INIT was sent.
        let waits = |state| Some(if state == INIT { WAITING } else { state & !INIT });
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, waits);
    }

    /// Takes the start-up interrupt that ends the wait, and returns its vector. The processor executes from then on.
    #[must_use]
    pub fn take_start_up(&self) -> Option<u8> {
        let started = self.0.load(Ordering::Acquire);
        if started & STARTED == 0 || started & INIT != 0 {
            return None;
        }
        // If the exchange fails, another INIT has arrived in between.
        let taken = self.0.compare_exchange(started, RUNNING, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok().then_some(started as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_waits_starts_at_the_first_vector() {
        let processor = StartupState::waiting();
        assert_eq!(processor.take_start_up(), None);
        assert!(processor.send_start_up(8));
        assert!(!processor.send_start_up(9), "the second one comes to a processor that no longer waits");
        assert!(!processor.has_received_init());
        assert_eq!(processor.take_start_up(), Some(8));
        assert_eq!(processor.take_start_up(), None);
    }

    #[test]
    fn a_processor_that_runs_ignores_start_up() {
        let processor = StartupState::running();
        assert!(!processor.send_start_up(8));
        assert_eq!((processor.has_received_init(), processor.take_start_up()), (false, None));
        processor.finish_init();
        assert_eq!(processor.take_start_up(), None);
        assert!(!processor.send_start_up(8), "it has not been reset: nobody sent INIT");
    }

    #[test]
    fn a_start_up_right_after_init_is_kept_until_the_processor_waits() {
        let processor = StartupState::running();
        processor.send_init();
        assert!(processor.has_received_init());
        assert!(processor.send_start_up(0));
        assert!(!processor.send_start_up(1));
        assert_eq!(processor.take_start_up(), None, "before it has reset itself");
        processor.finish_init();
        assert_eq!((processor.has_received_init(), processor.take_start_up()), (false, Some(0)));
    }

    #[test]
    fn init_takes_a_start_up_back() {
        let processor = StartupState::waiting();
        assert!(processor.send_start_up(8));
        processor.send_init();
        assert_eq!(processor.take_start_up(), None);
        processor.finish_init();
        assert_eq!(processor.take_start_up(), None);
        assert!(processor.send_start_up(9));
        assert_eq!(processor.take_start_up(), Some(9));
    }
}
