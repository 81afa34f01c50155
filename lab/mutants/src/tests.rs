//! Tests of the whole path from a crate's source to the fates of its mutants.

use pugmark_builds::test_binaries::TestBinary;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::build::{SourceFile, mutants_to_blame_for};
use super::rewrite::rewrite;
use super::run::{MutantFate, Tests};
use super::sites::{self, Site};

/// Returns the mutants found in a source, as `line:column old -> new`.
fn found(text: &str) -> Vec<String> {
    let sites = sites::find(text).unwrap();
    let mutants = sites.iter().flat_map(|site| &site.mutants);
    mutants
        .map(|change| {
            let (line, column) = sites::position(text, change.offset);
            format!("{line}:{column} {} -> {}", change.old, change.new)
        })
        .collect()
}

#[test]
fn each_kind_of_change_is_found() {
    let rows: &[(&str, &[&str])] = &[
        ("fn f() { g(a < b) }", &["1:14 a < b -> a <= b", "1:14 a < b -> a >= b"]),
        ("fn f() { g(a == b) }", &["1:14 a == b -> a != b"]),
        ("fn f() { g(a && b) }", &["1:14 a && b -> a || b", "1:12 a -> true", "1:17 b -> true"]),
        (
            "fn f() { g(a + b, c << d, e & h, i ^ j) }",
            &["1:14 a + b -> a - b", "1:21 c << d -> c >> d", "1:29 e & h -> e | h", "1:36 i ^ j -> i | j"],
        ),
        ("fn f() { g(!a, -b) }", &["1:12 !a -> a", "1:16 -b -> b"]),
        (
            "fn f() { g(0, 1, 0xff_u16, 7 as u64, -5, true) }",
            &[
                "1:12 0 -> 1",
                "1:15 1 -> 0",
                "1:15 1 -> 2",
                "1:18 0xff_u16 -> 0x100u16",
                "1:28 7 as u64 -> 8 as u64",
                "1:38 -5 -> 5",
                "1:39 -5 -> -6",
                "1:42 true -> false",
            ],
        ),
        ("fn f() { if a { g() } }", &["1:13 a -> true", "1:13 a -> false"]),
        ("fn f() { while a() { g() } }", &["1:16 a() -> true", "1:16 a() -> false"]),
        // A pattern is not changed.
        ("fn f() { if let Some(a) = b && a { g() } }", &["1:32 a -> true", "1:32 a -> false"]),
        (
            "fn f() { g(match a { 1 | 2 => b, x if c => d, _ => e }) }",
            &["1:22 1 | 2 => … -> the last arm", "1:39 c -> true", "1:39 c -> false"],
        ),
        // No later arm could match in place of this one.
        ("fn f() { g(match a { A => b, B => c }) }", &[]),
        ("fn f() { a.b(); }", &["1:10 a.b(); -> nothing"]),
        (
            "fn f() { a += b; c.d = e; }",
            &[
                "1:9 the body -> return",
                "1:10 a += b; -> nothing",
                "1:12 a += b -> a -= b",
                "1:18 c.d = e; -> nothing",
            ],
        ),
        ("fn f() { g(|| a = b) }", &["1:15 a = b -> nothing"]),
        (
            "fn f() { g(a.min(b), c.is_empty()) }",
            &["1:14 a.min(b) -> a.max(b)", "1:22 c.is_empty() -> !c.is_empty()"],
        ),
        ("fn f() { loop { break } }", &["1:17 break -> continue"]),
        ("fn f() { g(matches!(a, 1)) }", &["1:12 matches!(a, 1) -> !matches!(a, 1)"]),
        ("fn f() { g(format!(\"{x}\", x = a + b)) }", &["1:33 a + b -> a - b"]),
        ("fn f() -> bool { a() }", &["1:17 the body -> return true", "1:17 the body -> return false"]),
        ("fn f() -> bool { true }", &["1:17 the body -> return false", "1:18 true -> false"]),
        ("fn f() -> Option<A> { a() }", &["1:22 the body -> return None"]),
        ("fn f() -> Result<(), A> { a() }", &["1:26 the body -> return Ok(())"]),
        (
            "fn f() -> Result<u8, A> { a() }",
            &["1:26 the body -> return Ok(0)", "1:26 the body -> return Ok(1)"],
        ),
        ("fn f() -> fmt::Result { a() }", &["1:24 the body -> return Ok(())"]),
        ("fn f() -> A { a() }", &[]),
        // The name of a function includes its type.
        (
            "impl A<u8> { fn f(&self) { g(\n    // why\n    a || b) } }",
            &["3:7 a || b -> a && b", "3:5 a -> false", "3:10 b -> false"],
        ),
        // Evaluated by the compiler, or not built here.
        ("const A: u8 = 1 + 2; static B: [u8; 1 + 2] = [0; 1 + 2]; enum C { D = 1 + 2 }", &[]),
        ("fn f() { g::<{ 1 + 2 }>([a; 3], const { 1 + 2 }) }", &[]),
        ("#[cfg(test)] mod tests { fn f() { g(1) } } #[test] fn f() { g(1) }", &[]),
        ("#[cfg(test)] fn f() { g(1) } #[cfg(all(test, unix))] impl A { fn f() { g(1) } }", &[]),
        ("#[unsafe(naked)] fn f() { g(1) } #[cfg(target_os = \"none\")] mod a { fn f() { g(1) } }", &[]),
        ("fn f() { #[cfg(test)] let a = 1; }", &[]),
        // Attributes that do not leave the code out.
        ("#[cfg(not(test))] fn f() { g(1) }", &["1:30 1 -> 0", "1:30 1 -> 2"]),
        ("#[cfg(unix)] #[inline] fn f() { g(5) }", &["1:35 5 -> 6"]),
        ("#[cfg(feature = \"tests\")] fn f() { g(5) }", &["1:38 5 -> 6"]),
    ];
    for (source, expected) in rows {
        let mut of_the_whole = found(source);
        // Every function without a result can be left out; one row above shows that.
        if !expected.iter().any(|line| line.ends_with("the body -> return")) {
            of_the_whole.retain(|line| !line.ends_with("the body -> return"));
        }
        assert_eq!(of_the_whole, *expected, "{source}");
    }
}

