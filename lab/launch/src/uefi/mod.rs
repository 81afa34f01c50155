//! The monitor as a driver that UEFI firmware starts: an option ROM with the monitor's image.
//!
//! Source: UEFI specification, "PCI Bus Support: PCI Option ROMs"; PCI Firmware specification, "PCI Expansion ROMs"; PE
//! format (Microsoft Portable Executable and Common Object File Format), "File Headers"; Xen public headers,
//! `arch-x86/hvm/start_info.h`.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// The first address above any RAM below 4 GiB. The monitor gives all from there on to devices by itself.
const ABOVE_RAM: u64 = 0xc000_0000;

/// The program headers' types of code and data, and of notes.
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// The name of the monitor's note about the driver.
const NOTE_NAME: &[u8] = b"Pugmark\0";

/// The size of a page, and the offset of the image in the PE file.
const PAGE: usize = 4096;
/// The unit in which a ROM counts.
const ROM_UNIT: usize = 512;

/// The parts of OVMF, in the folder where distributions have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Firmware {
    /// The code.
    pub(crate) code: PathBuf,
    /// A store of variables as a new machine has it.
    pub(crate) variables: PathBuf,
}

impl Firmware {
    /// Finds OVMF.
    pub(crate) fn find() -> Result<Self> {
        Self::find_in(Path::new("/"))
    }

    fn find_in(root: &Path) -> Result<Self> {
        // Debian and Ubuntu; Fedora; Arch.
        const PLACES: [(&str, &str); 4] = [
            ("usr/share/OVMF/OVMF_CODE_4M.fd", "usr/share/OVMF/OVMF_VARS_4M.fd"),
            ("usr/share/OVMF/OVMF_CODE.fd", "usr/share/OVMF/OVMF_VARS.fd"),
            ("usr/share/edk2/ovmf/OVMF_CODE.fd", "usr/share/edk2/ovmf/OVMF_VARS.fd"),
            ("usr/share/edk2/x64/OVMF_CODE.4m.fd", "usr/share/edk2/x64/OVMF_VARS.4m.fd"),
        ];
        let found =
            PLACES.map(|(code, variables)| Self { code: root.join(code), variables: root.join(variables) });
        let missing = format!(
            "the UEFI firmware OVMF is missing: no file `{}` with its `OVMF_VARS_4M.fd` (Debian's package ovmf)",
            found[0].code.display()
        );
        let is_there = |firmware: &Self| firmware.code.is_file() && firmware.variables.is_file();
        found.into_iter().find(is_there).context(missing)
    }
}

/// Returns an option ROM with the `monitor`'s ELF file as a driver, for a guest whose RAM ends at `ram_end`. The driver
/// takes `hole` bytes for the monitor and its log; `command_line` is the monitor's.
///
/// # Errors
/// If the file is not that of a monitor, or the command line is too long.
pub(crate) fn option_rom(monitor: &[u8], hole: u64, ram_end: u64, command_line: &str) -> Result<Vec<u8>> {
    let mut image = Image::of(monitor).context("the monitor's file cannot be started by UEFI firmware")?;
    let page = page(image.page_address, hole, ram_end, command_line.as_bytes())?;
    image.bytes[image.page..image.page + PAGE].copy_from_slice(&page);
    Ok(rom(&driver(&image)))
}

/// The monitor's image as it is in memory, without the part that begins as zeros.
struct Image {
    bytes: Vec<u8>,
    /// Offset of the driver's entry.
    entry: usize,
    /// Offset and address of the page for the driver.
    page: usize,
    page_address: u64,
}

