//! Event trace, on the profile sapphire-rapids.

use std::string::String;

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{Context, DeliveryKind};

const EVENT_EN: u64 = 1 << 31;
const CLI: &[u8] = &[0xfa];
const STI: &[u8] = &[0xfb];

fn traced(ctl: u64, code: impl FnOnce(&mut Machine)) -> String {
    run("sapphire-rapids", IntelSettings::default(), ctl | EVENT_EN, code)
}

const ON: &str = "MODE.Exec 64; TIP.PGE 400000; ";

#[test]
fn an_event_shares_the_fup_of_its_branch_packets() {
    let fault = |m: &mut Machine| m.deliver(DeliveryKind::Fault, 14, m.kernel(0x50_0000), Some(0xdead_0000));
    let packets = "EVD 0 dead0000; CFE 1 14; FUP 400000; TIP 500000";
    assert_eq!(traced(ALL, fault), String::from(ON) + packets);
    let interrupt_and_back = |m: &mut Machine| {
        m.deliver(DeliveryKind::Interrupt, 32, m.kernel(0x50_0000), None);
        m.far(IRETQ, m.kernel(0x40_0000));
    };
    let packets = "CFE 1 32; FUP 400000; TIP 500000; CFE 2 0; TIP 400000";
    assert_eq!(traced(ALL, interrupt_and_back), String::from(ON) + packets);
}

#[test]
fn without_branch_packets_an_event_brings_its_own_fup() {
    let code = |m: &mut Machine| {
        m.deliver(DeliveryKind::Interrupt, 32, m.kernel(0x50_0000), None);
        m.far(IRETQ, m.kernel(0x40_0000));
    };
    assert_eq!(traced(ALL & !0x2000, code), "CFE 1 32 ip; FUP 400000; CFE 2 0 ip; FUP 500000");
}

#[test]
fn events_out_of_context_do_not_show() {
    let code = |m: &mut Machine| m.deliver(DeliveryKind::Fault, 14, m.kernel(0x50_0000), Some(1));
    assert_eq!(traced(0x2009, code), "");
}

#[test]
fn the_interrupt_flag_shows_in_mode_exec() {
    let flag = |bytes, iflag| move |m: &mut Machine| m.far(bytes, Context { ip: m.at.ip + 1, iflag, ..m.at });
    let code = |m: &mut Machine| {
        m.next(JZ);
        flag(STI, true)(m);
        flag(STI, true)(m);
        flag(CLI, false)(m);
        m.far(IRETQ, Context { iflag: true, ..m.user(0x1000) });
    };
    let packets =
        "TNT 0; MODE.Exec 64 if; FUP 400003; MODE.Exec 64; FUP 400005; CFE 2 0; MODE.Exec 64 if; TIP 1000";
    assert_eq!(traced(ALL, code), String::from(ON) + packets);
    // Without event trace the change is not visible.
    let plain = run("sapphire-rapids", IntelSettings::default(), ALL, |m| flag(STI, true)(m));
    assert_eq!(plain, "MODE.Exec 64; TIP.PGE 400000");
    let mut machine = Machine::new("sapphire-rapids", IntelSettings::default());
    machine.at.iflag = true;
    machine.start(ALL);
    machine.stop();
    assert_eq!(machine.body(), "MODE.Exec 64; TIP.PGE 400000");
}
