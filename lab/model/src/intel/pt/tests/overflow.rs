//! Overflows of the internal buffer.

use crate::intel::tests::machine::*;
use crate::intel::{IntelSettings, Overflow};
use crate::{Context, ExecMode};

/// Returns a buffer of 128 bytes from which `drain` bytes per instruction are drained.
fn settings(drain: u32) -> IntelSettings {
    IntelSettings {
        overflow: Some(Overflow { capacity: 128, drain }),
        visibility: 0,
        ..IntelSettings::default()
    }
}

/// Executes far jumps back and forth until the buffer overflows.
fn flood(m: &mut Machine) {
    for n in 0..40u64 {
        m.go(JMP_RAX, if n % 2 == 0 { 0xffff_8000_0000_0000 } else { 0x40_0000 });
    }
}

/// Executes instructions that do not cause a packet.
fn idle(m: &mut Machine, count: usize) {
    for _ in 0..count {
        m.next(NOP);
    }
}

fn after_ovf(body: &str) -> &str {
    body.split_once("OVF; ").unwrap_or_else(|| panic!("no OVF: {body}")).1
}

#[test]
fn a_fast_enough_output_never_overflows() {
    let body = run("skylake", settings(8), ALL, flood);
    assert_eq!(body.matches("TIP ").count(), 40);
    assert!(!body.contains("OVF"));
}

#[test]
fn the_trace_resumes_with_the_next_ip() {
    let body = run("skylake", settings(1), ALL, |m| {
        flood(m);
        idle(m, 200);
        m.at.ip = 0x40_0100;
        m.go(JMP_RAX, 0x40_2000);
    });
    assert!(body.matches("TIP ").count() < 40, "something was lost");
    let rest = after_ovf(&body);
    let (fup, rest) = rest.split_once("; ").expect("more");
    assert!(fup.starts_with("FUP 40"), "{body}");
    assert_eq!(rest, "TIP 402000");
}

#[test]
fn no_ret_compresses_across_an_overflow() {
    let body = run("skylake", settings(1), ALL, |m| {
        m.go(CALL, 0x40_2000);
        flood(m);
        idle(m, 200);
        m.go(RET, 0x40_0005);
        m.go(CALL, 0x40_2000);
        m.go(RET, 0x40_000a);
    });
    assert!(after_ovf(&body).ends_with("; TIP 400005; TNT 1"), "{body}");
}

#[test]
fn outcomes_during_an_overflow_are_lost() {
    let body = run("skylake", settings(1), ALL, |m| {
        flood(m);
        for _ in 0..10 {
            m.next(JZ);
        }
        idle(m, 200);
        m.next(JZ);
    });
    assert!(after_ovf(&body).ends_with("; TNT 0"), "{body}");
}

#[test]
fn resolved_with_packet_en_clear_there_is_no_fup() {
    let body = run("skylake", settings(1), 0x2005, |m| {
        flood(m);
        m.far(IRETQ, m.user(0x1000));
        idle(m, 200);
        m.far(SYSCALL, m.kernel(0x50_0000));
    });
    assert_eq!(after_ovf(&body), "TIP.PGE 500000");
    let without_branches = run("skylake", settings(1), 0x000d, |_| ());
    assert_eq!(without_branches, "");
}

#[test]
fn a_lost_pip_comes_again_and_then_the_ip_in_a_tip_pge() {
    let body = run("skylake", settings(1), ALL, |m| {
        flood(m);
        m.far(MOV_CR3, Context { cr3: 0x7000, ip: m.at.ip + 3, ..m.at });
        idle(m, 150);
    });
    assert!(after_ovf(&body).starts_with("PIP 7000; TIP.PGE 4000"), "{body}");
    // Resolved while ContextEn is clear: the PIP waits until the trace is on again.
    let out_of_context = run("skylake", settings(1), 0x2005, |m| {
        flood(m);
        m.far(MOV_CR3, Context { cr3: 0x7000, ip: m.at.ip + 3, ..m.at });
        m.far(IRETQ, m.user(0x1000));
        idle(m, 150);
        m.far(SYSCALL, m.kernel(0x50_0000));
    });
    assert_eq!(after_ovf(&out_of_context), "PIP 7000; TIP.PGE 500000");
}

