//! Intel PT and the Branch Trace Store tell of the same branches.

use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::{Machine, Outcome};
use pugmark_qemu_tests::{agreement, branch_matrix, matrix};
use std::time::Duration;

const PROFILE: &str = "skylake";

/// Time that passes with the instructions: two runs do the same.
const VIRTUAL_TIME: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// What does the same whenever the interrupts of the tracing itself come. None of these has another one, and none looks
/// for a place in the heap, which has other holes where the other source was set up.
const WORKLOADS: [&str; 9] = [
    "recursion",
    "sort",
    "dispatch",
    "interpreter",
    "strings",
    "exceptions",
    "shadows",
    "syscall",
    "user-interrupt",
];

/// Branches of the driver's, which starts and stops the two otherwise,
const DRIVER: usize = 60;
/// and instructions.
const DRIVER_INSTRUCTIONS: usize = 400;

#[test]
fn two_runs_agree_branch_by_branch() {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let run = |boot: &matrix::Boot| -> Outcome {
        Machine::on_monitor(&images, &boot.monitor_options, &boot.command_line)
            .arguments(VIRTUAL_TIME)
            .deadline(Duration::from_secs(240))
            .run(|_| {})
            .unwrap()
    };
    for name in WORKLOADS {
        // A machine for each, so that what ran before makes no difference.
        let packets = run(&matrix::boots(PROFILE, Some(name))[0]);
        let records = run(&branch_matrix::boot(PROFILE, Some(name)));
        let (by_packets, by_records) = (&packets.transcript.runs[0], &records.transcript.runs[0]);
        // What each decoded is what ran there: both truths stand for both decodes.
        matrix::check(by_packets, PROFILE, &packets.truth, &symbols).unwrap();
        branch_matrix::check(by_records, PROFILE, &records.truth, &symbols).unwrap();
        let instructions = packets.truth.session(by_packets.session.unwrap());
        let instructions = by_packets.filter.traced(instructions, &symbols).unwrap();
        let branches = records.truth.branches(by_records.session.unwrap());
        let found = agreement::longest(&instructions, branches).unwrap();
        let (agreed, covered) = (found.branches.len(), found.instructions.len());
        let (taken, retired) = (branches.len(), instructions.len());
        let what = format!("{name}: {agreed} branches of {taken}, {covered} instructions of {retired}");
        println!("{what}");
        assert!(agreed + DRIVER >= taken && covered + DRIVER_INSTRUCTIONS >= retired, "{what}");
    }
}
