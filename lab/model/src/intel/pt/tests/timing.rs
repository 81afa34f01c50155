//! MTC, CYC and TSC among the other packets.

use std::string::String;

use crate::DeliveryKind;
use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;

const CYC_EN: u64 = 1 << 1;
const MTC_EN: u64 = 1 << 9;
const TSC_EN: u64 = 1 << 10;

fn at(m: &mut Machine, tsc: u64, bytes: &[u8], to: u64) {
    m.tsc = tsc;
    m.go(bytes, to);
}

const ON: &str = "MODE.Exec 64; TIP.PGE 400000; ";

#[test]
fn cyc_precedes_what_it_times() {
    // From the manual's "An Illustrative CYC Packet Example"; the CYC before a TNT is that of the TNT's first branch.
    let code = |m: &mut Machine| {
        at(m, 100, CALL_RAX, 0x1000);
        at(m, 102, CALL_RAX, 0x2000);
        at(m, 108, JZ, 0x2002);
        at(m, 109, RET, 0x1002);
        at(m, 112, JZ, 0x1044);
        at(m, 116, RET, 0x9000);
        at(m, 116, JMP_RAX, 0x9100);
    };
    let packets = "CYC 100; TIP 1000; CYC 2; TIP 2000; CYC 6; TNT 011; CYC 8; TIP 9000; TIP 9100; CYC 1";
    let body = run("skylake", IntelSettings::default(), ALL | CYC_EN, |m| {
        code(m);
        m.tsc = 117;
    });
    // FUP is not CYC-eligible; the TIP.PGD at the end is.
    assert_eq!(body, String::from(ON) + &packets.replace("; CYC 1", "") + "; FUP 9100; CYC 1; TIP.PGD -");
}

#[test]
fn cycles_wait_for_the_threshold() {
    // From the manual's table "An Illustrative CYC Packet Example": CycThresh, cycle times with a CYC.
    let times = [0, 9, 15, 30, 38, 46, 64, 71];
    let rows: [(u64, &[u64]); 3] = [(5, &[30, 46, 64]), (6, &[38, 71]), (7, &[64])];
    for (threshold, with_cyc) in rows {
        let mut machine = Machine::new("skylake", IntelSettings::default());
        machine.start(ALL | CYC_EN | threshold << 19);
        for time in times {
            at(&mut machine, time, JMP_RAX, time << 12);
        }
        machine.stop();
        let expected: std::vec::Vec<String> = times
            .iter()
            .map(|&time| {
                let tip = std::format!("TIP {:x}", time << 12);
                let last = with_cyc.iter().rev().find(|&&other| other < time).unwrap_or(&0);
                if with_cyc.contains(&time) { std::format!("CYC {}; {tip}", time - last) } else { tip }
            })
            .collect();
        assert_eq!(machine.body(), String::from(ON) + &expected.join("; "), "{threshold}");
    }
}

#[test]
fn mtc_comes_with_the_crystal_clock_whatever_is_traced() {
    // Skylake's crystal clock ticks every 125 TSC ticks; MTCFreq 3 is every 1000.
    let code = |m: &mut Machine| {
        at(m, 900, JZ, 0x40_0002);
        at(m, 1000, JZ, 0x40_0004);
        at(m, 1500, NOP, 0x40_0005);
        at(m, 2500, NOP, 0x40_0006);
    };
    let packets = run("skylake", IntelSettings::default(), ALL | MTC_EN | 3 << 14, code);
    assert_eq!(packets, String::from(ON) + "TNT 0; MTC 1; TNT 0; MTC 2");
    assert_eq!(run("skylake", IntelSettings::default(), 0x2009 | MTC_EN | 3 << 14, code), "MTC 1; MTC 2");
}

#[test]
fn after_a_leap_of_the_time_that_loses_256_mtcs_a_tsc_packet_says_what_time_it_is() {
    // perf's decoder counts MTCs in eight bits, and dates a trace with such leaps too early.
    let code = |m: &mut Machine| {
        at(m, 900, JZ, 0x40_0002);
        at(m, 255_999, NOP, 0x40_0003);
        at(m, 510_007, NOP, 0x40_0004);
        at(m, 766_007, JZ, 0x40_0006);
        at(m, 767_000, NOP, 0x40_0007);
    };
    let rows = [
        (TSC_EN | MTC_EN, "TNT 0; MTC 255; MTC 254; TSC 766007; TMA 6128 7; TNT 0; MTC 255"),
        // Without TSC packets nothing reports the leap.
        (MTC_EN, "TNT 0; MTC 255; MTC 254; MTC 254; TNT 0; MTC 255"),
    ];
    for (enabled, packets) in rows {
        let body = run("skylake", IntelSettings::default(), ALL | enabled | 3 << 14, code);
        assert_eq!(body, String::from(ON) + packets, "{enabled:#x}");
    }
}

#[test]
fn the_core_clock_may_differ_from_the_tsc() {
    let turbo = IntelSettings { core_ratio: Some(36), ..IntelSettings::default() };
    let body = run("skylake", turbo, ALL | CYC_EN | TSC_EN, |m| {
        at(m, 1000, JMP_RAX, 0x1000);
    });
    assert_eq!(body, String::from(ON) + "CYC 1200; TIP 1000");
    let mut machine = Machine::new("skylake", turbo);
    machine.start(ALL);
    machine.stop();
    assert!(machine.trace().contains(&"CBR 36".into()));
}

#[test]
fn the_core_clock_stands_still_while_the_processor_sleeps() {
    // Threshold of CYC packets; the packets. For any threshold, the cycles before the sleep are reported with the TSC,
    // the cycles of the sleep are not reported, and MTCs of the sleep are lost.
    let rows = [
        (0, "CYC 100; TSC 9100; TMA 72 100; CBR 30; FUP 400001; TIP 500000; CYC 900; MTC 10"),
        (13, "CYC 100; TSC 9100; TMA 72 100; CBR 30; FUP 400001; TIP 500000; MTC 10"),
    ];
    for (threshold, packets) in rows {
        let ctl = ALL | CYC_EN | TSC_EN | MTC_EN | 3 << 14 | threshold << 19;
        let body = run("skylake", IntelSettings::default(), ctl, |m| {
            m.tsc = 100;
            m.next(&[0xf4]);
            m.tsc = 9100;
            m.deliver(DeliveryKind::Interrupt, 32, m.kernel(0x50_0000), None);
            at(m, 10_000, NOP, 0x50_0001);
        });
        assert_eq!(body, String::from(ON) + packets, "{threshold}");
    }
}

#[test]
fn the_cycle_counter_restarts_with_tracing() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.start(ALL | CYC_EN);
    machine.stop();
    let before = machine.trace().len();
    machine.tsc = 5000;
    machine.start(ALL | CYC_EN);
    at(&mut machine, 5010, JMP_RAX, 0x1000);
    machine.stop();
    let trace = machine.trace()[before..].join("; ");
    assert_eq!(trace, "CBR 30; MODE.Exec 64; TIP.PGE 400000; CYC 10; TIP 1000; FUP 1000; TIP.PGD -");
}
