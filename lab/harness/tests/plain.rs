//! The kernel on a machine without the monitor: there is no tracing hardware, and the kernel reports that.

use pugmark_harness::images::Images;
use pugmark_harness::machine::Machine;
use pugmark_harness::report::End;
use pugmark_harness::time_limits::TimeLimits;
use pugmark_harness::workloads::WORKLOADS;
use pugmark_protocol::Done;
use std::time::Duration;

#[test]
fn without_hardware_each_workload_runs_and_the_driver_names_the_missing_bit() {
    let images = Images::build().unwrap();
    for (command_line, bit) in [
        ("", "absent: CPUID.07H.0:EBX[25]"),
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
        assert_eq!(outcome.transcript.done, Some(Done { passed: WORKLOADS.len() as u64, failed: 0 }));
    }
}

#[test]
fn a_stack_that_overflows_is_a_page_fault_below_it() {
    let images = Images::build().unwrap();
    for (stack, processors) in [("boot", 1), ("nmi", 1), ("further", 2)] {
        let command_line = format!("overflow={stack} processors={processors}");
        let said = match Machine::plain(&images.guest, &command_line).processors(processors).run(|_| {}) {
            Ok(outcome) => format!("{:?}", outcome.transcript),
            Err(error) => format!("{error:#}"),
        };
        assert!(said.contains("a stack has overflowed: 0x"), "{stack}: {said}");
    }
}

#[test]
fn the_monitor_says_what_the_machine_lacks() {
    let images = Images::build().unwrap();
    for processor in ["max,-svm", "max,-npt", "max,-svm,-npt"] {
        let machine = Machine::on_monitor(&images, "profile=skylake", "").arguments(["-cpu", processor]);
        let error = machine.run(|_| {}).unwrap_err().to_string();
        let reason = "the processor has no SVM with nested paging: QEMU needs -cpu max or +svm,+npt";
        assert!(error.contains(reason), "{processor}: {error}");
    }
}

#[test]
fn a_machine_that_does_not_get_on_is_given_up() {
    let images = Images::build().unwrap();
    let time_limits = TimeLimits { no_progress: Duration::from_secs(1), ..TimeLimits::default() };
    // With -S, QEMU does not let the processor run.
    let machines = [Machine::plain(&images.guest, ""), Machine::on_monitor(&images, "profile=skylake", "")];
    for machine in machines {
        let error = machine.arguments(["-S"]).time_limits(time_limits).run(|_| {}).unwrap_err();
        assert!(error.to_string().starts_with("no line and no retired instruction for 1s"), "{error:#}");
    }
}
