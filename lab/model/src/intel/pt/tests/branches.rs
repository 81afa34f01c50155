//! Near branches: TNT, TIP and return compression.

use std::string::String;

use crate::intel::tests::machine::*;
use crate::intel::{BranchLevel, IntelSettings, ReturnElsewhere};

const SHORT: IntelSettings = IntelSettings {
    pmi_skid: 0,
    visibility: 0,
    overflow: None,
    long_tnt: false,
    deferred_tips: false,
    psb_before_pge: true,
    return_elsewhere: ReturnElsewhere::Empties,
    compress_after_overflow: false,
    branch_level: BranchLevel::To,
    bts_sets_status: true,
    maintenance: false,
    core_ratio: None,
};
const LONG: IntelSettings = IntelSettings { long_tnt: true, ..SHORT };
const DEFERRED: IntelSettings = IntelSettings { deferred_tips: true, ..LONG };

fn traced(settings: IntelSettings, ctl: u64, code: impl FnOnce(&mut Machine)) -> String {
    let body = run("sapphire-rapids", settings, ctl, code);
    let body = body.strip_prefix("MODE.Exec 64; TIP.PGE 400000").expect("TIP.PGE");
    body.strip_prefix("; ").unwrap_or(body).into()
}

/// Executes conditional branches with these outcomes.
fn outcomes(machine: &mut Machine, outcomes: &str) {
    for outcome in outcomes.chars() {
        if outcome == '1' {
            machine.go(JZ, machine.at.ip + 0x42);
        } else {
            machine.next(JZ);
        }
    }
}

#[test]
fn direct_branches_leave_no_packet() {
    let code = |m: &mut Machine| {
        m.next(NOP);
        m.go(JMP, 0x40_1000);
        m.go(CALL, 0x40_2000);
    };
    assert_eq!(traced(LONG, ALL, code), "");
}

#[test]
fn outcomes_fill_tnt_packets() {
    let ones = "1".repeat(47);
    // Settings, outcomes, packets.
    let rows: [(IntelSettings, &str, std::string::String); 6] = [
        (SHORT, "10", "TNT 10".into()),
        (SHORT, "101100", "TNT 101100".into()),
        (SHORT, "1011001", "TNT 101100; TNT 1".into()),
        (LONG, "101100", "TNT 101100".into()),
        (LONG, "0011001", "TNT.64 0011001".into()),
        (LONG, &std::format!("{ones}0"), std::format!("TNT.64 {ones}; TNT 0")),
    ];
    for (settings, bits, expected) in rows {
        assert_eq!(traced(settings, ALL, |m| outcomes(m, bits)), expected);
    }
}

#[test]
fn indirect_branches_force_out_the_tnt() {
    let code = |m: &mut Machine| {
        outcomes(m, "01");
        m.go(JMP_RAX, 0x41_0000);
        m.go(CALL_RAX, 0xffff_8000_0000_1000);
        outcomes(m, "1");
    };
    assert_eq!(traced(LONG, ALL, code), "TNT 01; TIP 410000; TIP ffff800000001000; TNT 1");
}

#[test]
fn deferred_tips_follow_the_tnt_that_holds_later_outcomes() {
    // The manual's example, "TNT Examples with Deferred TIPs".
    let code = |m: &mut Machine| {
        outcomes(m, "0");
        m.go(JMP_RAX, 0x1308);
        outcomes(m, "010");
        m.go(JMP_RAX, 0x1100);
        outcomes(m, "0");
    };
    assert_eq!(traced(LONG, ALL, code), "TNT 0; TIP 1308; TNT 010; TIP 1100; TNT 0");
    assert_eq!(traced(DEFERRED, ALL, code), "TNT 00100; TIP 1308; TIP 1100");
    // TIPs are not deferred if CYC packets would come between them.
    assert_eq!(traced(DEFERRED, ALL | 2, code), "TNT 0; TIP 1308; TNT 010; TIP 1100; TNT 0");
}

