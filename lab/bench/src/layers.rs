//! The layers: each is run with our decoder and with every other one that has it. A further layer is one more row of
//! [`LAYERS`].

use super::{
    load::Load,
    peers::{EdgePeer, Peers},
    race::{Contender, Speed, race},
};
use anyhow::{Result, ensure};
use pugmark_decoder_core::{
    Error,
    block::{Block, BlockDecoder},
    block_cache::{
        BlockCache, ExecutionSink, InstructionRun, WORDS_PER_BLOCK,
        edges::{EDGES, EdgeMap},
    },
    config::Config,
    errata::{Cpu, Errata},
    event::{Event, EventDecoder},
    image::Image,
    last_ip::LastIp,
    packet::{self, Cyc, Ip, IpPacket, Mtc, Packet, Packets, Tnt, Tsc},
    query::{BranchEventSink, QueryDecoder},
    resume::{BlockStream, BranchEventStream, Kept},
};
use pugmark_harness::libipt_speed::{Libipt, LibiptImage, TimedDecode};
use std::{hint::black_box, time::Duration};

/// The memory of the block cache of blocks, in 32-bit words.
pub(super) const CACHE_WORDS: usize = WORDS_PER_BLOCK << 16;

/// The configuration of our decoder: with the processor's errata, as `pugmark` sets them, because their workarounds
/// cost time. The recordings are of the recorder's usual processor, a Skylake. The other decoders get no configuration.
const CONFIG: Config<'static> = Config { errata: SKYLAKE, ..Config::new() };
const SKYLAKE: Errata = match Errata::of(Cpu::intel(6, 94, 3)) {
    Ok(errata) => errata,
    Err(_) => panic!("a Skylake is in the table"),
};

/// A trace with its code, in the form that each decoder needs.
pub(super) struct Setup<'a> {
    pub(super) load: &'a Load,
    pub(super) image: Image<'a>,
    pub(super) libipt: Option<&'a Libipt>,
    pub(super) peers: Option<&'a Peers>,
}

/// A layer.
pub(super) struct Layer {
    pub(super) name: &'static str,
    run: fn(&Setup<'_>, Duration) -> Result<Vec<Speed>>,
    /// True if all decoders must give the same result.
    same: bool,
}

/// All layers.
pub(super) const LAYERS: [Layer; 10] = [
    Layer { name: "packets", run: packet_layer, same: true },
    Layer { name: "events", run: event_layer, same: true },
    Layer { name: "query", run: query_layer, same: false },
    Layer { name: "query-slices", run: slice_layer, same: false },
    Layer { name: "insns", run: insn_layer, same: true },
    Layer { name: "blocks", run: block_layer, same: true },
    Layer { name: "edges", run: edge_layer, same: false },
    Layer { name: "insns-cold", run: insn_layer_cold, same: true },
    Layer { name: "blocks-cold", run: block_layer_cold, same: true },
    Layer { name: "edges-cold", run: edge_layer_cold, same: false },
];

impl Layer {
    /// Measures the layer.
    ///
    /// # Errors
    /// The decoders do not agree.
    pub(super) fn measure(&self, setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
        let speeds = (self.run)(setup, least)?;
        for pair in speeds.windows(2).filter(|_| self.same) {
            ensure!(
                pair[0].decoded == pair[1].decoded,
                "{}, {}: {} has {:?}, {} has {:?}",
                setup.load.name,
                self.name,
                pair[0].name,
                pair[0].decoded,
                pair[1].name,
                pair[1].decoded
            );
        }
        Ok(speeds)
    }
}

const OWN: &str = "pugmark";

fn own<'a>(mut run: impl FnMut() -> TimedDecode + 'a) -> Contender<'a> {
    Contender { name: OWN, run: Box::new(move || Some(run())) }
}

fn libipt<'a>(run: impl FnMut() -> Option<TimedDecode> + 'a) -> Contender<'a> {
    Contender { name: "libipt", run: Box::new(run) }
}

fn packet_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let mut contenders = vec![own(|| packets(trace))];
    contenders.extend(setup.libipt.map(|library| libipt(|| library.packets(trace).ok())));
    contenders.extend(
        setup
            .peers
            .map(|peers| Contender { name: "iptr-decoder", run: Box::new(|| Some(peers.packets(trace))) }),
    );
    Ok(race(contenders, least))
}

