extern crate std;

use std::vec;
use std::vec::Vec;

use super::{BOOT_INFO_BASE, EntryState, LoadError, ModuleFile, load};
use crate::boot_info::{BootInfo, MemoryKind, MemoryRange};
use crate::elf::tests::{executable, note};
use crate::guest_map::GuestRam;
use crate::memory::SliceMemory;
use crate::pvh::StartInfo;

const RAM: usize = 4 << 20;

const MAP: &[MemoryRange] = &[
    MemoryRange { start: 0, bytes: 0x9_fc00, kind: MemoryKind::Ram },
    MemoryRange { start: 0x10_0000, bytes: RAM as u64 - 0x10_0000, kind: MemoryKind::Ram },
];

fn given(command_line: &str) -> BootInfo<'_> {
    BootInfo { command_line, modules: &[], memory: MAP, rsdp: 0 }
}

fn load_into(ram: &mut [u8], file: &[u8]) -> Result<EntryState, LoadError> {
    let size = GuestRam::up_to(ram.len() as u64).unwrap();
    let module = ModuleFile { bytes: file, words: "itself" };
    load(file, &[module], &given("only=sort"), size, &mut SliceMemory { base: 0, bytes: ram })
}

fn pvh_kernel(physical: u64) -> Vec<u8> {
    executable(&note(b"Xen\0", 18, &0x10_0004u32.to_le_bytes()), physical, b"the kernel")
}

/// Returns a multiboot2 header with these tags, each padded to a multiple of 8 bytes.
fn header(tags: &[&[u32]]) -> Vec<u8> {
    let length = 16 + tags.iter().map(|tag| 4 * tag.len().next_multiple_of(2)).sum::<usize>() as u32;
    let mut header: Vec<u8> = Vec::new();
    let sum = 0xe852_50d6u32.wrapping_add(length).wrapping_neg();
    [0xe852_50d6, 0, length, sum].iter().for_each(|word| header.extend_from_slice(&word.to_le_bytes()));
    for tag in tags {
        tag.iter().for_each(|word| header.extend_from_slice(&word.to_le_bytes()));
        header.resize(header.len().next_multiple_of(8), 0);
    }
    header
}

#[test]
fn a_pvh_kernel_starts_with_its_start_info_and_itself_as_module() {
    let mut ram = vec![0xaa; RAM];
    let file = pvh_kernel(0x10_0000);
    let start = load_into(&mut ram, &file).unwrap();
    assert_eq!(start, EntryState { entry: 0x10_0004, eax: 0, ebx: BOOT_INFO_BASE as u32 });
    assert_eq!(&ram[0x10_0000..0x10_000a], b"the kernel");
    assert_eq!(
        ram[0x10_000a..0x10_001b],
        [[0; 16].as_slice(), &[0xaa]].concat(),
        "the memory after it is cleared"
    );
    let info = StartInfo::read(BOOT_INFO_BASE, &SliceMemory { base: 0, bytes: &mut ram }).unwrap();
    let module = info.modules[0];
    assert_eq!(ram[module.start as usize..][..module.bytes as usize], file);
    assert_eq!(&ram[info.command_line as usize..][..10], b"only=sort\0");
    assert_eq!(info.memory, MAP);
}

#[test]
fn other_files_can_be_the_modules_or_none() {
    let file = pvh_kernel(0x10_0000);
    for modules in [&[][..], &[&b"the module"[..]], &[b"the module", &[7; 0x1001]]] {
        let mut ram = vec![0xaa; RAM];
        let mut memory = SliceMemory { base: 0, bytes: &mut ram };
        let files: Vec<_> = modules.iter().map(|bytes| ModuleFile { bytes, words: "" }).collect();
        load(&file, &files, &given(""), GuestRam::up_to(RAM as u64).unwrap(), &mut memory).unwrap();
        let info = StartInfo::read(BOOT_INFO_BASE, &memory).unwrap();
        let found = info.modules.iter().map(|at| &ram[at.start as usize..][..at.bytes as usize]);
        assert_eq!(found.collect::<Vec<_>>(), modules);
        assert!(info.modules.iter().all(|module| module.start % 0x1000 == 0));
    }
}

