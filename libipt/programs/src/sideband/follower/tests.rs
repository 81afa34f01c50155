use super::*;
use crate::code::SectionCache;
use crate::sideband::{ImagePlan, RecordLayout};
use pugmark_ipt::event::flag;
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

fn event(kind: c_int, ip: Option<u64>, time: u64) -> PtEvent {
    let mut event = PtEvent { tsc: time, flags: flag::HAS_TSC, ..PtEvent::new(kind, [0; 3]) };
    match (event.ip_word(), ip) {
        (Some(word), Some(ip)) => event.variant[word] = ip,
        _ => event.flags |= flag::IP_SUPPRESSED,
    }
    event
}

/// Returns an asynchronous event of the instruction at `at`.
fn from(kind: c_int, at: u64, ip: Option<u64>) -> PtEvent {
    let mut event = event(kind, ip, 2);
    event.variant[0] = at;
    event
}

fn at_1(event: PtEvent) -> PtEvent {
    PtEvent { tsc: 1, ..event }
}

fn status(event: PtEvent) -> PtEvent {
    PtEvent { flags: event.flags | flag::STATUS_UPDATE, ..event }
}

/// Returns the lines that the follower prints at each event.
fn lines(records: &[Vec<u8>], events: &[PtEvent]) -> Vec<String> {
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
    let first = event(kind::ENABLED, user, 1);
    let records = [start(1, 1), switch_in(2, 2)];
    for (second, switches) in [
        (event(kind::EXSTOP, user, 2), false),
        (event(kind::EXSTOP, Some(KERNEL), 2), true),
        (event(kind::EXSTOP, None, 2), true),
        (from(kind::ASYNC_BRANCH, 0x1000, Some(KERNEL)), true),
        (from(kind::ASYNC_BRANCH, 0x1000, Some(0x1010)), false),
        (event(kind::DISABLED, None, 2), true),
        (event(kind::DISABLED, user, 2), false),
        (from(kind::ASYNC_DISABLED, 0x1000, None), true),
        (from(kind::ASYNC_DISABLED, KERNEL, None), false),
        (event(kind::ENABLED, Some(KERNEL), 2), true),
        // An event without a location makes the location unknown.
        (event(kind::CBR, None, 2), true),
        (event(kind::SYSCALL, user, 2), true),
    ] {
        let found = lines(&records, &[first, second]);
        let expected = if switches { "[context: pid-2]" } else { "" };
        assert_eq!(found, ["[context: pid-1]", expected], "{second:?}");
        // Leaving the kernel allows a switch, as does being in the kernel.
        let found = lines(&records, &[first, event(kind::EXSTOP, Some(KERNEL), 1), second]);
        assert_eq!(found, ["[context: pid-1]", "", "[context: pid-2]"], "{second:?}");
    }
}

#[test]
fn events_of_a_psb_have_its_address() {
    let enabled = status(event(kind::ENABLED, Some(0x1000), 2));
    let mode = |ip| status(event(kind::EXEC_MODE, ip, 2));
    let first = at_1(enabled);
    let records = [start(1, 1), switch_in(2, 2)];
    assert_eq!(lines(&records, &[first, enabled, mode(Some(0x1000))])[1..], ["", ""]);
    let disabled = status(event(kind::DISABLED, None, 2));
    assert_eq!(lines(&records, &[first, at_1(disabled), mode(None)])[1..], ["", "[context: pid-2]"]);
}

#[test]
fn switches_back_before_their_place_are_none() {
    let records = [start(1, 1), switch_in(2, 2), switch_in(1, 3), switch_in(3, 4)];
    let at = |time| event(kind::EXSTOP, Some(0x1000), time);
    let kernel = |time| event(kind::EXSTOP, Some(KERNEL), time);
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
    follower.event(&event(kind::STOP, None, 1), &mut out).unwrap();
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
    let (user, kernel) = (Some(0x1000), Some(KERNEL));
    let on = kind::ENABLED;
    let before = [Unknown, Kernel, User];
    // The location after an event, if it was unknown, in the kernel, or in a program before.
    for (event, to) in [
        (event(on, user, 1), [User; 3]),
        (event(on, kernel, 1), [Kernel; 3]),
        (event(on, None, 1), [User; 3]),
        (from(kind::ASYNC_BRANCH, KERNEL, user), [User; 3]),
        // Tracing ends on the way to the side that is filtered out.
        (event(kind::DISABLED, None, 1), [Unknown, User, Kernel]),
        (event(kind::DISABLED, kernel, 1), [Kernel; 3]),
        (from(kind::ASYNC_DISABLED, 0x1000, None), [Kernel; 3]),
        (from(kind::ASYNC_DISABLED, KERNEL, None), [User; 3]),
        (from(kind::ASYNC_DISABLED, KERNEL, user), [User; 3]),
        // Only the kernel changes CR3; in a PSB+ the address gives the location.
        (event(kind::PAGING, None, 1), [Kernel; 3]),
        (status(event(kind::ASYNC_PAGING, user, 1)), [User; 3]),
        (event(kind::ASYNC_PAGING, None, 1), [Kernel; 3]),
        (event(kind::ASYNC_PAGING, user, 1), [User; 3]),
        (event(kind::OVERFLOW, kernel, 1), [Kernel; 3]),
        (event(kind::OVERFLOW, None, 1), [Unknown; 3]),
        (event(kind::CBR, kernel, 1), [Unknown; 3]),
        (event(kind::STOP, user, 1), [Unknown; 3]),
        // The lowest address of the kernel belongs to the kernel.
        (event(kind::EXSTOP, Some(KERNEL - 1), 1), [User; 3]),
    ] {
        let found = before.map(|location| {
            let place = StreamPosition { kernel_start: KERNEL, location, context: None, next: None };
            place.location_of(&event)
        });
        assert_eq!(found, to, "{event:?}");
    }
}
