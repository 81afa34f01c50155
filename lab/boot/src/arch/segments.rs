//! The GDT and the TSS.
//!
//! Code compiled for a hosted target uses the red zone below its stack pointer, so a trap must not be delivered on the
//! stack that it interrupts: each has a stack in the TSS's interrupt stack table. Only #GP has none, because the code
//! that it interrupts and returns to has no red zone.

use super::paging;
use super::stack::{self, Stack};
use alloc::boxed::Box;
use spin::LazyLock;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;

/// The stack of the interrupt stack table that a vector uses. Two vectors that can nest do not share a stack.
#[derive(Clone, Copy, Debug)]
pub(super) enum TrapStack {
    Exception,
    Nmi,
    DoubleFault,
    Interrupt,
    SystemCall,
}

static STACKS: [Stack<{ 64 * 1024 }>; 5] = [const { Stack::new() }; 5];

static TSS: LazyLock<TaskStateSegment> = LazyLock::new(|| task(&STACKS));

fn task(stacks: &'static [Stack<{ 64 * 1024 }>; 5]) -> TaskStateSegment {
    let mut tss = TaskStateSegment::new();
    for (index, stack) in stacks.iter().enumerate() {
        stack::note_guard(stack.guard());
        tss.interrupt_stack_table[index] = VirtAddr::new(stack.top());
    }
    // For #GP at user level, which is never expected and causes a panic.
    tss.privilege_stack_table[0] = VirtAddr::new(stacks[TrapStack::Exception as usize].top());
    tss
}

/// The selectors of the GDT, laid out for SYSCALL and SYSRET.
pub(crate) struct Selectors {
    pub(crate) kernel_code: SegmentSelector,
    pub(crate) kernel_data: SegmentSelector,
    pub(crate) user_data: SegmentSelector,
    pub(crate) user_code: SegmentSelector,
    tss: SegmentSelector,
}

static GDT: LazyLock<(GlobalDescriptorTable, Selectors)> = LazyLock::new(|| table(&TSS));

fn table(tss: &'static TaskStateSegment) -> (GlobalDescriptorTable, Selectors) {
    let mut gdt = GlobalDescriptorTable::new();
    // The order of SYSCALL (code, stack) and SYSRET (stack, code).
    let selectors = Selectors {
        kernel_code: gdt.append(Descriptor::kernel_code_segment()),
        kernel_data: gdt.append(Descriptor::kernel_data_segment()),
        user_data: gdt.append(Descriptor::user_data_segment()),
        user_code: gdt.append(Descriptor::user_code_segment()),
        tss: gdt.append(Descriptor::tss_segment(tss)),
    };
    (gdt, selectors)
}

/// Returns the selectors.
pub(crate) fn selectors() -> &'static Selectors {
    &GDT.1
}

/// Loads the first processor's GDT, its segments and the TSS.
pub(super) fn init() {
    load(&GDT);
}

/// Makes another processor's GDT and TSS, never dropped, and loads them.
pub(super) fn init_further() {
    let stacks: &[Stack<_>; 5] = Box::leak(Box::new([const { Stack::new() }; 5]));
    let tss = Box::leak(Box::new(task(stacks)));
    stacks.iter().for_each(|stack| paging::give_up(stack.guard()));
    load(Box::leak(Box::new(table(tss))));
}

fn load((gdt, selectors): &'static (GlobalDescriptorTable, Selectors)) {
    gdt.load();
    // SAFETY: the selector is that of a 64-bit code segment of level 0 in the GDT just loaded.
    unsafe { CS::set_reg(selectors.kernel_code) };
    // SAFETY: the selector is that of a writable data segment of level 0.
    unsafe { SS::set_reg(selectors.kernel_data) };
    // SAFETY: a null selector is allowed in DS in 64-bit mode, where it has no base or limit.
    unsafe { DS::set_reg(SegmentSelector::NULL) };
    // SAFETY: as for DS.
    unsafe { ES::set_reg(SegmentSelector::NULL) };
    // SAFETY: the selector is that of a TSS that is never dropped and was not loaded before.
    unsafe { load_tss(selectors.tss) };
}
