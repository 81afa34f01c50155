use super::*;
use crate::guest::Gpr;

const FROM: &[u8] = &[0x0f, 0x21, 0xf3];
const TO: &[u8] = &[0x0f, 0x23, 0xf3];
const GD: u64 = 1 << 13;

#[test]
fn the_guest_reads_and_clears_its_own_conditions() {
    let mut machine = Machine::long();
    machine.cpu.dr6 = 0xffff_4ff1;
    machine.cpu.set(Gpr::Rbx, u64::MAX);
    assert_eq!(run(&mut machine, FROM), RETIRED);
    assert_eq!(machine.cpu.get(Gpr::Rbx), 0xffff_4ff1);
    // Value written, value read back.
    for (written, held) in [(0, 0xffff_0ff0), (0xffff_ffff, 0xffff_efff), (0x4001, 0xffff_4ff1)] {
        machine.cpu.set(Gpr::Rbx, written);
        assert_eq!(run(&mut machine, TO), RETIRED);
        assert_eq!(machine.cpu.dr6, held, "{written:#x}");
    }
    let mut machine = Machine::protected();
    machine.cpu.dr6 = 0xffff_0ff2;
    assert_eq!(run(&mut machine, FROM), RETIRED);
    assert_eq!(machine.cpu.get(Gpr::Rbx), 0xffff_0ff2);
}

#[test]
fn refuses_what_the_manual_refuses() {
    type Change = fn(&mut Machine);
    let general_detect = Exception::debug(1 << 13);
    let rows: &[(&[u8], Change, Exception)] = &[
        (FROM, |machine| machine.cpu.cpl = 3, GP),
        (TO, |machine| machine.cpu.cpl = 3, GP),
        (FROM, |machine| machine.cpu.dr7 |= GD, general_detect),
        (TO, |machine| machine.cpu.dr7 |= GD, general_detect),
        (TO, |machine| machine.cpu.set(Gpr::Rbx, 1 << 32), GP),
    ];
    for (bytes, change, exception) in rows {
        let mut machine = Machine::long();
        change(&mut machine);
        assert_eq!(run_whole(&mut machine, bytes), fault(*exception), "{bytes:x?}");
    }
}
