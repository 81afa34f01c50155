//! Every small ring on the model, filled by any amount, drained anywhere and filled again: the delivered bytes and the
//! reported losses must account for all bytes that the processor wrote.

mod common;

use common::{Ledger, Machine};
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::loss::Loss;
use pugmark_model::intel::IntelSettings;

const REGION: u64 = 0x1000;

/// The parameters of one run of a ring.
#[derive(Clone, Copy, Debug)]
struct Run {
    profile: &'static str,
    layout: Layout,
    regions: u64,
    mode: Mode,
    /// The numbers of bytes written before the drain, and after it.
    first: u64,
    second: u64,
    /// The number of bytes that the drain takes.
    appetite: Option<usize>,
}

#[test]
fn all_small_rings_account_for_each_byte_whatever_is_drained_where() {
    // Longer with PUGMARK_LONG=1.
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let step = if long { REGION / 4 } else { REGION * 7 / 4 };
    let mut runs = 0;
    let mut at_an_end = 0;
    let mut unsure = 0;
    for (profile, regions, layout, mode) in rings() {
        let whole = regions * REGION;
        for first in (0..=whole + step).step_by(step as usize) {
            for second in (0..3 * whole + step).step_by(step as usize) {
                for appetite in [None, Some(REGION as usize + 500)] {
                    let run = Run { profile, layout, regions, mode, first, second, appetite };
                    let (loss, end) = check(run);
                    runs += 1;
                    at_an_end += u64::from(end % REGION == 0);
                    unsure += loss.perhaps_wrapped;
                }
            }
        }
    }
    assert!(runs > 700 && at_an_end > 3, "{runs} runs, {at_an_end} ended with a region, {unsure} unsure");
}

fn rings() -> Vec<(&'static str, u64, Layout, Mode)> {
    let mut rings = Vec::new();
    for regions in 1..=4 {
        let per_table = |regions_per_table| Layout::Topa {
            size: RegionSize::K4,
            regions,
            regions_per_table,
            contiguous: regions_per_table == 1,
        };
        let layouts = if regions == 3 { vec![per_table(2), per_table(1)] } else { vec![per_table(511)] };
        for layout in layouts {
            let mut add = |profile, mode| rings.push((profile, u64::from(regions), layout, mode));
            add("skylake", Mode::Overwrite);
            (1..regions).for_each(|every| add("skylake", Mode::Circular { interrupt_every: every }));
            (1..regions.min(3)).for_each(|spare| add("skylake", Mode::StopWhenFull { spare }));
            add("broadwell", Mode::StopWhenFull { spare: 0 });
            if regions == 1 {
                add("broadwell", Mode::Overwrite);
                add("broadwell", Mode::Circular { interrupt_every: 1 });
            }
        }
    }
    rings.push(("skylake", 2, Layout::SingleRange { bytes: 2 * REGION }, Mode::Overwrite));
    rings
}

/// Returns the losses, and the end of the trace in its ring.
fn check(run: Run) -> (Loss, u64) {
    let Run { profile, layout, regions, mode, first, second, appetite } = run;
    let what = format!("{run:x?}");
    let settings = IntelSettings { visibility: 0, ..IntelSettings::default() };
    let machine = Machine::with_memory(profile, settings, 0x3_0000);
    machine.jump_far();
    let mut ledger = Ledger::new(&machine.ram, &what);
    ledger.pads = profile == "broadwell";
    let mut tracing = machine.start(layout, mode);
    fill(&machine, first);
    ledger.appetite = appetite;
    tracing.drain(&mut ledger).unwrap();
    if mode == Mode::Overwrite {
        if appetite.is_none() {
            ledger.assert_complete();
            assert_eq!(ledger.told.wrap + ledger.told.perhaps_wrapped, u64::from(!tracing.loss().is_none()));
        }
        ledger.begin();
    }
    fill(&machine, machine.ram.written() + second);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    let before = ledger.delivered;
    ledger.finish(&stopped.trace);
    if mode == Mode::Overwrite {
        // The newest bytes, as many as there is room for.
        let there = machine.ram.written().min(regions * REGION);
        assert_eq!(ledger.delivered - before, there, "{what}");
    }
    let loss = stopped.loss;
    assert_eq!(loss, ledger.told, "{what}");
    // If the tables show laps, the number of bytes overwritten from the first drain to the end is known exactly, for up
    // to two laps.
    let tables = matches!(layout, Layout::Topa { .. }) && profile == "skylake";
    if tables && first % (regions * REGION) + second + 100 < 2 * regions * REGION {
        assert_eq!(machine.ram.written(), ledger.accounted(), "{what}: {loss:?}");
    }
    assert_eq!(loss.perhaps_wrapped & u64::from(tables), 0, "{what}");
    assert_eq!(loss.error, 0, "{what}");
    (loss, machine.ram.written())
}

/// Runs until this many bytes are written, or the trace has stopped.
fn fill(machine: &Machine, bytes: u64) {
    for _ in 0..bytes {
        if machine.ram.written() >= bytes {
            break;
        }
        machine.jump();
    }
}
