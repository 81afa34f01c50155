mod version_6;

use super::{IntelCounterCapabilities, IntelCounterUnit, IntelCountersRefusal, IntelEvent};
use crate::cpuid::CpuIdResult;
use crate::fake::FakeMsr;
use crate::lifecycle::{Absent, InUse, Missing, StartError};
use crate::msr::Msr;
use std::vec::Vec;

const MISC_ENABLE: u32 = 0x1a0;
const SELECT: u32 = 0x186;
const FIXED_CTRL: u32 = 0x38d;
const GLOBAL_CTRL: u32 = 0x38f;
const GLOBAL_INUSE: u32 = 0x392;

/// CPUID of a processor of Intel's: its signature, and leaf 0AH.
#[derive(Clone, Copy)]
struct Leaves {
    highest: u32,
    signature: u32,
    features: [u32; 4],
    counters: [u32; 4],
    /// Leaf 23H, if `CPUID.07H.1:EAX[8]` is set, by sub-leaves.
    extended: Option<[[u32; 4]; 3]>,
    /// `CPUID.1CH:ECX[19:16]`; the leaf exists with `CPUID.07H.0:EDX[19]`.
    branch_records: u32,
}

/// A Nehalem, whose leaf has seven events, all available: version 3, four counters of 48 bits and three fixed ones.
const NEHALEM: Leaves = Leaves {
    highest: 0xb,
    signature: 0x106a5,
    features: [0; 4],
    counters: [0x0730_0403, 0, 0, 0x603],
    extended: None,
    branch_records: 0b1111,
};

