//! The code that was traced: bytes, where they were in memory, and in which address space.
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
//! ```

/// Some bytes of the traced code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// The address of the first byte.
    pub base: u64,
    /// The bytes; what lies above the end of the address space is ignored.
    pub bytes: &'a [u8],
    /// Where they are mapped.
    pub space: AddressSpace,
}

/// The address spaces that a section is mapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// All of them.
    Any,
    /// The one with this CR3. Bits 4:0 do not count; PIP packets do not have them.
    Cr3(u64),
}

impl AddressSpace {
    /// Whether `cr3` is among them; one that is not known is among all.
    #[must_use]
    pub const fn contains(self, cr3: Option<u64>) -> bool {
        match (self, cr3) {
            (Self::Any, _) | (_, None) => true,
            (Self::Cr3(own), Some(cr3)) => (own ^ cr3) >> 5 == 0,
        }
    }
}

/// The traced code: sections, of which a later one hides what is behind it of an earlier one.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    sections: &'a [Section<'a>],
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
    /// The bytes from `ip` to the end of the window; empty when `ip` is not in it.
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
    /// The image of these sections.
    #[must_use]
    pub const fn new(sections: &'a [Section<'a>]) -> Self {
        Self { sections }
    }

    /// The sections.
    #[must_use]
    pub const fn sections(&self) -> &'a [Section<'a>] {
        self.sections
    }

    /// The bytes around `ip`, as far as they are in one section and no later section hides them.
    #[must_use]
    pub fn window(&self, ip: u64, cr3: Option<u64>) -> Option<Window<'a>> {
        let mapped = |section: &&Section<'_>| section.space.contains(cr3);
        // From here on ends are the last byte's address: what ends with the address space has no other.
        let mut later = self.sections.iter().rev().filter(mapped);
        let section =
            later.find(|section| last(section).is_some_and(|last| (section.base..=last).contains(&ip)))?;
        let (mut low, mut high) = (section.base, last(section)?);
        let hiding =
            self.sections.iter().rev().filter(mapped).take_while(|hiding| !core::ptr::eq(*hiding, section));
        for hiding in hiding {
            let Some(last) = last(hiding) else { continue };
            if hiding.base > ip {
                high = high.min(hiding.base - 1);
            } else if last < ip {
                low = low.max(last + 1);
            }
        }
        let range = usize::try_from(low - section.base).ok()?..=usize::try_from(high - section.base).ok()?;
        Some(Window { base: low, bytes: section.bytes.get(range)? })
    }

    /// Copies bytes from `ip` on, over the borders of sections, and returns how many there are without a gap.
    #[must_use]
    pub fn read(&self, ip: u64, cr3: Option<u64>, out: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(rest) = out.get_mut(read..).filter(|rest| !rest.is_empty()) {
            let Some(at) = ip.checked_add(read as u64) else { break };
            let Some(window) = self.window(at, cr3) else { break };
            let bytes = window.from(at);
            let len = bytes.len().min(rest.len());
            rest[..len].copy_from_slice(&bytes[..len]);
            read += len;
        }
        read
    }
}

/// The address of a section's last byte, `None` for an empty one.
fn last(section: &Section<'_>) -> Option<u64> {
    let len = u64::try_from(section.bytes.len()).ok()?.checked_sub(1)?;
    Some(section.base.saturating_add(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: AddressSpace = AddressSpace::Any;

    fn section(base: u64, bytes: &[u8], space: AddressSpace) -> Section<'_> {
        Section { base, bytes, space }
    }

    #[test]
    fn later_sections_hide_earlier_ones() {
        let (a, b, c) = ([0xaa; 16], [0xbb; 4], [0xcc; 8]);
        // a: 100..110, b: 104..108, c: 10e..116
        let sections = [section(0x100, &a, ANY), section(0x104, &b, ANY), section(0x10e, &c, ANY)];
        let image = Image::new(&sections);
        for (ip, base, byte, len) in [
            (0x100, 0x100, 0xaa, 4),
            (0x103, 0x100, 0xaa, 4),
            (0x104, 0x104, 0xbb, 4),
            (0x107, 0x104, 0xbb, 4),
            (0x108, 0x108, 0xaa, 6),
            (0x10d, 0x108, 0xaa, 6),
            (0x10e, 0x10e, 0xcc, 8),
            (0x115, 0x10e, 0xcc, 8),
        ] {
            let window = image.window(ip, None).unwrap();
            assert_eq!((window.base, window.bytes), (base, &[byte; 16][..len]), "{ip:#x}");
        }
        for ip in [0, 0xff, 0x116, u64::MAX] {
            assert_eq!(image.window(ip, None), None, "{ip:#x}");
        }
    }

    #[test]
    fn an_address_space_sees_its_own_sections_and_those_of_all() {
        let sections = [
            section(0x100, &[0xaa], ANY),
            section(0x100, &[0xbb], AddressSpace::Cr3(0x2000)),
            section(0x200, &[0xcc], AddressSpace::Cr3(0x3000)),
        ];
        let image = Image::new(&sections);
        for (ip, cr3, byte) in [
            (0x100, Some(0x1000), Some(0xaa)),
            (0x100, Some(0x2000), Some(0xbb)),
            (0x100, Some(0x2018), Some(0xbb)),
            (0x100, Some(0x2020), Some(0xaa)),
            (0x100, None, Some(0xbb)),
            (0x200, Some(0x1000), None),
            (0x200, Some(0x3000), Some(0xcc)),
        ] {
            let window = image.window(ip, cr3);
            assert_eq!(window.map(|window| window.bytes[0]), byte, "{ip:#x} in {cr3:x?}");
        }
    }

    #[test]
    fn sections_end_with_the_address_space() {
        let bytes = [1, 2, 3, 4];
        let sections = [section(u64::MAX - 1, &bytes, ANY), section(0x10, &[], ANY)];
        let image = Image::new(&sections);
        assert_eq!(image.window(u64::MAX, None), Some(Window { base: u64::MAX - 1, bytes: &bytes[..2] }));
        assert_eq!(image.window(0, None), None);
        assert_eq!(image.window(0x10, None), None);
        assert_eq!(image.read(u64::MAX - 1, None, &mut [0; 8]), 2);
    }

    #[test]
    fn reads_over_the_borders_of_sections() {
        let sections = [section(0x100, &[1, 2], ANY), section(0x102, &[3], ANY), section(0x104, &[5], ANY)];
        let mut out = [0; 4];
        let read = Image::new(&sections).read(0x101, None, &mut out);
        assert_eq!((read, out), (2, [2, 3, 0, 0]));
    }

    #[test]
    fn a_window_gives_the_bytes_behind_an_address_in_it() {
        let window = Window { base: 0x100, bytes: &[1, 2, 3] };
        for (ip, bytes) in [(0xff, &[][..]), (0x100, &[1, 2, 3]), (0x102, &[3]), (0x103, &[]), (0x104, &[])] {
            assert_eq!(window.from(ip), bytes, "{ip:#x}");
        }
    }
}
