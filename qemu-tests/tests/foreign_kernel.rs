//! A kernel from another source tree boots on the monitor and meets a processor with PT.

use pugmark_qemu_tests::images::{Images, build_foreign_kernel};
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::protocol::End;

#[test]
fn a_kernel_that_is_not_ours_finds_pt_and_gets_gp_on_a_reserved_bit() {
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let outcome = Machine::kernel_on_monitor(&images, &kernel, "profile=skylake", "").run(|_| {}).unwrap();
    let ends: Vec<_> =
        outcome.transcript.runs.iter().map(|run| (run.name.as_str(), run.end.clone())).collect();
    let expected = ["boot", "cpuid", "protection", "work", "traps", "traps-in-session"];
    let expected = expected.map(|name| format!("foreign-{name}"));
    assert_eq!(ends, expected.each_ref().map(|name| (name.as_str(), Some(End::Ok))));
}
