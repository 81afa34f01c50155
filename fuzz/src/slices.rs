//! Compares a trace that comes in slices with the same trace as a whole.

use crate::subject::Subject;
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    Error, ErrorKind,
    block::{Block, BlockDecoder},
    block_cache::{BlockCache, ExecutionSink, InstructionRun},
    event::Event,
    image::Image,
    last_ip::LastIp,
    packet::{Ip, IpPacket, Packet, PacketSink, Packets, Tnt, Unknown},
    query::{BranchEventSink, QueryDecoder},
    resume::{BlockStream, BranchEventStream, Kept, Lost, PacketStream},
};

/// Checks that streams pass on the same items wherever the cuts are, and that these are the items of the whole trace's
/// decoder, unless a packet is too far away for the stream's memory.
///
/// # Panics
/// If they differ.
pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(cuts) = cuts(&mut u) else { return };
    let Ok(subject) = Subject::made(&mut u) else { return };
    for words in [0, 2_000] {
        let sections = subject.sections();
        let image = Image::new(&sections);
        let whole = blocks(&subject, image, words);
        let one = blocks_of_slices(&subject, image, words, &[]);
        compare(&whole, &one, "blocks of one slice");
        assert_same(&blocks_of_slices(&subject, image, words, &cuts), &one, "blocks");
    }
    let one = answers_of_slices(&subject, &[]);
    compare(&answers(&subject), &one, "answers of one slice");
    assert_same(&answers_of_slices(&subject, &cuts), &one, "answers");
    assert_same(&packets_of_slices(&subject, &cuts), &packets(&subject), "packets");
}

/// Returns the sizes of the slices; the rest comes after the last one.
fn cuts(u: &mut Unstructured<'_>) -> Result<Vec<usize>> {
    let count = u.int_in_range(1..=8)?;
    let mut cuts: Vec<usize> =
        (0..count).map(|_| u.arbitrary::<u8>().map(usize::from)).collect::<Result<_>>()?;
    if u.arbitrary()? {
        // Many of the first size.
        cuts = vec![cuts.first().copied().unwrap_or_default() % 40 + 1; 2_000];
    }
    Ok(cuts)
}

/// Passes on each slice, in a buffer that is overwritten after it.
fn slices(trace: &[u8], cuts: &[usize], mut take: impl FnMut(&[u8])) {
    let mut rest = trace;
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let (slice, after) = rest.split_at(cut.min(rest.len()));
        // A copy, so that a later read of the slice reads freed memory.
        let copy = slice.to_vec();
        take(&copy);
        rest = after;
    }
}

/// An item that was passed on.
#[derive(Clone, Debug, PartialEq)]
enum SliceStep {
    Packet(u64, Packet, Option<u64>),
    Outcome(bool),
    Target(Option<u64>),
    Insn(u64),
    Block(Block),
    Edge(u16),
    Event(Event),
    Error(Error),
}

#[derive(Default)]
struct SliceSteps(Vec<SliceStep>);

impl SliceSteps {
    fn lose(&mut self, lost: &Lost) {
        if let Lost::Error(error) = lost {
            self.0.push(SliceStep::Error(*error));
        }
    }
}

impl PacketSink for SliceSteps {
    fn packet(&mut self, offset: u64, packet: Packet) {
        // The fuzzed reader of unknown packets returns their place in the bytes at hand.
        let packet = match packet {
            Packet::Unknown(unknown) => Packet::Unknown(Unknown { value: 0, ..unknown }),
            packet => packet,
        };
        self.0.push(SliceStep::Packet(offset, packet, None));
    }

    fn ip(&mut self, offset: u64, packet: IpPacket, ip: Ip, address: Option<u64>) {
        self.0.push(SliceStep::Packet(offset, packet.with(ip), address));
    }

    fn lost(&mut self, lost: &Lost) {
        self.lose(lost);
    }
}

impl BranchEventSink for SliceSteps {
    fn outcomes(&mut self, outcomes: Tnt) {
        self.0.extend(outcomes.outcomes().map(SliceStep::Outcome));
    }

