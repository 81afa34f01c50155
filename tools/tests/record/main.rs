//! Records programs and decodes the recordings: the decoders must find what was executed.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod attach;
mod command;
mod counting;
mod crashes;
mod deviations;
mod environment;
mod executing;
mod losses;
mod natively;
mod programs;
mod recorded;
mod switching;
mod system_calls;
mod waits;

use programs::{Scratch, compile, compile_bare};
use pugmark_model::intel::IntelProfile;
use pugmark_recorder::{
    Ending, Engine, RecordError, RecordOptions, Recording, emulator_is_installed, record,
};
use recorded::check;
use serde_json::Value;
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt, process::Command};

/// Compares each part with its truth.
fn check_all(recording: &Recording) {
    for part in &recording.parts {
        check(part);
    }
}

/// Returns the task of each part.
fn tasks(recording: &Recording) -> Vec<u32> {
    recording.parts.iter().map(|part| part.task).collect()
}

/// Runs a test with each engine that this machine has.
fn for_each_engine(mut test: impl FnMut(Engine)) {
    test(Engine::Stepping);
    if emulator_is_installed() {
        test(Engine::Emulator);
    } else {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
    }
}

/// Returns the options to record a program into the default folder.
fn options<S: Into<OsString>>(engine: Engine, program: impl IntoIterator<Item = S>) -> RecordOptions {
    RecordOptions { engine, ..RecordOptions::new(program) }
}

fn profile(name: &str) -> &'static IntelProfile {
    IntelProfile::by_name(name).expect(name)
}

#[test]
fn the_trace_of_a_program_decodes_to_what_was_executed() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("true");
        let options = RecordOptions { out: scratch.path("out"), ..options(engine, ["/bin/true"]) };
        let mut seen = vec![];
        let recording = record(&options, &mut |progress| seen.push(progress)).expect("it is recorded");
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 1));
        assert!(check(&recording.parts[0]) > 1000);
        // Progress is reported now and then.
        assert!(seen.len() > 1 && seen.iter().all(|progress| progress.tasks == 1), "{seen:?}");
        assert!(seen.is_sorted_by(|one, next| one.steps < next.steps && one.bytes <= next.bytes), "{seen:?}");
        let last = seen[seen.len() - 1].bytes;
        assert!(last > recording.parts[0].bytes / 2 && last <= recording.parts[0].bytes, "{seen:?}");
        // A recording of one task is decoded like one of several.
        let decode = Command::new(env!("CARGO_BIN_EXE_pugmark"))
            .args(["decode", "--json"])
            .arg(scratch.path("out"))
            .output()
            .expect("it runs");
        let totals: Value = serde_json::from_slice(&decode.stdout).expect("totals");
        assert_eq!(totals["parts"].as_array().map(Vec::len), Some(1), "{totals}");
    });
}

#[test]
fn calls_into_the_vsyscall_page_come_back_to_their_caller() {
    for_each_engine(|engine| {
        if !fs::read_to_string("/proc/self/maps").expect("maps").contains("[vsyscall]") {
            println!("skipped: the system has no vsyscall page");
            return;
        }
        let Some(program) = compile("vsyscall", programs::VSYSCALL) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 1));
        check_all(&recording);
    });
}

#[test]
fn code_that_nobody_else_can_read_is_said_to_be_that() {
    let Some(program) = compile("secret", programs::SECRET) else { return };
    let options = RecordOptions { out: program.path("out"), ..RecordOptions::new([program.path("program")]) };
    match record(&options, &mut |_| {}) {
        Err(RecordError::NoCode { ip }) => assert_eq!(ip, 0x1234_5000),
        Ok(Recording { ending: Ending::Exit(9), .. }) => println!("skipped: the system has no secret memory"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn system_calls_signals_and_faults_are_where_the_trace_pauses() {
    for_each_engine(|engine| {
        let Some(program) = compile("events", programs::EVENTS) else { return };
        for (name, tweak) in [
            ("plain", (|options| options) as fn(RecordOptions) -> RecordOptions),
            ("timing", |options| RecordOptions { tsc: true, mtc: Some(0), cyc: Some(0), ..options }),
            ("uncompressed", |options| RecordOptions { ret_compression: false, long_tnt: true, ..options }),
            ("broadwell", |options| RecordOptions { profile: profile("broadwell"), tsc: true, ..options }),
        ] {
            let options = tweak(RecordOptions {
                out: program.path(name),
                ..options(engine, [program.path("program")])
            });
            let recording = record(&options, &mut |_| {}).expect(name);
            // The program checks itself whether it can notice the stepping. It has two children.
            assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1, 2, 3]), "{name}");
            check_all(&recording);
        }
    });
}

