//! The files of a process, as GDB asks for them: the program, its libraries and where they were loaded.

use crate::file::read_regular;
use object::{Object, ObjectSegment, elf, read::elf::ElfFile64};
use object::{SegmentFlags, read::elf::ProgramHeader};
use std::{
    fmt::Write,
    ops::Range,
    path::{Path, PathBuf},
};

/// The files of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessFiles {
    /// The program's file; empty if it is not known.
    pub(super) program: String,
    /// The list of its libraries.
    pub(super) libraries: String,
    /// The part of the auxiliary vector that says where the program and the linker are.
    pub(super) auxv: Vec<u8>,
}

/// The parts of an ELF file that say where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ElfPlace {
    entry: u64,
    /// The address of the dynamic section.
    dynamic: Option<u64>,
    /// The address, size and number of the program headers in memory.
    headers: Option<[u64; 3]>,
}

impl ElfPlace {
    fn read(path: &Path) -> Option<Self> {
        let bytes = read_regular(path).ok()?;
        let file = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
        let (order, header) = (file.endian(), file.elf_header());
        let dynamic = file.elf_program_headers().iter().find(|part| part.p_type(order) == elf::PT_DYNAMIC);
        let offset = header.e_phoff.get(order);
        let segment = file.segments().find(|segment| {
            let (from, size) = segment.file_range();
            (from..from.saturating_add(size)).contains(&offset)
        });
        let headers = segment.map(|segment| {
            let address = segment.address().wrapping_add(offset - segment.file_range().0);
            [address, header.e_phentsize.get(order).into(), header.e_phnum.get(order).into()]
        });
        Some(Self { entry: file.entry(), dynamic: dynamic.map(|part| part.p_vaddr(order)), headers })
    }
}

/// The types of the auxiliary vector's entries.
///
/// Source: System V Application Binary Interface, AMD64 Architecture Processor Supplement, "Auxiliary Vector".
mod at {
    pub(super) const NULL: u64 = 0;
    pub(super) const PHDR: u64 = 3;
    pub(super) const PHENT: u64 = 4;
    pub(super) const PHNUM: u64 = 5;
    pub(super) const PAGESZ: u64 = 6;
    pub(super) const BASE: u64 = 7;
    pub(super) const ENTRY: u64 = 9;
}

impl ProcessFiles {
    /// Describes the files: `objects` are those whose code was executed, each with the distance that it was moved.
    pub(super) fn new(program: Option<&Path>, objects: &[(PathBuf, u64)]) -> Self {
        let Some(program) = program else { return Self::default() };
        let own = program.canonicalize().ok();
        let is_program = |path: &Path| path == program || own.is_some() && path.canonicalize().ok() == own;
        let is_linker =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"));
        let mut auxv = vec![(at::PAGESZ, 0x1000)];
        let mut libraries = "<library-list-svr4 version=\"1.0\">".to_owned();
        for (path, moved) in objects {
            let Some(place) = ElfPlace::read(path) else { continue };
            if is_program(path) {
                auxv.push((at::ENTRY, place.entry.wrapping_add(*moved)));
                if let Some([address, size, count]) = place.headers {
                    auxv.extend([
                        (at::PHDR, address.wrapping_add(*moved)),
                        (at::PHENT, size),
                        (at::PHNUM, count),
                    ]);
                }
                continue;
            }
            if is_linker(path) {
                auxv.push((at::BASE, *moved));
            }
            let dynamic = place.dynamic.map_or(0, |dynamic| dynamic.wrapping_add(*moved));
            // The place of its link map is not known. GDB uses it as the library's name alone.
            let _ = write!(
                libraries,
                "<library name=\"{}\" lm=\"{dynamic:#x}\" l_addr=\"{moved:#x}\" l_ld=\"{dynamic:#x}\" lmid=\"0x0\"/>",
                escaped(&path.display().to_string())
            );
        }
        auxv.push((at::NULL, 0));
        Self {
            program: program.display().to_string(),
            libraries: libraries + "</library-list-svr4>",
            auxv: auxv
                .into_iter()
                .flat_map(|(kind, value)| [kind, value])
                .flat_map(u64::to_le_bytes)
                .collect(),
        }
    }
}

/// Escapes a text for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Returns where the writable segments of a file are that was moved so that its lowest segment is at `base`: what they
/// held while the program ran is not in the file.
pub(super) fn writable(path: &Path, base: Option<u64>) -> Vec<Range<u64>> {
    let Ok(bytes) = read_regular(path) else { return vec![] };
    let Ok(file) = object::File::parse(&*bytes) else { return vec![] };
    let lowest = file.segments().map(|segment| segment.address()).min().unwrap_or_default();
    let moved = base.map_or(0, |base| base.wrapping_sub(lowest));
    let is_writable =
        |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & elf::PF_W.0 != 0);
    let segments = file.segments().filter(|segment| is_writable(segment.flags()));
    let place = |segment: object::Segment<'_, '_>| {
        let from = segment.address().wrapping_add(moved);
        from..from.saturating_add(segment.size())
    };
    segments.map(place).collect()
}
