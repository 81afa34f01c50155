//! The embedding kernel's physical memory, which the driver allocates through [`Frames`].
//!
//! # Memory that the processor writes
//!
//! The processor writes packets, records and the fields of the DS save area, which no compiler sees. The rules for all
//! such memory, here and in [`intel::ds`](crate::intel::ds):
//!
//! - Such memory is reached through raw pointers. A reference to a part of it lasts only while the unit is halted and
//!   the session is borrowed; only `Halted` lets the driver make one.
//! - Reads are volatile for values that are read while the unit records (an index, a threshold) and for those that this
//!   code wrote before (guard bytes). Writes of values that the processor reads (ToPA entries, fields) are volatile.
//! - **After the write that halts the unit comes a full fence, and then the first read.** Clearing TraceEn flushes the
//!   packets that the processor has buffered, but a store, fence or serializing instruction may be needed until they
//!   are globally observed. The halt executes the fence also if the unit was found off.
//! - **Before the write that starts the unit comes a full fence**: tables, fields and cleared memory are written before
//!   the processor reads them.
//! - WRMSR is a barrier to the compiler in both implementations of [`arch`](crate::arch) (it may access memory); RDMSR
//!   is none, and without a fence nothing relies on an order between it and memory accesses.
//!
//! ```
//! use core::ptr::NonNull;
//! use pugmark_kernel::memory::{Frames, PhysAddr, Request};
//!
//! /// Pages that the kernel has set aside; physical memory is mapped at an offset.
//! struct Reserved { pages: core::cell::Cell<(u64, u64)>, offset: u64 }
//!
//! // SAFETY: each page is given out once and never again; the kernel has mapped it, write-back.
//! unsafe impl Frames for Reserved {
//!     fn allocate(&self, request: Request) -> Option<PhysAddr> {
//!         let (start, end) = self.pages.get();
//!         let address = start.next_multiple_of(request.align);
//!         let after = address + request.size;
//!         (after <= end.min(request.limit)).then(|| self.pages.set((after, end)))?;
//!         Some(PhysAddr::new(address))
//!     }
//!     unsafe fn free(&self, _: PhysAddr, _: Request) {}
//!     fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
//!         NonNull::new((self.offset + address.as_u64()) as *mut u8).expect("the offset is not 0")
//!     }
//! }
//!
//! let memory = Reserved { pages: (0x1000, 0x8000).into(), offset: 0xffff_8000_0000_0000 };
//! let request = Request { size: 0x4000, align: 0x4000, limit: 1 << 39 };
//! assert_eq!(memory.allocate(request), Some(PhysAddr::new(0x4000)));
//! assert_eq!(memory.allocate(request), None);
//! ```
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Disabling Packet Generation"; Debug, Branch Profile, TSC, "BTS and DS
//! Save Area".

mod shared;

use core::ptr::NonNull;
pub(crate) use shared::SharedBytes;
pub use x86_64::PhysAddr;

/// An allocator of memory that the processor writes to, mapped for the driver.
///
/// # Safety
///
/// - [`Frames::allocate`] must return RAM that nothing else uses until it is freed, with the requested size and
///   alignment and below the requested limit.
/// - [`Frames::pointer`] must return a mapping of the whole block, readable and writable, that stays valid until the
///   block is freed. Its memory type must be write-back.
/// - A block belongs to the holder of its address until it is freed, and not to the value that allocated it: moving,
///   dropping or forgetting that value does not affect the block. If a unit cannot be halted, the driver forgets the
///   value and its blocks, because the processor may still write to them.
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

    /// Returns the mapping of the block at `address`, which [`Frames::allocate`] returned.
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

/// The requirements on a block of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Size in bytes; a multiple of 4 KiB.
    pub size: u64,
    /// The address must be a multiple of this power of two.
    pub align: u64,
    /// The block must end at or below this physical address, which MAXPHYADDR dictates.
    pub limit: u64,
}
