//! IP filters and TraceStop ranges.

use std::string::String;

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{Context, DeliveryKind, ExecMode};

/// Traces with [401000h, 401fffh] as range 0 and [403000h, 4030ffh] as range 1; `config` is ADDR0_CFG and ADDR1_CFG.
fn traced(config: u64, code: impl FnOnce(&mut Machine)) -> (String, u64) {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    for (msr, value) in [(0x580, 0x40_1000), (0x581, 0x40_1fff), (0x582, 0x40_3000), (0x583, 0x40_30ff)] {
        machine.write(msr, value);
    }
    machine.start(ALL | config << 32);
    code(&mut machine);
    let status = machine.read(STATUS) & 0x37;
    machine.stop();
    (machine.body(), status)
}

const FILTER: u64 = 0x01;
const STOP: u64 = 0x20;

#[test]
fn the_trace_goes_on_and_off_at_the_border() {
    let enter = |m: &mut Machine| m.go(JMP, 0x40_1000);
    let entered = "MODE.Exec 64; TIP.PGE 401000";
    assert_eq!(traced(FILTER, |_| ()), (String::new(), 0b110), "outside at the start");
    assert_eq!(traced(FILTER, enter), (entered.into(), 0b111));
    // Bytes, target, packets on the way out of the range.
    let rows: [(&[u8], u64, &str); 7] = [
        (JMP, 0x40_2000, "TIP.PGD 402000"),
        (CALL, 0x40_2000, "TIP.PGD 402000"),
        (JMP_RAX, 0x40_2000, "TIP.PGD 402000"),
        (RET, 0x40_2000, "TIP.PGD 402000"),
        (IRETQ, 0x40_2000, "TIP.PGD 402000"),
        // The direction of a conditional branch follows from the TIP.PGD alone.
        (JZ, 0x40_2000, "TIP.PGD -"),
        // Sequential execution across the boundary is not noticed.
        (NOP, 0x40_2000, ""),
    ];
    for (bytes, target, packets) in rows {
        let (body, _) = traced(FILTER, |m| {
            enter(m);
            m.go(bytes, target);
        });
        let expected = if packets.is_empty() { entered.into() } else { std::format!("{entered}; {packets}") };
        assert_eq!(body, expected, "{bytes:02x?}");
    }
}

#[test]
fn a_compressed_ret_out_of_the_range_suppresses_its_ip() {
    let (body, _) = traced(FILTER, |m| {
        m.go(JMP, 0x40_1ff0);
        m.go(CALL, 0x40_1000);
        m.next(JZ);
        m.at.ip = 0x40_1004;
        m.go(RET, 0x40_1ff5);
        // This CALL's return address is outside the range.
        m.go(JMP, 0x40_1ffb);
        m.go(CALL, 0x40_1100);
        m.go(RET, 0x40_2000);
    });
    assert_eq!(body, "MODE.Exec 64; TIP.PGE 401ff0; TNT 01; TIP.PGD -");
}

#[test]
fn calls_made_outside_do_not_count() {
    let (body, _) = traced(FILTER, |m| {
        m.go(JMP, 0x40_1000);
        m.go(CALL, 0x40_1100);
        m.go(JMP, 0x40_2000);
        m.go(JMP, 0x40_1100);
        m.go(RET, 0x40_1005);
    });
    assert_eq!(body, "MODE.Exec 64; TIP.PGE 401000; TIP.PGD 402000; TIP.PGE 401100; TIP 401005");
    let (body, _) = traced(FILTER, |m| {
        m.go(CALL, 0x40_1100);
        m.go(RET, 0x40_0005);
    });
    assert_eq!(body, "MODE.Exec 64; TIP.PGE 401100; TIP.PGD 400005");
}

#[test]
fn events_out_of_and_into_the_range() {
    let (body, _) = traced(FILTER, |m| {
        m.go(JMP, 0x40_1000);
        m.next(JZ);
        m.deliver(DeliveryKind::Interrupt, 3, m.kernel(0x50_0000), None);
        m.next(JZ);
        m.far(IRETQ, m.kernel(0x40_1002));
    });
    let expected = "MODE.Exec 64; TIP.PGE 401000; TNT 0; FUP 401002; TIP.PGD 500000; TIP.PGE 401002";
    assert_eq!(body, expected);
}

