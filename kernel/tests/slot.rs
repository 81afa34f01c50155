//! Tests of the slot: the order of arming, starting and filling; interrupts that find the slot in use; NMIs of other
//! causes.

mod common;

use common::{Collector, Machine, Registers, Tracing, assert_same, tips};
use pugmark_kernel::intel::pt::PtState;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::{Delivery, LocalApic, LvtPc, Vector};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Abandoned, Handler, Pmi, PmiSource, Requests};
use pugmark_kernel::slot::{Interrupt, NotTraced, Slot, SlotError, Traced};
use pugmark_model::intel::IntelSettings;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const LAYOUT: Layout =
    Layout::Topa { size: RegionSize::K4, regions: 3, regions_per_table: 511, contiguous: false };

#[test]
fn a_pmi_between_the_start_and_the_filled_slot_is_served_when_it_is_filled() {
    for delivery in [Delivery::Nmi, Delivery::Fixed(Vector::new(0x40).unwrap())] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let slot = slot(&machine, Handler::new(delivery));
        let started = slot.start(|| {
            assert!(!lvt(&machine).is_masked(), "armed before anything can ask");
            let tracing = machine.start(LAYOUT, FULL);
            machine.jump_until_pmi();
            assert_eq!(slot.interrupt(None), Ok(Pmi::Later));
            assert!(lvt(&machine).is_masked());
            Ok::<_, ()>(Tracer { tracing, collector: Collector::new() })
        });
        started.unwrap();
        assert_eq!((slot.waits(), slot.handler(|handler| handler.counts().served)), (1, Ok(1)));
        assert!(!lvt(&machine).is_masked());
        run(&machine, &slot, 30_000);
        assert_whole(&machine, finish(&slot));
    }
}

#[test]
fn no_pmi_is_lost_wherever_one_comes_while_the_slot_is_in_use() {
    for busy in [1, 7, 100, 500, 1500] {
        let machine = Machine::new("skylake", IntelSettings { pmi_skid: 40, ..IntelSettings::default() });
        let slot = started(&machine);
        for _ in 0..40 {
            run(&machine, &slot, 100);
            let before = slot.waits();
            let ended = slot.with(|_| {
                let mut pmis = 0;
                for _ in 0..busy {
                    if machine.jump().is_some() {
                        pmis += 1;
                        assert_eq!(slot.interrupt(None), Ok(Pmi::Later), "the only one");
                    }
                }
                pmis
            });
            assert_eq!(ended.map(|pmis| slot.waits() - before == pmis && pmis <= 1), Ok(true));
            assert!(!lvt(&machine).is_masked(), "served at the end");
        }
        // If the slot was held for longer than the spare region lasts, the loss is reported.
        let (loss, collector) = finish(&slot);
        assert_eq!(loss.stop > 0, busy == 1500, "{busy} {loss:?}");
        assert_eq!(collector.gaps, vec![Gap::Stop; loss.stop as usize], "{busy}");
        assert!(slot.waits() > 0 || busy < 100);
        if busy < 1500 {
            assert_whole(&machine, (loss, collector));
        }
    }
}

#[test]
fn somebody_elses_nmi_is_handed_on_stops_nothing_and_costs_two_accesses() {
    let trace = |mode, foreign| {
        let machine = Machine::new("skylake", IntelSettings::default());
        let slot = slot(&machine, Handler::new(Delivery::Nmi));
        let tracing = || machine.start(Layout::topa(RegionSize::K64, 8), mode);
        slot.start(|| Ok::<_, ()>(Tracer { tracing: tracing(), collector: Collector::new() })).unwrap();
        for _ in 0..200 {
            run(&machine, &slot, 17);
            if foreign {
                let before = machine.accesses();
                assert_eq!(slot.interrupt(Some(0xbad)), Ok(Pmi::NotOurs));
                assert_eq!(machine.accesses() - before, 2, "LVT and IA32_PERF_GLOBAL_STATUS");
                assert!(machine.is_tracing());
            }
        }
        let (loss, collector) = finish(&slot);
        let bytes = collector.whole().to_vec();
        assert_whole(&machine, (loss, collector));
        bytes
    };
    for mode in [FULL, Mode::Overwrite, Mode::Circular { interrupt_every: 1 }] {
        assert!(trace(mode, true) == trace(mode, false), "{mode:?}");
    }
}

