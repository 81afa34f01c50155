//! Page tables: memory mapped one to one, the image by its sections, and address spaces with a user part.
//!
//! The lowest part (PML4 entry 0) is the same in all address spaces. User level can access the image's code and
//! constants, so that the same functions run at both levels; it cannot access the image's data and the rest of memory.

use alloc::vec::Vec;
use spin::Mutex;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::mapper::{MapToError, Translate, TranslateResult};
use x86_64::structures::paging::page_table::PageTableLevel;
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageSize, PageTable, PageTableFlags as Flags, PhysFrame,
    Size2MiB, Size4KiB,
};
use x86_64::{PhysAddr, VirtAddr};

use super::memory::ZeroedFrames;
use super::{apic, image, memory, stack};
use pugmark_machine::entry;

/// The start of an address space's own part: PML4 entry 1.
pub(crate) const USER_BASE: u64 = 0x80_0000_0000;
/// The pages that are absent until touched ("demand pages"): PML4 entry 2, first created by the kernel's address space.
pub(crate) const DEMAND_BASE: u64 = 0x100_0000_0000;
/// Number of demand pages.
pub(crate) const DEMAND_PAGES: u64 = 16;

/// The roots of all address spaces; the kernel's is the first.
static SPACES: Mutex<Vec<PhysFrame>> = Mutex::new(Vec::new());

const PARENTS: Flags = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USER_ACCESSIBLE);
const DEMAND_FLAGS: Flags = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::NO_EXECUTE);

/// An address space, by its top page table: the kernel's part and pages of its own.
#[derive(Debug)]
pub(crate) struct PageTableRoot {
    root: PhysFrame,
}

impl PageTableRoot {
    /// Makes an address space that has only the kernel's part.
    pub(crate) fn new() -> Option<Self> {
        let root = ZeroedFrames.allocate_frame()?;
        let entries = root.start_address().as_u64() as *mut PageTable;
        // SAFETY: the frame was just allocated, zeroed, and is mapped one to one; zeroes are a page table.
        let entries = unsafe { &mut *entries };
        let (current, _) = Cr3::read();
        // SAFETY: CR3 holds the current root, mapped one to one; nothing writes to it in the meantime.
        let kernel = unsafe { &*(current.start_address().as_u64() as *const PageTable) };
        for index in [0, 2] {
            entries[index] = kernel[index].clone();
        }
        Some(Self::register(root))
    }

    /// Adds the address space to the list of those that CR3 may hold. Address spaces are never destroyed.
    fn register(root: PhysFrame) -> Self {
        SPACES.lock().push(root);
        Self { root }
    }

    /// Maps a new page at `address` (4 KiB aligned, from [`USER_BASE`] on) for user level. It holds `bytes`, followed
    /// by zeroes, and is either executable or writable.
    pub(crate) fn map_user(&mut self, address: u64, bytes: &[u8], executable: bool) -> Option<()> {
        let frame = ZeroedFrames.allocate_frame()?;
        let target = frame.start_address().as_u64() as *mut u8;
        let size = bytes.len().min(4096);
        // SAFETY: the frame belongs to this function alone; the copy is cut to the frame's size.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, size) };
        let access = if executable { Flags::empty() } else { Flags::WRITABLE | Flags::NO_EXECUTE };
        let page = Page::<Size4KiB>::from_start_address(VirtAddr::new(address)).ok()?;
        map(&mut tables(self.root), page, frame, Flags::PRESENT | Flags::USER_ACCESSIBLE | access).ok()
    }

    /// Returns the value of CR3 while this address space is current.
    pub(crate) fn cr3(&self) -> u64 {
        self.root.start_address().as_u64()
    }

    /// Makes this address space current.
    pub(crate) fn enter(&self) {
        // SAFETY: the kernel's part, where this code and its stack are, is the same in all address spaces.
        unsafe { Cr3::write(self.root, Cr3Flags::empty()) };
    }

    /// Returns the current address space.
    pub(crate) fn current() -> Self {
        Self { root: Cr3::read().0 }
    }
}

