//! The code that was traced: bytes with their addresses and address spaces.
//!
//! ```
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! let sections = [
//!     Section { base: 0x1000, bytes: &[0x90; 16], space: AddressSpace::Any },
//!     // Breakpoints were written over two bytes later on.
//!     Section { base: 0x1004, bytes: &[0xcc; 2], space: AddressSpace::Any },
//! ];
//! let image = Image::new(&sections);
//! let window = image.window(0x1000, None).unwrap();
//! assert_eq!((window.base, window.bytes), (0x1000, &[0x90; 4][..]));
//! assert_eq!(image.window(0x1005, None).unwrap().bytes, &[0xcc; 2]);
//! assert_eq!(image.window(0x1010, None), None);
//! // Before that there was only the first section.
//! assert_eq!(Image::new(&sections[..1]).window(0x1005, None).unwrap().bytes.len(), 16);
//! ```
//!
//! Code that changes while it is traced needs an image for each state: switch the decoder between two items with
//! [`set_image`](crate::flow::InsnDecoder::set_image). An image refers to a slice of sections, so for a program that
//! only maps more code, each image can be a longer part of the same slice. If code is unmapped too, use [`Sections`]. A
//! [`CodeReader`] supplies code that is not in memory but can be fetched.

mod reader;
mod sections;
mod space;
#[cfg(test)]
mod tests;

pub use reader::CodeReader;
pub use sections::{Full, Sections};
pub use space::{AddressSpace, Asid};

/// A contiguous part of the traced code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// The address of the first byte.
    pub base: u64,
    /// The bytes; those above the end of the address space are ignored.
    pub bytes: &'a [u8],
    /// The address spaces that they are mapped in.
    pub space: AddressSpace,
}

/// The traced code: sections, of which a later one hides the overlapped part of an earlier one, and a reader for
/// addresses in no section.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    sections: &'a [Section<'a>],
    reader: Option<CodeReader<'a>>,
    /// True if the sections are in order and none overlaps another, which allows a binary search.
    apart: bool,
    /// The number of bytes in all sections.
    size: u64,
}

/// Contiguous bytes of an image in one address space, from one section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window<'a> {
    /// The address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> Window<'a> {
    /// Returns the bytes from `ip` to the end of the window; empty when `ip` is not in it.
    #[must_use]
    #[inline]
    pub fn from(&self, ip: u64) -> &'a [u8] {
        usize::try_from(ip.wrapping_sub(self.base))
            .ok()
            .and_then(|at| self.bytes.get(at..))
            .unwrap_or_default()
    }
}

