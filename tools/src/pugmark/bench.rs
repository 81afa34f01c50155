//! `pugmark bench`: measures how fast a layer decodes a trace that is in memory.
//!
//! Each run decodes the whole trace from the start. The code that the block decoder has found is kept from run to run,
//! as a program that decodes many traces of the same code would keep it. Hashing the addresses of instructions is not
//! part of decoding and takes longer than it, so one run before the measurement does it, and the measured runs only
//! count.

use super::{
    code::TracedCode,
    decode::{self, Layer, hash_text},
    layers::CACHE_WORDS,
    loaded::LoadedSession,
    options::{Input, LayerOptions},
    progress::{Progress, Size},
    segments::{TraceSegment, each, segments},
    verdict::Verdict,
};
use crate::output;
use crate::session::{SliceSink, layers};
use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_decoder_core::{
    block::Block,
    block_cache::{
        BlockCache, ExecutionSink, InstructionRun,
        edges::{EDGES, EdgeMap},
    },
    config::Config,
    event::Event,
    hash::AddressHash,
    image::{Image, Section},
    packet::{self, Ip, IpPacket, Packet, Tnt},
    query::BranchEventSink,
};
use serde::Serialize;
use std::{
    hint::black_box,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

/// The options of `pugmark bench`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark bench --layer insns --seconds 10 --threads 4 ls.rec")]
pub struct BenchOptions {
    /// Measure for at least SECONDS seconds
    #[arg(long, default_value_t = 3.0, value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layers: LayerOptions,
    #[command(flatten)]
    input: Input,
}

/// The speed of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// The layer.
    pub layer: Layer,
    /// The number of threads that decoded it.
    pub threads: NonZeroUsize,
    /// The trace's length in bytes.
    pub bytes: u64,
    /// The number of times that the trace was decoded.
    pub runs: usize,
    /// The time of the fastest run in seconds.
    pub seconds_min: f64,
    /// The time of the median run in seconds.
    pub seconds_median: f64,
    /// The speed of the median run in 10^6 bytes of trace per second.
    pub mb_per_s: f64,
    /// The number of items that the layer produces: packets, events, branches and events, instructions, or edges.
    pub count: u64,
    /// The hash of the instructions' addresses, if the layer produces instructions; for edges that of the map, whose
    /// counts wrap around, eight at a time.
    pub hash: Option<String>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds between 0 and 86400".into()),
    }
}

/// Runs `pugmark bench`.
///
/// # Errors
/// If there is no trace or no code to decode, or the output cannot be written.
pub fn run(options: &BenchOptions) -> Result<()> {
    let mut progress = Progress::stderr();
    let traces = options.input.traces(&mut Verdict::default())?;
    // In a recording's folder the first trace is that of the program's main thread.
    let traced = traces.first().context("there is no trace")?;
    let LayerOptions { layer, threads, .. } = options.layers;
    let loaded = LoadedSession::for_layer(options.layers, &options.input, traced, &mut progress)?;
    let trace = loaded.alone().with_context(|| {
        format!(
            "{}: it has several traces, threads or programs, and one is measured: see `pugmark decode`",
            traced.trace.display()
        )
    })?;
    ensure!(!trace.is_empty(), "{} is empty: there is nothing to measure", traced.trace.display());
    let seconds = Duration::from_secs_f64(options.seconds);
    let traced = BenchTrace { trace, code: loaded.code(0), config: loaded.config };
    let speed = measure(&traced, layer, threads, seconds, &mut progress)?;
    let line = match options.json {
        true => serde_json::to_string(&speed)?,
        false => format!(
            "{:?}: {:.1} MB/s on {} threads; {} bytes in {:.6} s, at best {:.6} s, of {} runs; count {}{}",
            speed.layer,
            speed.mb_per_s,
            speed.threads,
            speed.bytes,
            speed.seconds_median,
            speed.seconds_min,
            speed.runs,
            speed.count,
            speed.hash.as_ref().map_or(String::new(), |hash| format!(", hash {hash}"))
        ),
    };
    output::print(|out| writeln!(out, "{line}"))
}

/// A trace with its code.
#[derive(Debug)]
pub struct BenchTrace<'a> {
    /// The trace.
    pub trace: &'a [u8],
    /// Its code.
    pub code: &'a TracedCode,
    /// The configuration of its decoder.
    pub config: Config<'a>,
}

/// Decodes the trace repeatedly for at least the time `least`, and at least three times.
///
/// # Errors
/// If several threads decode a different result than one.
pub fn measure(
    traced: &BenchTrace<'_>,
    layer: Layer,
    threads: NonZeroUsize,
    least: Duration,
    progress: &mut Progress,
) -> Result<Speed> {
    let BenchTrace { trace, code, config } = *traced;
    let sections = code.sections();
    let mut memory: Vec<_> = (0..threads.get()).map(|_| vec![0; CACHE_WORDS]).collect();
    let mut workers: Vec<_> = memory.iter_mut().map(|memory| Worker::new(memory)).collect();
    let alone = [TraceSegment { bytes: trace, lead: &[], offset: 0 }];
    let count = once(&alone, &mut workers[..1], &sections, config, layer);
    let map = merged(&mut workers);
    let segments = segments(trace, config, threads);
    let together = once(&segments, &mut workers, &sections, config, layer);
    ensure!(
        count == together && map == merged(&mut workers),
        "on {threads} threads other things are found than on one: the trace may have errors"
    );
    let hash = match layer {
        Layer::Edges => Some(hash_of(&map)),
        _ => decode::decode(trace, code, config, layer, true, progress).hash,
    };
    let mut times = vec![];
    let begin = Instant::now();
    progress.begin("measuring", Size::Time(least));
    while times.len() < 3 || begin.elapsed() < least {
        let start = Instant::now();
        black_box(once(black_box(&segments), &mut workers, &sections, config, layer));
        times.push(start.elapsed().as_secs_f64());
        progress.at(begin.elapsed().as_millis() as u64);
    }
    progress.end();
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    Ok(Speed {
        layer,
        threads,
        bytes: trace.len() as u64,
        runs: times.len(),
        seconds_min: times[0],
        seconds_median: median,
        mb_per_s: trace.len() as f64 / 1e6 / median,
        count,
        hash: hash.map(hash_text),
    })
}

