/*
 * The short way of Pugmark's driver for kernels in C on x86-64 with Intel PT: one function traced into memory, or a
 * processor's trace that is decoded while it is recorded.
 *
 * Link with libpugmark_kernel_c.a. The kernel defines pugmark_panicked (below), and what C compilers ask of any kernel:
 * memcpy, memmove, memset, memcmp, bcmp. It calls everything here at CPL 0 with preemption disabled, on a stack with
 * PUGMARK_HANDLER_STACK free bytes. Code of a library that was built for a hosted target uses SSE registers and the red
 * zone: the kernel saves the former in its handlers, and gives each handler a stack of its own, but for #GP.
 *
 * A pointer that is null or misaligned, or a size that overflows, is PUGMARK_ERROR_ARGUMENT. Any other pointer must be
 * what its comment says: this cannot be checked.
 */
#ifndef PUGMARK_H
#define PUGMARK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Errors. pugmark_outcome has more: the text with its values. */
#define PUGMARK_OK 0
/* The processor has no Intel PT, or another owner uses it. */
#define PUGMARK_ERROR_ABSENT 1
/* The processor cannot trace into this memory, or there is too little of it. */
#define PUGMARK_ERROR_BUFFER 2
/* The processor did not start the trace. */
#define PUGMARK_ERROR_START 3
/* There is no trace, or one already; or the local APIC is disabled. */
#define PUGMARK_ERROR_SLOT 4
/* A register raised #GP when the trace was stopped. */
#define PUGMARK_ERROR_STOP 5
/* The memory for a copy of the trace has too few bytes. */
#define PUGMARK_ERROR_SCRATCH 6
/* The trace cannot be decoded. */
#define PUGMARK_ERROR_DECODE 7
/* An argument is null, misaligned or out of range. */
#define PUGMARK_ERROR_ARGUMENT 8

/* Returns the text of an error's number. It is never null, and is there for ever. */
const char *pugmark_text(int error);

/*
 * The memory that the processor writes the trace to: a region, or single frames of the kernel's allocator.
 *
 * All of it is mapped, readable, writable and write-back, and is used for nothing else until the function that took it
 * returns an error, the snapshot returns, or the live trace has stopped. After PUGMARK_ERROR_STOP the processor may
 * still write to what was not released.
 */
struct pugmark_memory {
    /* A frame's virtual address is its physical address plus this. */
    uint64_t offset;
    /* If allocate is null: the physical address of a region, a multiple of 4096, not 0. */
    uint64_t start;
    /* The size of the region; or the bytes of trace for which frames are allocated, with those for tables. */
    uint64_t bytes;
    /* Returns the physical address of a frame that nobody uses, a multiple of 4096, or 0 if there is none. Or null. */
    uint64_t (*allocate)(void *context);
    /* Takes back a frame of allocate's. Or null: then they are lost. */
    void (*release)(void *context, uint64_t frame);
};

/* The kinds of steps. */
#define PUGMARK_STEP_CALL 0
#define PUGMARK_STEP_RETURN 1
#define PUGMARK_STEP_INTERRUPT 2
#define PUGMARK_STEP_INTERRUPT_RETURN 3
#define PUGMARK_STEP_TAIL_CALL 4

/* A transition from one function to another. */
struct pugmark_step {
    /* The address of the instruction that caused it. */
    uint64_t from;
    /* The address of the instruction after it. */
    uint64_t to;
    /* The number of calls and interrupts that have not returned after it. */
    int64_t depth;
    /* PUGMARK_STEP_... */
    uint32_t kind;
};

/* The memory and the code of a trace, and who takes its steps. It is needed until the function that gets it returns. */
struct pugmark_trace {
    struct pugmark_memory memory;
    /* The kernel's code, between two linker symbols: mapped and readable, and its bytes never change. */
    const void *code_start;
    const void *code_end;
    /* Takes each step, which is there until it returns. Or null. Of a live trace it is called in the NMI handler. */
    void (*step)(void *context, const struct pugmark_step *step);
    /* The argument of all functions, for which it may be null. They return as functions do: no longjmp. */
    void *context;
};

/* Counts of what was lost; see pugmark_kernel::loss::Loss. */
struct pugmark_loss {
    uint64_t stop;
    uint64_t full;
    uint64_t wrap;
    uint64_t wrapped_bytes;
    uint64_t perhaps_wrapped;
    uint64_t error;
    uint64_t samples;
    uint64_t excluded;
    uint64_t abandoned;
    uint64_t turned_off;
    uint64_t trace_stop;
};

