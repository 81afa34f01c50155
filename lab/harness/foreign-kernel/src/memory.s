// Accesses where there is no memory.

    .section .text.memory, "ax", @progbits
    .code64

// RDI: an address, called. RAX: the vector of the exception that this raises.
    .global call_into
call_into:
    mov [rip + resume_rsp], rsp
    lea rax, [rip + resumed]
    mov [rip + resume_rip], rax
    call rdi
    ud2

// RDI: an address, read. RAX: the vector of the exception that this raises, and its error code from bit 8 on.
    .global read_at
read_at:
    mov [rip + resume_rsp], rsp
    lea rax, [rip + resumed]
    mov [rip + resume_rip], rax
    invlpg [rdi]
    mov rax, [rdi]
    ud2

resumed:
    invlpg [rdi]
    ret

// RDI: a stack. RAX: what is there after PUSHFQ.
    .global push_to
push_to:
    mov rcx, rsp
    mov rsp, rdi
    pushfq
    pop rax
    mov rsp, rcx
    ret

    .global invalid_opcode
invalid_opcode:
    mov eax, 6
    jmp 1f
    .global page_fault
page_fault:
    mov rax, [rsp]
    shl rax, 8
    or rax, 14
1:  mov rsp, [rip + resume_rsp]
    jmp [rip + resume_rip]

    .section .bss.memory, "aw", @nobits
    .balign 8
resume_rsp: .skip 8
resume_rip: .skip 8
