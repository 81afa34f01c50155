//! Functions of the C library and the unwinder that the compiler expects on a hosted target; on a bare target
//! `compiler_builtins` has them.
//!
//! They are written in assembly because the compiler may replace a Rust loop by a call of the function that contains
//! it.

use core::arch::naked_asm;

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    crate::exit(false)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep movsq",
        "mov ecx, edx",
        "and ecx, 7",
        "rep movsb",
        "ret",
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "mov r8, rdi",
        "sub r8, rsi",
        "cmp r8, rdx",
        "jb 2f",
        "rep movsb",
        "ret",
        // `to` is within the source: copy from the end backwards.
        "2:",
        "lea rdi, [rdi + rdx - 1]",
        "lea rsi, [rsi + rdx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, size: usize) -> *mut u8 {
    naked_asm!(
        "mov r8, rdi",
        "movzx eax, sil",
        "mov rcx, 0x0101010101010101",
        "imul rax, rcx",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep stosq",
        "mov ecx, edx",
        "and ecx, 7",
        "rep stosb",
        "mov rax, r8",
        "ret",
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, size: usize) -> i32 {
    naked_asm!(
        "mov rcx, rdx",
        "xchg rsi, rdi",
        // The result is "equal" if there is nothing to compare.
        "cmp rcx, rcx",
        "repe cmpsb",
        "seta al",
        "sbb al, 0",
        "movsx eax, al",
        "ret",
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, size: usize) -> i32 {
    naked_asm!("jmp {memcmp}", memcmp = sym memcmp)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    naked_asm!("xor eax, eax", "2:", "cmp byte ptr [rdi + rax], 0", "je 3f", "inc rax", "jmp 2b", "3:", "ret",)
}
