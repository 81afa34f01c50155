//! The time-stamp counter.

/// Returns the time-stamp counter as the guest reads it: the control block's offset is 0.
pub(crate) fn tsc() -> u64 {
    // SAFETY: RDTSC is allowed at CPL 0 and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}
