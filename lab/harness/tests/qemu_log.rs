//! The monitor's truth equals QEMU's own execution log.

use pugmark_harness::exec_log::{self, Lines};
use pugmark_harness::images::{Images, build_foreign_kernel};
use pugmark_harness::machine::Machine;
use pugmark_harness::qemu_log::{Agreement, LoggedGuest, branches, compare};
use pugmark_harness::scratch::Scratch;
use pugmark_harness::time_limits::TimeLimits;
use pugmark_harness::workloads::WORKLOADS;
use std::thread;
use std::time::Duration;

/// The guest's code: in its RAM, which ends where the monitor begins, and in pages that it maps elsewhere.
const GUEST: [std::ops::Range<u64>; 2] = [0x10_0000..0x1000_0000, 0x80_0000_0000..0x100_0000_0000];

/// Time advances with the instructions, four nanoseconds for each, including the monitor's. QEMU is slow while it logs,
/// and without this the timer would seem faster: between two of its interrupts the guest executes as much as without a
/// log.
const VIRTUAL_TIME: [&str; 2] = ["-icount", "shift=2,sleep=off"];

/// A machine that logs is slow: it boots for half a minute before its first line.
const TIME_LIMITS: TimeLimits =
    TimeLimits { no_progress: Duration::from_secs(900), total: Duration::from_secs(3600) };

/// Workloads that share one log; a log of all workloads would be a gigabyte.
const IN_A_LOG: usize = 8;

/// Number of machines that run at the same time; each keeps one processor busy.
const AT_A_TIME: usize = 2;

/// A machine that is compared with its log: the profile, the guest's words before the workloads, and the workloads.
type Job<'a> = (&'a str, &'a str, &'a [&'a str]);

/// Workloads in which other tracing hardware makes the guest execute more.
const OTHERS: [Job<'_>; 3] = [
    ("nehalem", "source=bts", &["exceptions", "syscall"]),
    ("broadwell", "", &["user-interrupt", "strings"]),
    ("zen4", "source=counters", &["exceptions"]),
];

#[test]
fn the_truth_is_what_qemu_executed() {
    let images = Images::build().unwrap();
    let names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
    let all = names.chunks(IN_A_LOG).map(|names| ("sapphire-rapids", "", names));
    let jobs: Vec<Job<'_>> = all.chain(OTHERS).collect();
    let mut wrong = Vec::new();
    for jobs in jobs.chunks(AT_A_TIME) {
        thread::scope(|scope| {
            let machines: Vec<_> =
                jobs.iter().map(|job| scope.spawn(|| disagreements(&images, job))).collect();
            machines.into_iter().for_each(|machine| wrong.extend(machine.join().unwrap()));
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs these workloads while QEMU logs its execution, and returns the differences from the truth.
fn disagreements(images: &Images, &(profile, words, names): &Job<'_>) -> Vec<String> {
    let symbols = images.guest_symbols().unwrap();
    let address = |name| symbols.address(name).unwrap();
    let guest = LoggedGuest {
        wrmsr: address("pugmark_wrmsr_access"),
        stubs: address("trap_stubs"),
        only_programs: false,
    };
    let scratch = Scratch::new().unwrap();
    let options = format!("profile={profile}");
    let command_line = format!("no-decode {words} only={}", names.join(","));
    let outcome = Machine::on_monitor(images, &options, &command_line)
        .arguments(exec_log::arguments(scratch.folder(), &GUEST))
        .arguments(VIRTUAL_TIME)
        .time_limits(TIME_LIMITS)
        .run(|_| {})
        .unwrap();
    assert_eq!(outcome.transcript.runs.len(), names.len());
    let log = exec_log::read(scratch.folder(), 0, Lines::Blocks).unwrap();
    let untraced =
        outcome.transcript.runs.iter().filter(|run| run.session.is_none() && run.refusal.is_none());
    let untraced = untraced.map(|run| format!("{profile} {}: was not traced", run.name));
    let sessions = outcome.truth.sessions();
    assert!(!sessions.is_empty(), "{profile} {words}: nothing was logged");
    let compare = |&session: &u16| {
        let run = outcome.transcript.runs.iter().find(|run| run.session == Some(session));
        let name = run.map_or("", |run| run.name.as_str());
        let only_programs = words.is_empty() && run.is_some_and(|run| run.filter.cpl == Some(3));
        let guest = LoggedGuest { only_programs, ..guest };
        let (truth, taken) = (outcome.truth.session(session), outcome.truth.branches(session));
        let branches = if taken.is_empty() { Ok(0) } else { branches::compare(&log, truth, taken, guest) };
        match compare(&log, truth, guest).and_then(|agreement| Ok((agreement, branches?))) {
            Ok((agreement, branches)) => {
                println!("{profile} {words} {session} {name}: {agreement:?}, {branches} branches");
                let records = words.contains("bts") && branches == 0;
                records.then(|| format!("{profile} {words} {session} {name}: no branch was logged"))
            }
            Err(error) => Some(format!("{profile} {words} {session} {name}: {error:#}")),
        }
    };
    untraced.chain(sessions.iter().filter_map(compare)).collect()
}

/// Checks that each processor's truth is its own execution, while others execute the same code.
#[test]
fn the_truth_of_each_processor_is_what_it_executed() {
    /// The sessions in which the kernel's processors trace, one for each.
    const SESSIONS: std::ops::Range<u16> = 10..14;
    // These are no instruction's addresses: tracing is not switched off in between, and nothing interrupts.
    let guest = LoggedGuest { wrmsr: u64::MAX, stubs: u64::MAX, only_programs: false };
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let scratch = Scratch::new().unwrap();
    let outcome = Machine::kernel_on_monitor(&images, &kernel, "profile=skylake", "processors=4")
        .processors(4)
        .singly()
        .unwrap()
        .arguments(exec_log::arguments(scratch.folder(), &GUEST[..1]))
        .time_limits(TIME_LIMITS)
        .run(|_| {})
        .unwrap();
    for session in SESSIONS {
        let truth = outcome.truth.session(session);
        let processor = truth.first().map(|record| record.cpu).unwrap();
        let log = exec_log::read(scratch.folder(), processor, Lines::Instructions).unwrap();
        let Agreement { equal, .. } = compare(&log, truth, guest).unwrap();
        assert!(equal > 500, "processor {processor}: {equal} instructions");
    }
}
