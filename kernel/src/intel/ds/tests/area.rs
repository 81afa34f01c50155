//! The area's memory: rules, sizes, allocation.

use crate::fake::FakeLinear;
use crate::intel::ds::*;
use crate::intel::pebs::{Groups, PebsCapabilities, PeriodRules, PreciseEvents};
use crate::lifecycle::Missing;
use crate::msr::DebugCtlLayout;
use pugmark_decoder_core::pebs::Format;
use x86_64::PhysAddr;
use x86_64::structures::paging::PageTableFlags;

const CAPABILITIES: DsCapabilities = DsCapabilities {
    control: DebugCtlLayout::Ia32,
    layout: DsLayout::Bits64,
    cpl_qualified: true,
    bts: true,
    pebs: Ok(SAMPLES),
    processor_trace: false,
    global_status: true,
    linear_address_bits: 48,
};

const SAMPLES: PebsCapabilities = PebsCapabilities {
    format: Format::Time,
    general_resets: 8,
    general_counters: 4,
    fixed_counters: 0,
    general_bits: 48,
    fixed_bits: 48,
    trace_output: false,
    full_width: true,
    precise: PreciseEvents::Skylake,
    period_rules: PeriodRules::All,
    microcode_counters: 0,
    memory_events_disturb: false,
    counters_need_clearing: false,
    global_in_use: true,
    counter_values: false,
    load_latency: None,
};

/// 2 730 records in 17 pages, starting in the middle of a page.
const PLAN: BufferPlan = BufferPlan { bytes: 24 * 2730, page_offset: 0x840, mode: BufferMode::INTERRUPT };

/// The management area has its own page, and the buffer's pages follow it.
const BUFFER_PAGE: u64 = FakeLinear::BASE + 0x1000;

fn allocate(memory: &FakeLinear, strictness: Strictness) -> Result<DsArea<FakeLinear>, AreaError> {
    DsArea::allocate(memory.clone(), &CAPABILITIES, &AreaPlan::new().bts(PLAN), strictness)
}

#[test]
fn takes_memory_that_keeps_all_rules_and_gives_it_back() {
    let memory = FakeLinear::new();
    let area = allocate(&memory, Strictness::Strict).unwrap();
    assert_eq!(memory.live(), 2);
    assert_eq!((area.capacity(Half::Bts), area.warnings().iter().count()), (2730, 0));
    assert_eq!(area.address(), FakeLinear::BASE);
    drop(area);
    assert_eq!(memory.live(), 0);
}

#[test]
fn the_management_area_says_where_the_buffer_is() {
    let memory = FakeLinear::new();
    let area = allocate(&memory, Strictness::Strict).unwrap();
    let base = BUFFER_PAGE + 0x840;
    let fields = [base, base, base + 2730 * 24, base + 2560 * 24];
    for (n, field) in fields.into_iter().enumerate() {
        assert_eq!(memory.read::<8>(area.address() + 8 * n as u64), field, "field {n}");
    }

    let memory = FakeLinear::at(0x20_0000);
    let narrow = DsCapabilities { layout: DsLayout::Bits32, ..CAPABILITIES };
    let plan = BufferPlan { mode: BufferMode::Circular, bytes: 12 * 100, page_offset: 0x40 };
    let area =
        DsArea::allocate(memory.clone(), &narrow, &AreaPlan::new().bts(plan), Strictness::Strict).unwrap();
    let base = 0x20_1040;
    for (n, field) in [base, base, base + 1200, base + 1212].into_iter().enumerate() {
        assert_eq!(memory.read::<4>(area.address() + 4 * n as u64), field, "field {n}");
    }
}

