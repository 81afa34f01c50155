//! The embedding kernel's physical memory, which the driver allocates through [`Frames`].

mod shared;

use core::ptr::NonNull;
pub(crate) use shared::SharedBytes;
pub use x86_64::PhysAddr;

/// Allocates memory that the processor writes to, and maps it for the driver.
///
/// # Safety
///
/// - [`Frames::allocate`] must return RAM that nothing else uses until it is freed, with the requested size and
///   alignment and below the requested limit.
/// - [`Frames::pointer`] must return a mapping of the whole block, readable and writable, that stays valid until the
///   block is freed. Its memory type must be write-back.
/// - A block belongs to whoever has its address until it is freed, and not to the value that allocated it: it stays as
///   it is if that value is moved, dropped or forgotten. Where a unit cannot be halted, the driver forgets the value
///   and its blocks, because the processor may still write to them.
pub unsafe trait Frames {
    /// Allocates contiguous physical memory, or returns `None` if there is none.
    fn allocate(&self, request: Request) -> Option<PhysAddr>;

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// `address` must come from [`Frames::allocate`] with the same request and be freed once. From then on neither
    /// software nor the processor may use the block.
    unsafe fn free(&self, address: PhysAddr, request: Request);

    /// Returns where the block at `address` is mapped; [`Frames::allocate`] returned that address.
    fn pointer(&self, address: PhysAddr) -> NonNull<u8>;
}

// SAFETY: the reference forwards every call to the implementation that it refers to.
unsafe impl<F: Frames> Frames for &F {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        (**self).allocate(request)
    }

    unsafe fn free(&self, address: PhysAddr, request: Request) {
        // SAFETY: the caller promises the same.
        unsafe { (**self).free(address, request) }
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        (**self).pointer(address)
    }
}

/// What a block of physical memory must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Size in bytes; a multiple of 4 KiB.
    pub size: u64,
    /// The address must be a multiple of this power of two.
    pub align: u64,
    /// The block must end at or below this physical address, which MAXPHYADDR dictates.
    pub limit: u64,
}
