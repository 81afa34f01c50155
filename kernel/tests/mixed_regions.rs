//! Buffers whose regions are as large as the blocks of the kernel's memory: largest first, then smaller ones.

mod common;

use common::{Collector, Machine, Ram, assert_same, tips, user_code};
use pugmark_kernel::intel::pt::{Buffer, BufferError, Layout, Mode, RegionSize, TopaError};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::memory::Request;
use pugmark_kernel::pmi::Pmi;
use pugmark_model::intel::IntelSettings;

const K: u64 = 1 << 10;

/// Returns a machine whose memory has these blocks of more than 4 KiB, and as many of 4 KiB as are requested.
fn machine(profile: &str, pieces: &[u64]) -> Machine {
    let machine = Machine::new(profile, IntelSettings::default());
    *machine.ram.pieces.borrow_mut() = Some(pieces.to_vec());
    machine
}

fn allocate(machine: &Machine, layout: Layout, mode: Mode) -> Result<Buffer<&Ram>, BufferError> {
    Buffer::allocate(&*machine.ram, &machine.capabilities(), layout, mode)
}

#[test]
fn regions_are_as_large_as_there_are_blocks_and_then_smaller() {
    let size = |bytes| RegionSize::from_bytes(bytes).unwrap();
    let within = |bytes, largest, smallest| Layout::MixedTopa {
        bytes,
        largest: size(largest),
        smallest: size(smallest),
    };
    // (blocks, layout, sizes)
    let table = [
        (&[64 * K, 16 * K, 16 * K][..], Layout::mixed_topa(108 * K), &[64, 16, 16, 4, 4, 4][..]),
        // No region is larger than the rest.
        (&[256 * K, 64 * K, 32 * K], Layout::mixed_topa(100 * K), &[64, 32, 4]),
        (&[256 * K, 64 * K], within(128 * K, 64 * K, 4 * K), &[&[64][..], &[4; 16]].concat()),
        (&[32 * K, 32 * K, 8 * K], within(72 * K, 128 << 20, 8 * K), &[32, 32, 8]),
        (&[], Layout::mixed_topa(12 * K), &[4, 4, 4]),
    ];
    for (pieces, layout, sizes) in table {
        let machine = machine("skylake", pieces);
        let buffer = allocate(&machine, layout, Mode::Overwrite).unwrap();
        let kib: Vec<u64> = buffer.region_sizes().map(|bytes| bytes / K).collect();
        assert_eq!((&kib[..], buffer.capacity()), (sizes, kib.iter().sum::<u64>() * K), "{layout:?}");
        drop(buffer);
        assert_eq!(machine.ram.live(), 0, "{layout:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_kept() {
    let machine = machine("skylake", &[32 * K]);
    let size = |bytes| RegionSize::from_bytes(bytes).unwrap();
    let mode = Mode::Overwrite;
    for (bytes, largest, smallest) in [(0, 64, 4), (6 * K, 64, 4), (12 * K, 64, 8), (64 * K, 4, 64)] {
        let layout = Layout::MixedTopa { bytes, largest: size(largest * K), smallest: size(smallest * K) };
        let refused = allocate(&machine, layout, mode).unwrap_err();
        assert_eq!(refused, BufferError::Topa(TopaError::MixedSize { bytes }));
    }
    // There is one block of 32 KiB, and no smaller one may be taken.
    let layout = Layout::MixedTopa { bytes: 64 * K, largest: size(32 * K), smallest: size(32 * K) };
    let refused = allocate(&machine, layout, mode).unwrap_err();
    assert!(
        matches!(refused, BufferError::Topa(TopaError::NoMemory(Request { size: 0x8000, .. }))),
        "{refused}"
    );
    // The mode is checked against the resulting number of regions.
    *machine.ram.pieces.borrow_mut() = Some(vec![16 * K]);
    let refused =
        allocate(&machine, Layout::mixed_topa(24 * K), Mode::StopWhenFull { spare: 3 }).unwrap_err();
    assert_eq!(refused, BufferError::Spare { spare: 3, regions: 3 });
    assert_eq!(machine.ram.live(), 0);
    // Any allocation may fail.
    for n in 0..20 {
        *machine.ram.pieces.borrow_mut() = Some(vec![16 * K, 8 * K]);
        machine.ram.fail_at.set(Some(machine.ram.allocations.get() + n));
        drop(allocate(&machine, Layout::mixed_topa(32 * K), mode));
        assert_eq!(machine.ram.live(), 0, "{n}");
    }
}

#[test]
fn a_trace_through_regions_of_several_sizes_loses_nothing_in_many_laps() {
    for (profile, spare) in [("skylake", 2), ("sapphire-rapids", 1), ("broadwell", 0)] {
        let machine = machine(profile, &[32 * K, 16 * K, 16 * K, 8 * K]);
        let layout = Layout::mixed_topa(84 * K);
        let buffer = allocate(&machine, layout, Mode::StopWhenFull { spare }).unwrap();
        assert_eq!(buffer.region_sizes().count(), 7, "32, 16, 16, 8 and three of 4 KiB");
        let mut handler = machine.handler();
        let mut tracing =
            machine.unit().start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
        let mut collector = Collector::new();
        let pmis = machine.run_with(300_000, &mut handler, &mut tracing.source(&mut collector));
        assert!(pmis.len() > 10 && pmis.iter().all(|pmi| *pmi == Pmi::Served), "{pmis:?}");
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert_eq!(stopped.loss, Loss::NONE, "{profile}");
        collector.finish(&stopped.trace);
        assert!(collector.whole().len() as u64 > 5 * 84 * K, "{profile}: {}", collector.whole().len());
        assert_same(&tips(collector.whole()), &machine.jumps(), profile);
    }
}

#[test]
fn a_snapshot_of_regions_of_several_sizes_holds_what_was_traced_last() {
    let machine = machine("skylake", &[16 * K, 8 * K]);
    let buffer = allocate(&machine, Layout::mixed_topa(32 * K), Mode::Overwrite).unwrap();
    assert!(buffer.region_sizes().eq([16 * K, 8 * K, 4 * K, 4 * K]));
    let tracing = machine.unit().start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
    machine.run(100_000);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    let stretches: Vec<_> = stopped.trace.stretches().collect();
    let [stretch] = &stretches[..] else { panic!("{stretches:?}") };
    assert_eq!(stretch.len(), 32 * K);
    let mut memory = vec![0; 32 << 10];
    let last = tips(common::synced(stretch.copy_to(&mut memory).unwrap()));
    let jumps = machine.jumps();
    assert!(last.len() > 4000, "{}", last.len());
    assert_same(&last, &jumps[jumps.len() - last.len()..], "the end of it");
}
