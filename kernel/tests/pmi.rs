//! A trace that is longer than its buffer: PMIs, the spare room until they are served, and losses without that room.

mod common;

use common::{Collector, Machine, assert_same, run_within, synced, tips, user_code};
use pugmark_kernel::drain::KeepAll;
use pugmark_kernel::intel::pt::PtState;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::{Delivery, LocalApic, LvtPc, Vector};
use pugmark_kernel::loss::{Gap, Loss, Overwritten};
use pugmark_kernel::msr::Msr;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_model::intel::IntelSettings;

#[test]
fn many_pmis_give_one_continuous_trace() {
    let small = |regions, regions_per_table, contiguous| Layout::Topa {
        size: RegionSize::K4,
        regions,
        regions_per_table,
        contiguous,
    };
    let full = |spare| Mode::StopWhenFull { spare };
    let every = |interrupt_every| Mode::Circular { interrupt_every };
    // (profile, layout, mode, skid in instructions)
    let table = [
        ("skylake", small(8, 511, false), full(2), 40),
        ("skylake", small(8, 511, true), full(2), 40),
        ("skylake", small(8, 3, false), full(2), 40),
        ("skylake", small(7, 1, false), full(3), 40),
        ("skylake", small(2, 511, false), full(1), 40),
        ("skylake", small(3, 2, true), full(1), 0),
        ("skylake", small(8, 511, false), full(7), 1000),
        ("icelake", Layout::topa(RegionSize::K64, 3), full(1), 200),
        ("sapphire-rapids", small(8, 3, false), full(2), 40),
        ("skylake", small(8, 3, false), every(1), 40),
        ("skylake", small(8, 511, true), every(4), 40),
        ("skylake", small(5, 2, false), every(4), 40),
        ("broadwell", small(3, 511, false), full(1), 40),
        ("broadwell", small(1, 511, false), full(0), 40),
        ("broadwell", Layout::topa(RegionSize::K64, 2), full(0), 40),
    ];
    for (profile, layout, mode, pmi_skid) in table {
        let what = format!("{profile} {layout:?} {mode:?} skid {pmi_skid}");
        let machine = Machine::new(profile, IntelSettings { pmi_skid, ..IntelSettings::default() });
        let mut handler = machine.handler();
        let mut tracing = machine.start(layout, mode);
        let mut collector = Collector::new();
        let pmis = machine.run_with(130_000, &mut handler, &mut tracing.source(&mut collector));
        let served = pmis.iter().filter(|pmi| **pmi == Pmi::Served).count();
        assert!(served >= 2 && served == handler.counts().served as usize, "{what}: {served} PMIs");
        assert!(pmis.iter().all(|pmi| matches!(pmi, Pmi::Served | Pmi::Stray)), "{what}");
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        collector.finish(&stopped.trace);
        assert_eq!(stopped.loss, Loss::NONE, "{what}");
        assert_same(&tips(collector.whole()), &machine.jumps(), &what);
        drop(stopped);
        assert_clean(&machine, &what);
        assert_eq!(machine.violations().stopped_in_skid, 0, "{what}");
        assert_eq!(machine.ram.live(), 0, "{what}");
    }
}

#[test]
fn a_pmi_may_come_as_a_fixed_vector() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let delivery = Delivery::Fixed(Vector::new(0x40).unwrap());
    let mut handler = Handler::new(delivery);
    machine.arm(delivery).unwrap();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::StopWhenFull { spare: 1 });
    let mut collector = Collector::new();
    machine.run_with(20_000, &mut handler, &mut tracing.source(&mut collector));
    assert!(handler.counts().served > 3);
    assert_eq!(machine.registers().lvt_pc(), Ok(LvtPc(0x40)));
}

#[test]
fn a_handler_that_only_accounts_goes_on_in_the_regions_that_are_free() {
    for profile in ["skylake", "broadwell"] {
        let machine = Machine::new(profile, IntelSettings::default());
        let mut handler = machine.handler();
        let mut tracing = machine.start(Layout::topa(RegionSize::K4, 16), Mode::StopWhenFull { spare: 12 });
        let mut collector = Collector::new();
        for _ in 0..8 {
            machine.run_with(6000, &mut handler, &mut tracing.source(&mut KeepAll));
            assert!(tracing.undrained() > 0x1000, "{profile}");
            assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
            assert_eq!(tracing.undrained(), 0, "{profile}");
        }
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        collector.finish(&stopped.trace);
        assert_eq!(stopped.loss, Loss::NONE, "{profile}");
        assert!(handler.counts().served > 4, "{profile}");
        assert_same(&tips(collector.whole()), &machine.jumps(), profile);
        assert_clean(&machine, profile);
    }
}