#[test]
fn somebody_elses_nmi_is_handed_on_also_where_it_finds_the_slot_in_use() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let slot = started(&machine);
    // Without a PMI nothing is noted.
    let before = machine.accesses();
    assert_eq!(slot.with(|_| slot.interrupt(None)), Ok(Ok(Pmi::NotOurs)));
    assert_eq!((machine.accesses() - before, slot.waits()), (1, 0));
    // A PMI, and then an NMI of another cause: the entry is masked because of the first.
    let both = slot.with(|_| {
        machine.jump_until_pmi();
        [slot.interrupt(None), slot.interrupt(None)]
    });
    assert_eq!(both, Ok([Ok(Pmi::Later), Ok(Pmi::Unknown)]));
    assert!(Pmi::Unknown.may_be_anothers() && Pmi::NotOurs.may_be_anothers());
    assert!(!Pmi::Later.may_be_anothers());
    assert_eq!(slot.interrupt(None), Ok(Pmi::NotOurs));
    run(&machine, &slot, 10_000);
    assert_whole(&machine, finish(&slot));
}

#[test]
fn amds_entry_does_not_tell_who_finds_the_slot_in_use() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let slot = slot(&machine, Handler::amd(Delivery::Nmi));
    let tracer = || Tracer { tracing: machine.start(LAYOUT, FULL), collector: Collector::new() };
    slot.start(|| Ok::<_, ()>(tracer())).unwrap();
    assert_eq!(slot.with(|_| slot.interrupt(None)), Ok(Ok(Pmi::Unknown)));
}

#[test]
fn what_comes_after_amds_sources_that_were_given_up_has_pmis_again() {
    for serving in [false, true] {
        let machine = Machine::new("skylake", IntelSettings::default());
        machine.disarm();
        // SAFETY: one thread uses it, with one machine.
        let slot =
            unsafe { Slot::new(Handler::amd(Delivery::Nmi), || (machine.registers(), machine.registers())) };
        slot.start(|| Ok::<_, ()>(Restless { asks: true })).unwrap();
        assert_eq!(slot.interrupt(Some(1)), Ok(Pmi::Stuck));
        assert!(lvt(&machine).is_masked());
        if serving {
            slot.with(|restless| restless.asks = false).unwrap();
            assert!(!lvt(&machine).is_masked(), "it asks no more");
        }
        slot.stop(|_, _| ()).unwrap();
        slot.start(|| Ok::<_, ()>(Restless { asks: false })).unwrap();
        assert!(!lvt(&machine).is_masked(), "{serving}");
        slot.stop(|_, _| ()).unwrap();
        slot.disarm().unwrap();
        assert!(lvt(&machine).is_masked());
    }
}

#[test]
fn a_source_that_asks_again_before_the_slot_is_free_is_left_stopped() {
    // (number of further requests, the source is left stopped)
    for (again, given_up) in [(0, false), (1, false), (15, false), (16, true), (u32::MAX, true)] {
        let (slot, hasty) = hasty_slot();
        slot.with(|_| hasty.ask(&slot)).unwrap();
        hasty.left.set(again);
        hasty.resumed.set(0);
        slot.with(|_| hasty.ask(&slot)).unwrap();
        assert_eq!(hasty.abandoned.get(), u32::from(given_up), "{again}");
        assert_eq!(hasty.runs.get(), !given_up, "{again}");
        assert_eq!(slot.waits(), 2 + u64::from(hasty.resumed.get() - u32::from(!given_up)), "{again}");
        // No request went unserved, and when there is time the source resumes.
        hasty.left.set(0);
        let counts = slot.handler(|handler| handler.counts()).unwrap();
        assert_eq!(counts.stuck, u64::from(given_up), "{again}");
        assert!(hasty.runs.get(), "{again}");
        assert_eq!(hasty.served.get(), hasty.asked.get(), "{again}");
    }
}

