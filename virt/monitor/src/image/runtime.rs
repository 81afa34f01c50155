//! What compiled Rust expects of the system below it: a panic handler and, on a hosted target, the C memory functions
//! and the unwinder's names. On `target_os = "none"` compiler_builtins has the memory functions.

use core::panic::PanicInfo;

use crate::image::exit::fatal;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fatal!("{info}")
}

#[cfg(target_os = "linux")]
mod hosted {
    use core::arch::naked_asm;

    /// Named by the unwind tables of a hosted target; never called, a panic aborts.
    // SAFETY: the name is the one the compiler reserves for this; no other definition is linked.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    /// Named by landing pads in the precompiled core library; never called.
    // SAFETY: as above.
    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Resume() -> ! {
        crate::image::exit::fatal!("unwinding")
    }

    // In assembly: a loop in Rust may be compiled into a call of the very function.

    // SAFETY: C's `memcpy`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memcpy(dest: *mut u8, src: *const u8, bytes: usize) -> *mut u8 {
        naked_asm!(
            "mov rax, rdi",
            "mov rcx, rdx",
            "shr rcx, 3",
            "rep movsq",
            "mov ecx, edx",
            "and ecx, 7",
            "rep movsb",
            "ret"
        )
    }

    // SAFETY: C's `memmove`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memmove(dest: *mut u8, src: *const u8, bytes: usize) -> *mut u8 {
        naked_asm!(
            "mov rax, rdi",
            "mov rcx, rdx",
            "mov r8, rdi",
            "sub r8, rsi",
            "cmp r8, rdx",
            // Destination below source, or beyond its end: forwards.
            "jae 2f",
            "lea rdi, [rdi + rdx - 1]",
            "lea rsi, [rsi + rdx - 1]",
            "std",
            "rep movsb",
            "cld",
            "ret",
            "2:",
            "rep movsb",
            "ret"
        )
    }

    // SAFETY: C's `memset`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memset(dest: *mut u8, value: i32, bytes: usize) -> *mut u8 {
        naked_asm!(
            "mov r8, rdi",
            "movzx eax, sil",
            "mov r9, 0x0101010101010101",
            "imul rax, r9",
            "mov rcx, rdx",
            "shr rcx, 3",
            "rep stosq",
            "mov ecx, edx",
            "and ecx, 7",
            "rep stosb",
            "mov rax, r8",
            "ret"
        )
    }

    // SAFETY: C's `memcmp`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        naked_asm!(
            "xor eax, eax",
            "mov rcx, rdx",
            // No byte to compare: the flags say equal.
            "cmp eax, eax",
            "repe cmpsb",
            "je 2f",
            "movzx eax, byte ptr [rdi - 1]",
            "movzx ecx, byte ptr [rsi - 1]",
            "sub eax, ecx",
            "2:",
            "ret"
        )
    }

    // SAFETY: the `bcmp` of POSIX, zero for equal, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        naked_asm!("jmp {}", sym memcmp)
    }

    // SAFETY: C's `strlen`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn strlen(s: *const u8) -> usize {
        naked_asm!("mov rcx, -1", "xor eax, eax", "repne scasb", "mov rax, -2", "sub rax, rcx", "ret")
    }
}