#[test]
fn a_function_is_named_with_its_type() {
    let sites = sites::find("fn a() -> u8 { b() } impl C<D> for E { const fn f() -> u8 { g() } }").unwrap();
    let names: Vec<_> = sites.iter().map(|site| (site.function.as_str(), site.constant)).collect();
    assert_eq!(names, [("a", false), ("E::f", true)]);
}

#[test]
fn mutants_stand_beside_what_was_written() {
    let text = |source: &str, dropped: &[(usize, usize)]| {
        let sites = sites::find(source).unwrap();
        let rewritten = rewrite(source, &sites, 7, &dropped.iter().copied().collect());
        syn::parse_file(&rewritten.text).unwrap();
        for (site, mutant, range) in &rewritten.mutants {
            assert!(rewritten.text[range.clone()].contains(&sites[*site].mutants[*mutant].code));
        }
        rewritten.text.replace("::pugmark_mutant_choice::", "")
    };
    let source = "fn f() -> A { a + b * c }";
    assert_eq!(
        text(source, &[]),
        "fn f() -> A { (match at(7) { 0 => {a + (match at(8) { 0 => {b * c} _ => {b + c} })} _ => {a - b * c} }) }"
    );
    assert_eq!(text(source, &[(0, 0)]), "fn f() -> A { a + (match at(8) { 0 => {b * c} _ => {b + c} }) }");
    assert_eq!(text(source, &[(0, 0), (1, 0)]), source);
    // The brackets keep the operands as they were.
    let source = "fn f() -> A { a ^ b | c }";
    assert!(text(source, &[(1, 0)]).contains("_ => {(a ^ b) & (c)}"), "{}", text(source, &[]));
    assert_eq!(text("fn f() { a = b; }", &[]), "fn f() {  match at(7) { 0 => {a = b;} _ => {} }  }");
    assert_eq!(
        text("fn f() -> u8 { a() }", &[(0, 0)]),
        "fn f() -> u8 { match at(7) { 0 => {} _ => {return 1;} }  a() }"
    );
    assert_eq!(
        text("fn f() -> A { match a { B => c, _ => d } }", &[]),
        "fn f() -> A { match a { B if at(7) == 0 => c, _ => d } }"
    );
}

