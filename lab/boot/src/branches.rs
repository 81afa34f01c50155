//! Decodes archived branch records: the records themselves, and the instructions between them.

use alloc::vec::Vec;
use core::ops::RangeInclusive;
use pugmark_decoder_core::Error;
use pugmark_decoder_core::bts::{BranchRecords, BtsInsnDecoder, Entry, Layout, Options};
use pugmark_decoder_core::flow::FlowItem;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{Image, Section};
use pugmark_protocol::{After, Piece, Records};

use crate::archive::Archive;
use crate::histogram::Histogram;

/// The result of decoding branch records.
#[derive(Clone, Debug)]
pub struct DecodedBranches {
    /// The records of each contiguous part, in order.
    pub records: Vec<Records>,
    /// The instructions of each contiguous part, in order. The instructions before a part's first branch and after its
    /// last one are unknown.
    pub pieces: Vec<Piece>,
    /// Count and hash of all instructions.
    pub total: AddressHash,
    /// The first error; its index is relative to its segment.
    pub first_error: Option<Error>,
}

/// Information that the records do not contain.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// The addresses to which interrupts and exceptions lead.
    pub handlers: &'a [RangeInclusive<u64>],
    /// Only one privilege level was recorded.
    pub one_level: bool,
}

/// Decodes all segments of `archive` over the code in `sections`, and counts each instruction in `histogram`.
#[must_use]
pub fn decode(
    archive: &Archive,
    sections: &[Section<'_>],
    context: &Context<'_>,
    histogram: &mut Histogram<'_>,
) -> DecodedBranches {
    let mut decoded = DecodedBranches {
        records: Vec::new(),
        pieces: Vec::new(),
        total: AddressHash::new(),
        first_error: None,
    };
    for segment in archive.segments() {
        let mut entries = BranchRecords::new(segment.bytes, Layout::Bits64);
        decoded.records.push(hash_of(segment.after, entries.clone()));
        // The first branch may come from a level that was not recorded.
        let start = context.one_level.then(|| entries.find_map(target)).flatten();
        let &Context { handlers, one_level } = context;
        let options =
            Options { start, cr3: segment.space, handlers: Some(handlers), one_level, ..Options::default() };
        let mut decoder = BtsInsnDecoder::new(entries, Image::new(sections), options);
        let mut pieces = SegmentPieces { decoded: &mut decoded, open: None, after: segment.after };
        loop {
            match decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => {
                    histogram.add(insn.ip);
                    pieces.add(insn.ip);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => pieces.error(error),
            }
        }
        pieces.close();
    }
    decoded
}

fn target(entry: Result<(u64, Entry), Error>) -> Option<u64> {
    match entry {
        Ok((_, Entry::Branch(branch))) => Some(branch.to),
        _ => None,
    }
}

fn hash_of(after: After, entries: BranchRecords<'_>) -> Records {
    let (mut count, mut hash) = (0, AddressHash::new());
    for (_, entry) in entries.flatten() {
        if let Entry::Branch(branch) = entry {
            count += 1;
            hash.add(branch.from);
            hash.add(branch.to);
        }
    }
    Records { count, hash: hash.value(), after }
}

/// The pieces of a segment.
struct SegmentPieces<'d> {
    decoded: &'d mut DecodedBranches,
    open: Option<OpenPiece>,
    after: After,
}

/// A piece to which instructions are added.
struct OpenPiece {
    hash: AddressHash,
    first: u64,
    last: u64,
}

impl SegmentPieces<'_> {
    fn add(&mut self, ip: u64) {
        let new = OpenPiece { hash: AddressHash::new(), first: ip, last: ip };
        let piece = self.open.get_or_insert(new);
        piece.hash.add(ip);
        piece.last = ip;
        self.decoded.total.add(ip);
    }

    fn error(&mut self, error: Error) {
        self.close();
        self.decoded.first_error.get_or_insert(error);
        self.after = After::Error;
    }

    fn close(&mut self) {
        if let Some(OpenPiece { hash, first, last }) = self.open.take() {
            let (count, hash) = (hash.count(), hash.value());
            self.decoded.pieces.push(Piece { count, hash, first, last, after: self.after });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::{Function, Symbols};
    use pugmark_decoder_core::bts::BranchRecord;
    use pugmark_decoder_core::image::AddressSpace;
    use pugmark_kernel::drain::Sink;
    use pugmark_kernel::loss::Gap;

    /// 1000: nop; 1001: jmp 1000; 1003: hlt
    const CODE: [u8; 4] = [0x90, 0xeb, 0xfd, 0xf4];

    fn records(branches: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(from, to) in branches {
            let mut record = [0; 24];
            BranchRecord { from, to, predicted: false }.emit(Layout::Bits64, &mut record).unwrap();
            bytes.extend(record);
        }
        bytes
    }

    fn decoded(feed: impl Fn(&mut Archive)) -> (DecodedBranches, u64) {
        decoded_over(&[(0x1000, &CODE, AddressSpace::Any)], false, feed)
    }

    fn decoded_over(
        code: &[(u64, &[u8], AddressSpace)],
        one_level: bool,
        feed: impl Fn(&mut Archive),
    ) -> (DecodedBranches, u64) {
        let mut archive = Archive::with_room(1024).apart();
        feed(&mut archive);
        let section = |&(base, bytes, space)| Section { base, bytes, space };
        let sections: Vec<_> = code.iter().map(section).collect();
        let symbols = Symbols::from_functions([Function { address: 0x1000, size: 4, name: "loop" }]);
        let mut histogram = Histogram::new(&symbols);
        let context = Context { handlers: &[0x9000..=0x9fff], one_level };
        let decoded = decode(&archive, &sections, &context, &mut histogram);
        let counted = histogram.top(9).iter().map(|(_, count)| count).sum();
        (decoded, counted)
    }

    const BACK: (u64, u64) = (0x1001, 0x1000);

    #[test]
    fn what_is_drained_apart_is_decoded_apart() {
        let (decoded, counted) = decoded(|archive| {
            archive.bytes(&records(&[BACK; 3]));
            archive.bytes(&records(&[BACK; 2]));
            archive.gap(Gap::Stop);
            archive.bytes(&records(&[BACK]));
        });
        let found: Vec<_> = decoded.records.iter().map(|records| (records.after, records.count)).collect();
        assert_eq!(found, [(After::Start, 3), (After::Off, 2), (After::Stop, 1)]);
        let pieces: Vec<_> = decoded.pieces.iter().map(|piece| (piece.after, piece.count)).collect();
        assert_eq!(pieces, [(After::Start, 5), (After::Off, 3), (After::Stop, 1)]);
        assert_eq!((decoded.total.count(), counted, decoded.first_error), (9, 9, None));
        let mut hash = AddressHash::new();
        [BACK.0, BACK.1, BACK.0, BACK.1].into_iter().for_each(|address| hash.add(address));
        assert_eq!(decoded.records[1].hash, hash.value());
    }

    #[test]
    fn a_branch_that_cannot_be_begins_a_piece() {
        // No instruction leads from 1000 past the jump to 1003.
        let (decoded, _) = decoded(|archive| {
            archive.bytes(&records(&[BACK, (0x1003, 0x1000), BACK]));
        });
        assert!(decoded.first_error.is_some());
        assert_eq!(decoded.records[0].count, 3);
        assert!(decoded.pieces[1..].iter().all(|piece| piece.after == After::Error));
    }

    #[test]
    fn each_address_space_has_its_code() {
        // In one address space 1000: jmp 1003; in the other 1000: nop; 1001: jmp 1003; in both then jmp 1000.
        let (one, other): (&[u8], &[u8]) = (&[0xeb, 1, 0xf4, 0xeb, 0xfb], &[0x90, 0xeb, 0, 0xeb, 0xfb]);
        let code = [(0x1000, one, AddressSpace::Cr3(0x5000)), (0x1000, other, AddressSpace::Cr3(0x6000))];
        let (decoded, _) = decoded_over(&code, false, |archive| {
            for (space, from) in [(0x6000, 0x1001), (0x5000, 0x1000)] {
                archive.enter(space);
                archive.bytes(&records(&[(0x1003, 0x1000), (from, 0x1003), (0x1003, 0x1000)]));
            }
        });
        let counts: Vec<_> = decoded.pieces.iter().map(|piece| piece.count).collect();
        assert_eq!((counts, decoded.first_error), ([4, 3].to_vec(), None));
    }

    #[test]
    fn of_one_level_the_first_branch_comes_from_wherever() {
        let level = [(0xf_f000, 0x1000), BACK, BACK];
        let (decoded, _) = decoded_over(&[(0x1000, &CODE, AddressSpace::Any)], true, |archive| {
            archive.bytes(&records(&level));
        });
        let pieces: Vec<_> = decoded.pieces.iter().map(|piece| (piece.first, piece.count)).collect();
        assert_eq!((pieces, decoded.records[0].count), ([(0x1000, 4)].to_vec(), 3));
        assert_eq!(decoded.first_error, None);
    }
}
