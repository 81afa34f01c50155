//! Reads the symbol table of an ELF file, to find the function that contains an address.

use alloc::vec::Vec;
use core::fmt;

/// The functions of an ELF image, by address.
#[derive(Clone, Debug)]
pub struct Symbols<'a> {
    functions: Vec<Function<'a>>,
}

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes; 0 if the file does not give it.
    pub size: u64,
    /// Linkage name.
    pub name: &'a str,
}

/// The reason why an ELF file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// The file is not a 64-bit little-endian ELF file.
    NotElf64,
    /// The file ends within the structure at this offset.
    CutShort {
        /// The offset, in bytes.
        offset: u64,
    },
    /// The file has no symbol table.
    NoSymbolTable,
}

const SECTION_SYMTAB: u32 = 2;
const SECTION_STRTAB: u32 = 3;
const SYMBOL_FUNCTION: u8 = 2;
const SYMBOL_SIZE: usize = 24;

impl<'a> Symbols<'a> {
    /// Reads the functions of an ELF file. A symbol whose name is not UTF-8 or is outside the string table is skipped.
    ///
    /// Source: "ELF-64 Object File Format", "Sections" and "Symbol Table".
    ///
    /// # Errors
    /// If the file is not an ELF64 file, is cut short or has no symbol table.
    pub fn parse(elf: &'a [u8]) -> Result<Self, ElfError> {
        if elf.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err(ElfError::NotElf64);
        }
        let section = |index: u64| {
            let offset =
                u64_at(elf, 0x28)?.saturating_add(u64::from(u16_at(elf, 0x3a)?).saturating_mul(index));
            ElfSection::read(elf, offset)
        };
        let mut table = None;
        for index in 0..u64::from(u16_at(elf, 0x3c)?) {
            let candidate = section(index)?;
            if candidate.kind == SECTION_SYMTAB {
                table = Some(candidate);
                break;
            }
        }
        let table = table.ok_or(ElfError::NoSymbolTable)?;
        let names = section(table.link.into())?.bytes;
        let symbols = table.bytes.as_chunks::<SYMBOL_SIZE>().0.iter();
        Ok(Self::from_functions(symbols.filter_map(|symbol| function(symbol, names))))
    }

    /// Makes a table of functions, given in any order.
    pub fn from_functions(functions: impl IntoIterator<Item = Function<'a>>) -> Self {
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_unstable_by_key(|function| (function.address, function.size));
        Self { functions }
    }

    /// Returns the index of the function that holds `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<usize> {
        let index = self.functions.partition_point(|function| function.address <= address).checked_sub(1)?;
        let function = &self.functions[index];
        (function.size == 0 || address - function.address < function.size).then_some(index)
    }

    /// Returns the functions, by address.
    #[must_use]
    pub fn functions(&self) -> &[Function<'a>] {
        &self.functions
    }
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf64 => write!(f, "not an ELF file for 64 bits, little-endian"),
            Self::CutShort { offset } => write!(f, "ELF file cut short at {offset:#x}"),
            Self::NoSymbolTable => write!(f, "ELF file without a symbol table"),
        }
    }
}

impl core::error::Error for ElfError {}

struct ElfSection<'a> {
    kind: u32,
    link: u32,
    bytes: &'a [u8],
}

impl<'a> ElfSection<'a> {
    fn read(elf: &'a [u8], header: u64) -> Result<Self, ElfError> {
        let kind = u32_at(elf, header.saturating_add(4))?;
        let link = u32_at(elf, header.saturating_add(0x28))?;
        // Only the sections that are read must be in the file; .bss, for example, is not.
        let bytes = if matches!(kind, SECTION_SYMTAB | SECTION_STRTAB) {
            let (offset, size) =
                (u64_at(elf, header.saturating_add(0x18))?, u64_at(elf, header.saturating_add(0x20))?);
            bytes_at(elf, offset, size)?
        } else {
            &[]
        };
        Ok(Self { kind, link, bytes })
    }
}

fn function<'a>(symbol: &[u8; SYMBOL_SIZE], names: &'a [u8]) -> Option<Function<'a>> {
    let [n0, n1, n2, n3, info, _other, s0, s1, rest @ ..] = symbol;
    let (address, size) = rest.split_at(8);
    // Undefined symbols have section 0.
    if info & 0xf != SYMBOL_FUNCTION || [*s0, *s1] == [0, 0] {
        return None;
    }
    let name = names.get(usize::try_from(u32::from_le_bytes([*n0, *n1, *n2, *n3])).ok()?..)?;
    let name = name.split(|&byte| byte == 0).next()?;
    Some(Function {
        address: u64::from_le_bytes(address.try_into().ok()?),
        size: u64::from_le_bytes(size.try_into().ok()?),
        name: core::str::from_utf8(name).ok()?,
    })
}

fn bytes_at(elf: &[u8], offset: u64, size: u64) -> Result<&[u8], ElfError> {
    let range = usize::try_from(offset).ok().zip(usize::try_from(offset.saturating_add(size)).ok());
    range.and_then(|(start, end)| elf.get(start..end)).ok_or(ElfError::CutShort { offset })
}

fn array_at<const N: usize>(elf: &[u8], offset: u64) -> Result<[u8; N], ElfError> {
    bytes_at(elf, offset, N as u64)?.try_into().map_err(|_| ElfError::CutShort { offset })
}

fn u16_at(elf: &[u8], offset: u64) -> Result<u16, ElfError> {
    array_at(elf, offset).map(u16::from_le_bytes)
}

fn u32_at(elf: &[u8], offset: u64) -> Result<u32, ElfError> {
    array_at(elf, offset).map(u32::from_le_bytes)
}

fn u64_at(elf: &[u8], offset: u64) -> Result<u64, ElfError> {
    array_at(elf, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
