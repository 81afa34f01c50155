//! The delivery of interrupts to the processor.

use super::machine::*;
use crate::Pmi;
use crate::amd::AmdSettings;

#[test]
fn the_entry_s_message_type_decides_and_its_mask_stays_as_it_is() {
    for (lvt, expected) in [
        (0x0_0400, Some(Pmi::Nmi)),
        (0x0_04ff, Some(Pmi::Nmi)),
        (0x0_00f3, Some(Pmi::Fixed(0xf3))),
        (0x0_0010, Some(Pmi::Fixed(0x10))),
        (0x0_000f, None),
        (0x0_0000, None),
        (0x1_0400, None),
        (0x1_00f3, None),
        // SMI, external interrupt.
        (0x0_0230, None),
        (0x0_0730, None),
    ] {
        for offset in [0x340, 0x500] {
            let mut machine = AmdMachine::new("zen4");
            machine.processor.write_apic(offset, lvt);
            if offset == 0x340 {
                machine.write(0xc001_0004, !0);
                machine.write(0xc001_0000, ALL | 1 << 20 | 0xc0);
            } else {
                machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
            }
            machine.next(NOP);
            assert_eq!(machine.interrupts(), std::vec::Vec::from_iter(expected), "{offset:#x} {lvt:#x}");
            assert_eq!(machine.processor.read_apic(offset), lvt);
            let violations = machine.processor.violations();
            let dropped = u32::from(lvt >> 16 & 1 != 0);
            let wrong = u32::from(expected.is_none()) - dropped;
            assert_eq!(
                (violations.interrupts_dropped, violations.interrupts_misprogrammed),
                (dropped, wrong),
                "{lvt:#x}"
            );
        }
    }
}

#[test]
fn every_entry_is_masked_after_reset_and_after_init() {
    let reset = 1 << 16;
    for offset in [0x340, 0x500, 0x510, 0x520, 0x530] {
        let mut machine = AmdMachine::new("zen4");
        assert_eq!(machine.processor.read_apic(offset), reset, "{offset:#x}");
        machine.processor.write_apic(offset, !0);
        // Mask, message type, vector.
        assert_eq!(machine.processor.read_apic(offset), 0x1_07ff, "{offset:#x}");
        machine.processor.write_apic(offset, 0x400);
        machine.init();
        assert_eq!(machine.processor.read_apic(offset), reset, "{offset:#x}");
    }
}

#[test]
fn init_discards_interrupts_that_wait_for_the_processor() {
    for (counters, ibs) in [(0x400, 0x0f1), (0x0f0, 0x400)] {
        let mut machine = AmdMachine::new("zen4");
        machine.processor.write_apic(0x340, counters);
        machine.processor.write_apic(0x500, ibs);
        machine.write(0xc001_0004, 2_u64.wrapping_neg());
        machine.write(0xc001_0000, ALL | 1 << 20 | 0xc0);
        machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
        machine.next(NOP);
        machine.init();
        assert_eq!(machine.interrupts(), [], "{counters:#x} {ibs:#x}");
    }
}

#[test]
fn the_feature_register_says_how_many_entries_there_are() {
    for (name, number) in [("k8", 1), ("barcelona", 4), ("zen5", 4)] {
        let mut machine = AmdMachine::new(name);
        assert_eq!(machine.processor.read_apic(0x400), number << 16, "{name}");
        machine.processor.write_apic(0x400, !0);
        machine.processor.write_apic(0x410, !0);
        assert_eq!(
            (machine.processor.read_apic(0x400), machine.processor.read_apic(0x410)),
            (number << 16, 0)
        );
        for offset in (0..0x1000).step_by(16) {
            let own = match offset {
                0x340 | 0x400 | 0x410 => true,
                0x500..0x540 => (offset - 0x500) / 0x10 < number,
                _ => false,
            };
            assert_eq!(machine.processor.owns_apic(offset), own, "{name} {offset:#x}");
        }
        assert!(!machine.processor.owns_apic(0x504));
        assert_eq!(machine.processor.adjust_apic(0x30, 0x5_0014), 0x8005_0014);
        assert_eq!(machine.processor.adjust_apic(0x20, 0x5_0014), 0x5_0014);
    }
}

#[test]
fn an_interrupt_comes_after_the_skid_though_its_cause_is_off_by_then() {
    let mut machine = AmdMachine::with("zen4", AmdSettings { skid: 3, ..AmdSettings::default() });
    machine.processor.write_apic(0x340, 0x400);
    machine.write(0xc001_0004, !0);
    machine.write(0xc001_0000, ALL | 1 << 20 | 0xc0);
    assert_eq!(machine.processor.max_unreported(), u32::MAX);
    machine.next(NOP);
    assert_eq!(machine.interrupts(), []);
    assert_eq!(machine.processor.max_unreported(), 3);
    // The write that stops the counter is one of the three instructions.
    machine.write(0xc001_0000, 0);
    assert!(!machine.processor.is_on() && machine.processor.needs_each_instruction());
    assert_eq!(machine.processor.max_unreported(), 2);
    machine.next(NOP);
    assert_eq!(machine.interrupts(), []);
    machine.next(NOP);
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
    assert!(!machine.processor.needs_each_instruction());
}

#[test]
fn a_halt_lets_interrupts_arrive_at_once() {
    let mut machine = AmdMachine::with("zen4", AmdSettings { skid: 30, ..AmdSettings::default() });
    machine.processor.write_apic(0x340, 0xf0);
    machine.write(0xc001_0004, !0);
    machine.write(0xc001_0000, ALL | 1 << 20 | 0xc0);
    machine.next(HLT);
    assert_eq!(machine.interrupts(), [Pmi::Fixed(0xf0)]);
}

#[test]
fn nmis_of_both_sources_are_one_and_vectors_are_kept_apart() {
    for (counters, ibs, expected) in [
        (0x400, 0x400, std::vec![Pmi::Nmi]),
        (0x0f0, 0x400, std::vec![Pmi::Nmi, Pmi::Fixed(0xf0)]),
        (0x0f0, 0x0f1, std::vec![Pmi::Fixed(0xf0), Pmi::Fixed(0xf1)]),
        (0x0f0, 0x0f0, std::vec![Pmi::Fixed(0xf0)]),
    ] {
        let mut machine = AmdMachine::new("zen4");
        machine.processor.write_apic(0x340, counters);
        machine.processor.write_apic(0x500, ibs);
        machine.write(0xc001_0004, 2_u64.wrapping_neg());
        machine.write(0xc001_0000, ALL | 1 << 20 | 0xc0);
        // The write is counted, so that the next instruction makes the counter wrap.
        machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
        machine.next(NOP);
        assert_eq!(machine.interrupts(), expected, "{counters:#x} {ibs:#x}");
    }
}

#[test]
fn ibs_control_names_the_entry() {
    let mut machine = AmdMachine::new("zen4");
    assert_eq!(machine.read(IBS_CTL), 0x100);
    // On barcelona firmware has not set an entry.
    let mut barcelona = AmdMachine::new("barcelona");
    assert_eq!(barcelona.read(IBS_CTL), 0);
    for (machine, without) in [(&mut machine, 0), (&mut barcelona, 1)] {
        machine.processor.write_apic(0x500, 0x400);
        machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
        machine.next(NOP);
        assert_eq!(machine.interrupts().len(), 1 - without);
        assert_eq!(machine.processor.violations().samples_without_lvt, without as u32);
    }
}
