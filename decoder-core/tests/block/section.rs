//! The section that a block is in, and the truncation of its last instruction.

use pugmark_decoder_core::{
    block::{BlockDecoder, BlockItem},
    block_cache::BlockCache,
    image::{AddressSpace, Image, Section},
};

/// PSB, MODE.Exec (64 bit), FUP (1002), PSBEND, then TIP (1002) four times, and enough bytes for the fast path.
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\x02\x10\0\0\0\0\x02\x23\
    \x2d\x02\x10\x2d\x02\x10\x2d\x02\x10\x2d\x02\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

const fn section(base: u64, bytes: &[u8]) -> Section<'_> {
    Section { base, bytes, space: AddressSpace::Any }
}

/// Returns the first and last address, number of instructions, section and truncation of each block. `then`: the number
/// of blocks after which another image is set, and that image.
fn blocks(
    image: Image<'_>,
    words: usize,
    then: Option<(usize, Image<'_>)>,
) -> Vec<(u64, u64, u32, u32, bool)> {
    let mut memory = vec![0; words];
    let mut cache = BlockCache::new(&mut memory);
    let mut decoder = BlockDecoder::new(TRACE, image);
    decoder.sync_forward();
    let mut found = vec![];
    loop {
        match then {
            Some((after, image)) if found.len() == after => decoder.set_image(image),
            _ => {}
        }
        let mut item = [BlockItem::NONE];
        let item = match words {
            0 => decoder.next().unwrap(),
            _ => (decoder.fill(&mut cache, &mut item) == (1, Ok(()))).then_some(item[0]),
        };
        match item {
            Some(BlockItem::Block(block)) => {
                found.push((block.ip, block.end_ip, block.insns, block.section, block.truncated));
            }
            Some(BlockItem::Event(_)) => {}
            None => return found,
        }
    }
}

#[test]
fn a_block_ends_with_an_instruction_that_goes_on_in_another_section() {
    // 1000: jmp rax; 1002: nop; 1003: jmp 1000, of which two bytes are in the first section.
    let (first, second) = ([0xff, 0xe0, 0x90, 0xe9, 0xf8], [0xff, 0xff, 0xff]);
    let sections = [section(0x1000, &first), section(0x1005, &second)];
    let both = [(0x1002, 0x1003, 2, 0, true), (0x1000, 0x1000, 1, 0, false)];
    for words in [0, 5000] {
        assert_eq!(blocks(Image::new(&sections), words, None), both.repeat(4), "{words}");
    }
}

#[test]
fn an_image_that_is_set_may_have_the_same_bytes_in_another_section() {
    // 1002: jmp rax
    let (code, other) = ([0xff, 0xe0], [0x90]);
    let sections = [section(0x1002, &code), section(0x2000, &other), section(0x1002, &code)];
    let [here, there] = [(0x1002, 0x1002, 1, 0, false), (0x1002, 0x1002, 1, 1, false)];
    for words in [0, 5000] {
        let found = blocks(Image::new(&sections[..2]), words, Some((2, Image::new(&sections[1..]))));
        assert_eq!(found, [here, here, there, there], "{words}");
    }
}