impl Leaves {
    fn cpuid(self) -> impl Fn(u32, u32) -> CpuIdResult + Clone {
        move |leaf, subleaf| {
            let [eax, ebx, ecx, edx] = match (leaf, subleaf) {
                (0, _) => [self.highest, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
                (1, _) => [self.signature, 0, 0, 0],
                (7, 0) => self.features,
                (0x1c, 0) => [1, 7, self.branch_records << 16 | 7, 0],
                (7, 1) => [u32::from(self.extended.is_some()) << 8, 0, 0, 0],
                (0x23, n) => self.extended.map_or([u32::MAX; 4], |leaves| leaves[n as usize]),
                (0xa, 0) => self.counters,
                _ => [0; 4],
            };
            CpuIdResult { eax, ebx, ecx, edx }
        }
    }

    fn capabilities(self) -> Result<IntelCounterCapabilities, Absent> {
        let mut msr = FakeMsr::new();
        msr.set(MISC_ENABLE, 1 << 7);
        IntelCounterCapabilities::read(self.cpuid(), &mut msr)
    }
}

/// The writes of a session, and the RDPMC indices of its counters.
type Written = (Vec<(u32, u64)>, Vec<u32>);

/// Counts on registers with these values; returns the writes of start and stop, and the counters' RDPMC indices.
fn start(
    leaves: Leaves,
    values: &[(u32, u64)],
    events: &[IntelEvent],
) -> Result<Written, StartError<IntelCountersRefusal>> {
    let mut msr = FakeMsr::new();
    msr.set(MISC_ENABLE, 1 << 7);
    values.iter().for_each(|(register, value)| msr.set(*register, *value));
    let running = IntelCounterUnit::detect(leaves.cpuid(), msr)
        .unwrap()
        .start(events)
        .map_err(|failed| failed.error())?;
    let counters = (0..events.len()).filter_map(|event| running.rdpmc(event)).collect();
    Ok((running.stop().unwrap().unit.msr.writes, counters))
}

#[test]
fn counters_are_those_of_the_leaf() {
    let found = NEHALEM.capabilities().unwrap();
    assert_eq!((found.general, found.general_bits, found.fixed, found.fixed_bits), (0xf, 48, 0b111, 48));
    assert!(!found.global_in_use && found.need_clearing);
    // Version 5 has a bit for each fixed-function counter, besides the number of those without gaps.
    let golden_cove = Leaves { signature: 0xb_06a2, counters: [0x0830_0805, 0, 0b1_0011, 0x602], ..NEHALEM };
    let found = golden_cove.capabilities().unwrap();
    assert_eq!((found.general, found.fixed), (0xff, 0b1_0011));
    assert!(found.global_in_use && !found.need_clearing);
    // Version 4 has no such bits.
    let older = Leaves { counters: [0x0830_0804, 0, 0b1_0011, 0x602], ..golden_cove };
    assert_eq!(older.capabilities().unwrap().fixed, 0b11);
    // Counters of one kind alone; and counter 3 while it is microcode's.
    let only = |counters| Leaves { counters, ..golden_cove }.capabilities().map(|it| (it.general, it.fixed));
    assert_eq!(only([0x0830_0004, 0, 0, 0x602]), Ok((0, 0b11)));
    assert_eq!(only([0x0830_0404, 0, 0, 0]), Ok((0xf, 0)));
    let transactions = Leaves { features: [0, 1 << 11, 0, 1 << 13], ..NEHALEM };
    assert_eq!(transactions.capabilities().unwrap().general, 0b111);
    // More than the driver reaches.
    let many = Leaves { counters: [0x0830_1404, 0, 0, 0x61f], ..golden_cove };
    assert_eq!((many.capabilities().unwrap().general, many.capabilities().unwrap().fixed), (0xff, 0xff));
}

#[test]
fn a_processor_without_usable_counters_says_what_it_lacks() {
    let missing = |leaves: Leaves| match leaves.capabilities() {
        Err(Absent::Missing(missing)) => missing,
        other => panic!("{other:?}"),
    };
    assert_eq!(missing(Leaves { highest: 9, ..NEHALEM }), Missing::GlobalCtrl { version: 0 });
    let first = Leaves { counters: [0x0728_0201, 0, 0, 0], ..NEHALEM };
    assert_eq!(missing(first), Missing::GlobalCtrl { version: 1 });
    assert_eq!(missing(Leaves { counters: [0x0730_0002, 0, 0, 0], ..NEHALEM }), Missing::Counters);
    let off = IntelCounterCapabilities::read(NEHALEM.cpuid(), &mut FakeMsr::new());
    assert_eq!(off, Err(Missing::PerformanceMonitoring.into()));
    let amd = |leaf: u32, _: u32| match leaf {
        0 => CpuIdResult { eax: 0xd, ebx: 0x6874_7541, ecx: 0x444d_4163, edx: 0x6974_6e65 },
        _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
    };
    assert_eq!(IntelCounterCapabilities::read(amd, &mut FakeMsr::new()), Err(Missing::Intel.into()));
}

#[test]
fn events_go_to_fixed_function_counters_where_one_counts_them() {
    let edges = IntelEvent::CYCLES.edges(true).at_least(1).inverted(true);
    let events = [IntelEvent::BRANCHES, IntelEvent::INSTRUCTIONS.user(false), IntelEvent::CYCLES, edges];
    let (writes, counters) = start(NEHALEM, &[(GLOBAL_CTRL, 0b1111)], &events).unwrap();
    assert_eq!(counters, [0, 1 << 30, 1 << 30 | 1, 1]);
    let written = |register| -> Vec<u64> {
        writes.iter().filter(|(address, _)| *address == register).map(|(_, value)| *value).collect()
    };
    // The model's errata: three events clear a counter before its own event is written.
    assert_eq!(written(SELECT), [0x43_00d2, 0x43_00b1, 0x43_00b5, 0x43_00c4, 0]);
    assert_eq!(written(SELECT + 1)[3..], [0x1c7_003c, 0]);
    // Counter 0 counts at CPL 0, counter 1 everywhere.
    assert_eq!(written(FIXED_CTRL), [0x1, 0x31, 0x30, 0]);
    // All begin at once; the bits that were set before are set at the end.
    assert_eq!(written(GLOBAL_CTRL), [0b1100, 0b1111 | 0b11 << 32, 0b1100, 0b1111]);
    // Without the errata no event clears a counter.
    let newer = Leaves { signature: 0xb_06a2, ..NEHALEM };
    let (writes, _) = start(newer, &[], &[IntelEvent::BRANCHES]).unwrap();
    let selects = writes.iter().filter(|(register, _)| *register == SELECT).map(|(_, value)| *value);
    assert_eq!(selects.collect::<Vec<_>>(), [0x43_00c4, 0]);
    // A second counter for instructions is one of general purpose.
    let (_, counters) = start(NEHALEM, &[], &[IntelEvent::INSTRUCTIONS; 5]).unwrap();
    assert_eq!(counters, [1 << 30, 0, 1, 2, 3]);
}

#[test]
fn counters_of_others_are_left_alone() {
    let busy = [(SELECT, 0x41_00c0), (FIXED_CTRL, 0x2)];
    let (writes, counters) = start(NEHALEM, &busy, &[IntelEvent::INSTRUCTIONS]).unwrap();
    assert_eq!(counters, [1]);
    assert!(
        writes.iter().all(|(register, _)| ![SELECT, FIXED_CTRL, 0xc1, 0x309].contains(register)),
        "{writes:x?}"
    );
    // Counter 0 stays enabled, or not, as it was.
    for counting in [0, 0b1] {
        let values = [busy[0], busy[1], (GLOBAL_CTRL, counting)];
        let (writes, _) = start(NEHALEM, &values, &[IntelEvent::INSTRUCTIONS]).unwrap();
        let controls =
            writes.iter().filter(|(register, _)| *register == GLOBAL_CTRL).map(|(_, value)| *value);
        assert_eq!(controls.collect::<Vec<_>>(), [0, 0b10, 0, 0].map(|bits| bits | counting));
    }
    let version_4 = Leaves { counters: [0x0730_0404, 0, 0, 0x603], ..NEHALEM };
    let (_, counters) =
        start(version_4, &[(GLOBAL_INUSE, 1 << 32 | 0b11)], &[IntelEvent::INSTRUCTIONS]).unwrap();
    assert_eq!(counters, [2]);
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let refusal = |leaves, events: &[IntelEvent]| match start(leaves, &[], events) {
        Err(StartError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let nowhere = IntelEvent::BRANCHES.user(false).os(false);
    assert_eq!(refusal(NEHALEM, &[]), IntelCountersRefusal::Nothing);
    assert_eq!(refusal(NEHALEM, &[IntelEvent::CYCLES, nowhere]), IntelCountersRefusal::NoLevel { event: 1 });
    assert_eq!(refusal(NEHALEM, &[IntelEvent::BRANCHES; 5]), IntelCountersRefusal::NoCounter { event: 4 });
    // Bit 5 of EBX: no branches; and a leaf with five events has no bit for them.
    let none = Leaves { counters: [0x0730_0403, 1 << 5, 0, 0x603], ..NEHALEM };
    assert_eq!(refusal(none, &[IntelEvent::BRANCHES]), IntelCountersRefusal::NoEvent { event: 0 });
    let short = Leaves { counters: [0x0530_0403, 0, 0, 0x603], ..NEHALEM };
    assert_eq!(
        refusal(short, &[IntelEvent::BRANCHES.edges(true)]),
        IntelCountersRefusal::NoEvent { event: 0 }
    );
    assert!(start(short, &[], &[IntelEvent::CACHE_MISSES, IntelEvent::new(0xd0, 0x81)]).is_ok());
    // A leaf with more bits than the register has.
    let cycles = [IntelEvent::CYCLES.os(false)];
    let absent = |bits: u32, set| Leaves { counters: [bits << 24 | 0x30_0403, set, 0, 0x603], ..NEHALEM };
    assert_eq!(refusal(absent(7, 1), &cycles), IntelCountersRefusal::NoEvent { event: 0 });
    for bits in [0x20, 0xff] {
        assert!(start(absent(bits, 0b10), &[], &cycles).is_ok(), "{bits:#x}");
    }
    // Nine branches, on a processor with eight counters of each kind.
    let most = Leaves { counters: [0x0830_0804, 0, 0, 0x608], ..NEHALEM };
    let events = [IntelEvent::BRANCHES; 9];
    assert_eq!(refusal(most, &events), IntelCountersRefusal::NoCounter { event: 8 });
    assert_eq!(
        IntelCountersRefusal::NoCounter { event: 8 }.to_string(),
        "event 8 of the list: no counter is free"
    );
}

#[test]
fn a_counter_that_wraps_at_any_access_is_continued() {
    const STATUS: u32 = 0x38e;
    const COUNTER: u32 = 0xc1;
    /// Registers whose counter goes from its highest value to 7 after this many accesses.
    struct Wrapping(FakeMsr, Option<u32>);
    impl Wrapping {
        fn access(&mut self) {
            self.1 = self.1.and_then(|left| left.checked_sub(1));
            if self.1 == Some(0) {
                self.0.set(STATUS, 1);
                self.0.set(COUNTER, 7);
            }
        }
    }
    // SAFETY: the registers represent no hardware.
    unsafe impl Msr for Wrapping {
        fn rdmsr(&mut self, address: u32) -> Result<u64, crate::msr::GeneralProtection> {
            let value = self.0.rdmsr(address);
            self.access();
            value
        }
        unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), crate::msr::GeneralProtection> {
            if address == 0x390 {
                self.0.set(STATUS, self.0.get(STATUS) & !value);
            }
            // SAFETY: as above.
            let written = unsafe { self.0.wrmsr(address, value) };
            self.access();
            written
        }
    }
    let (before, after) = ((1 << 48) - 1, (1 << 48) + 7);
    let mut seen = [0; 2];
    for access in 1..8 {
        let mut msr = FakeMsr::new();
        msr.set(MISC_ENABLE, 1 << 7);
        let unit = IntelCounterUnit::detect(NEHALEM.cpuid(), Wrapping(msr, None)).unwrap();
        let mut running = unit.start(&[IntelEvent::BRANCHES]).map_err(|failed| failed.error()).unwrap();
        let registers = &mut running.session_mut().unit.msr;
        registers.0.set(COUNTER, (1 << 48) - 1);
        registers.1 = Some(access);
        let first = running.count(0).unwrap().unwrap();
        assert!([before, after].contains(&first), "access {access}: {first:x}");
        seen[usize::from(first == after)] += 1;
        let later = (0..4).map(|_| running.count(0).unwrap().unwrap()).last();
        assert_eq!(later, Some(after), "access {access}, once");
        assert_eq!(running.count(1), Ok(None));
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn an_owner_is_named() {
    let mut msr = FakeMsr::new();
    msr.set(SELECT + 2, 0x41_00c0);
    let addresses = crate::msr::CounterAddresses::ByKind;
    let owner = super::registers::owner(&mut msr, addresses, crate::msr::Counter::General(2), 0).unwrap();
    assert_eq!(owner, Some(InUse::Counter { counter: crate::msr::Counter::General(2), control: 0x41_00c0 }));
}
