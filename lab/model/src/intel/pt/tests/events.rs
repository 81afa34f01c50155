//! Far transfers, interrupts, exceptions and MOV to CR3, case by case of the table "Packet Generation under Different
//! Enable Conditions".

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{Context, DeliveryKind, ExecMode};

const OS: u64 = 0x2005;
const USER: u64 = 0x2009;

fn traced(ctl: u64, code: impl FnOnce(&mut Machine)) -> String {
    run("skylake", IntelSettings::default(), ctl, code)
}

use std::string::String;

const ON: &str = "MODE.Exec 64; TIP.PGE 400000; ";

fn on(rest: &str) -> String {
    String::from(ON) + rest
}

#[test]
fn deliveries_name_source_and_target() {
    use DeliveryKind::*;
    for kind in [Interrupt, Nmi, Fault, Trap, SoftwareInterrupt] {
        let code = |m: &mut Machine| m.deliver(kind, 3, m.kernel(0x50_0000), None);
        // From traced code to traced code; CR3 changes with a task switch.
        assert_eq!(traced(ALL, code), on("FUP 400000; TIP 500000"), "{kind:?}");
        let task = |m: &mut Machine| {
            m.deliver(kind, 3, Context { cr3: 0x7000, ..m.kernel(0x50_0000) }, None);
        };
        assert_eq!(traced(ALL, task), on("FUP 400000; PIP 7000; TIP 500000"), "{kind:?}");
        let mode = |m: &mut Machine| {
            m.deliver(kind, 3, Context { mode: ExecMode::Bits32, ..m.kernel(0x50_0000) }, None);
        };
        assert_eq!(traced(ALL, mode), on("FUP 400000; MODE.Exec 32; TIP 500000"), "{kind:?}");
        // From traced code into a context that is not traced: the target is not shown.
        let out = |m: &mut Machine| {
            m.far(SYSCALL, m.user(0x1000));
            m.deliver(kind, 3, m.kernel(0x50_0000), None);
            m.far(IRETQ, m.user(0x1000));
        };
        let expected = "MODE.Exec 64; TIP.PGE 1000; FUP 1000; TIP.PGD -; TIP.PGE 1000";
        assert_eq!(traced(USER, out), expected, "{kind:?}");
        // From a context that is not traced into one that is.
        let into = |m: &mut Machine| {
            m.far(SYSCALL, m.user(0x1000));
            m.deliver(kind, 3, m.kernel(0x50_0000), None);
        };
        assert_eq!(traced(OS, into), on("TIP.PGD -; TIP.PGE 500000"), "{kind:?}");
    }
}

#[test]
fn a_delivery_forces_out_what_is_buffered() {
    let code = |m: &mut Machine| {
        m.next(JZ);
        m.deliver(DeliveryKind::Interrupt, 3, m.kernel(0x50_0000), None);
    };
    assert_eq!(traced(ALL, code), on("TNT 0; FUP 400002; TIP 500000"));
}

#[test]
fn far_transfers_have_a_tip_and_no_fup() {
    let same = |m: &mut Machine| m.far(IRETQ, m.kernel(0x50_0000));
    assert_eq!(traced(ALL, same), on("TIP 500000"));
    let task = |m: &mut Machine| m.far(IRETQ, Context { cr3: 0x7000, ..m.kernel(0x50_0000) });
    assert_eq!(traced(ALL, task), on("PIP 7000; TIP 500000"));
    let mode = |m: &mut Machine| m.far(IRETQ, Context { mode: ExecMode::Bits32, ..m.user(0x50_0000) });
    assert_eq!(traced(ALL, mode), on("MODE.Exec 32; TIP 500000"));
    // To user code and back, with only one of the two traced.
    let both_ways = |m: &mut Machine| {
        m.far(IRETQ, m.user(0x1000));
        m.next(JZ);
        m.far(SYSCALL, m.kernel(0x50_0000));
        m.next(JZ);
    };
    assert_eq!(traced(OS, both_ways), on("TIP.PGD -; TIP.PGE 500000; TNT 0"));
    assert_eq!(traced(USER, both_ways), "MODE.Exec 64; TIP.PGE 1000; TNT 0; TIP.PGD -");
}

#[test]
fn mode_exec_comes_with_tip_pge_when_the_mode_changed_meanwhile() {
    let code = |m: &mut Machine| {
        m.far(IRETQ, m.user(0x1000));
        m.far(IRETQ, Context { mode: ExecMode::Bits32, ..m.user(0x1000) });
        m.far(SYSCALL, Context { mode: ExecMode::Bits32, ..m.kernel(0x50_0000) });
        m.far(&[0xcf], m.user(0x1000));
        m.far(SYSCALL, Context { mode: ExecMode::Bits16, ..m.kernel(0x6000) });
    };
    let expected = "TIP.PGD -; MODE.Exec 32; TIP.PGE 500000; TIP.PGD -; MODE.Exec 16; TIP.PGE 6000";
    assert_eq!(traced(OS, code), on(expected));
}

