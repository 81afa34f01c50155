//! The existing MSRs, and the values that they accept, typed from the manuals a second time.

use super::machine::*;
use crate::amd::AmdProfile;

const NAMES: [&str; 8] = ["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5", "zen6"];

/// The profiles that have a feature, in the order of [`NAMES`].
const NONE: [bool; 8] = [false; 8];
const EVERY: [bool; 8] = [true; 8];
const ZEN4: [bool; 8] = [false, false, false, false, false, true, true, true];
const ZEN: [bool; 8] = [false, false, false, true, true, true, true, true];
const EXTENDED: [bool; 8] = [false, false, true, true, true, true, true, true];
const IBS: [bool; 8] = [false, true, true, true, true, true, true, true];
const ZEN6: [bool; 8] = [false, false, false, false, false, false, false, true];
const ZEN5: [bool; 8] = [false, false, false, false, false, false, true, true];

#[test]
fn each_msr_is_there_where_it_is_enumerated() {
    assert_eq!(
        NAMES.map(Some),
        AmdProfile::all().iter().map(|p| Some(p.name)).collect::<std::vec::Vec<_>>()[..]
    );
    let rows: [(u32, u32, [bool; 8]); 18] = [
        (0xc000_02ff, 0xc000_02ff, NONE),
        (0xc000_0300, 0xc000_0303, ZEN4),
        (0xc000_0304, 0xc000_0304, NONE),
        (0xc000_ffff, 0xc000_ffff, NONE),
        (0xc001_0000, 0xc001_0007, EVERY),
        (0xc001_0008, 0xc001_0008, NONE),
        (0xc001_001e, 0xc001_001e, NONE),
        (0xc001_001f, 0xc001_001f, IBS),
        (0xc001_01ff, 0xc001_01ff, NONE),
        (0xc001_0200, 0xc001_020b, EXTENDED),
        (0xc001_020c, 0xc001_020c, NONE),
        (0xc001_102f, 0xc001_102f, NONE),
        (0xc001_1030, 0xc001_103a, IBS),
        (0xc001_103b, 0xc001_103b, EXTENDED),
        (0xc001_103c, 0xc001_103c, ZEN),
        (0xc001_103d, 0xc001_103d, NONE),
        (0xc001_103e, 0xc001_103f, ZEN6),
        (0x186, 0x186, NONE),
    ];
    for (first, last, there) in rows {
        for (name, there) in NAMES.into_iter().zip(there) {
            for msr in first..=last {
                let machine = AmdMachine::new(name);
                assert_eq!(machine.processor.owns_msr(msr), there, "{name} {msr:#x}");
                assert_eq!(machine.processor.read_msr(msr).is_ok(), there, "{name} {msr:#x}");
            }
        }
    }
}

/// Returns whether firmware has set the MSR; tests of their own check the values of these.
fn configures(msr: u32) -> bool {
    matches!(msr, 0xc001_0010..=0xc001_01ff | 0xc001_1020..=0xc001_102f)
}

#[test]
fn registers_are_0_after_reset_but_for_these() {
    // All counters are enabled in the global register, the two bits of DBG_EXTN_CFG that must always be set are set,
    // and the local APIC's offset in IBS_CTL is valid unless the northbridge supplies it.
    const OTHERS: [(u32, [u64; 8]); 3] = [
        (0xc000_0301, [0, 0, 0, 0, 0, 0x3f, 0x3f, 0x3f]),
        (0xc000_010f, [0, 0, 0, 0, 0x18, 0, 0, 0]),
        (IBS_CTL, [0, 0, 0x100, 0x100, 0x100, 0x100, 0x100, 0x100]),
    ];
    for (index, name) in NAMES.into_iter().enumerate() {
        let processor = AmdMachine::new(name).processor;
        for msr in (0..0x2000).chain(0xc000_0000..0xc000_2000).chain(0xc001_0000..0xc001_2000) {
            if processor.owns_msr(msr) && !configures(msr) {
                let other = OTHERS.iter().find(|(other, _)| *other == msr);
                let expected = other.map_or(0, |(_, values)| values[index]);
                assert_eq!(processor.read_msr(msr), Ok(expected), "{name} {msr:#x}");
            }
        }
    }
}

