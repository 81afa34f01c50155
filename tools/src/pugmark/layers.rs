//! Runs each layer over a whole trace and counts what it returns.

use super::{
    hashing::Hashing,
    progress::Progress,
    totals::{Totals, TraceError},
};
pub use crate::session::CACHE_WORDS;
use crate::session::{Session, SliceEnd, SliceSink, TraceSlice, layers};
use pugmark_decoder_core::{
    Error,
    block::{self, Block, Insns},
    block_cache::{ExecutionSink, InstructionRun},
    config::Config,
    event::Event,
    flow,
    packet::{Packet, PacketSink, Tnt, Tsc},
    query::BranchEventSink,
    resume::Lost,
};

/// A decoder of branch records that is asked for each item.
pub(super) trait ItemDecoder {
    /// Goes to the next place where decoding can begin. Returns false if there is none.
    fn synchronize(&mut self) -> bool;

    /// Decodes the next item and counts it. Returns false if nothing follows the last item.
    ///
    /// The item is used by reference. A copy would read with wide loads what was just written by narrow stores, and
    /// such loads must wait until the stores are in the cache.
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError>;

    /// Returns the offset in the records that decoding has reached.
    fn offset(&self) -> u64;

    /// Decodes and counts all items up to the end of the records or an error.
    fn count_all(&mut self, totals: &mut Totals, progress: &mut Progress) -> Result<(), TraceError> {
        while self.count_next(totals)? {
            progress.step(|| self.offset());
        }
        Ok(())
    }
}

/// Decodes all records and adds what they hold to `totals`. After an error, decoding continues at the next place where
/// it can begin.
pub(super) fn count(decoder: &mut impl ItemDecoder, mut totals: Totals, progress: &mut Progress) -> Totals {
    while decoder.synchronize() {
        if let Err(error) = decoder.count_all(&mut totals, progress) {
            totals.errors.push(error);
        }
    }
    totals
}

/// Counts what the packet layer returns.
pub fn packets(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    let totals = counted(progress, |counting| layers::packets(trace, config, counting));
    Totals { bytes: trace.len() as u64, ..totals }
}

/// Counts what the event layer returns.
pub fn events(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    let count = |counting: &mut Counting<'_>| {
        layers::events(trace, config, |event| {
            counting.totals.events += 1;
            counting.progress.step(|| event.offset);
        })
    };
    counted(progress, count)
}

/// Counts what the query layer returns.
pub fn query(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    counted(progress, |counting| layers::answers(trace, config, counting))
}

fn counted(progress: &mut Progress, decode: impl FnOnce(&mut Counting<'_>) -> Vec<Error>) -> Totals {
    let mut totals = Totals::default();
    let errors = decode(&mut Counting { totals: &mut totals, progress });
    totals.errors.extend(errors.into_iter().map(TraceError::from));
    totals
}

/// A sink that counts items.
struct Counting<'a> {
    totals: &'a mut Totals,
    progress: &'a mut Progress,
}

impl Counting<'_> {
    #[inline]
    fn packet_at(&mut self, offset: u64) {
        self.totals.packets += 1;
        self.progress.step(|| offset);
    }
}

impl PacketSink for Counting<'_> {
    #[inline]
    fn packet(&mut self, offset: u64, packet: Packet) {
        self.packet_at(offset);
        if packet == Packet::Ovf {
            self.totals.overflows += 1;
            self.totals.first_overflow.get_or_insert(offset);
        }
    }

    #[inline]
    fn tsc(&mut self, offset: u64, tsc: Tsc) {
        self.packet_at(offset);
        self.totals.tsc_first.get_or_insert(tsc.tsc);
        self.totals.tsc_last = Some(tsc.tsc);
    }
}

impl BranchEventSink for Counting<'_> {
    #[inline]
    fn outcomes(&mut self, outcomes: Tnt) {
        self.totals.conditional += u64::from(outcomes.len);
    }

    #[inline]
    fn target(&mut self, _: Option<u64>) {
        self.totals.indirect += 1;
    }

    fn event(&mut self, _: &Event) {
        self.totals.events += 1;
    }

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }
}

