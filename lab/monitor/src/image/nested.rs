//! Changes in the nested page tables while the guest runs: for one instruction a hole in physical memory reads as all
//! ones, or receives a write that is discarded, and the pages of a stretch's instructions are read-only while the
//! stretch executes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use pugmark_monitor::guest_map::{
    ENTRIES, LARGE, LARGE_PAGE, LINK, NO_MEMORY, PAGE, PageTable, READ_ONLY, WRITABLE, index_at,
};

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

/// The content of a page without memory: all ones.
#[repr(C, align(4096))]
pub(crate) struct HolePage([u8; PAGE as usize]);

impl HolePage {
    pub(crate) const NEW: Self = Self([0xff; PAGE as usize]);
}

/// One processor's nested tables.
pub(crate) struct Nested {
    root: u64,
    /// The page that the guest reads in all holes.
    hole: u64,
    /// The page that receives the guest's writes to holes; all ones between two instructions.
    scratch: Box<HolePage>,
    /// The entries that map that page.
    opened: Vec<*mut u64>,
    /// The entries that are write-protected.
    protected: Vec<*mut u64>,
}

// SAFETY: the tables that the pointers lead to belong to one processor, which owns this value.
unsafe impl Send for Nested {}

impl Nested {
    /// Makes the nested tables. `root` is the address of tables that live forever and that nothing else changes, except
    /// the local APIC's entry; `hole` is the address of a page of all ones.
    pub(crate) fn new(root: u64, hole: u64) -> Self {
        Self { root, hole, scratch: Box::new(HolePage::NEW), opened: Vec::new(), protected: Vec::new() }
    }

    /// Lets the next instruction read from a page without memory, or write to it. Returns `false` if something is
    /// mapped at `address`.
    pub(crate) fn open_hole(&mut self, address: u64, write: bool) -> bool {
        let scratch = &raw const *self.scratch as u64;
        let Some((entry, _)) = self.leaf(address) else { return false };
        // SAFETY: see `leaf`.
        let found = unsafe { entry.read() };
        // The walk sets the accessed bit, and may set the dirty bit.
        let found = found & !(ACCESSED | DIRTY);
        let readable = self.hole | READ_ONLY;
        if found != NO_MEMORY && !(write && found == readable) {
            return false;
        }
        // SAFETY: as above.
        unsafe { entry.write(if write { scratch | LINK } else { readable }) };
        self.opened.push(entry);
        true
    }

    /// Returns whether the next instruction may access a page without memory.
    pub(crate) fn hole_is_open(&self) -> bool {
        !self.opened.is_empty()
    }

    /// Discards writes to pages without memory. The next access to them exits; if `readable`, only a write.
    pub(crate) fn close_holes(&mut self, readable: bool) {
        let closed = if readable { self.hole | READ_ONLY } else { NO_MEMORY };
        for entry in self.opened.drain(..) {
            // SAFETY: see `leaf`.
            unsafe { entry.write(closed) };
        }
        self.scratch.0.fill(0xff);
    }

    /// Makes the pages at these addresses read-only, until [`Self::unprotect`].
    pub(crate) fn protect(&mut self, addresses: impl Iterator<Item = u64>) {
        let mut last = None;
        for page in addresses.map(|address| address & !(PAGE - 1)) {
            if last.replace(page) == Some(page) {
                continue;
            }
            let Some((mut entry, large)) = self.leaf(page) else { continue };
            if large {
                entry = split(entry, page);
            }
            // SAFETY: see `leaf`.
            let found = unsafe { entry.read() };
            if found & WRITABLE != 0 {
                // SAFETY: as above.
                unsafe { entry.write(found & !WRITABLE) };
                self.protected.push(entry);
            }
        }
    }

    /// Makes the pages writable again.
    pub(crate) fn unprotect(&mut self) {
        for entry in self.protected.drain(..) {
            // SAFETY: see `leaf`.
            let found = unsafe { entry.read() };
            // SAFETY: as above.
            unsafe { entry.write(found | WRITABLE) };
        }
    }

    /// Returns the entry that maps `address`, and `true` if it maps 2 MiB; `None` if nothing is mapped.
    ///
    /// The result can be read and written: all tables live forever at identity-mapped addresses, and only this
    /// processor changes them, while its guest does not run.
    fn leaf(&self, address: u64) -> Option<(*mut u64, bool)> {
        let mut table = self.root as *mut u64;
        for level in (1..=4).rev() {
            // SAFETY: the index is below the number of a table's entries.
            let entry = unsafe { table.add(index_at(address, level)) };
            // SAFETY: for the table see above.
            let found = unsafe { entry.read() };
            if found == 0 {
                return None;
            }
            if level == 1 || found & LARGE != 0 {
                return Some((entry, level != 1));
            }
            table = (found & !(PAGE - 1)) as *mut u64;
        }
        None
    }
}

/// Replaces the large page that `entry` maps by a table of small pages, and returns the entry of `page` in it.
fn split(entry: *mut u64, page: u64) -> *mut u64 {
    let table: &'static mut PageTable = Box::leak(Box::new(PageTable::EMPTY));
    let start = page & !(LARGE_PAGE - 1);
    for (index, small) in table.0.iter_mut().enumerate() {
        *small = (start + index as u64 * PAGE) | LINK;
    }
    let address = &raw const *table as u64;
    // SAFETY: see `Nested::leaf`.
    unsafe { entry.write(address | LINK) };
    &raw mut table.0[index_at(page, 1) % ENTRIES]
}