impl Image {
    /// Lays out the file's parts; `None` if it is not an ELF file with the monitor's note.
    fn of(file: &[u8]) -> Option<Self> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let headers = usize::try_from(long(file, 0x20)?).ok()?;
        let [size, count] = [0x36, 0x38].map(|at| word(file, at).map(usize::from));
        let (size, count) = (size?, count?);
        let header = |index: usize| file.get(headers.checked_add(index * size)?..);
        let (mut parts, mut note) = (vec![], None);
        for header in (0..count).map(header) {
            let header = header?;
            let [offset, address, bytes] = [0x08, 0x18, 0x20].map(|at| long(header, at));
            let (offset, bytes) = (usize::try_from(offset?).ok()?, usize::try_from(bytes?).ok()?);
            let content = file.get(offset..offset.checked_add(bytes)?)?;
            match dword(header, 0)? {
                LOAD => parts.push((address?, content)),
                NOTE => note = note.or_else(|| found_in(content)),
                _ => {}
            }
        }
        let start = parts.iter().map(|(address, _)| *address).min()?;
        let offset = |address: u64| usize::try_from(address.checked_sub(start)?).ok();
        let mut bytes = vec![];
        for (address, content) in parts {
            let at = offset(address)?;
            // The monitor has less than its 64 MiB of addresses.
            let end = at.checked_add(content.len()).filter(|end| *end < 64 << 20)?;
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].copy_from_slice(content);
        }
        let (entry, page) = note?;
        let (entry_at, page_at) = (offset(entry)?, offset(page)?);
        let fits = page_at.checked_add(PAGE).is_some_and(|end| end <= bytes.len()) && entry_at < bytes.len();
        fits.then_some(Self { bytes, entry: entry_at, page: page_at, page_address: page })
    }
}

/// Finds the monitor's note, and returns the addresses in it: of the driver's entry, and of its page.
fn found_in(mut notes: &[u8]) -> Option<(u64, u64)> {
    loop {
        let [name, value] =
            [0, 4].map(|at| dword(notes, at).map(|bytes| (bytes as usize).next_multiple_of(4)));
        let (name, value) = (name?, value?);
        let content = notes.get(12..)?;
        if content.starts_with(NOTE_NAME) {
            return Some((dword(content, name)?.into(), dword(content, name + 4)?.into()));
        }
        notes = content.get(name.checked_add(value)?..)?;
    }
}

/// Returns the content of the driver's page at `address`: the number of pages to allocate, and the start info of PVH,
/// with a map of memory.
fn page(address: u64, hole: u64, ram_end: u64, command_line: &[u8]) -> Result<Vec<u8>> {
    const MAGIC: u64 = 0x336e_c578;
    const VERSION: u64 = 1 << 32;
    const RAM: u64 = 1;
    const RESERVED: u64 = 2;
    const INFO: usize = 16;
    /// The start info has seven words, and a range three.
    const MAP: usize = INFO + 7 * 8;
    const LINE: usize = MAP + 2 * 3 * 8;
    let [map_at, line_at] = [MAP, LINE].map(|offset| address + offset as u64);
    let pages = [hole.div_ceil(PAGE as u64), 0];
    let info = [MAGIC | VERSION, 0, 0, line_at, 0, map_at, 2];
    // All above the machine's RAM is left to devices: OVMF and systems give them addresses there.
    let map = [0, ram_end, RAM, ram_end, ABOVE_RAM - ram_end, RESERVED];
    let words = pages.into_iter().chain(info).chain(map);
    let mut page: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    page.extend_from_slice(command_line);
    ensure!(page.len() < PAGE, "the monitor's options have {} bytes, which are too many", command_line.len());
    page.resize(PAGE, 0);
    Ok(page)
}

