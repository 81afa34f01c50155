//! The vectors that the kernel handles.

/// The vector of NMIs.
pub(crate) const NMI: u8 = 2;
pub(super) const BREAKPOINT: u8 = 3;
pub(super) const UNDEFINED: u8 = 6;
pub(super) const GENERAL_PROTECTION: u8 = 13;
pub(super) const PAGE_FAULT: u8 = 14;
/// The vector of the local APIC's timer.
pub(super) const TIMER: u8 = 0x20;
/// The vector of the tracing unit's interrupt (PMI), if it is not an NMI.
pub(crate) const PMI: u8 = 0x21;
/// The vector that makes other processors check their conditions again.
pub(super) const WAKE: u8 = 0x22;
/// The vector of system calls by `INT n`.
pub(super) const SYSTEM_CALL: u8 = 0x80;
/// The vector of interrupts that the local APIC delivers without a cause.
pub(super) const SPURIOUS: u8 = 0xff;
