//! Compares the arithmetic with a simulated processor that counts, for every small ring, drain place and number of
//! bytes.

use super::*;
use std::vec;
use std::vec::Vec;

/// One of this many rings is checked: not each one in Miri, which takes a thousand times as long.
const ONE_OF: usize = if cfg!(miri) { 101 } else { 1 };

/// A processor that writes one unit after the other into regions that tables list.
#[derive(Clone, Copy)]
struct Writer {
    regions: u32,
    region_units: u64,
    laps: u32,
    lap: u32,
    region: u32,
    offset: u64,
}

impl Writer {
    fn write(&mut self) {
        self.settle();
        self.offset += 1;
    }

    /// Leaves a region that is full.
    fn settle(&mut self) {
        if self.offset == self.region_units {
            self.offset = 0;
            self.region += 1;
        }
        if self.region == self.regions {
            self.region = 0;
            self.lap = (self.lap + 1).min(self.laps - 1);
        }
    }

    /// Returns the two possible places of the processor: it may leave a full region at once, or only for the next byte.
    fn places(mut self) -> [(u32, u32, u64); 2] {
        let lazy = (self.lap, self.region, self.offset);
        self.settle();
        [lazy, (self.lap, self.region, self.offset)]
    }
}

/// Returns whether the report `reported` is right if `lost` bytes were overwritten.
fn is_sound(reported: Option<Overwritten>, lost: u64) -> bool {
    match reported {
        None => lost == 0,
        Some(Overwritten::Exactly(bytes)) => bytes == lost && lost > 0,
        Some(Overwritten::AtLeast(bytes)) => bytes > 0 && bytes <= lost,
        Some(Overwritten::Perhaps) => true,
    }
}

fn is_true(written: Written, bytes: u64, capacity: u64) -> bool {
    match written {
        Written::Exactly(reported) => reported == bytes,
        Written::AtLeast(reported) => reported <= bytes && (bytes - reported) % capacity == 0,
    }
}

#[test]
fn laps_of_tables_tell_what_was_written_and_what_is_overwritten() {
    const UNITS: u64 = 4;
    const LAPS: u32 = 3;
    let mut checked = 0u64;
    for regions in 1..=4u32 {
        let capacity = UNITS * u64::from(regions);
        for (head, undrained) in
            (capacity..2 * capacity).flat_map(|head| (0..=capacity).map(move |u| (head, u))).step_by(ONE_OF)
        {
            let before = Ring::at(UNITS, regions, head - undrained, head);
            let (region, offset) = before.place(head);
            let mut writer = Writer { regions, region_units: UNITS, laps: LAPS, lap: 0, region, offset };
            for bytes in 0..=4 * capacity {
                let known = head % capacity + bytes < 2 * capacity;
                for (lap, region, offset) in writer.places() {
                    let what = format!("{before:?} {bytes}: {lap} {region} {offset}");
                    let written = before.counted(lap, LAPS, region, offset).expect(&what);
                    assert!(is_true(written, bytes, capacity), "{what}: {written:?}");
                    assert!(!known || written == Written::Exactly(bytes), "{what}: {written:?}");
                    let mut ring = before;
                    let reported = ring.written(written);
                    let lost = (undrained + bytes).saturating_sub(capacity);
                    assert!(is_sound(reported, lost), "{what}: {reported:?} of {lost}");
                    assert_ne!(reported, Some(Overwritten::Perhaps), "{what}");
                    assert_eq!(ring.undrained(), (undrained + bytes - lost).min(capacity), "{what}");
                    assert_eq!(ring.head() % capacity, (head + bytes) % capacity, "{what}");
                    checked += 1;
                }
                writer.write();
            }
            // The processor cannot be at a place before the one where it continued.
            if head % capacity > 0 {
                let (region, offset) = before.place(head - 1);
                assert_eq!(before.counted(0, LAPS, region, offset), None);
            }
        }
    }
    assert!(checked > 50_000 / ONE_OF as u64, "{checked}");
}

