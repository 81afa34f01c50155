//! Tests of the branch trace store.

use super::*;
use crate::drain::Chunk;
use crate::lifecycle::{NotStarted, StartError};
use crate::loss::Overwritten;

impl DsMachine {
    pub(super) fn area(&self, unit: &DsUnit<Self>, records: u64, mode: BufferMode) -> DsArea<FakeLinear> {
        let plan = BufferPlan { bytes: self.layout.branch_record_bytes() * records, page_offset: 0, mode };
        DsArea::allocate(
            self.memory.clone(),
            unit.capabilities(),
            &AreaPlan::new().bts(plan),
            Strictness::Lenient,
        )
        .unwrap()
    }

    pub(super) fn start(&self, records: u64, mode: BufferMode) -> DsRunning<Self, FakeLinear> {
        let unit = self.unit();
        let area = self.area(&unit, records, mode);
        unit.start(&config(), area).map_err(|failed| failed.error()).unwrap()
    }

    /// Executes this many branches, numbered from `first`, with the processor's effects that the driver sees.
    pub(super) fn branches(&self, first: u64, count: u64) {
        let [base, _, maximum, threshold] = [0, 1, 2, 3].map(|n| self.field(n));
        for branch in first..first + count {
            if self.get(DEBUGCTL) & 0xc0 != 0xc0 {
                return;
            }
            let mut index = self.field(1);
            let circular = self.get(DEBUGCTL) & 0x100 == 0;
            if circular && index >= maximum {
                index = base;
            }
            if index >= maximum {
                continue;
            }
            let bytes = self.layout.field_bytes();
            for (n, value) in (0..).zip([branch, !branch, 0]) {
                self.write(index + n * bytes, value);
            }
            index += 3 * bytes;
            self.write(self.get(DS_AREA) + bytes, index);
            if !circular && index >= threshold {
                self.request();
            }
        }
    }
}

pub(super) fn config() -> DsConfig {
    DsConfig::new().bts(BtsConfig::new()).gate(INTERRUPT_GATE)
}

/// The numbers of the recorded branches, and the gaps between them.
#[derive(Default)]
pub(super) struct Numbers {
    pub(super) seen: Vec<Result<u64, Gap>>,
    /// The number of records that the sink still takes.
    room: Option<usize>,
    /// True if records have 12 bytes.
    narrow: bool,
}

impl Numbers {
    pub(super) fn of(machine: &DsMachine) -> Self {
        Self { narrow: machine.layout == DsLayout::Bits32, ..Self::default() }
    }

    fn record_bytes(&self) -> usize {
        if self.narrow { 12 } else { 24 }
    }
}

fn numbers(bytes: &[u8], record_bytes: usize) -> impl Iterator<Item = u64> {
    assert_eq!(bytes.len() % record_bytes, 0);
    bytes.chunks(record_bytes).map(move |record| match record_bytes {
        12 => u64::from(u32::from_le_bytes(record[..4].try_into().unwrap())),
        _ => u64::from_le_bytes(record[..8].try_into().unwrap()),
    })
}

impl Sink for Numbers {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let size = self.record_bytes();
        let take = self.room.unwrap_or(usize::MAX).min(bytes.len() / size);
        self.room = self.room.map(|room| room - take);
        self.seen.extend(numbers(&bytes[..size * take], size).map(Ok));
        // One byte more than whole records, which must not count.
        size * take + 1
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.seen.push(Err(gap));
        true
    }
}

pub(super) fn branches(range: core::ops::Range<u64>) -> Vec<Result<u64, Gap>> {
    range.map(Ok).collect()
}

pub(super) fn drain(
    running: &mut DsRunning<DsMachine, FakeLinear>,
    sink: &mut impl Sink,
) -> Result<DsState, GeneralProtection> {
    running.drain(sink, &mut KeepAll)?;
    assert_eq!(running.state(Half::Pebs), None);
    Ok(running.state(Half::Bts).unwrap())
}

