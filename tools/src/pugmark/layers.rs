//! Runs each layer over a whole trace and counts what it returns.

use super::{
    hashing::Hashing,
    progress::Progress,
    totals::{Totals, TraceError},
};
use pugmark_decoder_core::{
    Packet,
    block::{self, Block, BlockDecoder, Insns, Slot},
    config::Config,
    event::EventDecoder,
    flow::{self, InsnDecoder},
    hash::AddressHash,
    image::Image,
    packet::Packets,
    query::{Answer, QueryDecoder},
};

/// The number of code runs to remember: more than the hot code of a large program has.
pub const SLOTS: usize = 1 << 15;

/// The decoder of one layer, as far as counting needs it.
pub(super) trait LayerDecoder {
    /// Goes to the next place where decoding can begin. Returns false if there is none.
    fn synchronize(&mut self) -> bool;

    /// Decodes the next item and counts it. Returns false if nothing follows the last item.
    ///
    /// The item is used by reference. A copy would read with wide loads what was just written by narrow stores, and
    /// such loads must wait until the stores are in the cache.
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError>;

    /// Returns the offset in the trace that decoding has reached.
    fn offset(&self) -> u64;
}

/// Decodes the whole trace and adds what it holds to `totals`. After an error, decoding continues at the next place
/// where it can begin.
pub(super) fn count(decoder: &mut impl LayerDecoder, mut totals: Totals, progress: &mut Progress) -> Totals {
    while decoder.synchronize() {
        loop {
            match decoder.count_next(&mut totals) {
                Ok(true) => progress.step(|| decoder.offset()),
                Ok(false) => break,
                Err(error) => {
                    totals.errors.push(error);
                    break;
                }
            }
        }
    }
    totals
}

/// Counts what the packet layer returns.
pub fn packets(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    let totals = Totals { bytes: trace.len() as u64, ..Totals::default() };
    count(&mut Packets::with_config(trace, config), totals, progress)
}

impl LayerDecoder for Packets<'_> {
    fn synchronize(&mut self) -> bool {
        self.sync_forward().is_some()
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        let Some(packet) = self.next() else { return Ok(false) };
        let (_, packet) = packet?;
        totals.packets += 1;
        if let Packet::Tsc(tsc) = packet {
            totals.tsc_first.get_or_insert(tsc.tsc);
            totals.tsc_last = Some(tsc.tsc);
        }
        Ok(true)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.offset()
    }
}

/// Counts what the event layer returns.
pub fn events(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    count(&mut EventDecoder::with_config(trace, config), Totals::default(), progress)
}

impl LayerDecoder for EventDecoder<'_> {
    fn synchronize(&mut self) -> bool {
        self.sync_forward().is_some()
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        match &self.next() {
            Ok(Some(_)) => totals.events += 1,
            Ok(None) => return Ok(false),
            Err(error) => return Err((*error).into()),
        }
        Ok(true)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.offset()
    }
}

/// Counts what the query layer returns when it is asked for the next item each time.
pub fn query(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    count(&mut QueryDecoder::with_config(trace, config), Totals::default(), progress)
}

impl LayerDecoder for QueryDecoder<'_> {
    fn synchronize(&mut self) -> bool {
        self.sync_forward().is_some()
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        match &self.next() {
            Ok(Some(Answer::Conditional(_))) => totals.conditional += 1,
            Ok(Some(Answer::Indirect(_))) => totals.indirect += 1,
            Ok(Some(Answer::Event(_))) => totals.events += 1,
            Ok(None) => return Ok(false),
            Err(error) => return Err((*error).into()),
        }
        Ok(true)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.offset()
    }
}

/// Counts what the instruction flow layer returns, and hashes the instructions' addresses if `hash` is set.
pub fn insns(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let totals = Totals { hash: hash.then(AddressHash::new), ..Totals::default() };
    count(&mut InsnDecoder::with_config(trace, image, config), totals, progress)
}

