// A disk image that the BIOS boots. It prints how much memory the BIOS reports, traces itself in real-address mode and
// in protected mode while the BIOS has interrupts on, and sends the trace to port E9H. Operands that an assembler for
// 64-bit code does not encode for 16-bit code are bytes.

    .section .rodata.bios_disk, "a", @progbits
    .code16
    .balign 16
    .global bios_disk, bios_disk_end
bios_disk:
    // The address of the first sector, if the others are at 600H.
    .set ORIGIN, 0x400
    .set SECTORS, 3
    cli
    xor ax, ax
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov sp, 0x7c00
    sti
    // The other sectors.
    mov ax, 0x0200 + SECTORS - 1
    mov cx, 2
    xor dh, dh
    mov bx, ORIGIN + 512
    int 0x13
    jc 1f
    .byte 0xea                      // jmp far 0:begin
    .word ORIGIN + begin - bios_disk
    .word 0
1:  mov al, 0x11
    out 0xf4, al
    hlt

    .org 510
    .word 0xaa55

begin:
    call print_memory
    call start_trace
    // In real-address mode: BIOS functions, and interrupts of the timer, whose vector is 8.
    int 0x12
    mov ah, 0
    int 0x1a
    mov ah, 0x88
    int 0x15
    call wait_for_ticks
    call protected_mode
    call wait_for_ticks
    call stop_trace
    // The trace: its bytes are from 20000H on.
    mov cx, ax
    push ds
    mov ax, 0x2000
    mov ds, ax
    xor si, si
    cld
    mov dx, 0xe9
    rep outsb
    pop ds
    mov al, 0x10
    out 0xf4, al
    hlt

failed:
    mov al, 0x11
    out 0xf4, al
    hlt

wait_for_ticks:
    mov si, 0x46c
    mov bx, [si]
1:  mov ax, [si]
    sub ax, bx
    cmp ax, 2
    jb 1b
    ret

// Prints `12 AX`, `88 AX`, `801 AX BX CX DX` and a line for each range of E820H.
print_memory:
    int 0x12
    push ax
    mov ax, 0x12
    call print_word
    pop ax
    call print_word
    call print_newline
    mov ah, 0x88
    int 0x15
    jc failed
    push ax
    mov ax, 0x88
    call print_word
    pop ax
    call print_word
    call print_newline
    mov ax, 0xe801
    int 0x15
    jc failed
    push dx
    push cx
    push bx
    push ax
    mov ax, 0x801
    call print_word
    mov cx, 4
1:  pop ax
    call print_word
    loop 1b
    call print_newline
    xor ebx, ebx
2:  mov eax, 0xe820
    mov edx, 0x534d4150
    mov ecx, 20
    mov di, 0x1200
    int 0x15
    jc failed
    cmp eax, 0x534d4150
    jne failed
    cmp ecx, 20
    jne failed
    push ebx
    mov cx, 10
    mov si, 0x1200 + 18
    std
3:  lodsw
    push cx
    call print_word
    pop cx
    loop 3b
    cld
    call print_newline
    pop ebx
    test ebx, ebx
    jnz 2b
    // A range that does not exist, and another function of the BIOS.
    mov eax, 0xe820
    mov edx, 0x534d4150
    mov ebx, 99
    mov ecx, 20
    int 0x15
    jnc failed
    mov ah, 0xc0
    int 0x15
    jc failed
    ret

// Prints AX with four digits, and a space.
print_word:
    mov bp, 4
1:  rol ax, 4
    push ax
    and al, 15
    add al, '0'
    cmp al, '9'
    jbe 2f
    add al, 'a' - '0' - 10
2:  mov dx, 0x3f8
    out dx, al
    pop ax
    dec bp
    jnz 1b
    mov al, ' '
    out dx, al
    ret

print_newline:
    mov al, 10
    mov dx, 0x3f8
    out dx, al
    ret

// Traces everything into 64 KiB at 20000H: IA32_RTIT_OUTPUT_BASE, OUTPUT_MASK_PTRS, STATUS, then CTL with TraceEn, OS,
// User and BranchEn.
start_trace:
    mov ecx, 0x560
    mov eax, 0x20000
    xor edx, edx
    wrmsr
    inc ecx
    mov eax, 0xffff
    wrmsr
    mov ecx, 0x571
    xor eax, eax
    wrmsr
    dec ecx
    mov eax, 0x200d
    wrmsr
    ret

// Returns the number of bytes in AX.
stop_trace:
    mov ecx, 0x570
    xor eax, eax
    xor edx, edx
    wrmsr
    mov ecx, 0x561
    rdmsr
    mov ax, dx
    ret

// Executes some 32-bit code.
protected_mode:
    cli
    .byte 0x0f, 0x01, 0x16          // lgdt [gdt_pointer]
    .word ORIGIN + gdt_pointer - bios_disk
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0xea                      // jmp far 8:bits32
    .word ORIGIN + bits32 - bios_disk
    .word 8

    .code32
bits32:
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    movzx esp, sp
    mov ecx, 50
1:  call add32
    loop 1b
    .byte 0xea                      // jmp far 24:bits16
    .long ORIGIN + bits16 - bios_disk
    .word 24

add32:
    add edx, ecx
    ret

    .code16
bits16:
    mov ax, 32
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, cr0
    and al, 0xfe
    mov cr0, eax
    .byte 0xea                      // jmp far 0:real
    .word ORIGIN + real - bios_disk
    .word 0
real:
    xor ax, ax
    mov ds, ax
    mov es, ax
    mov ss, ax
    sti
    ret

    .balign 8
gdt:
    .quad 0
    .quad 0x00cf9b000000ffff        // 8: 32-bit code
    .quad 0x00cf93000000ffff        // 16: 32-bit data
    .quad 0x00009b000000ffff        // 24: 16-bit code
    .quad 0x000093000000ffff        // 32: 16-bit data
gdt_pointer:
    .word 39
    .long ORIGIN + gdt - bios_disk

    .org 512 * SECTORS
bios_disk_end:
    .code64