#[test]
fn code_that_changes_and_programs_that_are_executed_begin_a_new_part() {
    for_each_engine(|engine| {
        let Some(program) = compile("parts", programs::PARTS) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 3));
        check_all(&recording);
        assert!(recording.parts[2].program.ends_with("true"), "{:?}", recording.parts[2]);
    });
}

#[test]
fn every_thread_and_every_child_has_a_trace_of_its_own() {
    for_each_engine(|engine| {
        let Some(program) = compile("tasks", &programs::tasks()) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&plain, &mut |_| {}).expect("it is recorded");
        // The fifth task executes another program, which is another part.
        assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1, 2, 3, 4, 5, 5, 6]));
        check_all(&recording);
        assert!(recording.parts[5].program.ends_with("true"), "{:?}", recording.parts[5]);
        assert!(recording.parts[6].dir.ends_with("out/task-6"), "{:?}", recording.parts[6]);

        // No part of the longer recording is left.
        let filtered = RecordOptions { ranges: vec!["work".parse().expect("a range")], ..plain.clone() };
        let recording = record(&filtered, &mut |_| {}).expect("it is recorded");
        let counts: Vec<_> = recording.parts.iter().map(|part| (part.task, check(part))).collect();
        let work = programs::WORK_INSNS;
        assert_eq!(counts, [(1, 0), (2, work), (3, work), (4, work), (5, 0), (6, 0)]);
        assert!(!program.path("out/task-5/2").exists());

        let alone = RecordOptions { follow: false, ..filtered };
        let recording = record(&alone, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1]));
        assert_eq!(check(&recording.parts[0]), 0);
        assert!(!program.path("out/task-2").exists());
    });
}

#[test]
fn a_thread_that_executes_another_program_takes_the_place_of_the_first() {
    for_each_engine(|engine| {
        let Some(program) = compile("exec", programs::EXEC) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1, 2, 3, 3]));
        check_all(&recording);
        assert!(recording.parts[3].program.ends_with("true"), "{:?}", recording.parts[3]);
    });
}

#[test]
fn whoever_is_killed_has_a_trace_up_to_there() {
    for_each_engine(|engine| {
        let Some(program) = compile("ends", programs::ENDS) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        for _ in 0..3 {
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(7), vec![1, 2, 3, 4, 5]));
            check_all(&recording);
        }
    });
}

#[test]
fn code_that_another_thread_maps_begins_a_new_part() {
    for_each_engine(|engine| {
        let Some(program) = compile("remap", programs::REMAP) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1, 2, 2]));
        check_all(&recording);
    });
}

#[test]
fn a_process_whose_parent_ends_at_once_is_recorded() {
    for_each_engine(|engine| {
        let Some(program) = compile("orphans", programs::ORPHANS) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((tasks(&recording), recording.unreported), ((1..=21).collect(), 0), "{engine:?}");
        check_all(&recording);
        // Without tracing the processes follow one another faster.
        for round in 0..20 {
            let options = RecordOptions { limit: Some(1), ..options.clone() };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!(recording.unreported, 0, "round {round}");
        }
    });
}

#[test]
fn a_child_has_the_handlers_that_were_set_right_before_it_was_made() {
    for_each_engine(|engine| {
        let Some(program) = compile("inherited", programs::INHERITED) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let options = RecordOptions { ranges: vec!["bad".parse().expect("a range")], ..plain };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        let counts: Vec<_> = recording.parts.iter().map(check).collect();
        assert_eq!(
            (recording.ending, counts),
            (Ending::Exit(0), [vec![0], vec![2; 20]].concat()),
            "{engine:?}"
        );
    });
}

#[test]
fn what_a_child_executes_that_is_not_followed_is_not_its_parents() {
    for_each_engine(|engine| {
        let Some(program) = compile("apart", programs::APART) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let ranges = vec!["bad".parse().expect("a range")];
        let options = RecordOptions { follow: false, ranges, ..plain };
        for _ in 0..3 {
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            // The instruction that faults has not retired.
            assert_eq!((recording.ending, tasks(&recording)), (Ending::Signal(11), vec![1]), "{engine:?}");
            assert_eq!(check(&recording.parts[0]), 1, "{engine:?}");
        }
    });
}

