//! Stacks in the image.

use core::cell::UnsafeCell;

/// A stack of `N` bytes.
#[repr(C, align(4096))]
pub(super) struct Stack<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: only the processor uses the bytes, as a stack.
unsafe impl<const N: usize> Sync for Stack<N> {}

impl<const N: usize> Stack<N> {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new([0; N]))
    }

    /// The address from which the stack grows down.
    pub(super) fn top(&'static self) -> u64 {
        self.0.get() as u64 + N as u64
    }
}
