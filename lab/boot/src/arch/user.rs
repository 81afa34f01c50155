//! User level: entered and left by SYSRET and SYSCALL, or by IRET and an interrupt.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{Efer, EferFlags, LStar, SFMask, Star};
use x86_64::registers::rflags::RFlags;

use super::segments::selectors;
use pugmark_machine::traps::TrapFrame;

/// The way to and from user level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserEntry {
    /// Enter by SYSRET, leave by SYSCALL.
    SystemCall,
    /// Enter by IRET, leave by `INT n`.
    Interrupt,
}

/// The number of the system call that ends user level; all others are handled by [`service`].
const EXIT: u64 = 0;

/// A saved register, at an address that the assembly here knows.
#[repr(transparent)]
struct Saved(UnsafeCell<u64>);

// SAFETY: only the assembly below, on the first processor, and the handler of a trap from user level touch it.
unsafe impl Sync for Saved {}

/// Number of system calls by `INT n`, including those that end user level.
static INTERRUPT_CALLS: AtomicU64 = AtomicU64::new(0);

static KERNEL_RSP: Saved = Saved(UnsafeCell::new(0));
static USER_RSP: Saved = Saved(UnsafeCell::new(0));

/// Runs `code` at user level until it exits, and returns its exit value.
///
/// # Safety
/// The current address space must have writable memory for user level below `stack`, a multiple of 16. `code` must
/// touch only that memory, the image's code and its constants, and must end with [`exit`] through the same entry.
pub(crate) unsafe fn run(entry: UserEntry, code: extern "C" fn(u64) -> !, argument: u64, stack: u64) -> u64 {
    let interrupts = x86_64::registers::rflags::read() & RFlags::INTERRUPT_FLAG;
    // Bit 1 is always set.
    let flags = interrupts.bits() | 2;
    let selectors = selectors();
    let segments = (u64::from(selectors.user_code.0), u64::from(selectors.user_data.0));
    // The stack is as if a CALL had pushed a return address.
    let stack = stack - 8;
    match entry {
        // SAFETY: the selectors are those of user level; the caller guarantees the rest.
        UserEntry::Interrupt => unsafe {
            enter_by_iret(argument, code as usize as u64, stack, flags, segments.0, segments.1)
        },
        // SAFETY: `init` has set up SYSRET's selectors; the caller guarantees the rest.
        UserEntry::SystemCall => unsafe { enter_by_sysret(argument, code as usize as u64, stack, flags) },
    }
}

/// Calls the kernel's [`service`] from user level.
#[inline(always)]
pub(crate) fn call(entry: UserEntry, number: u64, argument: u64) -> u64 {
    let result;
    match entry {
        // SAFETY: the kernel preserves all registers that a function call preserves.
        UserEntry::SystemCall => unsafe {
            asm!("syscall", inlateout("rax") number => result, inlateout("rdi") argument => _, clobber_abi("sysv64"));
        },
        // SAFETY: the stub preserves all registers but the result.
        UserEntry::Interrupt => unsafe {
            asm!("int 0x80", inlateout("rax") number => result, in("rdi") argument);
        },
    }
    result
}

/// Ends user level, from within it, with `value`, two calls deep. The calls never return, so that a stack of last
/// branches holds calls of user level.
#[inline(always)]
pub(crate) fn exit(entry: UserEntry, value: u64) -> ! {
    // If a call or the kernel did return, UD2 would be an unexpected trap.
    match entry {
        // SAFETY: there is room on the stack, and it is not used afterwards.
        UserEntry::SystemCall => unsafe {
            asm!(
                "call 2f", "ud2", "2:", "call 3f", "ud2", "3:", "syscall", "ud2",
                in("rax") EXIT, in("rdi") value, options(noreturn)
            )
        },
        // SAFETY: as above.
        UserEntry::Interrupt => unsafe {
            asm!(
                "call 2f", "ud2", "2:", "call 3f", "ud2", "3:", "int 0x80", "ud2",
                in("rax") EXIT, in("rdi") value, options(noreturn)
            )
        },
    }
}

