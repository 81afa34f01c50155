//! RDMSR, WRMSR and XRSTORS that turn a #GP into an error, with the help of the kernel's #GP handler.

use crate::intel::pt::{PtStateArea, PtStateInstructions};
use crate::msr::{GeneralProtection, Msr};
use core::arch::global_asm;
use core::marker::PhantomData;

/// RDMSR and WRMSR on the processor that executes them; a #GP becomes an error.
///
/// The kernel's #GP handler must call [`fixup`] with the faulting RIP. The type is neither `Send` nor `Sync`: a value
/// belongs to the processor on which it was created.
///
/// # Requirements on the #GP handler
///
/// The driver also accesses registers in the NMI handler, where two mistakes are fatal:
///
/// - **IRET.** While an NMI is handled, further NMIs are blocked until the next IRET, even if that IRET ends a #GP. An
///   NMI that was pending then arrives at once, and if NMIs use a stack of the interrupt stack table, it overwrites the
///   frame of the first NMI. [`Fixup::resume`] returns without IRET.
/// - **A stack of the interrupt stack table** for #GP: such a stack always starts at its top. A #GP raised in the NMI
///   handler, while another #GP (or an exception with the same stack) is being handled, overwrites the frame of the
///   earlier one. Without such a stack, #GP is handled on the stack of the code that raised it, below its stack
///   pointer; these accesses use no red zone.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Handling Multiple NMIs" and "Interrupt Stack Table".
#[derive(Debug)]
pub struct GuardedMsr(PhantomData<*const ()>);

impl GuardedMsr {
    /// Returns access to the registers of this processor.
    ///
    /// # Safety
    ///
    /// The caller runs at CPL 0. The #GP handler calls [`fixup`] and uses its result; if the driver runs in the NMI
    /// handler, it also satisfies the requirements [above](GuardedMsr). The value stays on this logical processor: the
    /// thread that holds it does not move to another one.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

/// Returns the way to continue for the #GP handler if one of this module's accesses faulted at `rip`; `None` if not.
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
///     // … a fault of other code …
/// }
/// ```
#[must_use]
pub fn fixup(rip: u64) -> Option<Fixup> {
    let rdmsr = &raw const pugmark_rdmsr_access as u64;
    let wrmsr = &raw const pugmark_wrmsr_access as u64;
    let xrstors = &raw const pugmark_xrstors_access as u64;
    [rdmsr, wrmsr, xrstors].contains(&rip).then_some(Fixup(()))
}

/// The proof that an access of this module raised the #GP that is being handled.
#[derive(Clone, Copy, Debug)]
pub struct Fixup(());

/// The state that an access must find unchanged: the callee-saved registers, the stack pointer and RFLAGS.
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
    /// Ends the #GP handler and continues where the access reports the fault, without IRET: NMIs that are blocked stay
    /// blocked.
    ///
    /// The function does not return, and values owned by the handler's stack frames are never dropped. Do not use it
    /// with supervisor shadow stacks: the handler's shadow stack would stay in use.
    ///
    /// # Safety
    ///
    /// `interrupted` is the state that the #GP of this fix-up interrupted. No state of the handler is needed
    /// afterwards, its entry stub has changed no other callee-saved state (such as GS or MXCSR), and the processor is
    /// at CPL 0.
    pub unsafe fn resume(self, interrupted: &Interrupted) -> ! {
        // SAFETY: by the caller's promise these are the registers at the access, and the function continues at its end.
        unsafe { pugmark_msr_resume(interrupted) }
    }

    /// Returns the address at which the access reports the fault: for a #GP handler that writes it to the interrupted
    /// frame's RIP and returns as usual. Use this only if an IRET cannot harm NMI handling: if the kernel's NMI handler
    /// can be interrupted by another NMI, if no driver of this crate runs in it, or if events are delivered by FRED,
    /// whose return instruction does not unblock NMIs by default.
    #[must_use]
    pub fn address(self) -> u64 {
        &raw const pugmark_msr_faulted as u64
    }
}