#[test]
fn each_page_must_keep_each_rule_in_each_address_space() {
    type Break = fn(&mut Option<LinearPage>);
    type Broken = fn(Place) -> Rule;
    fn page(page: &mut Option<LinearPage>) -> &mut LinearPage {
        page.as_mut().unwrap()
    }
    let table: [(Break, Broken); 9] = [
        (|mapping| *mapping = None, Rule::NotPresent),
        (|mapping| page(mapping).flags.remove(PageTableFlags::PRESENT), Rule::NotPresent),
        (|mapping| page(mapping).pageable = true, Rule::Pageable),
        (|mapping| page(mapping).flags.remove(PageTableFlags::WRITABLE), Rule::NotWritable),
        (|mapping| page(mapping).flags.insert(PageTableFlags::USER_ACCESSIBLE), Rule::UserAccessible),
        (|mapping| page(mapping).flags.remove(PageTableFlags::ACCESSED), Rule::NotAccessed),
        (|mapping| page(mapping).flags.remove(PageTableFlags::DIRTY), Rule::NotDirty),
        (|mapping| page(mapping).holds_code = true, Rule::HoldsCode),
        (|mapping| page(mapping).frame = PhysAddr::new(0xabc000), Rule::MappedElsewhere),
    ];
    // The management area, the buffer's first page and its last one.
    for address in [FakeLinear::BASE, BUFFER_PAGE, BUFFER_PAGE + 0x1_0000] {
        for (row, (spoil, rule)) in table.into_iter().enumerate() {
            // The other address spaces are compared with the first one.
            let spaces = if row == 8 { 1..2 } else { 0..2 };
            for space in spaces {
                let memory = FakeLinear::new();
                memory.spoil(move |in_space, at, mapping| {
                    if (in_space, at) == (space, address) {
                        spoil(mapping);
                    }
                });
                let error = allocate(&memory, Strictness::Lenient).unwrap_err();
                assert_eq!(error, AreaError::Rule(rule(Place { address, space })), "row {row}");
                assert!(
                    error.to_string().contains(&format!("{address:#x} in address space {space}")),
                    "{error}"
                );
                assert_eq!(memory.live(), 0);
            }
        }
    }
}

#[test]
fn pages_after_the_buffer_are_not_looked_at() {
    let memory = FakeLinear::new();
    memory.spoil(|_, at, mapping| {
        if at > BUFFER_PAGE + 0x1_0000 {
            *mapping = None;
        }
    });
    assert!(allocate(&memory, Strictness::Strict).is_ok());

    // A buffer that ends at the end of a page.
    let memory = FakeLinear::new();
    memory.spoil(|_, at, mapping| {
        if at >= BUFFER_PAGE + 0x3000 {
            *mapping = None;
        }
    });
    let plan = AreaPlan::new().bts(BufferPlan { bytes: 0x3000, page_offset: 0, ..PLAN });
    assert!(DsArea::allocate(memory, &CAPABILITIES, &plan, Strictness::Strict).is_ok());
}

#[test]
fn a_kernel_without_address_spaces_says_nothing_about_the_area() {
    let memory = FakeLinear::new();
    memory.set_spaces(0);
    assert_eq!(allocate(&memory, Strictness::Lenient).unwrap_err(), AreaError::Rule(Rule::NoAddressSpace));
}

#[test]
fn bit_20_must_be_clear_where_a20m_could_be_asserted() {
    // (base, with A20M#, first address that breaks the rule)
    let table = [
        (0x20_0000, true, None),
        (0x20_0000, false, None),
        (0x30_0000, false, None),
        (0x30_0000, true, Some(0x30_0000)),
        // The management area is below, the buffer is not.
        (0x2f_f000, true, Some(0x30_0840)),
        (0x2f_e000, true, Some(0x30_0000)),
    ];
    for (base, a20m, address) in table {
        let memory = || {
            let memory = FakeLinear::at(base);
            if a20m {
                memory.set_a20m();
            }
            memory
        };
        let expected = address.map(|address| AreaError::Rule(Rule::Bit20 { address }));
        let found = allocate(&memory(), Strictness::Lenient).map(drop);
        assert_eq!(found.err(), expected, "{base:#x}");
        // Memory that is borrowed has the same answer.
        let plan = AreaPlan::new().bts(PLAN);
        let found = DsArea::allocate(&memory(), &CAPABILITIES, &plan, Strictness::Lenient).map(drop);
        assert_eq!(found.err(), expected, "{base:#x} by reference");
    }
}