#[test]
fn a_full_buffer_stops_the_trace_until_it_is_drained() {
    for profile in ["skylake", "broadwell"] {
        let machine = Machine::new(profile, IntelSettings::default());
        let mut handler = machine.handler();
        let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::StopWhenFull { spare: 1 });
        let mut collector = Collector::new();
        for lap in 1..=3 {
            machine.run_with(10_000, &mut handler, &mut tracing.source(&mut KeepAll));
            let state = tracing.drain(&mut collector).unwrap();
            assert_eq!(state, PtState::Tracing, "{profile}");
            assert!(tracing.loss().stop + tracing.loss().full >= lap, "{profile} {lap}");
        }
        machine.run(10);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        collector.finish(&stopped.trace);
        assert!(stopped.loss.full >= 3 || stopped.loss.stop >= 3, "{profile} {:?}", stopped.loss);
        let told = |gap| collector.gaps.iter().filter(|told| **told == gap).count() as u64;
        let Loss { stop, full, .. } = stopped.loss;
        assert_eq!((told(Gap::Stop), told(Gap::Full)), (stop, full), "{profile}");
        assert_eq!(collector.gaps.len() as u64, stop + full, "{profile}");
        assert_pieces_are_runs(&collector, &machine, profile);
        assert_clean(&machine, profile);
    }
}

#[test]
fn a_pmi_that_comes_too_late_finds_a_stopped_trace_and_counts_it() {
    for (profile, regions) in [("skylake", 3), ("broadwell", 2)] {
        // 3 bytes a jump: the skid is longer than a region.
        let machine = Machine::new(profile, IntelSettings { pmi_skid: 3000, ..IntelSettings::default() });
        let mut handler = machine.handler();
        let mut tracing =
            machine.start(Layout::topa(RegionSize::K4, regions), Mode::StopWhenFull { spare: 1 });
        let mut collector = Collector::new();
        machine.run_with(40_000, &mut handler, &mut tracing.source(&mut collector));
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        collector.finish(&stopped.trace);
        assert!(stopped.loss.stop > 2, "{profile} {:?}", stopped.loss);
        assert_eq!(stopped.loss.full, 0);
        assert_eq!(collector.gaps, vec![Gap::Stop; stopped.loss.stop as usize], "{profile}");
        assert_pieces_are_runs(&collector, &machine, profile);
        assert!(machine.violations().stopped_in_skid > 0, "{profile}: the model saw it too");
        assert_clean(&machine, profile);
    }
}

#[test]
fn a_circular_buffer_that_nobody_drains_counts_what_is_overwritten() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut handler = machine.handler();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::Circular { interrupt_every: 1 });
    let mut collector = Collector::new();
    machine.run_with(20_000, &mut handler, &mut tracing.source(&mut KeepAll));
    assert!(tracing.loss().wrap > 0);
    tracing.drain(&mut collector).unwrap();
    let lost = tracing.loss().wrapped_bytes;
    assert_eq!(collector.gaps, [Gap::Wrap(Overwritten::Exactly(lost))]);
    let all = lost + collector.stretches[1].len() as u64;
    assert_eq!(collector.stretches[1].len(), 0x4000);
    assert!(all >= 3 * machine.jumps().len() as u64, "{all} bytes");
    let got = tips(synced(&collector.stretches[1]));
    assert!(got.len() > 2000);
    assert!(machine.jumps().ends_with(&got));
    assert_clean(&machine, "circular");
}

