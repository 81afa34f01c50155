//! Loads a guest kernel, and prepares its entry state.

use alloc::vec::Vec;
use core::fmt;

use crate::boot_info::{BootInfo, BootModule, Module};
use crate::elf::{self, Elf};
use crate::guest::GuestMemory;
use crate::guest_map::GuestRam;
use crate::{multiboot, multiboot2, pvh};

/// Guest-physical address of the start info or boot information: below 1 MiB, where kernels are not loaded.
pub const BOOT_INFO_BASE: u64 = 0x8000;
/// The address after the space for the boot information.
pub const BOOT_INFO_END: u64 = 0x1_0000;

/// The entry state of the loaded kernel: 32-bit protected mode, paging off, flat segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryState {
    /// EIP.
    pub entry: u32,
    /// EAX.
    pub eax: u32,
    /// EBX: address of the start info or boot information.
    pub ebx: u32,
}

/// The reason why a kernel cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The file is damaged, or it is not an ELF file and has no multiboot2 header with load addresses.
    Elf(elf::ElfError),
    /// The multiboot2 header requires something that is not supported.
    Multiboot2(multiboot2::Multiboot2Error),
    /// The multiboot header requires something that is not supported.
    Multiboot(multiboot::MultibootError),
    /// The file has neither a PVH note nor a multiboot2 or multiboot header.
    NoProtocol,
    /// A part of the file would be outside the guest's memory, or would overlap the boot information or the modules.
    Place {
        /// Address of the first byte.
        start: u64,
        /// Address after the last byte.
        end: u64,
    },
    /// The entry point is in none of the file's parts, or above 4 GiB.
    Entry(u64),
    /// The boot information does not fit below [`BOOT_INFO_END`].
    BootInfo {
        /// Size of the boot information in bytes.
        bytes: usize,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elf(error) => error.fmt(f),
            Self::Multiboot2(error) => error.fmt(f),
            Self::Multiboot(error) => error.fmt(f),
            Self::NoProtocol => write!(
                f,
                "the file has neither a PVH note nor a multiboot2 or multiboot header, so it is unknown how to enter it"
            ),
            Self::Place { start, end } => write!(
                f,
                "no room for the part at {start:#x}..{end:#x}: it must lie within the guest's RAM, below the \
                 modules at its end and outside {BOOT_INFO_BASE:#x}..{BOOT_INFO_END:#x}"
            ),
            Self::Entry(entry) => write!(f, "the entry point {entry:#x} is in no part of the file"),
            Self::BootInfo { bytes } => write!(
                f,
                "the boot information has {bytes} bytes, {} are the most: the guest's command line is too long",
                BOOT_INFO_END - BOOT_INFO_BASE
            ),
        }
    }
}

impl core::error::Error for LoadError {}

impl From<elf::ElfError> for LoadError {
    fn from(error: elf::ElfError) -> Self {
        Self::Elf(error)
    }
}

impl From<multiboot2::Multiboot2Error> for LoadError {
    fn from(error: multiboot2::Multiboot2Error) -> Self {
        Self::Multiboot2(error)
    }
}

impl From<multiboot::MultibootError> for LoadError {
    fn from(error: multiboot::MultibootError) -> Self {
        Self::Multiboot(error)
    }
}

/// A file that a kernel gets as a module.
#[derive(Clone, Copy, Debug)]
pub struct ModuleFile<'a> {
    /// The content.
    pub bytes: &'a [u8],
    /// The words that belong to it.
    pub words: &'a str,
}

