use super::*;
use crate::amd::fake::{self, IBS_CTL};
use crate::amd::{EilvtError, LvtEntry, Northbridge};

fn route(machine: &Machine, nodes: bool) -> Result<u8, EilvtError> {
    let mut unit = IbsUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    let mut northbridge = machine.clone();
    let nodes = nodes.then_some(&mut northbridge as &mut dyn Northbridge);
    unit.route(&mut machine.clone(), nodes)
}

#[test]
fn the_entry_that_ibs_ctl_names_becomes_an_nmi() {
    let in_use = |n, entry| Err(EilvtError::InUse { n, entry: LvtEntry(entry) });
    // (IBS_CTL, entry 1 of two, verdict, entry 1 afterwards)
    let table = [
        (0x101, 0x1_0000, Ok(1), 0x400),
        // Some firmware leaves 0 there.
        (0x101, 0, Ok(1), 0x400),
        // Already routed to the NMI; the processor sets the delivery status.
        (0x101, 0x400, Ok(1), 0x400),
        (0x101, 0x1400, Ok(1), 0x1400),
        (0x101, 0xfa, in_use(1, 0xfa), 0xfa),
        (0x101, 0x200, in_use(1, 0x200), 0x200),
        (0x102, 0x1_0000, Err(EilvtError::NoEntry { n: 2, count: 2 }), 0x1_0000),
        // Not valid: only firmware can change that here.
        (0x001, 0x1_0000, Err(EilvtError::NotAssigned { ibs_ctl: 1 }), 0x1_0000),
    ];
    for (ctl, before, verdict, after) in table {
        let machine = Machine::new(fake::ZEN_2);
        machine.set(IBS_CTL, ctl);
        machine.set_table(&[0xf9, before]);
        machine.set_nodes(&[0]);
        assert_eq!(route(&machine, true), verdict, "{ctl:#x} {before:#x}");
        assert_eq!(machine.table(), [0xf9, after]);
    }
}

#[test]
fn on_family_10h_the_first_free_entry_is_written_to_all_northbridges() {
    let not_assigned = Err(EilvtError::NotAssigned { ibs_ctl: 0 });
    // (table, northbridges may be reached, verdict, table afterwards, northbridges afterwards)
    let table: [(&[u32], _, _, &[u32], _); 5] = [
        (&[0x1_0000; 4], true, Ok(1), &[0x1_0000, 0x400, 0x1_0000, 0x1_0000], 0x101),
        // Entry 0 belongs to the machine check thresholds, whether they use it or not.
        (&[0x1_0000, 0xfa, 0x400, 0x1_0000], true, Ok(3), &[0x1_0000, 0xfa, 0x400, 0x400], 0x103),
        (&[0x1_0000, 0xfa], true, Err(EilvtError::NoneFree { count: 2 }), &[0x1_0000, 0xfa], 0),
        (&[], true, Err(EilvtError::NoneFree { count: 0 }), &[], 0),
        (&[0x1_0000; 2], false, not_assigned, &[0x1_0000; 2], 0),
    ];
    for (before, nodes, verdict, after, control) in table {
        let machine = Machine::new(fake::BARCELONA);
        machine.set(IBS_CTL, 0);
        machine.set_table(before);
        machine.set_nodes(&[0, 0]);
        assert_eq!(route(&machine, nodes), verdict, "{before:x?}");
        assert_eq!(machine.table(), after);
        assert_eq!(machine.nodes(), [control, control]);
    }
}

#[test]
fn on_family_10h_an_entry_that_no_northbridge_took_is_none() {
    let machine = Machine::new(fake::BARCELONA);
    machine.set(IBS_CTL, 0);
    assert_eq!(route(&machine, true), Err(EilvtError::NotAssigned { ibs_ctl: 0 }));
    assert_eq!(machine.table(), [0x1_0000; 4]);
}

#[test]
fn every_processor_routes_its_own_and_again_after_a_reset() {
    let machine = Machine::new(fake::ZEN_2);
    let mut unit = IbsUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    for _ in 0..2 {
        machine.set_table(&[0x1_0000; 4]);
        assert_eq!(unit.route(&mut machine.clone(), None), Ok(1));
        assert_eq!(machine.table()[1], 0x400);
    }
}
