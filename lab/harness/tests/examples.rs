//! The example kernels boot, and their output is right.

use pugmark_harness::examples::{check, machine};
use pugmark_harness::images::{Images, build_example};

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
fn lossless_decodes_all_that_four_processors_execute_while_they_execute_it() {
    is_right("lossless");
}

#[test]
fn fuzz_target_finds_the_inputs_that_reach_new_edges() {
    is_right("fuzz-target");
}