    fn target(&mut self, ip: Option<u64>) {
        self.0.push(SliceStep::Target(ip));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(SliceStep::Event(*event));
    }

    fn lost(&mut self, lost: &Lost) {
        self.lose(lost);
    }
}

impl ExecutionSink for SliceSteps {
    const INSNS: bool = true;
    const BLOCKS: bool = true;
    const EDGES: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.0.extend(insns.map(SliceStep::Insn));
    }

    fn block(&mut self, block: &Block) {
        self.0.push(SliceStep::Block(*block));
    }

    fn edge(&mut self, edge: u16) {
        self.0.push(SliceStep::Edge(edge));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(SliceStep::Event(*event));
    }

    fn lost(&mut self, lost: &Lost) {
        self.lose(lost);
    }
}

fn packets(subject: &Subject) -> Vec<SliceStep> {
    let mut steps = SliceSteps::default();
    let mut packets = Packets::with_config(&subject.trace, subject.config);
    let mut last_ip = LastIp::new();
    while packets.sync_forward().is_some() {
        let Err(error) = packets.visit(&mut last_ip, &mut steps) else { break };
        steps.0.push(SliceStep::Error(error));
    }
    steps.0
}

fn packets_of_slices(subject: &Subject, cuts: &[usize]) -> Vec<SliceStep> {
    let (mut steps, mut kept) = (SliceSteps::default(), [0; 1024]);
    let mut stream = PacketStream::new(subject.config, &mut kept);
    slices(&subject.trace, cuts, |slice| stream.decode(slice, &mut steps));
    stream.finish(&mut steps);
    steps.0
}

fn answers(subject: &Subject) -> Vec<SliceStep> {
    let mut steps = SliceSteps::default();
    let mut query = QueryDecoder::with_config(&subject.trace, subject.config);
    while query.sync_forward().is_some() {
        let Err(error) = query.visit(&mut steps) else { break };
        steps.0.push(SliceStep::Error(error));
    }
    steps.0
}

fn answers_of_slices(subject: &Subject, cuts: &[usize]) -> Vec<SliceStep> {
    let (mut steps, mut kept) = (SliceSteps::default(), Kept::<1024>::new());
    let mut stream = BranchEventStream::new(subject.config, &mut kept);
    slices(&subject.trace, cuts, |slice| stream.decode(slice, &mut steps));
    stream.finish(&mut steps);
    steps.0
}

fn blocks(subject: &Subject, image: Image<'_>, words: usize) -> Vec<SliceStep> {
    let (mut steps, mut memory) = (SliceSteps::default(), vec![0; words]);
    let mut cache = BlockCache::new(&mut memory);
    let mut decoder = BlockDecoder::with_config(&subject.trace, image, subject.config);
    while decoder.resync().is_some() {
        let Err(error) = decoder.visit(&mut cache, &mut steps) else { break };
        steps.0.push(SliceStep::Error(error));
    }
    steps.0
}

fn blocks_of_slices(subject: &Subject, image: Image<'_>, words: usize, cuts: &[usize]) -> Vec<SliceStep> {
    let (mut steps, mut memory, mut kept) = (SliceSteps::default(), vec![0; words], Kept::<1024>::new());
    let mut cache = BlockCache::new(&mut memory);
    let mut stream = BlockStream::new(image, subject.config, &mut kept);
    slices(&subject.trace, cuts, |slice| stream.decode(slice, &mut cache, &mut steps));
    stream.finish(&mut cache, &mut steps);
    steps.0
}

/// Compares the items unless a packet was too far away.
fn compare(whole: &[SliceStep], sliced: &[SliceStep], what: &str) {
    let is_too_far =
        |step: &SliceStep| matches!(step, SliceStep::Error(Error { kind: ErrorKind::LooksTooFar, .. }));
    if !sliced.iter().any(is_too_far) {
        assert_same(sliced, whole, what);
    }
}

fn assert_same(got: &[SliceStep], expected: &[SliceStep], what: &str) {
    let same = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let (got, expected) = (got.get(same), expected.get(same));
    assert!(got == expected, "{what}, step {same}: {got:x?} instead of {expected:x?}");
}
