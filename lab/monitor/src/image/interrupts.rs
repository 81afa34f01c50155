//! Takes physical interrupts and NMIs on behalf of the guest.
//!
//! They reach the monitor only in the windows below. The monitor does not send an EOI: the interrupt stays in service
//! until the guest, which receives it next, sends the EOI.

use core::arch::naked_asm;

/// The arrivals in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenInterrupts {
    /// The vector of an interrupt.
    pub(crate) vector: Option<u8>,
    /// An NMI arrived.
    pub(crate) nmi: bool,
}

/// Takes a pending interrupt, if there is one, and a pending NMI.
pub(crate) fn take() -> TakenInterrupts {
    // SAFETY: the monitor's IDT is loaded, its stubs return what arrived in RAX and RDX, and GIF and IF are clear here.
    unsafe { take_window() }.into()
}

/// Takes a pending NMI, if there is one, but no interrupt.
pub(crate) fn take_nmi() -> bool {
    // SAFETY: as in `take`.
    unsafe { nmi_window() }.rdx != 0
}

/// Halts until an interrupt or an NMI arrives.
pub(crate) fn wait() -> TakenInterrupts {
    // SAFETY: as in `take`.
    unsafe { wait_window() }.into()
}

/// Halts until an NMI arrives. Returns `false` if something else ended the halt.
pub(crate) fn wait_for_nmi() -> bool {
    // SAFETY: as in `take`.
    unsafe { nmi_wait_window() }.rdx != 0
}

#[repr(C)]
struct WindowResult {
    /// The vector; all ones if no interrupt arrived.
    rax: u64,
    /// Not 0 if an NMI arrived.
    rdx: u64,
}

impl From<WindowResult> for TakenInterrupts {
    fn from(WindowResult { rax, rdx }: WindowResult) -> Self {
        Self { vector: u8::try_from(rax).ok(), nmi: rdx != 0 }
    }
}

// The stubs run on the caller's stack. These functions are called, not inlined, so compiled code keeps nothing in the
// red zone below RSP while a window is open.

#[unsafe(naked)]
unsafe extern "C" fn take_window() -> WindowResult {
    naked_asm!(
        "mov rax, -1",
        "xor edx, edx",
        "stgi",
        ".global take_begins",
        "take_begins:",
        "sti",
        "nop",
        ".global take_ends",
        "take_ends:",
        "cli",
        "clgi",
        "ret"
    )
}

#[unsafe(naked)]
unsafe extern "C" fn nmi_window() -> WindowResult {
    naked_asm!("mov rax, -1", "xor edx, edx", "stgi", "nop", "clgi", "ret")
}

// An interrupt is held back until the HLT after STI. An NMI is not: its stub ends the wait even if the NMI comes before
// HLT.

#[unsafe(naked)]
unsafe extern "C" fn wait_window() -> WindowResult {
    naked_asm!(
        "mov rax, -1",
        "xor edx, edx",
        "stgi",
        ".global wait_begins",
        "wait_begins:",
        "sti",
        "hlt",
        ".global wait_ends",
        "wait_ends:",
        "cli",
        "clgi",
        "ret"
    )
}

#[unsafe(naked)]
unsafe extern "C" fn nmi_wait_window() -> WindowResult {
    naked_asm!(
        "mov rax, -1",
        "xor edx, edx",
        "stgi",
        ".global nmi_wait_begins",
        "nmi_wait_begins:",
        "hlt",
        ".global nmi_wait_ends",
        "nmi_wait_ends:",
        "clgi",
        "ret"
    )
}
