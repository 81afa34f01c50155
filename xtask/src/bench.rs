//! `cargo xtask bench`: measures how fast packets, instructions and blocks are decoded, compared with libipt and
//! iptr-decoder in the same run.
//!
//! The decoders take turns, and the fastest turn of each counts, in processor time: on a machine that also does other
//! work, this says most about the program.

mod clock;
mod load;
mod synthetic;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clock::thread_time;
use iptr_decoder::{DecodeOptions, error::DecoderError, packet_handler::packet_counter::PacketCounter};
use load::Load;
use pugmark_decoder_core::{
    Error,
    block::{Block, BlockDecoder},
    event::{Event, EventDecoder},
    graph::{Graph, Sink, Straight, WORDS_PER_BLOCK},
    image::{AddressSpace, Image, Section},
    last_ip::LastIp,
    packet::{self, Cyc, Ip, IpPacket, Packet, Packets, Tnt},
    query::{Answers, QueryDecoder},
};
use pugmark_qemu_tests::libipt_speed::{FileSection, Libipt};
use std::{
    fs,
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The memory of the graph of blocks, in 32-bit words.
const GRAPH_WORDS: usize = WORDS_PER_BLOCK << 16;

/// The least duration of a turn; if the clock were read more often, reading it would be measured too.
const TURN_TIME: Duration = Duration::from_millis(5);

/// The options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// How long to measure each layer of each decoder
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How many bytes of trace to make
    #[arg(long, default_value_t = 4 << 20)]
    bytes: usize,
    /// Measure a recorded trace instead of a made one; needs --image
    #[arg(long, requires = "image")]
    trace: Option<PathBuf>,
    /// The code of the recorded trace: `{"sections":[{"file","offset","len","vaddr"}]}`, files beside it
    #[arg(long, requires = "trace")]
    image: Option<PathBuf>,
}

/// Runs `cargo xtask bench`.
pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    // libipt reads code from files; the generated code is written here.
    let scratch = std::env::temp_dir().join(format!("pugmark-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let done = bench_in(options, &scratch);
    fs::remove_dir_all(&scratch)?;
    done
}

fn bench_in(options: &BenchOptions, scratch: &std::path::Path) -> Result<()> {
    let loads = match (&options.trace, &options.image) {
        (Some(trace), Some(image)) => vec![recorded_load(trace, image)?],
        _ => [false, true]
            .map(|timing| synthetic::synthetic_load(options.bytes, timing, scratch))
            .into_iter()
            .collect::<Result<_>>()?,
    };
    let library = Libipt::load();
    if library.is_none() {
        println!("libipt is not installed: no comparison");
    }
    for load in loads {
        measure(&load, library.as_ref(), Duration::from_secs_f64(options.seconds))?;
    }
    Ok(())
}

fn recorded_load(trace: &std::path::Path, image: &std::path::Path) -> Result<Load> {
    let bytes = fs::read(trace).with_context(|| format!("trace {}", trace.display()))?;
    let text = fs::read_to_string(image).with_context(|| format!("image {}", image.display()))?;
    let image_json: serde_json::Value = serde_json::from_str(&text)?;
    let folder = image.parent().unwrap_or(std::path::Path::new(""));
    let (mut code, mut files) = (vec![], vec![]);
    for section in image_json["sections"].as_array().context("no sections in the image")? {
        let number =
            |field: &str| section[field].as_u64().with_context(|| format!("no {field} in a section"));
        let file = folder.join(section["file"].as_str().context("no file in a section")?);
        let (offset, len, base) = (number("offset")?, number("len")?, number("vaddr")?);
        let contents = fs::read(&file).with_context(|| format!("{}", file.display()))?;
        let range = offset as usize..(offset + len) as usize;
        code.push((
            base,
            contents.get(range).context("a section of the image reaches beyond its file's end")?.to_vec(),
        ));
        files.push(FileSection { file, offset, len, base });
    }
    Ok(Load { name: trace.display().to_string(), trace: bytes, code, files })
}

fn measure(load: &Load, library: Option<&Libipt>, least: Duration) -> Result<()> {
    let Load { name, trace, code, files } = load;
    let sections: Vec<_> =
        code.iter().map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any }).collect();
    let image = Image::new(&sections);
    println!("\n{name}: {} bytes", trace.len());
    let mut own = || packets(trace);
    let mut libipt = library.map(|library| || library.packets(trace).unwrap_or(0));
    let mut sides: Vec<Contender<'_>> = vec![("", &mut own)];
    sides.extend(libipt.as_mut().map(|libipt| ("libipt", libipt as &mut dyn FnMut() -> u64)));
    compare("packets", trace, least, &mut sides);
    let sides: &mut [Contender<'_>] = &mut [("", &mut || packets(trace)), ("iptr", &mut || iptr(trace))];
    compare("counted", trace, least, sides);
    compare("events", trace, least, &mut [("", &mut || events(trace))]);
    compare("query", trace, least, &mut [("", &mut || query(trace))]);
    let mut memory = vec![0; GRAPH_WORDS];
    let mut graph = Graph::new(&mut memory);
    compare("insns", trace, least, &mut [("", &mut || insns(trace, image, &mut graph))]);
    let mut own = || blocks(trace, image, &mut graph);
    let their_image = library.map(|library| library.image(files)).transpose()?;
    let mut libipt = their_image.as_ref().map(|image| || image.blocks(trace).map_or(0, |(insns, _)| insns));
    let mut sides: Vec<Contender<'_>> = vec![("", &mut own)];
    sides.extend(libipt.as_mut().map(|libipt| ("libipt", libipt as &mut dyn FnMut() -> u64)));
    let counts = compare("blocks", trace, least, &mut sides);
    if let [own, theirs] = counts[..] {
        ensure!(own == theirs, "libipt has {theirs} instructions, our own blocks have {own}");
    }
    Ok(())
}

