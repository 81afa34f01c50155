#include "machine.h"

#include <stdarg.h>
#include <stddef.h>

#include "pugmark.h"

// The C library's functions that compilers call.

void *memcpy(void *to, const void *from, size_t bytes)
{
    void *start = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return start;
}

void *memmove(void *to, const void *from, size_t bytes)
{
    if ((uintptr_t)to - (uintptr_t)from >= bytes)
        return memcpy(to, from, bytes);
    char *last_to = (char *)to + bytes - 1;
    const char *last_from = (const char *)from + bytes - 1;
    __asm__ volatile("std; rep movsb; cld" : "+D"(last_to), "+S"(last_from), "+c"(bytes) : : "memory");
    return to;
}

void *memset(void *to, int byte, size_t bytes)
{
    void *start = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(byte) : "memory");
    return start;
}

int memcmp(const void *left, const void *right, size_t bytes)
{
    const volatile unsigned char *a = left, *b = right;
    for (size_t at = 0; at < bytes; at++)
        if (a[at] != b[at])
            return a[at] - b[at];
    return 0;
}

int bcmp(const void *left, const void *right, size_t bytes)
{
    return memcmp(left, right, bytes);
}

// Ports and the serial port.

static uint8_t in(uint16_t port)
{
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void out(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void out_long(uint16_t port, uint32_t value)
{
    __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}

static void print_byte(char byte)
{
    while (!(in(0x3fd) & 0x20))
        ;
    out(0x3f8, (uint8_t)byte);
}

static void print_number(uint64_t value, unsigned base)
{
    if (value >= base)
        print_number(value / base, base);
    print_byte("0123456789abcdef"[value % base]);
}

void print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    for (; *format; format++) {
        if (*format != '%') {
            print_byte(*format);
        } else if (*++format == 's') {
            for (const char *text = va_arg(arguments, const char *); *text; text++)
                print_byte(*text);
        } else {
            print_number(va_arg(arguments, uint64_t), *format == 'x' ? 16 : 10);
        }
    }
    va_end(arguments);
}

// The end.

__attribute__((noreturn)) static void end(int is_right)
{
    out_long(0xf4, is_right ? 0x10 : 0x11);
    for (;;)
        __asm__ volatile("cli; hlt");
}

void fail(const char *reason)
{
    print("fail c: %s\ndone 0 1\n", reason);
    end(0);
}

void pugmark_panicked(const char *file, size_t bytes, uint32_t line)
{
    while (bytes--)
        print_byte(*file++);
    print(":%u\n", (uint64_t)line);
    fail("panicked");
}

void mark_truth(uint32_t session)
{
    out_long(0xe700, session);
}

// Traps.

// The registers in the order in which the stubs push them.
struct trap {
    uint64_t rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15;
    uint64_t vector, error, rip, cs, rflags, rsp, ss;
};

static void (*nmi_handler)(uint64_t rip);

void on_nmi(void (*handler)(uint64_t rip))
{
    nmi_handler = handler;
}

// Called by the stubs.
void kernel_trap(const struct trap *at)
{
    struct pugmark_interrupted registers = {
        at->rbx, at->rbp, at->r12, at->r13, at->r14, at->r15, at->rsp, at->rflags,
    };
    if (at->vector == 13)
        pugmark_general_protection(at->rip, &registers);
    if (at->vector != 2 || !nmi_handler) {
        print("trap %u at %x\n", at->vector, at->rip);
        fail("a trap");
    }
    nmi_handler(at->rip);
}

extern char trap_stubs[256][16];

static struct {
    uint16_t low, segment, options, middle;
    uint32_t high, reserved;
} idt[256];

// An NMI has a stack of its own, because the interrupted code may use the red zone below its stack pointer.
static _Alignas(16) char nmi_stack[PUGMARK_HANDLER_STACK + 4096];

static struct __attribute__((packed)) {
    uint32_t reserved;
    uint64_t stacks[3], reserved_too, interrupt_stacks[7], reserved_three;
    uint16_t reserved_four, io_map;
} tss;

static uint64_t gdt[5] = {0, 0x00af9a000000ffff, 0x00cf92000000ffff};

struct __attribute__((packed)) table {
    uint16_t limit;
    const void *base;
};

static void set_up_traps(void)
{
    for (int vector = 0; vector < 32; vector++) {
        uint64_t stub = (uint64_t)trap_stubs[vector];
        idt[vector].low = (uint16_t)stub;
        idt[vector].segment = 8;
        idt[vector].options = vector == 2 ? 0x8e01 : 0x8e00;
        idt[vector].middle = (uint16_t)(stub >> 16);
        idt[vector].high = (uint32_t)(stub >> 32);
    }
    uint64_t base = (uint64_t)&tss;
    tss.interrupt_stacks[0] = (uint64_t)(nmi_stack + sizeof nmi_stack);
    tss.io_map = sizeof tss;
    gdt[3] = (sizeof tss - 1) | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
    gdt[4] = base >> 32;
    struct table gdt_table = {sizeof gdt - 1, gdt}, idt_table = {sizeof idt - 1, idt};
    __asm__ volatile("lgdt %0; lidt %1; ltr %w2" : : "m"(gdt_table), "m"(idt_table), "r"(3 * 8));
}

// Called by the entry, with the values that the boot loader left.
__attribute__((noreturn)) void kernel_main(uint32_t eax, uint32_t information)
{
    (void)eax, (void)information;
    set_up_traps();
    // The local APIC must be enabled: until then no LVT entry can be unmasked.
    *(volatile uint32_t *)((char *)LOCAL_APIC + 0xf0) = 0x1ff;
    example_main();
    end(1);
}
