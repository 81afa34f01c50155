//! Checks links in the documents: each leads to a file of the tree, and to a heading in it.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into()
}

/// A document's links with the lines where they are, and the anchors of its headings.
#[derive(Debug, Default)]
struct Document {
    links: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

impl Document {
    fn read(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = 1 + text[..range.start].matches('\n').count();
                    document.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    let numbered = (1..).map(|number| format!("{anchor}-{number}"));
                    let mut names = [anchor.clone()].into_iter().chain(numbered);
                    document.anchors.extend(names.find(|name| !document.anchors.contains(name)));
                }
                _ => {}
            }
        }
        document
    }
}

/// Returns a heading's anchor, as repository hosting sites make it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Returns the reason if a link of the document `from` leads nowhere.
fn fault(from: &Path, own: &Document, link: &str) -> Option<String> {
    // Other sites are not queried, and rustdoc checks Rust items.
    if link.contains("://") || link.contains("::") {
        return None;
    }
    let (file, wanted) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let path = from.parent()?.join(file);
    if !file.is_empty() && !path.exists() {
        return Some(format!("{link}: there is no {file}"));
    }
    let wanted = wanted?;
    let is_there = if file.is_empty() {
        own.anchors.contains(wanted)
    } else if file.ends_with(".md") {
        Document::read(&fs::read_to_string(path).ok()?).anchors.contains(wanted)
    } else {
        return Some(format!("{link}: {file} has no headings"));
    };
    (!is_there).then(|| format!("{link}: there is no heading #{wanted}"))
}

#[test]
fn each_link_of_each_document_leads_to_a_file_and_a_heading() {
    let output = Command::new("git").current_dir(root()).args(["ls-files", "*.md"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let files = String::from_utf8(output.stdout).unwrap();
    let (mut checked, mut faults) = (0, vec![]);
    for name in files.lines() {
        let path = root().join(name);
        let document = Document::read(&fs::read_to_string(&path).unwrap());
        for (line, link) in &document.links {
            checked += 1;
            faults.extend(fault(&path, &document, link).map(|fault| format!("{name}:{line}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(checked > 50, "only {checked} links were found");
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let text = "# One `two`, three\n\n## Again\n## Again\n\n[a](#again-1) ![b](x.png)\n\n\
                | t |\n|---|\n| [c](y.md) |\n\n`[no](link.md)`\n";
    let own = Document::read(text);
    assert!(own.anchors.iter().eq(["again", "again-1", "one-two-three"]), "{:?}", own.anchors);
    let links: Vec<_> = own.links.iter().map(|(line, link)| (*line, link.as_str())).collect();
    assert_eq!(links, [(6, "#again-1"), (6, "x.png"), (10, "y.md")]);
    let readme = root().join("README.md");
    for (link, expected) in [
        ("#again-1", None),
        ("#again-2", Some("#again-2: there is no heading #again-2")),
        ("docs/tools.md", None),
        ("docs", None),
        ("docs/none.md", Some("docs/none.md: there is no docs/none.md")),
        ("docs/tools.md#which-code-ran", None),
        (
            "docs/tools.md#which-code-run",
            Some("docs/tools.md#which-code-run: there is no heading #which-code-run"),
        ),
        ("Cargo.toml#L3", Some("Cargo.toml#L3: Cargo.toml has no headings")),
        ("https://rustup.rs", None),
        ("crate::slot::Slot", None),
    ] {
        assert_eq!(fault(&readme, &own, link).as_deref(), expected, "{link}");
    }
}
