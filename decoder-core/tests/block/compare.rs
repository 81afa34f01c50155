//! Both decoders side by side.

use pugmark_decoder_core::{
    Error,
    block::{self, BlockDecoder, Slot},
    config::{Config, Flags},
    event::{Counters, Event},
    flow::{self, InsnDecoder},
    hash::AddressHash,
    image::Image,
    insn::Class,
    mode::ExecMode,
    packet::{Packet, Packets},
    time::Span,
};
use std::collections::BTreeMap;

/// What a decoder returns, with blocks split into instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Sync(u64),
    Insn {
        ip: u64,
        mode: ExecMode,
        speculative: bool,
    },
    Event(Event),
    /// The trace ends, with the decoder here.
    End(Option<u64>),
    Error(Error),
}

/// What blocks were like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) blocks: u64,
    pub(crate) insns: u64,
    pub(crate) errors: u64,
    pub(crate) hash: AddressHash,
}

/// How much memory for code the block decoder gets: none, little enough for runs to replace each other, and enough.
const MEMORIES: [usize; 3] = [0, 16, 1 << 12];

/// Decodes with both decoders in every way. The error describes the difference.
pub(crate) fn compare(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<Sum, String> {
    let (expected, counters) = insns(trace, image, config);
    in_step(trace, image, config)?;
    spans(trace, image, config)?;
    let mut sum = Sum::default();
    for memory in MEMORIES {
        for (end_on_call, end_on_jump) in [(false, false), (true, false), (false, true)] {
            let flags = Flags { end_on_call, end_on_jump, ..config.flags };
            let mut memory = vec![Slot::default(); memory];
            let decoder = BlockDecoder::with_config(trace, image, &mut memory, Config { flags, ..config });
            let (got, seen, these) = blocks(decoder)?;
            if got != expected {
                let same = got.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                return Err(format!(
                    "{flags:?}, step {same}: {:x?} instead of {:x?}, behind {:x?}",
                    got.get(same),
                    expected.get(same),
                    expected.get(same.saturating_sub(3)..same)
                ));
            }
            if seen != counters {
                return Err(format!("{flags:?}: {seen:?} instead of {counters:?}"));
            }
            sum = these;
        }
    }
    Ok(sum)
}

fn insns(trace: &[u8], image: Image<'_>, config: Config<'_>) -> (Vec<Step>, Counters) {
    let mut decoder = InsnDecoder::with_config(trace, image, config);
    let mut steps = vec![];
    while let Some(psb) = decoder.resync() {
        steps.push(Step::Sync(psb));
        loop {
            steps.push(match decoder.next() {
                Ok(Some(flow::Item::Insn(insn))) => {
                    Step::Insn { ip: insn.ip, mode: insn.mode, speculative: insn.speculative }
                }
                Ok(Some(flow::Item::Event(event))) => Step::Event(event),
                Ok(None) => Step::End(decoder.ip()),
                Err(error) => Step::Error(error),
            });
            if matches!(steps.last(), Some(Step::End(_) | Step::Error(_))) {
                break;
            }
        }
    }
    (steps, decoder.counters())
}

fn blocks(mut decoder: BlockDecoder<'_>) -> Result<(Vec<Step>, Counters, Sum), String> {
    let mut steps = vec![];
    let mut sum = Sum::default();
    while let Some(psb) = decoder.resync() {
        steps.push(Step::Sync(psb));
        loop {
            match decoder.next() {
                Ok(Some(block::Item::Block(block))) => {
                    let mut last = None;
                    sum.blocks += 1;
                    let flags = decoder.config().flags;
                    for (ip, insn) in decoder.insns(&block) {
                        let ends = flags.end_on_call && insn.class == Class::NearCall
                            || flags.end_on_jump && insn.class == Class::NearJump;
                        if ends && ip != block.end_ip {
                            return Err(format!("{block:x?} goes on behind {ip:x}"));
                        }
                        steps.push(Step::Insn { ip, mode: block.mode, speculative: block.speculative });
                        sum.hash.add(ip);
                        sum.insns += 1;
                        last = Some(ip);
                    }
                    if last != Some(block.end_ip) {
                        return Err(format!("{block:x?} ends at {last:x?}"));
                    }
                }
                Ok(Some(block::Item::Event(event))) => steps.push(Step::Event(event)),
                Ok(None) => {
                    steps.push(Step::End(decoder.ip()));
                    break;
                }
                Err(error) => {
                    steps.push(Step::Error(error));
                    sum.errors += 1;
                    if decoder.next().is_ok() {
                        return Err("goes on after an error".into());
                    }
                    break;
                }
            }
        }
    }
    Ok((steps, decoder.counters(), sum))
}

/// Decodes with and without memory for code, step by step: the decoders report the same state. Now and then the
/// remembered code is dropped.
fn in_step(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<(), String> {
    let mut memory = vec![Slot::default(); 1 << 8];
    let mut plain = BlockDecoder::with_config(trace, image, &mut [], config);
    let mut quick = BlockDecoder::with_config(trace, image, &mut memory, config);
    let mut step = 0_u64;
    while let Some(psb) = plain.resync() {
        if quick.resync() != Some(psb) {
            return Err(format!("step {step}: synchronised elsewhere"));
        }
        let mut goes_on = true;
        while goes_on {
            let (expected, got) = (plain.next(), quick.next());
            goes_on = matches!(expected, Ok(Some(_)));
            let said = |decoder: &BlockDecoder<'_>| {
                (
                    decoder.span(),
                    decoder.ip(),
                    decoder.offset(),
                    decoder.time(),
                    decoder.asid(),
                    decoder.counters(),
                )
            };
            if got != expected || said(&quick) != said(&plain) {
                let (quick, plain) = (said(&quick), said(&plain));
                return Err(format!("step {step}: {got:x?} {quick:x?} instead of {expected:x?} {plain:x?}"));
            }
            step += 1;
            if step.is_multiple_of(29) {
                quick.set_image(image);
            }
        }
    }
    Ok(())
}

/// Checks that a block's span begins where the span of its first instruction begins and ends where that of its last one
/// ends. If an error or a tick follows the block, the span may end later. Short TNT packets in a row are read at once,
/// so all of them count as the first one, or as the long one before them.
fn spans(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<(), String> {
    let mut memory = vec![Slot::default(); 1 << 8];
    let mut insns = InsnDecoder::with_config(trace, image, config);
    let mut blocks = BlockDecoder::with_config(trace, image, &mut memory, config);
    let first_of_row = rows(trace, config);
    let first_of_row = |offset: u64| first_of_row.get(&offset).copied().unwrap_or(offset);
    while blocks.resync().is_some() {
        insns.resync();
        let mut later = None;
        while let Ok(Some(item)) = blocks.next() {
            if let Some(what) = later {
                return Err(what);
            }
            let block::Item::Block(block) = item else { continue };
            let mut of_insns = vec![];
            while of_insns.len() < block.insns as usize {
                match insns.next() {
                    Ok(Some(flow::Item::Insn(_))) => of_insns.push(insns.span()),
                    Ok(Some(flow::Item::Event(_))) => {}
                    other => return Err(format!("{other:x?} within {block:x?}")),
                }
            }
            let (Some(first), Some(last)) = (of_insns.first(), of_insns.last()) else { continue };
            let Span { behind, before } = blocks.span();
            let what =
                || format!("{block:x?} in {behind:x} to {before:x}, its instructions in {of_insns:x?}");
            let [behind, before, first, last] = [behind, before, first.behind, last.before].map(first_of_row);
            if behind != first || before < last {
                return Err(what());
            }
            later = (before != last && !config.flags.ticks).then(what);
        }
        while let Ok(Some(_)) = insns.next() {}
    }
    Ok(())
}

/// Maps each short TNT packet of a row to the first packet of the row.
fn rows(trace: &[u8], config: Config<'_>) -> BTreeMap<u64, u64> {
    let mut rows = BTreeMap::new();
    let mut packets = Packets::with_config(trace, config);
    while packets.sync_forward().is_some() {
        let mut first = None;
        let end = packets.by_ref().try_for_each(|packet| {
            match packet? {
                (offset, Packet::TntShort(_)) => {
                    rows.insert(offset, *first.get_or_insert(offset));
                }
                (offset, Packet::TntLong(_)) => first = Some(offset),
                _ => first = None,
            }
            Ok::<_, Error>(())
        });
        if end.is_ok() {
            break;
        }
    }
    rows
}
