//! Processes that are forked, and programs that are executed.

use super::*;

#[test]
fn a_forked_process_has_the_code_and_the_handlers_of_its_parent() {
    let script = Script::new("fork");
    let emulation = script.emulation();
    let parent = process_ring(&emulation, (PID, 0), 0..13, |_| ());
    parent.header().forks.store(1, Relaxed);
    let _first =
        thread_ring(&emulation, (PID, 0), PID, &[&HANDLERS[..], &[Run(2), CALL, Run(3), EXIT]].concat());
    // It has inherited all blocks but the last ones.
    let mut child = process_ring(&emulation, (PID + 1, 1), 12..16, |header| {
        header.parent.store(PID, Relaxed);
        header.inherited.store(12, Relaxed);
        header.made.store(5, Relaxed);
    });
    write_entries(&mut child, &HANDLERS[..1]);
    let _second = thread_ring(&emulation, (PID + 1, 1), PID + 1, &[Run(2), Run(10), Run(12), Run(1), EXIT]);
    let recording = emulation.run(&mut |_| {}).unwrap();
    assert_eq!(recording.unreported, 0);
    let parts: Vec<_> = recording.parts.iter().map(|part| (part.task, part.thread.tid, flow(part))).collect();
    let [one, two] = [PID, PID + 1].map(u32::cast_signed);
    let (first, second) = ("+ 1006 1008 1009 -100a", "+ 1006 1008 -1009 + 2000 2001 3000 3001 -1003");
    assert_eq!(parts, [(1, one, first.into()), (2, two, second.into())]);
}

#[test]
fn a_process_that_is_found_before_its_parent_waits_for_it() {
    let script = Script::new("before-parent");
    let mut emulation = script.emulation();
    let parent = process_ring(&emulation, (PID, 0), 0..13, |_| ());
    parent.header().forks.store(1, Relaxed);
    let _child = process_ring(&emulation, (PID + 1, 1), 0..0, |header| {
        header.parent.store(PID, Relaxed);
        header.inherited.store(12, Relaxed);
        header.made.store(5, Relaxed);
    });
    // The parent's ring was looked at before it was filled in, and the child's after that.
    parent.header().ready.store(0, Relaxed);
    emulation.find_rings().unwrap();
    assert_eq!(emulation.processes.len(), 0);
    parent.header().ready.store(1, Relaxed);
    emulation.find_rings().unwrap();
    assert_eq!((emulation.processes.len(), emulation.unreported()), (2, 0));
}

/// Records a process of two threads, of which one executes another program while nothing of it has been read yet.
fn executed_by(script: &Script, tid: u32) -> Recording {
    let mut emulation = script.emulation();
    let (first, other, second) = ((PID, 0), (PID + 9, 1), (PID, 2));
    let process = |emulation: &Emulation<'_>, id, made| {
        process_ring(emulation, id, 0..BLOCKS.len(), |header| header.made.store(made, Relaxed))
    };
    // The other process is about to execute a program, too.
    let exec = Message(Kind::Exec, &[]);
    let with_exec = |own: u32, entries: &[RingEntry<'static>]| {
        if own == tid { [entries, &[exec]].concat() } else { entries.to_vec() }
    };
    let mut rings = vec![
        process(&emulation, first, 0),
        thread_ring(&emulation, first, PID, &with_exec(PID, &[Run(2), Run(3)])),
        thread_ring(&emulation, first, PID + 1, &with_exec(PID + 1, &[Run(4), Run(2)])),
        process(&emulation, other, 10),
        thread_ring(&emulation, other, PID + 9, &[Run(3), Run(0), exec]),
    ];
    emulation.find_rings().unwrap();
    rings.push(process(&emulation, second, 20));
    rings.push(thread_ring(&emulation, second, PID, &[Run(0), Run(4), EXIT]));
    let recording = emulation.run(&mut |_| {}).unwrap();
    drop(rings);
    recording
}

#[test]
fn who_executes_another_program_goes_on_with_its_own_number() {
    for (tid, parts) in [
        (PID, ["1 Exec + 1006 1008 1009 -100a", "1 Over + 1000 1001 -1014", "2 Over + 1014 1015 -1006"]),
        (PID + 1, ["1 Over + 1006 1008 1009 -100a", "2 Exec + 1014 1015 -1006", "2 Over + 1000 1001 -1014"]),
    ] {
        let script = Script::new(&format!("exec-{tid}"));
        let recording = executed_by(&script, tid);
        let found: Vec<_> = recording
            .parts
            .iter()
            .map(|part| format!("{} {:?} {}", part.task, part.cause, flow(part)))
            .collect();
        assert_eq!(found[..3], parts, "{tid:#x}");
        assert_eq!(found[3..], ["3 Exec + 100a -1000"], "{tid:#x}");
        let second = &recording.parts[if tid == PID { 1 } else { 2 }];
        let folder = if tid == PID { "out/2" } else { "out/task-2/2" };
        assert!(second.dir.ends_with(folder), "{:?}", second.dir);
    }
}

#[test]
fn the_program_before_is_over_as_soon_as_the_next_is_found() {
    let script = Script::new("over");
    let mut emulation = script.emulation();
    // A process that goes on.
    let pid = std::process::id();
    let _first = process_ring(&emulation, (pid, 0), 0..1, |_| ());
    let _other = process_ring(&emulation, (PID, 0), 0..1, |_| ());
    emulation.find_rings().unwrap();
    let _next = process_ring(&emulation, (pid, 1), 0..1, |header| header.made.store(5, Relaxed));
    emulation.find_rings().unwrap();
    let mut over: Vec<_> = emulation
        .processes
        .iter()
        .map(|process| (process.pid(), process.generation(), process.over))
        .collect();
    over.sort_unstable();
    let mut expected = [(pid, 0, true), (pid, 1, false), (PID, 0, false)];
    expected.sort_unstable();
    assert_eq!(over, expected);
}

#[test]
fn a_process_that_was_forked_and_never_reported_is_waited_for_but_not_for_ever() {
    let script = Script::new("unreported");
    let mut emulation = script.emulation();
    let process = process_ring(&emulation, (PID, 0), 0..1, |_| ());
    process.header().forks.store(2, Relaxed);
    emulation.find_rings().unwrap();
    // The emulator has ended.
    emulation.child.wait().unwrap();
    assert!(!emulation.has_ended().unwrap());
    assert_eq!((emulation.unreported(), emulation.ending), (2, Some(Ending::Exit(0))));
    assert!(!emulation.has_ended().unwrap());
    emulation.over_since = Instant::now().checked_sub(LONGEST_FORK);
    assert!(emulation.has_ended().unwrap());
}