pub(super) const EIGHT_SPARE: BufferMode = BufferMode::Interrupt { spare: 8 };

#[test]
fn a_recording_gives_all_branches_and_leaves_the_processor_as_it_was() {
    let machine = DsMachine::new();
    machine.set(DEBUGCTL, 0x2);
    let running = machine.start(100, EIGHT_SPARE);
    assert_eq!(machine.get(DEBUGCTL), 0x1c2);
    machine.branches(0, 50);
    let stopped = running.stop().map_err(|failed| failed.fault).unwrap();
    assert_eq!((machine.get(DEBUGCTL), machine.get(DS_AREA)), (0x2, 0));
    assert!(stopped.records.loss(Half::Bts).is_none());
    let chunks: Vec<_> = stopped.records.chunks(Half::Bts).collect();
    let [Chunk::Bytes(bytes)] = chunks[..] else { panic!("{chunks:?}") };
    assert!(numbers(bytes, 24).eq(0..50));
    drop(stopped);
    assert_eq!(machine.memory.live(), 0);
}

#[test]
fn the_area_is_set_before_the_processor_is_told_to_use_it() {
    let machine = DsMachine::new();
    let running = machine.start(100, EIGHT_SPARE);
    let writes: Vec<u32> = machine.msr.borrow().writes.iter().map(|(address, _)| *address).skip(2).collect();
    assert_eq!(writes, [0x390, DS_AREA, DEBUGCTL]);
    drop(running);
    assert_eq!(machine.get(DEBUGCTL), 0);
    assert_eq!(machine.memory.live(), 0);
}

#[test]
fn draining_takes_what_the_sink_takes_and_goes_on() {
    for machine in DsMachine::both() {
        let mut running = machine.start(100, EIGHT_SPARE);
        let mut sink = Numbers { room: Some(30), ..Numbers::of(&machine) };
        machine.branches(0, 50);
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
        machine.branches(50, 20);
        assert_eq!(drain(&mut running, &mut KeepAll), Ok(DsState::Recording));
        sink.room = None;
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
        assert_eq!(sink.seen, branches(0..70));
        assert_eq!(machine.field(1), machine.field(0));
        assert!(running.loss(Half::Bts).is_none());
    }
}

#[test]
fn a_full_buffer_waits_for_the_sink_and_says_what_it_lost() {
    for machine in DsMachine::both() {
        let mut running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 110);
        assert_eq!(drain(&mut running, &mut KeepAll), Ok(DsState::Full));
        assert_eq!(machine.get(DEBUGCTL), 0);
        machine.branches(110, 5);
        let mut sink = Numbers::of(&machine);
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
        machine.branches(115, 5);
        drain(&mut running, &mut sink).unwrap();
        assert_eq!(sink.seen, [branches(0..100), vec![Err(Gap::Stop)], branches(115..120)].concat());
        assert_eq!((running.loss(Half::Bts).stop, running.loss(Half::Bts).full), (1, 1));
    }
}

#[test]
fn a_buffer_at_its_threshold_waits_for_the_sink() {
    let machine = DsMachine::new();
    let mut running = machine.start(100, EIGHT_SPARE);
    machine.branches(0, 92);
    assert_eq!(drain(&mut running, &mut KeepAll), Ok(DsState::Full));
    assert_eq!(machine.get(DEBUGCTL), 0);
    machine.branches(92, 3);
    let mut sink = Numbers::default();
    assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
    // There is a gap for the time when it was off.
    assert_eq!(sink.seen, [branches(0..92), vec![Err(Gap::Full)]].concat());
    assert_eq!(running.loss(Half::Bts), &Loss { full: 1, ..Loss::NONE });
}

