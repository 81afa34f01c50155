// The way from the boot loader to kernel_main, and the stubs that call kernel_trap: those of the other examples.
    .intel_syntax noprefix
    #include "entry.s"
    .att_syntax prefix
    #include "traps.s"
    .section .note.GNU-stack, "", @progbits
