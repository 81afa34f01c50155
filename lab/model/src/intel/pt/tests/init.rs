//! INIT and start-up interrupts while TraceEn is set, cases 30 to 32 of the table "Packet Generation under Different
//! Enable Conditions".

use std::string::String;

use pugmark_decoder_core::event::{EventDecoder, EventKind};

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{Context, ExecMode};

const OS: u64 = 0x2005;
const USER: u64 = 0x2009;
const ON: &str = "MODE.Exec 64; TIP.PGE 400000; ";

/// Execution in real-address mode, at an offset in a segment.
fn real(cs_base: u64, offset: u64) -> Context {
    Context { ip: cs_base + offset, cs_base, cr3: 0, cpl: 0, mode: ExecMode::Bits16, iflag: false }
}

fn traced(ctl: u64, code: impl FnOnce(&mut Machine)) -> String {
    run("skylake", IntelSettings::default(), ctl, code)
}

fn wait_and_start(m: &mut Machine) {
    m.init(None);
    m.start_up(real(0x9_a000, 0));
}

fn reset(m: &mut Machine) {
    m.init(Some(real(0xffff_0000, 0xfff0)));
}

#[test]
fn a_processor_that_waits_shows_init_and_then_the_address_of_its_start() {
    // Cases 31b and 32f.
    let body = traced(ALL, wait_and_start);
    assert_eq!(body.strip_prefix(ON), Some("FUP 400000; PIP 0; MODE.Exec 16; TIP 0"), "{body}");
    // Case 32d: the code is not traced any more. Case 32c: it was not.
    let user = traced(USER, |m| {
        m.far(SYSCALL, m.user(0x1000));
        wait_and_start(m);
        m.far(&[0xcf], Context { cs_base: 0, ..m.user(0x2000) });
    });
    let expected = "MODE.Exec 64; TIP.PGE 1000; FUP 1000; TIP.PGD -; MODE.Exec 16; TIP.PGE 2000";
    assert_eq!(user, expected);
    let into = traced(OS, |m| {
        m.far(IRETQ, m.user(0x1000));
        wait_and_start(m);
    });
    assert_eq!(into.strip_prefix(ON), Some("TIP.PGD -; MODE.Exec 16; TIP.PGE 0"), "{into}");
}

#[test]
fn a_processor_that_does_not_wait_shows_init_as_a_transfer() {
    // Case 30f.
    let body = traced(ALL, reset);
    assert_eq!(body.strip_prefix(ON), Some("FUP 400000; PIP 0; MODE.Exec 16; TIP fff0"), "{body}");
    // Cases 30d and 30c. With IA32_RTIT_CTL.OS clear there is no PIP.
    let user = traced(USER, |m| {
        m.far(SYSCALL, m.user(0x1000));
        reset(m);
        m.far(&[0xcf], Context { cs_base: 0, ..m.user(0x2000) });
    });
    let expected = "MODE.Exec 64; TIP.PGE 1000; FUP 1000; TIP.PGD -; MODE.Exec 16; TIP.PGE 2000";
    assert_eq!(user, expected);
    let into = traced(OS, |m| {
        m.far(IRETQ, m.user(0x1000));
        reset(m);
    });
    assert_eq!(into.strip_prefix(ON), Some("TIP.PGD -; PIP 0; MODE.Exec 16; TIP.PGE fff0"), "{into}");
}

/// Returns the packets with the addresses 0 to FFH in a range of the kind `range` (1: FilterEn, 2: TraceStop).
fn with_range(range: u64, code: fn(&mut Machine)) -> String {
    let mut m = Machine::new("skylake", IntelSettings::default());
    m.write(0x580, 0);
    m.write(0x581, 0xff);
    m.start(ALL | range << 32);
    code(&mut m);
    m.stop();
    m.body()
}

#[test]
fn filters_and_trace_stop_hold_at_the_start() {
    assert_eq!(with_range(1, wait_and_start), "MODE.Exec 16; TIP.PGE 0");
    assert_eq!(
        with_range(2, wait_and_start).strip_prefix(ON),
        Some("FUP 400000; PIP 0; TIP.PGD 0; TraceStop")
    );
    // Case 30b.
    assert_eq!(with_range(1, reset), "PIP 0");
}

#[test]
fn trace_en_and_the_registers_stay_and_what_waits_ignores_init() {
    let mut m = Machine::new("skylake", IntelSettings::default());
    m.start(ALL);
    let at = m.at;
    m.start_up(real(0x1000, 0));
    m.at = at;
    m.init(None);
    m.init(None);
    assert_eq!((m.read(CTL), m.read(BASE), m.read(STATUS) & 4), (ALL, RANGE as u64, 4));
    m.start_up(real(0x9_a000, 0));
    // It runs, so a second start-up interrupt changes nothing.
    m.start_up(real(0x1000, 0));
    m.at = real(0x9_a000, 0);
    m.go(&[0xeb, 0x40], 0x9_a042);
    m.stop();
    let body = m.body();
    assert_eq!(body.strip_prefix(ON), Some("FUP 400000; PIP 0; MODE.Exec 16; TIP 0"), "{body}");
}

#[test]
fn no_psb_comes_between_init_and_the_start() {
    let mut m = Machine::new("skylake", IntelSettings::default());
    m.start(ALL);
    // Up to one byte before the next PSB.
    m.write(CTL, 0);
    m.write(STATUS, 0x7fd << 32);
    m.write(MASK_PTRS, 0xffff);
    m.start(ALL);
    wait_and_start(&mut m);
    m.stop();
    let trace = m.trace().join("; ");
    let start = trace.find("PIP 0; MODE.Exec 16; TIP 0; PSB").unwrap_or_else(|| panic!("{trace}"));
    assert!(!trace[..start].contains("PSB"), "{trace}");
}

#[test]
fn a_decoder_finds_an_asynchronous_branch_and_what_changed_with_it() {
    let mut m = Machine::new("skylake", IntelSettings::default());
    // TSC and MTC packets between the parts of the event.
    m.start(ALL | 1 << 10 | 1 << 9);
    m.init(None);
    m.tsc += 1_000_000;
    m.start_up(real(0x9_a000, 0x10));
    m.stop();
    let len = (m.read(MASK_PTRS) >> 32) as usize;
    let mut events = EventDecoder::new(&m.ram[RANGE..RANGE + len]);
    events.sync_forward().expect("a PSB");
    let mut found = std::vec![];
    while let Some(event) = events.next().expect("an event") {
        if !event.status {
            found.push((event.kind, event.ip));
        }
    }
    let branch = (EventKind::AsyncBranch { from: 0x40_0000 }, Some(0x10));
    assert!(found.contains(&branch), "{found:x?}");
    let changes = |(kind, ip): &(EventKind, Option<u64>)| match kind {
        EventKind::AsyncPaging(pip) => pip.cr3 == 0 && *ip == Some(0x10),
        EventKind::ExecMode(mode) => *mode == Some(ExecMode::Bits16) && *ip == Some(0x10),
        _ => false,
    };
    assert_eq!(found.iter().filter(|event| changes(event)).count(), 2, "{found:x?}");
}
