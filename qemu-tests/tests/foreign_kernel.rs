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
    assert!(ends.len() >= 2, "{ends:?}");
    assert!(ends.iter().all(|(_, end)| *end == Some(End::Ok)), "{ends:?}");
}
