//! The results of decoders for a whole trace and for its slices.

use super::cuts::Cuts;
use pugmark_decoder_core::{
    Error,
    block::{Block, BlockDecoder},
    block_cache::{BlockCache, ExecutionSink, InstructionRun},
    config::Config,
    event::{Counters, Event},
    image::Image,
    last_ip::LastIp,
    packet::{Ip, IpPacket, Packet, PacketSink, Packets, Tnt},
    query::{BranchEventSink, QueryDecoder},
    resume::{BlockStream, BranchEventStream, KEPT, Kept, Lost, PacketStream},
};

/// An item that was passed to a sink.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Packet(u64, Packet),
    Ip(u64, IpPacket, Ip, Option<u64>),
    Outcomes(Vec<bool>),
    Target(Option<u64>),
    Insn(u64),
    Block(Block),
    Edge(u16),
    Event(Event),
    Error(Error),
    Gap(u64, u64),
}

/// All items that were passed to a sink, and the decoder's counters.
pub(crate) type Seen = (Vec<Step>, Counters);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Layer {
    Packets,
    BranchEvents,
    /// Blocks, with a block cache of this many words.
    Blocks(usize),
}

pub(crate) const LAYERS: [Layer; 4] =
    [Layer::Packets, Layer::BranchEvents, Layer::Blocks(0), Layer::Blocks(5_000)];

#[derive(Default)]
pub(crate) struct Steps(pub(crate) Vec<Step>);

impl Steps {
    fn note_loss(&mut self, lost: &Lost) {
        self.0.push(match *lost {
            Lost::Error(error) => Step::Error(error),
            Lost::Gap { offset, bytes } => Step::Gap(offset, bytes),
        });
    }
}

impl PacketSink for Steps {
    fn packet(&mut self, offset: u64, packet: Packet) {
        self.0.push(Step::Packet(offset, packet));
    }

    fn ip(&mut self, offset: u64, packet: IpPacket, ip: Ip, address: Option<u64>) {
        self.0.push(Step::Ip(offset, packet, ip, address));
    }

    fn lost(&mut self, lost: &Lost) {
        self.note_loss(lost);
    }
}

impl BranchEventSink for Steps {
    fn outcomes(&mut self, outcomes: Tnt) {
        // The number in one call may differ.
        match self.0.last_mut() {
            Some(Step::Outcomes(row)) => row.extend(outcomes.outcomes()),
            _ => self.0.push(Step::Outcomes(outcomes.outcomes().collect())),
        }
    }

    fn target(&mut self, ip: Option<u64>) {
        self.0.push(Step::Target(ip));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(Step::Event(*event));
    }

    fn lost(&mut self, lost: &Lost) {
        self.note_loss(lost);
    }
}

impl ExecutionSink for Steps {
    const INSNS: bool = true;
    const BLOCKS: bool = true;
    const EDGES: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.0.extend(insns.map(Step::Insn));
    }

    fn block(&mut self, block: &Block) {
        self.0.push(Step::Block(*block));
    }

    fn edge(&mut self, edge: u16) {
        self.0.push(Step::Edge(edge));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(Step::Event(*event));
    }

    fn lost(&mut self, lost: &Lost) {
        self.note_loss(lost);
    }
}

impl Layer {
    /// Returns the results of the decoder of the whole trace, which continues at the next PSB after an error.
    pub(crate) fn whole(self, trace: &[u8], image: Image<'_>, config: Config<'_>) -> Seen {
        let mut steps = Steps::default();
        let counters = match self {
            Self::Packets => {
                let mut packets = Packets::with_config(trace, config);
                let mut last_ip = LastIp::new();
                while packets.sync_forward().is_some() {
                    let Err(error) = packets.visit(&mut last_ip, &mut steps) else { break };
                    steps.0.push(Step::Error(error));
                }
                Counters::default()
            }
            Self::BranchEvents => {
                let mut query = QueryDecoder::with_config(trace, config);
                while query.sync_forward().is_some() {
                    let Err(error) = query.visit(&mut steps) else { break };
                    steps.0.push(Step::Error(error));
                }
                query.counters()
            }
            Self::Blocks(words) => {
                let mut memory = vec![0; words];
                let mut cache = BlockCache::new(&mut memory);
                let mut decoder = BlockDecoder::with_config(trace, image, config);
                while decoder.resync().is_some() {
                    let Err(error) = decoder.visit(&mut cache, &mut steps) else { break };
                    steps.0.push(Step::Error(error));
                }
                decoder.counters()
            }
        };
        (steps.0, counters)
    }

    /// Returns the results of a stream.
    pub(crate) fn sliced(self, trace: &[u8], image: Image<'_>, config: Config<'_>, cuts: &Cuts) -> Seen {
        let mut steps = Steps::default();
        let (mut kept, mut kept_bytes) = (<Kept>::new(), [0; KEPT]);
        let (counters, errors) = match self {
            Self::Packets => {
                let mut stream = PacketStream::new(config, &mut kept_bytes);
                cuts.slices(trace, |slice| stream.decode(slice, &mut steps));
                assert_eq!(stream.offset(), trace.len() as u64);
                stream.finish(&mut steps);
                (Counters::default(), stream.errors())
            }
            Self::BranchEvents => {
                let mut stream = BranchEventStream::new(config, &mut kept);
                cuts.slices(trace, |slice| stream.decode(slice, &mut steps));
                assert_eq!(stream.offset(), trace.len() as u64);
                stream.finish(&mut steps);
                (stream.counters(), stream.errors())
            }
            Self::Blocks(words) => {
                let mut memory = vec![0; words];
                let mut cache = BlockCache::new(&mut memory);
                let mut stream = BlockStream::new(image, config, &mut kept);
                cuts.slices(trace, |slice| stream.decode(slice, &mut cache, &mut steps));
                assert_eq!(stream.offset(), trace.len() as u64);
                stream.finish(&mut cache, &mut steps);
                (stream.counters(), stream.errors())
            }
        };
        let said = steps.0.iter().filter(|step| matches!(step, Step::Error(_))).count();
        assert_eq!(errors, said as u64, "{self:?}");
        (steps.0, counters)
    }
}
