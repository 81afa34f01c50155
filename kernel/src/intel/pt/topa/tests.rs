use super::entry::{Entry, EntryFlags, checked};
use super::*;
use crate::fake::FakeFrames;
use crate::lifecycle::Halted;
use x86_64::PhysAddr;

const LIMIT: u64 = 1 << 39;

#[test]
fn an_entry_has_the_manuals_bits() {
    let size = |bytes| RegionSize::from_bytes(bytes).unwrap();
    // (entry, its eight bytes): END 0, INT 2, STOP 4, size 9:6, base from 12 on.
    let table = [
        (Entry::region(0x1234_5000, RegionSize::K4, LIMIT).unwrap(), 0x1234_5000),
        (Entry::region(0x0020_0000, RegionSize::M2, LIMIT).unwrap(), 0x0020_0240),
        (Entry::region(0x0800_0000, RegionSize::M128, LIMIT).unwrap(), 0x0800_03c0),
        (Entry::region(0x7f_ffff_e000, size(0x2000), LIMIT).unwrap(), 0x7f_ffff_e040),
        (Entry::region(0x1000, RegionSize::K4, LIMIT).unwrap().with_flags(EntryFlags::INT), 0x1004),
        (Entry::region(0x1000, RegionSize::K4, LIMIT).unwrap().with_flags(EntryFlags::STOP), 0x1010),
        (Entry::region(0x1000, RegionSize::K4, LIMIT).unwrap().with_flags(EntryFlags::all()), 0x1014),
        (Entry::end(0x7_7000, LIMIT).unwrap(), 0x7_7001),
        (Entry::end(0x7_7000, LIMIT).unwrap().with_flags(EntryFlags::all()), 0x7_7001),
    ];
    for (entry, bits) in table {
        assert_eq!(entry.bits(), bits);
        assert_eq!(entry.base(), bits & !0xfff);
    }
}

#[test]
fn refuses_what_is_not_aligned_or_too_high() {
    let misaligned = |address, align| Err(TopaError::Misaligned { address, align });
    let above = |address| Err(TopaError::AboveLimit { address, limit: LIMIT });
    // (base, size, result)
    let table = [
        (0x1800, RegionSize::K4, misaligned(0x1800, 0x1000)),
        (0x1000, RegionSize::K64, misaligned(0x1000, 0x1_0000)),
        (0x0400_0000, RegionSize::M128, misaligned(0x0400_0000, 0x0800_0000)),
        (LIMIT, RegionSize::K4, above(LIMIT)),
        (LIMIT - 0x1000, RegionSize::K4, Ok(())),
        (u64::MAX << 12, RegionSize::K4, above(u64::MAX << 12)),
    ];
    for (base, size, result) in table {
        assert_eq!(Entry::region(base, size, LIMIT).map(|_| ()), result);
    }
    assert_eq!(Entry::end(0x1080, LIMIT), Err(TopaError::Misaligned { address: 0x1080, align: 0x1000 }));
    assert_eq!(Entry::end(LIMIT, LIMIT), Err(TopaError::AboveLimit { address: LIMIT, limit: LIMIT }));
    assert_eq!(checked(0x1000, 0x1001, 0x1000, 0x2000), above_limit(0x1000, 0x2000));
}

fn above_limit(address: u64, limit: u64) -> Result<u64, TopaError> {
    Err(TopaError::AboveLimit { address, limit })
}

#[test]
fn sizes_are_powers_of_two_from_4_kib_to_128_mib() {
    for n in 0..16 {
        assert_eq!(RegionSize::from_bytes(0x1000 << n).unwrap().bytes(), 0x1000 << n);
    }
    for bytes in [0, 1, 0x800, 0x1001, 0x3000, 0x1000_0000, u64::MAX] {
        assert_eq!(RegionSize::from_bytes(bytes), Err(TopaError::RegionSize { bytes }));
    }
    assert_eq!(RegionSize::K64.to_string(), "64 KiB");
    assert_eq!(RegionSize::M2.to_string(), "2 MiB");
}

/// The regions of a table that is a page; in Miri, which takes a thousand times as long, those of a shorter one.
const WHOLE_TABLE: u32 = if cfg!(miri) { 9 } else { 511 };

