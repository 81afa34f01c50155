//! Decodes an archived trace: contiguous pieces, losses, and the functions that ran.

use alloc::vec::Vec;
use pugmark_decoder_core::Error;
use pugmark_decoder_core::flow::{self, InsnDecoder, Pieces};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{Image, Section};
use pugmark_protocol::{After, Piece};

use crate::archive::Archive;
use crate::histogram::Histogram;

/// The result of decoding a trace.
#[derive(Clone, Debug)]
pub struct DecodedPackets {
    /// The contiguous parts, in order.
    pub pieces: Vec<Piece>,
    /// Count and hash of all instructions.
    pub total: AddressHash,
    /// The number of OVF packets.
    pub overflows: u64,
    /// Number of errors after which the decoder resynchronised at the next PSB.
    pub errors: u64,
    /// The first of these errors; its offset is relative to its segment.
    pub first_error: Option<Error>,
}

/// Decodes all segments of `archive` over the code in `sections`, and counts each instruction in `histogram`.
#[must_use]
pub fn decode(archive: &Archive, sections: &[Section<'_>], histogram: &mut Histogram<'_>) -> DecodedPackets {
    let mut decoded = DecodedPackets {
        pieces: Vec::new(),
        total: AddressHash::new(),
        overflows: 0,
        errors: 0,
        first_error: None,
    };
    for segment in archive.segments() {
        let decoder = InsnDecoder::new(segment.bytes, Image::new(sections));
        let mut pieces =
            if segment.after == After::Wrap { Pieces::wrapped(decoder) } else { Pieces::new(decoder) };
        let mut first = true;
        while let Some(piece) = pieces.next_with(|insn| {
            decoded.total.add(insn.ip);
            histogram.add(insn.ip);
        }) {
            let after = match piece.after {
                // The decoder's start is the start of the segment, and the archive knows the event before it.
                flow::After::Start if first => segment.after,
                flow::After::Start | flow::After::Psb => After::Psb,
                flow::After::Wrap => After::Wrap,
                flow::After::Overflow => After::Overflow,
                flow::After::Stop => After::Stop,
                flow::After::Error(error) => {
                    decoded.first_error.get_or_insert(error);
                    After::Error
                }
            };
            first = false;
            decoded.pieces.push(Piece {
                count: piece.hash.count(),
                hash: piece.hash.value(),
                first: piece.first,
                last: piece.last,
                after,
            });
        }
        // An error after the last piece belongs to no piece.
        if let Some(flow::After::Error(error)) = pieces.after() {
            decoded.first_error.get_or_insert(error);
        }
        decoded.errors += pieces.errors();
        decoded.overflows += pieces.decoder().counters().overflows;
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::{Function, Symbols};
    use pugmark_decoder_core::image::AddressSpace;
    use pugmark_kernel::drain::Sink;
    use pugmark_kernel::loss::{Gap, Overwritten};

    const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
    /// MODE.Exec (64 bit), FUP (1000), PSBEND, FUP (1003), TIP.PGD
    const THREE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x3d\x03\x10\x01";
    /// MODE.Exec (64 bit), FUP (1000), PSBEND, OVF, FUP (1008), FUP (100a), TIP.PGD
    const LOST: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x02\xf3\x3d\x08\x10\x3d\x0a\x10\x01";
    /// No packet begins with its last two bytes.
    const BROKEN: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x02\xff";

    fn decoded(feed: impl Fn(&mut Archive)) -> (DecodedPackets, Vec<u64>) {
        let mut archive = Archive::with_room(512);
        feed(&mut archive);
        let sections = [Section { base: 0x1000, bytes: &[0x90; 16], space: AddressSpace::Any }];
        let symbols = Symbols::from_functions([Function { address: 0x1000, size: 16, name: "nops" }]);
        let mut histogram = Histogram::new(&symbols);
        let decoded = decode(&archive, &sections, &mut histogram);
        let counts = histogram.top(9).into_iter().map(|(_, count)| count).collect();
        (decoded, counts)
    }

    fn bytes(archive: &mut Archive, parts: &[&[u8]]) {
        parts.iter().for_each(|part| assert_eq!(archive.bytes(part), part.len()));
    }

    fn summary(decoded: &DecodedPackets) -> Vec<(After, u64, u64, u64)> {
        let piece = |piece: &Piece| (piece.after, piece.count, piece.first, piece.last);
        decoded.pieces.iter().map(piece).collect()
    }

    #[test]
    fn a_trace_without_loss_is_one_piece() {
        let (decoded, counts) = decoded(|archive| bytes(archive, &[&PSB[..5], &PSB[5..], THREE]));
        assert_eq!(summary(&decoded), [(After::Start, 3, 0x1000, 0x1002)]);
        assert_eq!((decoded.overflows, decoded.errors, decoded.total.count()), (0, 0, 3));
        assert_eq!(decoded.total.value(), decoded.pieces[0].hash);
        assert_eq!(counts, [3]);
    }

    #[test]
    fn each_gap_begins_a_piece() {
        let (decoded, counts) = decoded(|archive| {
            bytes(archive, &[PSB, THREE]);
            archive.gap(Gap::Stop);
            bytes(archive, &[PSB, THREE]);
            archive.gap(Gap::Wrap(Overwritten::Perhaps));
            bytes(archive, &[&THREE[3..], PSB, LOST]);
        });
        assert_eq!(
            summary(&decoded),
            [
                (After::Start, 3, 0x1000, 0x1002),
                (After::Stop, 3, 0x1000, 0x1002),
                (After::Overflow, 2, 0x1008, 0x1009)
            ]
        );
        assert_eq!((decoded.overflows, decoded.errors, counts), (1, 0, [8].to_vec()));
    }

    #[test]
    fn what_is_lost_in_all_segments_adds_up() {
        let (decoded, _) = decoded(|archive| {
            for _ in 0..2 {
                for part in [LOST, BROKEN, THREE] {
                    bytes(archive, &[PSB, part]);
                    archive.gap(Gap::Stop);
                }
            }
        });
        assert_eq!((decoded.overflows, decoded.errors), (2, 2));
    }

    #[test]
    fn an_error_is_counted_even_when_nothing_follows() {
        for (last, errors) in [(&[][..], 1), (&[PSB, THREE][..], 1)] {
            let (decoded, _) = decoded(|archive| {
                bytes(archive, &[PSB, BROKEN]);
                bytes(archive, last);
            });
            assert_eq!(decoded.errors, errors);
            assert_eq!(decoded.first_error.map(|error| error.offset), Some(27));
            assert!(decoded.pieces.iter().all(|piece| piece.after == After::Error));
        }
    }
}