#[test]
fn a_circular_buffer_holds_the_last_branches_in_their_order() {
    // (branches, records in the buffer)
    let table = [(0, 0..0), (9, 0..9), (10, 0..10), (11, 1..11), (47, 37..47)];
    let rows = table.iter().flat_map(|row| DsMachine::both().map(|machine| (machine, row)));
    for (machine, (count, there)) in rows {
        let count = *count;
        // This many records certainly overwrote others.
        let over = Overwritten::at_least(machine.layout.branch_record_bytes() * (count % 10));
        let wrap = (count >= 10).then_some(Err(Gap::Wrap(over)));
        let expected: Vec<_> = wrap.into_iter().chain(branches(there.clone())).collect();
        let mut running = machine.start(10, BufferMode::Circular);
        assert_eq!(machine.get(DEBUGCTL), 0xc0);
        machine.branches(0, count);
        for _ in 0..2 {
            let mut sink = Numbers::of(&machine);
            assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
            assert_eq!(sink.seen, expected, "{count}");
        }
        machine.branches(count, 10);
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap();
        let loss = stopped.records.loss(Half::Bts);
        assert_eq!((loss.wrap, loss.perhaps_wrapped), if count % 10 > 0 { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn the_pmi_is_claimed_by_the_index_whether_the_status_says_so_or_not() {
    // (performance monitoring version, OvfBuf)
    for (version, status) in [(2, 0), (2, 1 << 62), (1, 0)] {
        let machine = DsMachine::of(0x6f6, version);
        let mut handler = armed(&machine);
        let mut running = machine.start(100, EIGHT_SPARE);
        let mut sink = Numbers::default();
        for round in 0..3 {
            machine.branches(100 * round, 92);
            assert_eq!(machine.get(LVT_PC), 0x10400);
            machine.branches(100 * round + 92, 8);
            machine.set(0x38e, status);
            assert_eq!(interrupt(&machine, &mut handler, &mut running, &mut sink, &mut KeepAll), Pmi::Served);
            assert_eq!((machine.get(LVT_PC), machine.get(0x38e)), (0x400, 0));
        }
        // The buffer was full to the last record each time: it is unknown whether there were more.
        assert_eq!(sink.seen.iter().filter(|seen| seen.is_ok()).count(), 300);
        assert_eq!(running.loss(Half::Bts).stop, 3);
        let reads = machine.msr.borrow().reads.contains(&0x38e);
        assert_eq!(reads, version >= 2, "a register that is not there is not read");
    }
}

#[test]
fn a_request_that_the_masked_entry_dropped_is_served_all_the_same() {
    let machine = DsMachine::new();
    let mut handler = armed(&machine);
    let mut running = machine.start(100, EIGHT_SPARE);
    machine.branches(0, 92);

    /// A sink; the processor records again as soon as recording is enabled, while the entry is still masked.
    struct Late(DsMachine, Numbers);
    // SAFETY: the entry represents no hardware.
    unsafe impl LocalApic for Late {
        fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
            self.0.is_enabled()
        }

        fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
            self.0.lvt_pc()
        }

        unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
            let first = 92 + 92 * u64::from(!self.1.seen.is_empty());
            if !entry.is_masked() && self.1.room.take().is_some() {
                self.0.branches(first, 92);
            }
            // SAFETY: the caller promises the same.
            unsafe { self.0.set_lvt_pc(entry) }
        }
    }

    let mut late = Late(machine.clone(), Numbers { room: Some(0), ..Numbers::default() });
    let mut sink = Numbers::default();
    let mut keep = KeepAll;
    let pmi = {
        let mut source = running.source(&mut sink, &mut keep);
        handler.handle(&mut machine.clone(), &mut late, &mut [&mut source]).unwrap()
    };
    assert_eq!(pmi, Pmi::Served);
    assert_eq!(handler.counts().unannounced, 1);
    assert_eq!(sink.seen, branches(0..184));
    assert_eq!(machine.get(LVT_PC), 0x400);
}

#[test]
fn a_pmi_that_comes_after_a_drain_is_nobodys() {
    for machine in DsMachine::both() {
        let mut handler = armed(&machine);
        let mut running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 95);
        let mut sink = Numbers::of(&machine);
        drain(&mut running, &mut sink).unwrap();
        assert_eq!(interrupt(&machine, &mut handler, &mut running, &mut sink, &mut KeepAll), Pmi::Stray);
        assert_eq!(machine.get(LVT_PC), 0x400);
        machine.branches(95, 92);
        assert_eq!(interrupt(&machine, &mut handler, &mut running, &mut sink, &mut KeepAll), Pmi::Served);
        assert_eq!(sink.seen, branches(0..187));
    }
}

