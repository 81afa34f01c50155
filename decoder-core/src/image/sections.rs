//! A list of sections that changes as code is mapped and unmapped.

use super::{AddressSpace, Image, Section};
use core::{fmt, ops::Range};

/// Sections in the caller's memory that follow a program's mappings.
///
/// ```
/// use pugmark_decoder_core::image::{AddressSpace, Section, Sections};
///
/// let space = AddressSpace::Cr3(0x5000);
/// let mut memory = [Section::EMPTY; 4];
/// let mut sections = Sections::new(&mut memory);
/// sections.map(Section { base: 0x1000, bytes: &[0x90; 0x100], space })?;
/// sections.unmap(0x1010..0x1020, space)?;
/// assert_eq!(sections.image().window(0x1000, None).unwrap().bytes.len(), 0x10);
/// assert_eq!(sections.image().window(0x1010, None), None);
/// assert_eq!(sections.image().window(0x1020, None).unwrap().bytes.len(), 0xe0);
/// # Ok::<(), pugmark_decoder_core::image::Full>(())
/// ```
#[derive(Debug)]
pub struct Sections<'m, 'a> {
    memory: &'m mut [Section<'a>],
    len: usize,
}

/// An error: there is no memory for one more section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory for one more section")
    }
}

impl core::error::Error for Full {}

impl Section<'_> {
    /// An empty section, to initialise memory with.
    pub const EMPTY: Self = Self { base: 0, bytes: &[], space: AddressSpace::Any };
}

impl<'m, 'a> Sections<'m, 'a> {
    /// Creates an empty list, with room for as many sections as `memory` has.
    #[must_use]
    pub const fn new(memory: &'m mut [Section<'a>]) -> Self {
        Self { memory, len: 0 }
    }

    /// Returns the image of these sections.
    #[must_use]
    pub fn image(&self) -> Image<'_> {
        Image::new(self.as_slice())
    }

    /// Returns the sections; a later one hides the overlapped part of an earlier one.
    #[must_use]
    pub fn as_slice(&self) -> &[Section<'a>] {
        self.memory.get(..self.len).unwrap_or_default()
    }

    /// Adds a section, which hides those parts of earlier ones that it overlaps.
    ///
    /// # Errors
    /// If there is no room.
    pub fn map(&mut self, section: Section<'a>) -> Result<(), Full> {
        self.insert(self.len, section)
    }

    /// Removes the last mapped section that equals this one; the parts that it hid are visible again. Returns `false`
    /// if there is none.
    pub fn remove(&mut self, section: &Section<'_>) -> bool {
        let Some(at) = self.as_slice().iter().rposition(|own| own == section) else { return false };
        self.memory.copy_within(at + 1..self.len, at);
        self.len -= 1;
        true
    }

    /// Removes all sections with exactly these address spaces: a section that is mapped in all spaces stays. Returns
    /// the number of sections removed.
    pub fn remove_space(&mut self, space: AddressSpace) -> usize {
        let before = self.len;
        self.len = 0;
        for at in 0..before {
            if let Some(&section) = self.memory.get(at).filter(|section| section.space != space) {
                self.memory[self.len] = section;
                self.len += 1;
            }
        }
        before - self.len
    }

    /// Removes these addresses from each section with exactly these address spaces, including the parts hidden by
    /// another such section.
    ///
    /// # Errors
    /// If a section is split in two and there is no room for the second part. Then nothing has changed.
    pub fn unmap(&mut self, addresses: Range<u64>, space: AddressSpace) -> Result<(), Full> {
        let of_space = |section: &Section<'_>| section.space == space;
        let cut = |section: &Section<'a>| (below(section, addresses.start), above(section, addresses.end));
        let is_split =
            |section: &&Section<'a>| of_space(section) && matches!(cut(section), (Some(_), Some(_)));
        let split = self.as_slice().iter().filter(is_split).count();
        if addresses.is_empty() {
            return Ok(());
        }
        if split > self.memory.len() - self.len {
            return Err(Full);
        }
        let mut at = 0;
        while let Some(section) = self.as_slice().get(at).copied() {
            match cut(&section) {
                _ if !of_space(&section) => at += 1,
                (Some(below), above) => {
                    self.memory[at] = below;
                    at += 1;
                    if let Some(above) = above {
                        self.insert(at, above)?;
                        at += 1;
                    }
                }
                (None, Some(above)) => {
                    self.memory[at] = above;
                    at += 1;
                }
                (None, None) => {
                    self.memory.copy_within(at + 1..self.len, at);
                    self.len -= 1;
                }
            }
        }
        Ok(())
    }

    fn insert(&mut self, at: usize, section: Section<'a>) -> Result<(), Full> {
        if self.len == self.memory.len() {
            return Err(Full);
        }
        self.memory.copy_within(at..self.len, at + 1);
        self.memory[at] = section;
        self.len += 1;
        Ok(())
    }
}

/// Returns the part of a section below `end`.
fn below<'a>(section: &Section<'a>, end: u64) -> Option<Section<'a>> {
    let len = usize::try_from(end.saturating_sub(section.base)).unwrap_or(usize::MAX);
    let bytes = section.bytes.get(..len).unwrap_or(section.bytes);
    (!bytes.is_empty()).then_some(Section { bytes, ..*section })
}

/// Returns the part of a section from `start` on.
fn above<'a>(section: &Section<'a>, start: u64) -> Option<Section<'a>> {
    let base = start.max(section.base);
    let bytes = section.bytes.get(usize::try_from(base - section.base).ok()?..)?;
    (!bytes.is_empty()).then_some(Section { base, bytes, ..*section })
}