fn event_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    Ok(race(vec![own(|| events(&setup.load.trace))], least))
}

fn query_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    if let Some(library) = setup.libipt {
        // Adding up the outcomes one by one takes longer than decoding them, so it is not measured.
        let (answers, theirs) = (answers(trace), library.query(trace)?);
        ensure!(answers == theirs, "{}, query: libipt has {theirs:?}, not {answers:?}", setup.load.name);
    }
    let mut contenders = vec![own(|| query(trace))];
    contenders.extend(setup.libipt.map(|library| libipt(|| library.query(trace).ok())));
    Ok(race(contenders, least))
}

/// Measures outcomes that are delivered a packet at a time. libipt delivers each outcome separately.
fn slice_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let mut contenders = vec![own(|| query_slices(trace))];
    contenders.extend(setup.libipt.map(|library| libipt(|| library.query(trace).ok())));
    Ok(race(contenders, least))
}

fn insn_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let their_image = their_image(setup)?;
    let mut memory = vec![0; CACHE_WORDS];
    let mut cache = BlockCache::new(&mut memory);
    let mut contenders = vec![own(|| insns(trace, setup.image, &mut cache))];
    contenders.extend(their_image.as_ref().map(|image| libipt(|| image.insns(trace).ok())));
    Ok(race(contenders, least))
}

fn insn_layer_cold(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let mut contenders = vec![own(|| {
        let mut memory = vec![0; CACHE_WORDS];
        insns(trace, setup.image, &mut BlockCache::new(&mut memory))
    })];
    let run = |library: &Libipt| library.image(&setup.load.files).ok()?.insns(trace).ok();
    contenders.extend(setup.libipt.map(|library| libipt(move || run(library))));
    Ok(race(contenders, least))
}

fn block_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let their_image = their_image(setup)?;
    let mut memory = vec![0; CACHE_WORDS];
    let mut cache = BlockCache::new(&mut memory);
    let mut contenders = vec![own(|| blocks(trace, setup.image, &mut cache))];
    contenders.extend(their_image.as_ref().map(|image| libipt(|| their_blocks(image, trace))));
    Ok(race(contenders, least))
}

fn block_layer_cold(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let mut contenders = vec![own(|| {
        let mut memory = vec![0; CACHE_WORDS];
        blocks(trace, setup.image, &mut BlockCache::new(&mut memory))
    })];
    let run = |library: &Libipt| their_blocks(&library.image(&setup.load.files).ok()?, trace);
    contenders.extend(setup.libipt.map(|library| libipt(move || run(library))));
    Ok(race(contenders, least))
}

fn edge_layer(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let mut memory = vec![0; CACHE_WORDS];
    let mut cache = BlockCache::new(&mut memory);
    let mut map = Box::new([0; EDGES]);
    if let Some(image) = their_image(setup)? {
        // libipt has no edges, and the other decoders define them differently. So they are derived from libipt's
        // instructions.
        let mut theirs = Box::new([0; EDGES]);
        let mut their_edges = EdgeMap::<false>::new(&mut theirs);
        image.edges(trace, |edge| their_edges.edge(edge))?;
        let their_count = their_edges.taken();
        // In the second round the block cache has all blocks.
        for _ in 0..2 {
            map.fill(0);
            let count = edges(trace, setup.image, &mut cache, &mut map).count;
            ensure!(
                (count, &map) == (their_count, &theirs),
                "{}, edges: {count} edges, or their counts, are not the {their_count} in libipt's instructions",
                setup.load.name
            );
        }
    }
    let mut contenders = vec![own(|| edges(trace, setup.image, &mut cache, &mut map))];
    for (name, which) in EDGE_PEERS {
        contenders.extend(setup.peers.map(|peers| {
            let mut edges = peers.edges(which, setup.load);
            let run = Box::new(move || edges.run().map(|()| TimedDecode::default()));
            Contender { name, run }
        }));
    }
    Ok(race(contenders, least))
}

