use super::*;
use crate::fake::{FakeFrames, capabilities};

#[test]
fn refuses_what_the_processor_lacks_by_its_name() {
    let range = Layout::SingleRange { bytes: 0x1000 };
    let topa = |regions| Layout::topa(RegionSize::K4, regions);
    let full = Mode::StopWhenFull { spare: 1 };
    let circular = Mode::Circular { interrupt_every: 1 };
    let missing = |feature| Err(BufferError::Missing(feature));
    // (CPUID.14H.0:ECX, layout, mode, result)
    let table = [
        (0b001, range, Mode::Overwrite, missing(Feature::SingleRange)),
        (0b100, range, Mode::Overwrite, Ok(())),
        (0b100, topa(2), full, missing(Feature::Topa)),
        (0b011, topa(2), full, Ok(())),
        (0b001, topa(2), full, Ok(())),
        (0b001, topa(2), circular, missing(Feature::TopaMultipleEntries)),
        (0b001, topa(2), Mode::Overwrite, missing(Feature::TopaMultipleEntries)),
        (0b001, topa(1), circular, Ok(())),
        (0b001, topa(1), Mode::Overwrite, Ok(())),
        (0b001, topa(1), full, Ok(())),
    ];
    for (ecx, layout, mode, result) in table {
        let capabilities = PtCapabilities { ecx, ..capabilities() };
        let frames = FakeFrames::new(1 << 20);
        let made = Buffer::allocate(&frames, &capabilities, layout, mode);
        assert_eq!(made.map(|_| ()), result, "{ecx:#b} {layout:?} {mode:?}");
    }
}

#[test]
fn refuses_modes_that_leave_no_room() {
    let spare = |spare, regions| Err(BufferError::Spare { spare, regions });
    let every = |interrupt_every, regions| Err(BufferError::InterruptEvery { interrupt_every, regions });
    let table = [
        (2, Mode::StopWhenFull { spare: 0 }, spare(0, 2)),
        (2, Mode::StopWhenFull { spare: 1 }, Ok(())),
        (2, Mode::StopWhenFull { spare: 2 }, spare(2, 2)),
        (1, Mode::StopWhenFull { spare: 1 }, spare(1, 1)),
        (2, Mode::Circular { interrupt_every: 0 }, every(0, 2)),
        (2, Mode::Circular { interrupt_every: 1 }, Ok(())),
        (2, Mode::Circular { interrupt_every: 2 }, every(2, 2)),
        (1, Mode::Circular { interrupt_every: 1 }, every(1, 1)),
        (1, Mode::Overwrite, Ok(())),
    ];
    for (regions, mode, result) in table {
        let frames = FakeFrames::new(1 << 20);
        let made = Buffer::allocate(&frames, &capabilities(), Layout::topa(RegionSize::K4, regions), mode);
        assert_eq!(made.map(|_| ()), result, "{regions} {mode:?}");
    }
}

#[test]
fn a_single_range_is_a_power_of_two_and_only_overwrites() {
    let size = |bytes| Err(BufferError::SingleRangeSize { bytes });
    let full = Mode::StopWhenFull { spare: 1 };
    let table = [
        (0x1000, Mode::Overwrite, Ok(())),
        (0x2_0000, Mode::Overwrite, Ok(())),
        (0x3000, Mode::Overwrite, size(0x3000)),
        (0x800, Mode::Overwrite, size(0x800)),
        (1 << 33, Mode::Overwrite, size(1 << 33)),
        (0x1000, full, Err(BufferError::SingleRangeOverwrites { mode: full })),
    ];
    for (bytes, mode, result) in table {
        let frames = FakeFrames::new(1 << 20);
        let made = Buffer::allocate(&frames, &capabilities(), Layout::SingleRange { bytes }, mode);
        assert_eq!(made.map(|_| ()), result, "{bytes:#x}");
    }
}

