// A UEFI application. It sends the firmware's map of memory to port E9H, traces a procedure on another processor, which
// the firmware starts, and services of the firmware on its own processor, and sends both traces. A part sent is its
// size in 4 bytes, and its bytes.

    .section .rodata.uefi_program, "a", @progbits
    .code64
    .balign 16
    .global uefi_program, uefi_program_end
    .set HEADERS, 0x1000
    .set MEMORY_PAGES, 0x400
    .set TRACE_BYTES, 0x100000
uefi_program:
    // The DOS header, and the headers of a PE file with one section for everything.
    .ascii "MZ"
    .org 60
    .long 64
    .ascii "PE\0\0"
    .word 0x8664, 1
    .long 0, 0, 0
    .word 112, 0x2e
    .word 0x20b, 0
    .long 0x1000, 0, 0, HEADERS, HEADERS
    .quad 0
    .long 0x1000, 0x1000, 0, 0, 0, 0, 2 * HEADERS, HEADERS, 0
    .word 10, 0
    .skip 40
    .ascii ".text\0\0\0"
    .long 0x1000, HEADERS, 0x1000, HEADERS, 0, 0, 0, 0xe0000020
    .org HEADERS

uefi_begin:
    // RBP: boot services, R13: the system table, R12: memory with room for two traces and a map.
    sub rsp, 0x58
    mov r13, rdx
    mov rbp, [rdx + 0x60]
    // AllocatePages(AllocateAnyPages, EfiLoaderData, pages, &address)
    xor ecx, ecx
    mov edx, 2
    mov r8d, MEMORY_PAGES
    lea r9, [rip + memory]
    call [rbp + 0x28]
    test rax, rax
    jnz failed
    mov r12, [rip + memory]
    add r12, TRACE_BYTES - 1
    and r12, -TRACE_BYTES
    mov [rip + memory], r12

    // GetMemoryMap(&bytes, map, &key, &descriptor_bytes, &version)
    lea rcx, [rip + map_bytes]
    lea rdx, [r12 + 2 * TRACE_BYTES]
    lea r8, [rip + unused]
    lea r9, [rip + descriptor_bytes]
    lea rax, [rip + unused]
    mov [rsp + 0x20], rax
    call [rbp + 0x38]
    test rax, rax
    jnz failed
    lea rsi, [rip + descriptor_bytes]
    mov ecx, 8
    call send
    lea rsi, [r12 + 2 * TRACE_BYTES]
    mov rcx, [rip + map_bytes]
    call send

    // LocateProtocol(&guid, NULL, &protocol), StartupAllAPs(protocol, procedure, one by one, and wait for its end).
    lea rcx, [rip + mp_services]
    xor edx, edx
    lea r8, [rip + unused]
    call [rbp + 0x140]
    test rax, rax
    jnz failed
    mov rcx, [rip + unused]
    lea rdx, [rip + procedure]
    mov r8d, 1
    xor r9d, r9d
    mov [rsp + 0x20], r9
    mov [rsp + 0x28], r9
    mov [rsp + 0x30], r9
    // Without another processor this fails, and the second trace is empty.
    call [rcx + 0x10]

    mov rax, r12
    call start_trace
    // CalculateCrc32(program, bytes, &crc)
    lea rcx, [rip + uefi_begin]
    mov edx, 0x100
    lea r8, [rip + unused]
    call [rbp + 0x158]
    // OutputString(console, text)
    mov rcx, [r13 + 0x40]
    lea rdx, [rip + text]
    call [rcx + 8]
    // RaiseTPL(TPL_HIGH_LEVEL), RestoreTPL(TPL_APPLICATION): interrupts off and on.
    mov ecx, 31
    call [rbp + 0x18]
    mov ecx, 4
    call [rbp + 0x20]
    call stop_trace
    mov rsi, r12
    mov ecx, eax
    call send
    lea rsi, [r12 + TRACE_BYTES]
    mov ecx, [rip + other_trace]
    call send
    mov eax, 0x10
    jmp exit
failed:
    mov eax, 0x11
exit:
    mov edx, 0xf4
    out dx, eax
    hlt

// Executed by the other processor.
procedure:
    mov rax, [rip + memory]
    add rax, TRACE_BYTES
    call start_trace
    mov eax, 300
1:  call subroutine
    dec eax
    jnz 1b
    call stop_trace
    mov [rip + other_trace], eax
    ret
subroutine:
    ret

// Traces all levels into the megabyte at RAX.
start_trace:
    mov ecx, 0x560                  // IA32_RTIT_OUTPUT_BASE
    xor edx, edx
    wrmsr
    inc ecx                         // IA32_RTIT_OUTPUT_MASK_PTRS
    mov eax, TRACE_BYTES - 1
    wrmsr
    mov ecx, 0x570                  // IA32_RTIT_CTL: BranchEn, User, OS, TraceEn
    mov eax, 0x200d
    wrmsr
    ret

// Returns the size of the trace in EAX.
stop_trace:
    mov ecx, 0x570
    xor eax, eax
    xor edx, edx
    wrmsr
    mov ecx, 0x561
    rdmsr
    mov eax, edx
    ret

// Sends RCX bytes from RSI on.
send:
    mov edx, 0xe9
    mov eax, ecx
    mov edi, 4
1:  out dx, al
    shr eax, 8
    dec edi
    jnz 1b
    cld
    rep outsb
    ret

    .balign 8
memory: .quad 0
map_bytes: .quad TRACE_BYTES
descriptor_bytes: .quad 0
unused: .quad 0
other_trace: .long 0
mp_services:
    .byte 0x05, 0xa6, 0xdd, 0x3f, 0x6e, 0xa7, 0x46, 0x4f, 0xad, 0x29, 0x12, 0xf4, 0x53, 0x1b, 0x3d, 0x08
text: .word 't', 'r', 'a', 'c', 'e', 'd', 13, 10, 0
    .org 2 * HEADERS
uefi_program_end:
