//! `pugmark decode` for branch records, such as those of Intel's Branch Trace Store (BTS).

use super::{
    code::TracedCode,
    decode::{Layer, Totals},
    hashing::Hashing,
    progress::{Progress, Size},
    values,
};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{
    block,
    bts::{BlockDecoder, Entry, InsnDecoder, Layout, Options, Records},
    flow,
    hash::AddressHash,
    image::Image,
};
use std::ops::RangeInclusive;

/// Where a trace comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Packets of Intel Processor Trace
    #[default]
    Pt,
    /// Records of a Branch Trace Store buffer, 24 bytes each, as also in perf's AUX area
    Bts,
    /// The same of a 32-bit processor, 12 bytes each
    Bts32,
    /// perf's samples of IP and address, one for each branch
    PerfBts,
}

/// What only branch records need to be told.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Branch records")]
pub struct Arguments {
    /// What the trace consists of
    #[arg(long, value_enum, default_value_t, help_heading = None)]
    pub source: Source,
    /// The buffer is circular and its next record would be at this offset
    #[arg(long, value_name = "OFFSET", value_parser = values::number::<u64>)]
    pub next: Option<u64>,
    /// The address of the first instruction that was traced
    #[arg(long, value_name = "ADDRESS", value_parser = values::number::<u64>)]
    pub start: Option<u64>,
    /// The address of the last instruction that was traced
    #[arg(long, value_name = "ADDRESS", value_parser = values::number::<u64>)]
    pub end: Option<u64>,
    /// Where interrupts lead to; may be given again
    #[arg(long, value_name = "ADDRESS[-LAST]", value_parser = values::range)]
    pub handler: Vec<RangeInclusive<u64>>,
    /// Branches of one privilege level only were stored
    #[arg(long)]
    pub one_level: bool,
}

impl Arguments {
    fn layout(&self) -> Layout {
        match self.source {
            Source::Pt | Source::Bts => Layout::Bits64,
            Source::Bts32 => Layout::Bits32,
            Source::PerfBts => Layout::PerfSample,
        }
    }

    fn records<'a>(&self, trace: &'a [u8]) -> Records<'a> {
        match self.next {
            None => Records::new(trace, self.layout()),
            Some(next) => {
                Records::circular(trace, usize::try_from(next).unwrap_or(usize::MAX), self.layout())
            }
        }
    }

    fn options(&self) -> Options<'_> {
        Options {
            start: self.start,
            end: self.end,
            handlers: (!self.handler.is_empty()).then_some(&self.handler[..]),
            one_level: self.one_level,
            ..Options::default()
        }
    }
}

/// Decodes branch records, and hashes the instructions' addresses if `hash` is set.
///
/// # Errors
/// If branch records have no such layer.
pub fn decode(
    trace: &[u8],
    code: &TracedCode,
    arguments: &Arguments,
    layer: Layer,
    hash: bool,
    progress: &mut Progress,
) -> Result<Totals> {
    let sections = code.sections();
    let image = Image::new(&sections);
    let records = arguments.records(trace);
    let hash = (hash && matches!(layer, Layer::Insns | Layer::Blocks)).then(AddressHash::new);
    let mut totals = Totals { bytes: trace.len() as u64, hash, ..Totals::default() };
    totals.packets =
        records.clone().filter(|entry| matches!(entry, Ok((_, Entry::Branch(_))))).count() as u64;
    progress.begin("decoding", Size::Bytes(totals.bytes));
    let size = arguments.layout().record_bytes();
    match layer {
        Layer::Packets => {
            totals.errors = records.filter_map(Result::err).map(|error| (error, size).into()).collect();
        }
        Layer::Insns => {
            insns(InsnDecoder::new(records, image, arguments.options()), size, &mut totals, progress)
        }
        Layer::Blocks => {
            blocks(BlockDecoder::new(records, image, arguments.options()), size, &mut totals, progress);
        }
        Layer::Events | Layer::Query => {
            bail!("branch records have no such layer: --layer packets, insns or blocks")
        }
    }
    progress.end();
    Ok(totals)
}

fn insns(mut decoder: InsnDecoder<'_>, size: usize, totals: &mut Totals, progress: &mut Progress) {
    loop {
        match decoder.next() {
            Ok(Some(flow::Item::Insn(insn))) => {
                totals.instructions += 1;
                if let Some(hash) = &mut totals.hash {
                    hash.add(insn.ip);
                }
            }
            Ok(Some(flow::Item::Event(_))) => totals.events += 1,
            Ok(None) => break,
            Err(error) => totals.errors.push((error, size).into()),
        }
        progress.step(|| decoder.index() * size as u64);
    }
}

/// The hash covers the blocks' instructions.
fn blocks(mut decoder: BlockDecoder<'_>, size: usize, totals: &mut Totals, progress: &mut Progress) {
    let mut addresses = totals.hash.map(|_| Hashing::new());
    loop {
        match &decoder.next() {
            Ok(Some(block::Item::Block(block))) => {
                totals.blocks += 1;
                totals.instructions += u64::from(block.insns);
                if let Some(hashing) = &mut addresses {
                    hashing.add(block, || decoder.insns(block).map(|(ip, _)| ip));
                }
            }
            Ok(Some(block::Item::Event(_))) => totals.events += 1,
            Ok(None) => break,
            Err(error) => totals.errors.push((*error, size).into()),
        }
        progress.step(|| decoder.index() * size as u64);
    }
    totals.hash = addresses.map(|hashing| hashing.hash());
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::ProgressBar;
    use pugmark_decoder_core::image::{AddressSpace, Section};

    #[test]
    fn either_layer_says_now_and_then_how_far_it_is() {
        // 1000: jmp *rax.
        let sections = [Section { base: 0x1000, bytes: &[0xff, 0xe0], space: AddressSpace::Any }];
        let image = Image::new(&sections);
        let record = [0x1000_u64, 0x1000, 0].map(u64::to_le_bytes).concat();
        for (count, expected) in [(1 << 15, false), (3 << 15, true)] {
            let trace = record.repeat(count);
            let records = Records::new(&trace, Layout::Bits64);
            let options = Options { start: Some(0x1000), ..Options::default() };
            let (first, second) = (ProgressBar::hidden(), ProgressBar::hidden());
            let mut totals = Totals::default();
            let decoder = InsnDecoder::new(records.clone(), image, options);
            insns(decoder, 24, &mut totals, &mut Progress::in_bar(&first));
            let decoder = BlockDecoder::new(records, image, options);
            blocks(decoder, 24, &mut totals, &mut Progress::in_bar(&second));
            assert_eq!((totals.errors.len(), totals.instructions), (0, 2 * count as u64));
            for bar in [first, second] {
                let size = trace.len() as u64;
                assert_eq!((size / 2..=size).contains(&bar.position()), expected, "{}", bar.position());
            }
        }
    }

    #[test]
    fn without_handlers_they_are_not_known_and_not_none() {
        let none = Arguments::default();
        assert_eq!(none.options().handlers, None);
        let one = Arguments { handler: vec![0x10..=0x20], ..none };
        assert_eq!(one.options().handlers, Some(&[0x10..=0x20][..]));
    }
}
