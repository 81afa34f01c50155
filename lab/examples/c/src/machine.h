// The parts of a PC that the kernel needs before tracing. Nothing of it but the #GP handler is related to tracing.
#pragma once

#include <stdint.h>

// All RAM, and the local APIC's page, are mapped at this offset.
#define PHYSICAL_MEMORY_OFFSET 0xffff800000000000
#define LOCAL_APIC ((void *)(PHYSICAL_MEMORY_OFFSET + 0xfee00000))

// Sets the NMI handler, which gets the RIP that the processor pushed.
void on_nmi(void (*handler)(uint64_t rip));

// Prints to the serial port. %u takes a uint64_t, %x too, and %s a text.
void print(const char *format, ...);

// Prints a text and ends the machine.
__attribute__((noreturn)) void fail(const char *reason);

// Assigns the instructions from here on to a session of the monitor's log; 0 means none.
void mark_truth(uint32_t session);

// The kernel itself.
void example_main(void);