#[test]
fn addresses_are_canonical() {
    // (bits of a linear address, the area's address is canonical): the area is the highest one with bit 46 clear. No
    // processor has 0 or more than 64 bits; neither may panic.
    let table =
        [(0, false), (1, false), (45, false), (47, false), (48, true), (57, true), (64, true), (65, true)];
    for (bits, canonical) in table {
        let capabilities = DsCapabilities { linear_address_bits: bits, ..CAPABILITIES };
        let plan = AreaPlan::new().bts(PLAN);
        let made = DsArea::allocate(FakeLinear::new(), &capabilities, &plan, Strictness::Lenient);
        let refused = AreaError::Rule(Rule::NotCanonical { address: FakeLinear::BASE, bits });
        assert_eq!(made.map(drop).err(), (!canonical).then_some(refused), "{bits}");
    }
}

#[test]
fn recommendations_are_warnings_and_with_strictness_errors() {
    let few = BufferPlan { mode: BufferMode::Interrupt { spare: 169 }, ..PLAN };
    let uneven = BufferPlan { bytes: 24 * 2730 + 1, ..PLAN };
    let unaligned = BufferPlan { page_offset: 0x844, ..PLAN };
    let base = BUFFER_PAGE + 0x844;
    let table = [
        (few, Warning::FewSpare { spare: 169 }),
        (uneven, Warning::Remainder { bytes: 65521, record_bytes: 24 }),
        (unaligned, Warning::CacheLine { address: base }),
    ];
    for (plan, warning) in table {
        let memory = FakeLinear::new();
        let plan = AreaPlan::new().bts(plan);
        let area = DsArea::allocate(memory.clone(), &CAPABILITIES, &plan, Strictness::Lenient).unwrap();
        assert_eq!(area.warnings().iter().collect::<Vec<_>>(), [warning]);
        let error = DsArea::allocate(memory, &CAPABILITIES, &plan, Strictness::Strict).unwrap_err();
        let AreaError::Warning(found) = error else { panic!("{error}") };
        assert_eq!(core::mem::discriminant(&found), core::mem::discriminant(&warning));
    }
    for memory_type in [
        MemoryType::Uncacheable,
        MemoryType::WriteCombining,
        MemoryType::WriteThrough,
        MemoryType::WriteProtected,
    ] {
        let spoiled = || {
            let memory = FakeLinear::new();
            memory.spoil(move |_, at, mapping| {
                if at == BUFFER_PAGE + 0x3000 {
                    mapping.as_mut().unwrap().memory_type = memory_type;
                }
            });
            memory
        };
        let warning = Warning::NotWriteBack { address: BUFFER_PAGE + 0x3000, memory_type };
        let area = allocate(&spoiled(), Strictness::Lenient).unwrap();
        assert_eq!(area.warnings().iter().collect::<Vec<_>>(), [warning]);
        let memory = spoiled();
        assert_eq!(allocate(&memory, Strictness::Strict).unwrap_err(), AreaError::Warning(warning));
        assert_eq!(memory.live(), 0);
    }
}

#[test]
fn physical_pages_need_not_be_contiguous() {
    let memory = FakeLinear::new();
    memory.spoil(|_, at, mapping| {
        let backwards = 0x4000_0000 - (at - FakeLinear::BASE);
        mapping.as_mut().unwrap().frame = PhysAddr::new(backwards);
    });
    assert!(allocate(&memory, Strictness::Strict).is_ok());
}

#[test]
fn a_buffer_begins_at_any_doubleword_of_a_page_and_at_no_other_place() {
    for (page_offset, error) in [
        (0, None),
        (4, None),
        (0xffc, None),
        (2, Some(PlanError::PageOffset { page_offset: 2 })),
        (0xfff, Some(PlanError::PageOffset { page_offset: 0xfff })),
        (0x1000, Some(PlanError::PageOffset { page_offset: 0x1000 })),
    ] {
        let memory = FakeLinear::new();
        let plan = AreaPlan::new().bts(BufferPlan { page_offset, ..PLAN });
        let made = DsArea::allocate(memory.clone(), &CAPABILITIES, &plan, Strictness::Lenient);
        assert_eq!(made.map(drop).err(), error.map(AreaError::Plan), "{page_offset:#x}");
        assert_eq!(memory.live(), 0);
    }
}

