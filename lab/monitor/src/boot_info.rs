//! The information that a boot loader passes to a kernel, independent of the protocol.

/// The information that a guest receives at boot.
#[derive(Clone, Copy, Debug)]
pub struct BootInfo<'a> {
    /// The guest's command line.
    pub command_line: &'a str,
    /// Files in memory.
    pub modules: &'a [BootModule<'a>],
    /// The memory map, in ascending order.
    pub memory: &'a [MemoryRange],
    /// Physical address of ACPI's root pointer; 0 if unknown.
    pub rsdp: u64,
}

/// The name by which a kernel knows its boot loader.
pub const LOADER: &str = "pugmark-monitor";

impl BootInfo<'_> {
    /// Returns the sizes, in KiB, of the memory from address 0 on, and from 1 MiB on.
    #[must_use]
    pub fn basic_memory(&self) -> [u32; 2] {
        [0, 1 << 20].map(|start| {
            let range = self.memory.iter().find(|range| range.start == start);
            range.map_or(0, |range| (range.bytes >> 10) as u32)
        })
    }
}

/// A file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// Physical address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A file in memory, as a kernel gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootModule<'a> {
    /// The location.
    pub place: Module,
    /// The words that belong to the file, such as its name or a command line.
    pub words: &'a str,
}

impl Module {
    /// Returns the address after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// A range of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The use of the range.
    pub kind: MemoryKind,
}

impl MemoryRange {
    /// Returns the address after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// The use of a range, with the type numbers of the BIOS function E820h.
///
/// Source: ACPI specification, "System Address Map Interfaces".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Free to use.
    Ram,
    /// Not to be used.
    Reserved,
    /// ACPI tables.
    Acpi,
    /// ACPI non-volatile storage.
    AcpiNvs,
    /// A type number without a meaning here.
    Other(u32),
}

impl MemoryKind {
    /// Returns the kind for an E820h number.
    #[must_use]
    pub const fn from_e820(number: u32) -> Self {
        match number {
            1 => Self::Ram,
            2 => Self::Reserved,
            3 => Self::Acpi,
            4 => Self::AcpiNvs,
            other => Self::Other(other),
        }
    }

    /// Returns the E820h number of the kind.
    #[must_use]
    pub const fn to_e820(self) -> u32 {
        match self {
            Self::Ram => 1,
            Self::Reserved => 2,
            Self::Acpi => 3,
            Self::AcpiNvs => 4,
            Self::Other(other) => other,
        }
    }
}