#[test]
fn a_circular_buffer_that_is_overrun_before_its_pmi_is_served_counts_it() {
    // 3 bytes a jump: from the end of one PMI to the end of the next, more than a lap is written, or about one.
    for pmi_skid in [2000, 1400, 1366] {
        for layout in [Layout::topa(RegionSize::K4, 2), Layout::contiguous_topa(RegionSize::K4, 2)] {
            let machine = Machine::new("skylake", IntelSettings { pmi_skid, ..IntelSettings::default() });
            let mut handler = machine.handler();
            let mut tracing = machine.start(layout, Mode::Circular { interrupt_every: 1 });
            let mut collector = Collector::new();
            machine.run_with(40_000, &mut handler, &mut tracing.source(&mut collector));
            let stopped = tracing.stop().map_err(|_| "stop").unwrap();
            collector.finish(&stopped.trace);
            let what = format!("skid {pmi_skid} {:?}", stopped.loss);
            assert!(stopped.loss.wrap > 3, "{what}");
            assert_eq!(collector.gaps.len() as u64, stopped.loss.wrap, "{what}");
            let bytes: usize = collector.stretches.iter().map(Vec::len).sum();
            let all = bytes as u64 + stopped.loss.wrapped_bytes;
            assert!(all >= 3 * machine.jumps().len() as u64, "{what}: {all} bytes");
            assert_clean(&machine, &what);
        }
    }
}

#[test]
fn pmis_that_are_never_delivered_end_in_a_stop_that_is_counted() {
    let machine = Machine::new("skylake", IntelSettings::default());
    machine.disarm();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::StopWhenFull { spare: 1 });
    machine.run(20_000);
    let mut collector = Collector::new();
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
    assert_eq!(collector.stretches[0].len(), 0x4000);
    assert_eq!(collector.gaps, [Gap::Stop]);
    assert_eq!(tracing.loss(), &Loss { stop: 1, ..Loss::NONE });
    machine.run(10);
    drop(tracing.stop().map_err(|_| "stop").unwrap());
}

#[test]
fn a_sink_that_takes_a_part_gets_the_rest_later() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut handler = machine.handler();
    let mut tracing =
        machine.start(Layout::contiguous_topa(RegionSize::K4, 16), Mode::StopWhenFull { spare: 13 });
    let mut collector = Collector::new();
    for _ in 0..12 {
        collector.appetite = Some(1500);
        machine.run_with(400, &mut handler, &mut tracing.source(&mut collector));
        collector.appetite = Some(777);
        tracing.drain(&mut collector).unwrap();
    }
    collector.appetite = None;
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    assert_eq!(stopped.loss, Loss::NONE);
    assert_same(&tips(collector.whole()), &machine.jumps(), "parts");
}

#[test]
fn a_request_left_over_from_an_earlier_trace_is_not_this_ones() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut handler = machine.handler();
    machine.disarm();
    let tracing = machine.start(Layout::topa(RegionSize::K4, 2), Mode::StopWhenFull { spare: 1 });
    machine.run(10_000);
    drop(tracing);
    assert_eq!(machine.msr(0x38e) >> 55 & 1, 1, "the PMI was dropped, the bit stays");
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::Circular { interrupt_every: 1 });
    machine.arm(Delivery::Nmi).unwrap();
    machine.run(10);
    let mut collector = Collector::new();
    let (mut msr, mut apic) = (machine.registers(), machine.registers());
    let pmi = handler.handle(&mut msr, &mut apic, &mut [&mut tracing.source(&mut collector)]);
    assert_eq!(pmi, Ok(Pmi::NotOurs));
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss, Loss::NONE);
    collector.finish(&stopped.trace);
    assert_eq!(tips(collector.whole()).len(), 10);
}

#[test]
fn a_pmi_in_flight_at_stop_costs_the_next_trace_nothing() {
    let (layout, mode) = (Layout::topa(RegionSize::K4, 8), Mode::StopWhenFull { spare: 6 });
    let machine = Machine::new("skylake", IntelSettings { pmi_skid: 400, ..IntelSettings::default() });
    let mut handler = machine.handler();
    let tracing = machine.start(layout, mode);
    assert!(!machine.jump_until(|| machine.msr(0x38e) >> 55 & 1 == 1), "it is on its way");
    drop(tracing.stop().map_err(|_| "stop").unwrap());
    assert!(machine.registers().lvt_pc().unwrap().is_masked(), "the PMI came when the trace was off");
    assert_eq!(machine.interrupt(&mut handler, &mut []), Pmi::Stray);
    assert_eq!(machine.registers().lvt_pc(), Ok(LvtPc(0x400)));
    assert_eq!(machine.interrupt(&mut handler, &mut []), Pmi::NotOurs, "somebody else's NMI");
    let before = machine.jumps().len();
    let mut tracing = machine.start(layout, mode);
    let mut collector = Collector::new();
    let pmis = machine.run_with(30_000, &mut handler, &mut tracing.source(&mut collector));
    assert!(pmis.len() > 5, "{pmis:?}");
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    assert_eq!(stopped.loss, Loss::NONE);
    assert_same(&tips(collector.whole()), &machine.jumps()[before..], "the second trace");
}

