//! The system functions that compiled Rust needs: a panic handler and, on a hosted target, the C memory functions and
//! the names of the unwinder. On `target_os = "none"` compiler_builtins provides the memory functions.

use core::panic::PanicInfo;

use crate::image::exit::fatal;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fatal!("{info}")
}

#[cfg(target_os = "linux")]
mod hosted {
    use core::arch::naked_asm;

    /// Satisfies the unwind tables of a hosted target. It is never called, because a panic aborts.
    // SAFETY: the name is the one the compiler reserves for this; no other definition is linked.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    /// Satisfies landing pads in the precompiled core library. It is never called.
    // SAFETY: as above.
    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Resume() -> ! {
        crate::image::exit::fatal!("_Unwind_Resume was called: the monitor cannot unwind")
    }

    // These functions are in assembly, because a loop in Rust may be compiled into a call of the function that contains
    // it. Functions that usually receive few bytes avoid string instructions, whose iterations are slow in TCG.

    // SAFETY: C's `memcpy`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memcpy(dest: *mut u8, src: *const u8, bytes: usize) -> *mut u8 {
        naked_asm!(
            "mov rax, rdi",
            "cmp rdx, 16",
            "jae 4f",
            "cmp edx, 8",
            "jae 3f",
            "test edx, edx",
            "jz 2f",
            "5:",
            "movzx ecx, byte ptr [rsi + rdx - 1]",
            "mov [rdi + rdx - 1], cl",
            "dec edx",
            "jnz 5b",
            "2:",
            "ret",
            // The first eight bytes and the last eight bytes, which may overlap; the code after this does the same with
            // sixteen.
            "3:",
            "mov rcx, [rsi]",
            "mov r8, [rsi + rdx - 8]",
            "mov [rdi], rcx",
            "mov [rdi + rdx - 8], r8",
            "ret",
            "4:",
            "movups xmm0, [rsi + rdx - 16]",
            "lea r8, [rdi + rdx - 16]",
            "6:",
            "movups xmm1, [rsi]",
            "movups [rdi], xmm1",
            "add rsi, 16",
            "add rdi, 16",
            "cmp rdi, r8",
            "jb 6b",
            "movups [r8], xmm0",
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
            // If the destination is below the source, or beyond its end: copy forwards.
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
            // If there is no byte to compare, the flags say equal.
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
        naked_asm!(
            "xor eax, eax",
            "2:",
            "cmp rdx, 8",
            "jb 3f",
            "mov rcx, [rdi]",
            "cmp rcx, [rsi]",
            "jne 5f",
            "add rdi, 8",
            "add rsi, 8",
            "sub rdx, 8",
            "jmp 2b",
            "3:",
            "test edx, edx",
            "jz 4f",
            "movzx ecx, byte ptr [rdi + rdx - 1]",
            "cmp cl, [rsi + rdx - 1]",
            "jne 5f",
            "dec edx",
            "jmp 3b",
            "4:",
            "ret",
            "5:",
            "inc eax",
            "ret"
        )
    }

    // SAFETY: C's `strlen`, and the only definition in the image.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn strlen(s: *const u8) -> usize {
        naked_asm!("mov rcx, -1", "xor eax, eax", "repne scasb", "mov rax, -2", "sub rax, rcx", "ret")
    }
}
