//! Traced code, in the form in which it is reported.

use pugmark_decoder_core::image::Section;
use pugmark_protocol::CodeSection;

/// Describes a section. Its bytes must be the image's.
#[must_use]
pub fn code_section(section: &Section<'_>) -> CodeSection {
    CodeSection {
        base: section.base,
        len: section.bytes.len() as u64,
        from: section.bytes.as_ptr() as u64,
        cr3: section.space.cr3(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::image::AddressSpace;

    #[test]
    fn code_has_two_addresses_and_an_address_space() {
        let bytes = [0x90; 3];
        let from = bytes.as_ptr() as u64;
        for (space, cr3) in [(AddressSpace::Any, None), (AddressSpace::Cr3(0x5000), Some(0x5000))] {
            let section = code_section(&Section { base: 0x1000, bytes: &bytes, space });
            assert_eq!(section, CodeSection { base: 0x1000, len: 3, from, cr3 });
        }
    }
}
