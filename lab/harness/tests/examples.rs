//! The example kernels boot, and their output is right.

use pugmark_harness::examples::{check, machine};
use pugmark_harness::images::{EXAMPLES, Images, build_example};
use std::fs;
use std::path::Path;

fn is_right(name: &str) {
    let images = Images::build().unwrap();
    let image = build_example(name).unwrap();
    let outcome = machine(&images, name, &image, "").run(|_| {}).unwrap();
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

/// Counts the lines of an example's file without comments, empty lines, `use` and the code that is traced.
fn lines(source: &str) -> usize {
    let own = source.split("\n// The traced ").next().unwrap_or_default();
    let mut in_use = false;
    let counts = own.lines().filter(|line| {
        in_use |= line.starts_with("use ");
        let used = in_use;
        in_use &= !line.ends_with(';');
        let line = line.trim();
        !used && !line.is_empty() && !line.starts_with("//") && !line.starts_with("#![")
    });
    counts.count()
}

#[test]
fn the_examples_are_as_short_as_their_table_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let table = fs::read_to_string(folder.join("README.md")).unwrap();
    for (name, most) in EXAMPLES.into_iter().zip([30, 150, 60, 130, 100]) {
        let lines = lines(&fs::read_to_string(folder.join(name).join("src/main.rs")).unwrap());
        assert!(lines <= most, "{name} has {lines} lines");
        let row = table.lines().find(|line| line.starts_with(&format!("| [`{name}`]"))).unwrap();
        assert!(row.ends_with(&format!("| {lines} |")), "{name} has {lines} lines: {row}");
    }
}