#[test]
fn writes_of_what_is_not_there_fault() {
    for (name, msr) in [
        ("k8", 0xc001_0200),
        ("k8", 0xc001_1030),
        ("k8", 0xc001_1033),
        ("k8", 0xc001_103a),
        ("k8", 0xc001_001f),
        ("zen2", 0xc000_0301),
        ("zen4", 0xc001_103d),
        ("barcelona", 0xc001_103b),
    ] {
        assert!(AmdMachine::new(name).try_write(msr, 0).is_err(), "{name} {msr:#x}");
    }
}

#[test]
fn read_only_registers_refuse_every_write() {
    for (name, msr) in [
        ("zen4", 0xc000_0300),
        ("zen4", FETCH_LIN),
        ("zen4", FETCH_PHYS),
        ("zen4", IBS_CTL),
        ("zen4", 0xc001_103c),
        ("barcelona", IBS_CTL),
    ] {
        assert!(AmdMachine::new(name).try_write(msr, 0).is_err(), "{name} {msr:#x}");
    }
}

#[test]
fn event_select_keeps_the_bits_that_are_not_reserved_and_drops_the_others() {
    let rows = [
        ("k8", 0x0000_0000_ffdf_ffff),
        ("barcelona", 0x0000_030f_ffdf_ffff),
        ("trinity", 0x0000_030f_ffd7_ffff),
        ("zen2", 0x0000_030f_ffd7_ffff),
        ("zen4", 0x0000_030f_ffd7_ffff),
    ];
    for (name, kept) in rows {
        for bit in 0..64 {
            let mut machine = AmdMachine::new(name);
            machine.write(0xc001_0002, 1 << bit);
            assert_eq!(machine.read(0xc001_0002), kept & 1 << bit, "{name} bit {bit}");
            let warned = u32::from(kept & 1 << bit == 0);
            assert_eq!(machine.processor.violations().reserved_event_bits, warned, "{name} bit {bit}");
        }
    }
}

#[test]
fn legacy_registers_are_the_first_four_extended_ones() {
    for index in 0..4 {
        let mut machine = AmdMachine::new("zen2");
        machine.write(0xc001_0000 + index, 0xc0);
        machine.write(0xc001_0004 + index, 77);
        assert_eq!(machine.read(0xc001_0200 + 2 * index), 0xc0);
        assert_eq!(machine.read(0xc001_0201 + 2 * index), 77);
        machine.write(0xc001_0201 + 2 * index, 78);
        assert_eq!(machine.read(0xc001_0004 + index), 78);
    }
}

#[test]
fn counters_have_48_bits() {
    let mut machine = AmdMachine::new("k8");
    machine.write(0xc001_0004, !0);
    assert_eq!(machine.read(0xc001_0004), 0xffff_ffff_ffff);
}

#[test]
fn global_registers_set_and_clear_what_they_have() {
    let mut machine = AmdMachine::new("zen4");
    assert_eq!(machine.read(0xc000_0301), 0x3f);
    machine.write(0xc000_0301, !0);
    assert_eq!(machine.read(0xc000_0301), 0x3f);
    machine.write(0xc000_0301, 5);
    assert_eq!(machine.read(0xc000_0301), 5);
    machine.write(0xc000_0303, !0);
    assert_eq!(machine.read(0xc000_0300), 0x3f);
    machine.write(0xc000_0302, 0b101);
    assert_eq!(machine.read(0xc000_0300), 0b11_1010);
    machine.write(0xc000_0303, 0b1);
    assert_eq!(machine.read(0xc000_0300), 0b11_1011);
    assert_eq!((machine.read(0xc000_0302), machine.read(0xc000_0303)), (0, 0));
    assert!(machine.interrupts().is_empty());
}

#[test]
fn rdpmc_reads_as_many_as_there_are() {
    for (name, number) in [("k8", 4), ("barcelona", 4), ("trinity", 6), ("zen4", 6)] {
        let mut machine = AmdMachine::new(name);
        machine.write(0xc001_0007, 99);
        for index in 0..8 {
            let expected = match index {
                3 => Ok(99),
                _ if index < number => Ok(0),
                _ => Err(crate::GeneralProtection),
            };
            assert_eq!(machine.processor.rdpmc(index), expected, "{name} {index}");
        }
    }
}

