// A multiboot2 header, the way to 64-bit mode, an interrupt table, and two pieces of work.

    .section .multiboot2, "a", @progbits
    .balign 8
header:
    .long 0xe85250d6
    .long 0
    .long header_end - header
    .long -(0xe85250d6 + (header_end - header))
    .word 0, 0
    .long 8
header_end:

    .section .text.start, "ax", @progbits
    .code32
    .global start
start:
    cli
    mov esp, offset stack_top
    mov [boot_magic], eax
    mov [boot_information], ebx

    // The first GiB and the fourth, where the local APIC is, mapped to themselves in pages of 2 MiB.
    mov eax, offset level3 + 3
    mov [level4], eax
    mov eax, offset level2 + 3
    mov [level3], eax
    mov edi, offset level2
    mov eax, 0x83
    mov ecx, 512
1:  mov [edi], eax
    add eax, 0x200000
    add edi, 8
    loop 1b
    mov eax, offset level2_devices + 3
    mov [level3 + 24], eax
    mov edi, offset level2_devices
    mov eax, 0xc0000083
    mov ecx, 512
1:  mov [edi], eax
    add eax, 0x200000
    add edi, 8
    loop 1b

    mov eax, offset level4
    mov cr3, eax
    mov eax, cr4
    or eax, 0x620
    mov cr4, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    and eax, ~4
    or eax, 0x80000003
    mov cr0, eax
    lgdt [gdt_pointer]
    mov eax, 8
    push eax
    mov eax, offset start64
    push eax
    retf

    .code64
start64:
    mov eax, 16
    mov ss, eax
    mov ds, eax
    mov es, eax
    mov rsp, offset stack_top

    // The legacy interrupt controllers stay masked.
    mov al, 0xff
    out 0x21, al
    out 0xa1, al

    lea rax, [rip + debug]
    mov ecx, 1
    call set_gate
    lea rax, [rip + nonmaskable]
    mov ecx, 2
    call set_gate
    lea rax, [rip + interrupt]
    mov ecx, 0x40
    call set_gate
    lea rax, [rip + breakpoint]
    mov ecx, 3
    call set_gate
    lea rax, [rip + protection]
    mov ecx, 13
    call set_gate
    lea rax, [rip + invalid_opcode]
    mov ecx, 6
    call set_gate
    lea rax, [rip + page_fault]
    mov ecx, 14
    call set_gate
    lidt [rip + idt_pointer]

    mov edi, [boot_magic]
    mov esi, [boot_information]
    call kernel_main
    ud2

// RAX: the handler; ECX: the vector.
set_gate:
    shl ecx, 4
    lea rdx, [rip + idt]
    mov [rdx + rcx], ax
    mov word ptr [rdx + rcx + 2], 8
    mov word ptr [rdx + rcx + 4], 0x8e00
    shr rax, 16
    mov [rdx + rcx + 6], ax
    shr rax, 16
    mov [rdx + rcx + 8], eax
    ret

// Counts debug exceptions, and also single steps if DR6 reports one. Sets RF to continue after a breakpoint of DR0.
debug:
    push rax
    inc qword ptr [rip + debug_exceptions]
    mov rax, dr6
    test eax, 0x4000
    jz 1f
    inc qword ptr [rip + single_steps]
1:  test eax, 1
    jz 1f
    or dword ptr [rsp + 24], 0x10000
1:  mov eax, 0xffff0ff0
    mov dr6, rax
    pop rax
    iretq

// The first NMI sends a second one, which must wait for the IRET.
nonmaskable:
    push rax
    inc qword ptr [rip + nmis]
    cmp qword ptr [rip + nmis], 1
    jne 1f
    mov eax, 0xfee00300
    mov dword ptr [rax], 0x44400
    nop
    nop
    cmp qword ptr [rip + nmis], 1
    sete byte ptr [rip + nmi_waited]
1:  pop rax
    iretq

interrupt:
    push rax
    mov rax, [rsp + 8]
    mov [rip + interrupted_at], rax
    mov eax, 0xfee000b0
    mov dword ptr [rax], 0
    pop rax
    iretq

breakpoint:
    lock inc qword ptr [rip + breakpoints]
    iretq

// The fault of an RDMSR, WRMSR or INT n: skips the instruction, and RAX shows that it faulted.
protection:
    add rsp, 8
    add qword ptr [rsp], 2
    mov rax, -1
    iretq

// RDI: MSR, RSI: value. RAX: 0, or all ones after #GP.
    .global try_wrmsr
try_wrmsr:
    mov ecx, edi
    mov rax, rsi
    mov rdx, rsi
    shr rdx, 32
    wrmsr
    cmp rax, -1
    je 1f
    xor eax, eax
1:  ret

// RDI: MSR. RAX: its value, or all ones after #GP.
    .global try_rdmsr
try_rdmsr:
    mov ecx, edi
    xor edx, edx
    rdmsr
    cmp rax, -1
    je 1f
    shl rdx, 32
    or rax, rdx
1:  ret

// EDI: the session to announce. Does a little of everything between two markers. RAX: a result that a wrong processor
// would not compute.
    .global work
work:
    push rbx
    mov edx, 0xe700
    mov eax, edi
    out dx, eax

    xor r8d, r8d
    mov ecx, 200
1:  lea r8, [r8 + r8*2 + 1]
    test cl, 1
    jz 2f
    call triple
