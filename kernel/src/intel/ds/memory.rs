//! Linear memory of the embedding kernel: the processor writes to the DS save area through page tables.

use core::ptr::NonNull;
pub use x86_64::structures::paging::PageTableFlags;
pub use x86_64::{PhysAddr, VirtAddr};

/// An allocator of memory that the processor writes to through the page tables that CR3 selects.
///
/// # Safety
///
/// - [`LinearMemory::allocate`] must return RAM that nothing else uses until it is freed, with the requested size and
///   alignment and below the requested limit, mapped at consecutive linear addresses.
/// - The result of [`LinearMemory::page`] must stay true until the block is freed, in every address space that
///   [`LinearMemory::spaces`] counts, and that method must count each address space that can be in CR3 while the
///   processor traces. Those of a guest in VMX non-root operation cannot be counted: around a VM entry the recording is
///   off ([`DsRunning::run_guest`](super::DsRunning::run_guest)).
/// - [`LinearMemory::pointer`] must return a mapping of the whole block, readable and writable, that stays valid until
///   the block is freed.
pub unsafe trait LinearMemory {
    /// Allocates linear memory that is present and writable, or returns `None` if there is none.
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr>;

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// `address` must come from [`LinearMemory::allocate`] with the same request and be freed once. From then on
    /// neither software nor the processor may use the block.
    unsafe fn free(&self, address: VirtAddr, request: LinearRequest);

    /// Returns the driver's mapping of the block at `address`, which [`LinearMemory::allocate`] returned.
    fn pointer(&self, address: VirtAddr) -> NonNull<u8>;

    /// Returns the number of address spaces that can be in CR3 while the processor traces. With page-table isolation a
    /// process has two, and the one that runs user code counts as well.
    fn spaces(&self) -> usize;

    /// Returns the mapping of the page with `address` in an address space; `None` if the page is not present there.
    fn page(&self, space: usize, address: VirtAddr) -> Option<LinearPage>;

    /// Returns whether the processor could mask address bit 20 (A20M#) while it traces. On current platforms it cannot.
    fn a20m(&self) -> bool {
        false
    }
}

// SAFETY: the reference forwards every call to the implementation that it refers to.
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

/// The requirements on a block of linear memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearRequest {
    /// Size in bytes; a multiple of 4 KiB.
    pub size: u64,
    /// The block must end at or below this linear address, if there is such a limit.
    pub limit: Option<u64>,
}

/// The mapping of a page of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPage {
    /// The physical address of its first byte.
    pub frame: PhysAddr,
    /// The combined flags of all levels of the page tables: for example, writable only if each level is writable.
    pub flags: PageTableFlags,
    /// The effective memory type that results from PAT, MTRRs and the entry's bits.
    pub memory_type: MemoryType,
    /// True if the frame contains instructions that may be executed, at this or any other linear address.
    pub holds_code: bool,
    /// True if the kernel may unmap the page: by paging out, or because it fills in page tables lazily.
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
