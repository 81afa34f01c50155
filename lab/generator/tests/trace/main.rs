//! From programs to packets and back: the decoder must recover the execution from the model's trace.
//!
//! The expected instructions are computed from the execution and the definition of the filter, never from the model.
//! `PUGMARK_LONG=1` runs fifty times as many programs.

mod pieces;

use pugmark_decoder_core::Error;
use pugmark_decoder_core::event::EventKind;
use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::packet::PtwPayload;
use pugmark_generator::Program;
use pugmark_generator::trace::{Topic, TraceConfig, TraceRun, ctl, run};

/// Returns how many programs a test runs.
fn programs(usual: u64) -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { usual * 50 } else { usual }
}

/// Returns the program's code in the form that the decoder takes.
fn sections(program: &Program) -> Vec<Section<'_>> {
    program
        .sections()
        .iter()
        .map(|section| Section { base: section.base, bytes: &section.bytes, space: AddressSpace::Any })
        .collect()
}

/// The result of decoding.
#[derive(Default)]
struct Found {
    instructions: Vec<u64>,
    ptwrites: Vec<PtwPayload>,
    events: Vec<(u8, Option<u64>)>,
}

/// Decodes from the first PSB up to the end or an error.
fn decode(trace: &[u8], sections: &[Section]) -> (Found, Result<(), Error>) {
    let mut decoder = InsnDecoder::new(trace, Image::new(sections));
    decoder.sync_forward();
    decode_from(decoder)
}

fn decode_from(mut decoder: InsnDecoder) -> (Found, Result<(), Error>) {
    let mut found = Found::default();
    loop {
        match decoder.next() {
            Ok(Some(FlowItem::Insn(insn))) => found.instructions.push(insn.ip),
            Ok(Some(FlowItem::Event(event))) => match event.kind {
                EventKind::Ptwrite(payload) => found.ptwrites.push(payload),
                EventKind::Interrupt { vector, cr2 } => found.events.push((vector, cr2)),
                EventKind::Swintr { vector } => found.events.push((vector, None)),
                _ => {}
            },
            Ok(None) => return (found, Ok(())),
            Err(error) => return (found, Err(error)),
        }
    }
}

fn hash(addresses: &[u64]) -> AddressHash {
    let mut hash = AddressHash::new();
    addresses.iter().for_each(|&address| hash.add(address));
    hash
}

/// Checks that the trace of a run without loss decodes to the truth.
fn check(topic: Topic, seed: u64) -> Result<TraceRun, String> {
    let (program, config) = TraceConfig::random(topic, seed);
    let run = run(&program, &config, seed);
    let sections = sections(&program);
    let (Found { instructions: found, ptwrites, events }, end) = decode(&run.trace, &sections);
    if let Err(error) = end {
        return Err(format!(
            "{topic:?} {seed}: {error} after {} of {} instructions\n{config:?}",
            found.len(),
            run.truth.len()
        ));
    }
    if hash(&found) != hash(&run.truth) {
        let same = found.iter().zip(&run.truth).take_while(|(a, b)| a == b).count();
        return Err(format!(
            "{topic:?} {seed}: {} instructions instead of {}, the first {same} agree, then {:x?} instead of \
             {:x?}\n{config:?}",
            found.len(),
            run.truth.len(),
            found.get(same),
            run.truth.get(same),
        ));
    }
    from_the_middle(&run, &sections).map_err(|what| format!("{topic:?} {seed}: {what}\n{config:?}"))?;
    let traces = |bit| config.ctl & bit != 0;
    if traces(ctl::PTW_EN) && ptwrites != run.ptwrites {
        return Err(format!(
            "{topic:?} {seed}: PTWRITE: {ptwrites:x?} instead of {:x?}\n{config:?}",
            run.ptwrites
        ));
    }
    if traces(ctl::EVENT_EN) && config.filter.os && config.filter.user && events != run.events {
        let same = events.iter().zip(&run.events).take_while(|(a, b)| a == b).count();
        let (is, must) = (events.get(same), run.events.get(same));
        return Err(format!("{topic:?} {seed}: event {same}: {is:x?} instead of {must:x?}\n{config:?}"));
    }
    Ok(run)
}

/// Checks that decoding from a PSB in mid-trace gives the rest of the truth: no earlier state is needed.
fn from_the_middle(run: &TraceRun, sections: &[Section]) -> Result<(), String> {
    let mut decoder = InsnDecoder::new(&run.trace, Image::new(sections));
    while let Some(psb) = decoder.sync_forward() {
        if (psb as usize) < run.trace.len() / 2 {
            continue;
        }
        let (rest, end) = decode_from(decoder);
        if end.is_err() || !run.truth.ends_with(&rest.instructions) {
            return Err(format!("from {psb:#x}: {} instructions, {end:?}", rest.instructions.len()));
        }
        break;
    }
    Ok(())
}

/// Checks `count` seeds; returns the sum of `measure` over all runs.
fn check_all(topic: Topic, count: u64, measure: impl Fn(&TraceRun) -> usize) -> usize {
    let mut sum = 0;
    let mut failures = Vec::new();
    for seed in 0..programs(count) {
        match check(topic, seed) {
            Ok(run) => sum += measure(&run),
            Err(failure) => failures.push(failure),
        }
    }
    let shown = failures.iter().take(8).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} programs:\n{shown}", failures.len(), programs(count));
    sum
}

#[test]
fn everything() {
    let traced = check_all(Topic::Everything, 250, |run| run.truth.len());
    assert!(traced > 100_000, "{traced}");
}

#[test]
fn filtered_by_level() {
    let traced = check_all(Topic::Level, 250, |run| run.truth.len());
    assert!(traced > 50_000, "{traced}");
}

#[test]
fn filtered_by_cr3() {
    let traced = check_all(Topic::Cr3, 250, |run| run.truth.len());
    assert!(traced > 50_000, "{traced}");
}

#[test]
fn filtered_by_address() {
    let traced = check_all(Topic::Range, 400, |run| run.truth.len());
    assert!(traced > 50_000, "{traced}");
}

#[test]
fn stopped_by_address() {
    let stops = check_all(Topic::Stop, 300, |run| run.stops);
    assert!(stops > 100, "{stops}");
}

#[test]
fn small_regions_with_pmis() {
    let pmis = check_all(Topic::Pmi, 60, |run| run.pmis);
    assert!(pmis > 20, "{pmis}");
}

#[test]
fn ptwrite_and_event_trace() {
    let events = check_all(Topic::Events, 200, |run| run.ptwrites.len().min(run.events.len()));
    assert!(events > 1000, "{events}");
}