#[test]
fn tables_are_chained_and_the_last_leads_to_the_first() {
    for (regions, per_table, tables) in [
        (1, WHOLE_TABLE, 1),
        (WHOLE_TABLE, WHOLE_TABLE, 1),
        (WHOLE_TABLE + 1, WHOLE_TABLE, 2),
        (7, 3, 3),
        (6, 3, 2),
        (3, 1, 3),
    ] {
        let frames = FakeFrames::new(4 << 20);
        let topa = Topa::new(&frames, plan(regions, per_table), LIMIT).unwrap();
        assert_eq!((topa.regions(), topa.tables()), (regions, tables));
        // Walk the tables as the processor does: from the first table on, following END.
        let (mut table, mut index) = topa.place(0);
        for lap in 0..2 {
            for n in 0..regions {
                if entry(&frames, table, index).flags().contains(EntryFlags::END) {
                    table = PhysAddr::new(entry(&frames, table, index).base());
                    index = 0;
                }
                assert_eq!((table, index), topa.place(n), "lap {lap} region {n} of {regions}");
                assert_eq!(entry(&frames, table, index), topa.entry(n));
                assert_eq!(topa.listed_at(table.as_u64(), index), listed(0, n));
                index += 1;
            }
        }
        assert_eq!(topa.listed_at(table.as_u64(), index), listed(0, 0), "END stands for what it leads to");
        assert_eq!(topa.listed_at(table.as_u64(), index + 1), None);
        assert_eq!(topa.listed_at(table.as_u64(), u32::MAX), None);
        assert_eq!(topa.listed_at(0xdead_0000, 0), None);
    }
}

#[test]
fn tables_of_many_laps_lead_through_all_and_stay_in_the_last() {
    for (regions, per_table, laps) in [
        (1, WHOLE_TABLE, 2),
        (4, WHOLE_TABLE, 3),
        (7, 3, 3),
        (6, 3, 2),
        (3, 1, 3),
        (WHOLE_TABLE, WHOLE_TABLE, 3),
        (WHOLE_TABLE + 1, WHOLE_TABLE, 2),
    ] {
        let frames = FakeFrames::new(8 << 20);
        let mut topa = Topa::new(&frames, TopaPlan { laps, ..plan(regions, per_table) }, LIMIT).unwrap();
        topa.mark_every(2, &Halted::for_tests());
        assert_eq!((topa.laps(), topa.tables()), (laps, laps * regions.div_ceil(per_table)));
        assert_eq!(frames.live() as u32, regions + topa.tables());
        let (mut table, mut index) = topa.place(0);
        for lap in 0..laps + 2 {
            let lap = lap.min(laps - 1);
            for n in 0..regions {
                if entry(&frames, table, index).flags().contains(EntryFlags::END) {
                    assert_eq!(topa.listed_at(table.as_u64(), index), listed(lap, n), "END");
                    table = PhysAddr::new(entry(&frames, table, index).base());
                    index = 0;
                }
                assert_eq!(
                    entry(&frames, table, index),
                    topa.entry(n),
                    "{regions} {per_table} lap {lap}: {n}"
                );
                assert_eq!(topa.listed_at(table.as_u64(), index), listed(lap, n));
                index += 1;
            }
        }
        for n in 0..regions {
            let (table, index) = topa.place(n);
            assert_eq!(
                topa.listed_at(table.as_u64(), index),
                listed(0, n),
                "a trace begins in the first lap"
            );
        }
    }
}

fn listed(lap: u32, region: u32) -> Option<Listed> {
    Some(Listed { lap, region })
}

#[test]
fn a_chain_by_the_driver_has_a_table_for_each_region_that_leads_to_itself() {
    let frames = FakeFrames::new(1 << 20);
    // Laps have no meaning there.
    let plan = TopaPlan { chain: Chain::Driver, laps: 3, ..plan(3, 511) };
    let topa = Topa::new(&frames, plan, LIMIT).unwrap();
    assert_eq!(topa.tables(), 3);
    for n in 0..3 {
        let (table, index) = topa.place(n);
        assert_eq!(index, 0);
        let end = entry(&frames, table, 1);
        assert_eq!((end.flags(), end.base()), (EntryFlags::END, table.as_u64()));
        assert_eq!(topa.listed_at(table.as_u64(), 0), listed(0, n));
        assert_eq!(topa.listed_at(table.as_u64(), 1), listed(0, n));
    }
}

#[test]
fn a_contiguous_ring_is_one_piece_of_memory() {
    let frames = FakeFrames::new(1 << 20);
    let topa = Topa::new(&frames, TopaPlan { contiguous: true, ..plan(8, 3) }, LIMIT).unwrap();
    assert_eq!(frames.live(), 1 + 3);
    for n in 1..8 {
        assert_eq!(topa.entry(n).base(), topa.entry(0).base() + u64::from(n) * 0x1000);
        assert_eq!(
            topa.pointer(n).as_ptr() as usize,
            topa.pointer(0).as_ptr() as usize + n as usize * 0x1000
        );
    }
}