/// The state that a thread keeps from run to run.
struct Worker<'m> {
    cache: BlockCache<'m>,
    /// The edges of segments, and those of their leads.
    edges: Box<[u8; EDGES]>,
    lead_edges: Box<[u8; EDGES]>,
}

impl<'m> Worker<'m> {
    fn new(memory: &'m mut [u32]) -> Self {
        let none = || Box::new([0; EDGES]);
        Self { cache: BlockCache::new(memory), edges: none(), lead_edges: none() }
    }
}

/// Adds up the edges of all workers.
fn merged(workers: &mut [Worker<'_>]) -> Vec<u8> {
    let mut all = vec![0_u8; EDGES];
    for worker in workers {
        for ((sum, edges), lead) in all.iter_mut().zip(&mut worker.edges[..]).zip(&mut worker.lead_edges[..])
        {
            *sum = sum.wrapping_add(std::mem::take(edges)).wrapping_sub(std::mem::take(lead));
        }
    }
    all
}

fn hash_of(map: &[u8]) -> AddressHash {
    let mut hash = AddressHash::new();
    map.as_chunks().0.iter().for_each(|counts| hash.add(u64::from_le_bytes(*counts)));
    hash
}

/// Decodes the trace once and returns the number of items that the layer produced.
fn once(
    segments: &[TraceSegment<'_>],
    workers: &mut [Worker<'_>],
    sections: &[Section<'_>],
    config: Config<'_>,
    layer: Layer,
) -> u64 {
    let counts = each(segments, workers, |worker, segment| {
        let image = Image::new(sections);
        let Worker { cache, edges, lead_edges } = worker;
        let count = count(segment.bytes, image, config, layer, (cache, edges));
        let lead = match segment.lead {
            [] => 0,
            lead => self::count(lead, image, config, layer, (cache, lead_edges)),
        };
        count - lead
    });
    counts.iter().sum()
}

/// Decodes a part of the trace and returns the number of items that the layer produced.
fn count(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    layer: Layer,
    (cache, edges): (&mut BlockCache<'_>, &mut [u8; EDGES]),
) -> u64 {
    let mut counted = Counted::default();
    match layer {
        Layer::Packets => drop(layers::packets(trace, config, &mut counted)),
        Layer::Events => drop(layers::events(trace, config, |event| {
            black_box(event);
            counted.0 += 1;
        })),
        Layer::Query => drop(layers::answers(trace, config, &mut counted)),
        Layer::Insns => layers::blocks(trace, image, config, cache, &mut counted),
        Layer::Blocks => {
            let mut blocks = CountedBlocks::default();
            layers::blocks(trace, image, config, cache, &mut blocks);
            return blocks.0;
        }
        Layer::Edges => {
            let mut map = EdgeMap::<false>::new(edges);
            layers::blocks(trace, image, config, cache, &mut map);
            return map.taken();
        }
    }
    counted.0
}

impl SliceSink for Counted {}
impl SliceSink for CountedBlocks {}
impl SliceSink for EdgeMap<'_, false> {}

/// A counter of packets, answers or instructions, which uses the content of each.
#[derive(Default)]
struct Counted(u64);

impl packet::PacketSink for Counted {
    #[inline]
    fn packet(&mut self, _: u64, packet: Packet) {
        black_box(packet);
        self.0 += 1;
    }

    #[inline]
    fn tnt(&mut self, _: u64, tnt: Tnt) {
        black_box(tnt);
        self.0 += 1;
    }

    #[inline]
    fn ip(&mut self, _: u64, _: IpPacket, _: Ip, address: Option<u64>) {
        black_box(address);
        self.0 += 1;
    }
}

impl BranchEventSink for Counted {
    #[inline]
    fn outcomes(&mut self, outcomes: Tnt) {
        outcomes.outcomes().for_each(|taken| {
            black_box(taken);
        });
        self.0 += u64::from(outcomes.len);
    }

    #[inline]
    fn target(&mut self, ip: Option<u64>) {
        black_box(ip);
        self.0 += 1;
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
        self.0 += 1;
    }
}

impl ExecutionSink for Counted {
    const INSNS: bool = true;

    #[inline]
    fn insns(&mut self, insns: InstructionRun) {
        for ip in insns {
            black_box(ip);
            self.0 += 1;
        }
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

/// A counter of the instructions of blocks.
#[derive(Default)]
struct CountedBlocks(u64);

impl ExecutionSink for CountedBlocks {
    const BLOCKS: bool = true;

    #[inline]
    fn block(&mut self, block: &Block) {
        black_box(block);
        self.0 += u64::from(block.insns);
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}
