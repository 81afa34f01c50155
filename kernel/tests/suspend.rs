//! Traces that are suspended and wake, move between threads, and are read after a panic; units that other owners left
//! on.

mod common;

use common::{Collector, Machine, Ram, Registers, Tracing, assert_same, run_within, synced, tips, user_code};
use pugmark_kernel::drain::KeepAll;
use pugmark_kernel::intel::pt::{
    Layout, Mode, PtRefusal, PtState, PtTask, PtTracer, PtUnit, RegionSize, VmxTracing,
};
use pugmark_kernel::lapic::{Delivery, LocalApic, LvtPc};
use pugmark_kernel::lifecycle::{Absent, InUse, StartError};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::{Msr, RtitStatus};
use pugmark_kernel::pmi::{Abandoned, Handler, Pmi};
use pugmark_kernel::slot::{Slot, SlotError};
use pugmark_model::PhysMemory;
use pugmark_model::intel::IntelSettings;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };

fn machine() -> Machine {
    Machine::new("skylake", IntelSettings::default())
}

fn write(machine: &Machine, address: u32, value: u64) {
    // SAFETY: the registers stand for no hardware.
    unsafe { machine.registers().wrmsr(address, value) }.unwrap();
}

fn entry(machine: &Machine, address: u64) -> u64 {
    let mut bytes = [0; 8];
    assert!(PhysMemory::read(&&*machine.ram, address, &mut bytes));
    u64::from_le_bytes(bytes)
}

fn set_entry(machine: &Machine, address: u64, entry: u64) {
    assert!(PhysMemory::write(&mut &*machine.ram, address, &entry.to_le_bytes()));
}

/// Leaves the processor's registers as a sleep state or INIT does.
fn lose_registers(machine: &Machine) {
    for address in [0x570, 0x571, 0x560, 0x561, 0x572, 0x580, 0x581, 0x390] {
        write(machine, address, 0);
    }
    machine.disarm();
}

/// Stops, and returns the targets in the bytes drained before and in the rest of the trace.
fn finish(tracing: Tracing<'_>, mut collector: Collector) -> Vec<u64> {
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss, Loss::NONE);
    collector.finish(&stopped.trace);
    tips(collector.whole())
}

#[test]
fn a_suspended_trace_stays_off_until_it_wakes_and_loses_nothing() {
    for mode in [FULL, Mode::Circular { interrupt_every: 4 }, Mode::Overwrite] {
        let machine = machine();
        let mut handler = machine.handler();
        let config = user_code().filter(0x40_0000, 0x40_ffff);
        let buffer = machine.buffer(Layout::topa(RegionSize::K4, 16), mode);
        let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
        machine.run(300);
        assert!(tracing.stretches().is_none(), "the processor may write to it");
        tracing.suspend().unwrap();
        assert_eq!((tracing.state(), machine.is_tracing()), (PtState::Suspended, false));
        let before = tracing.undrained();
        assert_eq!(tracing.stretches().unwrap().map(|stretch| stretch.len()).sum::<u64>(), before);
        lose_registers(&machine);
        // The trace stays off in spite of every event meanwhile.
        machine.run(100);
        let mut collector = Collector::new();
        assert_eq!(tracing.drain(&mut collector), Ok(PtState::Suspended));
        assert_eq!(tracing.go_on(), Ok(PtState::Suspended));
        machine.interrupt(&mut handler, &mut [&mut tracing.source(&mut collector)]);
        tracing.suspend().unwrap();
        assert!(!machine.is_tracing());
        let first = collector.stretches[0].len();
        assert_eq!(first as u64, before, "{mode:?}");
        machine.arm(Delivery::Nmi).unwrap();
        assert_eq!(tracing.wake(), Ok(PtState::Tracing));
        machine.run(300);
        if mode == Mode::Overwrite {
            // A drain leaves everything in such a buffer.
            collector = Collector::new();
        }
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert_eq!(stopped.loss, Loss::NONE);
        collector.finish(&stopped.trace);
        let bytes = collector.whole();
        assert!(bytes[first..].starts_with(&[0x02, 0x82]), "it wakes with a PSB");
        assert_same(&tips(bytes), &machine.jumps(), "before and after");
        assert_eq!(machine.jumps().len(), 600);
    }
}

