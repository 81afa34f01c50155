//! The functions that the emulator imports, and others in their place.
//!
//! Source: System V ABI, AMD64 supplement, "Dynamic Linking".

use std::ffi::{CStr, c_char, c_int, c_void};

const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;

/// A function of the emulator's imports, and what takes its place.
pub(super) type Replacement<'a> = (&'a CStr, *const c_void);

/// The begin of `struct dl_phdr_info`.
#[repr(C)]
struct LoadedFile {
    base: u64,
    name: *const c_char,
    headers: *const ProgramHeader,
    header_count: u16,
}

/// `Elf64_Phdr`.
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    size: u64,
    align: u64,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct DynamicEntry {
    tag: u64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    place: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

type FileVisitor = extern "C" fn(*const LoadedFile, usize, *mut c_void) -> c_int;

unsafe extern "C" {
    fn dl_iterate_phdr(visit: FileVisitor, data: *mut c_void) -> c_int;
    fn mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int;
}

/// Replaces functions in the emulator's table of imports, all or none of them. Nobody else runs yet.
pub(super) fn replace(mut functions: &[Replacement<'_>]) {
    // SAFETY: the function takes the first file, which is the program's, and ends; `functions` lives as long.
    unsafe { dl_iterate_phdr(replace_in, (&raw mut functions).cast()) };
}

/// Replaces the functions in a file. Returns 1, so that no other file follows.
extern "C" fn replace_in(file: *const LoadedFile, _: usize, functions: *mut c_void) -> c_int {
    // SAFETY: the system passes a valid pointer.
    let file = unsafe { &*file };
    // SAFETY: as `replace` passes it on.
    let functions = unsafe { *functions.cast::<&[Replacement<'_>]>() };
    let places: Option<Vec<_>> = functions.iter().map(|(name, _)| file.import(name)).collect();
    for (place, (_, function)) in places.unwrap_or_default().into_iter().zip(functions) {
        // SAFETY: the place is in the table, which is aligned.
        unsafe { file.set(place, *function) };
    }
    1
}

impl LoadedFile {
    fn headers(&self) -> &[ProgramHeader] {
        // SAFETY: the system gives out as many as it says.
        unsafe { std::slice::from_raw_parts(self.headers, usize::from(self.header_count)) }
    }

    /// Returns the address of a part of the file; some C libraries have added the base to it already.
    fn at<T>(&self, value: u64) -> *const T {
        (if value < self.base { self.base + value } else { value }) as *const T
    }

    /// Returns the value of an entry of the dynamic section.
    fn dynamic(&self, tag: u64) -> Option<u64> {
        const PT_DYNAMIC: u32 = 2;
        let section = self.headers().iter().find(|header| header.kind == PT_DYNAMIC)?;
        let first = (self.base + section.address) as *const DynamicEntry;
        let count = section.size as usize / size_of::<DynamicEntry>();
        // SAFETY: the section is mapped, and has that size.
        let entries = unsafe { std::slice::from_raw_parts(first, count) };
        let mut entries = entries.iter().take_while(|entry| entry.tag != 0);
        entries.find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// Returns the place of an imported function's address.
    fn import(&self, name: &CStr) -> Option<*mut *const c_void> {
        const STRINGS: u64 = 5;
        const SYMBOLS: u64 = 6;
        /// The tags of tables of relocations, and of their sizes: DT_JMPREL and DT_RELA.
        const TABLES: [(u64, u64); 2] = [(23, 2), (7, 8)];
        /// R_X86_64_GLOB_DAT and R_X86_64_JUMP_SLOT.
        const KINDS: [u64; 2] = [6, 7];
        let (strings, symbols) = (self.at::<c_char>(self.dynamic(STRINGS)?), self.dynamic(SYMBOLS)?);
        let symbols = self.at::<Symbol>(symbols);
        TABLES.iter().find_map(|(table, size)| {
            let count = self.dynamic(*size)? as usize / size_of::<Relocation>();
            let first = self.at::<Relocation>(self.dynamic(*table)?);
            // SAFETY: the table is mapped, and has that size.
            let relocations = unsafe { std::slice::from_raw_parts(first, count) };
            let is_it = |relocation: &&Relocation| {
                let symbol = symbols.wrapping_add((relocation.info >> 32) as usize);
                // SAFETY: relocations name symbols of the file.
                let at = || strings.wrapping_add(unsafe { &*symbol }.name as usize);
                // SAFETY: the names of symbols are in the file, and end with a zero.
                KINDS.contains(&(relocation.info & 0xffff_ffff)) && unsafe { CStr::from_ptr(at()) } == name
            };
            relocations.iter().find(is_it).map(|found| (self.base + found.place) as *mut *const c_void)
        })
    }

    /// Sets an address in the table, which can be write-protected.
    ///
    /// # Safety
    /// The place is in the file's table.
    unsafe fn set(&self, place: *mut *const c_void, function: *const c_void) {
        const PT_GNU_RELRO: u32 = 0x6474_e552;
        const PAGE: u64 = 4096;
        let address = place as u64;
        let is_protected = self.headers().iter().any(|header| {
            let begin = self.base + header.address;
            header.kind == PT_GNU_RELRO && (begin..begin + header.size).contains(&address)
        });
        let page = (address & !(PAGE - 1)) as *mut c_void;
        // SAFETY: the page is of data, which is never executed.
        if unsafe { mprotect(page, PAGE as usize, PROT_READ | PROT_WRITE) } == 0 {
            // SAFETY: as the caller says.
            unsafe { place.write(function) };
            if is_protected {
                // SAFETY: the page is as it was before.
                unsafe { mprotect(page, PAGE as usize, PROT_READ) };
            }
        }
    }
}