#[test]
fn a_full_tnt_and_an_uncompressed_ret_end_the_deferring() {
    let full = |m: &mut Machine| {
        outcomes(m, "1");
        m.go(JMP_RAX, 0x1308);
        outcomes(m, "10000");
        outcomes(m, "1");
    };
    let short = IntelSettings { deferred_tips: true, ..SHORT };
    assert_eq!(traced(short, ALL, full), "TNT 110000; TIP 1308; TNT 1");
    let ret = |m: &mut Machine| {
        outcomes(m, "1");
        m.go(JMP_RAX, 0x1308);
        m.go(RET, 0x2000);
    };
    assert_eq!(traced(DEFERRED, ALL, ret), "TNT 1; TIP 1308; TIP 2000");
    let many = |m: &mut Machine| {
        outcomes(m, "1");
        for target in 1..=9 {
            m.go(JMP_RAX, target << 12);
        }
    };
    let expected =
        "TNT 1; TIP 1000; TIP 2000; TIP 3000; TIP 4000; TIP 5000; TIP 6000; TIP 7000; TIP 8000; TIP 9000";
    assert_eq!(traced(DEFERRED, ALL, many), expected);
}

#[test]
fn rets_compress_against_their_calls() {
    let call_and_return = |m: &mut Machine| {
        m.go(CALL, 0x40_2000);
        m.go(CALL_RAX, 0x40_3000);
        m.go(RET, 0x40_2002);
        m.go(RET, 0x40_0005);
    };
    assert_eq!(traced(LONG, ALL, call_and_return), "TIP 403000; TNT 11");
    // DisRETC, and DisTNT.
    assert_eq!(traced(LONG, ALL | 1 << 11, call_and_return), "TIP 403000; TIP 402002; TIP 400005");
    assert_eq!(traced(LONG, ALL | 1 << 55, call_and_return), "TIP 403000; TIP 402002; TIP 400005");
    let elsewhere = |m: &mut Machine| {
        m.go(CALL, 0x40_2000);
        m.go(CALL, 0x40_3000);
        m.go(RET, 0x50_0000);
        m.go(RET, 0x40_0005);
    };
    assert_eq!(traced(LONG, ALL, elsewhere), "TIP 500000; TIP 400005");
    let pops = IntelSettings { return_elsewhere: ReturnElsewhere::Pops, ..LONG };
    assert_eq!(traced(pops, ALL, elsewhere), "TIP 500000; TNT 1");
    let without_call = |m: &mut Machine| m.go(RET, 0x40_0005);
    assert_eq!(traced(LONG, ALL, without_call), "TIP 400005");
}

#[test]
fn a_call_to_the_next_instruction_is_no_call() {
    let code = |m: &mut Machine| {
        m.go(CALL, 0x40_2000);
        m.go(CALL_NEXT, 0x40_2005);
        m.go(RET, 0x40_0005);
    };
    assert_eq!(traced(LONG, ALL, code), "TNT 1");
}

#[test]
fn sixty_four_rets_compress_and_the_older_do_not() {
    let code = |m: &mut Machine| {
        for depth in 0..66 {
            m.go(CALL, 0x40_1000 + depth * 0x100);
        }
        for depth in (0..66).rev() {
            let caller = if depth == 0 { 0x40_0000 } else { 0x40_1000 + (depth - 1) * 0x100 };
            m.go(RET, caller + 5);
        }
    };
    let (first, second) = ("1".repeat(47), "1".repeat(17));
    assert_eq!(
        traced(LONG, ALL, code),
        std::format!("TNT.64 {first}; TNT.64 {second}; TIP 401005; TIP 400005")
    );
}

#[test]
fn dis_tnt_leaves_out_the_outcomes() {
    assert_eq!(traced(LONG, ALL | 1 << 55, |m| outcomes(m, "101")), "");
}

#[test]
fn without_branch_en_no_branch_shows() {
    let code = |m: &mut Machine| {
        outcomes(m, "10");
        m.go(JMP_RAX, 0x41_0000);
        m.far(SYSCALL, m.user(0x1000));
        m.far(MOV_CR3, crate::Context { cr3: 0x7000, ..m.kernel(0x1003) });
    };
    assert_eq!(run("skylake", LONG, ALL & !0x2000, code), "PIP 7000");
}
