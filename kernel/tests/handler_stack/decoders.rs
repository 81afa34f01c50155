//! Sinks that decode Intel PT, over the decoder's scenarios and damaged copies of them.

#[path = "../../../decoder-core/tests/common/notation.rs"]
#[allow(dead_code, reason = "the decoder's tests use the rest")]
mod notation;

use super::painted::Painted;
use notation::Scenario;
use pugmark_decoder_core::block::Block;
use pugmark_decoder_core::block_cache::edges::{EDGES, EdgeMap};
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink, InstructionRun};
use pugmark_decoder_core::config::{Clocks, Config};
use pugmark_decoder_core::errata::Errata;
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::image::{Image, Section};
use pugmark_decoder_core::packet::{Packet, PacketSink, Tnt};
use pugmark_decoder_core::query::BranchEventSink;
use pugmark_decoder_core::resume::{BlockStream, BranchEventStream, Kept, PacketStream};
use pugmark_decoder_core::time::Span;
use pugmark_kernel::drain::Sink;
use pugmark_kernel::intel::pt::PtDecoder;
use pugmark_kernel::loss::Gap;
use std::path::Path;

/// The number of traces, each of which is a damaged scenario or two.
const ROUNDS: usize = 500;

/// A trace to decode: its bytes, the places where it is cut, and the code.
pub(crate) struct Case {
    name: String,
    scenario: Scenario,
    trace: Vec<u8>,
    config: Config<'static>,
    cut: usize,
}

/// Returns all scenarios, whole and cut, and damaged ones with errata and clocks.
pub(crate) fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../decoder-core/tests/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let texts: Vec<String> = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(texts.len() > 100);
    let errata = [
        Errata::NONE,
        Errata { bdm64: true, bdm70: true, skd007: true, ..Errata::NONE },
        Errata { skd010: true, skd022: true, skl014: true, skl168: true, ..Errata::NONE },
        Errata { apl11: true, apl12: true, skz84: true, ..Errata::NONE },
    ];
    let clocks =
        Clocks { mtc_freq: 3, nom_freq: 20, cpuid_15h_eax: 2, cpuid_15h_ebx: 250, ..Clocks::UNKNOWN };
    let mut rng = fastrand::Rng::with_seed(1);
    let case = |n: usize| {
        let scenario = Scenario::parse(&texts[n % texts.len()]);
        let mut trace = scenario.trace.clone();
        let mut config = scenario.config;
        let mut cut = if n < texts.len() { trace.len() } else { rng.usize(1..40) };
        if n >= 2 * texts.len() {
            let other = rng.usize(..texts.len());
            trace.extend(Scenario::parse(&texts[other]).trace);
            for _ in 0..rng.usize(..4) {
                let at = rng.usize(..trace.len());
                trace[at] = if rng.bool() { rng.u8(..) } else { trace[at] ^ 1 << rng.u8(..8) };
            }
            cut = if rng.bool() { rng.usize(..=trace.len()) } else { cut };
            config.errata = errata[rng.usize(..errata.len())];
            config.clocks = if rng.bool() { clocks } else { config.clocks };
        }
        let name = format!("{n}: {}", paths[n % texts.len()].display());
        Case { name, scenario, trace, config, cut: cut.max(1) }
    };
    (0..ROUNDS).map(case).collect()
}

/// Returns the maximum stack in bytes that a sink takes for any of these traces.
pub(crate) fn measure(cases: &[Case], kind: Kind) -> usize {
    let mut painted = Painted::new();
    let mut most = 0;
    for case in cases {
        for words in [0, 4_000] {
            kind.run(case, &mut vec![0; words], &mut painted);
        }
        let used = painted.used();
        if used > most && std::env::var_os("PUGMARK_DEEPEST").is_some() {
            println!("    {used:6} {kind:?} {}", case.name);
        }
        most = used;
    }
    most
}

/// The kind of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Packets,
    BranchEvents,
    Insns,
    Blocks,
    Edges,
    CountedEdges,
    Spans,
    InsnsAndEdges,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Packets,
        Self::BranchEvents,
        Self::Insns,
        Self::Blocks,
        Self::Edges,
        Self::CountedEdges,
        Self::Spans,
        Self::InsnsAndEdges,
    ];

    fn run(self, case: &Case, cache: &mut [u32], painted: &mut Painted) {
        let mut edges = vec![0; EDGES];
        let edges = EdgeMap::<true>::new(edges.as_mut_slice().try_into().unwrap());
        let take = Take::default();
        let mut kept = <Kept>::new();
        match self {
            Self::Packets => {
                let mut bytes = [0; 1024];
                let mut sink = OfPackets(PacketStream::new(case.config, &mut bytes), take);
                run(case, painted, &mut sink, |sink| sink.0.finish(&mut sink.1));
            }
            Self::BranchEvents => {
                let mut sink = OfBranchEvents(BranchEventStream::new(case.config, &mut kept), take);
                run(case, painted, &mut sink, |sink| sink.0.finish(&mut sink.1));
            }
            Self::Insns => decode(case, cache, painted, take),
            Self::Blocks => decode(case, cache, painted, Blocks(take)),
            Self::Spans => decode(case, cache, painted, Spans(take)),
            Self::Edges => decode(case, cache, painted, Edges(edges)),
            Self::CountedEdges => decode(case, cache, painted, edges),
            Self::InsnsAndEdges => decode(case, cache, painted, InsnsAndEdges(take, edges)),
        }
    }
}

