//! The edges of a recorded part, added to a map.

use libafl::Error;
use pugmark_decoder_core::block::BlockDecoder;
use pugmark_decoder_core::block_cache::BlockCache;
use pugmark_decoder_core::block_cache::edges::{EDGES, EdgeMap};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_recorder::files::{CODE, IMAGE, TRACE};
use serde_json::Value;
use std::{fs, path::Path};

/// The number of words of the memory for decoded blocks: 1 MiB. Of larger programs blocks are decoded more than once.
const BLOCK_WORDS: usize = 1 << 18;

/// A decoder of recorded parts, with its memory for the blocks of their code.
#[derive(Debug)]
pub struct EdgeDecoder {
    blocks: Vec<u32>,
}

impl Default for EdgeDecoder {
    fn default() -> Self {
        Self { blocks: vec![0; BLOCK_WORDS] }
    }
}

impl EdgeDecoder {
    /// Adds the edges of the recorded part in `folder` to `counts`, each of which stays at 255.
    ///
    /// # Errors
    /// If a file of the part cannot be read, or if the trace cannot be decoded. The edges before the error are in
    /// `counts`.
    pub fn add(&mut self, folder: &Path, counts: &mut [u8; EDGES]) -> Result<(), Error> {
        let read = |name| {
            let path = folder.join(name);
            fs::read(&path).map_err(|error| Error::os_error(error, format!("cannot read {}", path.display())))
        };
        let (trace, code, image) = (read(TRACE)?, read(CODE)?, read(IMAGE)?);
        let bad = |file, why: &str| Error::illegal_state(format!("{}: {why}", folder.join(file).display()));
        let image: Value = serde_json::from_slice(&image).map_err(|error| bad(IMAGE, &error.to_string()))?;
        let sections = image["sections"].as_array().into_iter().flatten();
        let sections: Option<Vec<_>> = sections.map(|section| code_of(section, &code)).collect();
        let sections = sections.ok_or_else(|| bad(IMAGE, "a section is not in the file of code"))?;
        let mut cache = BlockCache::new(&mut self.blocks);
        let mut edges = EdgeMap::<true>::new(counts);
        let mut decoder = BlockDecoder::new(&trace, Image::new(&sections));
        while decoder.sync_forward().is_some() {
            decoder.visit(&mut cache, &mut edges).map_err(|error| bad(TRACE, &error.to_string()))?;
        }
        Ok(())
    }
}

/// Returns a section of an image; `None` if its bytes are not all in `code`.
fn code_of<'c>(section: &Value, code: &'c [u8]) -> Option<Section<'c>> {
    let number = |name: &str| section[name].as_u64();
    let offset = usize::try_from(number("offset")?).ok()?;
    let bytes = code.get(offset..)?.get(..usize::try_from(number("len")?).ok()?)?;
    Some(Section { base: number("vaddr")?, bytes, space: AddressSpace::Any })
}