/// Makes the kernel's own address space and enters it.
///
/// # Panics
/// If there is no memory for the tables.
pub(super) fn init() {
    let root = ZeroedFrames.allocate_frame().expect("memory for the page tables");
    let mut tables = tables(root);
    let image = image::all();
    let small_end = image.end.next_multiple_of(Size2MiB::SIZE);
    // The page at 0 stays absent, so that null pointers fault.
    stack::note_guard(entry::guard());
    for address in (4096..small_end).step_by(4096).filter(|&address| !stack::is_below(address)) {
        let flags = if image::text().contains(&address) {
            Flags::PRESENT | Flags::USER_ACCESSIBLE
        } else if image::rodata().contains(&address) {
            Flags::PRESENT | Flags::USER_ACCESSIBLE | Flags::NO_EXECUTE
        } else {
            Flags::PRESENT | Flags::WRITABLE | Flags::NO_EXECUTE
        };
        identity::<Size4KiB>(&mut tables, address, flags);
    }
    let flags = Flags::PRESENT | Flags::WRITABLE | Flags::NO_EXECUTE;
    // The local APIC's registers may be above memory, or in a hole in it.
    let registers = apic::BASE - apic::BASE % Size2MiB::SIZE;
    let large = (small_end..memory::end()).step_by(Size2MiB::SIZE as usize);
    for address in large.filter(|&address| address != registers) {
        identity::<Size2MiB>(&mut tables, address, flags);
    }
    identity::<Size2MiB>(&mut tables, registers, flags | Flags::NO_CACHE | Flags::WRITE_THROUGH);
    for page in demand_pages() {
        let frame = ZeroedFrames.allocate_frame().expect("memory for the demand pages");
        map(&mut tables, page, frame, DEMAND_FLAGS).expect("the demand pages' tables");
    }
    PageTableRoot::register(root).enter();
}

/// The state in which [`revoke`] leaves a page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Revocation {
    /// The page is absent.
    Absent,
    /// The page can be read but not written.
    ReadOnly,
}

/// A page fault on the revoked page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RevokedFault {
    /// The address.
    pub(crate) address: u64,
    /// The error code.
    pub(crate) code: u64,
}

/// The revoked page with its original flags, and the fault on it.
static REVOKED: Mutex<Option<(u64, Flags)>> = Mutex::new(None);
static REVOKED_FAULT: Mutex<Option<RevokedFault>> = Mutex::new(None);

/// Revokes the page that holds `address` until the first fault there. The page must be in the part that all address
/// spaces share.
///
/// # Panics
/// If the page is not mapped, or there is no memory for a table.
pub(crate) fn revoke(address: u64, revocation: Revocation) {
    split(address);
    let page = Page::<Size4KiB>::containing_address(VirtAddr::new(address));
    let TranslateResult::Mapped { flags, .. } = tables(Cr3::read().0).translate(page.start_address()) else {
        panic!("nothing is mapped at {address:#x}")
    };
    *REVOKED.lock() = Some((page.start_address().as_u64(), flags));
    let revoked = match revocation {
        Revocation::Absent => Flags::PRESENT,
        Revocation::ReadOnly => Flags::WRITABLE,
    };
    set_flags(page, flags - revoked);
}

/// Makes the page below a stack absent forever. Only a processor that is starting calls it, while the others wait.
pub(super) fn give_up(guard: u64) {
    split(guard);
    set_flags(Page::<Size4KiB>::containing_address(VirtAddr::new(guard)), Flags::empty());
}

/// Returns the fault on the revoked page, once.
pub(crate) fn take_revoked_fault() -> Option<RevokedFault> {
    REVOKED_FAULT.lock().take()
}

/// Restores the revoked page if the fault is on it; returns whether it did so.
fn restore(address: u64, code: u64) -> bool {
    let mut revoked = REVOKED.lock();
    let Some((page, flags)) = revoked.filter(|(page, _)| address & !0xfff == *page) else { return false };
    *revoked = None;
    *REVOKED_FAULT.lock() = Some(RevokedFault { address, code });
    set_flags(Page::containing_address(VirtAddr::new(page)), flags);
    true
}

/// Splits a large page that holds `address` into small pages.
fn split(address: u64) {
    let address = VirtAddr::new(address);
    let mut table = Cr3::read().0.start_address();
    for level in [PageTableLevel::Four, PageTableLevel::Three, PageTableLevel::Two] {
        let entries = table.as_u64() as *mut PageTable;
        // SAFETY: this module made the table, mapped one to one; only this processor changes it, and not now.
        let entry = unsafe { &mut (&mut *entries)[address.page_table_index(level)] };
        if entry.flags().contains(Flags::HUGE_PAGE) {
            let frame = ZeroedFrames.allocate_frame().expect("memory for a page table");
            let small = frame.start_address().as_u64() as *mut PageTable;
            // SAFETY: the frame was just allocated, zeroed, and is mapped one to one; zeroes are a page table.
            let small = unsafe { &mut *small };
            for (n, page) in (0..).zip(small.iter_mut()) {
                page.set_addr(entry.addr() + n * 4096, entry.flags() - Flags::HUGE_PAGE);
            }
            entry.set_addr(frame.start_address(), PARENTS | Flags::ACCESSED);
            x86_64::instructions::tlb::flush_all();
            return;
        }
        table = entry.addr();
    }
}

/// Returns the number of address spaces.
pub(crate) fn spaces() -> usize {
    SPACES.lock().len()
}

