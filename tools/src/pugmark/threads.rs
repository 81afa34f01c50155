//! Decodes a trace on several threads, with the same totals as on one.

use super::{
    code::TracedCode,
    decode::{self, Layer},
    layers::{self, BlocksToTheEnd, CACHE_WORDS},
    progress::{Progress, Size},
    segments::{TraceSegment, each, segments},
    totals::Totals,
};
use crate::session;
use pugmark_decoder_core::{
    block::Block,
    block_cache::BlockCache,
    config::Config,
    image::{Image, Section},
};
use std::num::NonZeroUsize;

/// The result of a thread for a segment.
struct Found {
    totals: Totals,
    /// The totals of the segment's lead, which the segment before has counted.
    lead: Totals,
    /// The places of decoding at the end of the segment and at the end of its lead.
    end: End,
    lead_end: End,
}

/// The last block that was executed and the address after it, if the layer has code.
type End = (Option<Block>, Option<u64>);

/// Decodes the trace from its first PSB on.
pub(super) fn decode(
    trace: &[u8],
    code: &TracedCode,
    config: Config<'_>,
    layer: Layer,
    threads: NonZeroUsize,
    progress: &mut Progress,
) -> Totals {
    let segments = segments(trace, config, threads);
    let totals = match segments.len() {
        1 => None,
        _ => {
            let sections = code.sections();
            progress.begin("decoding", Size::Bytes(trace.len() as u64));
            decode_segments(&segments, &sections, config, layer, threads, progress)
        }
    };
    let totals = totals.map(|totals| Totals { bytes: trace.len() as u64, ..totals });
    totals.unwrap_or_else(|| decode::decode(trace, code, config, layer, false, progress))
}

