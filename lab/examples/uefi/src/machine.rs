//! The parts of a PC that the kernel needs before tracing: its own file in memory, frames, the serial port, the end.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use pelite::pe64::{Pe, PeView};
use uart_16550::{Config, Uart16550Tty};
use uefi::boot::{self, AllocateType, MemoryType};
use uefi::proto::loaded_image::LoadedImage;
use x86_64::PhysAddr;
use x86_64::instructions::{hlt, interrupts, port::Port};
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

/// Prints a line to the first serial port.
#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => { $crate::machine::print(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// Prints text.
pub fn print(text: fmt::Arguments<'_>) {
    // SAFETY: the first serial port, which nothing else uses.
    if let Ok(mut port) = unsafe { Uart16550Tty::new_port(0x3f8, Config::default()) } {
        // Writing to the port does not fail.
        let _ = port.write_fmt(text);
    }
}

/// Assigns the instructions from here on to trace session `session`; 0 means none. The port is the monitor's, which
/// logs retired instructions; elsewhere it is unused.
pub fn mark_truth(session: u32) {
    // SAFETY: the port is unused, or the monitor's, which only records the number.
    unsafe { Port::<u32>::new(0xe700).write(session) };
}

/// Ends the machine through QEMU's `isa-debug-exit` device; without it, halts.
pub fn exit(success: bool) -> ! {
    // SAFETY: the port is the debug-exit device's or unused; writing it touches no memory.
    unsafe { Port::<u32>::new(0xf4).write(if success { 0x10 } else { 0x11 }) };
    loop {
        interrupts::disable();
        hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("{info}");
    exit(false)
}