/// Suspends the recording between the first two of these branch numbers, and records up to the third.
fn goes_on(
    running: &mut DsRunning<DsMachine, FakeLinear>,
    machine: &DsMachine,
    [first, resumed, end]: [u64; 3],
    sink: &mut Numbers,
) {
    machine.branches(first, resumed - first);
    assert_eq!(running.resume().map(|()| running.state(Half::Bts)), Ok(Some(DsState::Recording)));
    machine.branches(resumed, end - resumed);
    drain(running, sink).unwrap();
}

#[test]
fn a_suspended_recording_goes_on_where_it_was() {
    for machine in DsMachine::both() {
        let mut running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 10);
        running.suspend().unwrap();
        assert_eq!((machine.get(DEBUGCTL), running.state(Half::Bts)), (0, Some(DsState::Suspended)));
        let mut sink = Numbers::of(&machine);
        // Records that were handed over once must not come again.
        for _ in 0..2 {
            assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Suspended));
        }
        goes_on(&mut running, &machine, [10, 20, 30], &mut sink);
        assert_eq!(sink.seen, [branches(0..10), branches(20..30)].concat());
    }
}

#[test]
fn branches_that_are_given_up_are_not_recorded_which_is_counted_until_somebody_lets_them_go_on() {
    let machine = DsMachine::new();
    let mut running = machine.start(100, EIGHT_SPARE);
    let mut sink = Numbers::of(&machine);
    machine.branches(0, 10);
    for _ in 0..2 {
        // The same result twice: it did not resume in between.
        running.source(&mut sink, &mut KeepAll).abandon(Abandoned::Stuck);
        assert_eq!(machine.get(DEBUGCTL), 0);
        assert_eq!(running.loss(Half::Bts), &Loss { abandoned: 1, ..Loss::NONE });
    }
    assert!(running.loss(Half::Pebs).is_none(), "there are no samples");
    assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
    assert_ne!(machine.get(DEBUGCTL), 0);
    running.source(&mut sink, &mut KeepAll).abandon(Abandoned::Stuck);
    assert_eq!(running.loss(Half::Bts).abandoned, 2);
    // A recording that is off for another reason.
    drain(&mut running, &mut sink).unwrap();
    running.suspend().unwrap();
    running.source(&mut sink, &mut KeepAll).abandon(Abandoned::Stuck);
    assert_eq!(running.loss(Half::Bts).abandoned, 2);
}

#[test]
fn a_full_buffer_does_not_go_on_while_it_is_suspended_though_it_is_drained() {
    for machine in DsMachine::both() {
        let mut running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 92);
        assert_eq!(drain(&mut running, &mut KeepAll), Ok(DsState::Full));
        running.suspend().unwrap();
        // Another task runs, whose branches do not belong to this recording.
        let mut sink = Numbers::of(&machine);
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Suspended));
        goes_on(&mut running, &machine, [92, 97, 102], &mut sink);
        assert_eq!(sink.seen, [branches(0..92), vec![Err(Gap::Full)], branches(97..102)].concat());
        assert_eq!(running.loss(Half::Bts), &Loss { full: 1, ..Loss::NONE });
    }
}

