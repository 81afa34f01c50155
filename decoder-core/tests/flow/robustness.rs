//! Damaged traces: nothing panics, everything ends, each error has a place, and the next PSB is found.

use crate::common;
use pugmark_decoder_core::{
    event::EventKind,
    flow::{FlowItem, InsnDecoder, Pieces},
    image::Image,
};

const TRACES: usize = 200_000;

/// No packet begins with this byte.
const UNKNOWN: u8 = 0x09;

/// PSB, MODE.Exec (64 bit), FUP (f001), PSBEND, FUP (f003), TIP.PGD.
const TAIL: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\
    \x99\x01\x7d\x01\xf0\0\0\0\0\x02\x23\x3d\x03\xf0\x01";

#[test]
fn damaged_traces_give_errors_and_go_on_at_the_next_psb() {
    let all = common::scenarios();
    let images: Vec<_> = all
        .iter()
        .map(|(_, scenario)| {
            let mut sections = common::sections(scenario);
            let space = pugmark_decoder_core::image::AddressSpace::Any;
            sections.push(pugmark_decoder_core::image::Section { base: 0xf000, bytes: &[0x90; 4], space });
            sections
        })
        .collect();
    let mut random = fastrand::Rng::with_seed(0x7075_676d_6172_6b00);
    let (mut errors, mut instructions) = (0, 0);
    for _ in 0..TRACES {
        let which = random.usize(..all.len());
        let mut trace = all[which].1.trace.clone();
        damage(&mut trace, &mut random, &all);
        // Longer than any packet: there is an error before the tail.
        trace.extend([UNKNOWN; 16]);
        trace.extend(TAIL);
        let mut decoder = InsnDecoder::with_config(&trace, Image::new(&images[which]), all[which].1.config);
        let (these_errors, these_instructions) = walk(&mut decoder, &trace);
        errors += these_errors;
        instructions += these_instructions;
    }
    println!("{TRACES} traces, {errors} errors, {instructions} instructions");
    assert!(errors > TRACES as u64 / 2, "the damage does none");
}

/// Decodes to the end; returns the numbers of errors and instructions.
fn walk(decoder: &mut InsnDecoder<'_>, trace: &[u8]) -> (u64, u64) {
    let (mut errors, mut instructions) = (0, 0);
    let mut ips = [0; 2];
    let mut last_event = None;
    let mut last_sync = None;
    while let Some(psb) = decoder.resync() {
        assert!(last_sync < Some(psb), "{trace:02x?}: no progress at {psb:#x}");
        assert_eq!(&trace[psb as usize..][..16], &TAIL[..16], "{trace:02x?}: no PSB at {psb:#x}");
        last_sync = Some(psb);
        loop {
            match decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => {
                    instructions += 1;
                    ips = [ips[1], insn.ip];
                }
                Ok(Some(FlowItem::Event(event))) => {
                    assert!(event.offset < trace.len() as u64, "{trace:02x?}: event at {:#x}", event.offset);
                    last_event = Some(event);
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(error.offset < trace.len() as u64, "{trace:02x?}: error at {:#x}", error.offset);
                    assert!(decoder.next().is_err(), "out of sync after an error");
                    errors += 1;
                    break;
                }
            }
        }
    }
    assert_eq!(
        last_sync,
        Some((trace.len() - TAIL.len()) as u64),
        "{trace:02x?}: the last PSB was not found"
    );
    assert_eq!(ips, [0xf001, 0xf002], "{trace:02x?}");
    let last_event = last_event.map(|event| event.kind);
    assert_eq!(last_event, Some(EventKind::AsyncDisabled { at: 0xf003 }), "{trace:02x?}");
    (errors, instructions)
}

fn damage(trace: &mut Vec<u8>, random: &mut fastrand::Rng, all: &[(String, common::notation::Scenario)]) {
    for _ in 0..random.usize(1..5) {
        if trace.is_empty() {
            return;
        }
        let at = random.usize(..trace.len());
        match random.u8(..8) {
            0 | 1 => trace[at] ^= 1 << random.u8(..8),
            2 => trace[at] = random.u8(..),
            3 => trace.truncate(at),
            4 => {
                trace.remove(at);
            }
            5 => trace.insert(at, random.u8(..)),
            6 => {
                // A stretch of another trace.
                let other = &all[random.usize(..all.len())].1.trace;
                let from = random.usize(..other.len());
                let to = random.usize(from..=other.len());
                trace.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let to = random.usize(at..trace.len());
                trace.drain(at..to);
            }
        }
    }
}

#[test]
fn every_cut_of_a_trace_gives_a_prefix_of_its_flow() {
    for (name, scenario) in common::scenarios() {
        let sections = common::sections(&scenario);
        let flow = |trace: &[u8]| -> Vec<u64> {
            let mut ips = vec![];
            let decoder = InsnDecoder::with_config(trace, Image::new(&sections), scenario.config);
            let mut pieces = Pieces::new(decoder);
            while pieces.next_with(|insn| ips.push(insn.ip)).is_some() {}
            ips
        };
        let whole = flow(&scenario.trace);
        for end in 0..scenario.trace.len() {
            let cut = flow(&scenario.trace[..end]);
            assert!(whole.starts_with(&cut), "{name} cut at {end:#x}: {cut:x?}");
        }
    }
}