#[test]
fn a_trace_wakes_with_a_psb() {
    let machine = machine();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    machine.run(50);
    tracing.suspend().unwrap();
    let first = tracing.undrained() as usize;
    assert_eq!(tracing.wake(), Ok(PtState::Tracing));
    machine.run(50);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    assert!(collector.whole()[first..].starts_with(&[0x02, 0x82]));
    assert_same(&tips(collector.whole()), &machine.jumps(), "before and after");
}

#[test]
fn a_trace_that_had_stopped_stays_stopped_when_it_wakes() {
    let machine = machine();
    let config = user_code().trace_stop(0x40_0200, 0x40_02ff);
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
    machine.run(100);
    tracing.suspend().unwrap();
    assert_eq!(tracing.state(), PtState::Suspended);
    assert_eq!(tracing.wake(), Ok(PtState::TraceStopped));
    assert!(!machine.is_tracing());
}

#[test]
fn a_suspend_that_faults_leaves_the_trace_on_or_suspended() {
    // After the reads that show the owner of the trace, the write that clears TraceEn and the read after it fault: the
    // trace runs.
    let machine = machine();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    machine.run(50);
    machine.faults_in(2, 2);
    tracing.suspend().unwrap_err();
    machine.settle();
    assert_eq!((tracing.state(), machine.is_tracing()), (PtState::Tracing, true));
    // A later access: the trace is off and stays off, and the next call reads the rest.
    machine.fault_in(4);
    tracing.suspend().unwrap_err();
    assert_eq!((tracing.state(), machine.is_tracing()), (PtState::Suspended, false));
    assert!(tracing.stretches().is_none(), "it is not known how far it came");
    tracing.suspend().unwrap();
    assert!(tracing.stretches().is_some());
    assert_eq!(tracing.wake(), Ok(PtState::Tracing));
    machine.run(50);
    assert_same(&finish(tracing, Collector::new()), &machine.jumps(), "all of it");
}

#[test]
fn vmx_operation_is_survived_with_a_suspended_trace_and_without() {
    for suspended in [true, false] {
        let machine = machine();
        let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
        assert!(matches!(tracing.vmx_tracing(), VmxTracing::NoVmx | VmxTracing::ClearedByVmxon));
        machine.run(50);
        if suspended {
            tracing.suspend().unwrap();
        }
        machine.vmxon();
        machine.run(50);
        let mut collector = Collector::new();
        match suspended {
            true => assert_eq!(tracing.drain(&mut collector), Ok(PtState::Suspended)),
            false => {
                // The trace is drained. It cannot resume, which is reported.
                let fault = tracing.drain(&mut collector).unwrap_err();
                assert_eq!(
                    (fault.address, tracing.state()),
                    (0x570, PtState::Abandoned(Abandoned::Fault(fault)))
                );
            }
        }
        assert_same(&tips(&collector.stretches[0]), &machine.jumps(), "all before VMXON");
        machine.vmxoff();
        match suspended {
            true => assert_eq!(tracing.wake(), Ok(PtState::Tracing)),
            false => assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing)),
        }
        machine.run(50);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert_eq!((stopped.loss.is_none(), stopped.loss.abandoned), (suspended, u64::from(!suspended)));
        collector.finish(&stopped.trace);
        let targets: Vec<u64> = collector.stretches.iter().flat_map(|bytes| tips(bytes)).collect();
        assert_same(&targets, &machine.jumps(), "before and after");
    }
}

