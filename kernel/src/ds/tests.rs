use super::*;
use crate::bts::ControlRegister;
use crate::fake::FakeLinear;
use x86_64::PhysAddr;
use x86_64::structures::paging::PageTableFlags;

const CAPABILITIES: DsCapabilities = DsCapabilities {
    control: ControlRegister::DebugCtl,
    layout: DsLayout::Bits64,
    cpl_qualified: true,
    bts: true,
    pebs: false,
    processor_trace: false,
    global_status: true,
    linear_address_bits: 48,
};

/// 2 730 records in 17 pages, from the middle of a page on.
const PLAN: BufferPlan = BufferPlan { bytes: 24 * 2730, page_offset: 0x840, mode: BufferMode::INTERRUPT };

/// The management area has a page of its own, the buffer's begins behind it.
const BUFFER_PAGE: u64 = FakeLinear::BASE + 0x1000;

fn allocate(memory: &FakeLinear, strictness: Strictness) -> Result<DsArea<FakeLinear>, AreaError> {
    DsArea::allocate(memory.clone(), &CAPABILITIES, &PLAN, strictness)
}

#[test]
fn takes_memory_that_keeps_all_rules_and_gives_it_back() {
    let memory = FakeLinear::new();
    let area = allocate(&memory, Strictness::Strict).unwrap();
    assert_eq!(memory.live(), 2);
    assert_eq!((area.capacity(), area.warnings().iter().count()), (2730, 0));
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
    let area = DsArea::allocate(memory.clone(), &narrow, &plan, Strictness::Strict).unwrap();
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
            // What the first address space has is what the others are held against.
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
fn pages_behind_the_buffer_are_not_looked_at() {
    let memory = FakeLinear::new();
    memory.spoil(|_, at, mapping| {
        if at > BUFFER_PAGE + 0x1_0000 {
            *mapping = None;
        }
    });
    assert!(allocate(&memory, Strictness::Strict).is_ok());
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
        let memory = FakeLinear::at(base);
        if a20m {
            memory.set_a20m();
        }
        let found = allocate(&memory, Strictness::Lenient).map(drop);
        assert_eq!(found.err(), address.map(|address| AreaError::Rule(Rule::Bit20 { address })), "{base:#x}");
    }
}

#[test]
fn addresses_are_canonical() {
    let narrow = DsCapabilities { linear_address_bits: 45, ..CAPABILITIES };
    let memory = FakeLinear::new();
    let error = DsArea::allocate(memory, &narrow, &PLAN, Strictness::Lenient).unwrap_err();
    assert_eq!(error, AreaError::Rule(Rule::NotCanonical { address: FakeLinear::BASE, bits: 45 }));
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
        let memory = FakeLinear::new();
        memory.spoil(move |_, at, mapping| {
            if at == BUFFER_PAGE + 0x3000 {
                mapping.as_mut().unwrap().memory_type = memory_type;
            }
        });
        let warning = Warning::NotWriteBack { address: BUFFER_PAGE + 0x3000, memory_type };
        let area = allocate(&memory, Strictness::Lenient).unwrap();
        assert_eq!(area.warnings().iter().collect::<Vec<_>>(), [warning]);
        drop(area);
    }
}

#[test]
fn gives_back_what_it_took_when_an_allocation_fails() {
    for nth in 0..2 {
        let memory = FakeLinear::new();
        memory.fail_at(nth);
        assert!(matches!(allocate(&memory, Strictness::Lenient), Err(AreaError::NoMemory { .. })));
        assert_eq!(memory.live(), 0);
        assert!(allocate(&memory, Strictness::Lenient).is_ok());
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
    let error = DsArea::allocate(memory, &narrow, &PLAN, Strictness::Lenient).unwrap_err();
    assert!(matches!(error, AreaError::BadBlock { address: 0x1_0000_0000, .. }), "{error}");

    let huge = BufferPlan { bytes: u64::MAX, ..PLAN };
    let error = DsArea::allocate(FakeLinear::new(), &CAPABILITIES, &huge, Strictness::Lenient).unwrap_err();
    assert_eq!(error, AreaError::NoMemory { bytes: u64::MAX });
}
