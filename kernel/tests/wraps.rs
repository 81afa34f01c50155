//! Overwritten bytes are reported, for any content of the ring and any use of the unit meanwhile.

mod common;

use common::{Ledger, Machine, Tracing, assert_same, tips, user_code};
use pugmark_kernel::drain::{KeepAll, Sink};
use pugmark_kernel::intel::pt::PtState;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::Msr;
use pugmark_kernel::pmi::{Abandoned, Pmi, PmiSource};
use pugmark_model::intel::IntelSettings;

const EVERY: Mode = Mode::Circular { interrupt_every: 1 };

fn pages(regions: u32) -> Layout {
    Layout::topa(RegionSize::K4, regions)
}

fn finish(tracing: Tracing<'_>, ledger: &mut Ledger<'_>) -> Loss {
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    ledger.finish(&stopped.trace);
    assert_eq!(stopped.loss, ledger.told);
    stopped.loss
}

#[test]
fn a_pmi_that_waited_for_a_drain_with_nothing_traced_since_is_no_lap() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut handler = machine.handler();
    let mut tracing = machine.start(pages(2), EVERY);
    let mut ledger = Ledger::new(&machine.ram, "waiting");
    machine.jump_until_pmi();
    tracing.drain(&mut ledger).unwrap();
    assert_eq!(machine.msr(0x38e) >> 55 & 1, 1, "the PMI that comes now finds its bit");
    let (written, mut msr, mut apic) = (machine.ram.written(), machine.registers(), machine.registers());
    let served = handler.handle(&mut msr, &mut apic, &mut [&mut tracing.source(&mut ledger)]);
    assert_eq!(served, Ok(Pmi::Served));
    assert!(machine.ram.written() <= written + 4, "no traced code ran meanwhile: a CBR at the most");
    assert_eq!(tracing.loss(), &Loss::NONE);
    assert_eq!(finish(tracing, &mut ledger), Loss::NONE);
    assert_eq!(ledger.delivered, machine.ram.written());
}

#[test]
fn a_lap_that_writes_the_same_again_is_a_lap() {
    // (bytes undrained, bytes written after that)
    for (first, then) in [(0x848, 0x2010), (0x1100, 0x2000), (0x30, 0x3ff0)] {
        let machine = Machine::new("skylake", IntelSettings { visibility: 0, ..IntelSettings::default() });
        let mut tracing = machine.start(pages(2), EVERY);
        let mut ledger = Ledger::new(&machine.ram, "the same again");
        let fill = |bytes| {
            while machine.ram.written() < bytes {
                machine.spin();
            }
        };
        fill(first);
        tracing.drain(&mut KeepAll).unwrap();
        let kept = tracing.undrained();
        fill(machine.ram.written() + then);
        let loss = finish(tracing, &mut ledger);
        let written = machine.ram.written();
        assert!(kept + then > 0x2000 && written > 0x2000);
        assert_eq!((loss.wrap, loss.wrapped_bytes), (1, written - 0x2000), "{first:#x} {then:#x}");
    }
}

#[test]
fn the_last_bytes_of_a_second_lap_do_not_hide_the_first() {
    for less in 0..48 {
        let machine = Machine::new("skylake", IntelSettings { visibility: 0, ..IntelSettings::default() });
        let tracing = machine.start(pages(2), EVERY);
        let mut ledger = Ledger::new(&machine.ram, "nearly two laps");
        machine.jump_until(|| machine.ram.written() >= 0x4000 - 24 - less);
        let loss = finish(tracing, &mut ledger);
        let written = machine.ram.written();
        let known = written < 0x4000;
        assert!(loss.wrapped_bytes == written - 0x2000 || !known, "{loss:?} of {written:#x}");
    }
}

#[test]
fn a_ring_that_is_zero_after_the_place_of_the_next_byte_has_wrapped_all_the_same() {
    for (profile, layout) in [
        ("skylake", pages(3)),
        ("skylake", Layout::contiguous_topa(RegionSize::K4, 3)),
        ("skylake", Layout::SingleRange { bytes: 0x2000 }),
        ("broadwell", pages(1)),
    ] {
        let machine = Machine::new(profile, IntelSettings::default());
        let tracing = machine.start(layout, Mode::Overwrite);
        let mut ledger = Ledger::new(&machine.ram, profile);
        let lap = if profile == "broadwell" { 0x1000 } else { 0x3000 };
        machine.jump_until(|| machine.ram.written() >= lap + 0x300);
        machine.ram.clear_traced();
        let loss = finish(tracing, &mut ledger);
        assert_eq!(loss.wrap, 1, "{profile} {layout:?}");
    }
}