#[test]
fn erratum_tgl052_keeps_single_ranges_to_4_kib() {
    let tiger_lake = PtCapabilities { errata: Errata::SINGLE_RANGE_ABOVE_4K, ..capabilities() };
    let frames = FakeFrames::new(1 << 20);
    let make = |bytes| {
        Buffer::allocate(&frames, &tiger_lake, Layout::SingleRange { bytes }, Mode::Overwrite).map(|_| ())
    };
    assert_eq!(make(0x1000), Ok(()));
    assert_eq!(make(0x2000), Err(BufferError::SingleRangeErratum { bytes: 0x2000 }));
}

#[test]
fn registers_and_positions_are_each_others_inverse() {
    let layouts = [
        (Layout::SingleRange { bytes: 0x4000 }, Mode::Overwrite),
        (
            Layout::Topa { size: RegionSize::K4, regions: 7, regions_per_table: 3, contiguous: false },
            Mode::StopWhenFull { spare: 1 },
        ),
        (Layout::contiguous_topa(RegionSize::K64, 4), Mode::Circular { interrupt_every: 2 }),
    ];
    for (layout, mode) in layouts {
        let frames = FakeFrames::new(1 << 20);
        let buffer = Buffer::allocate(&frames, &capabilities(), layout, mode).unwrap();
        for region in 0..buffer.shape().regions() {
            for offset in [0, 1, 0xfff, 0x1000] {
                let (base, pointers) = buffer.registers(region, offset);
                let position = Position { lap: 0, region, offset: u64::from(offset) };
                assert_eq!(buffer.position(base, pointers), Some(position), "{layout:?}");
            }
            let (base, beyond) = buffer.registers(region, buffer.shape().size(region) as u32 + 1);
            assert_eq!(buffer.position(base, beyond), None);
        }
        let (_, pointers) = buffer.registers(0, 0);
        assert_eq!(buffer.position(OutputBase(0x6000), pointers), None);
    }
}

#[test]
fn a_ring_that_is_overwritten_is_listed_in_laps_where_tables_can_do_it() {
    let (full, every) = (Mode::StopWhenFull { spare: 1 }, Mode::Circular { interrupt_every: 1 });
    let (topa, one) = (Layout::topa(RegionSize::K4, 4), Layout::topa(RegionSize::K4, 1));
    let range = Layout::SingleRange { bytes: 0x1000 };
    // (CPUID.14H.0:ECX, layout, mode, laps)
    let table = [
        (0b111, topa, full, 1),
        (0b111, topa, every, 3),
        (0b111, topa, Mode::Overwrite, 3),
        (0b111, one, Mode::Overwrite, 3),
        (0b111, range, Mode::Overwrite, 1),
        (0b001, one, every, 1),
        (0b001, one, Mode::Overwrite, 1),
    ];
    for (ecx, layout, mode, laps) in table {
        let frames = FakeFrames::new(1 << 20);
        let capabilities = PtCapabilities { ecx, ..capabilities() };
        let buffer = Buffer::allocate(&frames, &capabilities, layout, mode).unwrap();
        assert_eq!(buffer.laps(), laps, "{ecx:#b} {layout:?} {mode:?}");
    }
}

/// The number of ends of guards that are tried: in Miri, which takes a thousand times as long, not all.
const ENDS: usize = if cfg!(miri) { 3 } else { 6 };
/// The distance between the first two bytes of the packets that are tried. Those of MNT, the longest one, are C302H.
const FIRST_BYTES_APART: usize = if cfg!(miri) { 0xc302 / 218 } else { 1 };

