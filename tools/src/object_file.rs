//! Makes object files for tests.

/// An ELF file for x86-64 with these pieces: where each is in the file and in memory, and its bytes. Each is a segment
/// and a section of code.
pub(crate) struct ObjectFile<'a> {
    pub(crate) pieces: &'a [(u64, u64, &'a [u8])],
    /// Name, address, size, binding and type as in `st_info`, section.
    pub(crate) symbols: &'a [(&'a str, u64, u64, u8, u16)],
}

/// `st_info` of functions by their binding, and of data.
pub(crate) const LOCAL: u8 = 0x02;
pub(crate) const GLOBAL: u8 = 0x12;
pub(crate) const WEAK: u8 = 0x22;
pub(crate) const GLOBAL_DATA: u8 = 0x11;
/// `st_info` of what has no type.
pub(crate) const LOCAL_LABEL: u8 = 0;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl ObjectFile<'_> {
    /// Returns the bytes of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        const SECTION: usize = 64;
        let count = self.pieces.len();
        let headers = 64 + 56 * count;
        let end = self.pieces.iter().map(|(at, _, bytes)| *at as usize + bytes.len()).max().unwrap_or(0);
        let mut file = vec![0; end.max(headers)];
        // Names of sections: none, then those of the tables.
        let names = b"\0code\0.symtab\0.strtab\0.shstrtab\0";
        let mut strings = vec![0];
        let mut symbols = vec![0; 24];
        for (name, address, size, info, section) in self.symbols {
            symbols.extend((strings.len() as u32).to_le_bytes());
            symbols.extend([*info, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend(words(&[*address, *size]));
            strings.extend(name.bytes().chain([0]));
        }
        let tables = [(7, 2, &symbols[..]), (15, 3, &strings), (23, 3, names)];
        let mut sections = vec![0; SECTION];
        for (at, address, bytes) in self.pieces {
            // SHT_PROGBITS, SHF_ALLOC and SHF_EXECINSTR.
            sections.extend(words(&[1 << 32 | 1, 6, *address, *at, bytes.len() as u64, 0, 1, 0]));
        }
        for (name, kind, bytes) in tables {
            file.resize(file.len().next_multiple_of(8), 0);
            // The symbols' names are in the table after theirs; all symbols may be global.
            let (link, entry) = if kind == 2 { ((count as u64 + 2) | (1 << 32), 24) } else { (0, 0) };
            let (at, size) = (file.len() as u64, bytes.len() as u64);
            sections.extend(words(&[kind << 32 | name, 0, 0, at, size, link, 1, entry]));
            file.extend(bytes);
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let (table, sections_count) = (file.len() as u64, count as u64 + 4);
        file.extend(&sections);
        let ident = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0";
        let sizes = words(&[
            64 << 32 | 56 << 48,
            count as u64 | 64 << 16 | sections_count << 32 | (sections_count - 1) << 48,
        ]);
        let mut head = [&ident[..], &words(&[0, 64, table]), &sizes].concat();
        for (at, address, bytes) in self.pieces {
            // PT_LOAD, readable and executable.
            let size = bytes.len() as u64;
            head.extend(words(&[5 << 32 | 1, *at, *address, *address, size, size, 0x1000]));
        }
        file[..headers].copy_from_slice(&head);
        for (at, _, bytes) in self.pieces {
            file[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        file
    }
}
