//! Stacks with an unmapped page below each, so that an overflow faults and overwrites nothing.

use crate::{PHYSICAL_MEMORY_OFFSET, frames};
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;
use x86_64::VirtAddr;
use x86_64::instructions::tlb;
use x86_64::registers::control::Cr3;
use x86_64::structures::paging::{PageTable, PageTableFlags};

const PAGE: u64 = 4096;
const PRESENT: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE);

/// Fills a stack that has not been used yet.
const PAINT: u8 = 0xa5;

/// A stack, never freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    bottom: u64,
    size: u64,
}

impl Stack {
    /// Allocates a stack of this many bytes, a multiple of 4096.
    pub(crate) fn new(size: u64) -> Self {
        let bottom = PHYSICAL_MEMORY_OFFSET + frames::allocate(PAGE + size, PAGE).expect("memory") + PAGE;
        // SAFETY: the memory was just allocated, and is mapped there.
        unsafe { (bottom as *mut u8).write_bytes(PAINT, size as usize) };
        unmap(bottom - PAGE);
        Self { bottom, size }
    }

    pub(crate) const fn top(self) -> VirtAddr {
        VirtAddr::new(self.bottom + self.size)
    }

    /// Returns the maximum number of bytes in use at one time.
    pub(crate) fn used(self) -> u64 {
        // SAFETY: the memory is this stack's and mapped. It is read while nothing runs on it.
        let bytes = unsafe { slice::from_raw_parts(self.bottom as *const u8, self.size as usize) };
        let unused = bytes.iter().take_while(|byte| **byte == PAINT).count();
        self.size - unused as u64
    }
}

/// Unmaps the page below the stack on which the kernel was entered.
pub(crate) fn guard_boot_stack() {
    unmap(pugmark_machine::entry::guard());
}

/// Returns whether a page fault at this address is a stack overflow. It takes no lock: the code that faulted may hold
/// any.
pub(crate) fn is_below_a_stack(address: u64) -> bool {
    GUARDS.iter().any(|guard| guard.load(Ordering::Acquire) == address & !(PAGE - 1))
}

/// The addresses of the pages below stacks; 0 where there is none yet.
static GUARDS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Held by the processor that changes the page tables.
static TABLES: Mutex<()> = Mutex::new(());

/// Unmaps a page that the entry code has mapped as part of a 2 MiB page, either at its own address or in the window at
/// [`PHYSICAL_MEMORY_OFFSET`], which shares the tables.
fn unmap(address: u64) {
    let _changing = TABLES.lock();
    let is_free = |guard: &&AtomicU64| guard.load(Ordering::Relaxed) == 0;
    GUARDS.iter().find(is_free).expect("room for one more stack").store(address, Ordering::Release);
    let address = VirtAddr::new(address);
    let pointers = table(table(Cr3::read().0.start_address().as_u64())[address.p4_index()].addr().as_u64());
    let entry = &mut table(pointers[address.p3_index()].addr().as_u64())[address.p2_index()];
    if entry.flags().contains(PageTableFlags::HUGE_PAGE) {
        let pages = frames::allocate(PAGE, PAGE).expect("memory");
        for (number, page) in table(pages).iter_mut().enumerate() {
            page.set_addr(entry.addr() + PAGE * number as u64, PRESENT);
        }
        entry.set_addr(x86_64::PhysAddr::new(pages), PRESENT);
    }
    table(entry.addr().as_u64())[address.p1_index()].set_unused();
    // Other processors have not used the page yet.
    tlb::flush_all();
}

/// Returns the page table at this physical address.
fn table(physical: u64) -> &'static mut PageTable {
    // SAFETY: the tables are where the entry code and `unmap` have put them, and only this module changes them, one
    // processor at a time because the lock is held.
    unsafe { &mut *((PHYSICAL_MEMORY_OFFSET + physical) as *mut PageTable) }
}
