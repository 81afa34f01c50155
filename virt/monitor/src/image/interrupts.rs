//! Taking physical interrupts and NMIs on the guest's behalf.
//!
//! They reach the monitor only in the windows below. Nothing is acknowledged with an EOI: the interrupt stays in
//! service until the guest, which gets it next, ends it.

use core::arch::naked_asm;

/// What came in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// An interrupt's vector.
    pub(crate) vector: Option<u8>,
    /// An NMI.
    pub(crate) nmi: bool,
}

/// Takes the interrupt that is pending, if one is.
pub(crate) fn take() -> Taken {
    // SAFETY: the monitor's IDT is loaded, its stubs leave what came in RAX and RDX, and GIF and IF are clear here.
    unsafe { take_window() }.into()
}

/// Takes the NMI that is pending, if one is, and no interrupt.
pub(crate) fn take_nmi() -> bool {
    // SAFETY: as in `take`.
    unsafe { nmi_window() }.rdx != 0
}

/// Halts until something comes.
pub(crate) fn wait() -> Taken {
    // SAFETY: as in `take`.
    unsafe { wait_window() }.into()
}

/// Halts until an NMI comes; `false`: something else ended the halt.
pub(crate) fn wait_for_nmi() -> bool {
    // SAFETY: as in `take`.
    unsafe { nmi_wait_window() }.rdx != 0
}

#[repr(C)]
struct Registers {
    /// The vector; all ones: none.
    rax: u64,
    /// Not 0: an NMI.
    rdx: u64,
}

impl From<Registers> for Taken {
    fn from(Registers { rax, rdx }: Registers) -> Self {
        Self { vector: u8::try_from(rax).ok(), nmi: rdx != 0 }
    }
}

// The stubs run on the caller's stack. These functions are called, so no compiled code keeps anything in the red zone
// below RSP while a window is open.

#[unsafe(naked)]
unsafe extern "C" fn take_window() -> Registers {
    naked_asm!("mov rax, -1", "xor edx, edx", "stgi", "sti", "nop", "cli", "clgi", "ret")
}

#[unsafe(naked)]
unsafe extern "C" fn nmi_window() -> Registers {
    naked_asm!("mov rax, -1", "xor edx, edx", "stgi", "nop", "clgi", "ret")
}

// An interrupt waits for the HLT behind STI. An NMI does not: its stub ends the wait also where it comes before the HLT.

#[unsafe(naked)]
unsafe extern "C" fn wait_window() -> Registers {
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
unsafe extern "C" fn nmi_wait_window() -> Registers {
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