#[test]
fn a_multiboot2_kernel_starts_with_the_magic() {
    // The header is at the beginning of the text, the first loaded part of the file.
    let text = header(&[&[0, 8]]);
    let mut file = executable(&[], 0x10_0000, &text);
    file[24..32].copy_from_slice(&0x1000_0010_0008u64.to_le_bytes());
    let mut ram = vec![0; RAM];
    let start = load_into(&mut ram, &file).unwrap();
    assert_eq!(start, EntryState { entry: 0x10_0008, eax: 0x36d7_6289, ebx: BOOT_INFO_BASE as u32 });
    assert_eq!(ram[0x10_0000..][..text.len()], text);
    let [total, first] =
        [0, 8].map(|at| u32::from_le_bytes(ram[BOOT_INFO_BASE as usize + at..][..4].try_into().unwrap()));
    assert!(total > 100 && first == 1, "{total} {first}");
}

#[test]
fn a_multiboot_kernel_starts_with_the_magic_of_the_first_version() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let text = words(&[0x1bad_b002, 3, 0xe452_4ffb, 0]);
    let file = executable(&[], 0x10_0000, &text);
    let mut ram = vec![0; RAM];
    let start = load_into(&mut ram, &file).unwrap();
    assert_eq!((start.eax, start.ebx), (0x2bad_b002, BOOT_INFO_BASE as u32));
    let word = |at: usize| u32::from_le_bytes(ram[at..at + 4].try_into().unwrap()) as usize;
    let info = BOOT_INFO_BASE as usize;
    let module = word(info + 24);
    assert_eq!((word(info + 20), &ram[word(module)..word(module + 4)]), (1, &file[..]));
    assert!(
        ram[word(module + 8)..].starts_with(b"itself\0")
            && ram[word(info + 16)..].starts_with(b"only=sort\0")
    );

    // The addresses in the header, for a file that is no ELF file: from 8 bytes before it on.
    let header = words(&[0x1bad_b002, 0x1_0000, 0xe451_4ffe, 0x20_0008, 0x20_0000, 0, 0x20_0200, 0x20_0040]);
    let file = [&[1; 8], &header[..], b"code"].concat();
    let mut ram = vec![0xaa; RAM];
    assert_eq!(load_into(&mut ram, &file).map(|start| start.entry), Ok(0x20_0040));
    assert_eq!(ram[0x20_0000..][..file.len()], file);
    assert_eq!((ram[0x20_01ff], ram[0x20_0200]), (0, 0xaa));
}

#[test]
fn the_header_says_where_a_file_that_is_no_elf_goes() {
    // Skip 8 bytes, load all but the last 3, clear up to 200h; the entry tag gives the entry point.
    let tags: [&[u32]; 3] = [&[2, 24, 0x20_0000, 0x20_0000, 0, 0x20_0200], &[3, 12, 0x20_0040], &[0, 8]];
    let file = [&[1; 8], &header(&tags)[..], b"code"].concat();
    let mut ram = vec![0xaa; RAM];
    assert_eq!(load_into(&mut ram, &file).map(|start| start.entry), Ok(0x20_0040));
    assert_eq!(ram[0x20_0000..][..file.len() - 8], file[8..]);
    assert_eq!((ram[0x20_01ff], ram[0x20_0200]), (0, 0xaa));
}

