// A kernel in C that traces one function and prints its calls, then decodes its trace while it is recorded, in NMIs.
#include <stdint.h>

#include "machine.h"
#include "pugmark.h"

#define TRACE_BYTES (64 << 10)

extern const char __text_start[], __text_end[];
static void work(void *), sort(void);

// The memory of the trace. It is linked at its physical address.
static _Alignas(4096) unsigned char memory[TRACE_BYTES];
static unsigned char scratch[TRACE_BYTES];
static struct pugmark_live live;

static struct pugmark_trace trace = {.code_start = __text_start, .code_end = __text_end};

static void print_call(void *context, const struct pugmark_step *step)
{
    (void)context;
    if (step->kind == PUGMARK_STEP_CALL)
        print("call %u 0x%x\n", (uint64_t)step->depth, step->to);
}

static void check(int error, const struct pugmark_outcome *outcome)
{
    if (error != PUGMARK_OK)
        fail(outcome->reason);
}

static void print_outcome(const char *name, const struct pugmark_outcome *end)
{
    if (!end->is_whole)
        fail(end->reason);
    print("%s pmis=%u instructions=%u hash=0x%x calls=%u\n", name, end->pmis, end->instructions, end->hash,
          end->calls);
}

static void snapshot(void)
{
    struct pugmark_outcome end;
    trace.memory = (struct pugmark_memory){.start = (uint64_t)memory, .bytes = sizeof memory};
    trace.step = print_call;
    mark_truth(1);
    int error = pugmark_snapshot(&trace, work, scratch, sizeof scratch, &end);
    mark_truth(0);
    check(error, &end);
    print_outcome("snapshot", &end);
}

// The kernel's frames: how many it has given out, and how many of them have come back.
static unsigned allocated, released;

static uint64_t allocate(void *context)
{
    (void)context;
    return (uint64_t)memory + 4096 * allocated++;
}

static void release(void *context, uint64_t frame)
{
    (void)context, (void)frame;
    released++;
}

static void nmi(uint64_t rip)
{
    if (pugmark_live_interrupt(&live, rip) == PUGMARK_PMI_NOT_OURS)
        fail("nobody else sends NMIs");
}

static void trace_live(void)
{
    struct pugmark_outcome end;
    trace.memory = (struct pugmark_memory){.bytes = 4 * 4096, .allocate = allocate, .release = release};
    trace.step = 0;
    on_nmi(nmi);
    if (pugmark_use_local_apic(LOCAL_APIC) != PUGMARK_OK)
        fail(pugmark_text(PUGMARK_ERROR_ARGUMENT));
    mark_truth(2);
    check(pugmark_live_start(&live, &trace, &end), &end);
    sort();
    check(pugmark_live_stop(&live, &end), &end);
    mark_truth(0);
    if (released != allocated)
        fail("frames are missing");
    print_outcome("live", &end);
}

void example_main(void)
{
    print("run c\n");
    snapshot();
    trace_live();
    print("ok c\ndone 1 0\n");
}

// The traced code.

static volatile uint32_t result;

// Calls itself twice for each height.
__attribute__((noinline)) static uint32_t tower(uint32_t height)
{
    if (height == 0)
        return 0;
    return tower(height - 1) + tower(height / 2) + 1;
}

__attribute__((noinline)) static void work(void *context)
{
    (void)context;
    result = tower(4);
    result += tower(6);
}

static int less(uint32_t left, uint32_t right)
{
    return left < right;
}

static int more(uint32_t left, uint32_t right)
{
    return left > right;
}

__attribute__((noinline)) static void sink(uint32_t *numbers, unsigned root, unsigned end,
                                           int (*is_before)(uint32_t, uint32_t))
{
    for (unsigned child = 2 * root + 1; child < end; child = 2 * root + 1) {
        if (child + 1 < end && is_before(numbers[child], numbers[child + 1]))
            child++;
        if (!is_before(numbers[root], numbers[child]))
            return;
        uint32_t number = numbers[root];
        numbers[root] = numbers[child];
        numbers[child] = number;
        root = child;
    }
}

__attribute__((noinline)) static void heapsort(uint32_t *numbers, unsigned count, int (*is_before)(uint32_t, uint32_t))
{
    for (unsigned root = count / 2; root-- > 0;)
        sink(numbers, root, count, is_before);
    for (unsigned end = count; end-- > 1;) {
        uint32_t number = numbers[0];
        numbers[0] = numbers[end];
        numbers[end] = number;
        sink(numbers, 0, end, is_before);
    }
}

#define NUMBERS 300

static void sort(void)
{
    static uint32_t numbers[NUMBERS];
    static int (*const volatile orders[])(uint32_t, uint32_t) = {less, more};
    uint32_t random = 1;
    for (unsigned at = 0; at < NUMBERS; at++) {
        random = random * 1664525 + 1013904223;
        numbers[at] = random >> 8;
    }
    for (unsigned order = 0; order < 2; order++) {
        heapsort(numbers, NUMBERS, orders[order]);
        for (unsigned at = 1; at < NUMBERS; at++)
            if (orders[order](numbers[at], numbers[at - 1]))
                fail("not sorted");
    }
}
