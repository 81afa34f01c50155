use super::*;
use crate::pugmark::cli::{Cli, PugmarkCommand};
use crate::symbols::TracedSymbols;
use clap::Parser;
use std::collections::BTreeSet;

static UNNAMED: UnnamedFunctions = UnnamedFunctions::NONE;

fn options(words: &str) -> ReportOptions {
    let words = format!("pugmark report {words} trace");
    match Cli::parse_from(words.split_whitespace()).command {
        PugmarkCommand::Report(options) => options,
        other => panic!("{other:?}"),
    }
}

/// Counts with `a` at 1000, `b` at 1020, both in `/x`, and unknown code at 5000. The instruction at 1004 is a call.
fn counted(words: &str) -> ReportSums {
    let symbols =
        TracedSymbols::known(&[("a", 0x1000, 0x1010), ("b", 0x1020, 0x1030)], &[("/x", 0x1000, 0x2000)]);
    let executed = Executed {
        insns: [(0x1000, 2), (0x1004, 3), (0x1020, 5), (0x5000, 1)].into(),
        edges: [
            ((0x1004, 0x1020), 20),
            // A branch that is not taken or leads into the function is no call.
            ((0x1008, 0x100a), 300),
            ((0x1008, 0x1024), 1000),
            // A loop to the begin of the function is not a call; a jump to another function is one.
            ((0x1028, 0x1020), 4000),
            ((0x102a, 0x1000), 50_000),
            ((0x5000, 0x1000), 600_000),
        ]
        .into(),
        calls: [0x1004].into(),
        ..Executed::default()
    };
    let options = options(words);
    let mut counted = ReportSums::default();
    counted.add(
        &executed,
        &TraceRows { wanted: options.wanted(), symbols: &symbols, unnamed: &UNNAMED, thread: "thread" },
    );
    assert_eq!((counted.instructions, counted.branches), (11, 655_320), "{words}");
    counted
}

fn keys(thread: Option<&str>, object: Option<&str>, function: Option<&str>) -> Keys {
    [thread, object, function, None, None].map(|name| name.map(Into::into))
}

fn counts(instructions: u64, branches: u64, calls: u64) -> Counts {
    Counts { instructions, branches, calls, ..Counts::default() }
}

#[test]
fn instructions_and_branches_count_where_they_are_and_calls_where_they_lead() {
    let unknown = Some("[unknown]");
    let expected = [
        (keys(Some("thread"), Some("/x"), Some("a")), counts(5, 1320, 650_000)),
        (keys(Some("thread"), Some("/x"), Some("b")), counts(5, 54_000, 20)),
        (keys(Some("thread"), unknown, unknown), counts(1, 600_000, 0)),
    ];
    assert_eq!(counted("--by function,object,thread").rows, expected.into());
    let expected = [
        (keys(None, Some("/x"), None), counts(10, 55_320, 650_020)),
        (keys(None, unknown, None), counts(1, 600_000, 0)),
    ];
    assert_eq!(counted("--by object").rows, expected.into());
    let expected = [(keys(Some("thread"), None, None), counts(11, 655_320, 650_020))];
    assert_eq!(counted("--by thread").rows, expected.into());
    // A recursion is a call, though it stays in its function.
    let symbols = TracedSymbols::known(&[("a", 0x1000, 0x1010)], &[]);
    let executed =
        Executed { edges: [((0x1004, 0x1000), 7)].into(), calls: [0x1004].into(), ..Executed::default() };
    let mut found = ReportSums::default();
    let wanted = WantedRows { by: &[Key::Function], ..WantedRows::default() };
    found.add(&executed, &TraceRows { wanted, symbols: &symbols, unnamed: &UNNAMED, thread: "" });
    assert_eq!(found.rows, [(keys(None, None, Some("a")), counts(0, 7, 7))].into());
}

#[test]
fn functions_without_a_name_have_the_address_that_was_called() {
    let symbols =
        TracedSymbols::known(&[("a", 0x1000, 0x1010), ("b", 0x1040, 0x1050)], &[("/l/x.so", 0x1000, 0x2000)]);
    let executed = Executed {
        insns: [(0x1000, 1), (0x1012, 2), (0x1020, 4), (0x1030, 8), (0x1060, 16), (0x5000, 32)].into(),
        edges: [((0x1000, 0x1020), 3), ((0x1000, 0x1040), 9), ((0x1020, 0x1030), 5)].into(),
        calls: [0x1000].into(),
        ..Executed::default()
    };
    let unnamed = UnnamedFunctions::of(&executed, &symbols);
    let rows = |words: &str| {
        let options = options(words);
        let mut counted = ReportSums::default();
        let rows = TraceRows { wanted: options.wanted(), symbols: &symbols, unnamed: &unnamed, thread: "" };
        counted.add(&executed, &rows);
        let row =
            |(keys, counts): (Keys, Counts)| (keys[2].clone().unwrap(), counts.instructions, counts.calls);
        counted.rows.into_iter().map(row).collect::<Vec<_>>()
    };
    // No call leads to code before the first entry, after a function with a name, or outside of all files.
    let expected =
        [("0x1020", 12, 3), ("[unknown]", 32, 0), ("[unknown] in x.so", 18, 0), ("a", 1, 0), ("b", 0, 9)];
    assert_eq!(rows("--by function"), expected.map(|(name, insns, calls)| (name.to_owned(), insns, calls)));
    assert_eq!(rows("--by function --function 0x1020"), [("0x1020".to_owned(), 12, 3)]);
}

