//! F3x1CC through the configuration ports.

use super::machine::*;
use crate::Pmi;
use crate::amd::{AmdProfile, Northbridge};

fn barcelona() -> Northbridge {
    Northbridge::new(AmdProfile::by_name("barcelona").expect("there is one"))
}

#[test]
fn a_host_bridge_of_five_functions_is_device_18h() {
    let northbridge = barcelona();
    for function in 0..8 {
        northbridge.port_write(0xcf8, 4, 0x8000_c000 | function << 8);
        let expected = (function < 5).then_some(0x1200_1022 + (function << 16));
        assert_eq!(northbridge.port_read(0xcfc, 4), expected, "{function}");
    }
    for (register, expected) in [(0x08, 0x0600_0000), (0x0c, 0x0080_0000), (0x10, 0), (0xcc, 0)] {
        northbridge.port_write(0xcf8, 4, 0x8000_c300 | register);
        assert_eq!(northbridge.port_read(0xcfc, 4), Some(expected), "{register:#x}");
    }
}

#[test]
fn accesses_to_other_devices_are_not_its_own() {
    let northbridge = barcelona();
    for address in [0x0000_c300, 0x8000_b800, 0x8000_c800, 0x8001_c300, 0x8000_0000] {
        assert!(!northbridge.port_write(0xcf8, 4, address));
        assert_eq!(northbridge.port_read(0xcfc, 4), None, "{address:#x}");
        assert!(!northbridge.port_write(0xcfc, 4, 0), "{address:#x}");
    }
    northbridge.port_write(0xcf8, 4, 0x8000_c300);
    assert_eq!(northbridge.port_read(0xcf8, 4), None);
    assert_eq!(northbridge.port_read(0xd00, 4), None);
    // Only an access of four bytes writes the address.
    northbridge.port_write(0xcf8, 2, 0);
    assert_eq!(northbridge.port_read(0xcfc, 4), Some(0x1203_1022));
}

#[test]
fn other_processors_have_none() {
    for name in ["k8", "trinity", "zen2", "zen4"] {
        let northbridge = Northbridge::new(AmdProfile::by_name(name).expect(name));
        northbridge.port_write(0xcf8, 4, 0x8000_c300);
        assert_eq!(northbridge.port_read(0xcfc, 4), None, "{name}");
    }
}

#[test]
fn narrow_accesses_reach_their_bytes() {
    let northbridge = barcelona();
    northbridge.port_write(0xcf8, 4, 0x8000_c300);
    for (port, bytes, expected) in [
        (0xcfc, 1, 0x22),
        (0xcfd, 1, 0x10),
        (0xcfe, 1, 0x03),
        (0xcff, 1, 0x12),
        (0xcfc, 2, 0x1022),
        (0xcfe, 2, 0x1203),
    ] {
        assert_eq!(northbridge.port_read(port, bytes), Some(expected), "{port:#x} {bytes}");
    }
}

#[test]
fn the_extended_register_needs_its_enable() {
    let mut machine = AmdMachine::new("barcelona");
    let northbridge = machine.processor.northbridge();
    northbridge.port_write(0xcf8, 4, 0x8100_c3cc);
    northbridge.port_write(0xcfc, 4, 0x101);
    assert_eq!((northbridge.port_read(0xcfc, 4), machine.read(IBS_CTL)), (Some(0), 0));
    machine.write(0xc001_001f, 1 << 46);
    assert_eq!(machine.read(0xc001_001f), 1 << 46);
    northbridge.port_write(0xcfc, 4, !0);
    assert_eq!((northbridge.port_read(0xcfc, 4), machine.read(IBS_CTL)), (Some(0x10f), 0x10f));
    northbridge.port_write(0xcfc, 1, 0x2);
    assert_eq!(machine.read(IBS_CTL), 0x102);
    northbridge.port_write(0xcfd, 1, 0);
    assert_eq!(machine.read(IBS_CTL), 0x2);
    // A write to another function or another register does not change it.
    for address in [0x8100_c2cc, 0x8100_c3c8, 0x8000_c3cc] {
        northbridge.port_write(0xcf8, 4, address);
        northbridge.port_write(0xcfc, 4, 0x10f);
        assert_eq!(machine.read(IBS_CTL), 0x2, "{address:#x}");
    }
}

#[test]
fn samples_interrupt_through_the_entry_it_names() {
    for (control, expected) in [(0x100, 0), (0x101, 1), (0x103, 3), (0x104, 4), (0x001, 4)] {
        let mut machine = AmdMachine::new("barcelona");
        machine.ibs_by_nmi();
        machine.processor.northbridge().port_write(0xcfc, 4, control);
        for index in 0..4 {
            machine.processor.write_apic(0x500 + 0x10 * index, 0xf0 + index);
        }
        machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
        machine.next(NOP);
        let there = (expected < 4).then_some(Pmi::Fixed(0xf0 + expected));
        assert_eq!(machine.interrupts(), std::vec::Vec::from_iter(there), "{control:#x}");
    }
}
