use super::*;
use crate::code::SectionCache;
use crate::sideband::{ImagePlan, RecordLayout};
use pugmark_decoder_core::event::Stamp;
use pugmark_tools::sideband::StreamConfig;

const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Makes a record with samples of process and time.
fn record(kind: u64, misc: u64, body: &[u64], pid: u64, time: u64) -> Vec<u8> {
    let words = [body, &[pid | pid << 32, time]].concat();
    let header = kind | misc << 32 | (8 + 8 * words.len() as u64) << 48;
    [header].iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect()
}

fn switch_in(pid: u64, time: u64) -> Vec<u8> {
    record(14, 0, &[], pid, time)
}

fn start(pid: u64, time: u64) -> Vec<u8> {
    record(12, 0, &[pid | pid << 32], pid, time)
}

fn event(kind: EventKind, ip: Option<u64>, time: u64) -> Event {
    Event {
        kind,
        ip,
        when: Stamp { time, tsc: Some(time), ..Stamp::default() },
        offset: 0,
        held: 0,
        status: false,
    }
}

fn at_1(event: Event) -> Event {
    Event { when: Stamp { time: 1, ..event.when }, ..event }
}

/// Returns the lines that the follower prints at each event.
fn lines(records: &[Vec<u8>], events: &[Event]) -> Vec<String> {
    let config = StreamConfig { sample_type: 6, kernel_start: KERNEL, ..StreamConfig::default() };
    let streams = [Stream::new("s".into(), records.concat(), true, config)];
    let mut cache = SectionCache::default();
    let images = ProcessImages::new(ImagePlan::new(&streams, &[], &mut cache), &cache);
    let show = ShowOptions { warn: true, ..ShowOptions::default() };
    let mut follower = Follower::new(&streams, &images, show, true, &mut Vec::new()).unwrap();
    let at = |event| {
        let mut out = Vec::new();
        follower.event(event, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().collect::<Vec<_>>().join(" ")
    };
    events.iter().map(at).collect()
}

#[test]
fn a_switch_waits_for_the_kernel() {
    let user = Some(0x1000);
    let enabled = EventKind::Enabled { resumed: false };
    let first = event(enabled, user, 1);
    let records = [start(1, 1), switch_in(2, 2)];
    for (kind, ip, switches) in [
        (EventKind::Exstop, user, false),
        (EventKind::Exstop, Some(KERNEL), true),
        (EventKind::Exstop, None, true),
        (EventKind::AsyncBranch { from: 0x1000 }, Some(KERNEL), true),
        (EventKind::AsyncBranch { from: 0x1000 }, Some(0x1010), false),
        (EventKind::Disabled, None, true),
        (EventKind::Disabled, user, false),
        (EventKind::AsyncDisabled { at: 0x1000 }, None, true),
        (EventKind::AsyncDisabled { at: KERNEL }, None, false),
        (enabled, Some(KERNEL), true),
        // An event without a location makes the location unknown.
        (EventKind::Cbr { ratio: 1 }, None, true),
        (EventKind::Syscall, user, true),
    ] {
        let found = lines(&records, &[first, event(kind, ip, 2)]);
        let expected = if switches { "[context: pid-2]" } else { "" };
        assert_eq!(found, ["[context: pid-1]", expected], "{kind:?} {ip:x?}");
        // Leaving the kernel allows a switch, as does being in the kernel.
        let found = lines(&records, &[first, event(EventKind::Exstop, Some(KERNEL), 1), event(kind, ip, 2)]);
        assert_eq!(found, ["[context: pid-1]", "", "[context: pid-2]"], "{kind:?} {ip:x?}");
    }
}

#[test]
fn events_of_a_psb_share_its_address() {
    let status = |kind, ip| Event { status: true, ..event(kind, ip, 2) };
    let enabled = status(EventKind::Enabled { resumed: false }, Some(0x1000));
    let mode = status(EventKind::ExecMode(None), None);
    let first = at_1(enabled);
    let records = [start(1, 1), switch_in(2, 2)];
    assert_eq!(lines(&records, &[first, enabled, mode])[1..], ["", ""]);
    let disabled = status(EventKind::Disabled, None);
    assert_eq!(lines(&records, &[first, at_1(disabled), mode])[1..], ["", "[context: pid-2]"]);
}

#[test]
fn switches_back_before_their_place_are_none() {
    let records = [start(1, 1), switch_in(2, 2), switch_in(1, 3), switch_in(3, 4)];
    let at = |time| event(EventKind::Exstop, Some(0x1000), time);
    let kernel = |time| event(EventKind::Exstop, Some(KERNEL), time);
    assert_eq!(lines(&records, &[at(1), at(2), kernel(3), kernel(4)])[1..], ["", "", "[context: pid-3]"]);
}

#[test]
fn records_are_shown_before_what_they_do() {
    let lost = record(2, 0, &[0, 5], 1, 1);
    let records = [start(1, 1), lost, record(1, 2, &[1, 0x1000, 0x1000, 0, u64::from(b'/')], 1, 1)];
    let config =
        StreamConfig { sample_type: 6, sysroot: "/no/such/folder".into(), ..StreamConfig::default() };
    let streams = [Stream::new("s".into(), records.concat(), true, config)];
    let mut cache = SectionCache::default();
    let images = ProcessImages::new(ImagePlan::new(&streams, &[], &mut cache), &cache);
    let show = ShowOptions { layout: Some(RecordLayout::Compact), warn: true, ..ShowOptions::default() };
    let mut out = Vec::new();
    let mut follower = Follower::new(&streams, &images, show, true, &mut out).unwrap();
    follower.event(&event(EventKind::Stop, None, 1), &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap().lines().collect::<Vec<_>>(),
        [
            "PERF_RECORD_ITRACE_START  1/1  { 1/1 1 }",
            "[context: pid-1]",
            "PERF_RECORD_LOST  0, 5  { 1/1 1 }",
            "[s:0000000000000020 sideband warning: sideband lost]",
            "PERF_RECORD_MMAP  1/0, 1000, 1000, 0, /  { 1/1 1 }",
            "[s:0000000000000048 sideband error: bad file]",
        ]
    );
}

#[test]
fn an_event_says_where_the_trace_is_or_on_which_side_it_was() {
    use Location::{Kernel, Unknown, User};
    use pugmark_decoder_core::packet::Pip;
    let pip = Pip { cr3: 0x1000, non_root: false };
    let (user, kernel) = (Some(0x1000), Some(KERNEL));
    let status = |kind, ip| Event { status: true, ..event(kind, ip, 1) };
    let on = EventKind::Enabled { resumed: false };
    let from = [Unknown, Kernel, User];
    // The location after an event, if it was unknown, in the kernel, or in a program before.
    for (event, to) in [
        (event(on, user, 1), [User; 3]),
        (event(on, kernel, 1), [Kernel; 3]),
        (event(on, None, 1), [User; 3]),
        (event(EventKind::AsyncBranch { from: KERNEL }, user, 1), [User; 3]),
        // Tracing ends on the way to the side that is filtered out.
        (event(EventKind::Disabled, None, 1), [Unknown, User, Kernel]),
        (event(EventKind::Disabled, kernel, 1), [Kernel; 3]),
        (event(EventKind::AsyncDisabled { at: 0x1000 }, None, 1), [Kernel; 3]),
        (event(EventKind::AsyncDisabled { at: KERNEL }, None, 1), [User; 3]),
        (event(EventKind::AsyncDisabled { at: KERNEL }, user, 1), [User; 3]),
        // Only the kernel changes CR3; in a PSB+ the address gives the location.
        (event(EventKind::Paging(pip), None, 1), [Kernel; 3]),
        (event(EventKind::Paging(pip), user, 1), [Kernel; 3]),
        (status(EventKind::Paging(pip), user), [User; 3]),
        (event(EventKind::AsyncPaging(pip), None, 1), [Kernel; 3]),
        (event(EventKind::AsyncPaging(pip), user, 1), [User; 3]),
        (event(EventKind::Overflow, kernel, 1), [Kernel; 3]),
        (event(EventKind::Overflow, None, 1), [Unknown; 3]),
        (event(EventKind::Cbr { ratio: 1 }, kernel, 1), [Unknown; 3]),
        (event(EventKind::Stop, user, 1), [Unknown; 3]),
        // The lowest address of the kernel belongs to the kernel.
        (event(EventKind::Exstop, Some(KERNEL - 1), 1), [User; 3]),
    ] {
        let found = from.map(|location| {
            let place = StreamPosition { kernel_start: KERNEL, location, context: None, next: None };
            place.location_of(&event)
        });
        assert_eq!(found, to, "{event:?}");
    }
}