#[test]
fn a_unit_that_is_off_in_vmx_operation_gives_its_memory_back() {
    let machine = machine();
    let tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    machine.run(50);
    machine.vmxon();
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    assert_eq!(collector.gaps, [Gap::TurnedOff]);
    assert_same(&tips(&collector.stretches[0]), &machine.jumps(), "all before VMXON");
}

type Held<'a> = PtTracer<Registers, &'a Ram, Collector>;

fn slot<'a>(machine: &'a Machine) -> Slot<Held<'a>, impl Fn() -> (Registers, Registers) + 'a> {
    // SAFETY: one thread uses it, with one machine.
    unsafe { Slot::new(Handler::new(Delivery::Nmi), || (machine.registers(), machine.registers())) }
}

fn lvt(machine: &Machine) -> LvtPc {
    machine.registers().lvt_pc().unwrap()
}

#[test]
fn a_slot_is_armed_again_when_the_local_apic_lost_its_entry() {
    let machine = machine();
    machine.disarm();
    let slot = slot(&machine);
    slot.rearm().unwrap();
    assert!(lvt(&machine).is_masked(), "a disarmed slot stays so");
    let layout = Layout::topa(RegionSize::K4, 4);
    let tracer = || PtTracer { running: machine.start(layout, FULL), sink: Collector::new() };
    slot.start(|| Ok::<_, ()>(tracer())).unwrap();
    slot.with(|tracer| tracer.running.suspend()).unwrap().unwrap();
    lose_registers(&machine);
    machine.enable_apic(false);
    assert_eq!(slot.rearm(), Err(SlotError::ApicDisabled));
    machine.enable_apic(true);
    slot.rearm().unwrap();
    assert_eq!(lvt(&machine), LvtPc(0x400));
    assert_eq!(slot.with(|tracer| tracer.running.wake()), Ok(Ok(PtState::Tracing)));
    for _ in 0..20_000 {
        if machine.jump().is_some() {
            assert_eq!(slot.interrupt(None), Ok(Pmi::Served));
        }
    }
    let tracer = slot.stop(|tracer, _| tracer).unwrap();
    assert_same(&finish(tracer.running, tracer.sink), &machine.jumps(), "with its PMIs");
}

#[test]
fn a_panic_reads_what_ran_last_even_from_within_the_slot() {
    for (layout, within) in
        [(Layout::topa(RegionSize::K4, 8), false), (Layout::contiguous_topa(RegionSize::K4, 8), true)]
    {
        let machine = machine();
        let slot = slot(&machine);
        let tracer = || PtTracer { running: machine.start(layout, Mode::Overwrite), sink: Collector::new() };
        slot.start(|| Ok::<_, ()>(tracer())).unwrap();
        machine.run(50_000);
        let newest = |tracer: &mut Held<'_>| {
            tracer.running.suspend().unwrap();
            let stretches: Vec<_> = tracer.running.stretches().unwrap().newest(0x3000).collect();
            let [stretch] = &stretches[..] else { panic!("{stretches:?}") };
            assert_eq!((stretch.len(), stretch.begins_within_a_packet()), (0x3000, true));
            let mut memory = vec![0; 0x3000];
            stretch.copy_to(&mut memory).unwrap().to_vec()
        };
        let bytes = match within {
            // SAFETY: the code that holds the slot does not use it afterwards.
            true => slot.with(|_| unsafe { slot.with_in_panic(newest) }).unwrap(),
            // SAFETY: nobody holds the slot.
            false => unsafe { slot.with_in_panic(newest) },
        };
        let (last, jumps) = (tips(synced(&bytes.unwrap())), machine.jumps());
        assert!(last.len() > 2000, "{}", last.len());
        assert_eq!(run_within(&last, &jumps, jumps.len() - last.len()), Some(jumps.len()), "the end of it");
    }
}

#[test]
fn a_panic_without_a_trace_is_told_so() {
    let machine = machine();
    let slot = slot(&machine);
    // SAFETY: nobody holds the slot.
    assert_eq!(unsafe { slot.with_in_panic(|_| ()) }, Err(SlotError::Empty));
}

