//! Stacks with an unmapped page below each, so that an overflow faults and overwrites nothing.

use core::cell::UnsafeCell;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

/// The size of a guard page.
const PAGE: u64 = 4096;

/// A stack of `N` bytes. The page below it is unmapped when the stack is used.
#[repr(C, align(4096))]
pub(super) struct Stack<const N: usize> {
    guard: [u8; PAGE as usize],
    bytes: UnsafeCell<[u8; N]>,
}

// SAFETY: only the processor uses the bytes, as a stack.
unsafe impl<const N: usize> Sync for Stack<N> {}

impl<const N: usize> Stack<N> {
    pub(super) const fn new() -> Self {
        Self { guard: [0; PAGE as usize], bytes: UnsafeCell::new([0; N]) }
    }

    /// Returns the address from which the stack grows down.
    pub(super) fn top(&'static self) -> u64 {
        self.bytes.get() as u64 + N as u64
    }

    /// Returns the address of the page below.
    pub(super) fn guard(&'static self) -> u64 {
        &raw const self.guard as u64
    }
}

/// The addresses of the pages below stacks; 0 where there is none yet.
static GUARDS: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// Registers a page below a stack. `paging` unmaps it.
///
/// # Panics
/// If there are too many stacks.
pub(super) fn note_guard(address: u64) {
    let noted = GUARDS
        .iter()
        .any(|guard| guard.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    assert!(noted, "room for one more stack");
}

/// Returns whether an address is in a page below a stack. Takes no lock: the code that faulted may hold any.
pub(super) fn is_below(address: u64) -> bool {
    GUARDS.iter().any(|guard| guard.load(Ordering::Acquire) == address & !(PAGE - 1))
}

/// Overflows the stack that it is called on, for a test.
pub(crate) fn overflow() -> u64 {
    fn deeper(depth: u64) -> u64 {
        let frame = black_box([depth; 32]);
        match black_box(depth) {
            u64::MAX => frame[0],
            _ => deeper(depth + 1) + black_box(frame)[1],
        }
    }
    deeper(0)
}
