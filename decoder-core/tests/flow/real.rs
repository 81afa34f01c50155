//! The instruction flow of traces of real processors: counts and hashes as in libipt, and, if libipt is installed, each
//! address.

use crate::{
    common::{everywhere, recorded},
    libipt,
};
use pugmark_decoder_core::{
    config::Config,
    errata::{Cpu, Errata},
    flow::{FlowItem, InsnDecoder},
    hash::AddressHash,
    image::Image,
};
#[test]
fn real_traces_have_the_known_instructions() {
    let folder = recorded::folder();
    for recorded in recorded::TRACES {
        let name = recorded.trace;
        let trace = recorded.bytes(&folder);
        let code = recorded.code(&folder);
        let sections = everywhere(&code);
        let (addresses, found) = decode(&trace, Image::new(&sections), recorded.errata());
        let mut own = AddressHash::new();
        addresses.iter().for_each(|&ip| own.add(ip));
        println!("{name}: {} instructions, {found:?}, {:#018x}", own.count(), own.value());

        let code: Vec<_> = code.iter().map(|(base, bytes)| (*base, &bytes[..])).collect();
        let Cpu { family, model, stepping, .. } = recorded.cpu;
        match libipt::decode_for(Some(libipt::Cpu { family, model, stepping }), &trace, &code) {
            Some(other) => {
                let same = addresses.iter().zip(&other.addresses).take_while(|(a, b)| a == b).count();
                println!("  libipt: {} instructions, {:?}", other.addresses.len(), other.errors);
                assert_eq!(same, addresses.len(), "{name}: the same as libipt's up to there");
                assert_eq!(addresses.len(), other.addresses.len(), "{name}");
            }
            None => println!("  libipt is not installed"),
        }
        assert_eq!(own.count(), recorded.instructions, "{name}");
        assert_eq!(found.len(), recorded.errors, "{name}: {found:?}");
        assert_eq!(own.value(), recorded.hash, "{name}");
    }
}

fn decode(trace: &[u8], image: Image<'_>, errata: Errata) -> (Vec<u64>, Vec<String>) {
    let mut decoder = InsnDecoder::with_config(trace, image, Config { errata, ..Config::new() });
    let (mut addresses, mut errors) = (vec![], vec![]);
    while decoder.sync_forward().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => addresses.push(insn.ip),
                Ok(Some(FlowItem::Event(_))) => {}
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