impl<'a> Image<'a> {
    /// Creates the image of these sections.
    #[must_use]
    pub const fn new(sections: &'a [Section<'a>]) -> Self {
        Self { sections, reader: None, apart: are_apart(sections), size: size(sections) }
    }

    /// Returns the same image, with bytes from `reader` at addresses in no section.
    #[must_use]
    pub const fn with_reader(self, reader: CodeReader<'a>) -> Self {
        Self { reader: Some(reader), ..self }
    }

    /// Returns the sections.
    #[must_use]
    pub const fn sections(&self) -> &'a [Section<'a>] {
        self.sections
    }

    /// Returns the number of bytes in the sections, including hidden ones.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the reader for addresses in no section.
    #[must_use]
    pub(crate) const fn reader(&self) -> Option<CodeReader<'a>> {
        self.reader
    }

    /// Returns the bytes around `ip`, as far as they are in one section and no later section hides them.
    #[must_use]
    pub fn window(&self, ip: u64, space: impl Into<Asid>) -> Option<Window<'a>> {
        let space = space.into();
        if self.apart {
            let section = self.sections.get(self.apart_at(ip)?)?;
            let last = section.addresses().filter(|_| section.space.contains(space))?.end() - section.base;
            return Some(Window {
                base: section.base,
                bytes: section.bytes.get(..=usize::try_from(last).ok()?)?,
            });
        }
        let mut later = self.sections_of(space);
        let section = later.find(|section| section.addresses().is_some_and(|all| all.contains(&ip)))?;
        let mapped = section.addresses()?;
        let (mut low, mut high) = (*mapped.start(), *mapped.end());
        for hiding in self.sections_of(space).take_while(|hiding| !core::ptr::eq(*hiding, section)) {
            let Some(hidden) = hiding.addresses() else { continue };
            if *hidden.start() > ip {
                high = high.min(hidden.start() - 1);
            } else {
                low = low.max(hidden.end() + 1);
            }
        }
        let range = usize::try_from(low - section.base).ok()?..=usize::try_from(high - section.base).ok()?;
        Some(Window { base: low, bytes: section.bytes.get(range)? })
    }

    /// Returns the number of the section that a window is a part of; `None` for bytes from elsewhere.
    pub(crate) fn section_of(&self, window: &Window<'_>) -> Option<usize> {
        let start = window.bytes.as_ptr();
        let holds = |section: &Section<'_>| {
            section.bytes.as_ptr_range().contains(&start)
                && section.base.wrapping_add((start as usize - section.bytes.as_ptr() as usize) as u64)
                    == window.base
        };
        if self.apart {
            return self.apart_at(window.base).filter(|number| self.sections.get(*number).is_some_and(holds));
        }
        // A later section hides an earlier one.
        self.sections.iter().rposition(holds)
    }

    /// Returns the number of the only section with a byte at `ip`, if sections do not overlap.
    fn apart_at(&self, ip: u64) -> Option<usize> {
        let number = self.sections.partition_point(|section| section.base <= ip).checked_sub(1)?;
        self.sections.get(number)?.addresses()?.contains(&ip).then_some(number)
    }

    /// Copies bytes from `ip` on, across sections, up to the first gap, and returns their number.
    #[must_use]
    pub fn read(&self, ip: u64, space: impl Into<Asid>, out: &mut [u8]) -> usize {
        let space = space.into();
        let mut read = 0;
        while let Some(rest) = out.get_mut(read..).filter(|rest| !rest.is_empty()) {
            let Some(at) = ip.checked_add(read as u64) else { break };
            let len = match self.window(at, space) {
                Some(window) => copy(window.from(at), rest),
                None => self.read_elsewhere(at, space, rest),
            };
            if len == 0 {
                break;
            }
            read += len;
        }
        read
    }

    /// Returns true if there is a byte at `ip`.
    #[must_use]
    pub fn has(&self, ip: u64, space: impl Into<Asid>) -> bool {
        self.read(ip, space, &mut [0]) == 1
    }

    /// Reads bytes in no section with the reader, from `ip` at most up to the next section.
    #[cold]
    fn read_elsewhere(&self, ip: u64, space: Asid, out: &mut [u8]) -> usize {
        let Some(reader) = self.reader else { return 0 };
        let sections = self.sections_of(space).filter_map(Section::addresses);
        let after = sections.map(|section| *section.start()).filter(|start| *start > ip);
        // Without a later section there is room up to and including the last address.
        let room = after.min().map_or((u64::MAX - ip).saturating_add(1), |start| start - ip);
        let len = usize::try_from(room).unwrap_or(usize::MAX).min(out.len());
        out.get_mut(..len).map_or(0, |out| reader.read(out, ip, space))
    }

    /// Iterates over the sections that are mapped in `space`, the last (topmost) first.
    fn sections_of(&self, space: Asid) -> impl Iterator<Item = &'a Section<'a>> {
        self.sections.iter().rev().filter(move |section| section.space.contains(space))
    }
}

impl Section<'_> {
    /// Returns the first and the last address, inclusive because a section may end with the address space. `None` for
    /// an empty section.
    fn addresses(&self) -> Option<core::ops::RangeInclusive<u64>> {
        let len = u64::try_from(self.bytes.len()).ok()?.checked_sub(1)?;
        Some(self.base..=self.base.saturating_add(len))
    }
}

/// Returns true if sections are in order, none is empty, and none overlaps another.
const fn are_apart(sections: &[Section<'_>]) -> bool {
    let mut rest = sections;
    // The first address after the previous sections.
    let mut free = Some(0);
    while let [section, after @ ..] = rest {
        match free {
            Some(free) if section.base >= free && !section.bytes.is_empty() => {}
            _ => return false,
        }
        free = section.base.checked_add(section.bytes.len() as u64);
        rest = after;
    }
    true
}

const fn size(sections: &[Section<'_>]) -> u64 {
    let (mut rest, mut size) = (sections, 0_u64);
    while let [section, after @ ..] = rest {
        size = size.saturating_add(section.bytes.len() as u64);
        rest = after;
    }
    size
}

/// Copies as many bytes as both slices allow and returns their number.
fn copy(bytes: &[u8], out: &mut [u8]) -> usize {
    bytes.iter().zip(out).map(|(byte, out)| *out = *byte).count()
}