/// Returns the physical address of the page that holds `address` in an address space, and the flags of all levels
/// combined: writable, user and accessed if every level is; not executable if any level says so.
pub(crate) fn walk(space: usize, address: VirtAddr) -> Option<(PhysAddr, Flags)> {
    let mut table = SPACES.lock().get(space)?.start_address();
    let mut all = Flags::all();
    let mut no_execute = Flags::empty();
    let mut kind = Flags::empty();
    for level in [PageTableLevel::Four, PageTableLevel::Three, PageTableLevel::Two, PageTableLevel::One] {
        let entries = table.as_u64() as *const PageTable;
        // SAFETY: this module made the table, mapped one to one; only this processor changes it, and not now.
        let entry = unsafe { &(&*entries)[address.page_table_index(level)] };
        let flags = entry.flags();
        if !flags.contains(Flags::PRESENT) {
            return None;
        }
        all &= flags;
        no_execute |= flags & Flags::NO_EXECUTE;
        let offset = address.as_u64() & (level.entry_address_space_alignment() - 1);
        if level == PageTableLevel::One || flags.contains(Flags::HUGE_PAGE) {
            kind |= flags & (Flags::DIRTY | Flags::NO_CACHE | Flags::WRITE_THROUGH);
            let both = Flags::PRESENT | Flags::WRITABLE | Flags::USER_ACCESSIBLE | Flags::ACCESSED;
            return Some((entry.addr() + (offset & !0xfff), all & both | no_execute | kind));
        }
        table = entry.addr();
    }
    None
}

/// Makes the demand pages absent.
pub(crate) fn forget_demand_pages() {
    for page in demand_pages() {
        set_flags(page, DEMAND_FLAGS - Flags::PRESENT);
    }
}

/// Repairs a page fault at `address` with this error code, if it is on a demand page or on the revoked page. Returns
/// which of them it was; `None` if neither.
pub(super) fn repair(address: u64, code: u64) -> Option<FaultCause> {
    if restore(address, code) {
        return Some(FaultCause::RevokedPage);
    }
    let page = Page::containing_address(VirtAddr::new_truncate(address));
    let on_demand = address >= DEMAND_BASE && address - DEMAND_BASE < DEMAND_PAGES * 4096;
    if on_demand {
        set_flags(page, DEMAND_FLAGS);
        return Some(FaultCause::DemandPage);
    }
    None
}

/// The page on which a page fault was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultCause {
    /// A demand page.
    DemandPage,
    /// The page revoked by [`revoke`].
    RevokedPage,
}

fn demand_pages() -> impl Iterator<Item = Page> {
    (0..DEMAND_PAGES).map(|index| Page::containing_address(VirtAddr::new(DEMAND_BASE + index * 4096)))
}

fn set_flags(page: Page, flags: Flags) {
    let (root, _) = Cr3::read();
    // SAFETY: no page moves. The page is missing only for those that expect it: the users of a demand page, or the
    // processor's tracing hardware for a revoked page.
    let change = unsafe { tables(root).update_flags(page, flags) };
    if let Ok(flush) = change {
        flush.flush();
    }
}

/// Returns the first two bytes of the kernel's instruction at `address`.
pub(super) fn code_at(address: u64) -> Option<[u8; 2]> {
    let offset = usize::try_from(address.checked_sub(image::text().start)?).ok()?;
    image::text_bytes().get(offset..)?.first_chunk().copied()
}

fn tables(root: PhysFrame) -> OffsetPageTable<'static> {
    let entries = root.start_address().as_u64() as *mut PageTable;
    // SAFETY: this module made the root, mapped one to one. Only one such reference is used at a time: there is one
    // CPU, and the page fault handler makes one only for faults outside this module.
    let entries = unsafe { &mut *entries };
    // SAFETY: the tables are those of `root`, and all memory is mapped with the offset 0.
    unsafe { OffsetPageTable::new(entries, VirtAddr::new(0)) }
}

fn identity<S: PageSize + core::fmt::Debug>(tables: &mut OffsetPageTable<'static>, address: u64, flags: Flags)
where
    OffsetPageTable<'static>: Mapper<S>,
{
    let page = Page::<S>::containing_address(VirtAddr::new(address));
    let frame = PhysFrame::containing_address(PhysAddr::new(address));
    map(tables, page, frame, flags).expect("memory for the page tables");
}

fn map<S: PageSize + core::fmt::Debug>(
    tables: &mut OffsetPageTable<'static>,
    page: Page<S>,
    frame: PhysFrame<S>,
    flags: Flags,
) -> Result<(), MapToError<S>>
where
    OffsetPageTable<'static>: Mapper<S>,
{
    // SAFETY: either memory is mapped at its own address again, or a new frame at an address that was unused.
    let change = unsafe { tables.map_to_with_table_flags(page, frame, flags, PARENTS, &mut ZeroedFrames) };
    // Absent entries are not cached.
    change.map(|flush| flush.ignore())
}
