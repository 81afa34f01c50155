//! Compares the table of functions in README.md with both libraries.

use crate::{library::our_file, release::RELEASES};
use std::{collections::BTreeSet, path::Path, process::Command};

/// Returns the rows of the table: the function, and its tests; none if the function is missing.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    include_str!("../../README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `pt_"))
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_end_matches('`')).collect();
            let tests = cells[1].split(", ").map(|test| test.trim_matches('`'));
            (cells[0], tests.filter(|test| !test.is_empty()).collect())
        })
        .collect()
}

/// Returns the names of a library's functions, without `pt_`.
fn exported(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix("pt_"));
    names.map(Into::into).collect()
}

#[test]
fn the_table_lists_all_functions_and_those_with_a_test_are_there() {
    if Command::new("nm").arg("--version").output().is_err() {
        println!("skipped: nm is not installed");
        return;
    }
    let rows = rows();
    let has: BTreeSet<String> =
        rows.iter().filter(|(_, tests)| !tests.is_empty()).map(|(name, _)| (*name).into()).collect();
    assert_eq!(exported(&our_file()), has);
    assert_eq!(rows.len(), 85);
    // The tests exist.
    let sources = [
        include_str!("encoder.rs"),
        include_str!("events.rs"),
        include_str!("flow.rs"),
        include_str!("packets.rs"),
        include_str!("configuration.rs"),
        include_str!("queries.rs"),
        include_str!("sections.rs"),
    ];
    for test in rows.iter().flat_map(|(_, tests)| tests) {
        assert!(sources.iter().any(|source| source.contains(&format!("fn {test}("))), "{test}");
    }
    let all = rows.iter().map(|(name, _)| (*name).into()).collect::<BTreeSet<String>>();
    for release in RELEASES {
        let Some(folder) = release.installed_in() else {
            println!("{}", release.skipped());
            continue;
        };
        // The event decoder came with 2.1.
        let is_there = |name: &&String| release.version >= (2, 1, 0) || !name.starts_with("evt_");
        assert_eq!(exported(&folder.join("libipt.so.2")), all.iter().filter(is_there).cloned().collect());
    }
}

#[test]
fn the_library_has_libipts_soname() {
    let Ok(output) = Command::new("readelf").arg("-d").arg(our_file()).output() else {
        println!("skipped: readelf is not installed");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Library soname: [libipt.so.2]"), "{text}");
}