#[test]
fn op_control_refuses_each_bit_without_its_feature() {
    // Bits, and the profiles that have them. The others must be zero.
    let rows: [(core::ops::Range<u32>, [bool; 8]); 10] = [
        (0..16, IBS),
        (16..17, ZEN4),
        (17..19, IBS),
        (19..20, EXTENDED),
        (20..27, EXTENDED),
        (27..32, NONE),
        (32..52, IBS),
        (52..59, EXTENDED),
        (59..63, ZEN5),
        (63..64, ZEN5),
    ];
    for (bits, legal) in rows {
        for (name, legal) in NAMES.into_iter().zip(legal).skip(1) {
            for bit in bits.clone() {
                let mut machine = AmdMachine::new(name);
                assert_eq!(machine.try_write(OP_CTL, 1 << bit).is_ok(), legal, "{name} bit {bit}");
            }
        }
    }
}

#[test]
fn fetch_control_ignores_bits_that_it_lacks() {
    let all = 0x3fff_ffff_ffff_ffff;
    let l3 = 1 << 59 | 1 << 60 | 1 << 61;
    let l2 = 1 << 58;
    for (name, kept) in
        [("barcelona", all & !l3 & !l2), ("trinity", all & !l3 & !l2), ("zen2", all & !l3), ("zen4", all)]
    {
        let mut machine = AmdMachine::new(name);
        machine.write(FETCH_CTL, !0);
        assert_eq!(machine.read(FETCH_CTL), kept, "{name}");
    }
}

#[test]
fn data_registers_take_what_they_can_hold() {
    let rows = [
        ("zen4", OP_RIP, 0xffff_8000_0000_0000, true),
        ("zen4", OP_RIP, 0x0000_8000_0000_0000, false),
        ("zen4", DC_LIN, 0x0000_7fff_ffff_ffff, true),
        ("zen4", DC_LIN, 0x8000_0000_0000_0000, false),
        ("zen4", BR_TARGET, 0xffff_ffff_ffff_ffff, true),
        ("zen4", BR_TARGET, 0xfffe_ffff_ffff_ffff, false),
        ("zen4", DC_PHYS, (1 << 52) - 1, true),
        ("zen4", DC_PHYS, 1 << 52, false),
        ("zen4", OP_DATA, (1 << 41) - 1, true),
        ("zen4", OP_DATA, 1 << 41, false),
        ("trinity", OP_DATA, 1 << 38, true),
        ("trinity", OP_DATA, 1 << 39, false),
        ("barcelona", OP_DATA, 1 << 37, true),
        ("barcelona", OP_DATA, 1 << 38, false),
        ("zen2", OP_DATA2, 0x37, true),
        ("zen2", OP_DATA2, 1 << 3, false),
        ("zen2", OP_DATA2, 1 << 6, false),
        ("zen4", OP_DATA2, 0xf7, true),
        ("zen4", OP_DATA3, !0, true),
    ];
    for (name, msr, value, legal) in rows {
        let mut machine = AmdMachine::new(name);
        assert_eq!(machine.try_write(msr, value).is_ok(), legal, "{name} {msr:#x} {value:#x}");
        assert_eq!(machine.read(msr), if legal { value } else { 0 }, "{name} {msr:#x} {value:#x}");
    }
}

#[test]
fn op_data_says_from_family_17h_on_that_an_op_was_microcode() {
    const OP_DATA: u32 = 0xc001_1035;
    for (name, zen) in NAMES.into_iter().zip(ZEN).skip(1) {
        // IbsOpBrnRet, IbsOpMicrocode, and a bit that no processor has.
        for (bit, legal) in [(37, true), (40, zen), (41, false), (63, false)] {
            let mut machine = AmdMachine::new(name);
            assert_eq!(machine.try_write(OP_DATA, 1 << bit).is_ok(), legal, "{name} bit {bit}");
        }
    }
}

#[test]
fn a_transfer_that_no_instruction_explains_is_counted() {
    for (bytes, to, unexplained) in [
        (NOP, 0x40_0001, 0),
        (NOP, 0x40_0002, 1),
        (NOP, 0x40_0000, 1),
        (JMP, 0x40_0042, 0),
        // A branch may lead anywhere: the data that decides it is unknown here.
        (CALL, 0x50_0000, 0),
    ] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(0xc001_0200, ALL | 0xc0);
        machine.at.ip = 0x40_0000;
        machine.go(bytes, to);
        assert_eq!(machine.processor.violations().unexplained_transfers, unexplained, "{bytes:x?} {to:x}");
    }
}