// SAFETY: RDMSR and WRMSR access the registers of the processor that executes them, which is the same one for all
// calls, as the caller of `new` promised.
unsafe impl Msr for GuardedMsr {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        let mut value = 0;
        // SAFETY: the function follows the calling convention, with and without the fault, and writes one u64.
        match unsafe { pugmark_rdmsr(address, &mut value) } {
            0 => Ok(value),
            _ => Err(GeneralProtection { address, written: None }),
        }
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the function follows the calling convention, with and without the fault; the caller is responsible
        // for the value.
        match unsafe { pugmark_wrmsr(address, value) } {
            0 => Ok(()),
            _ => Err(GeneralProtection { address, written: Some(value) }),
        }
    }
}

/// XSAVES and XRSTORS of the registers of Intel PT, on the processor that executes them. A #GP of XRSTORS is reported,
/// if the kernel's handler calls [`fixup`].
///
/// The type is neither `Send` nor `Sync`: a value belongs to the processor on which it was created.
#[derive(Debug)]
pub struct GuardedXsaves(PhantomData<*const ()>);

impl GuardedXsaves {
    /// Returns access to the instructions of this processor.
    ///
    /// # Safety
    ///
    /// As for [`GuardedMsr::new`]. CR0.TS must be 0 wherever the driver runs, or the instructions raise #NM.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

// SAFETY: they are executed by the same processor in all calls, as the caller of `new` promised, with PT state alone in
// the mask; XSAVES clears TraceEn where it saves that.
unsafe impl PtStateInstructions for GuardedXsaves {
    fn xsaves(&mut self, area: &mut PtStateArea) {
        let area = area.bytes_mut().as_mut_ptr();
        // SAFETY: the area has room for the header and PT state, and is aligned to 64 bytes by its type.
        unsafe {
            core::arch::asm!(
                "xsaves64 [{area}]",
                area = in(reg) area, in("eax") 0x100, in("edx") 0,
                options(nostack, preserves_flags),
            );
        }
    }

