//! Prints each line and parses it back; refuses lines that the protocol does not have.

extern crate std;

use std::collections::BTreeSet;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::*;
use ParseErrorKind::{
    BadNumber, BadValue, MissingKey, MissingWord, NotAPair, TrailingWord, UnknownKey, UnknownLine,
};

const RANGE: SymbolRange<'_> = SymbolRange { from: "a", to: "b" };
const STAT: Stat =
    Stat { count: 3, hash: 0x10, bytes: 9, pmis: 4, loss: 5, decode_us: Some(6), branches: Some(7) };
const SAMPLES: Samples =
    Samples { session: 3, event: EventKind::Ops, period: 4, taken: 5, lost: 6, skipped: 7, unplaced: 8 };
const PIECE: Piece =
    Piece { count: 2, hash: 0xddee_fc94_8dc4_1886, first: 0x1000, last: 0x1003, after: After::Stop };
const SECTION: CodeSection = CodeSection { base: 0x1000, len: 3, from: 0x2000, cr3: Some(0x5000) };
const LOST: Lost = Lost { overflows: 1, stops: 2, wraps: 3, full: 4, strays: 5 };

/// One example of each line, with all optional words.
const EXAMPLES: [(Line<'_>, &str); 23] = [
    (Line::Run("sort"), "run sort"),
    (Line::Session("sort", 3), "session sort 3"),
    (
        Line::Filter(
            "sort",
            Filter { level: Level::User, cr3: Some(0x5000), range: Some(RANGE), stop: Some(RANGE) },
        ),
        "filter sort cpl=3 cr3=0x5000 range=a..b stop=a..b",
    ),
    (
        Line::Stat("sort", STAT),
        "stat sort instructions=3 bytes=9 bpi=24.00 pmis=4 loss=5 decode_us=6 count=3 \
         hash=0x0000000000000010 branches=7",
    ),
    (Line::Top("sort", Top { rank: 1, symbol: "main", count: 5 }), "top sort 1 main 5"),
    (
        Line::Piece("sort", 0, PIECE),
        "piece sort 0 count=2 hash=0xddeefc948dc41886 first=0x1000 last=0x1003 after=stop",
    ),
    (
        Line::Records("sort", 1, Records { count: 4, hash: 0x20, after: After::Off }),
        "records sort 1 count=4 hash=0x0000000000000020 after=off",
    ),
    (
        Line::Count("sort", Count { session: 3, event: 0x1c0, value: 9 }),
        "count sort session=3 event=0x1c0 value=9",
    ),
    (
        Line::Samples("sort", SAMPLES),
        "samples sort session=3 of=ops period=4 taken=5 lost=6 skipped=7 unplaced=8",
    ),
    (Line::Sample("sort", Sample { session: 3, address: 0x120, count: 2 }), "sample sort 3 0x120 2"),
    (
        Line::Precise("sort", Precise { session: 3, event: Some(0x120), next: Some(0x123) }),
        "precise sort 3 0x120 0x123",
    ),
    (Line::Missing("sort", 3), "missing sort 3"),
    (
        Line::Last("sort", Last { session: 4, calls: true, entries: 1 }),
        "last sort session=4 stack=calls entries=1",
    ),
    (Line::Branch("sort", Branch { session: 4, from: 0x120, to: 0x100 }), "branch sort 4 0x120 0x100"),
    (Line::Fault("sort", Fault { address: 0x5000, code: 2 }), "fault sort address=0x5000 code=0x2"),
    (Line::Lost("sort", LOST), "lost sort ovf=1 stop=2 wrap=3 full=4 stray=5"),
    (Line::Probe("sort", Access { msr: 0x570, value: Some(1) }), "probe sort msr=0x570 value=0x1"),
    (Line::Refuse("sort", "CPUID.14H"), "refuse sort CPUID.14H"),
    (Line::Dump("sort", 40), "dump sort bytes=40"),
    (Line::Section("sort", SECTION), "section sort base=0x1000 len=3 from=0x2000 cr3=0x5000"),
    (Line::Ok("sort"), "ok sort"),
    (Line::Fail("sort", "wrong"), "fail sort: wrong"),
    (Line::Done(Done { passed: 9, failed: 1 }), "done 9 1"),
];

/// Other forms of lines.
const MORE: [(Line<'_>, &str); 11] = [
    (
        Line::Filter("sort", Filter { level: Level::Any, cr3: None, range: None, stop: None }),
        "filter sort cpl=any cr3=any range=any stop=none",
    ),
    (
        Line::Filter("sort", Filter { level: Level::Os, cr3: Some(0x5000), range: None, stop: None }),
        "filter sort cpl=0 cr3=0x5000 range=any stop=none",
    ),
    (
        Line::Stat("sort", Stat { bytes: 1, decode_us: None, branches: None, ..STAT }),
        "stat sort instructions=3 bytes=1 bpi=2.66 pmis=4 loss=5 count=3 hash=0x0000000000000010",
    ),
    (
        Line::Stat("sort", Stat { count: 0, branches: None, ..STAT }),
        "stat sort instructions=0 bytes=9 bpi=0.00 pmis=4 loss=5 decode_us=6 count=0 hash=0x0000000000000010",
    ),
    (Line::Top("sort", Top { rank: 2, symbol: "sort<T, F> as A", count: 5 }), "top sort 2 sort<T, F> as A 5"),
    (Line::Precise("sort", Precise { session: 3, event: None, next: Some(1) }), "precise sort 3 none 0x1"),
    (Line::Precise("sort", Precise { session: 3, event: Some(1), next: None }), "precise sort 3 0x1 none"),
    (
        Line::Last("sort", Last { session: 4, calls: false, entries: 0 }),
        "last sort session=4 stack=branches entries=0",
    ),
    (Line::Probe("sort", Access { msr: u32::MAX, value: None }), "probe sort msr=0xffffffff"),
    (
        Line::Section("sort", CodeSection { cr3: None, ..SECTION }),
        "section sort base=0x1000 len=3 from=0x2000 cr3=any",
    ),
    (Line::Fail("sort", "sum is 3, not 4"), "fail sort: sum is 3, not 4"),
];

#[test]
fn each_line_is_printed_and_read_back() {
    for (line, text) in EXAMPLES.into_iter().chain(MORE) {
        assert_eq!(line.to_string(), text);
        assert_eq!(Line::parse(text), Ok(line), "{text}");
    }
}

#[test]
fn each_value_of_a_key_has_a_word_of_its_own() {
    use After::{Error, Full, Off, Overflow, Psb, Start, Stop, Wrap};
    let words = [Start, Psb, Overflow, Stop, Wrap, Full, Error, Off].map(|after| {
        let text = format!("records a 0 count=1 hash=0x1 after={after}");
        assert_eq!(Line::parse(&text), Ok(Line::Records("a", 0, Records { count: 1, hash: 1, after })));
        after.to_string()
    });
    assert_eq!(words, ["start", "psb", "ovf", "stop", "wrap", "full", "error", "off"]);
    use EventKind::{Branches, Cycles, Instructions, Ops};
    let words = [Instructions, Branches, Ops, Cycles].map(|event| {
        let line = Line::Samples("a", Samples { event, ..SAMPLES });
        assert_eq!(Line::parse(&line.to_string()), Ok(line));
        event.to_string()
    });
    assert_eq!(words, ["instructions", "branches", "ops", "cycles"]);
}

#[test]
fn strays_are_no_loss() {
    assert_eq!(LOST.total(), 10);
}

#[test]
fn losses_add_up_by_kind() {
    let Ok(Line::Lost("a", mut lost)) = Line::parse("lost a stop=0x10 wrap=3 stop=4") else { panic!() };
    assert_eq!(lost, Lost { stops: 20, wraps: 3, ..Lost::default() });
    lost += LOST;
    assert_eq!(lost, Lost { stops: 22, wraps: 6, ..LOST });
}

/// Returns the text of each line in the list in the crate's documentation.
fn documented_lines() -> Vec<&'static str> {
    let items = include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("//! - `"));
    items.map(|item| item.split_once('`').expect("an open `").0).collect()
}