#[test]
fn programs_that_are_executed_faster_than_they_are_read_are_parts_in_order() {
    for_each_engine(|engine| {
        let Some(program) = compile("again", programs::AGAIN) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1; 13]), "{engine:?}");
        check_all(&recording);
        let words = recording.parts.iter().map(|part| part.thread.arguments.last().cloned());
        let expected = (0..12).rev().map(|left| Some(left.to_string()));
        assert_eq!(words.skip(1).collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{engine:?}");
    });
}

#[test]
fn a_process_that_cannot_be_forked_is_not_waited_for() {
    for_each_engine(|engine| {
        let Some(program) = compile("no-children", programs::NO_CHILDREN) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        let facts = (recording.ending, tasks(&recording), recording.unreported);
        assert_eq!(facts, (Ending::Exit(0), vec![1], 0), "{engine:?}");
        check_all(&recording);
    });
}

#[test]
fn at_the_limit_all_tasks_are_let_go() {
    for_each_engine(|engine| {
        let Some(program) = compile("let-go", &programs::tasks()) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let all: u64 = record(&plain, &mut |_| {}).expect("it is recorded").parts.iter().map(check).sum();
        for limit in [1, all / 4, all / 2, all * 3 / 4] {
            let options = RecordOptions { limit: Some(limit), ..plain.clone() };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!(recording.ending, Ending::Exit(0), "{limit}");
            // A task that waits in the kernel has executed the instruction that led there.
            let count: u64 = recording.parts.iter().map(check).sum();
            let more = recording.parts.len() as u64;
            assert!((limit..limit + more).contains(&count), "{limit}: {count}");
        }
    });
}

#[test]
fn who_maps_code_after_the_limit_has_no_other_part() {
    for_each_engine(|engine| {
        let Some(program) = compile("limit-maps", programs::MAPS) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let counts: Vec<_> =
            record(&plain, &mut |_| {}).expect("it is recorded").parts.iter().map(check).collect();
        // The main thread's count before it makes the others depends on the C library.
        let (all, others) = (counts.iter().sum::<u64>(), counts.iter().skip(1).sum::<u64>());
        for more in 0..3 {
            let options = RecordOptions { limit: Some(all - others / 4 + more), ..plain.clone() };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1, 2, 3, 4, 5]));
            check_all(&recording);
            for dir in ["2", "task-2/2", "task-3/2", "task-4/2", "task-5/2"] {
                assert!(!options.out.join(dir).exists(), "{dir} was begun");
            }
        }
    });
}

#[test]
fn an_index_says_which_task_is_which_program() {
    for_each_engine(|engine| {
        let Some(program) = compile("index", &programs::tasks()) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        let index = fs::read(program.path("out").join("recording.json")).expect("an index");
        let index: Value = serde_json::from_slice(&index).expect("an index");
        assert_eq!(
            (&index["ended"], &index["ending"]["exit"], &index["limit"]),
            (&"over".into(), &0.into(), &Value::Null)
        );
        let parts = index["parts"].as_array().expect("parts");
        let of = |name: &str| -> Vec<&Value> { parts.iter().map(|part| &part[name]).collect() };
        assert_eq!(of("dir"), [".", "task-2", "task-3", "task-4", "task-5", "task-5/2", "task-6"]);
        // The threads have named themselves before the traced function.
        assert_eq!(of("comm"), ["program", "worker", "worker", "program", "program", "true", "program"]);
        assert_eq!(of("ended"), ["over", "over", "over", "over", "exec", "over", "over"]);
        let own = program.path("program").to_str().expect("a name").to_owned();
        assert_eq!((&parts[0]["exe"], &parts[0]["arguments"]), (&own.clone().into(), &vec![own].into()));
        assert!(parts[5]["exe"].as_str().is_some_and(|exe| exe.ends_with("true")), "{index}");
        assert_eq!(parts[5]["arguments"], Value::from(vec!["true"]));
        // The threads belong to the first task's process, and each child is a process.
        let (pids, tids) = (of("pid"), of("tid"));
        assert!(
            pids[1] == pids[0] && pids[2] == pids[0] && tids[1] != pids[0] && tids[1] != tids[2],
            "{index}"
        );
        assert!(
            pids[3] == tids[3] && pids[3] != pids[0] && pids[4] == pids[5] && pids[6] != pids[5],
            "{index}"
        );
        for (part, entry) in recording.parts.iter().zip(parts) {
            assert_eq!((&entry["task"], &entry["count"]), (&part.task.into(), &part.truth.count().into()));
            let [first, last] = ["tsc_first", "tsc_last"].map(|name| entry[name].as_u64().expect(name));
            assert!(first < last, "{entry}");
            let truth =
                fs::read(program.path("out").join(entry["dir"].as_str().expect("dir")).join("truth.json"));
            let truth: Value = serde_json::from_slice(&truth.expect("a truth")).expect("a truth");
            for name in ["pid", "tid", "comm", "arguments", "ended", "tsc_first", "tsc_last", "count", "hash"]
            {
                assert_eq!(truth[name], entry[name], "{name}");
            }
        }
        // The command reads the whole folder, and uses the errata of the processor that the recording names.
        let decode = Command::new(env!("CARGO_BIN_EXE_pugmark"))
            .args(["decode", "--check", "--json"])
            .arg(program.path("out"))
            .output()
            .expect("it runs");
        let totals: Value = serde_json::from_slice(&decode.stdout).expect("totals");
        assert!(decode.status.success(), "{totals}");
        let decoded = totals["parts"].as_array().expect("parts");
        assert_eq!(decoded.len(), parts.len());
        for (found, entry) in decoded.iter().zip(parts) {
            assert_eq!((&found["cpu"], &found["check"]["equal"]), (&index["cpu"], &true.into()));
            for name in ["dir", "task", "pid", "tid", "comm", "exe"] {
                assert_eq!(found[name], entry[name], "{name}");
            }
        }
    });
}

