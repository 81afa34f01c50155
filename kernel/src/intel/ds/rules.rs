//! The manual's requirements and recommendations for the memory of a DS save area.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "Setting Up the DS
//! Save Area".

use super::DsCapabilities;
use super::layout::Half;
use super::memory::{LinearMemory, LinearPage, MemoryType};
use super::plan::{BufferMode, BufferPlan, Division, ENOUGH};
use core::fmt;
use x86_64::VirtAddr;
use x86_64::structures::paging::PageTableFlags;

/// A broken rule, and where it is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The page is not present in this address space: its page tables were created later, are filled in lazily, or are
    /// the isolated ones for user code.
    NotPresent(Place),
    /// The kernel may unmap the page.
    Pageable(Place),
    /// The page cannot be written to.
    NotWritable(Place),
    /// User code can reach the page.
    UserAccessible(Place),
    /// The page is not marked accessed: the processor does not set the mark when it writes records.
    NotAccessed(Place),
    /// The page is not marked dirty: the processor does not set the mark when it writes records.
    NotDirty(Place),
    /// The address is mapped to a different page in this address space.
    MappedElsewhere(Place),
    /// The page contains code: each record would count as self-modifying code.
    HoldsCode(Place),
    /// Bit 20 of the address is set, and A20M# could be asserted.
    Bit20 {
        /// The address.
        address: u64,
    },
    /// The address is not canonical.
    NotCanonical {
        /// The address.
        address: u64,
        /// The bits of a linear address.
        bits: u8,
    },
    /// The kernel reports no address space at all, so it is unknown where the area is mapped.
    NoAddressSpace,
}

/// A page in an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address of the page.
    pub address: u64,
    /// The number of the address space.
    pub space: usize,
}

/// The choice to enforce the manual's recommendations as rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Enforces only the requirements.
    Lenient,
    /// Enforces the recommendations as well.
    Strict,
}

/// A recommendation of the manual that the area does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A buffer does not begin on a cache line.
    CacheLine {
        /// The address at which it begins.
        address: u64,
    },
    /// The size of a buffer is not a multiple of the record size.
    Remainder {
        /// The size.
        bytes: u64,
        /// The size of a record.
        record_bytes: u64,
    },
    /// The memory type of a page is not write-back.
    NotWriteBack {
        /// The page.
        address: u64,
        /// The page's memory type.
        memory_type: MemoryType,
    },
    /// Few records are kept free for the time until a PMI is served.
    FewSpare {
        /// The number of records kept free.
        spare: u32,
    },
}

/// The first warning of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warnings([Option<Warning>; 4]);

impl Warnings {
    /// Returns the warnings.
    pub fn iter(&self) -> impl Iterator<Item = Warning> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Adds the warnings about sizes.
    pub(super) fn of_plan(&mut self, half: Half, plan: &BufferPlan, division: &Division) {
        let record_bytes = division.record_bytes;
        if plan.bytes % record_bytes != 0 {
            self.add(Warning::Remainder { bytes: plan.bytes, record_bytes });
        }
        match plan.mode {
            // For samples the sufficient number depends on their periods, which only the configuration knows.
            BufferMode::Interrupt { spare } if half == Half::Bts && spare < ENOUGH => {
                self.add(Warning::FewSpare { spare })
            }
            _ => {}
        }
    }

    fn add(&mut self, warning: Warning) {
        let kind = match warning {
            Warning::CacheLine { .. } => 0,
            Warning::Remainder { .. } => 1,
            Warning::NotWriteBack { .. } => 2,
            Warning::FewSpare { .. } => 3,
        };
        self.0[kind].get_or_insert(warning);
    }
}

/// Checks all pages of a block in all address spaces.
pub(super) fn check(
    memory: &impl LinearMemory,
    start: u64,
    bytes: u64,
    capabilities: &DsCapabilities,
    warnings: &mut Warnings,
) -> Result<(), Rule> {
    let spaces = memory.spaces();
    if spaces == 0 {
        return Err(Rule::NoAddressSpace);
    }
    let last = start + (bytes - 1);
    for address in [start, last] {
        check_canonical(address, capabilities.linear_address_bits)?;
    }
    if start % CACHE_LINE != 0 {
        warnings.add(Warning::CacheLine { address: start });
    }
    for address in (start & !PAGE_OFFSET..=last).step_by(PAGE_OFFSET as usize + 1) {
        if address & BIT_20 != 0 && memory.a20m() {
            return Err(Rule::Bit20 { address: address.max(start) });
        }
        let mut first = None;
        for space in 0..spaces {
            let place = Place { address, space };
            let page = memory.page(space, VirtAddr::new_truncate(address)).ok_or(Rule::NotPresent(place))?;
            check_page(&page, place)?;
            if *first.get_or_insert(page.frame) != page.frame {
                return Err(Rule::MappedElsewhere(place));
            }
            if page.memory_type != MemoryType::WriteBack {
                warnings.add(Warning::NotWriteBack { address, memory_type: page.memory_type });
            }
        }
    }
    Ok(())
}

