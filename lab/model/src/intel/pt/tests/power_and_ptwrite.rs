//! PTWRITE and power events.

use std::string::String;

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{Context, DeliveryKind};

const PTW_EN: u64 = 1 << 12;
const FUP_ON_PTW: u64 = 1 << 5;
const PWR_EVT_EN: u64 = 1 << 4;
const PTWRITE_EAX: &[u8] = &[0xf3, 0x0f, 0xae, 0xe0];
const PTWRITE_RAX: &[u8] = &[0xf3, 0x48, 0x0f, 0xae, 0xe0];
const HLT: &[u8] = &[0xf4];
const MWAIT: &[u8] = &[0x0f, 0x01, 0xc9];

fn traced(ctl: u64, code: impl FnOnce(&mut Machine)) -> String {
    run("sapphire-rapids", IntelSettings::default(), ctl, code)
}

const ON: &str = "MODE.Exec 64; TIP.PGE 400000; ";

fn step(bytes: &'static [u8], operand: u64) -> impl Fn(&mut Machine) {
    move |m| m.operand(bytes, Context { ip: m.at.ip + bytes.len() as u64, ..m.at }, operand)
}

#[test]
fn ptwrite_writes_its_operand() {
    let value = 0x1122_3344_5566_7788;
    let (four, eight) = (step(PTWRITE_EAX, value), step(PTWRITE_RAX, value));
    assert_eq!(traced(ALL | PTW_EN, &four), String::from(ON) + "PTW 4 55667788");
    assert_eq!(traced(ALL | PTW_EN, &eight), String::from(ON) + "PTW 8 1122334455667788");
    let with_ip = String::from(ON) + "PTW 4 55667788 ip; FUP 400000";
    assert_eq!(traced(ALL | PTW_EN | FUP_ON_PTW, &four), with_ip);
    assert_eq!(traced(ALL & !0x2000 | PTW_EN | FUP_ON_PTW, &four), "PTW 4 55667788 ip; FUP 400000");
    assert_eq!(traced(ALL, &four), ON.trim_end_matches("; "), "PTWEn is clear");
    assert_eq!(traced(0x2009 | PTW_EN, &four), "", "ContextEn is clear");
    let outside = traced(ALL | PTW_EN | 1 << 32, |m| {
        assert_eq!(m.read(STATUS) & 1, 0, "FilterEn");
        four(m);
    });
    assert_eq!(outside, "");
}

#[test]
fn halting_and_waking() {
    let woken = |kind| {
        move |m: &mut Machine| {
            step(HLT, 0)(m);
            m.tsc = 500;
            m.deliver(kind, 32, m.kernel(0x50_0000), None);
        }
    };
    let all = ALL | PWR_EVT_EN | 1 << 10;
    let slept = "PWRE 1.0; EXSTOP ip; FUP 400000; TSC 500; CBR 20; ";
    assert_eq!(
        traced(all, woken(DeliveryKind::Interrupt)),
        String::from(ON) + slept + "PWRX 1 1 int; FUP 400001; TIP 500000"
    );
    assert_eq!(
        traced(all, woken(DeliveryKind::Nmi)),
        String::from(ON) + slept + "PWRX 1 1; FUP 400001; TIP 500000"
    );
    // While ContextEn is clear neither the IP nor the MWAIT is visible.
    let user = traced(0x2009 | PWR_EVT_EN, woken(DeliveryKind::Nmi));
    assert_eq!(user, "PWRE 1.0; EXSTOP; CBR 20; PWRX 1 1");
    // Without power events the clocks still stopped.
    assert_eq!(traced(ALL, woken(DeliveryKind::Nmi)), String::from(ON) + "CBR 20; FUP 400001; TIP 500000");
}

#[test]
fn mwait_shows_its_hints_and_extensions() {
    let wait = |operand| {
        move |m: &mut Machine| {
            step(MWAIT, operand)(m);
            m.next(NOP);
        }
    };
    let all = ALL | PWR_EVT_EN;
    let packets = "MWAIT 21 1; PWRE 1.0; EXSTOP ip; FUP 400000; CBR 20; PWRX 1 1";
    assert_eq!(traced(all, wait(1 << 32 | 0x21)), String::from(ON) + packets);
    let user = traced(0x2009 | PWR_EVT_EN, wait(0x21));
    assert_eq!(user, "PWRE 1.0; EXSTOP; CBR 20; PWRX 1 1", "out of context");
    let timed = traced(all | 1 << 1, |m| {
        m.tsc = 1000;
        step(MWAIT, 0x21)(m);
    });
    assert_eq!(
        timed,
        String::from(ON) + "CYC 1000; MWAIT 21 0; PWRE 1.0; EXSTOP ip; FUP 400000",
        "CYC-eligible"
    );
    assert_eq!(traced(all, wait(0xf0)), ON.trim_end_matches("; "), "to C0: nothing");
}