#[test]
fn the_header_says_where_a_file_that_is_no_elf_ends() {
    // Loads from `load` on; 8 of the loaded bytes are before the header.
    let file = |load: u32, load_end: u32| {
        let tags: [&[u32]; 3] = [&[2, 24, 0x20_0008, load, load_end, 0], &[3, 12, 0x20_0040], &[0, 8]];
        [&[1; 8], &header(&tags)[..], b"code"].concat()
    };
    let len = file(0, 0).len() as u32;
    for loaded in [1, 8, len - 1, len] {
        let mut ram = vec![0xaa; RAM];
        let file = file(0x20_0000, 0x20_0000 + loaded);
        assert!(load_into(&mut ram, &file).is_ok(), "{loaded}");
        let loaded = loaded as usize;
        assert_eq!(ram[0x20_0000..][..loaded], file[..loaded]);
        assert_eq!(ram[0x20_0000 + loaded], 0xaa, "{loaded}");
    }
    // More bytes than the file has, an end before the start, a start after the header, or before the start of the file.
    for (load, load_end) in
        [(0x20_0000, 0x20_0001 + len), (0x20_0000, 0x1f_ffff), (0x20_0009, 0), (0x1f_ffff, 0)]
    {
        let error = LoadError::Place { start: load.into(), end: load_end.into() };
        let mut ram = vec![0xaa; RAM];
        assert_eq!(load_into(&mut ram, &file(load, load_end)), Err(error), "{load:#x} {load_end:#x}");
    }
}

#[test]
fn refuses_what_has_no_room_or_no_protocol() {
    let mut ram = vec![0; RAM];
    let rows = [
        (pvh_kernel(0x9000), LoadError::Place { start: 0x9000, end: 0x901a }),
        (pvh_kernel(RAM as u64 - 8), LoadError::Place { start: RAM as u64 - 8, end: RAM as u64 + 18 }),
        (pvh_kernel(u64::MAX - 4), LoadError::Place { start: u64::MAX - 4, end: u64::MAX }),
        (executable(&[], 0x10_0000, b"text"), LoadError::NoProtocol),
        (b"text".to_vec(), LoadError::Elf(crate::elf::ElfError::NotElf)),
    ];
    for (file, error) in rows {
        assert_eq!(load_into(&mut ram, &file), Err(error));
    }
    let long = "x".repeat(0x8000);
    let refused = load(
        &pvh_kernel(0x10_0000),
        &[],
        &given(&long),
        GuestRam::up_to(RAM as u64).unwrap(),
        &mut SliceMemory { base: 0, bytes: &mut ram },
    );
    assert!(matches!(refused, Err(LoadError::BootInfo { .. })));
}

#[test]
fn why_a_kernel_is_not_loaded_is_said() {
    use crate::{elf, multiboot2};
    use std::string::ToString;
    for (error, text) in [
        (LoadError::Elf(elf::ElfError::NotElf), "not an ELF file: it does not begin with 7f 45 4c 46"),
        (
            LoadError::Elf(elf::ElfError::Machine { class: 1, machine: 40 }),
            "the ELF file has class 1 and machine 40, and is not for x86",
        ),
        (
            LoadError::Elf(elf::ElfError::Truncated { offset: 0x40 }),
            "the ELF file is cut off: bytes before offset 0x40 are missing",
        ),
        (
            LoadError::Multiboot2(multiboot2::Multiboot2Error::Architecture(4)),
            "the multiboot2 header is for architecture 4, not for x86 (0)",
        ),
        (
            LoadError::Multiboot2(multiboot2::Multiboot2Error::Tag { offset: 0x18 }),
            "multiboot2 header: the tag at 0x18 of the file reaches beyond the header's end",
        ),
        (
            LoadError::Multiboot2(multiboot2::Multiboot2Error::Unsupported { tag: 5 }),
            "the multiboot2 header requires what its tag 5 asks for, which is not provided",
        ),
        (
            LoadError::NoProtocol,
            "the file has neither a PVH note nor a multiboot2 or multiboot header, so it is unknown how to enter it",
        ),
        (
            LoadError::Place { start: 0x10, end: 0x20 },
            "no room for the part at 0x10..0x20: it must lie within the guest's RAM, below the modules at its end and \
             outside 0x8000..0x10000",
        ),
        (
            LoadError::Multiboot(crate::multiboot::MultibootError { flags: 0x10 }),
            "the multiboot header requires what its flags 0x10 ask for, which is not provided",
        ),
        (LoadError::Entry(0x30), "the entry point 0x30 is in no part of the file"),
        (
            LoadError::BootInfo { bytes: 0x8001 },
            "the boot information has 32769 bytes, 32768 are the most: the guest's command line is too long",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
