//! What can be read at a glance: no comment is wider than a screen, no file longer than a reader's patience.

use pugmark_qemu_tests::images::workspace;
use std::fs;

use crate::names::{CRATES, sources};

/// Where the other sources are.
const OTHERS: [&str; 14] = [
    "capi/tests",
    "decoder-core/tests",
    "examples/fuzz-target/src",
    "examples/lossless/src",
    "examples/machine/src",
    "examples/panic/src",
    "examples/snapshot/src",
    "fuzz/tests",
    "kernel/tests",
    "pfm/tests",
    "qemu-tests/foreign-kernel/src",
    "qemu-tests/tests",
    "tools/tests",
    "virt/program/tests",
];

/// In columns; rustfmt holds code itself, but neither comments nor texts.
const WIDEST: usize = 120;
/// In lines.
const LONGEST: usize = 600;

/// Whether a line is a comment that could be broken: no row of a table, and no code in documentation.
fn is_breakable_comment(line: &str) -> bool {
    let Some(text) = line.trim_start().strip_prefix("//") else { return false };
    let text = text.trim_start_matches(['/', '!']).trim_start();
    !text.starts_with('|') && !text.starts_with("//")
}

/// The numbers of the comment lines that are too wide.
fn too_wide(text: &str) -> Vec<usize> {
    let lines = (1..).zip(text.lines());
    lines
        .filter(|(_, line)| line.chars().count() > WIDEST && is_breakable_comment(line))
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn no_comment_is_too_wide_and_no_file_too_long() {
    let mut found = vec![];
    for path in CRATES.iter().chain(&OTHERS).flat_map(|folder| sources(&workspace().join(folder))) {
        let text = fs::read_to_string(&path).expect("a source");
        let name = path.strip_prefix(workspace()).expect("in the workspace").display();
        found.extend(too_wide(&text).iter().map(|line| format!("{name}:{line} is too wide")));
        if text.lines().count() > LONGEST {
            found.push(format!("{name} is too long"));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn wide_comments_are_found_and_wide_tables_are_not() {
    let wide = "x ".repeat(60);
    for (line, is_found) in [
        (format!("// {wide}"), true),
        (format!("    /// {wide}"), true),
        (format!("//! {wide}"), true),
        (format!("/// | {wide} |"), false),
        (format!("//! // {wide}"), false),
        (format!("let x = \"{wide}\";"), false),
        (format!("// {}", &wide[..117]), false),
        (format!("// {}", &wide[..116]), false),
        (format!("// {}x", &wide[..117]), true),
    ] {
        assert_eq!(!too_wide(&line).is_empty(), is_found, "{line}");
    }
}
