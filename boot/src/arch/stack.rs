//! Stacks in the image.

use core::cell::UnsafeCell;

/// A stack of `N` bytes.
#[repr(C, align(4096))]
pub(super) struct Stack<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: nothing but the processor, as a stack, uses the bytes.
unsafe impl<const N: usize> Sync for Stack<N> {}

impl<const N: usize> Stack<N> {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new([0; N]))
    }

    /// The address that the stack grows down from.
    pub(super) fn top(&'static self) -> u64 {
        self.0.get() as u64 + N as u64
    }
}
