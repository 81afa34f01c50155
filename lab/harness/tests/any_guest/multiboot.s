// A kernel with a multiboot header alone, which says where it goes: it has no ELF header. It sends its command line and
// the words of its modules to the serial port, each with a newline, and traces itself in 32-bit code without paging.

    .section .rodata.multiboot_kernel, "a", @progbits
    .code32
    .balign 16
    .global multiboot_kernel, multiboot_kernel_end
    .set MULTIBOOT_BASE, 0x100000
    .set MULTIBOOT_TRACE, 0x200000
multiboot_kernel:
    .long 0x1badb002, 0x10003, -(0x1badb002 + 0x10003)
    // The header, the first byte to load, the end of the file, 64 KiB to clear, the entry.
    .long MULTIBOOT_BASE, MULTIBOOT_BASE, 0, MULTIBOOT_BASE + 0x10000
    .long MULTIBOOT_BASE + multiboot_begin - multiboot_kernel

multiboot_begin:
    mov esp, MULTIBOOT_BASE + 0x10000
    cmp eax, 0x2badb002
    jne 9f
    mov edx, 0x3f8
    mov esi, [ebx + 16]
    call 5f
    mov ecx, [ebx + 20]
    mov ebp, [ebx + 24]
1:  jecxz 2f
    mov esi, [ebp + 8]
    call 5f
    add ebp, 16
    dec ecx
    jmp 1b

2:  mov ecx, 0x560                  // IA32_RTIT_OUTPUT_BASE
    mov eax, MULTIBOOT_TRACE
    xor edx, edx
    wrmsr
    inc ecx                         // IA32_RTIT_OUTPUT_MASK_PTRS
    mov eax, 0xffff
    wrmsr
    mov ecx, 0x570                  // IA32_RTIT_CTL: BranchEn, OS, TraceEn
    mov eax, 0x2005
    wrmsr
    mov ecx, 200
3:  call 4f
    loop 3b
    mov ecx, 0x570
    xor eax, eax
    wrmsr
    mov ecx, 0x561
    rdmsr
    mov ecx, edx
    mov esi, MULTIBOOT_TRACE
    mov edx, 0xe9
    cld
    rep outsb
    mov eax, 0x10
    jmp 8f
4:  ret

// Sends the text at ESI, and a newline.
5:  lodsb
    test al, al
    jz 6f
    out dx, al
    jmp 5b
6:  mov al, 10
    out dx, al
    ret

9:  mov eax, 0x11
8:  mov edx, 0xf4
    out dx, eax
    hlt
multiboot_kernel_end:
    .code64