#[test]
fn only_the_functions_of_the_filter_are_traced() {
    for_each_engine(|engine| {
        let Some(program) = compile("filter", &programs::filter()) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let ranges = vec!["work".parse().expect("a range")];
        let options = RecordOptions { ranges: ranges.clone(), ..plain.clone() };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!(check(&recording.parts[0]), programs::WORK_INSNS);
        let nowhere =
            RecordOptions { ranges: vec!["no_such_function".parse().expect("a range")], ..plain.clone() };
        assert!(record(&nowhere, &mut |_| {}).expect("it runs").parts.is_empty());
        let broadwell = RecordOptions { ranges, profile: profile("broadwell"), ..plain };
        assert!(matches!(record(&broadwell, &mut |_| {}), Err(RecordError::Ranges { most: 0, wanted: 1 })));
    });
}

#[test]
fn the_limit_is_exact_where_a_task_of_the_filter_waits_in_the_kernel() {
    for_each_engine(|engine| {
        let Some(program) = compile("waits", &programs::waits()) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let ranges = ["work", "rest"].map(|name| name.parse().expect("a range")).to_vec();
        let options = RecordOptions { ranges, limit: Some(100), ..plain };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!(recording.ending, Ending::Exit(0));
        let count: u64 = recording.parts.iter().map(check).sum();
        assert_eq!(count, 100, "{engine:?}");
    });
}

#[test]
fn a_system_call_in_front_of_which_a_signal_kills_was_not_made() {
    for_each_engine(|engine| {
        let Some(program) = compile("killed", programs::KILLED) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let options = RecordOptions { ranges: vec!["last".parse().expect("a range")], ..plain };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, check(&recording.parts[0])), (Ending::Signal(libc::SIGTERM), 6));
    });
}

#[test]
fn after_the_limit_the_program_runs_on_alone() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("limit");
        let plain = RecordOptions { out: scratch.path("out"), ..options(engine, ["sh", "-c", "exit 7"]) };
        let options = RecordOptions { limit: Some(1000), ..plain };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, check(&recording.parts[0])), (Ending::Exit(7), 1000));
    });
}

#[test]
fn says_why_there_is_no_recording() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("refused");
        let start = |program: &str, tweak: fn(RecordOptions) -> RecordOptions| {
            let options = tweak(RecordOptions { out: scratch.path("out"), ..options(engine, [program]) });
            record(&options, &mut |_| {}).expect_err(program)
        };
        assert!(matches!(start("/no/such/program", |options| options), RecordError::Start { .. }));
        let no_mtc = |options| RecordOptions { profile: profile("broadwell"), mtc: Some(3), ..options };
        assert!(matches!(start("true", no_mtc), RecordError::Refused { msr: 0x570, .. }));
        let no_place = |options| RecordOptions { out: "/dev/null/out".into(), ..options };
        assert!(matches!(start("true", no_place), RecordError::File { .. }));
    });
}

#[test]
fn a_program_that_does_not_exist_is_named_once() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("missing");
        let options = RecordOptions { out: scratch.path("out"), ..options(engine, ["/nowhere/program"]) };
        let error = anyhow::Error::from(record(&options, &mut |_| {}).unwrap_err());
        assert_eq!(
            format!("{error:#}"),
            "/nowhere/program cannot be started: No such file or directory (os error 2)"
        );
    });
}