#[test]
fn filter_en_stands_still_while_context_en_is_clear() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(0x580, 0x40_1000);
    machine.write(0x581, 0x40_1fff);
    machine.start(0x2005 | 1 << 32);
    machine.go(JMP, 0x40_1000);
    assert_eq!(machine.read(STATUS) & 7, 0b111);
    machine.far(IRETQ, machine.user(0x1000));
    assert_eq!(machine.read(STATUS) & 7, 0b101);
    machine.go(JMP, 0x2000);
    assert_eq!(machine.read(STATUS) & 7, 0b101);
    machine.far(SYSCALL, machine.kernel(0x50_0000));
    assert_eq!(machine.read(STATUS) & 7, 0b110);
    machine.stop();
    assert_eq!(machine.body(), "MODE.Exec 64; TIP.PGE 401000; TIP.PGD -");
}

#[test]
fn entering_a_trace_stop_range_ends_the_trace() {
    let on = "MODE.Exec 64; TIP.PGE 400000; ";
    // Stopped is set, FilterEn and TriggerEn are clear.
    const STOPPED: u64 = 0b10_0010;
    let rows: [(&[u8], &str); 4] = [
        (JMP, "TIP.PGD 403000; TraceStop"),
        (JMP_RAX, "TIP.PGD 403000; TraceStop"),
        (JZ, "TIP.PGD -; TraceStop"),
        (IRETQ, "TIP.PGD 403000; TraceStop"),
    ];
    for (bytes, packets) in rows {
        let result = traced(STOP, |m| {
            m.go(bytes, 0x40_3000);
            m.go(JMP_RAX, 0x40_0000);
            m.next(JZ);
        });
        assert_eq!(result, (String::from(on) + packets, STOPPED), "{bytes:02x?}");
    }
    let (body, status) = traced(STOP, |m| m.deliver(DeliveryKind::Fault, 14, m.kernel(0x40_30ff), None));
    assert_eq!((body, status), (String::from(on) + "FUP 400000; TIP.PGD 4030ff; TraceStop", STOPPED));
    // If the filter is off at that time, there is no TIP.PGD.
    let (body, status) = traced(STOP | FILTER, |m| m.go(JMP, 0x40_3000));
    assert_eq!((body.as_str(), status), ("TraceStop", STOPPED));
    // MOV to CR3 in the range, entered sequentially.
    let (body, status) = traced(STOP, |m| {
        m.at.ip = 0x40_3000;
        m.next(MOV_CR3);
    });
    assert_eq!((body, status), (String::from(on) + "PIP 5000; TIP.PGD 403003; TraceStop", STOPPED));
}

#[test]
fn mov_to_cr3_stops_where_it_is_executed() {
    // The last byte of the MOV is in the range, or is the last one before the range.
    for (ip, stopped) in [(0x40_30fd, true), (0x40_3000, true), (0x40_2ffd, false)] {
        let (body, status) = traced(STOP, |m| {
            m.at.ip = ip;
            m.next(MOV_CR3);
        });
        let on = "MODE.Exec 64; TIP.PGE 400000; PIP 5000";
        let end = std::format!("; TIP.PGD {:x}; TraceStop", ip + 3);
        let expected = String::from(on) + if stopped { &end } else { "" };
        assert_eq!((body, status >> 5 == 1), (expected, stopped), "{ip:x}");
    }
}

#[test]
fn compatibility_mode_compares_cr3_as_64_bit_code_does() {
    // CR3_MATCH is 5000h, CR3 5020h. Mode in which the trace starts, mode and CPL of the traced code, ContextEn.
    let kernel = ExecMode::Bits64;
    for (starts_in, mode, cpl, context_en) in [
        (kernel, ExecMode::Bits64, 3, true),
        (kernel, ExecMode::Bits32, 3, true),
        (kernel, ExecMode::Bits16, 3, true),
        // Without a 64-bit kernel it is PAE paging.
        (ExecMode::Bits32, ExecMode::Bits32, 3, false),
        (ExecMode::Bits32, ExecMode::Bits32, 0, false),
        (ExecMode::Bits32, ExecMode::Bits64, 0, true),
        (kernel, ExecMode::Bits32, 0, false),
    ] {
        let mut machine = Machine::new("skylake", IntelSettings::default());
        machine.write(0x572, 0x5000);
        machine.at.cr3 = 0x5020;
        machine.at.mode = starts_in;
        machine.start(ALL | 1 << 7);
        machine.far(&[0xcf], Context { mode, cpl, ip: 0x1000, ..machine.at });
        assert_eq!(machine.read(STATUS) >> 1 & 1 == 1, context_en, "{starts_in:?} {mode:?} {cpl}");
    }
}