/// Decodes the segments and adds them up; `None` if one thread might decode a different result.
fn decode_segments(
    segments: &[TraceSegment<'_>],
    sections: &[Section<'_>],
    config: Config<'_>,
    layer: Layer,
    threads: NonZeroUsize,
    progress: &mut Progress,
) -> Option<Totals> {
    let mut memory: Vec<_> = (0..threads.get()).map(|_| vec![0; CACHE_WORDS]).collect();
    let mut hidden: Vec<_> = (1..threads.get()).map(|_| Progress::hidden()).collect();
    let progresses = std::iter::once(progress).chain(&mut hidden);
    let mut workers: Vec<_> = memory
        .iter_mut()
        .zip(progresses)
        .map(|(memory, progress)| (BlockCache::new(memory), progress))
        .collect();
    let found = each(segments, &mut workers, |(cache, progress), segment| {
        progress.at(segment.offset as u64);
        let image = Image::new(sections);
        let mut of = |bytes| {
            let (mut totals, last, ip) = match layer {
                Layer::Packets => (Totals::default(), None, None),
                Layer::Events => (layers::events(bytes, config, &mut Progress::hidden()), None, None),
                Layer::Query => (layers::query(bytes, config, &mut Progress::hidden()), None, None),
                Layer::Insns | Layer::Blocks | Layer::Edges => {
                    let mut found = BlocksToTheEnd::default();
                    session::layers::blocks(bytes, image, config, cache, &mut found);
                    (found.totals, found.last, found.ip)
                }
            };
            if layer == Layer::Insns {
                totals.blocks = 0;
            }
            // Packets are counted in the packet layer, because the layers above it may skip some.
            let packets = layers::packets(bytes, config, &mut Progress::hidden());
            (joined(&totals, &packets), (last, ip))
        };
        let (mut totals, end) = of(segment.bytes);
        totals.first_overflow = totals.first_overflow.map(|at| at + segment.offset as u64);
        let (lead, lead_end) = of(segment.lead);
        Found { totals, lead, end, lead_end }
    });
    let meet = |pair: &[Found]| {
        let [before, after] = pair else { return true };
        // One block began in the segment before, so there must be another to compare.
        let enough = !layer.needs_code()
            || after.lead.instructions > after.lead_end.0.map_or(0, |last| last.insns.into());
        enough && before.end == after.lead_end
    };
    if found.iter().any(|found| !found.totals.errors.is_empty()) || !found.windows(2).all(meet) {
        return None;
    }
    found.iter().map(Found::own).reduce(|sum, next| joined(&sum, &next))
}

impl Found {
    /// Returns the totals of the segment without its lead.
    fn own(&self) -> Totals {
        let Self { totals, lead, .. } = self;
        Totals {
            packets: totals.packets - lead.packets,
            events: totals.events - lead.events,
            conditional: totals.conditional - lead.conditional,
            indirect: totals.indirect - lead.indirect,
            instructions: totals.instructions - lead.instructions,
            blocks: totals.blocks - lead.blocks,
            ..totals.clone()
        }
    }
}

/// Adds up two parts of a trace; `next` is the later part.
fn joined(sum: &Totals, next: &Totals) -> Totals {
    Totals {
        bytes: sum.bytes + next.bytes,
        packets: sum.packets + next.packets,
        events: sum.events + next.events,
        conditional: sum.conditional + next.conditional,
        indirect: sum.indirect + next.indirect,
        instructions: sum.instructions + next.instructions,
        blocks: sum.blocks + next.blocks,
        errors: sum.errors.iter().chain(&next.errors).cloned().collect(),
        overflows: sum.overflows + next.overflows,
        first_overflow: sum.first_overflow.or(next.first_overflow),
        hash: None,
        tsc_first: sum.tsc_first.or(next.tsc_first),
        tsc_last: next.tsc_last.or(sum.tsc_last),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::segments::cut, *};

    /// MODE.Exec (64 bit).
    const MODE: &[u8] = b"\x99\x01";
    /// PSBEND.
    const END: &[u8] = b"\x02\x23";
    const LAYERS: [Layer; 5] = [Layer::Packets, Layer::Events, Layer::Query, Layer::Insns, Layer::Blocks];

    /// Returns a PSB+ at `ip`, and some packets many times.
    fn part(ip: u16, packets: &[u8]) -> Vec<u8> {
        let [low, high] = ip.to_le_bytes();
        let psb = b"\x02\x82".repeat(8);
        [&psb[..], MODE, &[0x7d, low, high, 0, 0, 0, 0], END, &packets.repeat(100)].concat()
    }

    /// Returns the result of several threads on segments of 500 bytes and more, and that of one thread on the trace.
    fn found(trace: &[u8], bytes: &[u8], layer: Layer, threads: usize) -> (Option<Totals>, Totals) {
        let mut code = TracedCode::default();
        code.add(0x1000, bytes.to_vec());
        let config = Config::new();
        let segments = cut(trace, config, 500);
        assert!(segments.len() > 4, "{}", segments.len());
        let threads = NonZeroUsize::new(threads).unwrap();
        let mut progress = Progress::hidden();
        let together = decode_segments(&segments, &code.sections(), config, layer, threads, &mut progress);
        let together = together.map(|totals| Totals { bytes: trace.len() as u64, ..totals });
        (together, decode::decode(trace, &code, config, layer, false, &mut progress))
    }

    /// 1000: xor eax, eax; 1002: je 1006; 1004: jmp 1000; 1006: jmp rax.
    const LOOP: &[u8] = &[0x31, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0xff, 0xe0];
    /// TNT (not taken, not taken, taken), TIP (1000).
    const ROUND: &[u8] = b"\x12\x2d\0\x10";

    #[test]
    fn several_threads_find_what_one_finds_also_in_blocks_that_are_executed_over_a_psb() {
        // The PSB comes before the second instruction of a block.
        let trace = [part(0x1000, ROUND), part(0x1002, ROUND).repeat(10)].concat();
        for layer in LAYERS {
            for threads in [1, 2, 3, 8] {
                let (together, alone) = found(&trace, LOOP, layer, threads);
                assert_eq!(together, Some(alone), "{layer} on {threads}");
            }
        }
        let (_, alone) = found(&trace, LOOP, Layer::Blocks, 1);
        assert_eq!((alone.blocks, alone.instructions), (11 * 400, 11 * 100 * 9));
    }

    #[test]
    fn the_times_of_a_trace_are_the_first_and_the_last() {
        let rounds = [&ROUND.repeat(50)[..], b"\x19\x05\0\0\0\0\0\0", &ROUND.repeat(50)].concat();
        let trace = [&rounds[..], b"\x19\x09\0\0\0\0\0\0"].concat();
        let trace: Vec<u8> = [part(0x1000, ROUND), trace].concat().repeat(6);
        let (together, alone) = found(&trace, LOOP, Layer::Blocks, 2);
        assert_eq!((alone.tsc_first, alone.tsc_last), (Some(5), Some(9)));
        assert_eq!(together, Some(alone));
    }

    #[test]
    fn nothing_is_taken_from_threads_that_find_an_error_or_begin_at_another_place() {
        let good = [part(0x1000, ROUND), part(0x1002, ROUND).repeat(10)].concat();
        // A TIP where an outcome is needed.
        let damaged = [&good[..], ROUND, &ROUND[1..], &[0; 20]].concat();
        // The same loop is at 1000 and at 1006; the second PSB+ says that the one at 1006 is executed. At 100c no
        // code is known.
        let two = [[0x31, 0xc0, 0x74, 0xfc, 0xeb, 0xfa]; 2].concat();
        let moved = [part(0x1000, b"\x12"), part(0x1006, b"\x12").repeat(40)].concat();
        // 1000: call 1008; 1005: jmp rax; 1008: ret. The PSB is in the call, whose return is compressed nevertheless:
        // TNT (taken), TIP (1000).
        let called = &[0xe8, 3, 0, 0, 0, 0xff, 0xe0, 0x90, 0xc3];
        let returned = [part(0x1000, b"\x06\x2d\0\x10"), part(0x1008, b"\x06\x2d\0\x10").repeat(10)].concat();
        for (trace, code) in [(&damaged, LOOP), (&moved, &two), (&returned, called)] {
            for layer in [Layer::Insns, Layer::Blocks] {
                assert_eq!(found(trace, code, layer, 2).0, None);
            }
        }
        // One thread decodes over such a PSB.
        for (trace, code) in [(&moved, &two[..]), (&returned, called)] {
            let (_, alone) = found(trace, code, Layer::Blocks, 1);
            assert!(alone.errors.is_empty() && alone.blocks > 2000, "{alone:?}");
        }
    }
}
