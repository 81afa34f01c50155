//! A value that a PMI handler and the code it interrupts share.

use core::sync::atomic::{AtomicBool, Ordering};
use spin::Mutex;

/// A place for what a processor's PMI handler needs, such as [`Running`](crate::pt::Running).
///
/// Nobody waits for it: a handler that finds it taken, because it interrupted the code that holds it, leaves a note,
/// and that code serves the PMI when it is done. Until then the LVT entry is masked and no other comes. That holds also
/// where the value has nothing to trace at that time: somebody has to unmask the entry.
#[derive(Debug)]
pub struct Slot<T> {
    value: Mutex<OneProcessor<Option<T>>>,
    missed: AtomicBool,
}

impl<T> Slot<T> {
    /// An empty one.
    ///
    /// # Safety
    ///
    /// Only one logical processor ever uses it: it is in a per-processor variable.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { value: Mutex::new(OneProcessor(None)), missed: AtomicBool::new(false) }
    }

    /// For the handler: works with the value, unless the interrupted code does.
    pub fn in_handler<R>(&self, work: impl FnOnce(&mut Option<T>) -> R) -> Option<R> {
        match self.value.try_lock() {
            Some(mut value) => Some(work(&mut value.0)),
            None => {
                self.missed.store(true, Ordering::Release);
                None
            }
        }
    }

    /// For all other code: works with the value, then serves what the handler missed meanwhile.
    ///
    /// `None`, and nothing was done, where this is called from within itself.
    pub fn with<R>(
        &self,
        work: impl FnOnce(&mut Option<T>) -> R,
        mut serve: impl FnMut(&mut Option<T>),
    ) -> Option<R> {
        let result = {
            let mut value = self.value.try_lock()?;
            work(&mut value.0)
        };
        while self.missed.swap(false, Ordering::Acquire) {
            if let Some(mut value) = self.value.try_lock() {
                serve(&mut value.0);
            }
        }
        Some(result)
    }
}

#[derive(Debug)]
struct OneProcessor<T>(T);

// SAFETY: the value is used by one processor only, by the promise of `Slot::new`; the lock keeps its contexts apart.
unsafe impl<T> Send for OneProcessor<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_finds_it_taken_is_served_later() {
        // SAFETY: one thread uses it.
        let slot = unsafe { Slot::new() };
        let mut served = 0;
        let result = slot.with(
            |value| {
                *value = Some(7);
                // The PMI comes here.
                assert_eq!(slot.in_handler(|_| ()), None);
                8
            },
            |value| {
                assert_eq!(*value, Some(7));
                served += 1;
            },
        );
        assert_eq!((result, served), (Some(8), 1));
        assert_eq!(slot.in_handler(|value| *value), Some(Some(7)));
        slot.with(|_| (), |_| panic!("nothing was missed"));
    }

    #[test]
    fn refuses_to_be_entered_twice() {
        // SAFETY: one thread uses it.
        let slot = unsafe { Slot::<u32>::new() };
        let inner = slot.with(|_| slot.with(|_| (), |_| ()), |_| ());
        assert_eq!(inner, Some(None));
    }
}
