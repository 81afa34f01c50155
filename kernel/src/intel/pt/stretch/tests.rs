use super::*;
use crate::fake::{FakeFrames, capabilities};
use crate::intel::pt::buffer::{Layout, Mode};
use crate::intel::pt::topa::RegionSize;
use crate::loss::Overwritten;

/// Allocates four regions; each byte of the ring is its place modulo 251.
fn buffer(frames: &FakeFrames, contiguous: bool) -> Buffer<&FakeFrames> {
    let layout = Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 3, contiguous };
    let buffer = Buffer::allocate(frames, &capabilities(), layout, Mode::StopWhenFull { spare: 1 }).unwrap();
    for n in 0..4u32 {
        let bytes: Vec<u8> = (0..0x1000).map(|at| byte(u64::from(n) * 0x1000 + at)).collect();
        frames.write(buffer.topa().unwrap().entry(n).base(), &bytes);
    }
    buffer
}

/// Returns the byte at a place of the trace.
fn byte(place: u64) -> u8 {
    (place % 0x4000 % 251) as u8
}

fn bytes(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(byte).collect()
}

#[test]
fn a_stretch_is_all_of_a_wrapped_ring_in_two_slices_or_in_one_copy() {
    // (tail, head, contiguous, the lengths of two slices, or None where there are more)
    type Row = (u64, u64, bool, Option<(usize, usize)>);
    let table: [Row; 6] = [
        (0, 0x10, false, Some((0x10, 0))),
        (0x10, 0x1020, false, Some((0xff0, 0x20))),
        (0x10, 0x3020, false, None),
        (0x10, 0x3020, true, Some((0x3010, 0))),
        (0x3f00, 0x7f00, true, Some((0x100, 0x3f00))),
        (0x3f00, 0x7f00, false, None),
    ];
    for (tail, head, contiguous, lengths) in table {
        let frames = FakeFrames::new(1 << 20);
        let buffer = buffer(&frames, contiguous);
        let ring = Ring::at(0x1000, 4, tail, head);
        let stretches: Vec<_> = Stretches::new(&buffer, ring, Gaps::new()).collect();
        let [stretch] = &stretches[..] else { panic!("{tail:#x} {stretches:?}") };
        assert_eq!((stretch.len(), stretch.gap()), (head - tail, None));
        let slices = stretch.as_slices();
        assert_eq!(slices.map(|(one, other)| (one.len(), other.len())), lengths, "{tail:#x} {contiguous}");
        if let Some((one, other)) = slices {
            assert!([one, other].concat() == bytes(tail, head));
        }
        let mut memory = vec![0xee; 0x4001];
        assert!(stretch.copy_to(&mut memory) == Some(&bytes(tail, head)[..]), "{tail:#x} {contiguous}");
        assert_eq!(memory.last(), Some(&0xee), "nothing is written after the copy");
        assert_eq!(stretch.copy_to(&mut memory[..(head - tail) as usize - 1]), None);
    }
}

#[test]
fn a_stretch_ends_at_a_gap_and_says_what_is_missing_before_it() {
    let frames = FakeFrames::new(1 << 20);
    let buffer = buffer(&frames, true);
    let mut gaps = Gaps::new();
    let wrap = Gap::Wrap(Overwritten::Exactly(0x2000));
    gaps.wrap(0x2000, Overwritten::Exactly(0x2000));
    gaps.push(0x2000, Gap::Excluded);
    gaps.push(0x4800, Gap::Full);
    gaps.push(0x4800, Gap::Stop);
    gaps.push(0x6000, Gap::Abandoned);
    let stretches: Vec<_> = Stretches::new(&buffer, Ring::at(0x1000, 4, 0x2000, 0x6000), gaps).collect();
    let [first, second] = &stretches[..] else { panic!("{stretches:?}") };
    assert_eq!((first.gap(), first.begins_within_a_packet()), (Some(wrap), true));
    assert_eq!((second.gap(), second.begins_within_a_packet()), (Some(Gap::Stop), false));
    let mut memory = [0; 0x4000];
    assert!(first.copy_to(&mut memory) == Some(&bytes(0x2000, 0x4800)[..]));
    assert!(second.copy_to(&mut memory) == Some(&bytes(0x4800, 0x6000)[..]));
}

#[test]
fn the_newest_bytes_begin_within_a_packet_only_where_older_ones_are_left_out() {
    let frames = FakeFrames::new(1 << 20);
    let buffer = buffer(&frames, true);
    let (tail, head) = (0x10, 0x1020);
    for most in [0, 1, 0x100f, 0x1010, 0x1011, u64::MAX] {
        let stretches: Vec<_> =
            Stretches::new(&buffer, Ring::at(0x1000, 4, tail, head), Gaps::new()).newest(most).collect();
        let len = most.min(head - tail);
        assert_eq!(stretches.iter().map(Stretch::len).sum::<u64>(), len, "{most:#x}");
        assert_eq!(stretches.len(), usize::from(len > 0));
        for stretch in &stretches {
            assert_eq!(stretch.begins_within_a_packet(), len < head - tail, "{most:#x}");
            let mut memory = [0; 0x1010];
            assert!(stretch.copy_to(&mut memory) == Some(&bytes(head - len, head)[..]));
        }
    }
}
