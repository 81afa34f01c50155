//! The debug console, port E9H: where trace bytes go for the host to keep.

use core::arch::asm;

/// Sends `bytes`, all by one instruction.
pub(crate) fn send(bytes: &[u8]) {
    // SAFETY: the bytes are readable for as long, and the port is the debug console's or nobody's.
    unsafe {
        asm!(
            "rep outsb",
            in("dx") 0xe9u16,
            inout("rsi") bytes.as_ptr() => _,
            inout("rcx") bytes.len() => _,
            options(nostack, preserves_flags, readonly),
        );
    }
}