#[test]
fn marks_are_on_their_regions_and_on_no_other() {
    let frames = FakeFrames::new(1 << 20);
    let mut topa = Topa::new(&frames, plan(5, 2), LIMIT).unwrap();
    let both = EntryFlags::INT | EntryFlags::STOP;
    for (int, stop) in
        [(Some(3), Some(4)), (Some(4), Some(0)), (Some(2), Some(2)), (None, None), (None, Some(1))]
    {
        topa.mark(Marks { int, stop }, &Halted::for_tests());
        for n in 0..5 {
            let mut flags = EntryFlags::empty();
            flags.set(EntryFlags::INT, int == Some(n));
            flags.set(EntryFlags::STOP, stop == Some(n));
            assert_eq!(topa.entry(n).flags() & both, flags, "region {n}");
        }
    }
    topa.mark(Marks::default(), &Halted::for_tests());
    topa.mark_every(2, &Halted::for_tests());
    let with_int: Vec<u32> = (0..5).filter(|&n| topa.entry(n).flags().contains(EntryFlags::INT)).collect();
    assert_eq!(with_int, [0, 2, 4]);
}

#[test]
fn what_was_taken_is_given_back_whichever_allocation_fails() {
    for (contiguous, laps) in [(false, 1), (true, 1), (false, 3)] {
        let plan = TopaPlan { contiguous, laps, ..plan(7, 3) };
        let frames = FakeFrames::new(1 << 20);
        drop(Topa::new(&frames, plan, LIMIT).unwrap());
        assert_eq!(frames.live(), 0);
        let allocations = frames.allocations.get();
        assert_eq!(allocations, if contiguous { 1 + 3 } else { 7 + 3 * laps as usize });
        for fail_at in 0..allocations {
            let frames = FakeFrames::new(1 << 20);
            frames.fail_at.set(Some(fail_at));
            assert!(
                matches!(Topa::new(&frames, plan, LIMIT), Err(TopaError::NoMemory(_))),
                "allocation {fail_at}"
            );
            assert_eq!(frames.live(), 0);
        }
    }
}

#[test]
fn refuses_frames_that_are_not_as_asked_for() {
    let frames = FakeFrames::new(1 << 20);
    frames.skew.set(0x800);
    let error = Topa::new(&frames, plan(2, 511), LIMIT).unwrap_err();
    assert_eq!(error, TopaError::Misaligned { address: 0x10_0800, align: 0x1000 });
    assert_eq!(frames.live(), 0);
    frames.skew.set(0);
    let error = Topa::new(&frames, plan(2, 511), 0x10_2000).unwrap_err();
    assert!(matches!(error, TopaError::AboveLimit { limit: 0x10_2000, .. }), "{error:?}");
    assert_eq!(frames.live(), 0);
}

#[test]
fn refuses_plans_that_are_none() {
    let frames = FakeFrames::new(1 << 20);
    let error = |regions, per_table| Topa::new(&frames, plan(regions, per_table), LIMIT).unwrap_err();
    assert_eq!(error(0, 511), TopaError::Regions { regions: 0 });
    assert_eq!(error(1, 0), TopaError::RegionsPerTable { regions: 0 });
    assert_eq!(error(1, 512), TopaError::RegionsPerTable { regions: 512 });
}

fn plan(regions: u32, regions_per_table: u32) -> TopaPlan {
    let (size, chain) = (RegionSize::K4, Chain::Table);
    TopaPlan { sizes: Sizes::Equal { size, regions }, regions_per_table, contiguous: false, chain, laps: 1 }
}

fn entry(frames: &FakeFrames, table: PhysAddr, index: u32) -> Entry {
    use crate::memory::Frames;
    // SAFETY: the tests name only entries of tables.
    let at = unsafe { frames.pointer(table).cast::<Entry>().add(index as usize) };
    // SAFETY: as above; any eight bytes are an entry.
    unsafe { at.read() }
}

#[test]
fn int_is_on_each_region_that_is_counted_off_from_the_last() {
    for (regions, in_table) in [(1, 3), (2, 3), (5, 2), (8, 3)] {
        for every in 0..=regions + 1 {
            let frames = FakeFrames::new(1 << 20);
            let mut topa = Topa::new(&frames, plan(regions, in_table), LIMIT).unwrap();
            topa.mark_every(every, &Halted::for_tests());
            for n in 0..regions {
                // 0 means 1.
                let marked = every < 2 || (regions - 1 - n) % every == 0;
                let flags = topa.entry(n).flags();
                assert_eq!(flags.contains(EntryFlags::INT), marked, "{n} of {regions}, every {every}");
                assert!(!flags.contains(EntryFlags::STOP));
            }
        }
    }
}