impl LayerDecoder for InsnDecoder<'_> {
    fn synchronize(&mut self) -> bool {
        self.resync().is_some()
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        match &self.next() {
            Ok(Some(item)) => totals.count_insn(item),
            Ok(None) => return Ok(false),
            Err(error) => return Err((*error).into()),
        }
        Ok(true)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.offset()
    }
}

/// Counts what the block layer returns, and hashes the blocks' instruction addresses if `hash` is set.
pub fn blocks(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let mut memory = vec![Slot::default(); SLOTS];
    let decoder = BlockDecoder::with_config(trace, image, &mut memory, config);
    let mut blocks = HashedBlocks { decoder, addresses: hash.then(Hashing::new) };
    let totals = count(&mut blocks, Totals::default(), progress);
    Totals { hash: blocks.addresses.map(|addresses| addresses.hash()), ..totals }
}

/// A decoder of blocks, and the hash of the addresses of their instructions, if it is wanted.
pub(super) struct HashedBlocks<D> {
    pub(super) decoder: D,
    pub(super) addresses: Option<Hashing>,
}

impl LayerDecoder for HashedBlocks<BlockDecoder<'_>> {
    fn synchronize(&mut self) -> bool {
        self.decoder.resync().is_some()
    }

    #[inline]
    fn count_next(&mut self, totals: &mut Totals) -> Result<bool, TraceError> {
        match &self.decoder.next() {
            Ok(Some(item)) => {
                totals.count_block(item, &mut self.addresses, |block| self.decoder.insns(block))
            }
            Ok(None) => return Ok(false),
            Err(error) => return Err((*error).into()),
        }
        Ok(true)
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.decoder.offset()
    }
}

impl Totals {
    /// Counts a block or an event, and adds the addresses of a block's instructions to the hash if there is one.
    #[inline]
    pub(super) fn count_block<'a>(
        &mut self,
        item: &block::Item,
        addresses: &mut Option<Hashing>,
        insns: impl Fn(&Block) -> Insns<'a>,
    ) {
        match item {
            block::Item::Block(block) => {
                self.blocks += 1;
                self.instructions += u64::from(block.insns);
                if let Some(addresses) = addresses {
                    addresses.add(block, || insns(block).map(|(ip, _)| ip));
                }
            }
            block::Item::Event(_) => self.events += 1,
        }
    }

    /// Counts an instruction or an event, and adds the instruction's address to the hash if there is one.
    #[inline]
    pub(super) fn count_insn(&mut self, item: &flow::Item) {
        match item {
            flow::Item::Insn(insn) => {
                self.instructions += 1;
                if let Some(hash) = &mut self.hash {
                    hash.add(insn.ip);
                }
            }
            flow::Item::Event(_) => self.events += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::ProgressBar;
    use pugmark_decoder_core::image::{AddressSpace, Section};

    /// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
    const SYNC: &[u8] = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    /// 1000: jmp *rax.
    const CODE: &[u8] = &[0xff, 0xe0];
    /// TIP (1000).
    const TIP: &[u8] = &[0x2d, 0, 0x10];
    const STEPS: usize = 1 << 16;

    #[test]
    fn every_layer_says_now_and_then_how_far_it_is() {
        let sections = [Section { base: 0x1000, bytes: CODE, space: AddressSpace::Any }];
        let (image, config) = (Image::new(&sections), Config::default());
        type CountLayer<'a> = &'a dyn Fn(&[u8], &mut Progress) -> Totals;
        let layers: [(&str, CountLayer<'_>); 5] = [
            ("packets", &|trace, progress| packets(trace, config, progress)),
            ("events", &|trace, progress| events(trace, config, progress)),
            ("query", &|trace, progress| query(trace, config, progress)),
            ("insns", &|trace, progress| insns(trace, image, config, false, progress)),
            ("blocks", &|trace, progress| blocks(trace, image, config, false, progress)),
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
