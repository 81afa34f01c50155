//! RDMSR and WRMSR that survive a #GP with the help of the kernel's handler.

use crate::msr::{GeneralProtection, Msr};
use core::arch::global_asm;
use core::marker::PhantomData;

/// RDMSR and WRMSR of the processor that executes them; a #GP becomes an error.
///
/// The kernel's #GP handler has to call [`fixup`] with the faulting RIP. Neither `Send` nor `Sync`: it stands for
/// the processor it was made on.
///
/// # What the #GP handler has to mind
///
/// The driver makes its accesses in the NMI handler too, and there two things are fatal:
///
/// - **IRET.** While an NMI is handled others are held back, until the next IRET, be it that of a #GP. One that waited then
///   comes at once, and where NMIs have a stack of the interrupt stack table, it overwrites the frame of the first.
///   [`Fixup::resume`] goes back without IRET.
/// - **A stack of the interrupt stack table** for #GP: it always begins at its top. A #GP that an NMI's access raises while
///   another #GP is handled (or an exception with the same stack) overwrites that one's frame. Without such a stack #GP
///   is handled below the code that raised it; these accesses use no red zone.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Handling Multiple NMIs" and "Interrupt Stack Table".
#[derive(Debug)]
pub struct GuardedMsr(PhantomData<*const ()>);

impl GuardedMsr {
    /// The registers of this processor.
    ///
    /// # Safety
    ///
    /// The caller runs at CPL 0, the #GP handler calls [`fixup`] and obeys it, as described [above](GuardedMsr) where
    /// the driver runs in the NMI handler, and the value stays on this logical processor: whoever holds it is not moved
    /// to another one.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

/// For the #GP handler: how to go on when the fault was in one of this module's accesses; `None`: it was not.
///
/// ```no_run
/// use pugmark_kernel::arch::{Interrupted, fixup};
/// # struct Frame { rip: u64, rbx: u64, rbp: u64, r12: u64, r13: u64, r14: u64, r15: u64, rsp: u64, rflags: u64 }
///
/// /// The frame has the registers that the stub pushed and what the processor pushed.
/// fn general_protection(frame: &Frame) {
///     if let Some(fixup) = fixup(frame.rip) {
///         let &Frame { rbx, rbp, r12, r13, r14, r15, rsp, rflags, .. } = frame;
///         // SAFETY: the registers are those of the frame, and this handler has nothing left to do.
///         unsafe { fixup.resume(&Interrupted { rbx, rbp, r12, r13, r14, r15, rsp, rflags }) }
///     }
///     // … a fault of somebody else's …
/// }
/// ```
#[must_use]
pub fn fixup(rip: u64) -> Option<Fixup> {
    let rdmsr = &raw const pugmark_rdmsr_access as u64;
    let wrmsr = &raw const pugmark_wrmsr_access as u64;
    (rip == rdmsr || rip == wrmsr).then_some(Fixup(()))
}

/// An access of this module's raised the #GP that is being handled.
#[derive(Clone, Copy, Debug)]
pub struct Fixup(());

/// What an access has to find as it was: the registers that a function keeps, the stack pointer and RFLAGS.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "registers")]
pub struct Interrupted {
    pub rbx: u64,
    pub rbp: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rsp: u64,
    pub rflags: u64,
}

impl Fixup {
    /// Ends the #GP handler and goes on where the access reports the fault, without IRET: NMIs stay held back if they
    /// are.
    ///
    /// It does not return, and what the handler's stack frames own is never dropped. Not with supervisor shadow stacks:
    /// the handler's stays in use.
    ///
    /// # Safety
    ///
    /// `interrupted` is what the #GP of this fix-up interrupted; nothing of the handler is needed any more, its stub has
    /// changed no other state that a function keeps (such as GS or MXCSR), and the processor is at CPL 0.
    pub unsafe fn resume(self, interrupted: &Interrupted) -> ! {
        // SAFETY: by the caller's promise these are the registers at the access, to whose end the function goes.
        unsafe { pugmark_msr_resume(interrupted) }
    }

    /// Where the access reports the fault: for a #GP handler that puts it into the interrupted frame's RIP and returns as
    /// always. That is right where NMIs need no protection from an IRET: the kernel's NMI handler copes with being
    /// interrupted by another NMI, no driver of this crate runs in it, or events are delivered by FRED, whose return
    /// instruction leaves NMIs as they are unless it is told otherwise.
    #[must_use]
    pub fn address(self) -> u64 {
        &raw const pugmark_msr_faulted as u64
    }
}

// SAFETY: RDMSR and WRMSR reach the registers of the processor they run on, the same one for all calls by
// the promise of `new`.
unsafe impl Msr for GuardedMsr {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        let mut value = 0;
        // SAFETY: the function below keeps the calling convention, with and without the fault, and writes one u64.
        match unsafe { pugmark_rdmsr(address, &mut value) } {
            0 => Ok(value),
            _ => Err(GeneralProtection { address, written: None }),
        }
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the function below keeps the calling convention, with and without the fault; the caller vouches for
        // the value.
        match unsafe { pugmark_wrmsr(address, value) } {
            0 => Ok(()),
            _ => Err(GeneralProtection { address, written: Some(value) }),
        }
    }
}

unsafe extern "sysv64" {
    /// 0, or 1 after a #GP.
    fn pugmark_rdmsr(address: u32, value: *mut u64) -> u32;
    /// 0, or 1 after a #GP.
    fn pugmark_wrmsr(address: u32, value: u64) -> u32;
    /// Goes on with these registers at `pugmark_msr_faulted`.
    fn pugmark_msr_resume(interrupted: *const Interrupted) -> !;
    static pugmark_rdmsr_access: u8;
    static pugmark_wrmsr_access: u8;
    static pugmark_msr_faulted: u8;
}