#[test]
fn a_pmi_that_could_not_be_served_is_served_by_whoever_has_the_slot_next() {
    let mut faults = 0;
    for access in 0..16 {
        let machine = Machine::new("skylake", IntelSettings::default());
        let slot = started(&machine);
        machine.jump_until_pmi();
        machine.fault_in(access);
        if slot.interrupt(None).is_ok() {
            // This access may fail unnoticed, or there is no such access any more.
            continue;
        }
        faults += 1;
        assert_eq!(slot.with(|tracer| tracer.tracing.drain(&mut tracer.collector)), Ok(Ok(PtState::Tracing)));
        assert!(!lvt(&machine).is_masked(), "{access}");
        let from = machine.jumps().len();
        run(&machine, &slot, 10_000);
        let (_, collector) = finish(&slot);
        let got: Vec<u64> = collector.stretches.iter().flat_map(|stretch| tips(stretch)).collect();
        assert!(got.ends_with(&machine.jumps()[from..]), "{access}");
    }
    assert!(faults >= 12, "{faults}");
}

#[test]
fn a_pmi_in_flight_at_the_stop_is_claimed_and_the_next_start_waits_for_nothing() {
    let machine = Machine::new("skylake", IntelSettings { pmi_skid: 400, ..IntelSettings::default() });
    let slot = slot(&machine, Handler::new(Delivery::Fixed(Vector::new(0x40).unwrap())));
    let tracer = |mode| Tracer { tracing: machine.start(LAYOUT, mode), collector: Collector::new() };
    slot.start(|| Ok::<_, ()>(tracer(FULL))).unwrap();
    assert!(!machine.jump_until(|| machine.msr(0x38e) >> 55 & 1 == 1), "it is on its way");
    finish(&slot);
    assert!(lvt(&machine).is_masked(), "the PMI came when the trace was off");
    // Interrupts are off, so it was not handled yet: the next start unmasks the entry all the same.
    let from = machine.jumps().len();
    slot.start(|| Ok::<_, ()>(tracer(Mode::Circular { interrupt_every: 1 }))).unwrap();
    assert_eq!(slot.handler(|handler| handler.counts().stray), Ok(1));
    assert!(!lvt(&machine).is_masked());
    run(&machine, &slot, 1000);
    let (loss, collector) = finish(&slot);
    assert_eq!(loss, Loss::NONE);
    assert_same(&tips(collector.whole()), &machine.jumps()[from..], "the second trace");
}

#[test]
fn a_slot_says_why_it_does_not_start() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let slot = slot(&machine, Handler::new(Delivery::Nmi));
    let tracer = || Tracer { tracing: machine.start(LAYOUT, FULL), collector: Collector::new() };
    // A start that fails leaves the entry unchanged.
    assert!(matches!(slot.start(|| Err(7)), Err(NotTraced::Start(7))));
    assert!(lvt(&machine).is_masked());
    assert_eq!(slot.with(|_| ()), Err(SlotError::Empty));
    assert_eq!(
        slot.interrupt(None),
        Ok(Pmi::Unknown),
        "a PMI may have been latched while the entry was armed"
    );
    assert_eq!(slot.interrupt(None), Ok(Pmi::NotOurs), "a masked entry that nobody armed says nothing");
    machine.fault_in(0);
    assert!(matches!(slot.start(|| Ok::<_, ()>(tracer())), Err(NotTraced::Slot(SlotError::Fault(_)))));
    slot.start(|| Ok::<_, ()>(tracer())).unwrap();
    assert!(matches!(slot.start(|| Err(8)), Err(NotTraced::Slot(SlotError::Occupied))));
    assert_eq!(slot.disarm(), Err(SlotError::Occupied));
    let inner = slot.with(|_| (slot.with(|_| ()), slot.start(|| Err(())).is_err(), slot.handler(|_| ())));
    assert_eq!(inner, Ok((Err(SlotError::InUse), true, Err(SlotError::InUse))));
    finish(&slot);
    slot.replace(Handler::new(Delivery::Fixed(Vector::new(0x40).unwrap()))).unwrap();
    assert_eq!(lvt(&machine), LvtPc(0x1_0400));
    slot.start(|| Ok::<_, ()>(tracer())).unwrap();
    assert_eq!(lvt(&machine), LvtPc(0x40));
}