/// 100 samples of format 3, after the branch records.
const SAMPLE_PLAN: BufferPlan =
    BufferPlan { bytes: 200 * 100, page_offset: 0x80, mode: BufferMode::Interrupt { spare: 10 } };

const BOTH: AreaPlan = AreaPlan::new().bts(PLAN).pebs(SAMPLE_PLAN, Groups::BASIC);

#[test]
fn both_halves_have_their_fields_and_their_buffers() {
    let memory = FakeLinear::new();
    let area = DsArea::allocate(memory.clone(), &CAPABILITIES, &BOTH, Strictness::Strict).unwrap();
    assert_eq!((area.capacity(Half::Bts), area.capacity(Half::Pebs), memory.live()), (2730, 100, 3));
    // The buffer for branch records has 17 pages.
    let (bts, pebs) = (BUFFER_PAGE + 0x840, BUFFER_PAGE + 0x1_1080);
    let fields =
        [[bts, bts, bts + 2730 * 24, bts + 2560 * 24], [pebs, pebs, pebs + 100 * 200, pebs + 90 * 200]];
    for (n, field) in fields.concat().into_iter().enumerate() {
        assert_eq!(memory.read::<8>(area.address() + 8 * n as u64), field, "field {n}");
    }
    drop(area);
    assert_eq!(memory.live(), 0);

    let samples = AreaPlan::new().pebs(SAMPLE_PLAN, Groups::BASIC);
    let area = DsArea::allocate(memory.clone(), &CAPABILITIES, &samples, Strictness::Strict).unwrap();
    let [_, index, _, threshold, pebs, ..] =
        [0, 1, 2, 3, 4].map(|n| memory.read::<8>(area.address() + 8 * n));
    assert_eq!((area.capacity(Half::Bts), area.mode(Half::Bts), index, threshold), (0, None, 0, 0));
    assert_ne!(pebs, 0);
}

#[test]
fn counter_reset_values_come_after_the_fields() {
    // (base, layout, offset of general-purpose counter 0, of counter 3, of fixed-function counter 1)
    let table = [
        (FakeLinear::BASE, DsLayout::Bits64, [0x40, 0x58, 0x88]),
        (0x20_0000, DsLayout::Bits32, [0x20, 0x38, 0x68]),
    ];
    for (base, layout, offsets) in table {
        let memory = FakeLinear::at(base);
        let capabilities = DsCapabilities { layout, ..CAPABILITIES };
        let plan = AreaPlan::new().bts(BufferPlan { mode: BufferMode::Circular, ..PLAN });
        let mut area = DsArea::allocate(memory.clone(), &capabilities, &plan, Strictness::Lenient).unwrap();
        // The last one belongs to no counter.
        area.reset([(0, 0x1111), (3, 0x4444), (9, 0x9999), (48, 0xdead)].into_iter());
        for (offset, value) in offsets.into_iter().zip([0x1111, 0x4444, 0x9999]) {
            assert_eq!(memory.read::<8>(area.address() + offset), value);
        }
        let end = area.address() + layout.management_bytes(48);
        assert_eq!(memory.read::<8>(end), 0);
    }
}

#[test]
fn refuses_a_buffer_for_samples_that_cannot_be() {
    let absent = DsCapabilities { pebs: Err(Missing::NetBurstPebs), ..CAPABILITIES };
    let circular = BufferPlan { mode: BufferMode::Circular, ..SAMPLE_PLAN };
    let small = BufferPlan { bytes: 199, ..SAMPLE_PLAN };
    let of = |plan, groups| AreaPlan::new().bts(PLAN).pebs(plan, groups);
    let table = [
        (of(SAMPLE_PLAN, Groups::BASIC), absent, PlanError::NoPebs(Missing::NetBurstPebs)),
        (of(circular, Groups::BASIC), CAPABILITIES, PlanError::PebsIsNotCircular),
        (of(small, Groups::BASIC), CAPABILITIES, PlanError::TooSmall { bytes: 199, record_bytes: 200 }),
        (of(SAMPLE_PLAN, Groups::BASIC.xmm(true)), CAPABILITIES, PlanError::FixedFormat),
        (of(SAMPLE_PLAN, Groups::BASIC.counters(1, 0)), CAPABILITIES, PlanError::FixedFormat),
        (AreaPlan::new(), CAPABILITIES, PlanError::NoBuffer),
    ];
    for (plan, capabilities, error) in table {
        let memory = FakeLinear::new();
        let found = DsArea::allocate(memory, &capabilities, &plan, Strictness::Lenient).unwrap_err();
        assert_eq!(found, AreaError::Plan(error));
    }
}

