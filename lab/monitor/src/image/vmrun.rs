//! Enters the guest.

use core::arch::naked_asm;

use pugmark_monitor::vmcb::{SaveArea, Vmcb};

unsafe extern "C" {
    /// The instruction after `VMRUN`.
    static vmrun_ends: u8;
    /// The monitor's page tables.
    static boot_pml4: u8;
}

/// The guest's SSE registers while the monitor runs.
///
/// Compiled Rust uses XMM0 to XMM15 only with legacy-encoded SSE instructions, which do not change the upper halves of
/// the YMM registers, and does not use the x87 state. It uses no floating point, so MXCSR stays the guest's.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub(crate) struct Sse([u128; 16]);

impl Sse {
    /// All registers zero.
    pub(crate) const ZERO: Self = Self([0; 16]);

    /// Returns registers with these values.
    pub(crate) const fn of(registers: [u128; 16]) -> Self {
        Self(registers)
    }

    /// Returns the registers as bytes in memory order.
    pub(crate) fn bytes(&self) -> [u8; 256] {
        let mut bytes = [0; 256];
        for (to, register) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
            *to = register.to_le_bytes();
        }
        bytes
    }
}

/// Runs the guest until it exits.
///
/// RAX and RSP of the guest are in the control block, the other general registers in `gpr` (by their number in an
/// instruction). FS, GS, TR, LDTR and the MSRs that VMLOAD loads stay in the processor: the monitor uses none of them.
///
/// # Safety
/// `vmcb` must be a valid control block whose physical address equals its address, and whose nested tables give the
/// guest no access to the monitor. EFER.SVME must be set, VM_HSAVE_PA must name a page of the monitor's, and GIF and
/// RFLAGS.IF must be clear.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn vmrun(vmcb: *mut Vmcb, gpr: *mut [u64; 16], sse: *mut Sse) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rsi",
        "push rdx",
        "mov rax, rdi",
        "movaps xmm0, [rdx]",
        "movaps xmm1, [rdx + 0x10]",
        "movaps xmm2, [rdx + 0x20]",
        "movaps xmm3, [rdx + 0x30]",
        "movaps xmm4, [rdx + 0x40]",
        "movaps xmm5, [rdx + 0x50]",
        "movaps xmm6, [rdx + 0x60]",
        "movaps xmm7, [rdx + 0x70]",
        "movaps xmm8, [rdx + 0x80]",
        "movaps xmm9, [rdx + 0x90]",
        "movaps xmm10, [rdx + 0xa0]",
        "movaps xmm11, [rdx + 0xb0]",
        "movaps xmm12, [rdx + 0xc0]",
        "movaps xmm13, [rdx + 0xd0]",
        "movaps xmm14, [rdx + 0xe0]",
        "movaps xmm15, [rdx + 0xf0]",
        "mov rcx, [rsi + 8]",
        "mov rdx, [rsi + 16]",
        "mov rbx, [rsi + 24]",
        "mov rbp, [rsi + 40]",
        "mov rdi, [rsi + 56]",
        "mov r8, [rsi + 64]",
        "mov r9, [rsi + 72]",
        "mov r10, [rsi + 80]",
        "mov r11, [rsi + 88]",
        "mov r12, [rsi + 96]",
        "mov r13, [rsi + 104]",
        "mov r14, [rsi + 112]",
        "mov r15, [rsi + 120]",
        "mov rsi, [rsi + 48]",
        "vmrun rax",
        ".global vmrun_ends",
        "vmrun_ends:",
        // RSP is the monitor's again.
        "push rsi",
        "mov rsi, [rsp + 16]",
        "mov [rsi + 8], rcx",
        "mov [rsi + 16], rdx",
        "mov [rsi + 24], rbx",
        "mov [rsi + 40], rbp",
        "mov [rsi + 56], rdi",
        "mov [rsi + 64], r8",
        "mov [rsi + 72], r9",
        "mov [rsi + 80], r10",
        "mov [rsi + 88], r11",
        "mov [rsi + 96], r12",
        "mov [rsi + 104], r13",
        "mov [rsi + 112], r14",
        "mov [rsi + 120], r15",
        "pop rax",
        "mov [rsi + 48], rax",
        "pop rdx",
        "movaps [rdx], xmm0",
        "movaps [rdx + 0x10], xmm1",
        "movaps [rdx + 0x20], xmm2",
        "movaps [rdx + 0x30], xmm3",
        "movaps [rdx + 0x40], xmm4",
        "movaps [rdx + 0x50], xmm5",
        "movaps [rdx + 0x60], xmm6",
        "movaps [rdx + 0x70], xmm7",
        "movaps [rdx + 0x80], xmm8",
        "movaps [rdx + 0x90], xmm9",
        "movaps [rdx + 0xa0], xmm10",
        "movaps [rdx + 0xb0], xmm11",
        "movaps [rdx + 0xc0], xmm12",
        "movaps [rdx + 0xd0], xmm13",
        "movaps [rdx + 0xe0], xmm14",
        "movaps [rdx + 0xf0], xmm15",
        "pop rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// Returns true if the control block holds the monitor's own state instead of the guest's.
///
/// QEMU's TCG does that now and then. When a processor loads x87 state (FXRSTOR, XRSTOR), QEMU changes a word of flags
/// of the *first* processor, without a lock. If that one is just executing #VMEXIT, its own change of the word is lost,
/// and nested paging stays on. The monitor's next instruction is then fetched from the guest's memory, which lacks it:
/// that is a second #VMEXIT, which saves the monitor's state over the guest's.
pub(crate) fn has_lost_the_guest(save: &SaveArea) -> bool {
    save.rip == &raw const vmrun_ends as u64 && save.cr3 == &raw const boot_pml4 as u64
}
