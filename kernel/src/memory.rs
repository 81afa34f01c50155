//! Physical memory of the embedding kernel.

use core::ptr::NonNull;
use x86_64::PhysAddr;

/// Where the driver gets memory that the processor writes to, and how it reaches it.
///
/// # Safety
///
/// - What [`Frames::allocate`] returns must be RAM that nobody else uses until it is freed, of the size, the
///   alignment and below the limit that the request names.
/// - [`Frames::pointer`] must give a mapping of the whole block, readable and writable, that stays valid until the
///   block is freed; the memory type must be write-back.
pub unsafe trait Frames {
    /// Contiguous physical memory, or `None` where there is none.
    fn allocate(&self, request: Request) -> Option<PhysAddr>;

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// `address` must come from [`Frames::allocate`] with the same request, be freed once, and be used no more,
    /// neither by software nor by the processor.
    unsafe fn free(&self, address: PhysAddr, request: Request);

    /// Where the block at `address`, one that [`Frames::allocate`] returned, is mapped.
    fn pointer(&self, address: PhysAddr) -> NonNull<u8>;
}

// SAFETY: all calls go to the one implementation behind the reference.
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

/// What a block of physical memory must be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// In bytes; a multiple of 4 KiB.
    pub size: u64,
    /// The address must be a multiple of this power of two.
    pub align: u64,
    /// The block must end at or below this physical address: what MAXPHYADDR allows.
    pub limit: u64,
}