/// Counts the blocks of one of a session's traces, and hashes the blocks' instruction addresses if `hash` is set.
pub fn blocks(session: &Session<'_>, trace: usize, hash: bool, progress: &mut Progress) -> Totals {
    let mut totals = Totals::default();
    let counting = Counting { totals: &mut totals, progress };
    if hash {
        let mut addresses = Hashing::new();
        let sink = CountingBlocks { counting, addresses: &mut addresses, insns: vec![] };
        session.follow_traces(trace..trace + 1, &mut [sink]);
        Totals { hash: Some(addresses.hash()), ..totals }
    } else {
        let sink = CountingBlocks { counting, addresses: &mut (), insns: vec![] };
        session.follow_traces(trace..trace + 1, &mut [sink]);
        totals
    }
}

/// A counter of blocks, which remembers the last one and the address after it.
#[derive(Default)]
pub(super) struct BlocksToTheEnd {
    pub(super) totals: Totals,
    pub(super) last: Option<Block>,
    pub(super) ip: Option<u64>,
}

impl SliceSink for BlocksToTheEnd {
    fn stops(&mut self, end: SliceEnd) {
        self.ip = end.ip;
    }
}

impl ExecutionSink for BlocksToTheEnd {
    const BLOCKS: bool = true;

    #[inline]
    fn block(&mut self, block: &Block) {
        self.totals.blocks += 1;
        self.totals.instructions += u64::from(block.insns);
        self.last = Some(*block);
    }

    fn event(&mut self, _: &Event) {
        self.totals.events += 1;
    }

    fn lost(&mut self, lost: &Lost) {
        if let Lost::Error(error) = lost {
            self.totals.errors.push((*error).into());
        }
    }
}

/// A consumer of the addresses of a block's instructions.
trait Addresses {
    const WANTED: bool;

    /// Turns to the code with this number, which the next blocks are of.
    fn turn_to(&mut self, image: usize);

    fn add(&mut self, block: &Block, insns: &[InstructionRun]);
}

impl Addresses for () {
    const WANTED: bool = false;

    fn turn_to(&mut self, _: usize) {}

    #[inline]
    fn add(&mut self, _: &Block, _: &[InstructionRun]) {}
}

impl Addresses for Hashing {
    const WANTED: bool = true;

    fn turn_to(&mut self, image: usize) {
        self.turn_to(image);
    }

    #[inline]
    fn add(&mut self, block: &Block, insns: &[InstructionRun]) {
        self.add(block, || insns.iter().copied().flatten());
    }
}

/// A counter of blocks, which passes on the addresses of their instructions.
struct CountingBlocks<'a, H> {
    counting: Counting<'a>,
    addresses: &'a mut H,
    /// The instructions of the block that comes next.
    insns: Vec<InstructionRun>,
}

impl<H: Addresses> ExecutionSink for CountingBlocks<'_, H> {
    const INSNS: bool = H::WANTED;
    const BLOCKS: bool = true;

    #[inline]
    fn insns(&mut self, insns: InstructionRun) {
        self.insns.push(insns);
    }

    #[inline]
    fn block(&mut self, block: &Block) {
        self.counting.totals.blocks += 1;
        self.counting.totals.instructions += u64::from(block.insns);
        if H::WANTED {
            self.addresses.add(block, &self.insns);
            self.insns.clear();
        }
    }

    fn event(&mut self, _: &Event) {
        self.counting.totals.events += 1;
    }

    fn lost(&mut self, lost: &Lost) {
        if let Lost::Error(error) = lost {
            self.counting.totals.errors.push((*error).into());
        }
    }

    fn reached(&mut self, offset: u64) {
        self.counting.progress.reached(offset);
    }
}

impl<H: Addresses> SliceSink for CountingBlocks<'_, H> {
    const IS_LIGHT: bool = true;

    fn begins(&mut self, slice: &TraceSlice) {
        self.addresses.turn_to(slice.image);
    }
}

/// A decoder of blocks, and the hash of the addresses of their instructions, if it is wanted.
pub(super) struct HashedBlocks<D> {
    pub(super) decoder: D,
    pub(super) addresses: Option<Hashing>,
}