fn edge_layer_cold(setup: &Setup<'_>, least: Duration) -> Result<Vec<Speed>> {
    let trace = &setup.load.trace[..];
    let mut map = Box::new([0; EDGES]);
    let mut contenders = vec![own(|| {
        let mut memory = vec![0; CACHE_WORDS];
        edges(trace, setup.image, &mut BlockCache::new(&mut memory), &mut map)
    })];
    for (name, which) in EDGE_PEERS {
        contenders.extend(setup.peers.map(|peers| {
            let run = move || peers.edges(which, setup.load).run().map(|()| TimedDecode::default());
            Contender { name, run: Box::new(run) }
        }));
    }
    Ok(race(contenders, least))
}

const EDGE_PEERS: [(&str, EdgePeer); 2] =
    [("ptcov", EdgePeer::Ptcov), ("iptr-edge-analyzer", EdgePeer::IptrEdgeAnalyzer)];

fn their_image<'a>(setup: &Setup<'a>) -> Result<Option<LibiptImage<'a>>> {
    setup.libipt.map(|library| library.image(&setup.load.files)).transpose()
}

fn their_blocks(image: &LibiptImage<'_>, trace: &[u8]) -> Option<TimedDecode> {
    image.blocks(trace).ok().map(|(insns, _)| TimedDecode { count: insns, sum: 0 })
}

/// A sink that adds up the contents of packets, as the other decoders' sums do.
struct Held(TimedDecode);

impl packet::PacketSink for Held {
    #[inline]
    fn packet(&mut self, _: u64, packet: Packet) {
        self.0.add(match packet {
            Packet::TntLong(tnt) => tnt.bits + u64::from(tnt.len),
            _ => 0,
        });
    }

    #[inline]
    fn tnt(&mut self, _: u64, tnt: Tnt) {
        self.0.add(tnt.bits + u64::from(tnt.len));
    }

    #[inline]
    fn ip(&mut self, _: u64, _: IpPacket, _: Ip, address: Option<u64>) {
        self.0.add(address.unwrap_or_default());
    }

    #[inline]
    fn cyc(&mut self, _: u64, cyc: Cyc) {
        self.0.add(cyc.cycles);
    }

    #[inline]
    fn mtc(&mut self, _: u64, mtc: Mtc) {
        self.0.add(mtc.ctc.into());
    }

    #[inline]
    fn tsc(&mut self, _: u64, tsc: Tsc) {
        self.0.add(tsc.tsc);
    }
}

/// Decodes every packet.
pub(super) fn packets(trace: &[u8]) -> TimedDecode {
    let (mut packets, mut last_ip) = (Packets::with_config(trace, CONFIG), LastIp::new());
    let mut held = Held(TimedDecode::default());
    while packets.sync_forward().is_some() {
        let _: Result<(), Error> = packets.visit(&mut last_ip, &mut held);
    }
    held.0
}

fn events(trace: &[u8]) -> TimedDecode {
    let mut decoder = EventDecoder::with_config(trace, CONFIG);
    let mut decoded = TimedDecode::default();
    while decoder.sync_forward().is_some() {
        while let Ok(Some(event)) = &decoder.next() {
            decoded.add(event.offset);
        }
    }
    decoded
}

/// A sink that adds up the answers about every branch as libipt's run does. Events are taken, but not counted: libipt
/// reports some of them differently.
#[derive(Default)]
struct Summed(TimedDecode);

impl BranchEventSink for Summed {
    fn outcomes(&mut self, outcomes: Tnt) {
        outcomes.outcomes().for_each(|taken| self.0.add(taken.into()));
    }

    fn target(&mut self, ip: Option<u64>) {
        self.0.add(ip.unwrap_or_default());
    }

    fn event(&mut self, _: &Event) {}
}

/// A sink that takes every outcome separately, and every target.
#[derive(Default)]
struct EachBranchEvent(TimedDecode);

impl BranchEventSink for EachBranchEvent {
    #[inline]
    fn outcomes(&mut self, outcomes: Tnt) {
        outcomes.outcomes().for_each(|taken| {
            black_box(taken);
        });
        self.0.count += u64::from(outcomes.len);
    }

