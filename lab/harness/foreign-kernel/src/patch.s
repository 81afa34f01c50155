// EDI: the session to announce, 0 for none. RAX: 105 if each instruction that was changed just before executed as it
// was changed.
    .global patches
patches:
    mov edx, 0xe700
    mov eax, edi
    out dx, eax
    xor r8d, r8d
    mov dword ptr [rip + patch_copied], 0x90909090
    mov ecx, 8
1:  mov byte ptr [rip + patch_displacement], cl
    mov eax, 0x04eb               // a jump over the addition
    mov esi, 0x9066               // none
    test cl, 1
    cmovnz eax, esi
    mov word ptr [rip + patch_jump], ax
    nop
    .byte 0x4d, 0x8d, 0x40        // lea r8, [r8 + 0]
patch_displacement:
    .byte 0
    nop
patch_jump:
    .byte 0xeb, 0x04
    add r8, 16
    dec ecx
    jnz 1b

    lea rsi, [rip + patch_source]
    lea rdi, [rip + patch_copied]
    mov ecx, 4
    rep movsb
    nop
patch_copied:
    .byte 0x90, 0x90, 0x90, 0x90
    mov edx, 0xe700
    xor eax, eax
    out dx, eax
    mov rax, r8
    ret
patch_source:
    add r8, 5