#[test]
fn a_mode_that_changed_meanwhile_comes_before_a_tip_pge() {
    let to = |m: &mut Machine, mode, ip| m.far(&[0xcf], Context { mode, ip, ..m.at });
    let body = run("skylake", settings(1), ALL, |m| {
        flood(m);
        to(m, ExecMode::Bits32, 0x1000);
        idle(m, 150);
    });
    assert!(after_ovf(&body).starts_with("MODE.Exec 32; TIP.PGE 10"), "{body}");
    // The mode changed and changed back, so it is not reported.
    let body = run("skylake", settings(1), ALL, |m| {
        flood(m);
        to(m, ExecMode::Bits32, 0x1000);
        to(m, ExecMode::Bits64, 0x2000);
        idle(m, 150);
    });
    assert!(after_ovf(&body).starts_with("FUP 20"), "{body}");
}

#[test]
fn a_mode_exec_cut_off_from_its_tip_comes_again() {
    // One iteration for each fill level of the buffer; in some the overflow occurs between MODE.Exec and TIP.
    let mut cut = 0;
    for filling in 0..60 {
        let body = run("skylake", settings(0), ALL, |m| {
            for n in 0..filling {
                m.go(JMP_RAX, 0x40_0000 + n % 2 * 0x100);
            }
            m.far(IRETQ, Context { mode: ExecMode::Bits32, ip: 0x1000, ..m.at });
            m.far(&[0xcf], Context { mode: ExecMode::Bits64, ip: 0x40_0000, ..m.at });
            flood(m);
        });
        let (before, after) = body.split_once("OVF; ").expect("OVF");
        if before.ends_with("MODE.Exec 32; ") || before.ends_with("MODE.Exec 64; ") {
            cut += 1;
            assert!(after.starts_with("MODE.Exec 64; TIP.PGE "), "{body}");
        }
    }
    assert!(cut >= 2, "{cut}");
}

#[test]
fn a_cyc_before_the_ovf_tells_how_long_it_took() {
    let mut machine = Machine::new("skylake", settings(1));
    machine.start(ALL | 2);
    flood(&mut machine);
    let lost_at = machine.tsc;
    for _ in 0..200 {
        machine.tsc += 1;
        machine.next(NOP);
    }
    machine.go(JMP_RAX, 0x40_2000);
    machine.stop();
    let body = machine.body();
    let (before, rest) = body.split_once("; OVF; ").expect("OVF");
    let cyc: u64 = before.rsplit("; CYC ").next().and_then(|n| n.parse().ok()).expect("a CYC");
    // The counter restarts at the OVF: the next CYC has the rest of the time.
    let rest: u64 = rest
        .split("CYC ")
        .nth(1)
        .and_then(|r| r.split(';').next())
        .and_then(|n| n.parse().ok())
        .expect("CYC");
    assert_eq!(cyc + rest, machine.tsc - lost_at);
}

#[test]
fn an_overflow_within_one_cycle_sends_no_cyc() {
    // At most one CYC packet is sent in a core clock cycle, and the one before the overflow was in this cycle.
    let mut machine = Machine::new("skylake", settings(1));
    machine.start(ALL | 2);
    machine.tsc = 7;
    flood(&mut machine);
    idle(&mut machine, 200);
    machine.stop();
    let body = machine.body();
    let (before, _) = body.split_once("; OVF; ").expect("OVF");
    assert_eq!(before.matches("CYC").count(), 1, "{body}");
}

#[test]
fn a_trace_stop_during_an_overflow_comes_after_it() {
    let mut machine = Machine::new("skylake", settings(1));
    machine.write(0x580, 0x60_0000);
    machine.write(0x581, 0x60_0fff);
    machine.start(ALL | 2 << 32);
    flood(&mut machine);
    machine.go(JMP, 0x60_0000);
    assert_eq!(machine.read(STATUS) & 0x24, 0x20, "Stopped at once");
    idle(&mut machine, 200);
    machine.stop();
    assert_eq!(after_ovf(&machine.body()), "TraceStop");
}

