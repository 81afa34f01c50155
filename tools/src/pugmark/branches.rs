//! `pugmark decode` for branch records, such as those of Intel's Branch Trace Store (BTS).

use super::{
    code::TracedCode,
    decode::{Layer, Totals},
    hashing::Hashing,
    layers::{self, HashedBlocks, ItemDecoder},
    progress::{Progress, Size},
    totals::TraceError,
    values,
};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{
    bts::{BranchRecords, BtsBlockDecoder, BtsInsnDecoder, Entry, Layout, Options},
    hash::AddressHash,
    image::Image,
};
use std::ops::RangeInclusive;

/// The contents of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TraceContents {
    /// Packets of Intel Processor Trace.
    #[default]
    Pt,
    /// Records of a Branch Trace Store buffer, 24 bytes each, as perf's AUX area has them too.
    Bts,
    /// Records of the Branch Trace Store of a 32-bit processor, 12 bytes each.
    Bts32,
    /// perf's samples of IP and address, one for each branch.
    PerfBts,
}

/// The options of branch records.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Branch records")]
pub struct BranchOptions {
    /// Contents: pt, bts (24-byte records), bts32 (12-byte), perf-bts (samples)
    #[arg(long, value_enum, default_value_t, help_heading = None, hide_possible_values = true)]
    pub source: TraceContents,
    /// The buffer is circular, and its next record would be written at OFFSET
    #[arg(long, value_name = "OFFSET", value_parser = values::number::<u64>)]
    pub next: Option<u64>,
    /// Address of the first traced instruction
    #[arg(long, value_name = "ADDRESS", value_parser = values::number::<u64>)]
    pub start: Option<u64>,
    /// Address of the last traced instruction
    #[arg(long, value_name = "ADDRESS", value_parser = values::number::<u64>)]
    pub end: Option<u64>,
    /// Address of an interrupt handler, or a range of them; repeatable
    #[arg(long, value_name = "ADDRESS[-LAST]", value_parser = values::range)]
    pub handler: Vec<RangeInclusive<u64>>,
    /// Only branches of one privilege level were stored
    #[arg(long)]
    pub one_level: bool,
}

impl BranchOptions {
    /// Returns true if an option of branch records was given.
    pub(super) fn are_any_given(&self) -> bool {
        let Self { next, start, end, handler, one_level, .. } = self;
        [next, start, end].into_iter().any(Option::is_some) || !handler.is_empty() || *one_level
    }

    fn layout(&self) -> Layout {
        match self.source {
            TraceContents::Pt | TraceContents::Bts => Layout::Bits64,
            TraceContents::Bts32 => Layout::Bits32,
            TraceContents::PerfBts => Layout::PerfSample,
        }
    }

    fn records<'a>(&self, trace: &'a [u8]) -> BranchRecords<'a> {
        match self.next {
            None => BranchRecords::new(trace, self.layout()),
            Some(next) => {
                BranchRecords::circular(trace, usize::try_from(next).unwrap_or(usize::MAX), self.layout())
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
    branches: &BranchOptions,
    layer: Layer,
    hash: bool,
    progress: &mut Progress,
) -> Result<Totals> {
    let sections = code.sections();
    let image = Image::new(&sections);
    let records = branches.records(trace);
    let taken = records.clone().filter(|entry| matches!(entry, Ok((_, Entry::Branch(_)))));
    let totals = Totals {
        bytes: trace.len() as u64,
        packets: taken.count() as u64,
        hash: (hash && layer == Layer::Insns).then(AddressHash::new),
        ..Totals::default()
    };
    progress.begin("decoding", Size::Bytes(totals.bytes));
    let totals = match layer {
        Layer::Packets => {
            let errors = records.filter_map(Result::err).map(TraceError::in_records).collect();
            Totals { errors, ..totals }
        }
        Layer::Insns => {
            let decoder = BtsInsnDecoder::new(records, image, branches.options());
            layers::count(&mut EndingDecoder { decoder, ended: false }, totals, progress)
        }
        Layer::Blocks => {
            let decoder = BtsBlockDecoder::new(records, image, branches.options());
            let decoder = HashedBlocks { decoder, addresses: hash.then(Hashing::new) };
            let mut decoder = EndingDecoder { decoder, ended: false };
            let totals = layers::count(&mut decoder, totals, progress);
            Totals { hash: decoder.decoder.addresses.map(|addresses| addresses.hash()), ..totals }
        }
        Layer::Events | Layer::Query | Layer::Edges => {
            bail!("branch records have no layer {layer}: use --layer packets, insns or blocks")
        }
    };
    progress.end();
    Ok(totals)
}

/// A decoder of branch records. After an error it continues with the next record by itself.
struct EndingDecoder<D> {
    decoder: D,
    ended: bool,
}

impl ItemDecoder for EndingDecoder<BtsInsnDecoder<'_>> {
    fn synchronize(&mut self) -> bool {
        !self.ended
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        match &self.decoder.next() {
            Ok(Some(item)) => totals.count_insn(item),
            Ok(None) => self.ended = true,
            Err(error) => return Err(TraceError::in_records(*error)),
        }
        Ok(!self.ended)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.decoder.offset()
    }
}

impl ItemDecoder for EndingDecoder<HashedBlocks<BtsBlockDecoder<'_>>> {
    fn synchronize(&mut self) -> bool {
        !self.ended
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        let HashedBlocks { decoder, addresses } = &mut self.decoder;
        match &decoder.next() {
            Ok(Some(item)) => totals.count_block(item, addresses, |block| decoder.insns(block)),
            Ok(None) => self.ended = true,
            Err(error) => return Err(TraceError::in_records(*error)),
        }
        Ok(!self.ended)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.decoder.decoder.offset()
    }
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
            let records = BranchRecords::new(&trace, Layout::Bits64);
            let options = Options { start: Some(0x1000), ..Options::default() };
            let (first, second) = (ProgressBar::hidden(), ProgressBar::hidden());
            let decoder = BtsInsnDecoder::new(records.clone(), image, options);
            let mut insns = EndingDecoder { decoder, ended: false };
            let totals = layers::count(&mut insns, Totals::default(), &mut Progress::in_bar(&first));
            let decoder =
                HashedBlocks { decoder: BtsBlockDecoder::new(records, image, options), addresses: None };
            let mut blocks = EndingDecoder { decoder, ended: false };
            let totals = layers::count(&mut blocks, totals, &mut Progress::in_bar(&second));
            assert_eq!((totals.errors.len(), totals.instructions), (0, 2 * count as u64));
            for bar in [first, second] {
                let size = trace.len() as u64;
                assert_eq!((size / 2..=size).contains(&bar.position()), expected, "{}", bar.position());
            }
        }
    }

    #[test]
    fn without_handlers_they_are_not_known_and_not_none() {
        let none = BranchOptions::default();
        assert_eq!(none.options().handlers, None);
        let one = BranchOptions { handler: vec![0x10..=0x20], ..none };
        assert_eq!(one.options().handlers, Some(&[0x10..=0x20][..]));
    }
}
