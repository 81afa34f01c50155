//! Exceptions and NMIs.
//!
//! Each vector except #GP has a stack of its own, because code for a hosted target uses the red zone below its stack
//! pointer. In the kernel #GP has none, as `pugmark_kernel::arch::GuardedMsr` requires.

use crate::stacks::{self, Stack};
use crate::{PHYSICAL_MEMORY_OFFSET, frames, processors, threads, timer};
use pugmark_kernel::arch::fixup;
pub use pugmark_machine::traps::STUB;
use pugmark_machine::traps::{TrapFrame, stub};
use spin::{LazyLock, Once};
use x86_64::instructions::segmentation::{CS, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::Cr2;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, EntryOptions, InterruptDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

static NMI: Once<fn(u64)> = Once::new();

/// Sets the NMI handler; it is called with the interrupted RIP.
pub fn on_nmi(handler: fn(u64)) {
    NMI.call_once(|| handler);
}

/// Handles every trap. The stubs call it.
#[unsafe(no_mangle)]
extern "C" fn kernel_trap(frame: &mut TrapFrame) {
    match (frame.vector, fixup(frame.rip), NMI.get()) {
        (2, _, Some(handler)) => handler(frame.rip),
        (13, Some(fixup), _) => frame.resume(fixup),
        (vector, ..) if vector == u64::from(timer::TICK) => timer::tick(),
        (vector, ..) if threads::is_switch(vector) => threads::switch(frame),
        (14, ..) if stacks::is_below_a_stack(Cr2::read_raw()) => {
            panic!("a stack has overflowed: {:#x} is below it; {frame:x?}", Cr2::read_raw())
        }
        (vector, ..) => panic!("trap {vector}: {frame:x?}"),
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
    for vector in [threads::TIMER, timer::TICK] {
        with_stack(set(&mut idt[vector], vector), 3);
    }
    with_stack(set(&mut idt[threads::SYSTEM_CALL], threads::SYSTEM_CALL), 3)
        .set_privilege_level(PrivilegeLevel::Ring3);
    idt
});

fn set<F>(entry: &mut Entry<F>, vector: u8) -> &mut EntryOptions {
    // SAFETY: the stub saves all registers, handles the vector's error code and ends with IRETQ.
    unsafe { entry.set_handler_addr(stub(vector)) }
}

fn with_stack(options: &mut EntryOptions, index: u16) -> &mut EntryOptions {
    // SAFETY: `init` gives each processor a stack for each of the four indices, and traps that nest share none.
    unsafe { options.set_stack_index(index) }
}

/// Size of the NMI stack, as usual for a kernel's interrupt stack.
const NMI_STACK: u64 = 16 << 10;
/// Size of the exception stacks, on which a panic prints.
const STACK: u64 = 32 << 10;

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
    let stacks = [Stack::new(STACK), nmi, Stack::new(STACK), Stack::new(STACK)];
    for (index, stack) in stacks.into_iter().enumerate() {
        tss.interrupt_stack_table[index] = stack.top();
    }
    // For #GP of a program.
    tss.privilege_stack_table[0] = Stack::new(STACK).top();
    // SAFETY: the memory is large enough, aligned and used for nothing else.
    unsafe { tables.write(Tables { tss, gdt: GlobalDescriptorTable::new() }) };
    // SAFETY: the value was just written, and nothing else refers to it.
    let Tables { tss, gdt } = unsafe { &mut *tables };
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    threads::set_segments(
        gdt.append(Descriptor::user_code_segment()),
        gdt.append(Descriptor::user_data_segment()),
    );
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