#[test]
fn a_trace_that_goes_on_has_its_own_filters_whoever_used_the_unit() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let config = user_code().cr3(0x5000).filter(0x40_0100, 0x40_1fff).trace_stop(0x70_0000, 0x70_0fff);
    let buffer = machine.buffer(pages(8), Mode::StopWhenFull { spare: 1 });
    let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
    let mut collector = common::Collector::new();
    machine.run(500);
    let own = FILTERS.map(|address| machine.msr(address));
    // Another owner records last branches, and uses PT for another trace before it has finished.
    write(&machine, 0x1d9, 1);
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::Excluded));
    for address in FILTERS {
        write(&machine, address, 0x9000);
    }
    // It also leaves Stopped and Error set.
    write(&machine, 0x571, 0x30);
    write(&machine, 0x1d9, 0);
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
    assert_eq!(FILTERS.map(|address| machine.msr(address)), own);
    machine.run(2000);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    assert_eq!(collector.gaps, [Gap::Excluded]);
    let inside = |target: &u64| (0x40_0100..0x40_2000).contains(target);
    let traced: Vec<u64> = collector.stretches.iter().flat_map(|stretch| tips(stretch)).collect();
    // A jump into the range is a TIP.PGE, a jump out of it a TIP.PGD.
    let expected: Vec<u64> =
        machine.jumps().into_iter().filter(inside).filter(|target| *target != 0x40_0100).collect();
    assert!(traced.len() > 900, "{}", traced.len());
    assert_same(&traced, &expected, "inside");
}

#[test]
fn a_trace_whose_registers_are_reset_says_so_and_goes_on_as_it_was_configured() {
    let modes = [Mode::StopWhenFull { spare: 1 }, EVERY, Mode::Overwrite];
    for mode in modes {
        let machine = Machine::new("skylake", IntelSettings::default());
        let config = user_code().cr3(0x5000);
        let buffer = machine.buffer(pages(4), mode);
        let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
        machine.run(100);
        // The state of these registers after S3 or INIT.
        for address in [0x570, 0x571, 0x572, 0x560, 0x561] {
            write(&machine, address, 0);
        }
        let mut collector = common::Collector::new();
        assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
        assert_eq!((tracing.loss().turned_off, machine.msr(0x572)), (1, 0x5000), "{mode:?}");
        let perhaps = u64::from(!matches!(mode, Mode::StopWhenFull { .. }));
        assert_eq!(tracing.loss().perhaps_wrapped, perhaps, "{mode:?}");
        let before = machine.jumps().len();
        machine.run(100);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        let mut collector = common::Collector::new();
        collector.finish(&stopped.trace);
        let last = collector.stretches.last().unwrap();
        assert_same(&tips(last), &machine.jumps()[before..], "after the reset");
    }
}

#[test]
fn an_error_beside_a_full_buffer_has_a_gap_of_its_own() {
    for error in [false, true] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let mut tracing = machine.start(pages(2), Mode::StopWhenFull { spare: 1 });
        let mut collector = common::Collector::new();
        machine.jump_until(|| machine.msr(0x571) & STOPPED != 0);
        // Both were set when the trace was turned off: with TraceEn the register cannot be written.
        write(&machine, 0x570, machine.msr(0x570) & !1);
        write(&machine, 0x571, machine.msr(0x571) | if error { ERROR } else { 0 });
        assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
        let gaps =
            if error { &[Gap::Stop, Gap::Error, Gap::TurnedOff][..] } else { &[Gap::Stop, Gap::TurnedOff] };
        assert_eq!(collector.gaps, gaps);
        assert_eq!((tracing.loss().stop, tracing.loss().error), (1, u64::from(error)));
        let before = machine.jumps().len();
        machine.run(100);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        collector.finish(&stopped.trace);
        // There is nothing between the two gaps, and after them the trace continues.
        let [first, nothing @ .., last] = &collector.stretches[..] else { panic!("{:?}", collector.gaps) };
        assert_same(&tips(first), &machine.jumps()[..tips(first).len()], "up to the gaps");
        assert!(nothing.iter().all(Vec::is_empty));
        assert_same(&tips(last), &machine.jumps()[before..], "after the gaps");
    }
}

