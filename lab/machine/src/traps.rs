//! The stubs of all 256 vectors, and the interrupted registers that they save.

use core::arch::global_asm;
use core::ops::RangeInclusive;
use pugmark_kernel::arch::{Fixup, Interrupted};
use x86_64::VirtAddr;

unsafe extern "C" {
    /// The stubs, 16 bytes each.
    static trap_stubs: [[u8; 16]; 256];
}

/// The bytes of a trap's stack in use when `kernel_trap` is called: registers pushed by the processor and the stub, and
/// the SSE registers.
pub const STUB: usize = size_of::<TrapFrame>() + SSE + 32;

/// Returns the address of a vector's stub: it saves all registers, handles the vector's error code and ends with IRETQ.
pub fn stub(vector: u8) -> VirtAddr {
    // SAFETY: only the address is taken.
    VirtAddr::from_ptr(unsafe { &raw const trap_stubs[usize::from(vector)] })
}

/// Returns the addresses of all vectors' stubs, the targets of every interrupt and exception.
pub fn stub_addresses() -> RangeInclusive<u64> {
    let start = &raw const trap_stubs as u64;
    start..=start + size_of::<[[u8; 16]; 256]>() as u64 - 1
}

/// The registers at a trap, in the order in which the stub pushes them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TrapFrame {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// The size of the SSE registers as FXSAVE writes them.
pub const SSE: usize = 512;

impl TrapFrame {
    /// Returns the SSE registers, which are loaded when `kernel_trap` returns.
    ///
    /// # Safety
    ///
    /// The frame is the one that `kernel_trap` was called with.
    pub unsafe fn sse(&mut self) -> &mut [u8; SSE] {
        let address = ((&raw mut *self).addr() - SSE) & !15;
        // SAFETY: there the stub has saved them, and nothing else uses that place until the stub loads them again.
        unsafe { &mut *(&raw mut *self).with_addr(address).cast() }
    }

    /// Ends the #GP of a guarded access without IRET, which would unblock NMIs.
    pub fn resume(&self, fixup: Fixup) -> ! {
        let &Self { rbx, rbp, r12, r13, r14, r15, rsp, rflags, .. } = self;
        let interrupted = Interrupted { rbx, rbp, r12, r13, r14, r15, rsp, rflags };
        // SAFETY: the frame is that of the #GP, which interrupted level 0. The stub and the code from there to here
        // own nothing, and they do not change state that a function must preserve.
        unsafe { fixup.resume(&interrupted) }
    }
}

global_asm!(include_str!("traps.s"), options(att_syntax));
