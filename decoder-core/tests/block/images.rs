//! Code that changes: another image from an event on, for both decoders.

use pugmark_decoder_core::{
    Error,
    block::{self, BlockDecoder},
    block_cache::BlockCache,
    flow::{self, InsnDecoder},
    image::{AddressSpace, Image, Section, Sections},
};

/// The sizes of the block cache: too small for any block, and large enough.
const WORDS: [usize; 2] = [0, 5000];

/// Returns the next item, decoded with a block cache.
fn next(
    blocks: &mut BlockDecoder<'_>,
    cache: &mut BlockCache<'_>,
) -> Result<Option<block::BlockItem>, Error> {
    let mut item = [block::BlockItem::NONE];
    match blocks.fill(cache, &mut item) {
        (1, _) => Ok(Some(item[0])),
        (_, end) => end.map(|()| None),
    }
}

// 1000: nop; 1001: nop; 1002: jmp rax
const FIRST: [u8; 4] = [0x90, 0x90, 0xff, 0xe0];
// 1000: jmp 1003; 1002: hlt; 1003: nop; 1004: jmp rax
const SECOND: [u8; 6] = [0xeb, 0x01, 0xf4, 0x90, 0xff, 0xe0];

/// PSB+ at 1000, TIP 1000, then MNT and TIP 1000 twice.
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
    \x2d\0\x10\x02\xc3\x88\x01\0\0\0\0\0\0\0\x2d\0\x10\x02\xc3\x88\x02\0\0\0\0\0\0\0\x2d\0\x10";

/// The instructions that are executed between the events.
const EXPECTED: [u64; 9] = [0x1000, 0x1001, 0x1002, 0x1000, 0x1003, 0x1004, 0x1000, 0x1001, 0x1002];

#[test]
fn an_event_changes_the_code_for_both_decoders() -> Result<(), Error> {
    let any = AddressSpace::Any;
    let mut memory = [Section::EMPTY; 2];
    let mut changed = Sections::new(&mut memory);
    changed.map(Section { base: 0x1000, bytes: &FIRST, space: any }).unwrap();
    let first = changed.as_slice().to_vec();
    changed.map(Section { base: 0x1000, bytes: &SECOND, space: any }).unwrap();
    // The images that are set at the first event and at the second.
    let images = [changed.image(), Image::new(&first)];

    let mut insns = InsnDecoder::new(TRACE, Image::new(&first));
    let (mut found, mut events) = (vec![], images.iter());
    insns.sync_forward();
    while let Some(item) = insns.next()? {
        match item {
            flow::FlowItem::Insn(insn) => found.push(insn.ip),
            flow::FlowItem::Event(_) => insns.set_image(*events.next().unwrap()),
        }
    }
    assert_eq!(found, EXPECTED);

    for words in WORDS {
        let mut memory = vec![0; words];
        let mut cache = BlockCache::new(&mut memory);
        let mut blocks = BlockDecoder::new(TRACE, Image::new(&first));
        let (mut found, mut events) = (vec![], images.iter());
        blocks.sync_forward();
        while let Some(item) = next(&mut blocks, &mut cache)? {
            match item {
                block::BlockItem::Block(block) => {
                    found.extend(blocks.insns(&block).map(|(ip, _)| ip));
                    assert_eq!(found.last(), Some(&block.end_ip), "{block:x?}");
                }
                block::BlockItem::Event(_) => blocks.set_image(*events.next().unwrap()),
            }
        }
        assert_eq!(found, EXPECTED);
    }
    Ok(())
}

/// Other code at the address of [`PLAIN`]: 1000: nop; 1001: jmp rax.
const LONGER: [u8; 3] = [0x90, 0xff, 0xe0];
/// 1000: jmp rax
const PLAIN: [u8; 2] = [0xff, 0xe0];

const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
/// MODE.Exec (64 bit), FUP (1000), PSBEND.
const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
const MNT: &[u8] = b"\x02\xc3\x88\x01\0\0\0\0\0\0\0";
const TIP_1000: &[u8] = b"\x2d\0\x10";
/// CR3 0 and 8000, VMCS 7000.
const CR3_0: &[u8] = b"\x02\x43\0\0\0\0\0\0";
const CR3_8000: &[u8] = b"\x02\x43\0\x08\0\0\0\0";
const VMCS_7000: &[u8] = b"\x02\xc8\x07\0\0\0\0";

#[test]
fn an_image_that_is_set_in_an_address_space_is_not_seen_in_another() {
    for (here, first, second, elsewhere) in [
        (AddressSpace::Cr3(0x8000), CR3_8000, CR3_0, AddressSpace::Cr3(0)),
        (AddressSpace::Cr3(0x8000), CR3_8000, &[][..], AddressSpace::Cr3(0)),
        (AddressSpace::Cr3(0), CR3_0, CR3_8000, AddressSpace::Cr3(0x8000)),
        (AddressSpace::Vmcs(0x7000), VMCS_7000, &[], AddressSpace::Vmcs(0x9000)),
    ] {
        // If the address space is unknown, the last section counts.
        let sections = [
            Section { base: 0x1000, bytes: &LONGER, space: here },
            Section { base: 0x1000, bytes: &PLAIN, space: elsewhere },
        ];
        let image = Image::new(&sections);
        let trace = [PSB, first, STATE, MNT, TIP_1000, MNT, PSB, second, STATE, TIP_1000].concat();
        for words in WORDS {
            let mut memory = vec![0; words];
            let mut cache = BlockCache::new(&mut memory);
            // The image with address spaces is set at the first event.
            let mut blocks = BlockDecoder::new(&trace, Image::new(&[]));
            let mut found = vec![];
            // Synchronise on the second PSB+ too, so that the address space is unknown there.
            while blocks.sync_forward().is_some() {
                while let Some(item) = next(&mut blocks, &mut cache).unwrap() {
                    match item {
                        block::BlockItem::Block(block) => {
                            found.extend(blocks.insns(&block).map(|(ip, _)| ip));
                            assert_eq!(found.last(), Some(&block.end_ip), "{here:x?} {elsewhere:x?}");
                        }
                        block::BlockItem::Event(_) if found.is_empty() => blocks.set_image(image),
                        block::BlockItem::Event(_) => break,
                    }
                }
            }
            assert_eq!(found, [0x1000, 0x1001, 0x1000], "{here:x?} {elsewhere:x?}");
        }
    }
}