    unsafe fn xrstors(&mut self, area: &PtStateArea) -> bool {
        // SAFETY: the function follows the calling convention, with and without the fault; the caller is responsible
        // for the values.
        unsafe { pugmark_xrstors(area.bytes().as_ptr()) == 0 }
    }
}

unsafe extern "sysv64" {
    /// Returns 0, or 1 after a #GP.
    fn pugmark_rdmsr(address: u32, value: *mut u64) -> u32;
    /// Returns 0, or 1 after a #GP.
    fn pugmark_wrmsr(address: u32, value: u64) -> u32;
    /// Continues at `pugmark_msr_faulted` with these registers.
    fn pugmark_msr_resume(interrupted: *const Interrupted) -> !;
    /// Executes XRSTORS with PT state in the mask. Returns 0, or 1 after a #GP.
    fn pugmark_xrstors(area: *const u8) -> u32;
    static pugmark_xrstors_access: u8;
    static pugmark_rdmsr_access: u8;
    static pugmark_wrmsr_access: u8;
    static pugmark_msr_faulted: u8;
}

/// Directives that differ between ELF and COFF, the object files of UEFI applications.
#[cfg(not(any(target_os = "uefi", target_os = "windows")))]
macro_rules! directives {
    (section) => {
        r#".pushsection .text.pugmark_msr, "ax", @progbits"#
    };
    (symbols) => {
        "
    .hidden pugmark_rdmsr, pugmark_wrmsr, pugmark_rdmsr_access, pugmark_wrmsr_access, pugmark_msr_faulted
    .hidden pugmark_msr_resume, pugmark_xrstors, pugmark_xrstors_access
    .type pugmark_xrstors, @function
    .type pugmark_rdmsr, @function
    .type pugmark_wrmsr, @function
    .type pugmark_msr_resume, @function
    .size pugmark_rdmsr, pugmark_wrmsr - pugmark_rdmsr
    .size pugmark_wrmsr, pugmark_xrstors - pugmark_wrmsr
    .size pugmark_xrstors, pugmark_msr_resume - pugmark_xrstors
    .size pugmark_msr_resume, . - pugmark_msr_resume
        "
    };
}
#[cfg(any(target_os = "uefi", target_os = "windows"))]
macro_rules! directives {
    (section) => {
        r#".pushsection .text.pugmark_msr, "xr""#
    };
    (symbols) => {
        ""
    };
}

// A fault leaves the stack as it was at the instruction, so `pugmark_msr_faulted` can return from either function.
// Nothing below the stack pointer is live, because neither function uses a red zone, so RFLAGS can be restored through
// the stack. They are restored last, because that may enable interrupts.
global_asm!(
    directives!(section),
    "
    .global pugmark_rdmsr, pugmark_wrmsr, pugmark_rdmsr_access, pugmark_wrmsr_access, pugmark_msr_faulted
    .global pugmark_msr_resume, pugmark_xrstors, pugmark_xrstors_access
    pugmark_rdmsr:
        mov ecx, edi
    pugmark_rdmsr_access:
        rdmsr
        mov dword ptr [rsi], eax
        mov dword ptr [rsi + 4], edx
        xor eax, eax
        ret
    pugmark_wrmsr:
        mov ecx, edi
        mov rax, rsi
        mov rdx, rsi
        shr rdx, 32
    pugmark_wrmsr_access:
        wrmsr
        xor eax, eax
        ret
    pugmark_xrstors:
        mov eax, 0x100
        xor edx, edx
    pugmark_xrstors_access:
        xrstors64 [rdi]
        xor eax, eax
        ret
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
    ",
    directives!(symbols),
    ".popsection",
);

// Miri executes no assembly code and delivers no signal.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_fixup_knows_its_instructions_and_no_other() {
        let rdmsr = &raw const pugmark_rdmsr_access as u64;
        let wrmsr = &raw const pugmark_wrmsr_access as u64;
        for (rip, opcode) in [(rdmsr, [0x0f, 0x32]), (wrmsr, [0x0f, 0x30])] {
            // SAFETY: both labels are in front of a two-byte instruction in this program's text.
            let code = unsafe { *(rip as *const [u8; 2]) };
            assert_eq!(code, opcode);
            let after = fixup(rip).unwrap().address();
            // SAFETY: as above, in front of a five-byte instruction.
            let code = unsafe { *(after as *const [u8; 5]) };
            assert_eq!(code, [0xb8, 1, 0, 0, 0], "mov eax, 1");
            assert!(fixup(rip - 1).is_none());
            assert!(fixup(rip + 2).is_none());
        }
        let xrstors = &raw const pugmark_xrstors_access as u64;
        // SAFETY: in front of a four-byte instruction.
        assert_eq!(unsafe { *(xrstors as *const [u8; 4]) }, [0x48, 0x0f, 0xc7, 0x1f], "xrstors64 [rdi]");
        assert_eq!(fixup(xrstors).unwrap().address(), fixup(rdmsr).unwrap().address());
        assert!(fixup(xrstors - 1).is_none() && fixup(xrstors + 4).is_none());
    }

    /// Runs both instructions in user mode, where the operating system turns their #GP into a signal.
    #[test]
    fn an_access_that_faults_reports_it_and_keeps_the_registers() {
        extern "C" fn general_protection(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the operating system passes a valid context to this signal handler.
            let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
            let get = |register: i32| registers[register as usize] as u64;
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

        // SAFETY: all zeros are a valid value of this type.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = general_protection;
        action.sa_sigaction = handler as usize;
        // The handler does not return through the operating system, which would unblock the signal, so do not block it.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the handler does nothing that a signal handler must not do.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()) }, 0);
        for function in [pugmark_rdmsr as *const () as u64, pugmark_wrmsr as *const () as u64] {
            const DIRECTION: u64 = 1 << 10;
            // After the call and before it: RBX, RBP, R12 to R15, RSP, RFLAGS, EAX.
            let mut seen = [[0u64; 9]; 2];
            // SAFETY: the functions follow the calling convention, and the changed registers are restored.
            unsafe {
                core::arch::asm!(
                    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15", "push r10", "push r10",
                    "mov rbx, 0x11", "mov rbp, 0x22", "mov r12, 0x33",
                    "mov r13, 0x44", "mov r14, 0x55", "mov r15, 0x66",
                    // Set the direction flag, which the operating system clears for the handler.
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