#[test]
fn an_nmi_of_somebody_else_is_not_taken_for_the_last_pmi() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut handler = machine.handler();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 8), Mode::StopWhenFull { spare: 6 });
    let mut collector = Collector::new();
    let mut source = tracing.source(&mut collector);
    let pmis = machine.run_with(3000, &mut handler, &mut source);
    assert_eq!(pmis.last(), Some(&Pmi::Served));
    assert_eq!(machine.run_with(50, &mut handler, &mut source), []);
    assert_eq!(machine.interrupt(&mut handler, &mut [&mut source]), Pmi::NotOurs);
    assert_eq!(machine.registers().lvt_pc(), Ok(LvtPc(0x400)));
}

#[test]
fn counters_that_the_pmi_froze_go_on() {
    // (other bits of IA32_PERF_GLOBAL_STATUS, those that remain): CTR_Frz and LBR_Frz, and both with OvfBuf.
    for (set, left) in [(3 << 58, 0), (3 << 58 | 1 << 62, 3 << 58 | 1 << 62)] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let mut handler = machine.handler();
        let mut tracing = machine.start(Layout::topa(RegionSize::K4, 8), Mode::StopWhenFull { spare: 6 });
        // SAFETY: the registers stand for no hardware.
        unsafe { machine.registers().wrmsr(0x391, set) }.unwrap();
        let mut collector = Collector::new();
        let pmis = machine.run_with(3000, &mut handler, &mut tracing.source(&mut collector));
        assert!(pmis.contains(&Pmi::Served));
        assert_eq!(machine.msr(0x38e), left);
    }
}

#[test]
fn a_trace_stop_range_stops_and_lets_go_on() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let config = user_code().trace_stop(0x40_0800, 0x40_0fff);
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), Mode::StopWhenFull { spare: 1 });
    let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
    let mut collector = Collector::new();
    machine.run(0x80 + 0x20);
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::TraceStopped));
    assert_eq!(tips(collector.whole()), machine.jumps()[..0x7f]);
    assert_eq!(tracing.loss(), &Loss { trace_stop: 1, ..Loss::NONE });
    assert!(tracing.loss().is_none());
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::TraceStopped));
    assert!(!machine.is_tracing());
    machine.run(0x60 + 0x10);
    assert_eq!(tracing.go_on(), Ok(PtState::Tracing));
    let before = machine.jumps().len();
    machine.run(0x20);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    assert!(collector.whole().starts_with(&[0x02, 0x82]), "a trace that goes on begins with a PSB");
    assert_same(&tips(collector.whole()), &machine.jumps()[before..], "after TraceStop");
}

#[test]
fn the_handler_leaves_the_trace_on_and_the_entry_unmasked() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut handler = machine.handler();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::StopWhenFull { spare: 1 });
    let mut collector = Collector::new();
    machine.run_with(5000, &mut handler, &mut tracing.source(&mut collector));
    assert!(machine.is_tracing());
    assert_eq!(machine.registers().lvt_pc(), Ok(LvtPc(0x400)));
    assert_eq!(machine.registers().rdmsr(0x38e), Ok(0));
}

/// Checks that each stretch is a contiguous run of the executed jumps, and that they come in order.
fn assert_pieces_are_runs(collector: &Collector, machine: &Machine, what: &str) {
    let jumps = machine.jumps();
    let mut from = 0;
    for (n, stretch) in collector.stretches.iter().enumerate() {
        assert!(
            stretch.is_empty() || stretch.starts_with(&[0x02, 0x82]),
            "{what}: stretch {n} begins with a PSB"
        );
        let targets = tips(stretch);
        from = run_within(&targets, &jumps, from).unwrap_or_else(|| {
            panic!("{what}: stretch {n} of {} jumps is no run from {from}", targets.len())
        });
    }
    assert!(from > 0, "{what}");
}

fn assert_clean(machine: &Machine, what: &str) {
    assert_eq!(machine.violations().live_table_edits, 0, "{what}");
    assert_eq!(machine.violations().writes_outside_memory, 0, "{what}");
    assert_eq!(*machine.ram.strays.borrow(), [], "{what}");
}
