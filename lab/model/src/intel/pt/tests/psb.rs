//! PSB+ by byte count, and the state that it resets.

use std::string::String;
use std::vec::Vec;

use crate::Context;
use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;

/// Returns the offsets of the PSBs in the single range.
fn psbs(machine: &mut Machine) -> Vec<usize> {
    let len = (machine.read(MASK_PTRS) >> 32) as usize;
    let trace = &machine.ram[RANGE..RANGE + len];
    (0..len).filter(|&at| trace[at..].starts_with(&[0x02, 0x82].repeat(8))).collect()
}

#[test]
fn a_psb_comes_when_the_period_is_crossed() {
    // Profile, PSBFreq, period.
    for (profile, freq, period) in [("skylake", 0, 2048), ("skylake", 1, 4096), ("skylake", 3, 16384)] {
        let mut machine = Machine::new(profile, IntelSettings::default());
        machine.start(ALL | freq << 24);
        for n in 0..16_000u64 {
            machine.go(JMP_RAX, 0x40_0000 + n % 7 * 0x10);
        }
        machine.stop();
        let psbs = psbs(&mut machine);
        assert!(psbs.len() >= 3, "{freq}: {psbs:?}");
        for pair in psbs.windows(2) {
            let distance = pair[1] - pair[0];
            assert!((period..period + 10).contains(&distance), "{freq}: {distance}");
        }
    }
}

#[test]
fn psb_plus_tells_the_state() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(STATUS, 0);
    machine.start(ALL | 1 << 10 | 1 << 9);
    machine.tsc = 1007;
    machine.stop();
    // 2047 bytes since the last PSB: the next packet crosses the period.
    machine.write(STATUS, 2047 << 32);
    machine.start(ALL | 1 << 10 | 1 << 9);
    let before = machine.trace().len();
    machine.next(JZ);
    machine.next(NOP);
    machine.stop();
    assert_eq!(
        machine.trace()[before + 5..],
        [
            "TNT 0",
            "PSB",
            "TSC 1007",
            "TMA 8 7",
            "CBR 30",
            "PIP 5000",
            "MODE.TSX",
            "MODE.Exec 64",
            "FUP 400002",
            "PSBEND",
            "FUP 400003",
            "TIP.PGD -"
        ]
    );
}

#[test]
fn psb_plus_leaves_out_what_is_not_traced() {
    let rows: [(u64, &str); 4] = [
        (0x200d, "CBR 30; PIP 5000; MODE.TSX; MODE.Exec 64; FUP 400001"),
        // BranchEn is clear.
        (0x000d, "CBR 30; PIP 5000"),
        // CPL 0 is not traced.
        (0x2009, "CBR 30"),
        // FilterEn is clear.
        (0x1_0000_200d, "CBR 30; PIP 5000; MODE.TSX"),
    ];
    for (ctl, state) in rows {
        let mut machine = Machine::new("skylake", IntelSettings::default());
        machine.write(STATUS, 5000 << 32);
        machine.start(ctl);
        machine.next(NOP);
        machine.next(NOP);
        machine.stop();
        let trace = machine.trace().join("; ");
        let found = trace.split("PSB; ").nth(1).and_then(|rest| rest.split("; PSBEND").next());
        assert_eq!(found, Some(state), "{ctl:x}: {trace}");
        assert_eq!(trace.matches("PSBEND").count(), 1);
    }
}

#[test]
fn no_ret_compresses_across_a_psb_and_the_last_ip_is_zero() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(STATUS, 2030 << 32);
    machine.at.ip = 0xffff_8000_0000_0000;
    machine.write(CTL, ALL);
    let caller = machine.at.ip + 5;
    machine.go(CALL, 0xffff_8000_0000_1000);
    machine.go(JMP_RAX, 0xffff_8000_0000_2000);
    machine.go(JMP_RAX, 0xffff_8000_0000_2100);
    machine.go(RET, caller);
    machine.stop();
    let trace = machine.trace().join("; ");
    assert!(trace.contains("FUP ffff800000002000; PSBEND") || trace.contains("FUP ffff800000002100; PSBEND"));
    assert!(trace.ends_with("TIP ffff800000000007; FUP ffff800000000007; TIP.PGD -"), "{trace}");
    // The FUP in PSB+ has six bytes, although it differs from the preceding TIP in only two of them.
    let len = (machine.read(MASK_PTRS) >> 32) as usize;
    let bytes = &machine.ram[RANGE..RANGE + len];
    assert!(
        bytes
            .windows(7)
            .any(|w| w == [0x7d, 0x00, 0x20, 0, 0, 0, 0x80] || w == [0x7d, 0x00, 0x21, 0, 0, 0, 0x80])
    );
}

#[test]
fn packet_byte_cnt_counts_from_the_psb() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.start(ALL);
    machine.stop();
    let bytes = machine.read(MASK_PTRS) >> 32;
    assert_eq!(machine.read(STATUS) >> 32, bytes);
    machine.write(STATUS, 0x1_ffff << 32);
    assert_eq!(machine.read(STATUS) >> 32, 0x1_ffff);
}

#[test]
fn without_the_count_each_enable_has_a_psb() {
    let mut machine = Machine::new("broadwell", IntelSettings::default());
    machine.ram[0x1000..0x1008].copy_from_slice(&(RANGE as u64).to_le_bytes());
    machine.ram[0x1008..0x1010].copy_from_slice(&0x1001u64.to_le_bytes());
    machine.write(BASE, 0x1000);
    for _ in 0..2 {
        machine.start(ALL | TOPA);
        assert_eq!(machine.read(STATUS) >> 32, 0);
        machine.stop();
    }
    assert_eq!(psbs(&mut machine).len(), 2);
}

#[test]
fn an_owed_psb_is_sent_on_the_next_enable() {
    const INJECT: u64 = 1 << 56;
    let mut machine = Machine::new("icelake", IntelSettings::default());
    // The FUP of the disabling WRMSR crosses the period.
    machine.write(STATUS, 2038 << 32);
    machine.start(ALL | INJECT);
    machine.stop();
    assert_eq!(machine.read(STATUS) & 0xff & !7, 1 << 6);
    machine.start(ALL | INJECT);
    machine.stop();
    assert_eq!(machine.read(STATUS) & 0xff & !7, 0);
    assert_eq!(psbs(&mut machine).len(), 1);
    // Without the control bit PendPSB is neither set nor honored.
    machine.write(STATUS, 100 << 32 | 1 << 6);
    machine.start(ALL);
    machine.stop();
    assert_eq!(machine.read(STATUS) & 0xff & !7, 1 << 6);
    assert_eq!(psbs(&mut machine).len(), 1);
}

#[test]
fn mode_exec_follows_a_psb_that_had_none() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.start(0x2005);
    machine.far(IRETQ, machine.user(0x1000));
    let status = machine.read(STATUS) >> 32;
    machine.stop();
    assert!(status > 0);
    machine.write(STATUS, 2047 << 32);
    machine.at = Context { cpl: 0, ..machine.at };
    machine.start(0x2005);
    // TIP.PGD, then a PSB+ at CPL 3, where nothing is traced.
    machine.far(IRETQ, machine.user(0x1000));
    machine.far(SYSCALL, machine.kernel(0x50_0000));
    machine.stop();
    let trace: String = machine.trace().join("; ");
    assert!(trace.contains("PSB; CBR 30; PSBEND; MODE.Exec 64; TIP.PGE 500000"), "{trace}");
}
