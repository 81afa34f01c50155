//! `pugmark bench`: measures how fast a layer decodes a trace that is in memory.
//!
//! Each run decodes the whole trace from the start. The code that the block decoder has found is kept from run to run,
//! as a program that decodes many traces of the same code would keep it. Hashing the addresses of instructions is not
//! part of decoding and takes longer than it, so one run before the measurement does it, and the measured runs only
//! count.

use super::{
    code::TracedCode,
    decode::{self, Layer, hash_text},
    layers::GRAPH_WORDS,
    options::Input,
    progress::{Progress, Size},
};
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_decoder_core::{
    block::{Block, BlockDecoder},
    config::Config,
    event::{Event, EventDecoder},
    graph::{ExecutionSink, Graph, Straight},
    image::Image,
    last_ip::LastIp,
    packet::{self, Ip, IpPacket, Packet, Packets, Tnt},
    query::{AnswerSink, QueryDecoder},
};
use serde::Serialize;
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// The options of `pugmark bench`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark bench --layer insns --seconds 10 ls.rec")]
pub struct BenchOptions {
    /// Measure for at least so long
    #[arg(long, default_value_t = 3.0, value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: Input,
}

/// The speed of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// The layer.
    pub layer: Layer,
    /// The trace's length in bytes.
    pub bytes: u64,
    /// How often the trace was decoded.
    pub runs: usize,
    /// The time of the fastest run in seconds.
    pub seconds_min: f64,
    /// The time of the median run in seconds.
    pub seconds_median: f64,
    /// The speed of the median run in 10^6 bytes of trace per second.
    pub mb_per_s: f64,
    /// The number of what the layer produces: packets, events, branches and events, or instructions.
    pub count: u64,
    /// The hash of the instructions' addresses, if the layer produces instructions.
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
    let traces = options.input.traces()?;
    // In a recording's folder the first trace is that of the program's main thread.
    let traced = traces.first().context("there is no trace")?;
    let code = options.input.code(traced)?;
    let trace = options.input.load(traced, &mut progress)?;
    ensure!(!trace.is_empty(), "{} is empty: there is nothing to measure", traced.trace.display());
    let seconds = Duration::from_secs_f64(options.seconds);
    let speed =
        measure(&trace, &code, options.input.config(traced)?, options.input.layer, seconds, &mut progress);
    let line = match options.json {
        true => serde_json::to_string(&speed)?,
        false => format!(
            "{:?}: {:.1} MB/s; {} bytes in {:.6} s, at best {:.6} s, of {} runs; count {}{}",
            speed.layer,
            speed.mb_per_s,
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

/// Decodes the trace repeatedly for at least the time `least`, and at least three times.
pub fn measure(
    trace: &[u8],
    code: &TracedCode,
    config: Config<'_>,
    layer: Layer,
    least: Duration,
    progress: &mut Progress,
) -> Speed {
    let hash = decode::decode(trace, code, config, layer, true, progress).hash;
    let sections = code.sections();
    let image = Image::new(&sections);
    let mut memory = vec![0; GRAPH_WORDS];
    let mut graph = Graph::new(&mut memory);
    let mut times = vec![];
    let mut count = 0;
    let begin = Instant::now();
    progress.begin("measuring", Size::Time(least));
    while times.len() < 3 || begin.elapsed() < least {
        let start = Instant::now();
        count = black_box(once(black_box(trace), image, config, layer, &mut graph));
        times.push(start.elapsed().as_secs_f64());
        progress.at(begin.elapsed().as_millis() as u64);
    }
    progress.end();
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    Speed {
        layer,
        bytes: trace.len() as u64,
        runs: times.len(),
        seconds_min: times[0],
        seconds_median: median,
        mb_per_s: trace.len() as f64 / 1e6 / median,
        count,
        hash: hash.map(hash_text),
    }
}

/// Decodes the trace once and returns the number of items that the layer produced.
///
/// Each item is used by reference. A copy would read with wide loads what was just written by narrow stores, and such
/// loads must wait until the stores are in the cache.
fn once(trace: &[u8], image: Image<'_>, config: Config<'_>, layer: Layer, graph: &mut Graph<'_>) -> u64 {
    let mut count = 0;
    match layer {
        Layer::Packets => {
            let mut packets = Packets::with_config(trace, config);
            let (mut last_ip, mut taken) = (LastIp::new(), Counted::default());
            while packets.sync_forward().is_some() {
                let _ = packets.visit(&mut last_ip, &mut taken);
            }
            count = taken.0;
        }
        Layer::Events => {
            let mut decoder = EventDecoder::with_config(trace, config);
            while decoder.sync_forward().is_some() {
                while let Ok(Some(event)) = &decoder.next() {
                    black_box(event);
                    count += 1;
                }
            }
        }
        Layer::Query => {
            let mut decoder = QueryDecoder::with_config(trace, config);
            let mut answers = Counted::default();
            while decoder.sync_forward().is_some() {
                let _ = decoder.visit(&mut answers);
            }
            count = answers.0;
        }
        Layer::Insns => {
            let mut decoder = BlockDecoder::with_config(trace, image, config);
            let mut insns = Counted::default();
            while decoder.resync().is_some() {
                let _ = decoder.visit(graph, &mut insns);
            }
            count = insns.0;
        }
        Layer::Blocks => {
            let mut decoder = BlockDecoder::with_config(trace, image, config);
            let mut blocks = CountedBlocks::default();
            while decoder.resync().is_some() {
                let _ = decoder.visit(graph, &mut blocks);
            }
            count = blocks.0;
        }
    }
    count
}

/// Counts packets, answers, or instructions, and uses what each holds.
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

impl AnswerSink for Counted {
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
    fn insns(&mut self, insns: Straight) {
        for ip in insns {
            black_box(ip);
            self.0 += 1;
        }
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

/// Counts the instructions of blocks.
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
