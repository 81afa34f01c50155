//! The monitor's truth equals QEMU's own execution log.

use pugmark_qemu_tests::images::{Images, build_foreign_kernel};
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::patience::Patience;
use pugmark_qemu_tests::protocol::Run;
use pugmark_qemu_tests::scratch::Scratch;
use pugmark_qemu_tests::{exec_log, matrix};
use std::thread;
use std::time::Duration;

/// Where the guest runs code: in its RAM, which ends where the monitor begins, and where it maps pages of its own.
const GUEST: [std::ops::Range<u64>; 2] = [0x10_0000..0x1000_0000, 0x80_0000_0000..0x100_0000_0000];

/// Time that passes with the instructions: QEMU is slow while it logs, and the timer must not be faster for it.
const VIRTUAL_TIME: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// A machine that logs is slow: it boots for half a minute before the first line.
const PATIENCE: Patience = Patience { quiet: Duration::from_secs(900), whole: Duration::from_secs(3600) };

/// How many instructions may be interrupted when they were begun and not finished.
const INTERRUPTED: u64 = 3;

/// Workloads that are held against one log: the log of everything would be gigabytes.
const IN_A_LOG: usize = 7;

/// Machines that run side by side, each of which keeps one processor busy.
const AT_A_TIME: usize = 2;

#[test]
fn the_truth_is_what_qemu_executed() {
    let images = Images::build().unwrap();
    let names: Vec<&str> = matrix::WORKLOADS.iter().map(|workload| workload.name).collect();
    let logs: Vec<&[&str]> = names.chunks(IN_A_LOG).collect();
    let mut wrong = Vec::new();
    for logs in logs.chunks(AT_A_TIME) {
        thread::scope(|scope| {
            let machines: Vec<_> =
                logs.iter().map(|names| scope.spawn(|| disagreements(&images, names))).collect();
            machines.into_iter().for_each(|machine| wrong.extend(machine.join().unwrap()));
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs these workloads while QEMU logs what it executes, and says where that is not the truth.
fn disagreements(images: &Images, names: &[&str]) -> Vec<String> {
    let wrmsr = images.guest_symbols().unwrap().address("pugmark_wrmsr_access").unwrap();
    let scratch = Scratch::new().unwrap();
    let log_file = scratch.file("log");
    let command_line = format!("no-decode only={}", names.join(","));
    let outcome = Machine::on_monitor(images, "profile=sapphire-rapids", &command_line)
        .arguments(exec_log::arguments(&log_file, &GUEST))
        .arguments(VIRTUAL_TIME)
        .patience(PATIENCE)
        .run(|_| {})
        .unwrap();
    assert_eq!(outcome.transcript.runs.len(), names.len());
    let log = exec_log::read(&log_file, 0).unwrap();
    let compare = |run: &Run| {
        let Some(session) = run.session else {
            // Nothing was logged of what the driver declined.
            return run.refusal.is_none().then(|| format!("{}: was not traced", run.name));
        };
        match exec_log::compare(&log, outcome.truth.session(session), wrmsr) {
            Ok(agreement) => {
                println!("{}: {agreement:?}", run.name);
                let due = unfinished(&run.name);
                let off = agreement.unfinished.abs_diff(due);
                (off > INTERRUPTED)
                    .then(|| format!("{}: {agreement:?}, where {due} are unfinished", run.name))
            }
            Err(error) => Some(format!("{}: {error:#}", run.name)),
        }
    };
    outcome.transcript.runs.iter().filter_map(compare).collect()
}

/// Instructions of a workload that fault: the log has them, the truth has not.
fn unfinished(workload: &str) -> u64 {
    match workload {
        "exceptions" | "events" => 78,
        _ => 0,
    }
}

/// Each processor's truth is what that processor executed, while others execute the same.
#[test]
fn the_truth_of_each_processor_is_what_it_executed() {
    /// The first session of the kernel's that has a processor, and how many there are.
    const SESSIONS: std::ops::Range<u16> = 10..14;
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let scratch = Scratch::new().unwrap();
    let log_file = scratch.file("log");
    let outcome = Machine::kernel_on_monitor(&images, &kernel, "profile=skylake", "processors=4")
        .processors(4)
        .arguments(exec_log::arguments(&log_file, &GUEST[..1]))
        .patience(PATIENCE)
        .run(|_| {})
        .unwrap();
    for session in SESSIONS {
        let truth = outcome.truth.session(session);
        let processor = truth.first().map(|record| record.cpu).unwrap();
        let log = exec_log::read(&log_file, processor).unwrap();
        // No instruction's address: tracing is not switched off in between.
        let agreement = exec_log::compare(&log, truth, u64::MAX).unwrap();
        // Nothing faults there.
        assert!(agreement.unfinished <= INTERRUPTED, "processor {processor}: {agreement:?}");
    }
}
