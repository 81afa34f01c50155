//! The kernel on a machine without the monitor: no tracing hardware, and it says so.

use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::matrix::WORKLOADS;
use pugmark_qemu_tests::protocol::End;

#[test]
fn without_hardware_each_workload_runs_and_the_driver_names_the_missing_bit() {
    let images = Images::build().unwrap();
    for (command_line, bit) in [
        ("", "CPUID.07H.0:EBX[25]"),
        ("source=bts", "absent: not a processor of Intel's"),
        ("source=pebs", "absent: not a processor of Intel's"),
        ("source=lbr", "absent: "),
    ] {
        let outcome = Machine::plain(&images.guest, command_line).run(|_| {}).unwrap();
        for run in &outcome.transcript.runs {
            assert_eq!(run.end, Some(End::Ok), "{}", run.name);
            let refusal = run.refusal.as_deref().unwrap_or_default();
            assert!(refusal.starts_with(bit), "{}: {refusal:?}", run.name);
            assert!(run.traces_nothing(), "{}", run.name);
        }
        assert_eq!(outcome.transcript.runs.len(), WORKLOADS.len());
        assert_eq!(outcome.transcript.done, Some((WORKLOADS.len() as u64, 0)));
    }
}
