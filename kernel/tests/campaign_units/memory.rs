//! The machine's memory, owned by the blocks allocated in it.

use crate::common::Ram;
use pugmark_kernel::intel::ds::{LinearMemory, LinearPage, LinearRequest};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};
use std::ptr::NonNull;
use std::rc::Rc;
use x86_64::VirtAddr;

#[derive(Clone, Debug)]
pub(super) struct Shared(pub(super) Rc<Ram>);

// SAFETY: as `Ram`.
unsafe impl Frames for Shared {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        Frames::allocate(&*self.0, request)
    }
    unsafe fn free(&self, address: PhysAddr, request: Request) {
        // SAFETY: the caller promises the same.
        unsafe { Frames::free(&*self.0, address, request) }
    }
    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        Frames::pointer(&*self.0, address)
    }
}

// SAFETY: as `Ram`.
unsafe impl LinearMemory for Shared {
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr> {
        LinearMemory::allocate(&*self.0, request)
    }
    unsafe fn free(&self, address: VirtAddr, request: LinearRequest) {
        // SAFETY: the caller promises the same.
        unsafe { LinearMemory::free(&*self.0, address, request) }
    }
    fn pointer(&self, address: VirtAddr) -> NonNull<u8> {
        LinearMemory::pointer(&*self.0, address)
    }
    fn spaces(&self) -> usize {
        self.0.spaces()
    }
    fn page(&self, space: usize, address: VirtAddr) -> Option<LinearPage> {
        self.0.page(space, address)
    }
}