fn check_page(page: &LinearPage, place: Place) -> Result<(), Rule> {
    let has = |flag| page.flags.contains(flag);
    let table = [
        (!has(PageTableFlags::PRESENT), Rule::NotPresent(place)),
        (page.pageable, Rule::Pageable(place)),
        (!has(PageTableFlags::WRITABLE), Rule::NotWritable(place)),
        (has(PageTableFlags::USER_ACCESSIBLE), Rule::UserAccessible(place)),
        (!has(PageTableFlags::ACCESSED), Rule::NotAccessed(place)),
        (!has(PageTableFlags::DIRTY), Rule::NotDirty(place)),
        (page.holds_code, Rule::HoldsCode(place)),
    ];
    table.into_iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, rule)| Err(rule))
}

fn check_canonical(address: u64, bits: u8) -> Result<(), Rule> {
    let unused = 64 - u32::from(bits.clamp(1, 64));
    match (address << unused) as i64 >> unused == address as i64 {
        true => Ok(()),
        false => Err(Rule::NotCanonical { address, bits }),
    }
}

const CACHE_LINE: u64 = 64;
const PAGE_OFFSET: u64 = 0xfff;
const BIT_20: u64 = 1 << 20;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the page at {:#x} in address space {}", self.address, self.space)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPresent(place) => write!(
                f,
                "{place} is not present: the DS save area must be mapped wherever the processor may trace, also in \
                 isolated page tables"
            ),
            Self::Pageable(place) => write!(f, "{place} may be taken away while the processor records"),
            Self::NotWritable(place) => write!(f, "{place} is not writable"),
            Self::UserAccessible(place) => write!(f, "{place} is accessible to user code"),
            Self::NotAccessed(place) => write!(f, "{place} is not marked accessed"),
            Self::NotDirty(place) => write!(f, "{place} is not marked dirty"),
            Self::MappedElsewhere(place) => write!(f, "{place} is another one than in address space 0"),
            Self::HoldsCode(place) => write!(f, "{place} holds code"),
            Self::Bit20 { address } => {
                write!(f, "bit 20 of {address:#x} is set, and A20M# could be asserted")
            }
            Self::NotCanonical { address, bits } => {
                write!(f, "{address:#x} is not canonical with {bits} bits of linear address")
            }
            Self::NoAddressSpace => f.write_str("the kernel names no address space to check"),
        }
    }
}

impl core::error::Error for Rule {}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheLine { address } => {
                write!(f, "the buffer at {address:#x} does not begin on a cache line")
            }
            Self::Remainder { bytes, record_bytes } => {
                write!(f, "a buffer of {bytes} bytes is no multiple of its records' {record_bytes}")
            }
            Self::NotWriteBack { address, memory_type } => {
                write!(f, "the page at {address:#x} is {memory_type:?} and not write-back memory")
            }
            Self::FewSpare { spare } => {
                write!(f, "only {spare} records are kept free for the time until a PMI is served")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeLinear;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn the_first_warning_of_each_kind_is_kept_beside_the_others() {
        let kinds = |n: u64| {
            [
                Warning::CacheLine { address: n },
                Warning::Remainder { bytes: n, record_bytes: 24 },
                Warning::NotWriteBack { address: n, memory_type: MemoryType::Uncacheable },
                Warning::FewSpare { spare: n as u32 },
            ]
        };
        for first in 0..4 {
            let mut warnings = Warnings::default();
            for n in 0..4 {
                warnings.add(kinds(1)[(first + n) % 4]);
                assert_eq!(warnings.iter().count(), n + 1);
            }
            kinds(2).into_iter().for_each(|warning| warnings.add(warning));
            assert_eq!(warnings.iter().collect::<Vec<_>>(), kinds(1));
        }
    }

    #[test]
    fn each_page_that_has_a_byte_of_the_block_is_looked_at_and_no_other() {
        let capabilities = DsCapabilities {
            control: crate::msr::DebugCtlLayout::Ia32,
            layout: crate::intel::ds::DsLayout::Bits64,
            cpl_qualified: true,
            bts: true,
            pebs: Err(crate::lifecycle::Missing::LastBranchDepth),
            processor_trace: false,
            global_status: true,
            linear_address_bits: 48,
        };
        for (start, bytes, pages) in [
            (0x1000, 1, 0x1000..=0x1000),
            (0x1000, 0x1000, 0x1000..=0x1000),
            (0x1000, 0x1001, 0x1000..=0x2000),
            (0x1fff, 1, 0x1000..=0x1000),
            (0x1fff, 2, 0x1000..=0x2000),
            (0x1840, 0x17c0, 0x1000..=0x2000),
            (0x1840, 0x17c1, 0x1000..=0x3000),
        ] {
            let memory = FakeLinear::new();
            let seen = Rc::new(RefCell::new(Vec::new()));
            let seen_by_memory = seen.clone();
            memory.spoil(move |_, address, _| seen_by_memory.borrow_mut().push(address));
            memory.set_spaces(1);
            assert_eq!(check(&memory, start, bytes, &capabilities, &mut Warnings::default()), Ok(()));
            assert_eq!(*seen.borrow(), pages.step_by(0x1000).collect::<Vec<_>>(), "{start:#x} {bytes:#x}");
        }
        // The last byte counts, too, for the bits of an address.
        let end = (1 << 47) - 0x1000;
        for (bytes, address) in [(0x1000, None), (0x1001, Some(1 << 47))] {
            let found = check(&FakeLinear::new(), end, bytes, &capabilities, &mut Warnings::default());
            assert_eq!(found.err(), address.map(|address| Rule::NotCanonical { address, bits: 48 }));
        }
    }
}