2:  loop 1b

    lea rdi, [rip + buffer]
    mov eax, 0x5a
    mov ecx, 64
    rep stosb
    mov ecx, 0
    rep stosb
    lea rsi, [rip + buffer]
    mov ecx, 32
    repe cmpsb

    pushfq
    pop rax
    and eax, 0x100                // TF never shows
    add r8, rax
    int3
    push rcx
    popfq
    int 3
    mov eax, ss
    mov ss, eax
    mov rbx, rsp
    push rax
    pop rax
    xor eax, eax
    cpuid
    mov ecx, 0x570
    rdmsr
    mov rax, cr3
    mov cr3, rax
    lea rax, [rip + 3f]
    jmp rax
    ud2
3:  mov edx, 0xe700
    xor eax, eax
    out dx, eax
    mov rax, r8
    pop rbx
    ret

// EDI: the session to announce, 0 for none. RAX: a bit for each thing that went wrong.
    .global traps
traps:
    push rbx
    xor ebx, ebx
    mov qword ptr [rip + single_steps], 0
    mov qword ptr [rip + nmis], 0
    mov byte ptr [rip + nmi_waited], 0
    mov edx, 0xe700
    mov eax, edi
    out dx, eax

    // The kernel steps itself: six instructions trap, including the one that clears TF.
    pushfq
    or dword ptr [rsp], 0x100
    popfq
    nop
    nop
    nop
    pushfq
    and dword ptr [rsp], ~0x100
    popfq
    cmp qword ptr [rip + single_steps], 6
    je 1f
    or ebx, 1

    // The local APIC, with instructions that read and write in one.
1:  mov esi, 0xfee00000
    or dword ptr [rsi + 0xf0], 0x1ff
    test dword ptr [rsi + 0xf0], 0x100
    jnz 1f
    or ebx, 2

    // A pending interrupt comes one instruction after STI.
1:  mov dword ptr [rsi + 0x300], 0x44040
    lea rax, [rip + 2f]
    sti
    nop
2:  nop
    cli
    cmp [rip + interrupted_at], rax
    je 1f
    or ebx, 4

    // Two NMIs; the second is sent within the first.
1:  mov dword ptr [rsi + 0x300], 0x44400
    nop
    nop
    cmp qword ptr [rip + nmis], 2
    je 1f
    or ebx, 8
1:  cmp byte ptr [rip + nmi_waited], 1
    je 1f
    or ebx, 16

    // HLT ends with an interrupt, and IF is still set after it.
1:  mov qword ptr [rip + interrupted_at], 0
    mov dword ptr [rsi + 0x300], 0x44040
    lea rax, [rip + 2f]
    sti
    hlt
2:  pushfq
    pop rcx
    cli
    test ecx, 0x200
    jnz 1f
    or ebx, 32
1:  cmp [rip + interrupted_at], rax
    je 1f
    or ebx, 64

    // SYSENTER, from level 0 to level 0.
1:  mov ecx, 0x174
    mov eax, 8
    xor edx, edx
    wrmsr
    mov ecx, 0x175
    mov rax, rsp
    wrmsr
    mov ecx, 0x176
    lea rax, [rip + 1f]
    wrmsr
    sysenter
    or ebx, 128

    // INT n beyond the table faults.
1:  xor eax, eax
    int 0x50
    cmp rax, -1
    je 1f
    or ebx, 256

    // Conditions that are already set in DR6 raise no new exception, and they stay until they are cleared.
1:  mov qword ptr [rip + debug_exceptions], 0
    mov eax, 0xffff4ff1
    mov dr6, rax
    nop
    nop
    mov rcx, dr6
    cmp rax, rcx
    jne 2f
    mov eax, 0xffff0ff0
    mov dr6, rax
    nop
    mov rcx, dr6
    cmp rax, rcx
    jne 2f
    cmp qword ptr [rip + debug_exceptions], 0
    je 1f
2:  or ebx, 512

    // A breakpoint is hit once, and DR0 belongs to the kernel.
1:  lea rax, [rip + 1f]
    mov dr0, rax
    mov ecx, 0x402
    mov dr7, rcx
    nop
    nop
1:  nop
    nop
    mov ecx, 0x400
    mov dr7, rcx
    nop
    nop
    nop
    mov rdx, dr0
    mov rcx, dr7
    cmp rax, rdx
    jne 2f
    cmp ecx, 0x400
    jne 2f
    cmp qword ptr [rip + debug_exceptions], 1
    je 1f
2:  or ebx, 1024
1:  mov edx, 0xe700
    xor eax, eax
    out dx, eax
    mov eax, ebx
    pop rbx
    ret

triple:
    add r8, 7
    ret

    .section .rodata.boot, "a", @progbits
    .balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff
gdt_pointer:
    .word . - gdt - 1
    .quad gdt
idt_pointer:
    .word 65 * 16 - 1
    .quad idt

    .section .bss.boot, "aw", @nobits
    .balign 4096
level4: .skip 4096
    .global level3
level3: .skip 4096
level2: .skip 4096
level2_devices: .skip 4096
idt: .skip 65 * 16
single_steps: .skip 8
debug_exceptions: .skip 8
nmis: .skip 8
interrupted_at: .skip 8
nmi_waited: .skip 8
boot_magic: .skip 8
boot_information: .skip 8
    .global breakpoints
breakpoints: .skip 8
buffer: .skip 64
    .balign 16
    .skip 16384
stack_top:
