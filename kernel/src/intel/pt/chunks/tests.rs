use super::*;
use crate::fake::{FakeFrames, capabilities};
use crate::intel::pt::buffer::{Layout, Mode};
use crate::intel::pt::topa::RegionSize;
use crate::loss::{Gap, Overwritten};

/// Allocates regions that are filled with their number.
fn buffer(frames: &FakeFrames, contiguous: bool) -> Buffer<&FakeFrames> {
    let layout = Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 3, contiguous };
    let buffer = Buffer::allocate(frames, &capabilities(), layout, Mode::StopWhenFull { spare: 1 }).unwrap();
    for n in 0..4 {
        frames.write(buffer.topa().unwrap().entry(n).base(), &[n as u8; 0x1000]);
    }
    buffer
}

fn ring(tail: u64, head: u64) -> Ring {
    Ring::at(0x1000, 4, tail, head)
}

#[test]
fn bytes_come_in_order_and_in_as_few_pieces_as_the_memory_has() {
    // (tail, head, contiguous, chunks as (first byte, length))
    type Row<'a> = (u64, u64, bool, &'a [(u8, usize)]);
    let table: [Row; 9] = [
        (0, 0, false, &[]),
        (0, 0x10, false, &[(0, 0x10)]),
        (0x10, 0x1020, false, &[(0, 0xff0), (1, 0x20)]),
        (0x10, 0x1020, true, &[(0, 0x1010)]),
        (0x3f00, 0x4100, false, &[(3, 0x100), (0, 0x100)]),
        (0x3f00, 0x4100, true, &[(3, 0x100), (0, 0x100)]),
        (0x5000, 0x9000, false, &[(1, 0x1000), (2, 0x1000), (3, 0x1000), (0, 0x1000)]),
        (0x5000, 0x9000, true, &[(1, 0x3000), (0, 0x1000)]),
        (0x1000, 0x1001, true, &[(1, 1)]),
    ];
    for (tail, head, contiguous, expected) in table {
        let frames = FakeFrames::new(1 << 20);
        let buffer = buffer(&frames, contiguous);
        let chunks: Vec<_> = Chunks::new(&buffer, ring(tail, head), Gaps::new())
            .map(|chunk| match chunk {
                Chunk::Bytes(bytes) => (bytes[0], bytes.len()),
                Chunk::Gap(gap) => panic!("{gap}"),
            })
            .collect();
        assert_eq!(chunks, expected, "{tail:#x}..{head:#x}");
    }
}

#[test]
fn a_gap_comes_between_the_bytes_it_is_between() {
    let frames = FakeFrames::new(1 << 20);
    let buffer = buffer(&frames, true);
    let mut gaps = Gaps::new();
    gaps.push(0x10, Gap::Error);
    gaps.push(0x20, Gap::Stop);
    gaps.wrap(0, Overwritten::Exactly(5));
    let chunks: Vec<_> = Chunks::new(&buffer, ring(0, 0x20), gaps).collect();
    let half = [0u8; 0x10];
    let expected = [
        Chunk::Gap(Gap::Wrap(Overwritten::Exactly(5))),
        Chunk::Bytes(&half),
        Chunk::Gap(Gap::Error),
        Chunk::Bytes(&half),
        Chunk::Gap(Gap::Stop),
    ];
    assert_eq!(chunks, expected);
}

/// A sink that takes gaps, and bytes as long as there is room; notes both.
struct Narrow {
    room: usize,
    seen: Vec<Result<usize, Gap>>,
}

impl Sink for Narrow {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room);
        self.seen.push(Ok(taken));
        taken
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.seen.push(Err(gap));
        true
    }
}

#[test]
fn a_gap_that_a_sink_has_taken_does_not_come_again_with_the_bytes_after_it() {
    let frames = FakeFrames::new(1 << 20);
    let buffer = buffer(&frames, true);
    let (mut ring, mut gaps) = (ring(0, 0x20), Gaps::new());
    gaps.push(0, Gap::Error);
    let mut sink = Narrow { room: 0x18, seen: vec![] };
    assert!(!deliver(&buffer, &mut ring, &mut gaps, &mut sink));
    assert!(deliver(&buffer, &mut ring, &mut gaps, &mut sink));
    assert_eq!(sink.seen, [Err(Gap::Error), Ok(0x18), Ok(8)]);
    gaps.push(0x20, Gap::Stop);
    assert!((0..2).all(|_| deliver(&buffer, &mut ring, &mut gaps, &mut sink)));
    assert_eq!(sink.seen[3..], [Err(Gap::Stop)]);
}