#[test]
fn a_stop_leaves_no_doubt() {
    const UNITS: u64 = 4;
    for regions in 1..=4u32 {
        let capacity = UNITS * u64::from(regions);
        for (head, undrained) in
            (capacity..2 * capacity).flat_map(|head| (0..=capacity).map(move |u| (head, u))).step_by(ONE_OF)
        {
            for spare in 0..4 {
                let ring = Ring::at(UNITS, regions, head - undrained, head);
                let Some(window) = ring.window(spare) else {
                    assert!(head / UNITS >= (head - undrained) / UNITS + u64::from(regions), "{ring:?}");
                    continue;
                };
                let room =
                    (u64::from(window.stop) * UNITS + UNITS + capacity - head % capacity - 1) % capacity + 1;
                let int =
                    (u64::from(window.int) * UNITS + UNITS + capacity - head % capacity - 1) % capacity + 1;
                assert!(room + undrained <= capacity && int <= room, "{ring:?} {window:?}");
                for bytes in 0..=room {
                    let (region, offset) = match bytes == room {
                        true => (window.stop, UNITS),
                        false => ring.place(head + bytes),
                    };
                    let distance = ring.distance(region, offset);
                    // STOP shows that an empty ring was filled completely.
                    assert!(
                        distance == bytes || distance == 0 && bytes == capacity,
                        "{ring:?} {window:?} {bytes}"
                    );
                }
            }
        }
    }
}

/// A ring of bytes: for each its number in the stream of written bytes, and true if it looks like a guard byte.
struct RingMemory {
    bytes: Vec<(Option<u64>, bool)>,
}

const GUARD: u64 = crate::intel::pt::buffer::GUARD_BYTES;
/// The maximum length of a packet in bytes: its first byte never looks like a guard byte.
const LONGEST: u64 = GUARD / 2;

#[test]
fn a_guard_is_not_fooled_by_what_is_traced() {
    let mut checked = 0u64;
    for capacity in [32, 40, 52] {
        for head in [capacity, capacity + 1, capacity + 17, 2 * capacity - 1] {
            for undrained in (0..=capacity).step_by(ONE_OF) {
                // The longest row that can look like a guard: a packet with the most such bytes, and then another
                // packet.
                for phase in (0..LONGEST).step_by(ONE_OF) {
                    checked += guarded_run(capacity, head, undrained, |n| (n + phase) % LONGEST != 0);
                }
                checked += guarded_run(capacity, head, undrained, |_| false);
            }
        }
    }
    assert!(checked > 1_000_000 / (ONE_OF * ONE_OF) as u64, "{checked}");
}

/// Writes up to three laps; `looks_like_it` selects the bytes that look like guard bytes.
fn guarded_run(capacity: u64, head: u64, undrained: u64, looks_like_it: impl Fn(u64) -> bool) -> u64 {
    let before = Ring::at(capacity, 1, head - undrained, head);
    let free = capacity - undrained;
    let mut memory = RingMemory { bytes: vec![(None, true); capacity as usize] };
    for at in before.tail()..before.head() {
        memory.bytes[(at % capacity) as usize] = (Some(at), false);
    }
    let guard = |end: u64| (end + capacity - GUARD..end + capacity).map(move |at| (at % capacity) as usize);
    let has_guard = free >= GUARD;
    if has_guard {
        guard(before.tail()).for_each(|at| memory.bytes[at] = (None, true));
    }
    for bytes in 0..3 * capacity {
        let intact: Vec<bool> =
            if has_guard { guard(before.tail()).map(|at| memory.bytes[at].1).collect() } else { Vec::new() };
        let written = before.guarded(0, (head + bytes) % capacity, &intact);
        let what = || format!("{before:?} {bytes} {intact:?}: {written:?}");
        assert!(is_true(written, bytes, capacity), "{}", what());
        if bytes + GUARD <= free {
            assert_eq!(written, Written::Exactly(bytes), "{}", what());
        }
        let mut ring = before;
        let reported = ring.written(written);
        assert!(is_sound(reported, (undrained + bytes).saturating_sub(capacity)), "{}: {reported:?}", what());
        // The remaining bytes are the newest ones written, without a hole.
        let left: Vec<_> =
            (ring.tail()..ring.head()).map(|at| memory.bytes[(at % capacity) as usize].0).collect();
        let newest: Vec<_> =
            (0..left.len() as u64).map(|n| Some(head + bytes - left.len() as u64 + n)).collect();
        assert_eq!(left, newest, "{}", what());
        memory.bytes[((head + bytes) % capacity) as usize] = (Some(head + bytes), looks_like_it(bytes));
    }
    3 * capacity
}
