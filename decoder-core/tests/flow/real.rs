//! The instruction flow of traces that real processors wrote: counts and hashes as libipt has them, and, where libipt
//! is installed, each address.

use crate::libipt;
use pugmark_decoder_core::{
    config::Config,
    errata::{Cpu, Errata},
    flow::{InsnDecoder, Item},
    hash::AddressHash,
    image::{AddressSpace, Image, Section},
};
use std::{fs, path::Path};

/// A trace and what libipt 2.3 made of it.
struct Recorded {
    cpu: (u16, u8, u8),
    trace: &'static str,
    /// Where its image.json is.
    folder: &'static str,
    instructions: u64,
    hash: u64,
    /// Some traces lack code, and some end cut off, with packets that only say so by making no sense.
    errors: usize,
}

const TRACES: [Recorded; 5] = [
    Recorded {
        cpu: (6, 79, 1),
        trace: "intelpt-trace/3842849.trace",
        folder: "intelpt-trace",
        instructions: 21,
        hash: 0xc641_aab2_52db_d17c,
        errors: 0,
    },
    Recorded {
        cpu: (6, 79, 1),
        trace: "intelpt-trace-multi-file/multi-file.trace",
        folder: "intelpt-trace-multi-file",
        instructions: 45,
        hash: 0xddb6_bb34_daaa_b2ab,
        errors: 1,
    },
    Recorded {
        cpu: (6, 85, 4),
        trace: "intelpt-multi-core-trace/cores/45.intelpt_trace",
        folder: "intelpt-multi-core-trace",
        instructions: 61825,
        hash: 0x2da4_7641_1a36_46e6,
        errors: 1,
    },
    Recorded {
        cpu: (6, 85, 4),
        trace: "intelpt-multi-core-trace/cores/51.intelpt_trace",
        folder: "intelpt-multi-core-trace",
        instructions: 19521,
        hash: 0xa1fc_7f8c_a749_977f,
        errors: 3,
    },
    Recorded {
        cpu: (6, 85, 4),
        trace: "dynamorio/pt.bin",
        folder: "dynamorio",
        instructions: 8,
        hash: 0x3470_39f8_2b91_1e59,
        errors: 0,
    },
];

#[test]
fn real_traces_have_the_known_instructions() {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors/real");
    if !real.is_dir() {
        println!("skipped: no {}", real.display());
        return;
    }
    for Recorded { cpu: (family, model, stepping), trace: name, folder, instructions, hash, errors } in TRACES
    {
        let trace = fs::read(real.join(name)).unwrap();
        let errata = Errata::of(Cpu::intel(family, model, stepping)).unwrap();
        let code = sections(&real.join(folder));
        let sections: Vec<_> = code
            .iter()
            .map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any })
            .collect();
        let (addresses, found) = decode(&trace, Image::new(&sections), errata);
        let mut own = AddressHash::new();
        addresses.iter().for_each(|&ip| own.add(ip));
        println!("{name}: {} instructions, {found:?}, {:#018x}", own.count(), own.value());

        let code: Vec<_> = code.iter().map(|(base, bytes)| (*base, &bytes[..])).collect();
        match libipt::decode_for(Some(libipt::Cpu { family, model, stepping }), &trace, &code) {
            Some(other) => {
                let same = addresses.iter().zip(&other.addresses).take_while(|(a, b)| a == b).count();
                println!("  libipt: {} instructions, {:?}", other.addresses.len(), other.errors);
                assert_eq!(same, addresses.len(), "{name}: the same as libipt's up to there");
                assert_eq!(addresses.len(), other.addresses.len(), "{name}");
            }
            None => println!("  libipt is not installed"),
        }
        assert_eq!(own.count(), instructions, "{name}");
        assert_eq!(found.len(), errors, "{name}: {found:?}");
        assert_eq!(own.value(), hash, "{name}");
    }
}

fn decode(trace: &[u8], image: Image<'_>, errata: Errata) -> (Vec<u64>, Vec<String>) {
    let mut decoder = InsnDecoder::with_config(trace, image, Config { errata, ..Config::new() });
    let (mut addresses, mut errors) = (vec![], vec![]);
    while decoder.sync_forward().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(Item::Insn(insn))) => addresses.push(insn.ip),
                Ok(Some(Item::Event(_))) => {}
                Ok(None) => break,
                Err(error) => {
                    errors.push(error.to_string());
                    break;
                }
            }
        }
    }
    (addresses, errors)
}

/// The code that `image.json` names: where it was, and its bytes.
fn sections(folder: &Path) -> Vec<(u64, Vec<u8>)> {
    let image: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("image.json")).unwrap()).unwrap();
    let number = |section: &serde_json::Value, field: &str| section[field].as_u64().unwrap();
    let read = |section: &serde_json::Value| {
        let file = fs::read(folder.join(section["file"].as_str().unwrap())).unwrap();
        let offset = number(section, "offset") as usize;
        let bytes = &file[offset..offset + number(section, "len") as usize];
        (number(section, "vaddr"), bytes.to_vec())
    };
    image["sections"].as_array().unwrap().iter().map(read).collect()
}
