//! Where functions begin and end by a file's unwind tables, which stay when its symbols are stripped.

use super::table::MOST_FUNCTIONS;
use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection};
use object::{Object, ObjectSection};
use std::ops::Range;

/// Where functions begin and end, in the order of their addresses; none overlaps another.
#[derive(Clone, Debug, Default)]
pub(super) struct FunctionExtents(Vec<(u64, u64)>);

impl FunctionExtents {
    /// Reads `.eh_frame`, up to its first entry that is damaged. Compilers write an entry for each function, and for
    /// each part of one that lies elsewhere; assemblers only where they are told to.
    ///
    /// Source: Linux Standard Base Core Specification, "Exception Frames", "The .eh_frame section".
    pub(super) fn of(file: &object::File<'_>) -> Self {
        let Some(section) = file.section_by_name(".eh_frame") else { return Self::default() };
        let Ok(bytes) = section.data() else { return Self::default() };
        let mut frames = EhFrame::from(EndianSlice::new(bytes, LittleEndian));
        frames.set_address_size(if file.is_64() { 8 } else { 4 });
        let address = |name| file.section_by_name(name).map_or(0, |section| section.address());
        let bases = BaseAddresses::default()
            .set_eh_frame(section.address())
            .set_text(address(".text"))
            .set_got(address(".got"));
        let (mut entries, mut found) = (frames.entries(&bases), vec![]);
        while let Ok(Some(entry)) = entries.next()
            && found.len() < MOST_FUNCTIONS
        {
            let CieOrFde::Fde(entry) = entry else { continue };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else { break };
            found.push((entry.initial_address(), entry.initial_address().saturating_add(entry.len())));
        }
        Self::sorted(found)
    }

    fn sorted(mut found: Vec<(u64, u64)>) -> Self {
        found.sort_unstable();
        let mut end = 0;
        found.retain(|extent| {
            let is_apart = extent.0 >= end && extent.1 > extent.0;
            end = if is_apart { extent.1 } else { end };
            is_apart
        });
        found.shrink_to_fit();
        Self(found)
    }

    /// Finds the function that an address is in.
    pub(super) fn find(&self, address: u64) -> Option<Range<u64>> {
        let number = self.0.partition_point(|(begin, _)| *begin <= address).checked_sub(1)?;
        let (begin, end) = self.0[number];
        (address < end).then_some(begin..end)
    }

    /// Returns the end of the last function that ends at an address or before it; 0 if none does.
    pub(super) fn end_before(&self, address: u64) -> u64 {
        let after = self.0.partition_point(|(_, end)| *end <= address);
        after.checked_sub(1).map_or(0, |number| self.0[number].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_one_function_or_in_none() {
        let extents = FunctionExtents::sorted(vec![(0x30, 0x40), (0x10, 0x20), (0x18, 0x28), (0x50, 0x50)]);
        for (address, found, end) in [
            (0xf, None, 0),
            (0x10, Some(0x10..0x20), 0),
            (0x1f, Some(0x10..0x20), 0),
            (0x20, None, 0x20),
            (0x30, Some(0x30..0x40), 0x20),
            (0x50, None, 0x40),
        ] {
            assert_eq!((extents.find(address), extents.end_before(address)), (found, end), "{address:#x}");
        }
    }
}