#[test]
fn a_drain_before_the_pmi_leaves_the_region_that_the_pmi_is_about() {
    let machine =
        Machine::new("broadwell", IntelSettings { pmi_skid: 0, visibility: 0, ..IntelSettings::default() });
    let mut handler = machine.handler();
    let mut tracing = machine.start(pages(2), Mode::StopWhenFull { spare: 0 });
    let mut ledger = Ledger::new(&machine.ram, "a drain before the PMI");
    machine.jump_until_pmi();
    assert!(machine.ram.written() < 0x1000, "the PMI comes before the region is full");
    tracing.drain(&mut ledger).unwrap();
    // The PMI's status bit was already taken: it does not belong to the region where the trace is now.
    assert_eq!(machine.interrupt(&mut handler, &mut [&mut tracing.source(&mut ledger)]), Pmi::Stray);
    machine.run(0x800 / 3);
    assert_eq!(finish(tracing, &mut ledger), Loss::NONE);
    assert!(machine.ram.written() > 0x1000);
}

#[test]
fn what_follows_a_gap_begins_with_a_psb_also_where_a_region_is_left_before_its_end() {
    let machine =
        Machine::new("broadwell", IntelSettings { pmi_skid: 0, visibility: 0, ..IntelSettings::default() });
    let mut tracing = machine.start(pages(2), Mode::StopWhenFull { spare: 0 });
    let mut ledger = Ledger::new(&machine.ram, "padding");
    ledger.pads = true;
    machine.jump_until(|| machine.msr(0x38e) >> 55 & 1 == 1);
    tracing.source(&mut KeepAll).abandon(Abandoned::Stuck);
    assert_eq!(tracing.drain(&mut KeepAll), Ok(PtState::Tracing));
    assert_eq!(tracing.undrained(), 0x1000, "the rest of the region is padding");
    machine.run(100);
    assert_eq!(finish(tracing, &mut ledger), Loss { abandoned: 1, ..Loss::NONE });
}

#[test]
fn a_gap_stays_in_a_ring_until_it_is_overwritten_itself() {
    let machine = Machine::new("skylake", IntelSettings { visibility: 0, ..IntelSettings::default() });
    let mut tracing = machine.start(pages(2), Mode::Overwrite);
    machine.run(100);
    let mut ledger = Ledger::new(&machine.ram, "gaps in a ring");
    tracing.source(&mut KeepAll).abandon(Abandoned::Stuck);
    let mut told = Vec::new();
    for _ in 0..5 {
        ledger.begin();
        tracing.drain(&mut ledger).unwrap();
        ledger.assert_complete();
        told.push((ledger.told.abandoned, ledger.told.wrap));
        machine.run(1000);
    }
    assert_eq!(told, [(1, 0), (1, 0), (1, 0), (0, 1), (0, 1)]);
    assert_eq!(tracing.loss().abandoned, 1);
}

#[test]
fn a_ring_with_more_gaps_than_can_be_noted_gives_up_its_oldest_bytes() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut tracing = machine.start(pages(4), Mode::Overwrite);
    let mut ledger = Ledger::new(&machine.ram, "many gaps");
    for _ in 0..20 {
        machine.run(50);
        tracing.source(&mut KeepAll).abandon(Abandoned::Stuck);
        assert_eq!(tracing.drain(&mut KeepAll), Ok(PtState::Tracing));
    }
    machine.run(50);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    ledger.finish(&stopped.trace);
    assert_eq!(stopped.loss.abandoned, 20);
    assert!(ledger.told.abandoned >= 7 && ledger.delivered > 1000, "{:?}", ledger.told);
    assert_eq!(ledger.accounted(), machine.ram.written(), "and tells how many they were");
}