impl Totals {
    /// Counts a block or an event, and adds the addresses of a block's instructions to the hash if there is one.
    #[inline]
    pub(super) fn count_block<'a>(
        &mut self,
        item: &block::BlockItem,
        addresses: &mut Option<Hashing>,
        insns: impl Fn(&Block) -> Insns<'a>,
    ) {
        match item {
            block::BlockItem::Block(block) => {
                self.blocks += 1;
                self.instructions += u64::from(block.insns);
                if let Some(addresses) = addresses {
                    addresses.add(block, || insns(block).map(|(ip, _)| ip));
                }
            }
            block::BlockItem::Event(_) => self.events += 1,
        }
    }

    /// Counts an instruction or an event, and adds the instruction's address to the hash if there is one.
    #[inline]
    pub(super) fn count_insn(&mut self, item: &flow::FlowItem) {
        match item {
            flow::FlowItem::Insn(insn) => {
                self.instructions += 1;
                if let Some(hash) = &mut self.hash {
                    hash.add(insn.ip);
                }
            }
            flow::FlowItem::Event(_) => self.events += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::ProgressBar;
    use pugmark_decoder_core::image::{AddressSpace, Image, Section};

    /// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
    const SYNC: &[u8] = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    /// 1000: jmp *rax.
    const CODE: &[u8] = &[0xff, 0xe0];
    /// TIP (1000).
    const TIP: &[u8] = &[0x2d, 0, 0x10];
    const STEPS: usize = 1 << 16;

    #[test]
    fn blocks_instructions_and_events_are_counted_each_for_itself() {
        use pugmark_decoder_core::{
            event::{EventKind, Stamp},
            insn::Class,
            mode::ExecMode,
        };
        let event =
            Event { kind: EventKind::Overflow, ip: None, when: Stamp::default(), offset: 0, status: false };
        let block = Block {
            ip: 0x1000,
            end_ip: 0x1004,
            insns: 5,
            section: 0,
            mode: ExecMode::Bits64,
            speculative: false,
            truncated: false,
        };
        let mut totals = Totals::default();
        for item in
            [block::BlockItem::Block(block), block::BlockItem::Event(event), block::BlockItem::Block(block)]
        {
            totals.count_block(&item, &mut None, |_| unreachable!("no hash is wanted"));
        }
        assert_eq!((totals.blocks, totals.instructions, totals.events), (2, 10, 1));
        let insn = flow::ExecutedInsn {
            ip: 0x1000,
            len: 1,
            class: Class::Other,
            mode: ExecMode::Bits64,
            speculative: false,
        };
        for item in [flow::FlowItem::Insn(insn), flow::FlowItem::Event(event), flow::FlowItem::Event(event)] {
            totals.count_insn(&item);
        }
        assert_eq!((totals.blocks, totals.instructions, totals.events), (2, 11, 3));
    }

    #[test]
    fn every_layer_says_now_and_then_how_far_it_is() {
        let sections = [Section { base: 0x1000, bytes: CODE, space: AddressSpace::Any }];
        let (image, config) = (Image::new(&sections), Config::default());
        type CountLayer<'a> = &'a dyn Fn(&[u8], &mut Progress) -> Totals;
        let layers: [(&str, CountLayer<'_>); 4] = [
            ("packets", &|trace, progress| packets(trace, config, progress)),
            ("events", &|trace, progress| events(trace, config, progress)),
            ("query", &|trace, progress| query(trace, config, progress)),
            ("blocks", &|trace, progress| blocks(&Session::alone(trace, image, config), 0, false, progress)),
        ];
        for (name, layer) in layers {
            let traced = |rounds: usize| {
                let bar = ProgressBar::hidden();
                // Branches are no events, so the event layer needs another trace.
                let trace = match name {
                    "events" => SYNC.repeat(rounds),
                    _ => [SYNC, &TIP.repeat(rounds)].concat(),
                };
                let totals = layer(&trace, &mut Progress::in_bar(&bar));
                assert!(totals.errors.is_empty(), "{name}: {:?}", totals.errors);
                (bar.position(), trace.len() as u64)
            };
            assert_eq!(traced(STEPS / 4).0, 0, "{name}");
            let (position, size) = traced(STEPS * 3 / 2);
            assert!((size / 2..=size).contains(&position), "{name}: {position} of {size}");
        }
    }
}