#[test]
fn a_guard_is_in_the_bytes_before_its_end_and_shows_each_that_changed() {
    let off = Halted::for_tests();
    let frames = FakeFrames::new(1 << 20);
    let layout = Layout::SingleRange { bytes: 0x1000 };
    let mut buffer = Buffer::allocate(&frames, &capabilities(), layout, Mode::Overwrite).unwrap();
    for end in [0x1000, 5, 0xffa, 0x1008, 0x30, 0].into_iter().take(ENDS) {
        let region = buffer.memory(0, 0);
        // SAFETY: the buffer's one region, and nothing else uses it.
        unsafe { region.fill(1, 0x1000) };
        assert!(!buffer.look_at_guard(end, &off).contains(&true));
        buffer.set_guard(end, &off);
        assert_eq!(buffer.look_at_guard(end, &off), [true; GUARD_BYTES as usize]);
        for n in 0..GUARD_BYTES {
            // SAFETY: as above.
            unsafe { region.from(((end + 0x1000 - GUARD_BYTES + n) % 0x1000) as usize).write(&[2]) };
            assert_eq!(
                buffer.look_at_guard(end, &off).iter().filter(|intact| !**intact).count(),
                n as usize + 1
            );
            assert!(!buffer.look_at_guard(end, &off)[n as usize]);
        }
        // SAFETY: the buffer's one region, and nothing writes to it.
        let bytes = unsafe { region.slice(0x1000) };
        assert_eq!(
            bytes.iter().filter(|byte| **byte == 1).count(),
            0x1000 - GUARD_BYTES as usize,
            "and nowhere else"
        );
    }
}

#[test]
fn no_trace_has_a_guard_in_it() {
    use pugmark_decoder_core::packet::Packet;
    let guard = [GUARD; GUARD_BYTES as usize];
    assert!(Packet::parse(&guard).is_err(), "no packet begins like this");
    let mut longest = 0;
    for begin in (0..=u16::MAX).step_by(FIRST_BYTES_APART) {
        let [first, second] = begin.to_le_bytes();
        // MNT has a fixed third byte.
        for third in [GUARD, 0x88] {
            let mut bytes = [GUARD; 40];
            bytes[..3].copy_from_slice(&[first, second, third]);
            if let Ok(Some((_, len))) = Packet::parse(&bytes) {
                longest = longest.max(len);
            }
        }
    }
    assert!((11..=guard.len() / 2).contains(&longest), "a packet of {longest} bytes hides half a guard");
}

#[test]
fn padding_fills_the_rest_of_its_region() {
    let frames = FakeFrames::new(1 << 20);
    let layout = Layout::topa(RegionSize::K4, 2);
    let mut buffer =
        Buffer::allocate(&frames, &capabilities(), layout, Mode::StopWhenFull { spare: 1 }).unwrap();
    assert_eq!(buffer.pad(0, 0xff0, &Halted::for_tests()), 0x10);
    // SAFETY: a region of the buffer, and nothing writes to it.
    let bytes = unsafe { buffer.memory(0, 0).slice(0x1000) };
    assert_eq!(bytes.iter().rposition(|&byte| byte != 0), Some(0xfef));
    // SAFETY: as above.
    assert_ne!(unsafe { buffer.memory(1, 0).slice(1) }, [0]);
}

#[test]
fn a_buffer_is_traced_into_where_the_processor_has_what_it_was_made_with() {
    let range = Layout::SingleRange { bytes: 0x1000 };
    let topa = Layout::topa(RegionSize::K4, 2);
    let full = Mode::StopWhenFull { spare: 1 };
    let circular = Mode::Circular { interrupt_every: 1 };
    // (layout, mode, features at the allocation, features needed): CPUID.14H.0:ECX.
    let table = [
        (range, Mode::Overwrite, 0b100, 0b100),
        (topa, full, 0b001, 0b001),
        (topa, full, 0b011, 0b011),
        (topa, circular, 0b011, 0b011),
    ];
    for (layout, mode, made_with, needed) in table {
        let frames = FakeFrames::new(1 << 20);
        let made_with = PtCapabilities { ecx: made_with, ..capabilities() };
        let buffer = Buffer::allocate(&frames, &made_with, layout, mode).unwrap();
        for ecx in 0..8 {
            let found = buffer.check(&PtCapabilities { ecx, ..capabilities() });
            assert_eq!(found.is_ok(), ecx & needed == needed, "{layout:?} {mode:?} {ecx:#b}");
            let first = match (needed & !ecx).trailing_zeros() {
                0 => Feature::Topa,
                1 => Feature::TopaMultipleEntries,
                _ => Feature::SingleRange,
            };
            assert!(found.is_ok() || found == Err(BufferError::Missing(first)), "{found:?}");
        }
    }
}
