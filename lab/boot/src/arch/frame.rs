//! The interrupted registers that the stub of a trap saves.

use pugmark_kernel::arch::{Fixup, Interrupted};

/// The registers at a trap, in the order in which the stub pushes them.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TrapFrame {
    pub(super) rax: u64,
    pub(super) rcx: u64,
    pub(super) rdx: u64,
    pub(super) rbx: u64,
    pub(super) rbp: u64,
    pub(super) rsi: u64,
    pub(super) rdi: u64,
    pub(super) r8: u64,
    pub(super) r9: u64,
    pub(super) r10: u64,
    pub(super) r11: u64,
    pub(super) r12: u64,
    pub(super) r13: u64,
    pub(super) r14: u64,
    pub(super) r15: u64,
    pub(super) vector: u64,
    pub(super) error: u64,
    pub(super) rip: u64,
    pub(super) cs: u64,
    pub(super) rflags: u64,
    pub(super) rsp: u64,
    pub(super) ss: u64,
}

impl TrapFrame {
    /// Ends the #GP of a guarded access without IRET, which would unblock NMIs.
    pub(super) fn resume(&self, fixup: Fixup) -> ! {
        let &Self { rbx, rbp, r12, r13, r14, r15, rsp, rflags, .. } = self;
        let interrupted = Interrupted { rbx, rbp, r12, r13, r14, r15, rsp, rflags };
        // SAFETY: the frame is that of the #GP, which interrupted level 0. The stub and the code from there to here
        // own nothing, and they do not change state that a function must preserve.
        unsafe { fixup.resume(&interrupted) }
    }
}