#[test]
fn an_error_names_the_entry_that_caused_it_also_when_the_trace_has_gone_on() {
    let machine = machine();
    let layout = Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 1, contiguous: true };
    let mut tracing = machine.start(layout, FULL);
    assert_eq!(tracing.last_error(), None);
    // The regions are one block, allocated first, and each has its own table: this is the third. Bit 1 is reserved.
    let table = machine.ram.block(3);
    let good = entry(&machine, table);
    set_entry(&machine, table, good | 2);
    machine.run(10_000);
    tracing.suspend().unwrap();
    let error = tracing.last_error().unwrap();
    assert!(error.status.contains(RtitStatus::ERROR));
    assert_eq!((error.base.0, error.pointers.entry(), error.entry), (table, 0, Some(good | 2)));
    set_entry(&machine, table, good);
    assert_eq!(tracing.wake(), Ok(PtState::Tracing));
    machine.run(10);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!((stopped.error, stopped.loss.error), (Some(error), 1));
}

#[test]
fn a_unit_that_was_left_on_is_taken_over_with_word_of_what_it_traced() {
    let machine = machine();
    // Firmware traces into a single range, and leaves.
    write(&machine, 0x560, 0x1000);
    write(&machine, 0x561, 0xfff);
    write(&machine, 0x570, 0x200d);
    machine.run(20);
    let detected = PtUnit::with_capabilities(machine.capabilities(), machine.registers());
    assert!(matches!(detected, Err(Absent::InUse(InUse::ProcessorTrace { .. }))));
    let (unit, left_on) = PtUnit::take_over(machine.capabilities(), machine.registers()).unwrap();
    let left_on = left_on.unwrap();
    assert_eq!((left_on.ctl.bits(), left_on.base.0), (0x200d, 0x1000));
    assert!(left_on.pointers.offset() > 16 && !machine.is_tracing(), "{left_on}");
    let traced = machine.jumps().len();
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    let tracing = unit.start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
    machine.run(100);
    assert_same(&finish(tracing, Collector::new()), &machine.jumps()[traced..], "the driver's own");
    // A unit that is off is only detected.
    let (_, left_on) = PtUnit::take_over(machine.capabilities(), machine.registers()).unwrap();
    assert_eq!(left_on, None);
}

#[test]
fn each_thread_has_its_own_trace_however_they_are_switched() {
    let machine = machine();
    let layout = Layout::topa(RegionSize::K4, 16);
    let task = |config| PtTask::new(&machine.capabilities(), &config, machine.buffer(layout, FULL)).unwrap();
    let filtered = user_code().filter(0x40_0000, 0x40_1fff).cr3(0x5000);
    let mut running = machine.start(layout, FULL);
    let mut waiting = vec![(1, task(filtered)), (2, task(user_code().return_compression(false)))];
    let mut ran: [Vec<u64>; 3] = [const { Vec::new() }; 3];
    let mut here = 0;
    for slice in 0..60 {
        let before = machine.jumps().len();
        machine.run(7 + slice);
        ran[here].extend(&machine.jumps()[before..]);
        let (next, coming) = waiting.remove(0);
        let accesses = machine.accesses();
        let left = running.switch(coming).unwrap();
        assert_eq!(running.state(), PtState::Tracing);
        let filters = if next == 1 { 3 } else { 0 };
        // 5 writes and 7 reads; this model reads IA32_DEBUGCTL, too.
        assert_eq!(machine.accesses() - accesses, 12 + 1 + filters, "thread {next}");
        waiting.push((here, left));
        here = next;
    }
    let (last, coming) = waiting.remove(0);
    waiting.push((here, running.switch(coming).unwrap()));
    let traces = waiting.into_iter().map(|(n, task)| {
        assert_eq!(task.loss(), &Loss::NONE);
        (n, task.into_trace())
    });
    let stopped = running.stop().map_err(|_| "stop").unwrap();
    for (n, trace) in traces.chain([(last, stopped.trace)]) {
        let mut collector = Collector::new();
        collector.finish(&trace);
        let targets = tips(collector.whole());
        match n {
            1 => {
                // A jump into the range is a TIP.PGE, and one out of it a TIP.PGD.
                let inside = |target: &u64| (0x40_0010..0x40_2000).contains(target);
                let expected: Vec<u64> = ran[1].iter().copied().filter(inside).collect();
                assert!(!expected.is_empty() && expected.len() < ran[1].len());
                assert_same(&targets, &expected, "the thread with filters");
            }
            _ => assert_same(&targets, &ran[n], "a thread"),
        }
    }
}