/* The end of a trace. After an error all of it is 0 but reason. */
struct pugmark_outcome {
    /* The number of instructions decoded, and the FNV-1a hash of their addresses in order, 8 bytes each. */
    uint64_t instructions;
    uint64_t hash;
    /* The number of near calls; of a snapshot, those in the function, with its own. */
    uint64_t calls;
    /* The number of bytes of trace. */
    uint64_t bytes;
    /* The number of places where the trace could not be decoded. */
    uint64_t errors;
    /* The number of performance-monitoring interrupts that were served. */
    uint64_t pmis;
    struct pugmark_loss loss;
    /* 1 if nothing was lost and everything was decoded, otherwise 0. */
    int is_whole;
    /* The error's text with its values, or that of the losses; ends with a 0. */
    char reason[128];
};

/*
 * Traces work(trace->context) on this processor, then passes its steps to trace->step: from its call, at depth 1, to
 * its return. The trace is copied to scratch, which is not null and has scratch_bytes bytes that are initialised and
 * that nobody else uses: as many as the trace can have. outcome may be written to.
 */
int pugmark_snapshot(const struct pugmark_trace *trace, void (*work)(void *context), void *scratch,
                     size_t scratch_bytes, struct pugmark_outcome *outcome);

#define PUGMARK_LIVE_BYTES 98304

/*
 * One processor's trace with all that decoding it takes: a static variable, all 0 before its first use, which only that
 * processor uses and the kernel never reads, writes or frees.
 */
struct pugmark_live {
    unsigned char bytes[PUGMARK_LIVE_BYTES];
} __attribute__((aligned(64)));

/*
 * Starts a trace of this processor. NMIs go to pugmark_live_interrupt first; the local APIC is enabled. outcome may be
 * written to: it has the text of an error.
 */
int pugmark_live_start(struct pugmark_live *live, const struct pugmark_trace *trace, struct pugmark_outcome *outcome);

/* A PMI, which was served. An NMI of another cause may have merged with it. */
#define PUGMARK_PMI_SERVED 0
/* A PMI without a request. */
#define PUGMARK_PMI_STRAY 1
/* An NMI of another cause. */
#define PUGMARK_PMI_NOT_OURS 2
/* A PMI that is served later. */
#define PUGMARK_PMI_LATER 3
/* A PMI, or an NMI of another cause: nothing shows which. */
#define PUGMARK_PMI_UNKNOWN 4
/* PMIs without end: the trace is left off. */
#define PUGMARK_PMI_STUCK 5
/* A register raised #GP: the trace is served later. */
#define PUGMARK_PMI_FAULT 6

/* The bytes of stack that pugmark_live_interrupt needs; those of step come on top. */
#define PUGMARK_HANDLER_STACK 16384

/* Serves an NMI, in its handler. rip is the address that the processor pushed. Returns PUGMARK_PMI_... */
int pugmark_live_interrupt(struct pugmark_live *live, uint64_t rip);

/* Stops the trace, decodes the rest and releases its memory. outcome may be written to. */
int pugmark_live_stop(struct pugmark_live *live, struct pugmark_outcome *outcome);

/*
 * Names the page at which all processors have mapped their local APIC, uncached: before the first start, and for ever.
 * Null, which is the default, is x2APIC mode. Returns PUGMARK_ERROR_ARGUMENT if it is no page's address.
 */
int pugmark_use_local_apic(void *page);

/* The registers that a #GP has interrupted. */
struct pugmark_interrupted {
    uint64_t rbx;
    uint64_t rbp;
    uint64_t r12;
    uint64_t r13;
    uint64_t r14;
    uint64_t r15;
    uint64_t rsp;
    uint64_t rflags;
};

/*
 * Called by the #GP handler: if an access of the driver faulted at rip, that access becomes an error, and this does not
 * return. A kernel that does not call it gets such a fault as any other.
 *
 * The handler has no stack of the interrupt stack table, has changed no callee-saved state but the stack, and owns
 * nothing.
 */
void pugmark_general_protection(uint64_t rip, const struct pugmark_interrupted *interrupted);

/*
 * The kernel's: ends it. The library calls it where it has found a bug of its own. file has bytes bytes and no 0 at its
 * end.
 */
__attribute__((noreturn)) void pugmark_panicked(const char *file, size_t bytes, uint32_t line);

#ifdef __cplusplus
}
#endif

#endif
