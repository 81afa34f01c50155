//! The debug console, port E9H: the host keeps the trace bytes that it receives there.

use core::arch::asm;

/// Sends all `bytes` with one instruction.
pub(crate) fn send(bytes: &[u8]) {
    // SAFETY: the bytes stay readable, and the port is the debug console's or unused.
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
