//! Reads a recording back.

use pugmark_decoder_core::{
    flow::{InsnDecoder, Pieces},
    hash::AddressHash,
    image::{AddressSpace, Image, Section},
};
use pugmark_harness::libipt;
use pugmark_recorder::Part;
use serde_json::Value;
use std::fs;

/// Decodes the part's trace with its image, from the files alone, and compares the result with the truth; also with
/// libipt, if that is installed. Returns the number of instructions.
pub(crate) fn check(part: &Part) -> u64 {
    addresses(part).len() as u64
}

/// Does the same, but returns the addresses of the instructions.
pub(crate) fn addresses(part: &Part) -> Vec<u64> {
    let read = |name: &str| fs::read(part.dir.join(name)).expect(name);
    let json = |name: &str| serde_json::from_slice::<Value>(&read(name)).expect(name);
    let (trace, code, image, truth) =
        (read("trace.pt"), read("code.bin"), json("image.json"), json("truth.json"));
    let number = |value: &Value, name: &str| value[name].as_u64().expect(name);
    assert_eq!((part.bytes, number(&truth, "bytes")), (trace.len() as u64, trace.len() as u64));
    let sections: Vec<_> = image["sections"]
        .as_array()
        .expect("sections")
        .iter()
        .map(|section| {
            assert_eq!(section["file"], "code.bin");
            let (offset, len) = (number(section, "offset") as usize, number(section, "len") as usize);
            (number(section, "vaddr"), &code[offset..offset + len])
        })
        .collect();

    let space = AddressSpace::Any;
    let own: Vec<_> = sections.iter().map(|&(base, bytes)| Section { base, bytes, space }).collect();
    let mut pieces = Pieces::new(InsnDecoder::new(&trace, Image::new(&own)));
    let (mut found, mut addresses) = (AddressHash::new(), vec![]);
    let mut note = |ip: u64| {
        found.add(ip);
        addresses.push(ip);
    };
    while pieces.next_with(|insn| note(insn.ip)).is_some() {}
    let hash = format!("{:#018x}", found.value());
    let name = part.dir.display();
    assert_eq!((pieces.errors(), part.unexplained), (0, 0), "{name}");
    assert_eq!(
        (found.count(), &*hash),
        (number(&truth, "count"), truth["hash"].as_str().expect("hash")),
        "{name}"
    );
    assert_eq!(found, part.truth, "{name}");

    if let Some(decoded) = libipt::decode(&trace, &sections) {
        assert_eq!(decoded.errors, [], "{name}");
        let mut found = AddressHash::new();
        decoded.addresses.iter().for_each(|&address| found.add(address));
        assert_eq!(found, part.truth, "libipt, {name}");
    } else {
        println!("{}", libipt::REFERENCE.skipped());
    }
    addresses
}