/// Decodes with the driver's sink.
fn decode<S: ExecutionSink>(case: &Case, cache: &mut [u32], painted: &mut Painted, sink: S) {
    let code = case.scenario.code.iter();
    let sections: Vec<Section<'_>> =
        code.map(|code| Section { base: code.base, bytes: &code.bytes, space: code.space }).collect();
    let mut kept = <Kept>::new();
    let stream = BlockStream::new(Image::new(&sections), case.config, &mut kept);
    let mut decoder = PtDecoder::new(stream, BlockCache::new(cache), sink);
    run(case, painted, &mut decoder, PtDecoder::finish);
}

/// Passes a trace on as the driver does: slice by slice, with a gap in between, then the end.
fn run<S: Sink>(case: &Case, painted: &mut Painted, sink: &mut S, finish: impl FnOnce(&mut S)) {
    for (n, slice) in case.trace.chunks(case.cut).enumerate() {
        let driver = &mut *sink as &mut dyn Sink;
        painted.call(|| driver.bytes(slice));
        if n == 20 {
            painted.call(|| driver.gap(Gap::Full));
        }
    }
    painted.call(|| finish(sink));
}

/// A sink that takes everything, and keeps a number.
#[derive(Default)]
struct Take(u64);

impl ExecutionSink for Take {
    const INSNS: bool = true;
    fn insns(&mut self, insns: InstructionRun) {
        self.0 = insns.fold(self.0, u64::wrapping_add);
    }
    fn event(&mut self, _: &Event) {}
}

impl PacketSink for Take {
    fn packet(&mut self, offset: u64, _: Packet) {
        self.0 = offset;
    }
}

impl BranchEventSink for Take {
    fn outcomes(&mut self, outcomes: Tnt) {
        self.0 += u64::from(outcomes.len);
    }
    fn target(&mut self, target: Option<u64>) {
        self.0 ^= target.unwrap_or_default();
    }
    fn event(&mut self, _: &Event) {}
}

struct Blocks(Take);

impl ExecutionSink for Blocks {
    const BLOCKS: bool = true;
    fn block(&mut self, block: &Block) {
        self.0.0 ^= block.ip;
    }
    fn event(&mut self, _: &Event) {}
}

struct Spans(Take);

impl ExecutionSink for Spans {
    const BLOCKS: bool = true;
    const SPANS: bool = true;
    fn block(&mut self, block: &Block) {
        self.0.0 ^= block.ip;
    }
    fn span(&mut self, span: Span) {
        self.0.0 ^= span.after;
    }
    fn event(&mut self, _: &Event) {}
}

struct Edges<'m>(EdgeMap<'m, true>);

impl ExecutionSink for Edges<'_> {
    const EDGES: bool = true;
    fn edge(&mut self, edge: u16) {
        self.0.edge(edge);
    }
    fn event(&mut self, _: &Event) {}
}

struct InsnsAndEdges<'m>(Take, EdgeMap<'m, true>);

impl ExecutionSink for InsnsAndEdges<'_> {
    const INSNS: bool = true;
    const EDGES: bool = true;
    fn insns(&mut self, insns: InstructionRun) {
        self.0.insns(insns);
    }
    fn edge(&mut self, edge: u16) {
        self.1.edge(edge);
    }
    fn event(&mut self, _: &Event) {}
}

/// A sink that reads packets in the handler.
struct OfPackets<'m>(PacketStream<'static, 'm>, Take);

impl Sink for OfPackets<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        self.0.decode(bytes, &mut self.1);
        bytes.len()
    }
    fn gap(&mut self, _: Gap) -> bool {
        self.0.gap(0, &mut self.1);
        true
    }
}

/// A sink that reads outcomes, targets and events in the handler.
struct OfBranchEvents<'m>(BranchEventStream<'static, 'm>, Take);

impl Sink for OfBranchEvents<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        self.0.decode(bytes, &mut self.1);
        bytes.len()
    }
    fn gap(&mut self, _: Gap) -> bool {
        self.0.gap(0, &mut self.1);
        true
    }
}