#[test]
fn a_slot_does_not_start_where_software_has_not_enabled_the_local_apic() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let slot = slot(&machine, Handler::new(Delivery::Nmi));
    let tracer = || Tracer { tracing: machine.start(LAYOUT, FULL), collector: Collector::new() };
    machine.enable_apic(false);
    let refused = slot.start(|| -> Result<_, ()> { panic!("nothing is started") });
    assert_eq!(refused, Err(NotTraced::Slot(SlotError::ApicDisabled)));
    assert!(lvt(&machine).is_masked() && !machine.is_tracing());
    machine.enable_apic(true);
    slot.start(|| Ok::<_, ()>(tracer())).unwrap();
    run(&machine, &slot, 5_000);
    assert_whole(&machine, finish(&slot));
}

#[test]
fn an_nmi_that_was_latched_when_the_entry_was_masked_may_be_a_pmi() {
    let fixed = Delivery::Fixed(Vector::new(0x40).unwrap());
    for replaced in [None, Some(Handler::new(Delivery::Nmi)), Some(Handler::new(fixed))] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let slot = started(&machine);
        // The PMI is delivered, and its NMI arrives only after the trace is gone and the entry is masked.
        machine.jump_until_pmi();
        finish(&slot);
        match replaced {
            None => slot.disarm().unwrap(),
            Some(handler) => slot.replace(handler).unwrap(),
        }
        let is_nmi = slot.handler(|handler| handler.counts().stray) == Ok(0);
        assert!(is_nmi, "it has not arrived yet");
        let arrived = slot.interrupt(Some(0x1000)).unwrap();
        assert!(matches!(arrived, Pmi::Unknown | Pmi::Stray), "{arrived:?}");
        assert!(lvt(&machine).is_masked());
    }
    // Masked several times, the handler expects one NMI.
    let machine = Machine::new("skylake", IntelSettings::default());
    let slot = started(&machine);
    finish(&slot);
    slot.disarm().unwrap();
    slot.disarm().unwrap();
    assert_eq!([0x1000, 0x2000].map(|rip| slot.interrupt(Some(rip))), [Ok(Pmi::Unknown), Ok(Pmi::NotOurs)]);
}

/// A trace with the sink that receives its bytes.
struct Tracer<'a> {
    tracing: Tracing<'a>,
    collector: Collector,
}

impl Traced for Tracer<'_> {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [&mut self.tracing.source(&mut self.collector)])
    }
}

/// A source that has a new request each time it is served, as long as the test requests.
struct Restless {
    asks: bool,
}

impl PmiSource for Restless {
    fn status(&self) -> Requests {
        Requests::NONE
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.asks)
    }

    fn service(&mut self, _: Requests) -> Result<bool, GeneralProtection> {
        Ok(self.asks)
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }
}

impl Traced for Restless {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [self])
    }
}

/// A source whose next interrupt arrives as soon as it is resumed, as often as the test requests.
#[derive(Clone, Default)]
struct Hasty {
    left: Rc<Cell<u32>>,
    asks: Rc<Cell<bool>>,
    runs: Rc<Cell<bool>>,
    /// The numbers of interrupts requested, of services, of resumes, and of times left stopped.
    asked: Rc<Cell<u32>>,
    served: Rc<Cell<u32>>,
    resumed: Rc<Cell<u32>>,
    abandoned: Rc<Cell<u32>>,
    slot: Rc<RefCell<Weak<HastySlot>>>,
}