/// The name of a decoder, and a run that counts what it decodes.
type Contender<'a> = (&'static str, &'a mut dyn FnMut() -> u64);

/// Measures all decoders in turn and prints them as multiples of the first one; returns their counts.
fn compare(layer: &str, trace: &[u8], least: Duration, sides: &mut [Contender<'_>]) -> Vec<u64> {
    let mut best: Vec<_> = sides.iter().map(|_| (f64::MAX, 0)).collect();
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || begin.elapsed() < least * sides.len() as u32 {
        for ((_, run), (seconds, count)) in sides.iter_mut().zip(&mut best) {
            let (start, mut runs, mut took) = (thread_time(), 0, Duration::ZERO);
            while took < TURN_TIME {
                *count = black_box(run());
                (runs, took) = (runs + 1, thread_time() - start);
            }
            *seconds = (took.as_secs_f64() / f64::from(runs)).min(*seconds);
        }
        rounds += 1;
    }
    let mb_per_s = |seconds: f64| trace.len() as f64 / 1e6 / seconds;
    let (own, count) = best[0];
    let each = own * 1e9 / count.max(1) as f64;
    print!("{layer:>8} {:>9.1} MB/s {count:>10} {each:>7.2} ns each", mb_per_s(own));
    for ((whose, _), (seconds, count)) in sides.iter().zip(&best).skip(1) {
        print!("   {whose} {:>8.1} MB/s {count:>10}   ratio {:.2}", mb_per_s(*seconds), seconds / own);
    }
    println!();
    best.iter().map(|(_, count)| *count).collect()
}

/// Takes every packet and the address that its IP stands for.
#[derive(Default)]
struct Taken(u64);

impl Taken {
    #[inline]
    fn take<T>(&mut self, taken: T) {
        black_box(taken);
        self.0 += 1;
    }
}

impl packet::Sink for Taken {
    #[inline]
    fn packet(&mut self, _: u64, packet: Packet) {
        self.take(packet);
    }

    #[inline]
    fn tnt(&mut self, _: u64, tnt: Tnt) {
        self.take(tnt);
    }

    #[inline]
    fn ip(&mut self, _: u64, _: IpPacket, _: Ip, address: Option<u64>) {
        self.take(address);
    }

    #[inline]
    fn cyc(&mut self, _: u64, cyc: Cyc) {
        self.take(cyc);
    }
}

/// Decodes every packet and hands it out.
fn packets(trace: &[u8]) -> u64 {
    let (mut packets, mut last_ip, mut taken) = (Packets::new(trace), LastIp::new(), Taken::default());
    while packets.sync_forward().is_some() {
        let _: Result<(), Error> = packets.visit(&mut last_ip, &mut taken);
    }
    taken.0
}

/// Counts the packets with iptr-decoder, up to the first error.
fn iptr(trace: &[u8]) -> u64 {
    let mut counter = PacketCounter::new();
    let _: Result<(), DecoderError<PacketCounter>> =
        iptr_decoder::decode(trace, DecodeOptions::default(), &mut counter);
    counter.packet_count() as u64
}

fn events(trace: &[u8]) -> u64 {
    let mut decoder = EventDecoder::new(trace);
    let mut count = 0;
    while decoder.sync_forward().is_some() {
        while let Ok(Some(event)) = &decoder.next() {
            black_box(event);
            count += 1;
        }
    }
    count
}

fn query(trace: &[u8]) -> u64 {
    let mut decoder = QueryDecoder::new(trace);
    let mut answers = Counted::default();
    while decoder.sync_forward().is_some() {
        let _: Result<(), Error> = decoder.visit(&mut answers);
    }
    answers.0
}

fn insns(trace: &[u8], image: Image<'_>, graph: &mut Graph<'_>) -> u64 {
    let mut decoder = BlockDecoder::new(trace, image);
    let mut insns = Counted::default();
    while decoder.resync().is_some() {
        let _: Result<(), Error> = decoder.visit(graph, &mut insns);
    }
    insns.0
}

fn blocks(trace: &[u8], image: Image<'_>, graph: &mut Graph<'_>) -> u64 {
    let mut decoder = BlockDecoder::new(trace, image);
    let mut blocks = CountedBlocks::default();
    while decoder.resync().is_some() {
        let _: Result<(), Error> = decoder.visit(graph, &mut blocks);
    }
    blocks.0
}

/// Counts answers, or instructions.
#[derive(Default)]
struct Counted(u64);

impl Answers for Counted {
    #[inline]
    fn outcomes(&mut self, outcomes: Tnt) {
        for taken in outcomes.outcomes() {
            black_box(taken);
            self.0 += 1;
        }
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

impl Sink for Counted {
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

impl Sink for CountedBlocks {
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