#[test]
fn a_buffer_that_waits_for_the_sink_is_told_full_once_however_often_it_is_suspended() {
    let machine = DsMachine::new();
    let mut running = machine.start(100, EIGHT_SPARE);
    machine.branches(0, 92);
    assert_eq!(drain(&mut running, &mut KeepAll), Ok(DsState::Full));
    for _ in 0..2 {
        running.suspend().unwrap();
        assert_eq!(running.resume().map(|()| running.state(Half::Bts)), Ok(Some(DsState::Full)));
        assert_eq!(running.loss(Half::Bts).full, 1);
    }
}

#[test]
fn a_recording_that_does_not_go_on_claims_no_pmi() {
    let index = |machine: &DsMachine, index| machine.write(machine.get(DS_AREA) + 8, index);
    // Full, suspended, and circular with an index that other code overwrote.
    for case in 0..3 {
        let machine = DsMachine::new();
        let mut handler = armed(&machine);
        let mode = if case == 2 { BufferMode::Circular } else { EIGHT_SPARE };
        let mut running = machine.start(100, mode);
        machine.branches(0, 92);
        match case {
            0 => assert_eq!(drain(&mut running, &mut KeepAll), Ok(DsState::Full)),
            1 => running.suspend().unwrap(),
            _ => index(&machine, u64::MAX),
        }
        machine.request();
        let pmi = interrupt(&machine, &mut handler, &mut running, &mut KeepAll, &mut KeepAll);
        assert_eq!(pmi, Pmi::Stray, "case {case}");
    }
}

#[test]
fn an_index_that_somebody_spoiled_ends_the_recording() {
    let narrow = DsMachine::narrow();
    let mut running = narrow.start(100, EIGHT_SPARE);
    narrow.branches(0, 10);
    // Twice 12 more records than there is room for.
    let (index, base) = (0x20_1000 + 12 * 102, 0x20_1000);
    narrow.write(narrow.get(DS_AREA) + 4, index);
    let bad = BadIndex { index, base };
    assert_eq!(drain(&mut running, &mut Numbers::of(&narrow)), Ok(DsState::Failed(bad)));

    for index in [0, 8, u64::MAX, FakeLinear::BASE + 0x1000 + 12, FakeLinear::BASE + 0x1000 + 24 * 102] {
        let machine = DsMachine::new();
        let mut running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 10);
        machine.memory.write::<8>(machine.get(DS_AREA) + 8, index);
        let mut sink = Numbers::default();
        let bad = BadIndex { index, base: FakeLinear::BASE + 0x1000 };
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Failed(bad)));
        assert_eq!((machine.get(DEBUGCTL), running.loss(Half::Bts).error), (0, 1));
        assert_eq!(sink.seen, [Err(Gap::Error)]);
        // The recording was not suspended, so nothing resumes it.
        running.suspend().unwrap();
        running.resume().unwrap();
        assert_eq!((machine.get(DEBUGCTL), running.state(Half::Bts)), (0, Some(DsState::Failed(bad))));
    }
}

#[test]
fn a_fault_at_any_access_leaves_nothing_running_and_nothing_lost() {
    for nth in 0.. {
        let machine = DsMachine::new();
        let unit = machine.unit();
        let area = machine.area(&unit, 100, EIGHT_SPARE);
        machine.msr.borrow_mut().fault_in(nth);
        let failed = match unit.start(&config(), area) {
            Err(failed) => failed,
            Ok(running) => {
                assert!(nth > 4, "{nth} accesses");
                drop(running);
                break;
            }
        };
        assert!(matches!(failed, NotStarted::Off { .. }), "access {nth}");
        assert_eq!((machine.get(DEBUGCTL), machine.get(DS_AREA)), (0, 0), "access {nth}");
        let NotStarted::Off { unit, memory: area, .. } = failed else { unreachable!() };
        let running = unit.start(&config(), area).map_err(|failed| failed.error()).unwrap();
        machine.branches(0, 3);
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!(stopped.records.chunks(Half::Bts).count(), 1);
    }
}

