// The work against which AMD's counters and samples are checked, and the handler that takes the samples.

    .section .text.amd, "ax", @progbits
    .code64
// EDI: the session to announce; ESI: the MSR; RDX: the value that begins the counting; RCX: the value that ends it.
// Between the two writes there are 2004 instructions, 500 of which are branches.
    .global counted
counted:
    push rbx
    push rcx
    mov r8, rdx
    mov edx, 0xe700
    mov eax, edi
    out dx, eax
    mov ecx, esi
    mov rax, r8
    mov rdx, r8
    shr rdx, 32
    wrmsr
    mov r8d, 500
1:  mov [rip + buffer], rbx
    add rbx, [rip + buffer]
    dec r8d
    jnz 1b
    mov rax, [rsp]
    mov rdx, rax
    shr rdx, 32
    wrmsr
    mov edx, 0xe700
    xor eax, eax
    out dx, eax
    pop rcx
    pop rbx
    ret

// Installs the handler that takes NMIs.
    .global take_samples
take_samples:
    lea rax, [rip + sampling]
    mov ecx, 2
    jmp set_gate

// Counts NMIs. For a valid sample of an op it keeps the address, looks for the work's data, and begins the next sample.
sampling:
    push rax
    push rcx
    push rdx
    push rbx
    inc qword ptr [rip + interrupts_taken]
    cmp qword ptr [rip + op_control], 0
    je 1f
    mov ecx, 0xc0011033
    rdmsr
    test eax, 0x40000
    jz 1f
    mov rbx, [rip + samples_taken]
    cmp rbx, 256
    jae 2f
    mov ecx, 0xc0011034
    rdmsr
    shl rdx, 32
    or rax, rdx
    lea rdx, [rip + samples]
    mov [rdx + rbx*8], rax
    inc qword ptr [rip + samples_taken]
    // Does the sample have the work's data? Its linear and its physical address are the same.
    mov ecx, 0xc0011037
    rdmsr
    not eax
    test eax, 0x60000
    jnz 2f
    lea rbx, [rip + buffer]
    mov ecx, 0xc0011038
    rdmsr
    cmp eax, ebx
    jne 2f
    mov ecx, 0xc0011039
    rdmsr
    cmp eax, ebx
    jne 2f
    inc qword ptr [rip + data_found]
2:  mov ecx, 0xc0011033
    mov rax, [rip + op_control]
    mov rdx, rax
    shr rdx, 32
    wrmsr
1:  pop rbx
    pop rdx
    pop rcx
    pop rax
    iretq

    .section .bss.amd, "aw", @nobits
    .balign 8
    .global interrupts_taken
interrupts_taken: .skip 8
    .global samples_taken
samples_taken: .skip 8
    .global data_found
data_found: .skip 8
    .global op_control
op_control: .skip 8
    .global samples
samples: .skip 256 * 8
