//! Random lifetimes of a trace, with interrupts between any two accesses of the driver: the delivered bytes and the
//! reported losses must account for all bytes that the processor wrote, and the driver must report when the trace is
//! off.

mod common;

use common::{Ledger, Machine, Tracing};
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::intel::pt::PtState;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Abandoned, Handler, PmiSource};
use pugmark_model::intel::IntelSettings;

/// The number of lifetimes of each kind, normally and with PUGMARK_LONG=1.
const SEEDS: u64 = 100;
const LONG: u64 = 100_000 / KINDS.len() as u64;

/// A processor and a buffer.
type Kind = (&'static str, Layout, Mode);

const fn topa(regions: u32, regions_per_table: u32) -> Layout {
    Layout::Topa { size: RegionSize::K4, regions, regions_per_table, contiguous: regions_per_table == 1 }
}

const fn mixed(bytes: u64) -> Layout {
    Layout::mixed_topa(bytes)
}

const KINDS: [Kind; 21] = [
    ("skylake", mixed(0x5000), Mode::StopWhenFull { spare: 1 }),
    ("broadwell", mixed(0x5000), Mode::StopWhenFull { spare: 0 }),
    ("skylake", mixed(0x4000), Mode::Circular { interrupt_every: 2 }),
    ("icelake", mixed(0x3000), Mode::Overwrite),
    ("skylake", mixed(0x5000), Mode::Overwrite),
    ("skylake", topa(2, 511), Mode::StopWhenFull { spare: 1 }),
    ("skylake", topa(4, 3), Mode::StopWhenFull { spare: 2 }),
    ("icelake", topa(3, 1), Mode::StopWhenFull { spare: 1 }),
    ("broadwell", topa(1, 511), Mode::StopWhenFull { spare: 0 }),
    ("broadwell", topa(3, 511), Mode::StopWhenFull { spare: 0 }),
    ("skylake", topa(2, 511), Mode::Circular { interrupt_every: 1 }),
    ("skylake", topa(4, 3), Mode::Circular { interrupt_every: 3 }),
    ("sapphire-rapids", topa(3, 1), Mode::Circular { interrupt_every: 2 }),
    ("broadwell", topa(1, 511), Mode::Circular { interrupt_every: 1 }),
    ("skylake", topa(1, 511), Mode::Overwrite),
    ("skylake", topa(2, 511), Mode::Overwrite),
    ("icelake", topa(4, 3), Mode::Overwrite),
    ("broadwell", topa(1, 511), Mode::Overwrite),
    ("skylake", Layout::SingleRange { bytes: 0x1000 }, Mode::Overwrite),
    ("skylake", Layout::SingleRange { bytes: 0x2000 }, Mode::Overwrite),
    ("sapphire-rapids", topa(4, 511), Mode::StopWhenFull { spare: 3 }),
];

#[test]
fn what_is_delivered_and_what_is_told_as_lost_are_all_that_was_written() {
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let seeds = if long { LONG } else { SEEDS };
    for kind in KINDS {
        let mut sum = Sum::default();
        for seed in 0..seeds {
            live(kind, seed, &mut sum);
        }
        let Sum { written, lost, disturbed, faults, .. } = sum;
        let what = format!("{kind:?}: {sum:?}");
        assert!(written > seeds * 0x1000 && disturbed > seeds && faults > 0, "{what}");
        // Each kind has its own way of losing data, and the loss is reported.
        let loses = match kind.2 {
            Mode::StopWhenFull { .. } => lost.stop + lost.full,
            Mode::Circular { .. } | Mode::Overwrite => lost.wrap,
        };
        assert!(loses > seeds / 10 && lost.abandoned > 0 && lost.error == 0, "{what}");
        let witness = kind.0 != "broadwell" && !matches!(kind.1, Layout::SingleRange { .. });
        assert!(lost.perhaps_wrapped == 0 || !witness, "{what}");
    }
}

/// The sum over many lifetimes.
#[derive(Debug, Default)]
struct Sum {
    written: u64,
    lost: Loss,
    disturbed: u64,
    faults: u64,
}

fn live(kind: Kind, seed: u64, sum: &mut Sum) {
    let (profile, layout, mode) = kind;
    let mut random = Random(seed << 8 | 0x55);
    let skid = random.of(&[0, 40, 200, 900]);
    let settings =
        IntelSettings { pmi_skid: skid, visibility: random.of(&[0, 64]), ..IntelSettings::default() };
    let machine = Machine::with_memory(profile, settings, 0x3_0000);
    machine.jump_far();
    // In regions of several sizes: 8 KiB once, then 4 KiB.
    *machine.ram.pieces.borrow_mut() = matches!(layout, Layout::MixedTopa { .. }).then(|| vec![0x2000]);
    let buffer = machine.buffer(layout, mode);
    let config = random.config(profile);
    let tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
    let what = format!("{kind:?} seed {seed}");
    let mut ledger = Ledger::new(&machine.ram, &what);
    ledger.pads = profile == "broadwell";
    let handler = machine.handler();
    let mut life = Life { machine: &machine, mode, tracing, handler, ledger, random, what: &what };
    for _ in 0..12 {
        life.step(sum);
    }
    life.end(sum);
}

struct Life<'a> {
    machine: &'a Machine,
    mode: Mode,
    tracing: Tracing<'a>,
    handler: Handler,
    ledger: Ledger<'a>,
    random: Random,
    what: &'a str,
}

