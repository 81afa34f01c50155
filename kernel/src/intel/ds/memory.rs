//! Linear memory of the embedding kernel: the DS save area is written through page tables.

use core::ptr::NonNull;
use x86_64::structures::paging::PageTableFlags;
use x86_64::{PhysAddr, VirtAddr};

/// Where the driver gets memory that the processor writes to through whatever CR3 is loaded.
///
/// # Safety
///
/// - What [`LinearMemory::allocate`] returns must be RAM that nobody else uses until it is freed, of the size, the
///   alignment and below the limit that the request names, mapped at consecutive linear addresses.
/// - What [`LinearMemory::page`] says must be true from then on until the block is freed, in every address space
///   that it counts, and [`LinearMemory::spaces`] must count each that can be in CR3 while the processor traces.
/// - [`LinearMemory::pointer`] must give a mapping of the whole block, readable and writable, that stays valid until
///   the block is freed.
pub unsafe trait LinearMemory {
    /// Linear memory, present and writable, or `None` where there is none.
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr>;

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// `address` must come from [`LinearMemory::allocate`] with the same request, be freed once, and be used no more,
    /// neither by software nor by the processor.
    unsafe fn free(&self, address: VirtAddr, request: LinearRequest);

    /// How this driver reaches the block at `address`, one that [`LinearMemory::allocate`] returned.
    fn pointer(&self, address: VirtAddr) -> NonNull<u8>;

    /// How many address spaces there are that can be in CR3 while the processor traces. With page-table isolation a
    /// process has two: the one that runs user code counts as well.
    fn spaces(&self) -> usize;

    /// How the page with `address` is mapped in one of them; `None`: it is not present there.
    fn page(&self, space: usize, address: VirtAddr) -> Option<LinearPage>;

    /// Whether the processor could be made to mask address bit 20 (A20M#) while it traces. Current platforms cannot.
    fn a20m(&self) -> bool {
        false
    }
}

// SAFETY: all calls go to the one implementation behind the reference.
unsafe impl<L: LinearMemory> LinearMemory for &L {
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr> {
        (**self).allocate(request)
    }

    unsafe fn free(&self, address: VirtAddr, request: LinearRequest) {
        // SAFETY: the caller promises the same.
        unsafe { (**self).free(address, request) }
    }

    fn pointer(&self, address: VirtAddr) -> NonNull<u8> {
        (**self).pointer(address)
    }

    fn spaces(&self) -> usize {
        (**self).spaces()
    }

    fn page(&self, space: usize, address: VirtAddr) -> Option<LinearPage> {
        (**self).page(space, address)
    }

    fn a20m(&self) -> bool {
        (**self).a20m()
    }
}

/// What a block of linear memory must be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearRequest {
    /// In bytes; a multiple of 4 KiB.
    pub size: u64,
    /// The block must end at or below this linear address, if there is such a limit.
    pub limit: Option<u64>,
}

/// How a page of 4 KiB is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPage {
    /// The physical address of its first byte.
    pub frame: PhysAddr,
    /// Its flags, all levels of the page tables together: writable, say, only where each of them is.
    pub flags: PageTableFlags,
    /// What PAT, MTRRs and the entry's bits make of it.
    pub memory_type: MemoryType,
    /// There are instructions in this frame that may be executed, at this or any other linear address.
    pub holds_code: bool,
    /// The kernel may take the page away, by paging it out or by filling in page tables lazily.
    pub pageable: bool,
}

/// The memory types of PAT and MTRRs.
///
/// Source: SDM vol. 3, Memory Cache Control, "Methods of Caching Available".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryType {
    /// UC.
    Uncacheable,
    /// WC.
    WriteCombining,
    /// WT.
    WriteThrough,
    /// WP.
    WriteProtected,
    /// WB.
    WriteBack,
}
