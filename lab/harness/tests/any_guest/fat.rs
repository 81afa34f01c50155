//! A disk with one file, which UEFI firmware boots.
//!
//! Source: UEFI specification, "Boot Manager: Boot Mechanisms, Removable Media Boot Behavior"; Microsoft FAT
//! Specification, "Boot Sector and BPB", "Directory Structure".

const SECTOR: usize = 512;
const SECTORS: u16 = 2880;
const ROOT_ENTRIES: u16 = 224;
const TABLE_SECTORS: u16 = 9;
/// The first sector of the tables, of the root directory, and of the first cluster. Each cluster is a sector.
const TABLES: usize = 1;
const ROOT: usize = TABLES + 2 * TABLE_SECTORS as usize;
const CLUSTERS: usize = ROOT + ROOT_ENTRIES as usize * 32 / SECTOR;
/// The first cluster's number.
const FIRST: usize = 2;
const DIRECTORY: u8 = 0x10;

/// Returns a disk with a FAT12 file system and `program` in it as the program that boots.
pub(crate) fn disk(program: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; SECTORS as usize * SECTOR];
    let parameters = [1, 1, 0, 2, ROOT_ENTRIES as u8, 0, SECTORS as u8, (SECTORS >> 8) as u8, 0xf8];
    disk[..3].copy_from_slice(&[0xeb, 0xfe, 0x90]);
    disk[11..13].copy_from_slice(&(SECTOR as u16).to_le_bytes());
    disk[13..22].copy_from_slice(&parameters);
    disk[22..24].copy_from_slice(&TABLE_SECTORS.to_le_bytes());
    disk[38] = 0x29;
    disk[43..62].copy_from_slice(b"PUGMARK    FAT12   ");
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);

    let sectors = program.len().div_ceil(SECTOR);
    let (efi, boot, file) = (FIRST, FIRST + 1, FIRST + 2);
    let mut table = vec![0xff8, 0xfff, 0xfff, 0xfff];
    table.extend((1..sectors).map(|index| file + index));
    table.push(0xfff);
    let mut packed = vec![];
    for pair in table.chunks(2) {
        let [even, odd] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        packed.extend([even as u8, (even >> 8 | odd << 4) as u8, (odd >> 4) as u8]);
    }
    let mut put = |sector: usize, bytes: &[u8]| disk[sector * SECTOR..][..bytes.len()].copy_from_slice(bytes);
    [TABLES, TABLES + TABLE_SECTORS as usize].iter().for_each(|&sector| put(sector, &packed));
    put(ROOT, &entry(b"EFI        ", DIRECTORY, efi, 0));
    let in_directory = |own: usize, parent: usize| {
        [entry(b".          ", DIRECTORY, own, 0), entry(b"..         ", DIRECTORY, parent, 0)].concat()
    };
    let at = |cluster: usize| CLUSTERS + cluster - FIRST;
    put(at(efi), &[in_directory(efi, 0), entry(b"BOOT       ", DIRECTORY, boot, 0).into()].concat());
    let of_program = entry(b"BOOTX64 EFI", 0, file, program.len());
    put(at(boot), &[in_directory(boot, efi), of_program.into()].concat());
    put(at(file), program);
    disk
}

/// Returns a directory's entry.
fn entry(name: &[u8; 11], attributes: u8, cluster: usize, bytes: usize) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[..11].copy_from_slice(name);
    entry[11] = attributes;
    entry[26..28].copy_from_slice(&(cluster as u16).to_le_bytes());
    entry[28..32].copy_from_slice(&(bytes as u32).to_le_bytes());
    entry
}
