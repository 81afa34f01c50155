//! Memory for branch records and samples, which the processor writes through the page tables.

use core::ptr::NonNull;
use pugmark_kernel::intel::ds::{LinearMemory, LinearPage, LinearRequest, MemoryType};
use x86_64::VirtAddr;
use x86_64::structures::paging::PageTableFlags as Flags;

use crate::arch::{memory, paging};

/// The kernel's free memory, at the addresses where it is mapped: one to one, in every address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelLinear;

// SAFETY: blocks come from free memory and belong to the caller alone until they are given back. All memory is always
// mapped one to one, in the part that all address spaces share. The list of address spaces is complete, and each answer
// comes from a new walk of the tables.
unsafe impl LinearMemory for KernelLinear {
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr> {
        let start = memory::take(request.size, 4096)?;
        if request.limit.is_some_and(|limit| start + request.size > limit) {
            memory::give_back(start, request.size);
            return None;
        }
        Some(VirtAddr::new(start))
    }

    unsafe fn free(&self, address: VirtAddr, request: LinearRequest) {
        memory::give_back(address.as_u64(), request.size);
    }

    fn pointer(&self, address: VirtAddr) -> NonNull<u8> {
        memory::pointer(address.as_u64()).expect("a block that was allocated")
    }

    fn spaces(&self) -> usize {
        paging::spaces()
    }

    fn page(&self, space: usize, address: VirtAddr) -> Option<LinearPage> {
        let (frame, flags) = paging::walk(space, address)?;
        Some(LinearPage {
            frame,
            flags,
            memory_type: match flags.intersects(Flags::NO_CACHE | Flags::WRITE_THROUGH) {
                // No memory of the kernel is mapped this way.
                true => MemoryType::Uncacheable,
                false => MemoryType::WriteBack,
            },
            holds_code: !flags.contains(Flags::NO_EXECUTE),
            pageable: false,
        })
    }
}
