//! The traces of libipt's test vectors, whole and damaged.

use crate::compare::compare;
use pugmark_decoder_core::{
    config::Config,
    image::{AddressSpace, Image, Section},
};
use std::{fs, path::Path};

#[test]
fn vectors_whole_and_damaged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/ptt/examples");
    let mut random = fastrand::Rng::with_seed(0x626c_6f63_6b02);
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".cmd.json") else {
            continue;
        };
        let command: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let (Some(base), Ok(code), Ok(trace)) = (
            command["base"].as_str(),
            fs::read(folder.join(format!("{name}.bin"))),
            fs::read(folder.join(format!("{name}.pt"))),
        ) else {
            continue;
        };
        count += 1;
        let base = u64::from_str_radix(base.trim_start_matches("0x"), 16).unwrap();
        let sections = [
            Section { base, bytes: &code, space: AddressSpace::Any },
            Section { base: base + 2, bytes: code.get(2..).unwrap_or_default(), space: AddressSpace::Any },
        ];
        for sections in [&sections[..1], &sections[..]] {
            let image = Image::new(sections);
            compare(&trace, image, Config::new()).unwrap_or_else(|what| panic!("{name}: {what}"));
            for _ in 0..if trace.is_empty() { 0 } else { 20 } {
                let mut damaged = trace.clone();
                damaged[random.usize(..trace.len())] = random.u8(..);
                compare(&damaged, image, Config::new())
                    .unwrap_or_else(|what| panic!("{name}, {damaged:02x?}: {what}"));
            }
        }
    }
    assert!(count >= 25, "only {count} vectors");
}
