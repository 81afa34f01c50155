//! Reads the system call or the exception that a task is in from its registers and signals.

use super::super::pt_unit::PAGE_FAULT;
use super::tracee::Registers;
use libc::c_int;

/// The segment of 32-bit user code.
pub(super) const USER32_CS: u64 = 0x23;
/// The length of SYSCALL, SYSENTER and INT 80H.
pub(super) const SYSTEM_CALL_LEN: u64 = 2;
/// `si_code` of a signal that the kernel sends for an exception.
pub(super) const SI_KERNEL: c_int = 0x80;

/// Returns the vector of the exception that caused the signal with this `si_code`; `None` if the signal was sent.
pub(super) fn fault(signal: c_int, code: c_int) -> Option<u8> {
    let vector = match signal {
        libc::SIGSEGV | libc::SIGBUS => PAGE_FAULT,
        libc::SIGILL => 6,
        libc::SIGFPE => 0,
        _ => return None,
    };
    (!is_sent(code)).then_some(vector)
}

/// Returns true if a process has sent the signal with this `si_code`.
pub(super) const fn is_sent(code: c_int) -> bool {
    code <= 0
}

/// Returns whether the system call was interrupted before it did its work. The program never sees these results:
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
pub(super) fn must_restart(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && matches!(-(registers.rax as i64), 512 | 513 | 514 | 516)
}

/// Returns whether the system call can have renamed the thread: prctl.
pub(super) fn can_rename(registers: &Registers) -> bool {
    const PR_SET_NAME: u64 = 15;
    match registers.cs {
        USER32_CS => registers.orig_rax == 172 && registers.rbx == PR_SET_NAME,
        _ => registers.orig_rax == 157 && registers.rdi == PR_SET_NAME,
    }
}

/// Returns whether the system call can have changed which memory is executable.
pub(super) fn can_map_code(registers: &Registers) -> bool {
    if registers.cs == USER32_CS {
        // mmap, mprotect, mremap, mmap2, ipc (shmat), pkey_mprotect, shmat.
        return matches!(registers.orig_rax, 90 | 125 | 163 | 192 | 117 | 380 | 397);
    }
    const PROT_EXEC: u64 = 4;
    const MAP_FIXED: u64 = 0x10;
    match registers.orig_rax {
        // mmap.
        9 => registers.rdx & PROT_EXEC != 0 || registers.r10 & MAP_FIXED != 0,
        // mprotect, mremap, shmat, pkey_mprotect.
        10 | 25 | 30 | 329 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_system_calls_can_map_code() {
        // The system call's number, and its third and fourth argument.
        for (call, rdx, r10, expected) in [
            (9, 4, 0, true),
            (9, 7, 2, true),
            (9, 3, 0x22, false),
            (9, 3, 0x10, true),
            (9, 0, 0x32, true),
            (10, 1, 0, true),
            (25, 0, 0, true),
            (30, 0, 0, true),
            (329, 0, 0, true),
            (11, 4, 0x10, false),
            (0, 4, 0x10, false),
            (90, 4, 0x10, false),
        ] {
            // SAFETY: zeros are valid, because all fields are numbers.
            let mut registers: Registers = unsafe { std::mem::zeroed() };
            (registers.orig_rax, registers.rdx, registers.r10, registers.cs) = (call, rdx, r10, 0x33);
            assert_eq!(can_map_code(&registers), expected, "{call} {rdx:x} {r10:x}");
            registers.cs = USER32_CS;
            assert_eq!(can_map_code(&registers), call == 90, "{call} of a 32-bit program");
        }
    }

    #[test]
    fn a_signal_for_an_exception_differs_from_one_that_was_sent() {
        // The codes are SEGV_MAPERR and BUS_ADRERR, ILL_ILLOPN, FPE_INTDIV; SI_USER, SI_TKILL, SI_KERNEL.
        for (signal, code, expected) in [
            (libc::SIGSEGV, 1, Some(14)),
            (libc::SIGSEGV, SI_KERNEL, Some(14)),
            (libc::SIGBUS, 2, Some(14)),
            (libc::SIGILL, 2, Some(6)),
            (libc::SIGFPE, 1, Some(0)),
            (libc::SIGSEGV, 0, None),
            (libc::SIGILL, -6, None),
            (libc::SIGALRM, SI_KERNEL, None),
            (libc::SIGCHLD, 1, None),
        ] {
            assert_eq!(fault(signal, code), expected, "signal {signal}, code {code}");
        }
    }

    fn registers(call: u64, result: i64, cs: u64) -> Registers {
        // SAFETY: zeros are valid, because all fields are numbers.
        let registers: Registers = unsafe { std::mem::zeroed() };
        Registers { orig_rax: call, rax: result as u64, cs, ..registers }
    }

    #[test]
    fn a_system_call_is_restarted_that_has_not_done_its_work() {
        for (result, expected) in [
            (512, true),
            (513, true),
            (514, true),
            (515, false),
            (516, true),
            (511, false),
            (4, false),
            (0, false),
        ] {
            for call in [0, 35, u64::from(u32::MAX)] {
                assert_eq!(must_restart(&registers(call, -result, 0x33)), expected, "{call}: {result}");
            }
            // There was no system call, or its result is no error.
            assert!(!must_restart(&registers(u64::MAX, -result, 0x33)), "{result}");
            assert!(!must_restart(&registers(0, result, 0x33)), "{result}");
        }
    }

    #[test]
    fn a_thread_gets_another_name_by_prctl_alone() {
        // The system call, the first argument of a 64-bit and of a 32-bit program, and what is expected of each.
        for (call, rdi, rbx, expected) in [
            (157, 15, 0, [true, false]),
            (157, 16, 15, [false, false]),
            (172, 0, 15, [false, true]),
            (172, 15, 16, [false, false]),
            (1, 15, 15, [false, false]),
        ] {
            let of = |cs| can_rename(&Registers { rdi, rbx, ..registers(call, 0, cs) });
            assert_eq!([0x33, USER32_CS].map(of), expected, "{call} {rdi} {rbx}");
        }
    }
}
