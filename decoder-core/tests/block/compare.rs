//! Both decoders side by side.

use std::collections::BTreeMap;

use pugmark_decoder_core::{
    Error,
    block::{self, BlockDecoder},
    block_cache::{BlockCache, ExecutionSink, InstructionRun, edges},
    config::{Config, Flags},
    event::{Counters, Event, EventKind},
    flow::{self, InsnDecoder},
    hash::AddressHash,
    image::Image,
    insn::Class,
    mode::ExecMode,
    time::Span,
};

/// A result of a decoder, with blocks split into instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Sync(u64),
    Insn {
        ip: u64,
        mode: ExecMode,
        speculative: bool,
    },
    Event(Event),
    /// The end of the trace, with the decoder at this address.
    End(Option<u64>),
    Error(Error),
}

/// A summary of the blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) blocks: u64,
    pub(crate) insns: u64,
    pub(crate) errors: u64,
    /// The number of times that a known part of the trace was only counted.
    pub(crate) repeated: u64,
    pub(crate) hash: AddressHash,
}

/// Decodes with both decoders in every way. The error describes the difference.
pub(crate) fn compare(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<Sum, String> {
    let (expected, counters) = insns(trace, image, config);
    in_step(trace, image, config)?;
    // One of the flags with which no visit may walk ahead, another one for the next trace.
    let mut flags = config.flags;
    match trace.len() % 3 {
        0 => flags.end_on_call = true,
        1 => flags.end_on_jump = true,
        _ => flags.ticks = true,
    }
    in_step(trace, image, Config { flags, ..config })?;
    let repeated = visits(trace, image, config, &expected, counters)?;
    spans(trace, image, config)?;
    visited_spans(trace, image, config)?;
    let mut sum = Sum::default();
    for (end_on_call, end_on_jump) in [(false, false), (true, false), (false, true)] {
        let flags = Flags { end_on_call, end_on_jump, ..config.flags };
        let decoder = BlockDecoder::with_config(trace, image, Config { flags, ..config });
        let (got, seen, these) = blocks(decoder)?;
        if got != expected {
            let same = got.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            return Err(format!(
                "{flags:?}, step {same}: {:x?} instead of {:x?}, after {:x?}",
                got.get(same),
                expected.get(same),
                expected.get(same.saturating_sub(3)..same)
            ));
        }
        if seen != counters {
            return Err(format!("{flags:?}: {seen:?} instead of {counters:?}"));
        }
        sum = Sum { repeated, ..these };
    }
    Ok(sum)
}

/// The sizes of the block caches to visit with, in words: too small for any block, always full, and up to large enough.
const CACHES: [usize; 6] = [0, 100, 500, 1_200, 5_000, 100_000];

/// Visits a trace with block caches of all sizes, at once and in parts. Returns the number of times that a known part
/// was only counted.
fn visits(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    expected: &[Step],
    counters: Counters,
) -> Result<u64, String> {
    let mut repeated = 0;
    for words in CACHES {
        let mut memory = vec![0_u32; words];
        let mut cache = BlockCache::new(&mut memory);
        let visit =
            |cache: &mut BlockCache<'_>, most| visits_in_parts::<true>(trace, image, config, cache, most);
        let all = [
            ("never full", visits_in_parts::<false>(trace, image, config, &mut cache, usize::MAX)?),
            ("all at a time", visit(&mut cache, usize::MAX)?),
            ("1 at a time", visit(&mut cache, 1)?),
            ("7 at a time", visit(&mut cache, 7)?),
        ];
        for (what, (got, seen)) in all {
            if got != expected {
                let same = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
                return Err(format!(
                    "cache of {words} words, {what}, step {same}: {:x?} instead of {:x?}, after {:x?}",
                    got.get(same),
                    expected.get(same),
                    expected.get(same.saturating_sub(3)..same)
                ));
            }
            if seen != counters {
                return Err(format!("cache of {words} words, {what}: {seen:?} instead of {counters:?}"));
            }
        }
        // A sink that takes no blocks has a walk of its own.
        let edges = edges_of::<true>(trace, image, config, &mut cache);
        if edges_of::<false>(trace, image, config, &mut cache).0 != edges.0 {
            return Err(format!("cache of {words} words: other edges without blocks"));
        }
        counts(trace, image, config, &mut cache, expected, &edges, counters)
            .map_err(|what| format!("cache of {words} words: {what}"))?;
        repeated += cache.statistics().repeated;
    }
    Ok(repeated)
}

/// Visits a trace. With `FILLS` a call of `visit` ends after `most` items, and the next call continues. Without it
/// `is_full` is never called: one call goes to the end or to an error, two outcomes at a time.
fn visits_in_parts<const FILLS: bool>(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    cache: &mut BlockCache<'_>,
    most: usize,
) -> Result<(Vec<Step>, Counters), String> {
    let mut decoder = BlockDecoder::with_config(trace, image, config);
    let mut sink = Steps::<FILLS> { most, ..Steps::default() };
    while let Some(psb) = decoder.resync() {
        sink.steps.push(Step::Sync(psb));
        sink.before = 0;
        let end = loop {
            sink.items = 0;
            match decoder.visit(cache, &mut sink) {
                Ok(()) if sink.items >= most => {}
                end => break end,
            }
        };
        sink.steps.push(match end {
            Ok(()) => Step::End(decoder.ip()),
            Err(error) => Step::Error(error),
        });
        if end.is_err() && decoder.visit(cache, &mut Steps::<FILLS> { most, ..Steps::default() }).is_ok() {
            return Err("goes on after an error".into());
        }
    }
    Ok((sink.steps, decoder.counters()))
}

/// The state of a decoder after a visit.
type After = (Span, Option<u64>, u64, Option<u64>);

fn after(decoder: &BlockDecoder<'_>) -> After {
    (decoder.span(), decoder.ip(), decoder.offset(), decoder.time())
}

/// Returns the edges of a trace, for a sink with or without blocks, and the decoder's state after each visit.
fn edges_of<const BLOCKS: bool>(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    cache: &mut BlockCache<'_>,
) -> (Vec<u16>, Vec<After>) {
    let mut decoder = BlockDecoder::with_config(trace, image, config);
    let (mut sink, mut states) = (Edges::<BLOCKS>(vec![]), vec![]);
    while decoder.resync().is_some() {
        // Errors are compared elsewhere.
        let _: Result<(), Error> = decoder.visit(cache, &mut sink);
        states.push(after(&decoder));
    }
    (sink.0, states)
}

/// Visits a trace several times with a sink that counts edges: a part that recurs becomes known only later.
fn counts(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    cache: &mut BlockCache<'_>,
    expected: &[Step],
    (edges, states): &(Vec<u16>, Vec<After>),
    counters: Counters,
) -> Result<(), String> {
    let mut in_all = BTreeMap::new();
    for edge in edges {
        *in_all.entry(*edge).or_default() += 1;
    }
    let rest: Vec<_> = expected.iter().filter(|step| !matches!(step, Step::Insn { .. })).copied().collect();
    for time in 1..=5 {
        let mut decoder = BlockDecoder::with_config(trace, image, config);
        let (mut sink, mut seen) = (Counts::default(), vec![]);
        while let Some(psb) = decoder.resync() {
            sink.steps.push(Step::Sync(psb));
            let end = decoder.visit(cache, &mut sink);
            seen.push(after(&decoder));
            sink.steps.push(match end {
                Ok(()) => Step::End(decoder.ip()),
                Err(error) => Step::Error(error),
            });
        }
        if &seen != states {
            return Err(format!("counted the {time}. time: {seen:x?} instead of {states:x?}"));
        }
        if sink.steps != rest {
            let same = sink.steps.iter().zip(&rest).take_while(|(a, b)| a == b).count();
            let (got, wanted) = (sink.steps.get(same), rest.get(same));
            return Err(format!("counted the {time}. time, step {same}: {got:x?} instead of {wanted:x?}"));
        }
        if sink.edges != in_all {
            return Err(format!("counted the {time}. time: {:x?} instead of {in_all:x?}", sink.edges));
        }
        if decoder.counters() != counters {
            return Err(format!(
                "counted the {time}. time: {:?} instead of {counters:?}",
                decoder.counters()
            ));
        }
    }
    Ok(())
}

/// A sink that counts edges, and collects the other steps.
#[derive(Default)]
struct Counts {
    edges: BTreeMap<u16, u64>,
    steps: Vec<Step>,
}

impl ExecutionSink for Counts {
    const EDGES: bool = true;
    const COUNTS: bool = true;

    fn edge(&mut self, edge: u16) {
        self.edges(edge, 1);
    }

    fn edges(&mut self, edge: u16, times: u32) {
        *self.edges.entry(edge).or_default() += u64::from(times);
    }

    fn event(&mut self, event: &Event) {
        self.steps.push(Step::Event(*event));
    }
}

/// A sink that collects edges.
struct Edges<const BLOCKS: bool>(Vec<u16>);

impl<const BLOCKS: bool> ExecutionSink for Edges<BLOCKS> {
    const BLOCKS: bool = BLOCKS;
    const EDGES: bool = true;

    fn edge(&mut self, edge: u16) {
        self.0.push(edge);
    }

    fn event(&mut self, _: &Event) {}
}

/// A sink that collects the steps of a visit.
#[derive(Default)]
struct Steps<const FILLS: bool> {
    steps: Vec<Step>,
    /// Instructions whose block has not come yet.
    open: Vec<u64>,
    /// The edge to the last block, if that block has not come yet, and half its edge-map place.
    edge: Option<u16>,
    before: u16,
    items: usize,
    most: usize,
}

impl<const FILLS: bool> ExecutionSink for Steps<FILLS> {
    const INSNS: bool = true;
    const BLOCKS: bool = true;
    const EDGES: bool = true;
    const FILLS: bool = FILLS;

    fn insns(&mut self, insns: InstructionRun) {
        self.open.extend(insns);
    }

    fn block(&mut self, block: &block::Block) {
        assert_eq!(self.open.len(), block.insns as usize, "{block:x?}: {:x?}", self.open);
        assert_eq!(self.open.last(), Some(&block.end_ip));
        let place = edges::place(block.ip);
        assert_eq!(self.edge.replace(place ^ self.before), None, "{block:x?}");
        self.before = place >> 1;
        let block::Block { mode, speculative, .. } = *block;
        self.steps.extend(self.open.drain(..).map(|ip| Step::Insn { ip, mode, speculative }));
        self.items += 1;
        assert!(self.steps.len() < 10_000_000, "endless: {:x?}", &self.steps[self.steps.len() - 30..]);
    }

    fn edge(&mut self, edge: u16) {
        assert_eq!(self.edge.take(), Some(edge), "after {:x?}", self.steps.last());
    }

    fn event(&mut self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Enabled { .. } | EventKind::Overflow | EventKind::AsyncBranch { .. }
        ) {
            self.before = 0;
        }
        self.steps.push(Step::Event(*event));
        self.items += 1;
    }

    fn is_full(&self) -> bool {
        self.items >= self.most
    }
}