#[test]
fn the_trace_of_a_thread_has_its_pmis() {
    let machine = machine();
    let mut handler = machine.handler();
    let layout = Layout::topa(RegionSize::K4, 8);
    let mut running = machine.start(layout, FULL);
    let buffer = machine.buffer(layout, Mode::Circular { interrupt_every: 2 });
    let left = running.switch(PtTask::new(&machine.capabilities(), &user_code(), buffer).unwrap()).unwrap();
    let mut collector = Collector::new();
    let served = machine.run_with(20_000, &mut handler, &mut running.source(&mut collector));
    assert!(served.len() > 3 && served.iter().all(|&pmi| pmi == Pmi::Served), "{served:?}");
    assert_same(&finish(running, collector), &machine.jumps(), "with its PMIs");
    assert!(
        left.into_trace().stretches().all(|stretch| stretch.len() < 200),
        "nothing ran before the switch"
    );
}

#[test]
fn what_a_thread_has_lost_is_counted_in_its_own_trace() {
    let machine = machine();
    let layout = Layout::topa(RegionSize::K4, 2);
    let mut running = machine.start(layout, FULL);
    machine.run(5000);
    let other = PtTask::new(&machine.capabilities(), &user_code(), machine.buffer(layout, FULL)).unwrap();
    let full = running.switch(other).unwrap();
    assert_eq!((full.loss().stop, running.loss()), (1, &Loss::NONE));
    machine.run(20);
    let other = running.switch(full).unwrap();
    assert_eq!((other.loss(), running.loss().stop), (&Loss::NONE, 1));
}

#[test]
fn a_region_that_one_thread_has_filled_is_left_by_that_thread_alone() {
    // This processor has one entry in a table, so the driver chains the regions.
    let machine = Machine::new("broadwell", IntelSettings::default());
    let layout = Layout::topa(RegionSize::K4, 4);
    let mode = Mode::StopWhenFull { spare: 0 };
    let _ = machine.handler();
    let mut running = machine.start(layout, mode);
    machine.jump_until_pmi();
    let first = machine.jumps().len();
    let other = PtTask::new(&machine.capabilities(), &user_code(), machine.buffer(layout, mode)).unwrap();
    let filled = running.switch(other).unwrap();
    machine.run(20);
    let between = machine.jumps().len();
    let other = running.switch(filled).unwrap();
    let (mut handler, mut collector) = (machine.handler(), Collector::new());
    let served = machine.run_with(5000, &mut handler, &mut running.source(&mut collector));
    assert!(!served.is_empty() && served.iter().all(|pmi| *pmi == Pmi::Served), "{served:?}");
    let jumps = machine.jumps();
    assert_same(&finish(running, collector), &[&jumps[..first], &jumps[between..]].concat(), "the first");
    let mut collector = Collector::new();
    collector.finish(&other.into_trace());
    assert_same(&tips(collector.whole()), &jumps[first..between], "the other");
}

