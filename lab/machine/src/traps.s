    // Each stub calls kernel_trap(frame), which handles every trap. It may change the registers, which are loaded when it
    // returns.

    .section .text.traps, "ax"
    .global trap_stubs
    .type trap_stubs, @function
    .align 16
trap_stubs:
    .set vector, 0
    .rept 256
    .align 16
    // Vectors whose error code the processor pushes itself.
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    pushq $0
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
    .endr
    .size trap_stubs, . - trap_stubs

    .type trap_common, @function
trap_common:
    pushq %r15
    pushq %r14
    pushq %r13
    pushq %r12
    pushq %r11
    pushq %r10
    pushq %r9
    pushq %r8
    pushq %rdi
    pushq %rsi
    pushq %rbp
    pushq %rbx
    pushq %rdx
    pushq %rcx
    pushq %rax
    cld
    movq %rsp, %rbp
    movq %rsp, %rdi
    // The handlers are compiled code that may use SSE.
    subq $512, %rsp
    andq $-16, %rsp
    fxsave64 (%rsp)
    call kernel_trap
    fxrstor64 (%rsp)
    movq %rbp, %rsp
    popq %rax
    popq %rcx
    popq %rdx
    popq %rbx
    popq %rbp
    popq %rsi
    popq %rdi
    popq %r8
    popq %r9
    popq %r10
    popq %r11
    popq %r12
    popq %r13
    popq %r14
    popq %r15
    addq $16, %rsp
    iretq
    .size trap_common, . - trap_common