// A fault leaves the stack as it was at the instruction, so `pugmark_msr_faulted` returns for either function. Below it
// nothing is live: neither function uses a red zone. So RFLAGS may go through there, last, because they may let
// interrupts in.
global_asm!(
    r#"
    .pushsection .text.pugmark_msr, "ax", @progbits
    .global pugmark_rdmsr, pugmark_wrmsr, pugmark_rdmsr_access, pugmark_wrmsr_access, pugmark_msr_faulted
    .global pugmark_msr_resume
    .hidden pugmark_rdmsr, pugmark_wrmsr, pugmark_rdmsr_access, pugmark_wrmsr_access, pugmark_msr_faulted
    .hidden pugmark_msr_resume
    .type pugmark_rdmsr, @function
    .type pugmark_wrmsr, @function
    .type pugmark_msr_resume, @function
    pugmark_rdmsr:
        mov ecx, edi
    pugmark_rdmsr_access:
        rdmsr
        mov dword ptr [rsi], eax
        mov dword ptr [rsi + 4], edx
        xor eax, eax
        ret
    .size pugmark_rdmsr, . - pugmark_rdmsr
    pugmark_wrmsr:
        mov ecx, edi
        mov rax, rsi
        mov rdx, rsi
        shr rdx, 32
    pugmark_wrmsr_access:
        wrmsr
        xor eax, eax
        ret
    .size pugmark_wrmsr, . - pugmark_wrmsr
    pugmark_msr_resume:
        mov rbx, qword ptr [rdi]
        mov rbp, qword ptr [rdi + 8]
        mov r12, qword ptr [rdi + 16]
        mov r13, qword ptr [rdi + 24]
        mov r14, qword ptr [rdi + 32]
        mov r15, qword ptr [rdi + 40]
        mov rax, qword ptr [rdi + 56]
        mov rsp, qword ptr [rdi + 48]
        push rax
        popfq
    pugmark_msr_faulted:
        mov eax, 1
        ret
    .size pugmark_msr_resume, . - pugmark_msr_resume
    .popsection
    "#
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixup_knows_its_two_instructions_and_no_other() {
        let rdmsr = &raw const pugmark_rdmsr_access as u64;
        let wrmsr = &raw const pugmark_wrmsr_access as u64;
        for (rip, opcode) in [(rdmsr, [0x0f, 0x32]), (wrmsr, [0x0f, 0x30])] {
            // SAFETY: both labels are in front of a two-byte instruction of this program's text.
            let code = unsafe { *(rip as *const [u8; 2]) };
            assert_eq!(code, opcode);
            let after = fixup(rip).unwrap().address();
            // SAFETY: as above, in front of a five-byte instruction.
            let code = unsafe { *(after as *const [u8; 5]) };
            assert_eq!(code, [0xb8, 1, 0, 0, 0], "mov eax, 1");
            assert!(fixup(rip - 1).is_none());
            assert!(fixup(rip + 2).is_none());
        }
    }

    /// A program of a hosted system may not execute either instruction, and gets their #GP as a signal.
    #[test]
    fn an_access_that_faults_reports_it_and_keeps_the_registers() {
        extern "C" fn general_protection(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the system's, for this signal.
            let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
            let get = |register: i32| registers[register as usize].cast_unsigned();
            let fixup = fixup(get(libc::REG_RIP)).expect("a guarded access");
            let interrupted = Interrupted {
                rbx: get(libc::REG_RBX),
                rbp: get(libc::REG_RBP),
                r12: get(libc::REG_R12),
                r13: get(libc::REG_R13),
                r14: get(libc::REG_R14),
                r15: get(libc::REG_R15),
                rsp: get(libc::REG_RSP),
                rflags: get(libc::REG_EFL),
            };
            // SAFETY: the registers are those of the access, and the signal's frame is left for good.
            unsafe { fixup.resume(&interrupted) }
        }

        // SAFETY: all zero is a value of it.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = general_protection;
        action.sa_sigaction = handler as usize;
        // It leaves without the system's return, which would let the signal come again.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the handler does nothing that a signal's may not.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()) }, 0);
        for function in [pugmark_rdmsr as *const () as u64, pugmark_wrmsr as *const () as u64] {
            const DIRECTION: u64 = 1 << 10;
            // After the call and before it: RBX, RBP, R12 to R15, RSP, RFLAGS, EAX.
            let mut seen = [[0u64; 9]; 2];
            // SAFETY: the functions keep the calling convention, and the registers that are changed are put back.
            unsafe {
                core::arch::asm!(
                    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15", "push r10", "push r10",
                    "mov rbx, 0x11", "mov rbp, 0x22", "mov r12, 0x33", "mov r13, 0x44", "mov r14, 0x55", "mov r15, 0x66",
                    // The direction, which the system clears for the handler.
                    "mov [r10 + 72 + 48], rsp", "std", "call rax",
                    "mov rdx, [rsp]", "mov [rdx], rbx", "mov [rdx + 8], rbp", "mov [rdx + 16], r12",
                    "mov [rdx + 24], r13", "mov [rdx + 32], r14", "mov [rdx + 40], r15", "mov [rdx + 48], rsp",
                    "pushfq", "pop qword ptr [rdx + 56]", "cld", "mov [rdx + 64], rax",
                    "add rsp, 16", "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
                    in("rax") function, in("r10") seen.as_mut_ptr(), in("rdi") 0x570, in("rsi") 0,
                    clobber_abi("sysv64"),
                );
            }
            let [after, before] = seen;
            assert_eq!(after[..6], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66]);
            assert_eq!(after[6], before[6], "RSP");
            assert_eq!(after[7] & DIRECTION, DIRECTION);
            assert_eq!(after[8], 1, "the fault is reported");
        }
    }
}
