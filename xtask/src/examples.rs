//! A test: each public module of the crates that others embed opens with an example.

use pugmark_harness::images::workspace;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 3] = ["decoder-core", "kernel", "pfm"];

/// Returns the modules at and below a file that have no example, and the number of all modules there.
fn without_example(file: &Path) -> (Vec<PathBuf>, usize) {
    let text = fs::read_to_string(file).unwrap();
    let mut found: Vec<_> = (!has_example(&text)).then(|| file.to_owned()).into_iter().collect();
    let mut modules = 1;
    let folder = match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "mod") => file.parent().unwrap().to_owned(),
        _ => file.with_extension(""),
    };
    let public = text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    for name in public {
        let places = [folder.join(name).with_extension("rs"), folder.join(name).join("mod.rs")];
        let place = places.iter().find(|place| place.exists()).expect("a module has a file");
        let (below, number) = without_example(place);
        found.extend(below);
        modules += number;
    }
    (found, modules)
}

/// Returns true if a module's documentation has code that is tested.
fn has_example(text: &str) -> bool {
    let is_head = |line: &&str| line.starts_with("//!") || line.starts_with("#!") || line.is_empty();
    let mut fences = text.lines().take_while(is_head).filter_map(|line| line.strip_prefix("//! ```"));
    // Every second fence closes what the one before it has opened.
    let mut opening = std::iter::from_fn(|| fences.next().inspect(|_| _ = fences.next()));
    opening.any(|language| ["", "no_run"].contains(&language))
}

#[test]
fn each_public_module_opens_with_an_example() {
    for name in CRATES {
        let (missing, modules) = without_example(&workspace().join(name).join("src/lib.rs"));
        assert!(missing.is_empty(), "no example: {missing:?}");
        assert!(modules > 2, "{name} has {modules} public modules");
    }
}

#[test]
fn an_example_is_code_that_is_tested() {
    assert!(has_example("//! A.\n//!\n//! ```\n//! f();\n//! ```\n\nfn f() {}\n"));
    assert!(has_example(
        "#![no_std]\n\n//! A.\n//!\n//! ```text\n//! a -> b\n//! ```\n//!\n//! ```no_run\n//! ```\n"
    ));
    assert!(!has_example("//! A.\n//!\n//! ```text\n//! a -> b\n//! ```\n"));
    assert!(!has_example("//! A.\n\n/// ```\n/// f();\n/// ```\nfn f() {}\n"));
}