fn insns(trace: &[u8], image: Image<'_>, config: Config<'_>) -> (Vec<Step>, Counters) {
    let mut decoder = InsnDecoder::with_config(trace, image, config);
    let mut steps = vec![];
    while let Some(psb) = decoder.resync() {
        steps.push(Step::Sync(psb));
        loop {
            steps.push(match decoder.next() {
                Ok(Some(flow::FlowItem::Insn(insn))) => {
                    Step::Insn { ip: insn.ip, mode: insn.mode, speculative: insn.speculative }
                }
                Ok(Some(flow::FlowItem::Event(event))) => Step::Event(event),
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
                Ok(Some(block::BlockItem::Block(block))) => {
                    let mut last = None;
                    sum.blocks += 1;
                    let flags = decoder.config().flags;
                    for (ip, insn) in decoder.insns(&block) {
                        let ends = flags.end_on_call && insn.class == Class::NearCall
                            || flags.end_on_jump && insn.class == Class::NearJump;
                        if ends && ip != block.end_ip {
                            return Err(format!("{block:x?} goes on after {ip:x}"));
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
                Ok(Some(block::BlockItem::Event(event))) => steps.push(Step::Event(event)),
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

/// Decodes with and without a block cache, step by step: the decoders must report the same state. Sometimes the block
/// cache is cleared.
fn in_step(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<(), String> {
    let mut memory = vec![0; 10_000];
    let mut cache = BlockCache::new(&mut memory);
    let mut plain = BlockDecoder::with_config(trace, image, config);
    let mut quick = BlockDecoder::with_config(trace, image, config);
    let mut step = 0_usize;
    while let Some(psb) = plain.resync() {
        if quick.resync() != Some(psb) {
            return Err(format!("step {step}: synchronised elsewhere"));
        }
        let mut goes_on = true;
        while goes_on {
            let most = step % 5 + 1;
            let mut expected = vec![];
            let end = loop {
                match plain.next() {
                    Ok(Some(item)) => expected.push(item),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
                if expected.len() == most {
                    break Ok(());
                }
            };
            let mut items = [block::BlockItem::NONE; 5];
            let (filled, quick_end) = quick.fill(&mut cache, &mut items[..most]);
            goes_on = expected.len() == most && quick_end.is_ok();
            // An error comes with the items before it.
            let end =
                if goes_on || end.is_err() || expected.len() < most { end } else { plain.next().map(|_| ()) };
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
            if items[..filled] != expected[..] || quick_end != end || said(&quick) != said(&plain) {
                let (quick, plain) = (said(&quick), said(&plain));
                return Err(format!(
                    "step {step}: {:x?} {quick_end:x?} {quick:x?} instead of {expected:x?} {end:x?} {plain:x?}",
                    &items[..filled]
                ));
            }
            step += 1;
            if step % 29 == 0 {
                cache.forget();
            }
        }
    }
    Ok(())
}

/// Checks that a block's span begins with the span of its first instruction and ends with that of its last one. If an
/// error or a tick follows the block, the span may end later.
fn spans(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<(), String> {
    let mut insns = InsnDecoder::with_config(trace, image, config);
    let mut blocks = BlockDecoder::with_config(trace, image, config);
    while blocks.resync().is_some() {
        insns.resync();
        let mut later = None;
        while let Ok(Some(item)) = blocks.next() {
            if let Some(what) = later {
                return Err(what);
            }
            let block::BlockItem::Block(block) = item else { continue };
            let mut of_insns = vec![];
            while of_insns.len() < block.insns as usize {
                match insns.next() {
                    Ok(Some(flow::FlowItem::Insn(_))) => of_insns.push(insns.span()),
                    Ok(Some(flow::FlowItem::Event(_))) => {}
                    other => return Err(format!("{other:x?} within {block:x?}")),
                }
            }
            let (Some(first), Some(last)) = (of_insns.first(), of_insns.last()) else { continue };
            let Span { after, before } = blocks.span();
            let what = || format!("{block:x?} in {after:x} to {before:x}, its instructions in {of_insns:x?}");
            let (first, last) = (first.after, last.before);
            if after != first || before < last {
                return Err(what());
            }
            later = (before != last && !config.flags.ticks).then(what);
        }
        while let Ok(Some(_)) = insns.next() {}
    }
    Ok(())
}

/// A sink that collects blocks, each with its span.
#[derive(Default)]
struct Spans {
    span: Option<Span>,
    blocks: Vec<(block::Block, Span)>,
}

impl ExecutionSink for Spans {
    const BLOCKS: bool = true;
    const SPANS: bool = true;

    fn span(&mut self, span: Span) {
        assert_eq!(self.span.replace(span), None, "before each block one");
    }

    fn block(&mut self, block: &block::Block) {
        self.blocks.push((*block, self.span.take().expect("it comes before its block")));
    }

    fn event(&mut self, _: &Event) {}
}

/// Checks that visits report the same span of each block as the decoder without a block cache.
fn visited_spans(trace: &[u8], image: Image<'_>, config: Config<'_>) -> Result<(), String> {
    let mut expected = vec![];
    let mut blocks = BlockDecoder::with_config(trace, image, config);
    while blocks.resync().is_some() {
        while let Ok(Some(item)) = blocks.next() {
            if let block::BlockItem::Block(block) = item {
                expected.push((block, blocks.span()));
            }
        }
    }
    for words in CACHES {
        let mut memory = vec![0_u32; words];
        let mut cache = BlockCache::new(&mut memory);
        for round in 0..2 {
            let mut decoder = BlockDecoder::with_config(trace, image, config);
            let mut sink = Spans::default();
            while decoder.resync().is_some() {
                // Errors are compared elsewhere.
                let _: Result<(), Error> = decoder.visit(&mut cache, &mut sink);
            }
            if sink.blocks != expected {
                let same = sink.blocks.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                return Err(format!(
                    "cache of {words} words, round {round}, block {same}: {:x?} instead of {:x?}, after {:x?}",
                    sink.blocks.get(same),
                    expected.get(same),
                    expected.get(same.saturating_sub(3)..same)
                ));
            }
        }
    }
    Ok(())
}