#[test]
fn a_jump_that_leaves_its_function_tells_a_function_without_a_name_in_any_order() {
    let symbols = TracedSymbols::known(
        &[("a", 0x1000, 0x1010), ("b", 0x1800, 0x1810)],
        &[("/l/x.so", 0x1000, 0x2000), ("/l/y.so", 0x3000, 0x4000)],
    );
    let calls = [0x1100, 0x1200];
    for (jumps, begins) in [
        // From a function with a name, from another file, and from nowhere.
        (&[(0x1004, 0x1300)][..], &[0x1300][..]),
        (&[(0x3000, 0x1300)], &[0x1300]),
        (&[(0x5000, 0x1300)], &[0x1300]),
        // To before the begin: before the function, and before one with a name.
        (&[(0x1210, 0x1180)], &[0x1180]),
        (&[(0x1820, 0x1700)], &[0x1700]),
        // Loops, tables, and parts that lie elsewhere and jump back.
        (&[(0x1210, 0x1200), (0x1210, 0x1208), (0x1210, 0x1600), (0x1020, 0x1080)], &[]),
        (&[(0x1110, 0x1300)], &[]),
        // To a function with a name.
        (&[(0x1210, 0x1004)], &[]),
        // A begin that one jump tells makes other jumps leave their functions.
        (&[(0x1008, 0x1400), (0x1410, 0x1390), (0x1398, 0x1380)], &[0x1380, 0x1390, 0x1400]),
    ] {
        let expected: BTreeSet<u64> = calls.iter().chain(begins).copied().collect();
        for first in 0..=jumps.len() {
            let (before, after) = jumps.split_at(first);
            let mut found = UnnamedFunctions::default();
            let mut told = vec![];
            after.iter().for_each(|(from, to)| told.extend(found.jump(*from, *to, &symbols)));
            calls.iter().for_each(|to| told.extend(found.call(*to, &symbols)));
            before.iter().rev().for_each(|(from, to)| told.extend(found.jump(*from, *to, &symbols)));
            // Each is told once.
            assert_eq!(told.len(), expected.len(), "{jumps:x?} {told:x?}");
            assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), expected, "{jumps:x?}");
            assert!(expected.iter().all(|begin| found.begin(*begin, &symbols) == Some(*begin)));
        }
    }
}

#[test]
fn rows_that_are_not_wanted_are_left_out_and_count_in_all() {
    let (a, b) = (counts(5, 1320, 650_000), counts(5, 54_000, 20));
    let unknown = counts(1, 600_000, 0);
    for (words, expected) in [
        ("--function a", &[("a", a)][..]),
        ("--object x", &[("a", a), ("b", b)]),
        ("--object /x --function b", &[("b", b)]),
        ("--object [unknown]", &[("[unknown]", unknown)]),
        // Neither a part of a name nor a function of another file matches.
        ("--function [a]", &[]),
        ("--object y --function a", &[]),
        ("--object [unknown] --function a", &[]),
    ] {
        let counted = counted(&format!("--by function {words}"));
        let row = |(name, counts): &(&str, Counts)| (keys(None, None, Some(name)), *counts);
        assert_eq!(counted.rows, expected.iter().map(row).collect(), "{words}");
        let report = options(words).report(counted);
        let selected = expected.iter().map(|(_, counts)| counts.instructions).sum();
        assert_eq!((report.instructions, report.selected_instructions), (11, Some(selected)), "{words}");
        for row in report.rows {
            let percent = row.counts.instructions as f64 * 100.0 / 11.0;
            assert!((row.percent - percent).abs() < 1e-9, "{words}: {row:?}");
        }
    }
    assert_eq!(options("").report(counted("")).selected_instructions, None);
    assert_eq!(options("--function f --object x").wanted_words(), ["--object x", "--function f"]);
}

