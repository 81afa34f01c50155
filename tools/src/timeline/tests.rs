use super::*;
use crate::source::Mapping;
use std::path::Path;

fn at(time: u64, change: SystemChange) -> SystemRecord {
    SystemRecord { time, cpu: Some(1), change }
}

fn map_with(process: i32, place: (u64, u64), path: &str, executable: bool) -> SystemChange {
    let (address, len) = place;
    let path = Path::new(path).into();
    SystemChange::Map(Mapping { process, address, len, offset: 0x1000, path, executable })
}

fn map(process: i32, address: u64, path: &str) -> SystemChange {
    map_with(process, (address, 0x100), path, true)
}

fn fork(parent: i32, pid: i32) -> SystemChange {
    SystemChange::Fork { task: SystemTask { pid, tid: pid }, parent, has_mappings: true }
}

fn exec(pid: i32, name: &str) -> SystemChange {
    SystemChange::Name { task: SystemTask { pid, tid: pid }, name: name.into(), exec: true }
}

fn switch(from: i32, to: i32) -> SystemChange {
    let task = |pid| Some(SystemTask { pid, tid: pid });
    SystemChange::Switch { from: task(from), to: task(to) }
}

/// Returns the turns of processor 1: the time, the process, its name, and its code as `address file+offset`.
fn turns(records: &[SystemRecord]) -> Vec<String> {
    let timeline = ProcessTimeline::of(records);
    let shown = |turn: ThreadTurn| {
        let code = turn.space.map(|space| timeline.code(space)).unwrap_or_default();
        let code: Vec<_> = code
            .iter()
            .map(|part| format!("{:x} {}+{:x}", part.address, part.path.display(), part.offset))
            .collect();
        let pid = turn.task.map_or(-1, |task| task.pid);
        let name = timeline.name(turn).map_or("?".into(), |name| name.to_string());
        format!("{} {pid} {name}: {}", turn.time, code.join(", "))
    };
    timeline.turns_of_cpu(1).into_iter().map(shown).collect()
}

#[test]
fn what_is_mapped_where_nothing_was_has_always_been_there_and_what_replaces_something_is_new() {
    let records = [
        at(10, map(7, 0x1000, "/a")),
        at(20, map(7, 0x3000, "/b")),
        // The same mapping again, and a part of it.
        at(25, map(7, 0x3000, "/b")),
        at(30, map_with(7, (0x3040, 0x10), "//anon", true)),
        at(40, map(7, 0x5000, "/c")),
    ];
    let before = "0 7 ?: 1000 /a+1000, 3000 /b+1000";
    let after = "30 7 ?: 1000 /a+1000, 3000 /b+1000, 3050 /b+1050, 5000 /c+1000";
    assert_eq!(turns(&records), [before, after]);
    // A mapping that is not code matters only where code was.
    let data = |address| at(50, map_with(7, (address, 0x10), "/data", false));
    assert_eq!(turns(&[&records[..2], &[data(0x9000)]].concat()), [before]);
    let hole = turns(&[&records[..2], &[data(0x1000)]].concat());
    assert_eq!(hole, [before, "50 7 ?: 1010 /a+1010, 3000 /b+1000"]);
}

#[test]
fn a_program_that_is_executed_has_nothing_of_the_one_before() {
    let records = [
        at(10, map(7, 0x1000, "/a")),
        at(20, exec(7, "other")),
        at(21, map(7, 0x5000, "/b")),
        // The records of another processor come later in the file.
        at(5, exec(7, "one")),
    ];
    assert_eq!(turns(&records), ["0 7 one: 1000 /a+1000", "20 7 other: 5000 /b+1000"]);
}

#[test]
fn a_new_process_has_what_its_parent_had_and_not_what_its_parent_maps_in_its_place() {
    let records = [
        at(1, exec(7, "parent")),
        at(2, map(7, 0x1000, "/a")),
        at(3, fork(7, 8)),
        at(4, map(7, 0x1000, "/b")),
        at(5, map(8, 0x3000, "/c")),
        at(6, fork(8, 9)),
        at(10, switch(7, 8)),
        at(11, switch(8, 9)),
        at(12, exec(8, "child")),
        at(13, switch(9, 8)),
    ];
    let (parent, child) = ("1000 /a+1000", "1000 /a+1000, 3000 /c+1000");
    let expected = [
        format!("0 7 parent: {parent}"),
        "4 7 parent: 1000 /b+1000".into(),
        format!("10 8 parent: {child}"),
        format!("11 9 parent: {child}"),
        "13 8 child: ".into(),
    ];
    assert_eq!(turns(&records), expected);
}

#[test]
fn a_processor_runs_what_its_switches_say_and_without_them_the_only_process() {
    let mapped = [at(1, map(7, 0x1000, "/a")), at(1, map(8, 0x1000, "/b"))];
    assert_eq!(turns(&mapped[..1]), ["0 7 ?: 1000 /a+1000"]);
    assert_eq!(turns(&mapped), ["0 -1 ?: "]);
    assert_eq!(turns(&[]), ["0 -1 ?: "]);
    // Only the thread is known.
    let task = |pid, tid| Some(SystemTask { pid, tid });
    let to = |time, to| at(time, SystemChange::Switch { from: None, to });
    let thread = SystemChange::Fork { task: SystemTask { pid: 7, tid: 70 }, parent: 7, has_mappings: true };
    let records =
        [&mapped[..], &[at(2, thread), to(3, task(8, 8)), to(4, task(-1, 70)), to(5, None)]].concat();
    assert_eq!(turns(&records), ["0 8 ?: 1000 /b+1000", "4 7 ?: 1000 /a+1000"]);
    let timeline = ProcessTimeline::of(&records);
    let of_thread = timeline.turns_of_thread(70);
    assert_eq!(of_thread.len(), 1);
    assert_eq!(of_thread[0].task, task(7, 70));
    assert_eq!(timeline.code(of_thread[0].space.unwrap())[0].path.as_ref(), Path::new("/a"));
}

#[test]
fn the_mappings_of_many_forks_are_shared() {
    let mut records: Vec<_> = (0..4000).map(|number| at(1, map(1, 0x1000 * (number + 1), "/a"))).collect();
    for child in 2..4002 {
        records.push(at(2, fork(1, child)));
        // Each child has a mapping of its own.
        records.push(at(3, map(child, 0x8000_0000, "/own")));
    }
    let timeline = ProcessTimeline::of(&records);
    assert!(timeline.spaces.mappings() <= 8000, "{}", timeline.spaces.mappings());
    let last = timeline.turns_of_thread(4001)[0].space.unwrap();
    assert_eq!(timeline.code(last).len(), 4001);
}