#[test]
fn a_fault_at_any_access_of_the_stop_can_be_tried_again() {
    for nth in 0.. {
        let machine = DsMachine::new();
        let running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 3);
        machine.msr.borrow_mut().fault_in(nth);
        let stopped = match running.stop() {
            Ok(stopped) => {
                assert_eq!(nth, 3);
                stopped
            }
            Err(failed) => failed.running.stop().map_err(|failed| failed.fault).unwrap(),
        };
        assert_eq!((machine.get(DEBUGCTL), machine.get(DS_AREA)), (0, 0));
        let chunks: Vec<_> = stopped.records.chunks(Half::Bts).collect();
        let [Chunk::Bytes(bytes)] = chunks[..] else { panic!("{chunks:?}") };
        assert!(numbers(bytes, 24).eq(0..3));
        if nth == 3 {
            break;
        }
    }
}

#[test]
fn memory_stays_with_a_processor_that_does_not_stop() {
    let machine = DsMachine::new();
    let running = machine.start(100, EIGHT_SPARE);
    machine.msr.borrow_mut().fault_in(1);
    drop(running);
    assert_eq!(machine.memory.live(), 2);
    machine.memory.forget();
}

#[test]
fn each_family_is_started_with_its_own_bits() {
    // (CPUID.1:EAX, control register)
    for (signature, control) in [(0x6f6, 0x1c0), (0xf41, 0x1c), (0x506e3, 0x1c0), (0x106a5, 0x1c0)] {
        let machine = DsMachine::of(signature, 0);
        let running = machine.start(100, EIGHT_SPARE);
        assert_eq!(machine.get(DEBUGCTL), control, "{signature:#x}");
        drop(running);
    }
}

#[test]
fn an_emergency_stop_needs_nothing_but_the_register() {
    let machine = DsMachine::new();
    let capabilities = *machine.unit().capabilities();
    let running = machine.start(100, EIGHT_SPARE);
    emergency_stop(&mut machine.clone(), &capabilities).unwrap();
    assert_eq!(machine.get(DEBUGCTL), 0);
    drop(running);
}

#[test]
fn a_gap_stays_between_the_records_that_it_is_between() {
    for machine in DsMachine::both() {
        let mut running = machine.start(100, EIGHT_SPARE);
        machine.branches(0, 10);
        running.source(&mut KeepAll, &mut KeepAll).abandon(Abandoned::Stuck);
        // It resumes before anything was drained.
        running.resume().unwrap();
        machine.branches(12, 10);
        // The sink takes four records at a time.
        let mut sink = Numbers { room: Some(4), ..Numbers::of(&machine) };
        for seen in [branches(0..4), branches(0..8)] {
            sink.room = Some(4);
            assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
            assert_eq!(sink.seen, seen);
        }
        // A second gap has no place while the first is there: the buffer waits.
        running.source(&mut KeepAll, &mut KeepAll).abandon(Abandoned::Stuck);
        running.resume().unwrap();
        assert_eq!(running.state(Half::Bts), Some(DsState::Full));
        sink.room = None;
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
        let gap = vec![Err(Gap::Abandoned)];
        assert_eq!(sink.seen, [branches(0..10), gap.clone(), branches(12..22), gap].concat());
    }
}

#[test]
fn an_interrupt_gate_is_needed_where_there_are_interrupts() {
    let machine = DsMachine::new();
    for (mode, needed) in [(BufferMode::Circular, false), (EIGHT_SPARE, true)] {
        let unit = machine.unit();
        let area = machine.area(&unit, 100, mode);
        let started = unit.start(&DsConfig::new().bts(BtsConfig::new()), area);
        match started {
            Ok(_) => assert!(!needed, "{mode:?}"),
            Err(failed) => {
                assert!(needed && failed.error() == StartError::Refused(DsRefusal::NoGate), "{mode:?}");
            }
        }
    }
}
