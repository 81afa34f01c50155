//! `pugmark record` as a command: its exit status, its signals, its limit.

use crate::{
    for_each_engine,
    programs::{self, Scratch, compile_bare},
};
use pugmark_recorder::{Engine, emulator_is_installed};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

fn record(scratch: &Scratch, engine: Engine, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command.arg("record").arg("--out").arg(scratch.path("out")).args(["--engine", engine.name()]);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Reads a JSON file of the recording.
fn json(scratch: &Scratch, name: &str) -> Value {
    serde_json::from_slice(&fs::read(scratch.path("out").join(name)).expect(name)).expect(name)
}

#[test]
fn the_exit_status_is_the_programs_or_says_why_there_is_none() {
    let scratch = Scratch::new("status");
    let text = scratch.path("text");
    fs::write(&text, "no program").expect("a file");
    let text = text.to_str().expect("a name");
    for (arguments, status) in [
        (&["--", "true"][..], 0),
        (&["--limit", "1", "--", "sh", "-c", "exit 7"], 7),
        // The first word that is no option is the program, and all after it is the program's.
        (&["--limit", "1", "sh", "-c", "exit 7", "--no-such-option"], 7),
        (&["--limit", "1", "sh", "--no-such-option"], 2),
        (&["--limit", "1", "--", "sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["--limit", "1", "--", "sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["--", "/no/such/program"], 127),
        (&["--", text], 126),
        (&["--", "/"], 126),
        (&["--no-such-option", "--", "true"], 125),
        (&["--profile", "broadwell", "--mtc", "--", "true"], 125),
        (&["--filter", "no_such_function", "--", "true"], 125),
        (&["--out", "/dev/null/out", "--", "true"], 125),
    ] {
        let arguments: Vec<_> = arguments.to_vec();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        command.arg("record").current_dir(scratch.path("")).args(&arguments);
        command.stdin(Stdio::null());
        let output = command.output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
        assert!(!stderr.is_empty(), "{arguments:?}");
    }
    let help = record(&scratch, Engine::Auto, &["--help"]).output().expect("it runs");
    assert_eq!(help.status.code(), Some(0));
}

/// An emulator that is missing, or whose interface is another one, is not used unless it is asked for.
#[test]
fn only_an_emulator_that_can_load_the_plugin_is_chosen() {
    use std::os::unix::fs::PermissionsExt;
    let Some(program) = compile_bare("chosen", programs::FAR) else { return };
    let own = program.path("program");
    for version in [None, Some("4.2.1"), Some("9.0.0"), Some("x")] {
        let tools = program.path(version.unwrap_or("none"));
        fs::create_dir_all(&tools).expect("a folder");
        if let Some(version) = version {
            let fake = tools.join("qemu-x86_64");
            fs::write(&fake, format!("#!/bin/sh\necho qemu-x86_64 version {version}\n")).expect("a file");
            fs::set_permissions(fake, fs::Permissions::from_mode(0o755)).expect("permissions");
        }
        let run = |engine: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
            command
                .args(["record", "--engine", engine, "--out"])
                .arg(program.path("out"))
                .arg("--")
                .arg(&own);
            command.env("PATH", &tools).output().expect("it runs").status.code()
        };
        assert_eq!(run("auto"), Some(3), "{version:?}");
        assert_eq!(json(&program, "truth.json")["count"], programs::FAR_INSNS);
        assert_ne!(run("emulator"), Some(3), "{version:?}");
    }
}

/// Starts to record [`programs::LINES`] and waits until it has written a line.
fn ready(scratch: &Scratch, engine: Engine, arguments: &[&str]) -> (Child, impl BufRead) {
    ready_by(record(scratch, engine, &["--"]), scratch, arguments)
}

/// Does the same by a command that ends where the program's name comes.
fn ready_by(mut command: Command, scratch: &Scratch, arguments: &[&str]) -> (Child, impl BufRead) {
    command.arg(scratch.path("program")).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    // The process that runs the tests may ignore some of these signals, for example because of nohup.
    let take_signals = || {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            // SAFETY: it sets no handler, and it may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: it only sets the default actions.
    unsafe { command.pre_exec(take_signals) };
    let mut child = command.spawn().expect("it runs");
    child.stdin.as_mut().expect("a pipe").write_all(b"ready\n").expect("a line");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    // The pipe stays open, because a write to a closed pipe would send a signal to the program.
    (child, out)
}

fn send(child: &Child, signal: i32) {
    // SAFETY: it takes numbers; the child was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Waits for the end of a process, without closing its input, at whose end the recorded program would end by itself.
/// Returns its exit status; `None` if it does not end, which is what a lost signal leads to.
fn status(child: &mut Child) -> Option<i32> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child");
    child.wait().expect("it was killed");
    None
}

#[test]
fn signals_end_the_recording_whole_and_reach_the_program() {
    for_each_engine(|engine| {
        let Some(scratch) = compile_bare("signals", programs::LINES) else { return };
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            // The program waits in the kernel, as most programs do most of the time.
            let (mut child, _out) = ready(&scratch, engine, &[]);
            send(&child, signal);
            assert_eq!(status(&mut child), Some(128 + signal), "{engine:?}");
            let (index, truth) = (json(&scratch, "recording.json"), json(&scratch, "truth.json"));
            let ended = format!("signal {signal}");
            assert_eq!(
                (&index["ended"], &index["ending"]["signal"]),
                (&ended.clone().into(), &signal.into())
            );
            assert_eq!((&truth["ended"], &index["parts"][0]["count"]), (&ended.into(), &truth["count"]));
            let trace = fs::metadata(scratch.path("out").join("trace.pt")).expect("a trace").len();
            assert_eq!(truth["bytes"], trace);
            assert!(scratch.path("out").join("image.json").exists() && trace > 0);
        }
    });
}

#[test]
fn signals_reach_a_program_that_is_counted_and_the_counts_are_there() {
    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return;
    }
    let Some(scratch) = compile_bare("counted-signals", programs::LINES) else { return };
    let stat = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        command.args(["stat", "--json", "--output"]).arg(scratch.path("counts.json")).arg("--");
        command
    };
    let counts = || -> Value {
        serde_json::from_slice(&fs::read(scratch.path("counts.json")).expect("counts")).expect("JSON")
    };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let (mut child, _out) = ready(&scratch, Engine::Emulator, &[]);
        send(&child, signal);
        assert_eq!(status(&mut child), Some(128 + signal));
        let (mut child, _out) = ready_by(stat(), &scratch, &[]);
        send(&child, signal);
        assert_eq!(status(&mut child), Some(128 + signal));
        let counts = counts();
        assert_eq!(counts["ending"]["signal"], signal);
        // The signal can come before the program waits again.
        let [counted, recorded] = [&counts["instructions"], &json(&scratch, "truth.json")["count"]]
            .map(|count| count.as_u64().expect("a number"));
        assert!(counted > 20 && counted.abs_diff(recorded) < 8, "{counted} {recorded}");
    }
    // One that ignores the signal is counted to its end.
    let (mut child, _out) = ready_by(stat(), &scratch, &["ignore"]);
    send(&child, libc::SIGTERM);
    child.stdin.take().expect("a pipe").write_all(b"go on\n").expect("it reads");
    assert_eq!((status(&mut child), &counts()["ending"]["exit"]), (Some(3), &3.into()));
}

