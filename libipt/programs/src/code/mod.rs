//! The code that was traced, in parts of files.

mod cache;

pub use cache::{CacheError, SectionCache, SectionId};

use pugmark_decoder_core::image::{AddressSpace, Section};

/// A section at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedSection {
    /// The address of its first byte.
    pub base: u64,
    /// The section.
    pub section: SectionId,
}

/// Returns the sections of an image, in which later parts hide earlier ones. Reads the sections that are not cached.
#[must_use]
pub fn sections<'c>(parts: &[MappedSection], cache: &'c SectionCache) -> Vec<Section<'c>> {
    let section = |part: &MappedSection| Section {
        base: part.base,
        bytes: cache.bytes(part.section),
        space: AddressSpace::Any,
    };
    parts.iter().map(section).collect()
}