fn names(report: &FunctionReport) -> String {
    let names = report.rows.iter().flat_map(|row| row.names.values());
    names.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Rows with instructions, branches, calls, instructions with children, time, and time with children.
fn table() -> ReportSums {
    let rows = [
        ("a", [30, 1, 3, 35, 5, 195]),
        ("b", [60, 2, 1, 100, 20, 30]),
        ("c", [10, 3, 2, 10, 175, 175]),
        ("d", [0, 3, 0, 0, 0, 0]),
    ];
    let row = |(name, [instructions, branches, calls, whole, own, both]): (&str, [u64; 6])| {
        let counts = Counts {
            instructions_with_children: Some(whole),
            time: Some(own),
            time_with_children: Some(both),
            ..counts(instructions, branches, calls)
        };
        (keys(None, None, Some(name)), counts)
    };
    ReportSums {
        rows: rows.map(row).into(),
        instructions: 100,
        branches: 9,
        errors: 4,
        time: 200,
        unit: Some(Unit::Ticks),
        ..ReportSums::default()
    }
}

#[test]
fn the_largest_comes_first_and_the_smallest_may_be_left_out() {
    for (words, expected) in [
        ("", "b a c d"),
        ("--sort instructions", "b a c d"),
        ("--sort branches", "c d b a"),
        ("--sort calls", "a c b d"),
        ("--time", "b a c d"),
        ("--children", "b a c d"),
        ("--children --sort calls", "a c b d"),
        ("--sort time", "c b a d"),
        ("--sort children-time", "a c b d"),
        ("--time --children", "b a c d"),
        ("--percent-limit 10", "b a c"),
        ("--percent-limit 10.1", "b a"),
        ("--percent-limit 60", "b"),
        // With what was called, if rows are sorted by that.
        ("--percent-limit 35 --children", "b a"),
        ("--percent-limit 35 --children --sort instructions", "b"),
        ("--percent-limit 10 --sort time", "c b"),
        ("--percent-limit 15 --sort children-time", "a c b"),
        ("--percent-limit 15.1 --sort children-time", "a c"),
    ] {
        let report = options(words).report(table());
        assert_eq!(names(&report), expected, "{words}");
        // Rows that are left out still count.
        assert_eq!((report.instructions, report.branches, report.errors), (100, 9, 4));
    }
    let nothing =
        ReportSums { rows: [(keys(None, None, Some("a")), counts(0, 0, 0))].into(), ..ReportSums::default() };
    let nothing = options("--sort children-time").report(nothing);
    assert_eq!(nothing.rows[0].percent.to_bits(), 0);
    for (text, accepted) in [("0", true), ("100", true), ("-1", false), ("100.5", false), ("x", false)] {
        assert_eq!(percent(text).is_ok(), accepted, "{text}");
    }
}

#[test]
fn percentages_are_of_instructions_or_of_the_time_that_rows_are_sorted_by() {
    for (words, own, whole) in [
        ("", 30.0, None),
        ("--time", 30.0, None),
        ("--children", 30.0, Some(35.0)),
        ("--sort children", 30.0, Some(35.0)),
        ("--sort time", 2.5, None),
        ("--sort time --children", 2.5, Some(97.5)),
        ("--sort children-time", 2.5, Some(97.5)),
    ] {
        let report = options(words).report(table());
        let a = report.rows.iter().find(|row| row.names["function"] == "a").unwrap();
        assert!((a.percent - own).abs() < 1e-9, "{words}: {a:?}");
        assert_eq!(a.percent_with_children, whole, "{words}");
    }
}

#[test]
fn columns_that_nobody_has_asked_for_are_not_there() {
    for (words, children, time) in [
        ("", false, false),
        ("--sort calls", false, false),
        ("--children", true, false),
        ("--sort children", true, false),
        ("--time", false, true),
        ("--sort time", false, true),
        ("--sort children-time", true, true),
    ] {
        let report = options(words).report(table());
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["rows"][0];
        let is_there = |name: &str| row.get(name).is_some();
        assert_eq!(is_there("instructions_with_children"), children, "{words}: {row}");
        assert_eq!(is_there("percent_with_children"), children, "{words}: {row}");
        assert_eq!(is_there("time"), time, "{words}: {row}");
        assert_eq!(is_there("time_with_children"), children && time, "{words}: {row}");
        assert_eq!(json.get("time").and_then(|all| all.as_u64()), time.then_some(200), "{words}: {json}");
        assert_eq!((report.columns.children, report.columns.time.is_some()), (children, time), "{words}");
    }
}

#[test]
fn a_line_belongs_to_the_function_that_executed_most_of_it() {
    let of = |functions: &[(&str, u64)]| {
        most(Some(&functions.iter().map(|(name, count)| ((*name).into(), *count)).collect()))
    };
    assert_eq!(of(&[("f", 1)]), "f");
    assert_eq!(of(&[("f", 1), ("g", 3), ("h", 2)]), "g and 2 more");
    assert_eq!(of(&[("f", 3), ("g", 3)]), "f and 1 more");
    assert_eq!((of(&[]), most(None)), (UNKNOWN.into(), UNKNOWN.into()));
    // The function is shown beside the line unless a column has it.
    for (by, beside) in [
        ("line", true),
        ("object,line", true),
        ("function,line", false),
        ("inlined,line", false),
        ("function", false),
    ] {
        let words = format!("--by {by}");
        let report = options(&words).report(counted(&words));
        assert!(report.rows.iter().all(|row| row.function_of_line.is_some() == beside), "{by}");
        assert_eq!(report.columns.functions_of_lines, beside, "{by}");
    }
    let report = options("--by line").report(counted("--by line"));
    assert_eq!(report.rows[0].function_of_line.as_deref(), Some("a and 2 more"));
}
