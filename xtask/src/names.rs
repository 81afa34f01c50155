//! Checks that one word has one meaning: no two types of a crate have the same name.

use pugmark_harness::images::workspace;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Item};

/// The folder of each crate's sources. The files of each integration test are a separate crate.
pub(crate) const CRATES: [&str; 23] = [
    "lab/boot/src",
    "decoder-core/src",
    "fuzz/src",
    "fuzz/libafl/src",
    "kernel/c/src",
    "kernel/src",
    "lab/bench/peers/src",
    "lab/bench/src",
    "lab/builds/src",
    "lab/mutants/src",
    "pfm/src",
    "recorder/src",
    "lab/harness/src",
    "libipt/capi/src",
    "libipt/engine/src",
    "libipt/programs/src",
    "tools/src",
    "lab/model/src",
    "lab/monitor/src",
    "lab/generator/src",
    "lab/protocol/src",
    "lab/truth/src",
    "xtask/src",
];

/// Each type's name, and where the crate defines it.
type Places = BTreeMap<String, Vec<String>>;

/// Adds the types that `items` define. A test's aliases are short for the rows of its own table, and do not count.
fn collect(items: &[Item], path: &str, in_tests: bool, places: &mut Places) {
    for item in items {
        let name = match item {
            Item::Struct(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) if !in_tests => &item.ident,
            Item::Mod(module) => {
                if let Some((_, items)) = &module.content {
                    collect(items, path, in_tests || is_test(&module.attrs), places);
                }
                continue;
            }
            _ => continue,
        };
        let places = places.entry(name.to_string()).or_default();
        // Two aliases of one file are the two forms of one type, of which each system has one.
        if !(matches!(item, Item::Type(_)) && places.iter().any(|place| place == path)) {
            places.push(path.to_owned());
        }
    }
}

pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// Returns the Rust files in a folder and in the folders in it.
pub(crate) fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

/// Returns the files with this extension in a folder and in the folders in it, except build products and hidden ones.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = vec![];
    for entry in entries {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        if name == "target" || name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the names that these files give to two types, with the files.
fn doubles<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut places = Places::new();
    for (path, text) in files {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let in_tests = path.split('/').any(|part| matches!(part, "tests" | "tests.rs"));
        collect(&file.items, path, in_tests, &mut places);
    }
    let doubles = places.into_iter().filter(|(_, places)| places.len() > 1);
    doubles.map(|(name, places)| format!("{name}: {}", places.join(", "))).collect()
}

#[test]
fn no_crate_gives_two_types_the_same_name() {
    let mut found = vec![];
    for folder in CRATES {
        let folder = workspace().join(folder);
        let files: Vec<_> = sources(&folder)
            .into_iter()
            .map(|path| {
                let text = fs::read_to_string(&path).expect("a source");
                let path = path.strip_prefix(workspace()).expect("in the workspace").display().to_string();
                (path, text)
            })
            .collect();
        found.extend(doubles(files.iter().map(|(path, text)| (path.as_str(), text.as_str()))));
    }
    assert!(found.is_empty(), "one word, one meaning:\n{}", found.join("\n"));
}

#[test]
fn types_of_modules_and_of_tests_are_found_and_other_names_are_not() {
    let one = "struct Walk; mod inner { pub enum Walk {} } impl Trait for Walk { type Row = u8; }";
    let two = "type Row = u8; trait Walk {} fn walk() { struct Row; } \
               #[cfg(test)] mod tests { type Row = u8; struct Leg; }";
    /// A test case: files with their text, and the names that two types have.
    type Row<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let rows: [Row<'_>; 6] = [
        (&[("c.rs", "#[cfg(unix)] type Row = u8; #[cfg(not(unix))] type Row = u16;")], &[]),
        (&[("a.rs", one)], &["Walk: a.rs, a.rs"]),
        (&[("a.rs", one), ("b.rs", two)], &["Walk: a.rs, a.rs, b.rs"]),
        (&[("b.rs", two), ("tests.rs", "type Row = u8;")], &[]),
        (&[("b.rs", two), ("c.rs", "type Row = u8;")], &["Row: b.rs, c.rs"]),
        (&[("b.rs", two), ("tests/c.rs", "union Leg { a: u8 }")], &["Leg: b.rs, tests/c.rs"]),
    ];
    for (files, expected) in rows {
        assert_eq!(doubles(files.iter().copied()), expected, "{files:?}");
    }
}