/// Returns the driver's PE file, with the image as its one section.
fn driver(image: &Image) -> Vec<u8> {
    const X64: u16 = 0x8664;
    /// No line numbers, no symbols, an executable, with addresses above 2 GiB.
    const CHARACTERISTICS: u16 = 0x2e;
    const OPTIONAL_HEADER_BYTES: u16 = 112;
    const PE32_PLUS: u16 = 0x20b;
    const BOOT_SERVICE_DRIVER: u16 = 11;
    /// Code that is executed, read and written.
    const SECTION: u32 = 0xe000_0020;
    let bytes = image.bytes.len().next_multiple_of(PAGE);
    let start = PAGE as u32;
    let mut file = vec![];
    let mut put = |part: &[u8]| file.extend_from_slice(part);
    // The DOS header, whose last field is the offset of the next one.
    put(b"MZ");
    put(&[0; 58]);
    put(&64u32.to_le_bytes());
    put(b"PE\0\0");
    [X64, 1].iter().for_each(|field| put(&field.to_le_bytes()));
    put(&[0; 12]);
    [OPTIONAL_HEADER_BYTES, CHARACTERISTICS, PE32_PLUS, 0].iter().for_each(|field| put(&field.to_le_bytes()));
    // Sizes of code and data, the entry, the start of the code.
    [bytes as u32, 0, 0, start + image.entry as u32, start]
        .iter()
        .for_each(|field| put(&field.to_le_bytes()));
    // No base is preferred.
    put(&[0; 8]);
    // Alignments in memory and file, versions, sizes of all and of the headers, no checksum.
    [start, start, 0, 0, 0, 0, start + bytes as u32, start, 0]
        .iter()
        .for_each(|field| put(&field.to_le_bytes()));
    [BOOT_SERVICE_DRIVER, 0].iter().for_each(|field| put(&field.to_le_bytes()));
    // Sizes of stack and heap, flags, and no data directories.
    put(&[0; 40]);
    put(b".monitor");
    [bytes as u32, start, bytes as u32, start, 0, 0, 0, SECTION]
        .iter()
        .for_each(|field| put(&field.to_le_bytes()));
    file.resize(PAGE, 0);
    file.extend_from_slice(&image.bytes);
    file.resize(PAGE + bytes, 0);
    file
}

/// Returns an option ROM with a driver as its one image.
fn rom(driver: &[u8]) -> Vec<u8> {
    const HEADER: usize = 0x40;
    /// The offset of the structure that describes an image, after the header's fields.
    const STRUCTURE: u16 = 0x1c;
    const EFI_SIGNATURE: u32 = 0xef1;
    const BOOT_SERVICE_DRIVER: u16 = 11;
    const X64: u16 = 0x8664;
    /// The IDs of the device that has the ROM: see `DEVICE`.
    const IDS: [u16; 2] = [0x1b36, 0x5];
    const LENGTH: u16 = 0x18;
    const EFI: u8 = 3;
    const LAST: u8 = 0x80;
    let units = ((HEADER + driver.len()).div_ceil(ROM_UNIT)) as u16;
    let mut rom = vec![0x55, 0xaa];
    let mut put = |part: &[u8]| rom.extend_from_slice(part);
    put(&units.to_le_bytes());
    put(&EFI_SIGNATURE.to_le_bytes());
    // Not compressed, and eight reserved bytes.
    [BOOT_SERVICE_DRIVER, X64, 0, 0, 0, 0, 0].iter().for_each(|field| put(&field.to_le_bytes()));
    [HEADER as u16, STRUCTURE, 0].iter().for_each(|field| put(&field.to_le_bytes()));
    put(b"PCIR");
    [IDS[0], IDS[1], 0, LENGTH].iter().for_each(|field| put(&field.to_le_bytes()));
    // The structure's revision, the class of a device that fits no other, the size, the revision of the code.
    put(&[0, 0, 0, 0xff]);
    [units, 0].iter().for_each(|field| put(&field.to_le_bytes()));
    put(&[EFI, LAST, 0, 0]);
    rom.resize(HEADER, 0);
    rom.extend_from_slice(driver);
    rom.resize(usize::from(units) * ROM_UNIT, 0);
    rom
}

/// QEMU's device that has the ROM: it does nothing by itself.
pub(crate) const DEVICE: &str = "pci-testdev";

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn dword(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
