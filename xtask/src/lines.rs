//! Checks the sources as a reader sees them: the width of lines, the length of files, the first words of comments.

use pugmark_harness::images::workspace;
use std::fs;

use crate::names::files;

/// The maximum width of a line in columns. rustfmt breaks most code before; it leaves comments, strings and macros.
const WIDEST: usize = 120;
/// The maximum length of a file in lines.
const LONGEST: usize = 600;

/// Returns a line's columns, without unbreakable parts: addresses of pages, and targets of a document's links.
fn width(line: &str) -> usize {
    let words = line.split(' ').map(|word| if word.contains("://") { 0 } else { word.chars().count() });
    let spaces = line.matches(' ').count();
    let links = line.split("](").skip(1).filter(|rest| !rest.contains("://"));
    let targets = links.filter_map(|rest| rest.find(')')).sum::<usize>();
    (words.sum::<usize>() + spaces).saturating_sub(targets)
}

/// Returns the numbers of the lines of a source that are too wide: of its code, its texts and its comments, except rows
/// of tables.
fn too_wide(source: &str) -> Vec<usize> {
    let is_row = |line: &str| {
        let comment = line.trim_start().strip_prefix("//");
        comment.is_some_and(|text| text.trim_start_matches(['/', '!']).trim_start().starts_with('|'))
    };
    let lines = (1..).zip(source.lines());
    lines.filter(|(_, line)| !is_row(line) && width(line) > WIDEST).map(|(number, _)| number).collect()
}

/// Words with which no comment begins: who reads it wants to know what a function does, and what a type is.
const NO_BEGINNING: [&str; 4] = ["What ", "Whether ", "How ", "That which "];

/// Returns the numbers of a source's lines of comment that begin with one of [`NO_BEGINNING`].
fn begins_without_subject(source: &str) -> Vec<usize> {
    let text = |line: &str| {
        Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!', ' ']).to_owned())
    };
    let begins = |text: String| NO_BEGINNING.iter().any(|word| text.starts_with(word));
    let lines = (1..).zip(source.lines());
    lines.filter(|(_, line)| text(line).is_some_and(begins)).map(|(number, _)| number).collect()
}

/// Returns the numbers of the lines of a document's text that are too wide. Tables and blocks of code may have any
/// width.
fn too_wide_text(document: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut found = vec![];
    for (number, line) in (1..).zip(document.lines()) {
        let text = line.trim_start();
        if text.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !text.starts_with('|') && width(line) > WIDEST {
            found.push(number);
        }
    }
    found
}

#[test]
fn no_line_is_too_wide_and_no_file_too_long() {
    let mut found = vec![];
    let mut check = |extension, too_wide: fn(&str) -> Vec<usize>, longest| {
        let paths = files(&workspace(), extension);
        assert!(paths.len() > 10, "only {} files end with .{extension}", paths.len());
        for path in paths {
            let text = fs::read_to_string(&path).expect("a file of text");
            let name = path.strip_prefix(workspace()).expect("in the workspace").display();
            found.extend(too_wide(&text).iter().map(|line| format!("{name}:{line} is too wide")));
            if extension == "rs" {
                let lines = begins_without_subject(&text);
                found.extend(
                    lines.iter().map(|line| format!("{name}:{line} begins with What, Whether or How")),
                );
            }
            if text.lines().count() > longest {
                found.push(format!("{name} is too long"));
            }
        }
    };
    check("rs", too_wide, LONGEST);
    check("md", too_wide_text, usize::MAX);
    assert!(found.is_empty(), "{found:#?}");
}

/// Checks the first line of each scenario, which describes it.
#[test]
fn no_title_of_a_scenario_is_too_wide() {
    let folder = workspace().join("decoder-core/tests/scenarios");
    let titles = files(&folder, "txt").into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("a scenario");
        (path, text.lines().next().unwrap_or_default().chars().count())
    });
    let titles: Vec<_> = titles.collect();
    assert!(titles.len() > 10, "only {} scenarios", titles.len());
    let wide: Vec<_> = titles.into_iter().filter(|(_, columns)| *columns > WIDEST).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn wide_lines_are_found_and_wide_tables_are_not() {
    let wide = "x ".repeat(60);
    let page = format!("https://example.com/{}", "x".repeat(90));
    for (line, is_found) in [
        (format!("// {wide}"), true),
        (format!("    /// {wide}"), true),
        (format!("//! {wide}"), true),
        (format!("/// | {wide} |"), false),
        (format!("//! // {wide}"), true),
        (format!("let x = \"{wide}\";"), true),
        (format!("// {}", &wide[..117]), false),
        (format!("// {}x", &wide[..117]), true),
        (format!("let x = {};", "é".repeat(111)), false),
        (format!("let x = {};", "é".repeat(112)), true),
        (format!("// a page that is far away: {page}"), false),
        (format!("// {} {page}", &wide[..117]), true),
    ] {
        assert_eq!(!too_wide(&line).is_empty(), is_found, "{line}");
    }
}

#[test]
fn wide_text_is_found_and_wide_code_is_not() {
    let wide = "x ".repeat(60) + "x";
    let link = format!("[here]({}.md)", "x".repeat(110));
    for (document, lines) in [
        (format!("# A heading\n\n{wide}\n"), &[3][..]),
        (format!("- {}\n  {wide}", &wide[..118]), &[2]),
        (format!("| {wide} |\n|---|\n"), &[]),
        (format!("```text\n{wide}\n```\n{wide}\n"), &[4]),
        (format!("1. A list\n\n   ```\n   {wide}\n   ```\n"), &[]),
        (format!("It is {link}, and {link}.\n"), &[]),
        (format!("{wide} {link}\n"), &[1]),
    ] {
        assert_eq!(too_wide_text(&document), lines, "{document}");
    }
}

#[test]
fn comments_that_begin_without_their_subject_are_found() {
    let source =
        "//! What it is\n/// Returns it\n/// What-if\n    // Whether so\nlet x; // How\n/// How many";
    assert_eq!(begins_without_subject(source), [1, 4, 6]);
}
