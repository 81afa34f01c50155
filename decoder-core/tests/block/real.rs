//! Traces that real processors wrote.

use crate::compare::compare;
use pugmark_decoder_core::{
    config::Config,
    errata::{Cpu, Errata},
    image::{AddressSpace, Image, Section},
};
use std::{fs, path::Path};

/// Model, trace, the folder of its image.json, instructions and their hash.
const TRACES: [(u8, &str, &str, u64, u64); 5] = [
    (79, "intelpt-trace/3842849.trace", "intelpt-trace", 21, 0xc641_aab2_52db_d17c),
    (79, "intelpt-trace-multi-file/multi-file.trace", "intelpt-trace-multi-file", 45, 0xddb6_bb34_daaa_b2ab),
    (
        85,
        "intelpt-multi-core-trace/cores/45.intelpt_trace",
        "intelpt-multi-core-trace",
        61825,
        0x2da4_7641_1a36_46e6,
    ),
    (
        85,
        "intelpt-multi-core-trace/cores/51.intelpt_trace",
        "intelpt-multi-core-trace",
        19521,
        0xa1fc_7f8c_a749_977f,
    ),
    (85, "dynamorio/pt.bin", "dynamorio", 8, 0x3470_39f8_2b91_1e59),
];

#[test]
fn real_traces_have_the_known_instructions() {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors/real");
    if !real.is_dir() {
        println!("skipped: no {}", real.display());
        return;
    }
    for (model, name, folder, insns, hash) in TRACES {
        let trace = fs::read(real.join(name)).unwrap();
        let errata = Errata::of(Cpu::intel(6, model, 0)).unwrap();
        let folder = real.join(folder);
        let image: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.join("image.json")).unwrap()).unwrap();
        let number = |section: &serde_json::Value, field: &str| section[field].as_u64().unwrap();
        let code = |section: &serde_json::Value| {
            let file = fs::read(folder.join(section["file"].as_str().unwrap())).unwrap();
            let offset = number(section, "offset") as usize;
            (number(section, "vaddr"), file[offset..offset + number(section, "len") as usize].to_vec())
        };
        let code: Vec<_> = image["sections"].as_array().unwrap().iter().map(code).collect();
        let sections: Vec<_> = code
            .iter()
            .map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any })
            .collect();
        let config = Config { errata, ..Config::new() };
        let sum =
            compare(&trace, Image::new(&sections), config).unwrap_or_else(|what| panic!("{name}: {what}"));
        assert_eq!((sum.insns, sum.hash.value()), (insns, hash), "{name}");
    }
}
