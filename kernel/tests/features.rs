//! Compares `docs/features.md` with the tests in the workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The number of features in each table of the document.
const TABLES: [usize; 3] = [48, 23, 31];

#[test]
fn each_feature_that_is_there_names_tests_that_exist() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut tests = BTreeSet::new();
    for folder in ["decoder-core/src", "kernel/src", "kernel/tests", "kernel/c/tests", "lab/harness/tests"] {
        collect(&workspace.join(folder), &mut tests);
    }
    let document = fs::read_to_string(workspace.join("docs/features.md")).unwrap();
    let features = document.split("## The fault campaign").next().unwrap();
    let rows = features.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    let mut numbers = TABLES.iter().flat_map(|&count| 1..=count);
    let mut missing = vec![];
    for row in rows {
        let [number, feature, there, named] =
            row.trim_matches('|').splitn(4, '|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            panic!("{row}");
        };
        assert_eq!(number.parse().ok(), numbers.next(), "{feature}");
        let named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        for name in &named {
            assert!(tests.contains(*name), "{feature}: there is no test {name}");
        }
        let word = there.split([':', ',', ';']).next().unwrap();
        assert!(["yes", "partly", "missing"].contains(&word), "{feature}: {there}");
        assert_eq!(named.is_empty(), word == "missing", "{feature}");
        missing.extend((word == "missing").then_some(feature));
    }
    assert_eq!(numbers.next(), None, "a feature has no line");
    // The crate's front page says the same.
    let front = fs::read_to_string(workspace.join("kernel/src/lib.rs")).unwrap();
    let (_, listed) = front.split_once("//! # Not supported yet\n//!\n").expect("the list");
    let listed: Vec<_> = listed.lines().map_while(|line| line.strip_prefix("//! - ")).collect();
    assert_eq!(listed, missing);
}

/// Adds the names of all tests in a folder.
fn collect(folder: &Path, tests: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            // The attribute may be followed by others.
            for test in text.split("#[test]").skip(1) {
                let name = test.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
                tests.extend(name.map(|(name, _)| name.to_owned()));
            }
        }
    }
}
