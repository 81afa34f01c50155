//! The memory that Limine gives the kernel.

use limine::BaseRevision;
use limine::memory_map::EntryType;
use limine::request::{HhdmRequest, MemoryMapRequest, StackSizeRequest};
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, PhysFrame, Size4KiB};

#[used]
#[unsafe(link_section = ".requests")]
static REVISION: BaseRevision = BaseRevision::with_revision(2);
#[used]
#[unsafe(link_section = ".requests")]
static OFFSET: HhdmRequest = HhdmRequest::new();
#[used]
#[unsafe(link_section = ".requests")]
static MEMORY: MemoryMapRequest = MemoryMapRequest::new();
#[used]
#[unsafe(link_section = ".requests")]
static STACK: StackSizeRequest = StackSizeRequest::new().with_size(256 << 10);

unsafe extern "C" {
    /// The first byte of the kernel's code, and the one after the last: symbols of the linker.
    pub static __text_start: u8;
    pub static __text_end: u8;
}

/// Returns the offset at which physical memory is mapped.
pub fn offset() -> u64 {
    assert!(REVISION.is_supported(), "this Limine is too old");
    OFFSET.get_response().expect("the offset").offset()
}

/// The frames of usable memory.
pub struct UsableFrames(u64);

impl UsableFrames {
    /// Returns the frames from the first one on.
    pub fn new() -> Self {
        Self(0)
    }
}

// SAFETY: each frame is usable, and is given out once.
unsafe impl FrameAllocator<Size4KiB> for UsableFrames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let entries = MEMORY.get_response()?.entries().iter();
        let usable = entries.filter(|entry| entry.entry_type == EntryType::USABLE);
        let frames = usable.flat_map(|entry| (entry.base..entry.base + entry.length).step_by(4096));
        // Frame 0 has no address in a pool without an offset.
        let frame = frames.into_iter().find(|&frame| frame > self.0)?;
        self.0 = frame;
        Some(PhysFrame::containing_address(PhysAddr::new(frame)))
    }
}
