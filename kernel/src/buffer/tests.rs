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
        let capabilities = Capabilities { ecx, ..capabilities() };
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
    let tiger_lake = Capabilities { errata: Errata::SINGLE_RANGE_ABOVE_4K, ..capabilities() };
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
        for region in 0..buffer.regions() {
            for offset in [0, 1, 0xfff, 0x1000] {
                let (base, pointers) = buffer.registers(region, offset);
                assert_eq!(buffer.position(base, pointers), Some((region, u64::from(offset))), "{layout:?}");
            }
            let (base, beyond) = buffer.registers(region, buffer.region_bytes() as u32 + 1);
            assert_eq!(buffer.position(base, beyond), None);
        }
        let (_, pointers) = buffer.registers(0, 0);
        assert_eq!(buffer.position(OutputBase(0x6000), pointers), None);
    }
}

#[test]
fn a_ring_to_overwrite_is_zero_at_the_start_and_only_that() {
    for (mode, zero) in [(Mode::Overwrite, true), (Mode::StopWhenFull { spare: 1 }, false)] {
        for contiguous in [false, true] {
            let frames = FakeFrames::new(1 << 20);
            let layout = Layout::Topa { size: RegionSize::K4, regions: 5, regions_per_table: 2, contiguous };
            let mut buffer = Buffer::allocate(&frames, &capabilities(), layout, mode).unwrap();
            buffer.reset(&TraceOff::for_tests());
            assert_eq!(buffer.is_zero_from(0, 0), zero);
            if zero {
                frames.write(buffer.topa().unwrap().entry(3).base() + 7, &[1]);
                for (region, offset, still) in [(0, 0, false), (3, 7, false), (3, 8, true), (4, 0, true)] {
                    assert_eq!(buffer.is_zero_from(region, offset), still, "{region} {offset}");
                }
            }
        }
    }
}

#[test]
fn padding_fills_the_rest_of_its_region() {
    let frames = FakeFrames::new(1 << 20);
    let layout = Layout::topa(RegionSize::K4, 2);
    let mut buffer =
        Buffer::allocate(&frames, &capabilities(), layout, Mode::StopWhenFull { spare: 1 }).unwrap();
    assert_eq!(buffer.pad(0, 0xff0, &TraceOff::for_tests()), 0x10);
    let (start, len) = buffer.memory(0, 0);
    // SAFETY: one region, and nobody writes to it.
    let bytes = unsafe { core::slice::from_raw_parts(start.as_ptr(), len as usize) };
    assert_eq!(bytes.iter().rposition(|&byte| byte != 0), Some(0xfef));
    let (start, _) = buffer.memory(1, 0);
    // SAFETY: as above.
    assert_ne!(unsafe { start.read() }, 0);
}