/// Loads `file` into `memory`, which is `ram`. Also puts copies of `modules` at the end of that memory, and writes the
/// boot information: `given`, with these modules.
///
/// A file starts by the first of these for which it has a header: PVH, multiboot2, multiboot.
///
/// # Errors
/// If the file is invalid or has no room.
pub fn load(
    file: &[u8],
    modules: &[ModuleFile<'_>],
    given: &BootInfo<'_>,
    ram: GuestRam,
    memory: &mut impl GuestMemory,
) -> Result<EntryState, LoadError> {
    let mut modules_start = ram.end();
    let mut placed = Vec::new();
    for &ModuleFile { bytes, words } in modules {
        let length = bytes.len() as u64;
        modules_start = modules_start.saturating_sub(length) & !0xfff;
        placed.push(BootModule { place: Module { start: modules_start, bytes: length }, words });
    }
    let plan = LoadPlan::new(file)?;
    for part in &plan.parts {
        let end = part.start.saturating_add(part.memory_bytes);
        let over_boot_info = part.start < BOOT_INFO_END && end > BOOT_INFO_BASE;
        if end > modules_start || over_boot_info {
            return Err(LoadError::Place { start: part.start, end });
        }
        place(memory, part.start, part.bytes)?;
        clear(memory, part.start + part.bytes.len() as u64, end)?;
    }
    for (module, file) in placed.iter().zip(modules) {
        place(memory, module.place.start, file.bytes)?;
    }

    let info = BootInfo { modules: &placed, ..*given };
    let (boot_info, eax) = match plan.protocol {
        BootProtocol::Pvh => (pvh::build(BOOT_INFO_BASE, &info), 0),
        BootProtocol::Multiboot2 => (multiboot2::build(&info), multiboot2::BOOTLOADER_MAGIC),
        BootProtocol::Multiboot => {
            (multiboot::build(BOOT_INFO_BASE as u32, &info), multiboot::BOOTLOADER_MAGIC)
        }
    };
    if boot_info.len() as u64 > BOOT_INFO_END - BOOT_INFO_BASE {
        return Err(LoadError::BootInfo { bytes: boot_info.len() });
    }
    place(memory, BOOT_INFO_BASE, &boot_info)?;
    Ok(EntryState { entry: plan.entry, eax, ebx: BOOT_INFO_BASE as u32 })
}

enum BootProtocol {
    Pvh,
    Multiboot2,
    Multiboot,
}

struct LoadPart<'a> {
    start: u64,
    bytes: &'a [u8],
    memory_bytes: u64,
}

struct LoadPlan<'a> {
    protocol: BootProtocol,
    entry: u32,
    parts: Vec<LoadPart<'a>>,
}

impl<'a> LoadPlan<'a> {
    fn new(file: &'a [u8]) -> Result<Self, LoadError> {
        let elf = Elf::parse(file);
        if let Ok(elf) = elf
            && let Some(entry) = elf.pvh_entry()?
        {
            return Ok(Self { protocol: BootProtocol::Pvh, entry, parts: elf_parts(&elf)? });
        }
        let (protocol, header) = match multiboot2::Multiboot2Header::find(file)? {
            Some(header) => (BootProtocol::Multiboot2, header),
            None => match multiboot::find(file)? {
                Some(header) => (BootProtocol::Multiboot, header),
                None => return Err(elf.err().map_or(LoadError::NoProtocol, LoadError::Elf)),
            },
        };
        let parts = match header.address {
            Some(tag) => Vec::from([addressed_part(file, header.offset, tag)?]),
            None => elf_parts(&elf?)?,
        };
        let entry = match (header.entry, elf) {
            (Some(entry), _) => entry,
            (None, Ok(elf)) => {
                let physical = elf.physical(elf.entry())?.ok_or(LoadError::Entry(elf.entry()))?;
                u32::try_from(physical).map_err(|_| LoadError::Entry(physical))?
            }
            (None, Err(error)) => return Err(error.into()),
        };
        Ok(Self { protocol, entry, parts })
    }
}

fn elf_parts<'a>(elf: &Elf<'a>) -> Result<Vec<LoadPart<'a>>, LoadError> {
    elf.load_segments()
        .map(|load| {
            let load = load?;
            Ok(LoadPart { start: load.physical, bytes: load.bytes, memory_bytes: load.memory_bytes })
        })
        .collect()
}

/// Returns the one part that a header's addresses describe.
fn addressed_part(file: &[u8], header: u32, tag: multiboot2::AddressTag) -> Result<LoadPart<'_>, LoadError> {
    let place = LoadError::Place { start: tag.load.into(), end: tag.load_end.into() };
    // The header's offset in the file and its load address give the file offset of the first loaded byte.
    let skipped =
        tag.header.checked_sub(tag.load).and_then(|before| header.checked_sub(before)).ok_or(place)?;
    let bytes = file.get(skipped as usize..).ok_or(place)?;
    let bytes = match tag.load_end {
        0 => bytes,
        end => end.checked_sub(tag.load).and_then(|length| bytes.get(..length as usize)).ok_or(place)?,
    };
    let loaded = bytes.len() as u64;
    let memory_bytes = u64::from(tag.bss_end.saturating_sub(tag.load)).max(loaded);
    Ok(LoadPart { start: tag.load.into(), bytes, memory_bytes })
}

fn place(memory: &mut impl GuestMemory, start: u64, bytes: &[u8]) -> Result<(), LoadError> {
    let end = start.saturating_add(bytes.len() as u64);
    memory.write(start, bytes).then_some(()).ok_or(LoadError::Place { start, end })
}

fn clear(memory: &mut impl GuestMemory, mut start: u64, end: u64) -> Result<(), LoadError> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while start < end {
        let bytes = (end - start).min(ZEROS.len() as u64) as usize;
        place(memory, start, &ZEROS[..bytes])?;
        start += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
