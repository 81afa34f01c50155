//! The example kernels boot, and their output is right.

use pugmark_harness::esp::missing_firmware;
use pugmark_harness::examples::{boot_by_grub, check, check_thread, machine, run};
use pugmark_harness::images::{BY_FIRMWARE, EXAMPLES, Images, build_example, missing_for};
use pugmark_harness::report::End;
use std::fs;
use std::path::Path;
use std::process::Command;

fn is_right(name: &str) {
    let images = Images::build().unwrap();
    let image = build_example(name).unwrap();
    let outcome = run(&images, name, &image, "", |_| {}).unwrap();
    check(name, &image, &outcome).unwrap();
}

#[test]
fn snapshot_prints_the_call_tree_of_a_function() {
    is_right("snapshot");
}

#[test]
fn panic_prints_the_last_hundred_functions_and_the_last_branches() {
    is_right("panic");
}

#[test]
fn live_decodes_what_it_executes_while_it_executes_it() {
    is_right("live");
}

#[test]
fn lossless_decodes_all_that_four_processors_execute_while_they_execute_it() {
    is_right("lossless");
}

#[test]
fn fuzz_target_finds_the_inputs_that_reach_new_edges() {
    is_right("fuzz-target");
}

#[test]
fn threads_decodes_what_one_thread_executes_and_nothing_else() {
    is_right("threads");
}

#[test]
fn threads_decodes_all_that_its_thread_executes_of_the_program() {
    let images = Images::build().unwrap();
    let image = build_example("threads").unwrap();
    let outcome = machine(&images, "threads", &image, "step=always clock=100").run(|_| {}).unwrap();
    check_thread(&image, &outcome).unwrap();
}

#[test]
fn async_attributes_what_it_executes_to_tasks_while_it_executes_it() {
    is_right("async");
}

#[test]
fn uefi_firmware_starts_a_kernel_that_prints_the_call_tree_of_a_function() {
    is_right_by_firmware("uefi");
}

#[test]
fn limine_boots_a_kernel_that_prints_the_call_tree_of_a_function() {
    is_right_by_firmware("limine");
}

fn is_right_by_firmware(name: &str) {
    match missing_for(name) {
        None => is_right(name),
        Some(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn a_kernel_in_c_traces_a_function_and_decodes_what_it_executes_while_it_executes_it() {
    is_right("c");
}

#[test]
fn a_kernel_in_c_is_told_why_a_processor_without_intel_pt_traces_nothing() {
    let images = Images::build().unwrap();
    let image = build_example("c").unwrap();
    let outcome = machine(&images, "c", &image, "profile=nehalem").run(|_| {}).unwrap();
    let reason = "no Intel PT here: absent: CPUID.07H.0:EBX[25] (Intel Processor Trace) is not there";
    assert_eq!(outcome.transcript.runs[0].end, Some(End::Fail(reason.into())));
}

/// Boots examples by GRUB, with the BIOS or UEFI firmware below it.
fn are_right_by_grub(names: &[&str], uefi: bool) {
    if let Err(missing) = Command::new("grub-mkrescue").arg("--version").output() {
        return println!("skipped: grub-mkrescue: {missing}");
    }
    let images = Images::build().unwrap();
    for name in names {
        let image = build_example(name).unwrap();
        let outcome = boot_by_grub(&images, name, &image, uefi, |_| {}).unwrap();
        check(name, &image, &outcome).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

#[test]
fn grub_boots_each_example_from_a_cd_and_its_output_is_right() {
    are_right_by_grub(EXAMPLES.strip_suffix(&BY_FIRMWARE).unwrap(), false);
}

#[test]
fn grub_boots_examples_on_uefi_firmware_and_their_output_is_right() {
    match missing_firmware() {
        None => are_right_by_grub(&["live", "panic", "c"], true),
        Some(reason) => println!("skipped: {reason}"),
    }
}

/// Counts the lines of an example's file without comments, empty lines, `use`, `#include` and the code that is traced.
fn lines(source: &str) -> usize {
    let own = source.split("\n// The traced ").next().unwrap_or_default();
    let mut in_use = false;
    let counts = own.lines().filter(|line| {
        in_use |= line.starts_with("use ");
        let used = in_use;
        in_use &= !line.ends_with(';');
        let line = line.trim();
        !used
            && !line.is_empty()
            && !line.starts_with("//")
            && !line.starts_with("#![")
            && !line.starts_with("#include ")
    });
    counts.count()
}

#[test]
fn the_examples_are_as_short_as_their_table_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let table = fs::read_to_string(folder.join("README.md")).unwrap();
    for (name, most) in EXAMPLES.into_iter().zip([30, 150, 60, 130, 100, 100, 120, 80, 30, 30]) {
        let file = if name == "c" { "src/main.c" } else { "src/main.rs" };
        let lines = lines(&fs::read_to_string(folder.join(name).join(file)).unwrap());
        assert!(lines <= most, "{name} has {lines} lines");
        let row = table.lines().find(|line| line.starts_with(&format!("| [`{name}`]"))).unwrap();
        assert!(row.ends_with(&format!("| {lines} |")), "{name} has {lines} lines: {row}");
    }
}
