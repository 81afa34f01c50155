//! Extracts the traced code from the image that ran; a decoder needs it to follow the packets.

use anyhow::{Context, Result};
use object::{Object, ObjectSegment};
use pugmark_protocol::CodeSection;
use std::path::Path;

use crate::report::Run;

/// Bytes of code at an address, in one or all address spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The address at which they are executed.
    pub base: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The CR3 of the address space with these bytes; `None` means every address space.
    pub cr3: Option<u64>,
}

/// Returns the bytes of each section that a run names, read from the image's segments.
///
/// # Errors
/// If the image cannot be read, or a section begins in none of its segments.
pub fn of(run: &Run, image: &Path) -> Result<Vec<Code>> {
    let file = std::fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let elf = object::File::parse(&*file).with_context(|| format!("{} is no ELF", image.display()))?;
    let section = |code: &CodeSection| {
        let bytes = elf.segments().find_map(|segment| {
            let at = usize::try_from(code.from.checked_sub(segment.address())?).ok()?;
            segment.data().ok()?.get(at..).filter(|bytes| !bytes.is_empty())
        });
        let bytes = bytes.with_context(|| format!("the image has nothing at {:#x}", code.from))?;
        // A section of whole pages may be longer than its part in the file.
        let len = bytes.len().min(usize::try_from(code.len)?);
        Ok(Code { base: code.base, bytes: bytes[..len].to_vec(), cr3: code.cr3 })
    };
    run.code.iter().map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::testing::{self, CODE};

    #[test]
    fn code_is_what_the_image_has_there() {
        let scratch = Scratch::new().unwrap();
        let image = testing::image(&scratch, &[1, 2, 3, 4]);
        let of = |from: u64, len: u64, cr3: &str| {
            let text = format!("section base=0x5000 len={len} from={from:#x} cr3={cr3}");
            of(&testing::run("a", &text), &image).ok()
        };
        let code = |bytes: &[u8], cr3| Some(vec![Code { base: 0x5000, bytes: bytes.into(), cr3 }]);
        assert_eq!(of(CODE, 4, "any"), code(&[1, 2, 3, 4], None));
        assert_eq!(of(CODE + 1, 2, "0x7000"), code(&[2, 3], Some(0x7000)));
        // The section is a whole page, and the file has only its first bytes.
        assert_eq!(of(CODE + 3, 4096, "any"), code(&[4], None));
        assert_eq!((of(CODE + 4, 1, "any"), of(CODE - 1, 1, "any")), (None, None));
    }
}