/// Returns one of cargo's lines: a diagnostic with these spans, and below it a child diagnostic with others. A span is
/// a file, its range in the file, and true if it is the primary one.
fn diagnostic(level: &str, spans: &[Span<'_>], under: &[Span<'_>]) -> String {
    let span = |(file, range, primary): &Span<'_>| {
        serde_json::json!({
            "file_name": file, "byte_start": range.start, "byte_end": range.end, "is_primary": primary,
            "expansion": null,
        })
    };
    let list = |spans: &[Span<'_>]| spans.iter().map(span).collect::<Vec<_>>();
    let child = serde_json::json!({"level": "note", "spans": list(under), "rendered": null});
    let message = serde_json::json!({
        "level": level, "spans": list(spans), "children": [child], "rendered": "error",
    });
    serde_json::json!({ "message": message }).to_string()
}

type Span<'a> = (&'a str, Range<usize>, bool);

#[test]
fn an_error_is_laid_to_the_mutant_that_it_is_about() {
    let text = "fn f() -> A { a + b * c } fn g() -> A { d - e }";
    let sites = sites::find(text).unwrap();
    let rewritten = rewrite(text, &sites, 5, &BTreeSet::new());
    let source = SourceFile { path: "a.rs".into(), text: text.into(), sites, first: 5 };
    let of = |line: &str| {
        mutants_to_blame_for(line, std::slice::from_ref(&source), std::slice::from_ref(&rewritten))
    };
    let ranges: Vec<_> = rewritten.mutants.iter().map(|(_, _, range)| range.clone()).collect();
    // One mutant in each of three places.
    let mutant = |index: usize| ("a.rs", ranges[index].clone(), false);
    let primary = |index: usize| ("a.rs", ranges[index].clone(), true);
    let elsewhere = ("b.rs", ranges[0].clone(), true);
    let numbers: Vec<_> = rewritten.mutants.iter().map(|(site, mutant, _)| (5 + site, *mutant)).collect();
    assert_eq!(numbers.len(), 3);
    for (index, number) in numbers.iter().enumerate() {
        let of_it = vec![*number];
        let other = (index + 1) % 3;
        assert_eq!(of(&diagnostic("error", &[primary(index)], &[])), of_it);
        assert_eq!(of(&diagnostic("error: internal", &[primary(index)], &[])), of_it);
        // The primary span goes before the others, wherever it is in the list.
        assert_eq!(of(&diagnostic("error", &[mutant(other), primary(index)], &[])), of_it);
        // The child's spans count too, but after the diagnostic's own.
        assert_eq!(of(&diagnostic("error", std::slice::from_ref(&elsewhere), &[mutant(index)])), of_it);
        assert_eq!(of(&diagnostic("error", &[primary(index)], &[mutant(other)])), of_it);
        assert_eq!(of(&diagnostic("warning", &[primary(index)], &[])), []);
    }
    assert_eq!(of(&diagnostic("error", &[], &[mutant(0)])), [], "it is about no place");
    assert_eq!(of(&diagnostic("error", &[elsewhere], &[])), []);
    // An error inside a place but in none of its mutants is blamed on all mutants of the place; otherwise on all of
    // the function.
    let place = rewritten.places.iter().find(|(site, _)| *site == 2).unwrap().1.clone();
    assert_eq!(of(&diagnostic("error", &[("a.rs", place.start..place.start + 1, true)], &[])), numbers[2..]);
    let end = rewritten.text.len();
    assert_eq!(of(&diagnostic("error", &[("a.rs", end - 1..end, true)], &[])), numbers[2..]);
}

