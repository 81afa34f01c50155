use super::*;
use crate::code::Code;
use crate::testing::{record, samples_at};
use crate::truth::RecordFlags;
use pugmark_protocol::Samples;

#[test]
fn an_interrupt_before_the_first_instruction_of_a_level_is_of_that_level() {
    // 1000: sysretq; 1003: syscall; 1005: iretq; stubs of nops.
    let main = [0x48, 0x0f, 0x07, 0x0f, 0x05, 0x48, 0xcf];
    let code = [(0x1000, main.to_vec()), (0x2000, vec![0x90; 4096])];
    let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
    let symbols = Symbols::from_pairs([(STUBS, 0x2000)]);
    let at = |rip, cpl| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 };
    let (back, out, nmi, end) = (at(0x1000, 0), at(0x1003, 3), at(0x2020, 0), at(0x1005, 0));
    for (records, user) in [
        (&[back, nmi][..], 1),
        (&[out, nmi], 0),
        // The second NMI arrives as soon as the first one's handler has returned.
        (&[back, nmi, end, nmi], 2),
        (&[out, nmi, end, nmi], 0),
        // The second NMI arrives within the handler of one at user level.
        (&[back, nmi, nmi, end, nmi], 1),
    ] {
        let mut instructions = Instructions::new(code.clone());
        let events = Events::of(records, Some(3), &mut instructions, &symbols).unwrap();
        assert_eq!(events.deliveries, user, "{records:x?}");
    }
}

#[test]
fn interrupts_count_at_the_level_that_they_interrupt() {
    // 1000: nop; 1001: jmp; 1003: iretq; 1005: int 80h; at 2000 the stubs, of nops.
    let main = [0x90, 0xeb, 0x00, 0x48, 0xcf, 0xcd, 0x80];
    let code = [(0x1000, main.to_vec()), (0x2000, vec![0x90; 4096])];
    let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
    let symbols = Symbols::from_pairs([(STUBS, 0x2000)]);
    let at = |rip, cpl| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 };
    let software = Record { flags: RecordFlags::new(3).software_interrupt(), ..at(0x1005, 3) };
    let records = [
        at(0x1000, 3),
        at(0x1001, 3),
        // An NMI: its first and second instruction, and its return.
        at(0x2020, 0),
        at(0x2021, 0),
        at(0x1003, 0),
        software,
        at(0x2800, 0),
        // A page fault in the kernel.
        at(0x20e0, 0),
    ];
    let events = |cpl| Events::of(&records, cpl, &mut Instructions::new(code.clone()), &symbols).unwrap();
    let all = Events { instructions: 8, branches: 2, far: 1, software_interrupts: 1, deliveries: 3 };
    assert_eq!(events(None), all);
    let user = Events { instructions: 3, branches: 1, far: 0, software_interrupts: 1, deliveries: 2 };
    assert_eq!(events(Some(3)), user);
    let kernel = Events { instructions: 5, branches: 1, far: 1, software_interrupts: 0, deliveries: 1 };
    assert_eq!(events(Some(0)), kernel);
    for (select, as_instructions, expected) in
        [(0xc0, false, 8), (0xc0, true, 10), (0xc2, true, 5), (0xc6, false, 4)]
    {
        assert_eq!(all.counted(select, as_instructions).unwrap(), expected, "{select:#x}");
    }
    assert!(all.counted(0x76, false).is_err());
}

#[test]
fn interrupts_come_where_something_retired_or_directly_after() {
    // 1000: nop; 1001: jmp 1005; 1003: ud2; 1005: nop; 1006: ud2.
    let bytes = vec![0x90, 0xeb, 0x02, 0x0f, 0x0b, 0x90, 0x0f, 0x0b];
    let code = vec![Code { base: 0x1000, bytes, cr3: None }];
    let records = [record(1, 0x1000), record(1, 0x1001), record(1, 0x1005)];
    for (address, can_come) in [
        (0x1000, true),
        (0x1005, true),
        // The second UD2 faults after the NOP. After the jump nothing is executed, but the check does not know that.
        (0x1006, true),
        (0x1003, true),
        (0x1002, false),
        (0x1004, false),
        (0x1008, false),
    ] {
        let mut instructions = Instructions::new(code.clone());
        let found = all_interrupted(&samples_at(&[(address, 1)]), &records, &mut instructions, 0x2020);
        assert_eq!(found.is_ok(), can_come, "{address:#x}");
    }
    let mut instructions = Instructions::new(code);
    let totals = Samples { taken: 2, ..Samples::default() };
    let short = SampledSession { totals, ..samples_at(&[(0x1000, 1)]) };
    assert!(all_interrupted(&short, &records, &mut instructions, 0x2020).is_err());
}

#[test]
fn an_interrupt_can_come_where_a_handler_returned_to_what_then_faulted() {
    // 1000: nop, ud2, ud2; 2000: the stub of #UD, an IRETQ; 2020: the NMI handler, also an IRETQ.
    let mut stubs = vec![0x90; 0x40];
    stubs[..2].copy_from_slice(&[0x48, 0xcf]);
    stubs[0x20..0x22].copy_from_slice(&[0x48, 0xcf]);
    let code = [(0x1000, vec![0x90, 0x0f, 0x0b, 0x0f, 0x0b, 0x90]), (0x2000, stubs)];
    let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
    let found = |addresses: &[(u64, u64)], records: &[u64]| {
        let records: Vec<_> = records.iter().copied().map(|rip| record(1, rip)).collect();
        all_interrupted(&samples_at(addresses), &records, &mut Instructions::new(code.clone()), 0x2020)
            .is_ok()
    };
    // The first UD2 faults, its handler returns to the second one, and there the NMI arrives.
    let records = [0x1000, 0x2000, 0x2020, 0x2000, 0x1005];
    assert!(found(&[(0x1003, 1)], &records));
    assert!(!found(&[(0x1003, 2)], &records), "it came there once");
    assert!(!found(&[(0x1003, 1)], &[0x1000, 0x2000, 0x2000, 0x1005]), "no NMI came");
    assert!(!found(&[(0x1003, 1)], &[0x2000, 0x1000, 0x2020, 0x2000, 0x1005]), "it came after a NOP");
}
