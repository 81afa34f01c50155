//! Checks that no cycle of imports crosses two folders: a folder can be read knowing only those that it imports.
//!
//! A folder is a module with its own files. A file beside the folders counts as one, and a folder may import those
//! around it and within it. Imports of tests do not count.

use crate::names::{CRATES, is_test, sources};
use pugmark_harness::images::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{ItemImpl, ItemMod, ItemUse, UseTree};

/// The modules that a file names, by their whole paths.
struct Imports {
    /// The module of the file.
    module: Vec<String>,
    paths: Vec<Vec<String>>,
}

impl Imports {
    /// Notes a path that begins with `crate`, `super` or `self`.
    fn note(&mut self, path: &[String]) {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let base = match path.first().map(String::as_str) {
            Some("crate") => &[],
            Some("self") => &self.module[..],
            Some("super") => &self.module[..self.module.len().saturating_sub(ups)],
            _ => return,
        };
        let rest = path.iter().skip(ups.max(1));
        self.paths.push(base.iter().chain(rest).cloned().collect());
    }

    fn note_tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |part: &syn::Ident| [before, &[part.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.note_tree(item, before)),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(before),
        }
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            self.note_tree(&item.tree, &[]);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() && !is_test(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.note(&parts);
        visit::visit_path(self, path);
    }
}

/// Returns the folder of a module in a crate, or its file if that is beside the folders.
fn folder_of(source: &Path, module: &[String]) -> Vec<String> {
    let mut path = source.to_owned();
    let mut folder = vec![];
    for part in module {
        path.push(part);
        let is_file = folder.is_empty() && path.with_extension("rs").exists();
        if !path.is_dir() && !is_file {
            break;
        }
        folder.push(part.clone());
    }
    folder
}

/// Returns the module of a file, from its path within the crate's source.
fn module_of(path: &Path) -> Vec<String> {
    let mut parts: Vec<_> =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
    parts.pop_if(|last: &mut String| last == "mod");
    parts
}

/// Returns the imports of each folder of a crate from folders that are neither around it nor within it.
fn imports(source: &Path) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for file in sources(source) {
        let module = module_of(file.strip_prefix(source).expect("a file of the crate"));
        let is_root = matches!(&module[..], [only] if only == "lib" || only == "main");
        if is_root || module.iter().any(|part| part == "tests") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source");
        let folder = folder_of(source, &module);
        let mut imports = Imports { module, paths: vec![] };
        imports.visit_file(&syn::parse_file(&text).expect("Rust"));
        let apart = |other: &Vec<String>| !other.starts_with(&folder) && !folder.starts_with(other);
        let others = imports.paths.iter().map(|path| folder_of(source, path)).filter(apart);
        all.entry(folder.clone()).or_default().extend(others);
    }
    all
}

/// Returns the folders that can be reached from one by its imports.
fn reached(imports: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>, from: &[String]) -> BTreeSet<Vec<String>> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(folder) = open.pop() {
        let new = imports.get(&folder).into_iter().flatten().filter(|other| found.insert((*other).clone()));
        open.extend(new.cloned().collect::<Vec<_>>());
    }
    found
}

/// Returns the pairs of folders that reach each other; files in the crate's own folder are in one folder.
fn circles(source: &Path) -> Vec<String> {
    let imports = imports(source);
    let reached: BTreeMap<_, _> = imports.keys().map(|folder| (folder, reached(&imports, folder))).collect();
    let reaches =
        |from: &Vec<String>, to: &Vec<String>| reached.get(from).is_some_and(|all| all.contains(to));
    let is_file = |folder: &Vec<String>| folder.len() == 1 && !source.join(&folder[0]).is_dir();
    let mut found = vec![];
    for (a, b) in imports.keys().flat_map(|a| imports.keys().map(move |b| (a, b))) {
        if a < b && reaches(a, b) && reaches(b, a) && !(is_file(a) && is_file(b)) {
            found.push(format!("{}: {} and {}", source.display(), a.join("/"), b.join("/")));
        }
    }
    found
}

/// The one existing cycle: a block decoder owns the working memory of the block cache's visits, so that a stream needs
/// no stack for it.
const KNOWN: &str = "decoder-core/src: block and block_cache";

#[test]
fn no_circle_of_imports_crosses_two_folders() {
    let found = CRATES.iter().flat_map(|folder| circles(&workspace().join(folder)));
    let found: Vec<_> = found.filter(|circle| !circle.ends_with(KNOWN)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_circle_is_found_over_a_third_folder_and_not_in_tests() {
    let folder = std::env::temp_dir().join(format!("pugmark-circles-{}", std::process::id()));
    for (file, text) in [
        ("lib.rs", "mod a; mod b; mod c; mod d; use crate::a::X;"),
        ("a/mod.rs", "use crate::{b::{One, Two as Three}, d::D}; mod part; struct X;"),
        ("a/part.rs", "use super::X;"),
        ("b/mod.rs", "mod part;"),
        ("b/part.rs", "fn f() { super::super::c::g() }"),
        ("c/mod.rs", "mod part;"),
        ("c/part.rs", "impl crate::a::Y for Z {}"),
        ("d/mod.rs", "#[cfg(test)] mod tests { use crate::a::X; }\n#[cfg(test)] use crate::a::X;"),
    ] {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let found = circles(&folder);
    fs::remove_dir_all(&folder).expect("the folder");
    let pairs: Vec<_> = found.iter().map(|text| text.rsplit(": ").next().expect("a pair")).collect();
    assert_eq!(pairs, ["a and b", "a and c", "b and c"]);
}