/// Returns the variants of [`Line`], from its source.
fn variants() -> BTreeSet<&'static str> {
    let (_, source) = include_str!("line.rs").split_once("pub enum Line<").expect("no enum");
    let (body, _) = source.split_once("\n}").expect("the enum has no end");
    let variant = |line: &'static str| line.strip_prefix("    ")?.split_once('(').map(|(name, _)| name);
    body.lines().filter_map(variant).filter(|name| name.starts_with(char::is_uppercase)).collect()
}

#[test]
fn the_list_in_the_documentation_has_each_line_with_its_words_and_keys() {
    let variant = |line: &Line<'_>| format!("{line:?}").split('(').next().unwrap().to_string();
    let exemplified: BTreeSet<String> = EXAMPLES.iter().map(|(line, _)| variant(line)).collect();
    let all: BTreeSet<String> = variants().into_iter().map(String::from).collect();
    assert_eq!(exemplified, all, "each variant has an example");
    // For each line: the first word, the other words, the keys.
    let shape = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let keys = words.iter().filter_map(|word| word.split_once('='));
        let keys: Vec<String> = keys.map(|(key, _)| key.trim_start_matches('[').into()).collect();
        (words[0].to_string(), words.len(), keys)
    };
    let documented: Vec<_> = documented_lines().into_iter().map(shape).collect();
    let printed: Vec<_> = EXAMPLES.iter().map(|(_, text)| shape(text)).collect();
    assert_eq!(documented, printed);
}