#[test]
fn mov_cr3() {
    let to = |cr3| move |m: &mut Machine| m.far(MOV_CR3, Context { cr3, ip: m.at.ip + 3, ..m.at });
    // 5d; the low bits are not part of the address.
    assert_eq!(traced(ALL, to(0x7018)), on("PIP 7000"));
    assert_eq!(traced(ALL, to(0x7fe0)), on("PIP 7000"));
    assert_eq!(traced(ALL, to(0x5000)), on("PIP 5000"), "written, though not changed");
    assert_eq!(
        traced(ALL, to(0xffff_ffff_ffff_f000)),
        on("PIP ffffffffff000"),
        "an address has 52 bits at most"
    );
    // 5a: CPL 0 is not traced.
    assert_eq!(traced(USER, to(0x7000)), "");
    // Without OS there is no PIP, even if ContextEn is set.
    let user = |m: &mut Machine| {
        m.far(SYSCALL, m.user(0x1000));
        m.far(MOV_CR3, Context { cr3: 0x7000, ip: 0x1003, ..m.at });
    };
    assert_eq!(traced(USER, user), "MODE.Exec 64; TIP.PGE 1000");
    // 5b and 5c: CR3 filtering, CR3_MATCH is 5000h.
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(0x572, 0x5000);
    machine.start(OS | 1 << 7);
    to(0x7000)(&mut machine);
    machine.next(JZ);
    to(0x5000)(&mut machine);
    machine.stop();
    assert_eq!(machine.body(), on("TIP.PGD -; PIP 5000; TIP.PGE 400008"));
}

#[test]
fn mov_cr3_has_cr3_11_5_outside_ia_32e_mode() {
    let code = |m: &mut Machine| {
        m.at.mode = ExecMode::Bits32;
        m.far(MOV_CR3, Context { cr3: 0x7fff, ip: 0x40_0003, ..m.at });
    };
    assert_eq!(traced(ALL, code), on("PIP 7fe0"));
    // In compatibility mode these bits are a PCID.
    let compatibility = |m: &mut Machine| {
        m.far(IRETQ, Context { mode: ExecMode::Bits32, ..m.user(0x1000) });
        m.far(SYSCALL, Context { cr3: 0x7fff, mode: ExecMode::Bits32, ..m.user(0x1002) });
    };
    let expected = "MODE.Exec 32; TIP 1000; PIP 7000; TIP 1002";
    assert_eq!(traced(ALL, compatibility), on(expected));
}

#[test]
fn enabling_and_disabling() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    // 2e, then 3b.
    machine.start(OS);
    machine.stop();
    assert_eq!(
        machine.trace()[..],
        [
            "PSB",
            "CBR 30",
            "PIP 5000",
            "MODE.TSX",
            "PSBEND",
            "MODE.Exec 64",
            "TIP.PGE 400000",
            "FUP 400000",
            "TIP.PGD -"
        ]
    );
    // 2d: PacketByteCnt > 0.
    let before = machine.trace().len();
    machine.start(OS | 1 << 10 | 1 << 9);
    machine.stop();
    assert_eq!(
        machine.trace()[before..],
        ["TSC 0", "TMA 0 0", "CBR 30", "MODE.Exec 64", "TIP.PGE 400000", "FUP 400000", "TIP.PGD -"]
    );
    // 2a, 3a: CPL 0 is not traced.
    let before = machine.trace().len();
    machine.start(USER | 1 << 10);
    machine.stop();
    assert_eq!(machine.trace()[before..], ["TSC 0", "CBR 30"]);
    // 2b: STATUS = 0 requests a PSB.
    let before = machine.trace().len();
    machine.write(STATUS, 0);
    machine.start(USER | 1 << 10);
    machine.stop();
    assert_eq!(machine.trace()[before..], ["PSB", "TSC 0", "CBR 30", "PSBEND"]);
}

#[test]
fn the_psb_may_come_after_tip_pge() {
    let mut machine =
        Machine::new("skylake", IntelSettings { psb_before_pge: false, ..IntelSettings::default() });
    machine.start(OS);
    machine.stop();
    let state = ["PSB", "CBR 30", "PIP 5000", "MODE.TSX", "MODE.Exec 64", "FUP 400000", "PSBEND"];
    let trace = machine.trace();
    assert_eq!(trace[..2], ["MODE.Exec 64", "TIP.PGE 400000"]);
    assert_eq!(trace[2..9], state);
    assert_eq!(trace[9..], ["FUP 400000", "TIP.PGD -"]);
}

#[test]
fn the_last_ip_survives_a_stop() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.at.ip = 0xffff_8000_0000_0000;
    machine.write(CTL, OS);
    machine.stop();
    let offset = (machine.read(MASK_PTRS) >> 32) as usize;
    machine.write(CTL, OS);
    machine.stop();
    // CBR, MODE.Exec, then TIP.PGE with two bytes of IP.
    assert_eq!(machine.ram[RANGE + offset + 6], 0x31);
}

#[test]
fn no_ret_compresses_across_a_stop() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.start(OS);
    machine.go(CALL, 0x40_2000);
    machine.stop();
    let before = machine.trace().len();
    machine.start(OS);
    machine.go(RET, 0x40_0005);
    machine.stop();
    assert_eq!(
        machine.trace()[before..],
        ["CBR 30", "MODE.Exec 64", "TIP.PGE 400000", "TIP 400005", "FUP 400005", "TIP.PGD -"]
    );
}
