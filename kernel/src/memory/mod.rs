//! The embedding kernel's physical memory, which the driver allocates through [`Frames`].
//!
//! # Memory that the processor writes
//!
//! Packets, records and the fields of the DS save area are written by the processor, which no compiler sees. The rule
//! for all of it, here and in [`intel::ds`](crate::intel::ds):
//!
//! - Such memory is reached through raw pointers. A reference to a part of it lasts only while the unit is halted and
//!   the session is borrowed; only `Halted` lets the driver make one.
//! - What is read while the unit records (an index, a threshold) is read volatile, and so is what this code wrote
//!   before and asks for again (guard bytes). What the processor reads (ToPA entries, fields) is written volatile.
//! - **After the write that halts the unit comes a full fence, and then the first read.** Clearing TraceEn flushes the
//!   packets that the processor has buffered, but a store, fence or serializing instruction may be needed until they
//!   are globally observed. The halt executes the fence also where the unit was found off.
//! - **Before the write that starts the unit comes a full fence**: tables, fields and cleared memory are written before
//!   the processor reads them.
//! - WRMSR is a barrier to the compiler in both implementations of [`arch`](crate::arch) (it may access memory); RDMSR
//!   is not, and no order between it and memory is relied on without a fence.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Disabling Packet Generation"; Debug, Branch Profile, TSC, "BTS and DS
//! Save Area".

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