#[test]
fn both_engines_make_the_same_trace_of_a_program_that_asks_nothing_of_its_processor() {
    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return;
    }
    let Some(program) = compile_bare("bare", programs::BARE) else { return };
    for (name, tweak) in [
        ("plain", (|options| options) as fn(RecordOptions) -> RecordOptions),
        ("timing", |options| RecordOptions { tsc: true, mtc: Some(3), cyc: Some(0), ..options }),
        ("uncompressed", |options| RecordOptions { ret_compression: false, ..options }),
    ] {
        let [stepped, emulated] = [Engine::Stepping, Engine::Emulator].map(|engine| {
            let plain =
                RecordOptions { out: program.path(name), ..options(engine, [program.path("program")]) };
            let recording = record(&tweak(plain), &mut |_| {}).expect("it is recorded");
            assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(3), 1), "{name} {engine:?}");
            let count = check(&recording.parts[0]);
            (count, recording.parts[0].tsc, fs::read(program.path(name).join("trace.pt")).expect("a trace"))
        });
        assert!(stepped.0 > 10_000, "{name}");
        assert!(stepped == emulated, "{name}: {} and {} instructions", stepped.0, emulated.0);
    }
}

#[test]
fn instructions_that_change_segments_and_flags_are_traced() {
    for_each_engine(|engine| {
        let Some(program) = compile_bare("far", programs::FAR) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(3), 1), "{engine:?}");
        assert_eq!(check(&recording.parts[0]), programs::FAR_INSNS, "{engine:?}");
    });
}

#[test]
fn a_process_that_leaves_its_group_is_recorded_and_the_next_recording_takes_the_place_of_both_parts() {
    for_each_engine(|engine| {
        let (Some(group), Some(single)) =
            (compile_bare("group", programs::GROUP), compile_bare("single", programs::FAR))
        else {
            return;
        };
        let recorded = |program: &Scratch| {
            let plain = options(engine, [program.path("program")]);
            record(&RecordOptions { out: group.path("out"), ..plain }, &mut |_| {}).expect("it is recorded")
        };
        let first = recorded(&group);
        assert_eq!((first.ending, tasks(&first)), (Ending::Exit(5), vec![1, 2]), "{engine:?}");
        check_all(&first);
        let second = recorded(&single);
        assert_eq!((second.ending, tasks(&second)), (Ending::Exit(3), vec![1]), "{engine:?}");
        check_all(&second);
        let left: Vec<bool> = first.parts.iter().map(|part| part.dir.join("trace.pt").exists()).collect();
        assert_eq!(left, [true, false], "{engine:?}");
    });
}

#[test]
fn addresses_are_the_same_each_time_unless_they_are_asked_to_differ() {
    let random = fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap_or_default();
    if random.trim() == "0" {
        println!("skipped: the system does not randomise addresses");
        return;
    }
    let scratch = Scratch::new("aslr");
    let image = |aslr| {
        let plain = options(Engine::Stepping, ["/bin/true"]);
        let options = RecordOptions { out: scratch.path("out"), limit: Some(1), aslr, ..plain };
        record(&options, &mut |_| {}).expect("it is recorded");
        fs::read_to_string(scratch.path("out/image.json")).expect("an image")
    };
    assert!(image(false) == image(false));
    assert!(image(true) != image(true));
}

#[test]
fn what_a_script_executes_is_followed_by_both_engines() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("script");
        let script = scratch.path("script");
        fs::write(&script, "#!/bin/sh\n/bin/true \"$@\"\nexec /bin/true last\n").expect("a file");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("permissions");
        let plain = RecordOptions { out: scratch.path("out"), ..options(engine, ["sh", "-c"]) };
        let mut program = plain.program.clone();
        program.push(format!("{} one 'two three'; exit 5", script.display()).into());
        let options = RecordOptions { program, ..plain };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, &recording.not_followed), (Ending::Exit(5), &vec![]), "{engine:?}");
        check_all(&recording);
        let arguments: Vec<_> = recording.parts.iter().map(|part| part.thread.arguments.join(" ")).collect();
        let script = script.display();
        for expected in [
            format!("/bin/sh {script} one two three"),
            "/bin/true one two three".into(),
            "/bin/true last".into(),
        ] {
            assert!(arguments.contains(&expected), "{engine:?}: {expected} is not among {arguments:?}");
        }
    });
}
