//! Decodes a hundred thousand damaged variants of real traces: each error reports its place, nothing panics, and
//! decoding resumes at the next PSB.

use fastrand::Rng;
use pugmark_decoder_core::Error;
use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::sync;
use pugmark_harness::code::Code;
use pugmark_harness::images::Images;
use pugmark_harness::machine::Machine;
use pugmark_harness::traces;

const VARIANTS: usize = 100_000;
/// Longer parts of a trace are cut to this size, so that a variant is decoded in microseconds.
const LONGEST: usize = 4096;

#[test]
fn damage_is_reported_in_its_place_and_decoding_goes_on_after_it() {
    let images = Images::build().unwrap();
    let command_line =
        "dump only=recursion,dispatch,timer,exceptions,syscall,address-spaces,filter-range,small-buffers";
    let outcome = Machine::on_monitor(&images, "profile=sapphire-rapids", command_line).run(|_| {}).unwrap();
    let traces = traces::of(&outcome, &images.guest).unwrap();
    assert_eq!(traces.len(), 8);
    let mut rng = Rng::with_seed(0x7075_676d);
    let mut seen = Seen::default();
    for variant in 0..VARIANTS {
        let trace = &traces[variant % traces.len()];
        let sections: Vec<Section<'_>> = trace.code.iter().map(section).collect();
        let part = trace.parts[rng.usize(..trace.parts.len())];
        let from = rng.usize(..part.len().saturating_sub(LONGEST).max(1));
        let mut bytes = part[from..part.len().min(from + LONGEST)].to_vec();
        damage(&mut bytes, &mut rng);
        decode(&bytes, Image::new(&sections), &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.errors > VARIANTS / 4, "the damage does not damage: {seen:?}");
    assert!(seen.resumed > VARIANTS / 20, "nothing was ever decoded after an error: {seen:?}");
}

/// The counts over all variants.
#[derive(Debug, Default)]
struct Seen {
    instructions: usize,
    errors: usize,
    /// Number of times that instructions were decoded after an error and the next PSB.
    resumed: usize,
}

fn section(code: &Code) -> Section<'_> {
    Section {
        base: code.base,
        bytes: &code.bytes,
        space: code.cr3.map_or(AddressSpace::Any, AddressSpace::Cr3),
    }
}

/// Makes one to eight changes: bits, bytes, removed or repeated stretches, or noise.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.usize(1..=8) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.usize(..bytes.len());
        let end = bytes.len().min(at + rng.usize(1..=64));
        match rng.u8(..6) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = rng.u8(..),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            4 => bytes[at..end].iter_mut().for_each(|byte| *byte = rng.u8(..)),
            _ => bytes.truncate(bytes.len().max(64) - rng.usize(..64)),
        }
    }
}

fn decode(bytes: &[u8], image: Image<'_>, seen: &mut Seen) {
    let mut decoder = InsnDecoder::new(bytes, image);
    let mut last_start = None;
    let mut last_error = None;
    loop {
        let start = decoder.resync();
        // If the search finds a PSB after the error, the decoder resumes there, or at an earlier one that it has seen
        // itself.
        let next = last_error.map_or(0, |offset: u64| usize::try_from(offset).unwrap());
        if let Some(psb) = sync::forward(bytes, next) {
            assert!(start.is_some_and(|start| start <= psb as u64), "{start:?} passes the PSB at {psb:#x}");
        }
        let Some(start) = start else { return };
        assert!(last_start < Some(start), "does not get on from {start:#x}");
        last_start = Some(start);
        let Err(error) = until_error(&mut decoder, last_error.is_some(), seen) else { return };
        assert!((start..=bytes.len() as u64).contains(&error.offset), "{error} is not after {start:#x}");
        seen.errors += 1;
        last_error = Some(error.offset);
    }
}

/// Decodes up to the end or an error.
fn until_error(decoder: &mut InsnDecoder<'_>, after_error: bool, seen: &mut Seen) -> Result<(), Error> {
    let before = seen.instructions;
    let result = loop {
        match decoder.next() {
            Ok(Some(FlowItem::Insn(_))) => seen.instructions += 1,
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    seen.resumed += usize::from(after_error && seen.instructions > before);
    result
}
