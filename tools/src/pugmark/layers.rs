//! Runs each layer over a whole trace. After an error, a layer continues at the next PSB.

use super::{decode::Totals, hashing::Hashing, progress::Progress};
use pugmark_decoder_core::{
    Packet,
    block::{self, BlockDecoder, Slot},
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

/// Counts what the packet layer returns.
pub fn packets(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    let mut totals = Totals { bytes: trace.len() as u64, ..Totals::default() };
    let mut packets = Packets::with_config(trace, config);
    while packets.sync_forward().is_some() {
        while let Some(packet) = packets.next() {
            match packet {
                Ok((_, packet)) => {
                    totals.packets += 1;
                    if let Packet::Tsc(tsc) = packet {
                        totals.tsc_first.get_or_insert(tsc.tsc);
                        totals.tsc_last = Some(tsc.tsc);
                    }
                }
                Err(error) => totals.errors.push(error.into()),
            }
            progress.step(|| packets.offset());
        }
        if packets.offset() == trace.len() as u64 {
            break;
        }
    }
    totals
}

/// Counts what the event layer returns.
pub fn events(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    let mut totals = Totals::default();
    let mut decoder = EventDecoder::with_config(trace, config);
    while decoder.sync_forward().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(_)) => totals.events += 1,
                Ok(None) => break,
                Err(error) => {
                    totals.errors.push(error.into());
                    break;
                }
            }
            progress.step(|| decoder.offset());
        }
    }
    totals
}

/// Counts what the query layer returns when it is asked for the next item each time.
pub fn query(trace: &[u8], config: Config<'_>, progress: &mut Progress) -> Totals {
    let mut totals = Totals::default();
    let mut decoder = QueryDecoder::with_config(trace, config);
    while decoder.sync_forward().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(Answer::Conditional(_))) => totals.conditional += 1,
                Ok(Some(Answer::Indirect(_))) => totals.indirect += 1,
                Ok(Some(Answer::Event(_))) => totals.events += 1,
                Ok(None) => break,
                Err(error) => {
                    totals.errors.push(error.into());
                    break;
                }
            }
            progress.step(|| decoder.offset());
        }
    }
    totals
}

/// Counts what the instruction flow layer returns, and hashes the instructions' addresses if `hash` is set.
pub fn insns(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let mut addresses = hash.then(AddressHash::new);
    let mut totals = Totals::default();
    let mut decoder = InsnDecoder::with_config(trace, image, config);
    while decoder.resync().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(flow::Item::Insn(insn))) => {
                    totals.instructions += 1;
                    if let Some(hash) = &mut addresses {
                        hash.add(insn.ip);
                    }
                }
                Ok(Some(flow::Item::Event(_))) => totals.events += 1,
                Ok(None) => break,
                Err(error) => {
                    totals.errors.push(error.into());
                    break;
                }
            }
            progress.step(|| decoder.offset());
        }
    }
    totals.hash = addresses;
    totals
}

/// Counts what the block layer returns, and hashes the blocks' instruction addresses if `hash` is set.
///
/// Each item is used by reference. A copy would read with wide loads what was just written by narrow stores, and such
/// loads must wait until the stores are in the cache.
pub fn blocks(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let mut addresses = hash.then(Hashing::new);
    let mut totals = Totals::default();
    let mut memory = vec![Slot::default(); SLOTS];
    let mut decoder = BlockDecoder::with_config(trace, image, &mut memory, config);
    while decoder.resync().is_some() {
        loop {
            match &decoder.next() {
                Ok(Some(block::Item::Block(block))) => {
                    totals.blocks += 1;
                    totals.instructions += u64::from(block.insns);
                    if let Some(hashing) = &mut addresses {
                        hashing.add(block, || decoder.insns(block).map(|(ip, _)| ip));
                    }
                }
                Ok(Some(block::Item::Event(_))) => totals.events += 1,
                Ok(None) => break,
                Err(error) => {
                    totals.errors.push((*error).into());
                    break;
                }
            }
            progress.step(|| decoder.offset());
        }
    }
    totals.hash = addresses.map(|hashing| hashing.hash());
    totals
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