#[test]
fn stopping_resolves_an_overflow() {
    let mut machine = Machine::new("skylake", settings(1));
    machine.start(ALL);
    flood(&mut machine);
    let ip = machine.at.ip;
    machine.stop();
    assert_eq!(machine.body().split("OVF; ").nth(1), Some(&*std::format!("FUP {ip:x}")));
}

#[test]
fn the_first_ip_after_an_overflow_is_whole_or_compressed_against_the_last_before() {
    // The IPs of the lost packet and of the resumed trace, `true` if IPs are compressed; the first byte of the FUP.
    for (lost, resumed, compress, fup) in [
        (0x40_1000, 0x40_2000, false, 0x7d),
        (0xffff_8000_0000_1000, 0xffff_8000_0000_2000, false, 0x7d),
        (0x40_1000, 0x40_2000, true, 0x3d),
        // A lost packet's IP cannot be the base of compression.
        (0xffff_8000_0000_1000, 0xffff_8000_0000_2000, true, 0x7d),
    ] {
        let settings = IntelSettings { compress_after_overflow: compress, ..settings(1) };
        let mut machine = Machine::new("skylake", settings);
        machine.start(ALL);
        for n in 0..100 {
            machine.go(JMP_RAX, 0x40_0000 + n % 2 * 0x100);
        }
        machine.go(JMP_RAX, lost);
        idle(&mut machine, 150);
        machine.go(JMP, resumed);
        machine.go(JMP_RAX, resumed + 0x10);
        machine.stop();
        let body = machine.body();
        let first = std::format!("FUP {:x}", lost >> 12);
        assert!(after_ovf(&body).starts_with(&first), "{body}");
        assert!(body.ends_with(&std::format!("; TIP {:x}", resumed + 0x10)), "{body}");
        let ovf = machine.ram[RANGE..].windows(2).position(|bytes| bytes == [0x02, 0xf3]).expect("OVF");
        assert_eq!(machine.ram[RANGE + ovf + 2], fup, "IPBytes, {lost:x} {compress}");
    }
}

#[test]
fn no_ip_is_compressed_against_a_lost_one() {
    // The overflow begins with each packet in turn, including deferred TIPs; no byte leaves the buffer before the end.
    for (deferred_tips, bytes) in [(false, RET), (true, JMP_RAX)] {
        for (filling, far) in
            (0..60).flat_map(|filling| [(filling, 0x40_2000), (filling, 0xffff_8000_0000_2000)])
        {
            let settings = IntelSettings { compress_after_overflow: true, deferred_tips, ..settings(0) };
            let mut machine = Machine::new("skylake", settings);
            machine.start(ALL);
            for _ in 0..filling {
                machine.go(RET, 0x40_0000);
            }
            for n in 0..60 {
                machine.next(JZ);
                machine.go(bytes, if n % 2 == 0 { 0xffff_8000_0000_1000 } else { 0x40_1000 });
            }
            machine.go(JMP, far);
            machine.stop();
            assert_eq!(after_ovf(&machine.body()), std::format!("FUP {far:x}"), "{filling} {deferred_tips}");
        }
    }
}

#[test]
fn wherever_the_overflow_begins_the_ip_comes_first() {
    // With CYC on, the overflow may begin with the CYC of the first outcome in a TNT.
    for filling in 0..60 {
        let mut machine = Machine::new("skylake", settings(0));
        machine.start(ALL | 2);
        for n in 0..filling {
            machine.tsc += n % 3;
            machine.go(JMP_RAX, 0x40_0000 + n % 2 * 0x100);
        }
        for _ in 0..100 {
            machine.tsc += 40;
            machine.next(JZ);
            machine.go(JMP_RAX, 0x40_0000);
        }
        let ip = machine.at.ip;
        machine.stop();
        assert_eq!(after_ovf(&machine.body()), std::format!("FUP {ip:x}"));
    }
}
