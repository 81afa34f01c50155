//! The parts of the firmware that the kernel needs before tracing: its own file in memory, and frames.

use pelite::pe64::{Pe, PeView};
use uefi::boot::{self, AllocateType, MemoryType};
use uefi::proto::loaded_image::LoadedImage;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, PhysFrame, Size4KiB};

/// Returns where the firmware has loaded the kernel's file. There must be boot services.
pub fn image() -> *const u8 {
    let image = boot::open_protocol_exclusive::<LoadedImage>(boot::image_handle());
    image.expect("this image").info().0.cast()
}

/// Returns the beginning and the end of the kernel's code.
pub fn text(image: *const u8) -> [*const u8; 2] {
    // SAFETY: the kernel's file is there.
    let sections = unsafe { PeView::module(image.cast()) }.section_headers();
    let text = sections.by_name(".text").expect("code").virtual_range();
    [text.start, text.end].map(|offset| image.wrapping_add(offset as usize))
}

/// Single frames of the firmware, as long as there are boot services.
pub struct FirmwareFrames;

// SAFETY: the firmware gives a page out once.
unsafe impl FrameAllocator<Size4KiB> for FirmwareFrames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let page = boot::allocate_pages(AllocateType::AnyPages, MemoryType::LOADER_DATA, 1).ok()?;
        Some(PhysFrame::containing_address(PhysAddr::new(page.as_ptr().addr() as u64)))
    }
}
