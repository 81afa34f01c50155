//! `cargo xtask book`: the documentation as a book, by mdbook, and a check of its links.

use anyhow::{Context, Result, ensure};
use pugmark_harness::images::{target_folder, workspace};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::setup::{self, SetupOptions};

/// Makes the book in `target/book/book`.
///
/// # Errors
/// If a link leads nowhere.
pub(crate) fn book(options: SetupOptions) -> Result<()> {
    setup::prepare_book(options.no_install)?;
    let folder = target_folder().join("book");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let source = folder.join("src");
    copy_pages(&source)?;
    let summary = fs::read_to_string(workspace().join("docs/SUMMARY.md"))?;
    fs::write(source.join("SUMMARY.md"), from_root(&summary))?;
    fs::copy(workspace().join("docs/book.toml"), folder.join("book.toml"))?;
    let status = Command::new("mdbook").arg("build").arg(&folder).status().context("cannot start mdbook")?;
    ensure!(status.success(), "mdbook failed");
    let book = folder.join("book");
    let mut broken = vec![];
    let pages = files(&book)?;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|extension| extension == "html")) {
        broken.extend(broken_links(&book, page)?);
    }
    ensure!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    println!("{} has {} files; each link leads somewhere", book.display(), pages.len());
    Ok(())
}

/// Copies the tree's pages and their pictures, and the sources that pages refer to, as they lie in the tree.
fn copy_pages(to: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.args(["ls-files", "*.md", "docs", "lab/examples/*.rs", "lab/examples/*.c", "kernel/c/pugmark.h"]);
    list.args(["lab/mutants/equivalent.toml", "decoder-core/src/resume/mod.rs", "fuzz/libafl/tests/fuzz.rs"]);
    list.args(["lab/harness/src/expected/rules.rs", "LICENSE-*"]);
    let list = list.current_dir(workspace()).output().context("cannot start git")?;
    ensure!(list.status.success(), "`git ls-files` failed: {}", String::from_utf8_lossy(&list.stderr));
    for path in String::from_utf8(list.stdout)?.lines().filter(|path| *path != "docs/SUMMARY.md") {
        let place = to.join(path);
        let folder = place.parent().context("it has no folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let bytes = fs::read(workspace().join(path)).with_context(|| format!("cannot read {path}"))?;
        let bytes = if path.ends_with(".md") { to_index(&String::from_utf8(bytes)?).into() } else { bytes };
        fs::write(&place, bytes).with_context(|| format!("cannot write {}", place.display()))?;
    }
    Ok(())
}

/// Returns a page with its links to a folder's README.md as mdbook names that page: index.md.
fn to_index(page: &str) -> String {
    ["](", "/"].into_iter().fold(page.to_owned(), |page, before| {
        [")", "#"].into_iter().fold(page, |page, after| {
            page.replace(&format!("{before}README.md{after}"), &format!("{before}index.md{after}"))
        })
    })
}

/// Returns a page of `docs/` with its links as they are from the tree's root.
fn from_root(page: &str) -> String {
    page.replace("](", "](docs/").replace("](docs/../", "](")
}

/// Returns all files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

/// Returns the links of a page of `book` to files or places that do not exist, each with the page.
fn broken_links(book: &Path, page: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let folder = page.parent().context("a page has a folder")?;
    let mut broken = vec![];
    for link in links(&text) {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let file = match path.strip_prefix('/') {
            Some(path) => normal(&book.join(path)),
            None if path.is_empty() => page.to_owned(),
            None => normal(&folder.join(path)),
        };
        // A folder's page is its index.
        let file = if file.is_dir() { file.join("index.html") } else { file };
        let is_there = file.is_file()
            && (anchor.is_empty() || fs::read_to_string(&file)?.contains(&format!("id=\"{anchor}\"")));
        if !is_there {
            broken.push(format!("{}: {link}", page.display()));
        }
    }
    Ok(broken)
}

/// Returns the targets of a page's links and pictures that are not on other sites.
fn links(text: &str) -> BTreeSet<&str> {
    let targets = ["href=\"", "src=\""].into_iter().flat_map(|begin| text.split(begin).skip(1));
    let targets = targets.filter_map(|rest| rest.split('"').next());
    targets.filter(|target| !target.contains(':') && !target.is_empty()).collect()
}

/// Returns a path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_summary_are_those_from_the_root() {
        let page = "- [a](tools.md)\n  - [b](../kernel/doc/guide.md)\n";
        assert_eq!(from_root(page), "- [a](docs/tools.md)\n  - [b](kernel/doc/guide.md)\n");
    }

    #[test]
    fn a_link_to_a_folders_page_is_one_to_its_index() {
        let page = "[a](README.md), [b](../lab/README.md#c), [README.md](x.md), `README.md`\n";
        assert_eq!(to_index(page), "[a](index.md), [b](../lab/index.md#c), [README.md](x.md), `README.md`\n");
    }

    #[test]
    fn a_link_to_a_missing_file_or_place_is_found() {
        let folder = std::env::temp_dir().join(format!("pugmark-book-{}", std::process::id()));
        fs::create_dir_all(folder.join("in")).unwrap();
        fs::write(folder.join("a.html"), "<h1 id=\"one\">").unwrap();
        let page = folder.join("in/b.html");
        let text = "<a href=\"../a.html\"><a href=\"../a.html#one\"><a href=\"https://x/y\"><a href=\"#two\">\
                    <img src=\"../c.png\"><a href=\"../a.html#three\"><a href=\"/a.html\"><a href=\"/\">";
        fs::write(&page, text).unwrap();
        let broken = broken_links(&folder, &page).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let ends: Vec<_> = broken.iter().filter_map(|line| line.split(": ").nth(1)).collect();
        assert_eq!(ends, ["#two", "../a.html#three", "../c.png", "/"]);
    }
}
