//! The information that a boot loader passes to the kernel: memory, the command line, the first module.

mod info;
mod multiboot2;
mod physical;
mod pvh;

pub use info::BootInfo;
pub use multiboot2::MAGIC as MULTIBOOT2_MAGIC;
pub use physical::Physical;

/// Reads the information from a boot loader; `eax` and `ebx` are the registers at the entry point.
///
/// Returns `None` if they do not point to a known structure.
pub fn read(memory: &impl Physical, eax: u32, ebx: u32) -> Option<BootInfo> {
    if eax == MULTIBOOT2_MAGIC { multiboot2::read(memory, ebx.into()) } else { pvh::read(memory, ebx.into()) }
}