#[test]
fn the_list_in_the_documentation_has_each_value_of_a_key() {
    let documented = documented_lines();
    for values in [
        "cpl=any|0|3 ",
        "after=start|psb|ovf|stop|wrap|full|error|off",
        "of=instructions|branches|ops|cycles ",
        "stack=branches|calls ",
    ] {
        assert!(documented.iter().any(|text| text.contains(values)), "{values}");
    }
}

#[test]
fn a_malformed_line_has_an_error_with_the_place_and_what_is_there() {
    for (text, at, kind) in [
        ("", 0, UnknownLine("")),
        ("pugmark 0.1.0", 0, UnknownLine("pugmark")),
        ("runs a", 0, UnknownLine("runs")),
        (" run a", 0, UnknownLine("")),
        // Words that are missing.
        ("run", 3, MissingWord("NAME")),
        ("fail", 4, MissingWord("NAME")),
        ("done 1", 6, MissingWord("FAILED")),
        ("session a", 9, MissingWord("SESSION")),
        ("session a  ", 11, MissingWord("SESSION")),
        ("stat a count=1  ", 16, MissingKey("hash")),
        ("top a 1", 7, MissingWord("COUNT")),
        ("piece a", 7, MissingWord("INDEX")),
        ("sample a 1 0x1", 14, MissingWord("COUNT")),
        ("precise a 1 0x1", 15, MissingWord("NEXT")),
        ("branch a 1 0x1", 14, MissingWord("TO")),
        // Too many words.
        ("run a b", 6, TrailingWord("b")),
        ("ok a b", 5, TrailingWord("b")),
        ("done 1 2 3", 9, TrailingWord("3")),
        ("session a 1 2", 12, TrailingWord("2")),
        ("missing a x y", 12, TrailingWord("y")),
        ("sample a 1 2 3 4", 15, TrailingWord("4")),
        ("dump a bytes=1 more", 15, NotAPair("more")),
        ("filter a cpl", 9, NotAPair("cpl")),
        ("stat a 5", 7, NotAPair("5")),
        // Keys.
        ("stat a count=1", 14, MissingKey("hash")),
        ("stat a count=1 hash=2 bytes=3 pmis=4", 36, MissingKey("loss")),
        ("piece a 0 count=1 hash=1 first=1 last=1", 39, MissingKey("after")),
        ("records a 0 hash=1 after=off", 28, MissingKey("count")),
        ("fault a address=0x1", 19, MissingKey("code")),
        ("probe a value=1", 15, MissingKey("msr")),
        ("dump a", 6, MissingKey("bytes")),
        ("section a base=1 len=1 from=1", 29, MissingKey("cr3")),
        ("filter a level=0", 9, UnknownKey("level")),
        ("lost a ovf=0 dropped=1", 13, UnknownKey("dropped")),
        ("count a session=1 event=1 value=1 values=2", 34, UnknownKey("values")),
        // Numbers.
        ("session a x", 10, BadNumber { field: "SESSION", text: "x" }),
        ("session a 65536", 10, BadNumber { field: "SESSION", text: "65536" }),
        ("session a -1", 10, BadNumber { field: "SESSION", text: "-1" }),
        ("top a x f 3", 6, BadNumber { field: "RANK", text: "x" }),
        ("top a 1 f g", 10, BadNumber { field: "COUNT", text: "g" }),
        ("piece a one", 8, BadNumber { field: "INDEX", text: "one" }),
        ("sample a 1 zz 1", 11, BadNumber { field: "ADDRESS", text: "zz" }),
        ("precise a 1 any none", 12, BadNumber { field: "EVENT", text: "any" }),
        ("filter a cr3=zz", 13, BadNumber { field: "cr3", text: "zz" }),
        ("probe a msr=0x100000000", 12, BadNumber { field: "msr", text: "0x100000000" }),
        ("probe a msr=1 value=", 20, BadNumber { field: "value", text: "" }),
        (
            "lost a stop=1 stop=0xffffffffffffffff",
            19,
            BadNumber { field: "stop", text: "0xffffffffffffffff" },
        ),
        ("done x 1", 5, BadNumber { field: "PASSED", text: "x" }),
        // Values.
        ("filter a cpl=1", 13, BadValue { field: "cpl", text: "1" }),
        ("filter a range=a", 15, BadValue { field: "range", text: "a" }),
        ("filter a stop=any", 14, BadValue { field: "stop", text: "any" }),
        ("last a session=1 stack=of entries=0", 23, BadValue { field: "stack", text: "of" }),
        ("records a 0 count=1 hash=1 after=that", 33, BadValue { field: "after", text: "that" }),
        ("samples a session=1 of=loads", 23, BadValue { field: "of", text: "loads" }),
    ] {
        assert_eq!(Line::parse(text), Err(ParseError { at, kind }), "{text:?}");
    }
}