/// Sets whether SYSCALL clears RFLAGS.TF.
pub(crate) fn mask_trap_flag(mask: bool) {
    let always = RFlags::INTERRUPT_FLAG | RFlags::DIRECTION_FLAG;
    SFMask::write(if mask { always | RFlags::TRAP_FLAG } else { always });
}

/// Sets up SYSCALL and SYSRET.
///
/// # Panics
/// If the GDT is not laid out for them.
pub(super) fn init() {
    let selectors = selectors();
    Star::write(selectors.user_code, selectors.user_data, selectors.kernel_code, selectors.kernel_data)
        .expect("selectors in SYSCALL's order");
    LStar::write(VirtAddr::new(syscall_entry as *const () as u64));
    mask_trap_flag(true);
    // SAFETY: STAR and LSTAR are set up; nothing else changes.
    unsafe { Efer::update(|efer| *efer |= EferFlags::SYSTEM_CALL_EXTENSIONS) };
}

/// Handles a system call by `INT n`.
pub(super) fn interrupt_call(frame: &mut TrapFrame) {
    INTERRUPT_CALLS.fetch_add(1, Relaxed);
    if frame.rax != EXIT {
        frame.rax = service(frame.rdi, frame.rax);
        return;
    }
    frame.rax = frame.rdi;
    frame.rip = leave as *const () as u64;
    frame.cs = selectors().kernel_code.0.into();
    frame.ss = selectors().kernel_data.0.into();
    // SAFETY: `enter_by_iret` has written it and executes nothing more until `leave`.
    frame.rsp = unsafe { KERNEL_RSP.0.get().read() };
    // Interrupts stay off until `leave` restores its flags.
    frame.rflags = 2;
}

/// Returns the number of system calls by `INT n` so far.
pub(crate) fn interrupt_calls() -> u64 {
    INTERRUPT_CALLS.load(Relaxed)
}

/// Computes the kernel's service for user level: `number` steps of a linear congruential generator.
extern "C" fn service(argument: u64, number: u64) -> u64 {
    (0..number).fold(argument, |value, _| lcg(value))
}

/// Returns the next value of Knuth's MMIX generator.
pub(crate) fn lcg(value: u64) -> u64 {
    value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

#[unsafe(naked)]
unsafe extern "C" fn enter_by_iret(argument: u64, rip: u64, rsp: u64, rflags: u64, cs: u64, ss: u64) -> u64 {
    naked_asm!(
        "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15", "pushfq",
        "mov [rip + {kernel_rsp}], rsp",
        "push r9", "push rdx", "push rcx", "push r8", "push rsi",
        "iretq",
        kernel_rsp = sym KERNEL_RSP,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn enter_by_sysret(argument: u64, rip: u64, rsp: u64, rflags: u64) -> u64 {
    naked_asm!(
        "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15", "pushfq",
        "mov [rip + {kernel_rsp}], rsp",
        "mov r11, rcx",
        "mov rcx, rsi",
        // An interrupt between these two instructions would have a stack of its own, but is unwanted.
        "cli",
        "mov rsp, rdx",
        "sysretq",
        kernel_rsp = sym KERNEL_RSP,
    )
}

/// Ends both ways of entry: RSP is as `enter_…` left it, RAX has the exit value.
#[unsafe(naked)]
unsafe extern "C" fn leave() -> u64 {
    naked_asm!("popfq", "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx", "ret")
}

/// SYSCALL's target. Interrupts are off by FMASK.
#[unsafe(naked)]
unsafe extern "C" fn syscall_entry() {
    naked_asm!(
        "mov [rip + {user_rsp}], rsp",
        "mov rsp, [rip + {kernel_rsp}]",
        "test rax, rax",
        "je 2f",
        // The kernel's stack is 8 bytes below a multiple of 16 here, so three pushes align it.
        "push rcx",
        "push r11",
        "push qword ptr [rip + {user_rsp}]",
        "mov rsi, rax",
        "call {service}",
        "pop rdx",
        "pop r11",
        "pop rcx",
        "mov rsp, rdx",
        "sysretq",
        "2:",
        "mov rax, rdi",
        "jmp {leave}",
        user_rsp = sym USER_RSP,
        kernel_rsp = sym KERNEL_RSP,
        service = sym service,
        leave = sym leave,
    )
}