#[test]
fn a_switch_that_cannot_be_gives_the_trace_back() {
    let machine = machine();
    let layout = Layout::topa(RegionSize::K4, 4);
    let mut running = machine.start(layout, FULL);
    let mut other = machine.capabilities();
    other.linear_address_bits = 57;
    let task = PtTask::new(&other, &user_code(), machine.buffer(layout, FULL)).unwrap();
    machine.run(20);
    let failed = running.switch(task).unwrap_err();
    assert!(matches!(failed.error, StartError::Refused(PtRefusal::OtherProcessor)), "{failed}");
    assert!(machine.is_tracing());
    // A fault before the trace's position is read.
    let task = PtTask::new(&machine.capabilities(), &user_code(), machine.buffer(layout, FULL)).unwrap();
    machine.fault_in(2);
    let failed = running.switch(task).unwrap_err();
    assert!(matches!(failed.error, StartError::Fault(_)), "{failed}");
    // A fault after that: the switch is done, and the trace is off until the next drain.
    machine.fault_in(7);
    let left = running.switch(failed.coming).unwrap();
    assert!(matches!(running.state(), PtState::Abandoned(Abandoned::Fault(_))), "{:?}", running.state());
    machine.settle();
    assert_eq!(running.drain(&mut Collector::new()), Ok(PtState::Tracing));
    let mut collector = Collector::new();
    collector.finish(&left.into_trace());
    let targets: Vec<u64> = collector.stretches.iter().flat_map(|bytes| tips(bytes)).collect();
    assert_same(&targets, &machine.jumps()[..targets.len()], "what was traced before");
    assert_eq!(targets.len(), 20);
    // A configuration that no processor supports is refused at once.
    let buffer = machine.buffer(layout, FULL);
    let (_, refusal) = PtTask::new(&machine.capabilities(), &user_code().cr3(1), buffer).unwrap_err();
    assert_eq!(refusal.to_string(), "CR3 to match 0x1: bits 4:0 must be 0");
}

#[test]
fn a_suspended_unit_stays_off_after_a_switch() {
    let machine = machine();
    let layout = Layout::topa(RegionSize::K4, 4);
    let mut running = machine.start(layout, FULL);
    let task = PtTask::new(&machine.capabilities(), &user_code(), machine.buffer(layout, FULL)).unwrap();
    running.suspend().unwrap();
    let left = running.switch(task).unwrap();
    assert!(!machine.is_tracing() && left.loss().is_none());
    assert_eq!(running.wake(), Ok(PtState::Tracing));
    machine.run(20);
    assert_same(&finish(running, Collector::new()), &machine.jumps(), "the second one's");
}

#[test]
fn the_trace_of_a_thread_moves_with_it() {
    fn is_send<T: Send>() {}
    is_send::<PtTask<Frames>>();
}

/// Memory that any processor can use.
struct Frames;

// SAFETY: nothing is ever allocated.
unsafe impl pugmark_kernel::memory::Frames for Frames {
    fn allocate(&self, _: pugmark_kernel::memory::Request) -> Option<pugmark_kernel::memory::PhysAddr> {
        None
    }
    unsafe fn free(&self, _: pugmark_kernel::memory::PhysAddr, _: pugmark_kernel::memory::Request) {}
    fn pointer(&self, _: pugmark_kernel::memory::PhysAddr) -> core::ptr::NonNull<u8> {
        core::ptr::NonNull::dangling()
    }
}

#[test]
fn a_trace_that_went_off_by_itself_is_not_read_in_place_before_it_is_suspended() {
    let machine = machine();
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    let mut tracing = machine.unit().start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
    assert!(tracing.stretches().is_none());
    machine.run(20_000);
    assert_eq!(tracing.drain(&mut KeepAll), Ok(PtState::Full));
    assert!(!machine.is_tracing() && tracing.stretches().is_none());
    tracing.suspend().unwrap();
    let bytes: u64 = tracing.stretches().unwrap().map(|stretch| stretch.len()).sum();
    assert!(bytes > 0x2000 && bytes == tracing.undrained());
}