#[test]
fn a_line_without_one_of_its_words_is_another_one_or_none() {
    // These two follow from the others, and are not read.
    let unread = |word: &str| word.starts_with("instructions=") || word.starts_with("bpi=");
    for (line, text) in EXAMPLES {
        let words: Vec<&str> = text.split(' ').collect();
        for left_out in (1..words.len()).filter(|word| !unread(words[*word])) {
            let mut fewer = words.clone();
            fewer.remove(left_out);
            assert_ne!(Line::parse(&fewer.join(" ")), Ok(line), "{fewer:?}");
        }
    }
}

#[test]
fn what_is_left_out_may_be_left_out() {
    let filter = Filter { level: Level::Os, ..Filter::default() };
    let none = Lost::default();
    for (text, line) in [
        ("filter a", Line::Filter("a", Filter::default())),
        ("filter a cpl=0", Line::Filter("a", filter)),
        ("lost a", Line::Lost("a", none)),
        ("lost a full=2", Line::Lost("a", Lost { full: 2, ..none })),
        (
            "stat a loss=5 pmis=4 bytes=9 hash=16 count=3",
            Line::Stat("a", Stat { decode_us: None, branches: None, ..STAT }),
        ),
        ("refuse a", Line::Refuse("a", "")),
        ("fail a", Line::Fail("a", "")),
        ("top a 1 5", Line::Top("a", Top { rank: 1, symbol: "", count: 5 })),
    ] {
        assert_eq!(Line::parse(text), Ok(line), "{text}");
    }
}

#[test]
fn an_error_says_where_and_what() {
    for (kind, text) in [
        (UnknownLine("x"), "at byte 7: no line begins with \"x\""),
        (MissingWord("NAME"), "at byte 7: there is no NAME"),
        (TrailingWord("x"), "at byte 7: the line ends before \"x\""),
        (MissingKey("hash"), "at byte 7: there is no hash="),
        (UnknownKey("x"), "at byte 7: the line has no key \"x\""),
        (NotAPair("x"), "at byte 7: \"x\" is not of the form KEY=VALUE"),
        (
            BadNumber { field: "hash", text: "x" },
            "at byte 7: hash is \"x\", which is no number, or too large a one",
        ),
        (BadValue { field: "after", text: "x" }, "at byte 7: after is \"x\", which is none of its values"),
    ] {
        assert_eq!(ParseError { at: 7, kind }.to_string(), text);
    }
}