    #[inline]
    fn target(&mut self, ip: Option<u64>) {
        self.0.add(ip.unwrap_or_default());
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

/// A sink that takes the outcomes of a packet together.
#[derive(Default)]
struct Slices(TimedDecode);

impl BranchEventSink for Slices {
    #[inline]
    fn outcomes(&mut self, outcomes: Tnt) {
        self.0.count += u64::from(outcomes.len);
        self.0.sum = self.0.sum.wrapping_add(outcomes.bits);
    }

    #[inline]
    fn target(&mut self, ip: Option<u64>) {
        self.0.add(ip.unwrap_or_default());
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

fn answers(trace: &[u8]) -> TimedDecode {
    let (mut decoder, mut answers) = (QueryDecoder::with_config(trace, CONFIG), Summed::default());
    while decoder.sync_forward().is_some() {
        let _: Result<(), Error> = decoder.visit(&mut answers);
    }
    answers.0
}

pub(super) fn query(trace: &[u8]) -> TimedDecode {
    let (mut decoder, mut answers) = (QueryDecoder::with_config(trace, CONFIG), EachBranchEvent::default());
    while decoder.sync_forward().is_some() {
        let _: Result<(), Error> = decoder.visit(&mut answers);
    }
    answers.0
}

pub(super) fn query_slices(trace: &[u8]) -> TimedDecode {
    let (mut decoder, mut answers) = (QueryDecoder::with_config(trace, CONFIG), Slices::default());
    while decoder.sync_forward().is_some() {
        let _: Result<(), Error> = decoder.visit(&mut answers);
    }
    answers.0
}

/// Returns the same as [`query`] from slices of `slice` bytes.
pub(super) fn query_of_slices(trace: &[u8], slice: usize) -> TimedDecode {
    let (mut answers, mut kept) = (EachBranchEvent::default(), <Kept>::new());
    let mut stream = BranchEventStream::new(CONFIG, &mut kept);
    for slice in trace.chunks(slice) {
        stream.decode(slice, &mut answers);
    }
    stream.finish(&mut answers);
    answers.0
}

/// A sink that takes the address of every instruction.
#[derive(Default)]
struct Insns(TimedDecode);

impl ExecutionSink for Insns {
    const INSNS: bool = true;

    #[inline]
    fn insns(&mut self, insns: InstructionRun) {
        insns.for_each(|ip| self.0.add(ip));
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

pub(super) fn insns(trace: &[u8], image: Image<'_>, cache: &mut BlockCache<'_>) -> TimedDecode {
    let mut insns = Insns::default();
    visit(trace, image, cache, &mut insns);
    insns.0
}

/// A sink that takes every block, and counts instructions, because decoders differ in the ends of blocks.
#[derive(Default)]
struct Blocks(TimedDecode);

impl ExecutionSink for Blocks {
    const BLOCKS: bool = true;

    #[inline]
    fn block(&mut self, block: &Block) {
        black_box(block);
        self.0.count += u64::from(block.insns);
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

pub(super) fn blocks(trace: &[u8], image: Image<'_>, cache: &mut BlockCache<'_>) -> TimedDecode {
    let mut blocks = Blocks::default();
    visit(trace, image, cache, &mut blocks);
    blocks.0
}

/// Returns the same as [`blocks`] from slices of `slice` bytes.
pub(super) fn blocks_of_slices(
    trace: &[u8],
    image: Image<'_>,
    cache: &mut BlockCache<'_>,
    slice: usize,
) -> TimedDecode {
    let (mut blocks, mut kept) = (Blocks::default(), <Kept>::new());
    let mut stream = BlockStream::new(image, CONFIG, &mut kept);
    for slice in trace.chunks(slice) {
        stream.decode(slice, cache, &mut blocks);
    }
    stream.finish(cache, &mut blocks);
    blocks.0
}

pub(super) fn edges(
    trace: &[u8],
    image: Image<'_>,
    cache: &mut BlockCache<'_>,
    map: &mut [u8; EDGES],
) -> TimedDecode {
    let mut edges = EdgeMap::<false>::new(map);
    visit(trace, image, cache, &mut edges);
    TimedDecode { count: edges.taken(), sum: 0 }
}

pub(super) fn visit(
    trace: &[u8],
    image: Image<'_>,
    cache: &mut BlockCache<'_>,
    sink: &mut impl ExecutionSink,
) {
    let mut decoder = BlockDecoder::with_config(trace, image, CONFIG);
    while decoder.resync().is_some() {
        let _: Result<(), Error> = decoder.visit(cache, sink);
    }
}