#[test]
fn a_trace_stop_range_does_nothing_out_of_context() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(0x580, 0x40_1000);
    machine.write(0x581, 0x40_1fff);
    machine.start(0x2009 | 2 << 32);
    machine.go(JMP, 0x40_1000);
    assert_eq!(machine.read(STATUS) & 0x3f, 0b101);
}

#[test]
fn enabling_within_a_trace_stop_range_stops_at_once() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(0x580, 0x40_0000);
    machine.write(0x581, 0x40_0fff);
    machine.start(ALL | 2 << 32);
    assert_eq!(machine.read(STATUS) & 0x37, 0b10_0010);
    machine.stop();
    assert_eq!(machine.body(), "TraceStop");
}

#[test]
fn stopped_keeps_the_trace_off_until_it_is_cleared() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(STATUS, 1 << 5);
    machine.start(ALL);
    machine.go(JMP_RAX, 0x40_1000);
    assert_eq!(machine.read(STATUS) & 0x37, 0b10_0000);
    machine.stop();
    assert_eq!(machine.read(MASK_PTRS) >> 32, 0);
    machine.write(STATUS, 0);
    machine.start(ALL);
    machine.stop();
    assert_ne!(machine.read(MASK_PTRS) >> 32, 0);
}

#[test]
fn code_in_a_segment_with_a_base_has_rips_in_packets_and_ranges() {
    // A 16-bit segment at 100000h: the trace has the offset of each address, compared with the range 1000h to 1fffh.
    let at = |m: &Machine, ip: u64| Context {
        ip: 0x10_0000 + ip,
        cs_base: 0x10_0000,
        mode: ExecMode::Bits16,
        ..m.at
    };
    let code = |m: &mut Machine| {
        let back = m.at;
        m.far(&[0xcb], at(m, 0x1000));
        m.far(JZ, at(m, 0x1002));
        m.far(&[0xe8, 0x00, 0x01], at(m, 0x1105));
        m.far(RET, at(m, 0x1005));
        m.far(JMP_RAX, at(m, 0xfffe));
        // Not taken, above the first 64 KiB.
        m.far(JZ, at(m, 0x1_0000));
        m.far(JMP_RAX, at(m, 0x1800));
        m.deliver(DeliveryKind::Interrupt, 32, at(m, 0x1f00), None);
        m.far(&[0xcb], back);
    };
    let all = run("skylake", IntelSettings::default(), ALL, code);
    let packets = "MODE.Exec 64; TIP.PGE 400000; MODE.Exec 16; TIP 1000; TNT 01; TIP fffe; TNT 0; TIP 1800; \
                   FUP 1800; TIP 1f00; MODE.Exec 64; TIP 400000";
    assert_eq!(all, packets);
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(0x580, 0x1000);
    machine.write(0x581, 0x1fff);
    machine.start(ALL | 1 << 32);
    code(&mut machine);
    machine.stop();
    let packets =
        "MODE.Exec 16; TIP.PGE 1000; TNT 01; TIP.PGD fffe; TIP.PGE 1800; FUP 1800; TIP 1f00; TIP.PGD 400000";
    assert_eq!(machine.body(), packets);
    // Linear addresses of 32 bits wrap around.
    let mut machine = Machine::new("skylake", IntelSettings::default());
    let flat = |ip| Context { ip, cs_base: 0xffff_f000, mode: ExecMode::Bits32, ..machine.at };
    let (first, second) = (flat(0xffff_f010), flat(0x20));
    machine.start(ALL);
    machine.far(&[0xcb], first);
    machine.far(JMP_RAX, second);
    machine.stop();
    assert!(machine.body().ends_with("MODE.Exec 32; TIP 10; TIP 1020"), "{}", machine.body());
}