#[test]
fn what_was_executed_before_the_signal_is_recorded_though_it_was_not_read_yet() {
    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return;
    }
    let Some(scratch) = compile_bare("unread", programs::LINES) else { return };
    let (mut child, mut out) = ready(&scratch, Engine::Emulator, &[]);
    // The recorder reads nothing while it is stopped; the program goes on.
    send(&child, libc::SIGSTOP);
    let rounds = 1000;
    for _ in 0..rounds {
        child.stdin.as_mut().expect("a pipe").write_all(b"again\n").expect("a line");
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "again\n");
    }
    send(&child, libc::SIGTERM);
    send(&child, libc::SIGCONT);
    assert_eq!(status(&mut child), Some(128 + libc::SIGTERM));
    // A round has two system calls and a branch at least.
    let count = json(&scratch, "truth.json")["count"].as_u64().expect("a number");
    assert!(count > 3 * rounds, "{count} instructions");
}

#[test]
fn a_program_that_ignores_the_signal_goes_on_alone() {
    for_each_engine(|engine| {
        let Some(scratch) = compile_bare("ignored", programs::LINES) else { return };
        let (mut child, _out) = ready(&scratch, engine, &["ignore"]);
        send(&child, libc::SIGTERM);
        child.stdin.take().expect("a pipe").write_all(b"go on\n").expect("it reads");
        assert_eq!(status(&mut child), Some(3), "{engine:?}");
        let index = json(&scratch, "recording.json");
        assert_eq!((&index["ended"], &index["ending"]["exit"]), (&"signal 15".into(), &3.into()));
    });
}

#[test]
fn a_limit_that_was_reached_is_said_and_recorded() {
    let scratch = Scratch::new("limit-command");
    let run = |limit: &str| {
        let output = record(&scratch, Engine::Auto, &["--limit", limit, "--", "false"]).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    let stderr = run("1000");
    assert!(stderr.contains("the limit of 1000 instructions was reached"), "{stderr}");
    assert!(stderr.contains("false: 1000 instructions, hash 0x"), "{stderr}");
    let (index, truth) = (json(&scratch, "recording.json"), json(&scratch, "truth.json"));
    assert_eq!(
        (&index["limit"], &index["ended"], &truth["ended"]),
        (&1000.into(), &"limit".into(), &"limit".into())
    );
    assert_eq!(truth["count"], 1000);
    // A limit that was not reached is not reported.
    let stderr = run("1000000000");
    assert!(!stderr.contains("the limit of") && !stderr.contains("warning"), "{stderr}");
    let (index, truth) = (json(&scratch, "recording.json"), json(&scratch, "truth.json"));
    assert_eq!(
        (&index["limit"], &index["ended"], &truth["ended"]),
        (&1_000_000_000.into(), &"over".into(), &"over".into())
    );
}
