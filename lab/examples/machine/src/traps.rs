//! Exceptions and NMIs.
//!
//! Each vector except #GP has a stack of its own, because code for a hosted target uses the red zone below its stack
//! pointer. #GP has none, as `pugmark_kernel::arch::GuardedMsr` requires.

use crate::stacks::{self, Stack};
use crate::{PHYSICAL_MEMORY_OFFSET, frames, processors};
use core::arch::global_asm;
use pugmark_kernel::arch::{Interrupted, fixup};
use spin::{LazyLock, Once};
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::Cr2;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, EntryOptions, InterruptDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

static NMI: Once<fn(u64)> = Once::new();

/// Sets the NMI handler; it is called with the interrupted RIP.
pub fn on_nmi(handler: fn(u64)) {
    NMI.call_once(|| handler);
}

/// The registers pushed by the stub, above them those pushed by the processor.
#[repr(C)]
#[derive(Debug)]
struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

extern "C" fn trap(frame: &Frame) {
    let &Frame { vector, rip, rbx, rbp, r12, r13, r14, r15, rsp, rflags, .. } = frame;
    match (vector, fixup(rip), NMI.get()) {
        (2, _, Some(handler)) => handler(rip),
        // SAFETY: the registers are those that the #GP interrupted, and nothing else is left to do.
        (13, Some(fixup), _) => unsafe {
            fixup.resume(&Interrupted { rbx, rbp, r12, r13, r14, r15, rsp, rflags })
        },
        (14, ..) if stacks::is_below_a_stack(Cr2::read_raw()) => {
            panic!("a stack has overflowed: {:#x} is below it; {frame:x?}", Cr2::read_raw())
        }
        _ => panic!("trap {vector}: {frame:x?}"),
    }
}

static IDT: LazyLock<InterruptDescriptorTable> = LazyLock::new(|| {
    let mut idt = InterruptDescriptorTable::new();
    with_stack(set(&mut idt.divide_error, 0), 0);
    with_stack(set(&mut idt.non_maskable_interrupt, 2), 1);
    with_stack(set(&mut idt.invalid_opcode, 6), 0);
    with_stack(set(&mut idt.double_fault, 8), 2);
    set(&mut idt.general_protection_fault, 13);
    with_stack(set(&mut idt.page_fault, 14), 0);
    idt
});

fn set<F>(entry: &mut Entry<F>, vector: usize) -> &mut EntryOptions {
    unsafe extern "C" {
        static trap_stubs: [[u8; 16]; 16];
    }
    // SAFETY: only the address is taken.
    let stub = unsafe { &raw const trap_stubs[vector] };
    // SAFETY: the stub saves all registers, handles the vector's error code and ends with IRETQ.
    unsafe { entry.set_handler_addr(VirtAddr::from_ptr(stub)) }
}

fn with_stack(options: &mut EntryOptions, index: u16) {
    // SAFETY: `init` gives each processor a stack for each of the three indices, and traps that nest share none.
    unsafe { options.set_stack_index(index) };
}

/// Size of the NMI stack, as usual for a kernel's interrupt stack.
const NMI_STACK: u64 = 16 << 10;
/// Size of the exception stacks, on which a panic prints.
const STACK: u64 = 32 << 10;

/// The bytes of the NMI stack in use when the handler is called: registers pushed by the processor and the stub, and
/// the SSE registers.
pub const STUB: usize = size_of::<Frame>() + 512 + 32;

/// Maximum number of processors that [`nmi_stack_used`] supports.
const PROCESSORS: usize = 16;

static NMI_STACKS: [Once<Stack>; PROCESSORS] = [const { Once::new() }; PROCESSORS];

/// Returns the maximum number of bytes of its NMI stack that this processor has used.
pub fn nmi_stack_used() -> Option<usize> {
    NMI_STACKS.get(processors::this())?.get().map(|stack| stack.used() as usize)
}

/// A processor's own tables. They are never dropped.
struct Tables {
    tss: TaskStateSegment,
    gdt: GlobalDescriptorTable,
}

/// Sets up the tables and stacks of this processor, which has this number.
pub(crate) fn init(number: usize) {
    let memory = frames::allocate(size_of::<Tables>() as u64, 4096).expect("memory");
    let tables = VirtAddr::new(PHYSICAL_MEMORY_OFFSET + memory).as_mut_ptr::<Tables>();
    let nmi = Stack::new(NMI_STACK);
    if let Some(place) = NMI_STACKS.get(number) {
        place.call_once(|| nmi);
    }
    let mut tss = TaskStateSegment::new();
    for (index, stack) in [Stack::new(STACK), nmi, Stack::new(STACK)].into_iter().enumerate() {
        tss.interrupt_stack_table[index] = stack.top();
    }
    // SAFETY: the memory is large enough, aligned and used for nothing else.
    unsafe { tables.write(Tables { tss, gdt: GlobalDescriptorTable::new() }) };
    // SAFETY: the value was just written, and nothing else refers to it.
    let Tables { tss, gdt } = unsafe { &mut *tables };
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    let task = gdt.append(Descriptor::tss_segment(tss));
    gdt.load();
    // SAFETY: a code segment of the table that was just loaded.
    unsafe { CS::set_reg(code) };
    // SAFETY: a writable data segment of that table.
    unsafe { SS::set_reg(data) };
    // SAFETY: the segment of a TSS that lives as long as the kernel.
    unsafe { load_tss(task) };
    IDT.load();
}

global_asm!(
    r#"
    .section .text.traps, "ax"
    .align 16
    .global trap_stubs
trap_stubs:
    .set vector, 0
    .rept 16
    .align 16
    // Vectors whose error code the processor pushes itself.
    .if vector == 8 || (vector >= 10 && vector <= 14)
    .else
    pushq $0
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
    .endr

    .type trap_common, @function
trap_common:
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
    movq %rsp, %rbp
    movq %rsp, %rdi
    // Code for a hosted target uses SSE registers.
    subq $512, %rsp
    andq $-16, %rsp
    fxsave64 (%rsp)
    call {trap}
    fxrstor64 (%rsp)
    movq %rbp, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp
    iretq
    .size trap_common, . - trap_common
    "#,
    trap = sym trap,
    options(att_syntax),
);
