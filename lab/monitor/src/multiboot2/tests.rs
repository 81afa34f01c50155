extern crate std;

use std::vec;
use std::vec::Vec;

use super::{AddressTag, Multiboot2Error, Multiboot2Header, build};
use crate::boot_info::{BootInfo, BootModule, MemoryKind, MemoryRange, Module};

/// Returns a header with these tags (kind, flags, body), after `offset` other bytes.
fn file(offset: usize, architecture: u32, tags: &[(u16, u16, &[u32])]) -> Vec<u8> {
    let mut body: Vec<u8> = Vec::new();
    for (kind, flags, words) in tags {
        body.extend_from_slice(&kind.to_le_bytes());
        body.extend_from_slice(&flags.to_le_bytes());
        body.extend_from_slice(&(8 + 4 * words.len() as u32).to_le_bytes());
        words.iter().for_each(|word| body.extend_from_slice(&word.to_le_bytes()));
        body.resize(body.len().next_multiple_of(8), 0);
    }
    let length = 16 + body.len() as u32;
    let sum = 0xe852_50d6u32.wrapping_add(architecture).wrapping_add(length);
    let mut file = vec![0; offset];
    [0xe852_50d6, architecture, length, sum.wrapping_neg()]
        .iter()
        .for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
    file.extend(body);
    file
}

const END: (u16, u16, &[u32]) = (0, 0, &[]);

#[test]
fn finds_the_header_and_what_it_asks_for() {
    let address = AddressTag { header: 0x10_0000, load: 0x10_0000, load_end: 0, bss_end: 0x20_0000 };
    type Row = (Vec<u8>, Result<Option<Multiboot2Header>, Multiboot2Error>);
    let rows: [Row; 8] = [
        (file(0, 0, &[END]), Ok(Some(Multiboot2Header::default()))),
        (
            file(8, 0, &[(3, 0, &[0x1234]), END]),
            Ok(Some(Multiboot2Header { entry: Some(0x1234), offset: 8, address: None })),
        ),
        (
            file(0x7000, 0, &[(1, 0, &[4, 6, 8]), (2, 0, &[0x10_0000, 0x10_0000, 0, 0x20_0000]), END]),
            Ok(Some(Multiboot2Header { entry: None, offset: 0x7000, address: Some(address) })),
        ),
        (file(4, 0, &[END]), Ok(None)),
        (file(32 << 10, 0, &[END]), Ok(None)),
        (file(0, 4, &[END]), Err(Multiboot2Error::Architecture(4))),
        (file(0, 0, &[(5, 0, &[0, 0, 0]), END]), Err(Multiboot2Error::Unsupported { tag: 5 })),
        (file(0, 0, &[(3, 0, &[1])]), Err(Multiboot2Error::Tag { offset: 32 })),
    ];
    for (file, expected) in rows {
        assert_eq!(Multiboot2Header::find(&file), expected);
    }
    assert_eq!(
        Multiboot2Header::find(&file(0, 0, &[(5, 1, &[0, 0, 0]), END])),
        Ok(Some(Multiboot2Header::default())),
        "optional"
    );
}

#[test]
fn no_cut_or_changed_byte_makes_it_panic() {
    let whole = file(8, 0, &[(1, 0, &[4, 6, 8]), (3, 0, &[1]), END]);
    for length in 0..whole.len() {
        assert!(!matches!(Multiboot2Header::find(&whole[..length]), Ok(Some(_))), "{length} bytes");
    }
    for at in 24..whole.len() {
        for value in [0, 0x7f, 0xff] {
            let mut file = whole.clone();
            file[at] = value;
            let _ = Multiboot2Header::find(&file);
        }
    }
}

#[test]
fn information_is_a_list_of_tags() {
    let info = BootInfo {
        command_line: "only=sort",
        modules: &[BootModule { place: Module { start: 0xff0_0000, bytes: 0x1234 }, words: "guest" }],
        memory: &[
            MemoryRange { start: 0, bytes: 0x9_fc00, kind: MemoryKind::Ram },
            MemoryRange { start: 0x10_0000, bytes: 0xff0_0000, kind: MemoryKind::Ram },
        ],
        rsdp: 0,
    };
    let bytes = build(&info);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0) as usize, bytes.len());
    let mut tags = Vec::new();
    let mut at = 8;
    while at < bytes.len() {
        let (kind, size) = (word(at), word(at + 4) as usize);
        tags.push((kind, bytes[at + 8..at + size].to_vec()));
        at += size.next_multiple_of(8);
    }
    assert_eq!(tags.iter().map(|tag| tag.0).collect::<Vec<_>>(), [1, 2, 3, 4, 6, 0]);
    assert_eq!(tags[0].1, b"only=sort\0");
    assert_eq!(tags[2].1, b"\0\0\xf0\x0f\x34\x12\xf0\x0fguest\0");
    assert_eq!(tags[3].1, [0x7f, 2, 0, 0, 0, 0xfc, 3, 0]);
    assert_eq!(tags[4].1.len(), 8 + 2 * 24);
    assert_eq!(
        tags[4].1[8 + 24..][..20],
        [0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0xf, 0, 0, 0, 0, 1, 0, 0, 0]
    );
}
