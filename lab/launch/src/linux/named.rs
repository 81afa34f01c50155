//! A kernel's ELF file with the names of its functions, which distributions strip.

use anyhow::{Context, Result};
use std::collections::BTreeMap;

use super::code_file::kallsyms;

/// Offsets in an ELF file's header: where the section headers are, and their number.
const SECTIONS_AT: usize = 0x28;
const SECTIONS: usize = 0x3c;
/// The size of a section header, and in it the offsets of the type, the flags, the address, and the size.
const HEADER: usize = 64;
const TYPE: usize = 4;
const FLAGS: usize = 8;
const ADDRESS: usize = 16;
const SIZE: usize = 32;
/// The types of sections with symbols and with their names, and the flag of code.
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const CODE: u64 = 4;

/// Returns a kernel's ELF file with the functions of the text of its /proc/kallsyms, each of which reaches to the next
/// one; or the file as it is, if it has symbols already.
///
/// # Errors
/// If it is no ELF file of 64 bits, or has no section headers.
pub(super) fn with_functions(mut elf: Vec<u8>, symbols: &str) -> Result<Vec<u8>> {
    let headers = headers(&elf).context("the kernel's ELF file has no section headers")?;
    let field = |header: &[u8], at: usize| u64::from_le_bytes(*header[at..].first_chunk().unwrap_or(&[0; 8]));
    let kind = |header: &[u8]| u32::from_le_bytes(*header[TYPE..].first_chunk().unwrap_or(&[0; 4]));
    if headers.chunks_exact(HEADER).any(|header| kind(header) == SYMTAB) {
        return Ok(elf);
    }
    // Of several names of an address, the last one stays, as perf has it.
    let functions: BTreeMap<u64, &str> = kallsyms(symbols).collect();
    let (mut names, mut table) = (vec![0], vec![0; 24]);
    let ends = functions.keys().copied().skip(1).chain([u64::MAX]);
    for ((&address, name), next) in functions.iter().zip(ends) {
        let in_section = |header: &&[u8]| {
            let from = field(header, ADDRESS);
            field(header, FLAGS) & CODE != 0 && (from..from + field(header, SIZE)).contains(&address)
        };
        let Some((number, section)) =
            (0u16..).zip(headers.chunks_exact(HEADER)).find(|(_, it)| in_section(it))
        else {
            continue;
        };
        let end = next.min(field(section, ADDRESS) + field(section, SIZE));
        table.extend((names.len() as u32).to_le_bytes());
        // A global function.
        table.extend([0x12, 0]);
        table.extend(number.to_le_bytes());
        table.extend([address, end - address].map(u64::to_le_bytes).concat());
        names.extend(name.bytes().chain([0]));
    }
    let count = (headers.len() / HEADER) as u16;
    elf.resize(elf.len().next_multiple_of(8), 0);
    let symtab = section(SYMTAB, [elf.len(), table.len()], [u32::from(count) + 1, 1], 24);
    let strtab = section(STRTAB, [elf.len() + table.len(), names.len()], [0; 2], 0);
    elf.extend([table, names].concat());
    elf.resize(elf.len().next_multiple_of(8), 0);
    let at = elf.len() as u64;
    elf.extend([headers, symtab, strtab].concat());
    elf[SECTIONS_AT..SECTIONS_AT + 8].copy_from_slice(&at.to_le_bytes());
    elf[SECTIONS..SECTIONS + 2].copy_from_slice(&(count + 2).to_le_bytes());
    Ok(elf)
}

/// Returns the section headers.
fn headers(elf: &[u8]) -> Option<Vec<u8>> {
    elf.strip_prefix(b"\x7fELF\x02")?;
    let at = usize::try_from(u64::from_le_bytes(*elf.get(SECTIONS_AT..)?.first_chunk()?)).ok()?;
    let count = usize::from(u16::from_le_bytes(*elf.get(SECTIONS..)?.first_chunk()?));
    let headers = elf.get(at..at.checked_add(count * HEADER)?)?;
    Some(headers.to_vec()).filter(|headers| !headers.is_empty())
}

/// Returns the header of a section without a name.
fn section(kind: u32, place: [usize; 2], link: [u32; 2], entry: u64) -> Vec<u8> {
    let place = place.map(|number| number as u64);
    let words = [0, 0, place[0], place[1]].map(u64::to_le_bytes).concat();
    let ends = [8, entry].map(u64::to_le_bytes).concat();
    [[0, kind].map(u32::to_le_bytes).concat(), words, link.map(u32::to_le_bytes).concat(), ends].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSegment, ObjectSymbol};

    #[test]
    fn the_file_has_the_functions_of_its_code_and_is_otherwise_as_it_was() {
        // Headers of a file, of a segment, and of three sections: none, code and data.
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
        elf.extend([0x1000u64, 64, 128].map(u64::to_le_bytes).concat());
        elf.extend(0u32.to_le_bytes());
        elf.extend([64u16, 56, 1, 64, 3, 2].map(u16::to_le_bytes).concat());
        elf.extend([1u32, 5].map(u32::to_le_bytes).concat());
        elf.extend([120, 0x1000, 0x1000, 8, 8, 1].map(u64::to_le_bytes).concat());
        elf.extend([0x90; 8]);
        elf.extend([0; HEADER]);
        let mut with_flags = |flags: u64, address: u64| {
            elf.extend([0u32, 1].map(u32::to_le_bytes).concat());
            elf.extend([flags, address, 120, 0x10, 0, 1, 0].map(u64::to_le_bytes).concat());
        };
        with_flags(6, 0x1000);
        with_flags(3, 0x2000);
        let text = "1008 t last\n1000 T other_name\n1000 T first\n2000 t in_data\n3000 t nowhere\n";
        let named = with_functions(elf.clone(), text).unwrap();
        let file = object::File::parse(&*named).unwrap();
        let symbols: Vec<_> = file
            .symbols()
            .map(|it| (it.name().unwrap(), it.address(), it.size(), it.section_index().unwrap().0))
            .collect();
        assert_eq!(symbols, [("first", 0x1000, 8, 1), ("last", 0x1008, 8, 1)]);
        assert_eq!(file.segments().next().unwrap().data().unwrap(), [0x90; 8]);
        assert_eq!(with_functions(named.clone(), "").unwrap(), named);
        elf[SECTIONS] = 0;
        assert!(with_functions(elf, text).is_err() && with_functions(vec![1, 2], text).is_err());
    }
}