#[test]
fn the_pages_of_the_samples_keep_the_rules_too() {
    let memory = FakeLinear::new();
    let address = BUFFER_PAGE + 0x1_1000 + 0x4000;
    memory.spoil(move |_, at, mapping| {
        if at == address {
            *mapping = None;
        }
    });
    let error = DsArea::allocate(memory, &CAPABILITIES, &BOTH, Strictness::Lenient).unwrap_err();
    assert_eq!(error, AreaError::Rule(Rule::NotPresent(Place { address, space: 0 })));
}

#[test]
fn gives_back_what_it_took_when_an_allocation_fails() {
    let allocate =
        |memory: &FakeLinear| DsArea::allocate(memory.clone(), &CAPABILITIES, &BOTH, Strictness::Lenient);
    for nth in 0..3 {
        let memory = FakeLinear::new();
        memory.fail_at(nth);
        assert!(matches!(allocate(&memory), Err(AreaError::NoMemory { .. })));
        assert_eq!(memory.live(), 0);
        assert!(allocate(&memory).is_ok());
    }
}

#[test]
fn refuses_memory_that_is_not_what_was_asked_for() {
    let memory = FakeLinear::new();
    memory.skew(0x10);
    assert!(matches!(allocate(&memory, Strictness::Lenient), Err(AreaError::BadBlock { .. })));
    assert_eq!(memory.live(), 0);

    // The 32-bit layout holds no address above 4 GiB.
    let memory = FakeLinear::at(0xffff_f000);
    let narrow = DsCapabilities { layout: DsLayout::Bits32, ..CAPABILITIES };
    let error =
        DsArea::allocate(memory, &narrow, &AreaPlan::new().bts(PLAN), Strictness::Lenient).unwrap_err();
    assert!(matches!(error, AreaError::BadBlock { address: 0xffff_f000, .. }), "{error}");

    // This also holds for the end of a buffer that reaches 4 GiB, which is the absolute maximum.
    for (base, fits) in [(0xffff_e000, false), (0xffff_d000, true)] {
        let plan = BufferPlan { mode: BufferMode::Circular, bytes: 0x1000 - 0x1000 % 12, page_offset: 0 };
        let (memory, plan) = (FakeLinear::at(base), AreaPlan::new().bts(plan));
        match DsArea::allocate(memory.clone(), &narrow, &plan, Strictness::Lenient) {
            Ok(area) => {
                assert!(fits, "{base:#x}");
                let [index, maximum, threshold] = [1, 2, 3].map(|n| memory.read::<4>(area.address() + 4 * n));
                assert!(index < maximum && maximum < threshold, "{index:#x} {maximum:#x} {threshold:#x}");
            }
            Err(error) => {
                let request = LinearRequest { size: 0x1000, limit: Some(0xffff_f000) };
                assert_eq!(error, AreaError::BadBlock { address: 0xffff_f000, request });
                assert!(!fits, "{base:#x}");
            }
        }
    }

    // There is no address after the last page of the address space, either.
    let memory = FakeLinear::at(0xffff_ffff_ffff_f000);
    let error = allocate(&memory, Strictness::Lenient).unwrap_err();
    assert!(matches!(error, AreaError::BadBlock { address: 0xffff_ffff_ffff_f000, .. }), "{error}");

    let huge = AreaPlan::new().bts(BufferPlan { bytes: u64::MAX, ..PLAN });
    let error = DsArea::allocate(FakeLinear::new(), &CAPABILITIES, &huge, Strictness::Lenient).unwrap_err();
    assert_eq!(error, AreaError::NoMemory { bytes: u64::MAX });
}
