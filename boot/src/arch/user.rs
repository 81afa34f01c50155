//! User level: the way there and back, by SYSCALL and SYSRET or by an interrupt and IRET.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{Efer, EferFlags, LStar, SFMask, Star};
use x86_64::registers::rflags::RFlags;

use super::segments::selectors;
use super::traps::TrapFrame;

/// The way to and from user level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// There by SYSRET, back by SYSCALL.
    SystemCall,
    /// There by IRET, back by an `INT n`.
    Interrupt,
}

/// The system call that ends user level; all others are [`service`]'s.
const EXIT: u64 = 0;

/// A register's value, kept where the assembly here finds it.
#[repr(transparent)]
struct Saved(UnsafeCell<u64>);

// SAFETY: only the one CPU's assembly below touches it, and the trap handler of a trap from user level.
unsafe impl Sync for Saved {}

/// System calls that were made by `INT n`, those that end user level among them.
static INTERRUPT_CALLS: AtomicU64 = AtomicU64::new(0);

static KERNEL_RSP: Saved = Saved(UnsafeCell::new(0));
static USER_RSP: Saved = Saved(UnsafeCell::new(0));

/// Runs `code` at user level until it exits, and returns its exit value.
///
/// # Safety
/// The current address space must have writable memory for user level below `stack`, a multiple of 16, and `code` must
/// touch no memory but that, the image's code and its constants, and end with [`exit`] by the same gate.
pub(crate) unsafe fn run(gate: Gate, code: extern "C" fn(u64) -> !, argument: u64, stack: u64) -> u64 {
    let interrupts = x86_64::registers::rflags::read() & RFlags::INTERRUPT_FLAG;
    // Bit 1 is always set.
    let flags = interrupts.bits() | 2;
    let selectors = selectors();
    let segments = (u64::from(selectors.user_code.0), u64::from(selectors.user_data.0));
    // As if a CALL had pushed a return address.
    let stack = stack - 8;
    match gate {
        // SAFETY: the selectors are those of user level; the caller vouches for the rest.
        Gate::Interrupt => unsafe {
            enter_by_iret(argument, code as usize as u64, stack, flags, segments.0, segments.1)
        },
        // SAFETY: `init` has set up SYSRET's selectors; the caller vouches for the rest.
        Gate::SystemCall => unsafe { enter_by_sysret(argument, code as usize as u64, stack, flags) },
    }
}

/// From user level: calls the kernel's [`service`].
#[inline(always)]
pub(crate) fn call(gate: Gate, number: u64, argument: u64) -> u64 {
    let result;
    match gate {
        // SAFETY: the kernel's side keeps all registers that a function call keeps.
        Gate::SystemCall => unsafe {
            asm!("syscall", inlateout("rax") number => result, inlateout("rdi") argument => _, clobber_abi("sysv64"));
        },
        // SAFETY: the stub keeps all registers but the result.
        Gate::Interrupt => unsafe {
            asm!("int 0x80", inlateout("rax") number => result, in("rdi") argument);
        },
    }
    result
}

/// From user level: ends it with `value`, two calls deep. None of them returns, so that there are calls of user level's
/// own on a stack of the last branches.
#[inline(always)]
pub(crate) fn exit(gate: Gate, value: u64) -> ! {
    // Where a call or the kernel came back, an undefined instruction would be an unexpected trap.
    match gate {
        // SAFETY: there is room on the stack, and nobody uses it afterwards.
        Gate::SystemCall => unsafe {
            asm!(
                "call 2f", "ud2", "2:", "call 3f", "ud2", "3:", "syscall", "ud2",
                in("rax") EXIT, in("rdi") value, options(noreturn)
            )
        },
        // SAFETY: as above.
        Gate::Interrupt => unsafe {
            asm!(
                "call 2f", "ud2", "2:", "call 3f", "ud2", "3:", "int 0x80", "ud2",
                in("rax") EXIT, in("rdi") value, options(noreturn)
            )
        },
    }
}

/// Whether SYSCALL clears RFLAGS.TF.
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

/// The system call that was made by `INT n`.
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
    // SAFETY: `enter_by_iret` has written it and does nothing until `leave`.
    frame.rsp = unsafe { KERNEL_RSP.0.get().read() };
    // Interrupts off until `leave` has its flags back.
    frame.rflags = 2;
}

/// How many system calls were made by `INT n` so far.
pub(crate) fn interrupt_calls() -> u64 {
    INTERRUPT_CALLS.load(Relaxed)
}

/// What the kernel does for user level: `number` steps of a linear congruential generator.
extern "C" fn service(argument: u64, number: u64) -> u64 {
    (0..number).fold(argument, |value, _| lcg(value))
}

/// One step of Knuth's MMIX generator.
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
        // An interrupt between these two would be delivered on a stack of its own, but is not wanted.
        "cli",
        "mov rsp, rdx",
        "sysretq",
        kernel_rsp = sym KERNEL_RSP,
    )
}

/// The common end: RSP is where `enter_…` left it, RAX has the exit value.
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
        // The kernel's stack is 8 below a multiple of 16 here, so three pushes leave it at a multiple.
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