impl Life<'_> {
    fn step(&mut self, sum: &mut Sum) {
        self.begin();
        match self.random.below(8) {
            0..4 => {
                let jumps = self.random.below(1000) as usize;
                self.machine.run_with(jumps, &mut self.handler, &mut self.tracing.source(&mut self.ledger));
            }
            4 => self.drive(sum, |tracing, ledger| tracing.drain(ledger)),
            5 => self.drive(sum, |tracing, _| tracing.go_on()),
            6 => {
                // An NMI of another cause, and an event in its handler.
                match self.random.below(3) {
                    0 => self.machine.fault_in(self.random.below(16) as u32),
                    _ => self.disturb(sum),
                }
                let source = &mut self.tracing.source(&mut self.ledger);
                if let Err(fault) = self.machine.try_interrupt(&mut self.handler, source) {
                    // This is what the handler does; one call is enough.
                    source.abandon(Abandoned::Fault(fault));
                    self.machine.settle();
                    self.machine.arm(Delivery::Nmi).unwrap();
                    sum.faults += 1;
                }
            }
            _ => {
                let cr3 = self.random.of(&[0x5000, 0x6000]);
                self.machine.set_cr3(cr3);
                // PMIs that come now are dropped.
                if self.random.below(4) == 0 {
                    self.machine.disarm();
                    self.machine.run(self.random.below(1500) as usize);
                    self.machine.arm(Delivery::Nmi).unwrap();
                }
            }
        }
        self.serve_late();
        assert_eq!(self.tracing.state() == PtState::Tracing, self.machine.is_tracing(), "{}", self.what);
    }

    /// Sets the sink to take everything, a part, or nothing.
    fn begin(&mut self) {
        if self.mode == Mode::Overwrite {
            self.ledger.begin();
        }
        let part = self.random.below(6000) as usize;
        self.ledger.appetite = self.random.of(&[None, None, Some(part), Some(part), Some(0)]);
    }

    /// Performs an operation of the driver during which an interrupt arrives or an access fails.
    fn drive(
        &mut self,
        sum: &mut Sum,
        work: impl Fn(&mut Tracing<'_>, &mut Ledger<'_>) -> Result<PtState, GeneralProtection>,
    ) {
        match self.random.below(4) {
            0 => self.machine.fault_in(self.random.below(9) as u32),
            _ => self.disturb(sum),
        }
        let result = work(&mut self.tracing, &mut self.ledger);
        sum.faults += u64::from(result.is_err());
        if let (Err(fault), false) = (result, self.machine.is_tracing()) {
            assert_ne!(self.tracing.state(), PtState::Tracing, "{}: {fault}", self.what);
        }
    }

    fn disturb(&mut self, sum: &mut Sum) {
        let jumps = self.random.of(&[0, 1, 30, 700, 1500]);
        self.machine.disturb_in(self.random.below(12) as u32, jumps);
        sum.disturbed += 1;
    }

    /// Delivers the PMI that arrived while the driver worked.
    fn serve_late(&mut self) {
        if self.machine.settle() {
            self.begin();
            self.machine.interrupt(&mut self.handler, &mut [&mut self.tracing.source(&mut self.ledger)]);
        }
    }

    fn end(mut self, sum: &mut Sum) {
        self.begin();
        self.disturb(sum);
        let stopped = self.tracing.stop().map_err(|_| "stop").unwrap();
        if self.machine.settle() {
            self.machine.interrupt(&mut self.handler, &mut []);
        }
        self.ledger.finish(&stopped.trace);
        let loss = stopped.loss;
        check_told(self.mode, &loss, &self.ledger.told, self.what);
        let violations = self.machine.violations();
        assert_eq!((violations.live_table_edits, violations.writes_outside_memory), (0, 0), "{}", self.what);
        sum.written += self.machine.ram.written();
        sum.lost.stop += loss.stop;
        sum.lost.full += loss.full;
        sum.lost.wrap += loss.wrap;
        sum.lost.perhaps_wrapped += loss.perhaps_wrapped;
        sum.lost.error += loss.error;
        sum.lost.abandoned += loss.abandoned;
    }
}

/// Checks that each counted loss was also reported, at its place.
fn check_told(mode: Mode, loss: &Loss, told: &Loss, what: &str) {
    let overwritten = |loss: &Loss| (loss.wrap, loss.wrapped_bytes, loss.perhaps_wrapped);
    let others = |loss: &Loss| (loss.stop, loss.error, loss.excluded);
    assert_eq!(overwritten(loss), overwritten(told), "{what}");
    if let Mode::StopWhenFull { .. } = mode {
        assert_eq!(others(loss), others(told), "{what}");
    }
    // Several losses at one place are reported as one; overwritten bytes remove the gaps among them.
    for (counted, told) in [(loss.full, told.full), (loss.abandoned, told.abandoned)] {
        assert!(told <= counted, "{what}");
        assert!(told > 0 || counted == 0 || loss.wrap > 0, "{what}");
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns a configuration with a filter by level, by CR3 or by address, or without one.
    fn config(&mut self, profile: &str) -> PtConfig {
        let levels = self.of(&[PtConfig::new().user(true), PtConfig::new().user(true).os(true)]);
        match self.below(4) {
            0 => levels.cr3(0x5000),
            1 if profile != "broadwell" => levels.filter(0x40_0000, 0x40_1fff),
            _ => levels,
        }
    }
}