type HastySlot = Slot<Hasty, Box<dyn Fn() -> (Registers, Registers)>>;

/// Returns a slot with such a source. Its interrupts are delivered as AMD does.
fn hasty_slot() -> (Rc<HastySlot>, Hasty) {
    let registers = Machine::new("skylake", IntelSettings::default()).registers();
    let hasty = Hasty::default();
    // SAFETY: one thread uses it, with one machine.
    let slot = unsafe {
        Slot::new(
            Handler::amd(Delivery::Nmi),
            Box::new(move || (registers.clone(), registers.clone())) as Box<dyn Fn() -> _>,
        )
    };
    let slot = Rc::new(slot);
    *hasty.slot.borrow_mut() = Rc::downgrade(&slot);
    slot.start(|| Ok::<_, ()>(hasty.clone())).unwrap();
    (slot, hasty)
}

impl Hasty {
    /// Delivers the source's interrupt while the slot is in use.
    fn ask(&self, slot: &HastySlot) {
        self.asks.set(true);
        self.asked.set(self.asked.get() + 1);
        assert_eq!(slot.interrupt(None), Ok(Pmi::Unknown));
    }
}

impl PmiSource for Hasty {
    fn status(&self) -> Requests {
        Requests::NONE
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.runs.set(false);
        Ok(())
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.asks.get())
    }

    fn service(&mut self, _: Requests) -> Result<bool, GeneralProtection> {
        let asked = self.asks.take();
        self.served.set(self.served.get() + u32::from(asked));
        Ok(asked)
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.runs.set(true);
        self.resumed.set(self.resumed.get() + 1);
        assert!(self.resumed.get() < 1000, "for ever");
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let slot = self.slot.borrow().upgrade().unwrap();
            self.ask(&slot);
        }
        Ok(())
    }

    fn abandon(&mut self, why: Abandoned) {
        assert_eq!(why, Abandoned::Stuck);
        self.abandoned.set(self.abandoned.get() + 1);
    }
}

impl Traced for Hasty {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [self])
    }
}

type Shared<'a> = Slot<Tracer<'a>, Box<dyn Fn() -> (Registers, Registers) + 'a>>;

fn slot(machine: &Machine, handler: Handler) -> Shared<'_> {
    machine.disarm();
    // SAFETY: one thread uses it, with one machine.
    unsafe { Slot::new(handler, Box::new(|| (machine.registers(), machine.registers()))) }
}

fn started(machine: &Machine) -> Shared<'_> {
    let slot = slot(machine, Handler::new(Delivery::Nmi));
    let tracer = || Tracer { tracing: machine.start(LAYOUT, FULL), collector: Collector::new() };
    slot.start(|| Ok::<_, ()>(tracer())).unwrap();
    slot
}

/// Runs, and serves each PMI.
fn run(machine: &Machine, slot: &Shared<'_>, jumps: usize) {
    for n in 0..jumps {
        if machine.jump().is_some() {
            assert!(matches!(slot.interrupt(Some(n as u64)), Ok(Pmi::Served | Pmi::Stray)));
        }
    }
}

fn finish(slot: &Shared<'_>) -> (Loss, Collector) {
    let Tracer { tracing, mut collector } = slot.stop(|tracer, _| tracer).unwrap();
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    (stopped.loss, collector)
}

fn lvt(machine: &Machine) -> LvtPc {
    machine.registers().lvt_pc().unwrap()
}

#[track_caller]
fn assert_whole(machine: &Machine, (loss, collector): (Loss, Collector)) {
    assert_eq!(loss, Loss::NONE);
    assert_same(&tips(collector.whole()), &machine.jumps(), "all of it");
    assert_eq!(machine.violations().live_table_edits, 0);
}
