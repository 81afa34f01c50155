//! Stacks with an unmapped page below each, so that an overflow is an exception and overwrites nothing.

use crate::{PHYSICAL_MEMORY_OFFSET, frames};
use core::slice;
use spin::Mutex;
use x86_64::VirtAddr;
use x86_64::instructions::tlb;
use x86_64::registers::control::Cr3;
use x86_64::structures::paging::{PageTable, PageTableFlags};

const PAGE: u64 = 4096;
const PRESENT: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE);

/// Fills a stack that was not used yet.
const PAINT: u8 = 0xa5;

/// A stack, which is never given back.
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

    /// Returns how many bytes at most were in use at one time.
    pub(crate) fn used(self) -> u64 {
        // SAFETY: the memory is this stack's and mapped. It is read where nothing runs on it.
        let bytes = unsafe { slice::from_raw_parts(self.bottom as *const u8, self.size as usize) };
        let unused = bytes.iter().take_while(|byte| **byte == PAINT).count();
        self.size - unused as u64
    }
}

/// Returns whether a page fault at this address is the overflow of a stack.
pub(crate) fn is_below_a_stack(address: u64) -> bool {
    GUARDS.lock().contains(&(address & !(PAGE - 1)))
}

/// The addresses of the pages below stacks; 0 where there is none yet.
static GUARDS: Mutex<[u64; 32]> = Mutex::new([0; 32]);

/// Unmaps a page of the window at [`PHYSICAL_MEMORY_OFFSET`], which the entry code has mapped by 2 MiB pages.
fn unmap(address: u64) {
    let mut guards = GUARDS.lock();
    let free = guards.iter_mut().find(|guard| **guard == 0).expect("room for one more stack");
    *free = address;
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
    // Other processors have not used the page.
    tlb::flush_all();
}

/// The page table at this physical address.
fn table(physical: u64) -> &'static mut PageTable {
    // SAFETY: the tables are where the entry code and `unmap` have put them, and only this module changes them, one
    // processor at a time because the lock is held.
    unsafe { &mut *((PHYSICAL_MEMORY_OFFSET + physical) as *mut PageTable) }
}