/// A crate whose tests notice only some mutants.
const CRATE: &str = r#"
pub const fn larger(a: u8, b: u8) -> u8 {
    let mut larger = b;
    if a > b { larger = a; }
    larger
}
pub const LARGER: u8 = larger(3, 4);
pub fn count(to: u8) -> u64 {
    let (mut count, mut left) = (0, to);
    while left != 0 { left -= 1; count += 1; }
    count
}
pub fn one(b: bool) -> &'static u8 {
    if !b { return &LARGER; }
    &1
}
pub fn unused(a: bool) -> bool { !a }
pub fn text(a: &'static str, b: bool) -> &'static str {
    let text;
    if !b { return ""; }
    text = a;
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_larger_one() {
        assert_eq!((super::larger(1, 2), super::larger(2, 1), super::LARGER), (2, 2, 4));
    }
    #[test]
    fn one() {
        assert_eq!((super::one(true), super::one(false)), (&1, &4));
    }
    #[test]
    fn counted() {
        assert_eq!(super::count(3), 3);
        assert_eq!((super::text("a", true), super::text("a", false)), ("a", ""));
    }
    #[test]
    fn red() {
        assert!(super::unused(true));
    }
}
"#;

/// Runs the compiler on a crate in `folder`.
fn rustc(folder: &Path, file: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(["--edition=2024", "--error-format=json", "--cap-lints=allow", file]).args(arguments);
    let output = command.current_dir(folder).env("RUSTC_BOOTSTRAP", "1").output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_small_crate_has_the_survivors_that_its_tests_leave() {
    let folder = std::env::temp_dir().join(format!("pugmark-mutants-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let sites = sites::find(CRATE).unwrap();
    let places = sites.len();
    let support = format!("{}\nconst PLACES: usize = {places};\n", super::build::SUPPORT);
    std::fs::write(folder.join("support.rs"), support).unwrap();
    let library = ["--crate-type=rlib", "--crate-name=pugmark_mutant_choice"];
    let (built, errors) = rustc(&folder, "support.rs", &library);
    assert!(built, "{errors}");

    let source = SourceFile { path: "small.rs".into(), text: CRATE.into(), sites: sites.clone(), first: 0 };
    let mut dropped = BTreeSet::new();
    for round in 0.. {
        assert!(round < 5, "no end of errors");
        let rewritten = rewrite(CRATE, &sites, 0, &dropped);
        std::fs::write(folder.join("small.rs"), &rewritten.text).unwrap();
        let arguments =
            ["--test", "--crate-name=small", "--extern=pugmark_mutant_choice=libpugmark_mutant_choice.rlib"];
        let (built, errors) = rustc(&folder, "small.rs", &arguments);
        if built {
            break;
        }
        let messages = errors.lines().map(|line| format!("{{\"message\":{line}}}"));
        let sources = std::slice::from_ref(&source);
        dropped.extend(
            messages.flat_map(|line| mutants_to_blame_for(&line, sources, std::slice::from_ref(&rewritten))),
        );
    }
    let binary = TestBinary { name: "small".into(), file: folder.join("small"), folder: folder.clone() };
    let long = Duration::from_secs(60);
    let mut tests =
        Tests::record(&folder.join("scratch"), &folder.join("known"), vec![binary], places, 2, long).unwrap();
    // A test that fails without a mutant does not count: places that only it reaches count as not reached.
    assert_eq!(tests.left_out, ["small tests::red: Red"]);
    tests.least = 1;
    let mutants: Vec<_> = (0..places)
        .flat_map(|site| (0..sites[site].mutants.len()).map(move |mutant| (site, mutant)))
        .collect();
    let name = |&(site, mutant): &(usize, usize)| {
        let (site, change): (&Site, _) = (&sites[site], &sites[site].mutants[mutant]);
        format!("{}: {} -> {}", site.function, change.old, change.new)
    };
    let names = |mutants: &[(usize, usize)]| mutants.iter().map(name).collect::<Vec<_>>();
    // Without its only assignment a variable has no value; and a value chosen at run time is not `'static`.
    let (left_out, tried): (Vec<_>, Vec<_>) = mutants.iter().partition(|mutant| dropped.contains(mutant));
    assert_eq!(names(&left_out), ["one: 1 -> 0", "one: 1 -> 2", "text: text = a; -> nothing"]);

    let which = |&(site, mutant): &(usize, usize)| (site, mutant, sites[site].function.clone());
    let fates = tests.try_all(&tried, which, |_, _| {}).unwrap();
    let with = |fate: MutantFate| {
        let pairs = tried.iter().zip(&fates).filter(|(_, of)| **of == fate);
        pairs.map(|(mutant, _)| name(mutant)).collect::<Vec<_>>()
    };
    // Of two equal numbers either one may count as the larger.
    let survived = MutantFate::Survived { binaries: vec!["small".into()], untried: 0 };
    assert_eq!(with(survived), ["larger: a > b -> a >= b"]);
    assert_eq!(
        with(MutantFate::NotReached),
        ["unused: the body -> return true", "unused: the body -> return false", "unused: !a -> a"]
    );
    let late = with(MutantFate::TimedOut);
    assert!(late.contains(&"count: left -= 1; -> nothing".into()), "{late:?}");
    let killed = with(MutantFate::Killed);
    for expected in ["larger: a > b -> false", "count: left != 0 -> left == 0", "count: 0 -> 1"] {
        assert!(killed.contains(&expected.into()), "{expected} is not among {killed:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