#[test]
fn losses_that_cut_nothing_are_placed_too() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut tracing = machine.start(pages(4), Mode::StopWhenFull { spare: 1 });
    let mut collector = common::Collector::new();
    machine.run(100);
    let first = machine.jumps().len();
    tracing.source(&mut KeepAll).abandon(Abandoned::Stuck);
    machine.run(30);
    assert_eq!(tracing.drain(&mut KeepAll), Ok(PtState::Tracing));
    machine.run(100);
    let second = machine.jumps().len();
    write(&machine, 0x1d9, 1);
    assert_eq!(tracing.drain(&mut KeepAll), Ok(PtState::Excluded));
    write(&machine, 0x1d9, 0);
    assert_eq!(tracing.go_on(), Ok(PtState::Tracing));
    machine.run(100);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    assert_eq!(collector.gaps, [Gap::Abandoned, Gap::Excluded]);
    let jumps = machine.jumps();
    let parts = [&jumps[..first], &jumps[first..second], &jumps[second..]];
    for (stretch, part) in collector.stretches.iter().zip(parts) {
        assert!(stretch.starts_with(&[0x02, 0x82]));
        assert_same(&tips(stretch), part, "a stretch");
    }
}

#[test]
fn what_lies_after_a_gap_waits_until_the_gap_was_told() {
    /// A sink that takes all bytes, but no gap.
    struct NoGaps<'a>(&'a mut common::Collector);
    impl Sink for NoGaps<'_> {
        fn bytes(&mut self, bytes: &[u8]) -> usize {
            self.0.bytes(bytes)
        }

        fn gap(&mut self, _: Gap) -> bool {
            false
        }
    }

    for mode in [Mode::StopWhenFull { spare: 1 }, EVERY, Mode::Overwrite] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let mut tracing = machine.start(pages(4), mode);
        machine.run(100);
        let first = machine.jumps().len();
        tracing.source(&mut KeepAll).abandon(Abandoned::Stuck);
        assert_eq!(tracing.drain(&mut KeepAll), Ok(PtState::Tracing));
        machine.run(100);
        let mut collector = common::Collector::new();
        tracing.drain(&mut NoGaps(&mut collector)).unwrap();
        assert_same(&tips(collector.whole()), &machine.jumps()[..first], "before the gap");
        if mode == Mode::Overwrite {
            // In this mode a drain only shows the buffer, which keeps everything.
            collector = common::Collector::new();
        }
        tracing.drain(&mut collector).unwrap();
        assert_eq!(collector.gaps, [Gap::Abandoned], "{mode:?}");
        let [one, other] = &collector.stretches[..] else { panic!("two stretches") };
        assert_same(&[tips(one), tips(other)].concat(), &machine.jumps(), "both stretches");
    }
}

#[test]
fn a_ring_whose_last_free_bytes_tell_the_laps_needs_room_for_all_of_them() {
    let mut seen = Vec::new();
    for (spins, jumps) in (0..400).step_by(6).flat_map(|spins| [(spins, 0), (spins, 1)]) {
        let settings = IntelSettings { visibility: 0, ..IntelSettings::default() };
        let machine = Machine::with_memory("skylake", settings, 1 << 18);
        // No PSB is due at the end of the ring.
        let (config, layout) = (user_code().psb_freq(3), Layout::SingleRange { bytes: 0x1000 });
        let buffer = machine.buffer(layout, Mode::Overwrite);
        let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
        while machine.ram.written() < 0x1000 - 100 {
            machine.jump();
        }
        (0..spins).for_each(|_| machine.spin());
        tracing.drain(&mut KeepAll).unwrap();
        let free = 0x1000 - tracing.undrained();
        if free < 30 {
            break;
        }
        let before = machine.ram.written();
        machine.run(jumps);
        let loss = tracing.stop().map_err(|_| "stop").unwrap().loss;
        let written = machine.ram.written() - before;
        let expected = match written {
            // There are 32 guard bytes, and none was overwritten.
            _ if free >= 32 && written <= free - 32 => Loss::NONE,
            _ if written <= free => Loss { perhaps_wrapped: 1, ..Loss::NONE },
            _ => Loss { wrap: 1, wrapped_bytes: written - free, ..Loss::NONE },
        };
        assert_eq!(loss, expected, "{free} {written}");
        seen.push((free, written));
    }
    // Each stretch begins with a CBR.
    for row in [(38, 4), (38, 22), (31, 4)] {
        assert!(seen.contains(&row), "{seen:?}");
    }
}

const FILTERS: [u32; 5] = [0x572, 0x580, 0x581, 0x582, 0x583];

/// Bits of IA32_RTIT_STATUS.
const ERROR: u64 = 1 << 4;
const STOPPED: u64 = 1 << 5;

fn write(machine: &Machine, address: u32, value: u64) {
    // SAFETY: the registers stand for no hardware.
    unsafe { machine.registers().wrmsr(address, value) }.unwrap();
}
