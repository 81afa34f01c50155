//! A stripped program must have the rows of the same program with symbols, each function by its address.

use super::Recorded;
use serde_json::Value;
use std::{collections::BTreeMap, fs};

/// `twice` jumps to `once`, which lies before it and is called only later; `rare` has a part that lies elsewhere.
const PROGRAM: &str = r"
#include <stdlib.h>
__attribute__((noipa)) static int once(int x) {
    for (int i = 0; i < 3; i++) x += x >> 2;
    return x + 1;
}
__attribute__((noipa)) static int twice(int x) { return once(x * 2); }
__attribute__((noipa, cold)) static int seldom(int x) { return x ^ 0x55; }
__attribute__((noipa)) static int rare(int x) {
    if (__builtin_expect(x % 7 == 0, 0)) return seldom(x) + seldom(x + 1);
    return x + 3;
}
static int compare(const void *a, const void *b) { return *(const int *)a - rare(*(const int *)b); }
int main(void) {
    int numbers[20];
    for (int i = 0; i < 20; i++) numbers[i] = twice(i * 37 % 11);
    qsort(numbers, 20, sizeof *numbers, compare);
    volatile int sum = once(numbers[3]);
    return sum & 1;
}";

/// Returns the rows of the program's own functions, by name: instructions, branches, calls, and with children.
fn rows(recorded: &Recorded, names: &BTreeMap<String, String>) -> BTreeMap<String, [u64; 4]> {
    let text = recorded.pugmark(&["report", "--children", "--json", "--object", "program", "rec"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let row = |row: &Value| {
        let name = row["function"].as_str().unwrap();
        let counts = ["instructions", "branches", "calls", "instructions_with_children"];
        let counts = counts.map(|count| row[count].as_u64().unwrap_or_else(|| panic!("{count}: {row}")));
        (names.get(name).map_or(name, |name| name).to_owned(), counts)
    };
    let rows: Vec<_> = report["rows"].as_array().unwrap().iter().map(row).collect();
    let by_name: BTreeMap<_, _> = rows.iter().cloned().collect();
    assert_eq!(by_name.len(), rows.len(), "{text}");
    by_name
}

#[test]
fn functions_of_a_stripped_program_have_the_counts_that_they_have_by_name() {
    for options in [["-O2", "-no-pie"], ["-O1", "-freorder-functions"]] {
        let named = Recorded::new(PROGRAM, &options, &[]);
        let stripped = Recorded::new(PROGRAM, &[&options[..], &["-s"]].concat(), &[]);
        // Where a position-independent program is, is where it was in the other one.
        let moved = if options[1] == "-freorder-functions" { moved(&named) } else { 0 };
        let names = names(&named, moved);
        let (mut expected, mut found) = (rows(&named, &BTreeMap::new()), rows(&stripped, &names));
        // The file has no unwind table of it, so that its jump to another function of that kind is not known for one.
        for rows in [&mut expected, &mut found] {
            rows.entry("frame_dummy".into()).and_modify(|counts| counts[3] = 0);
        }
        assert!(expected.contains_key("once") && expected.contains_key("twice"), "{expected:?}");
        assert_eq!(found, expected, "{options:?}");
    }
}

/// Returns the counts of the program's own functions, by name: instructions, branches, calls, how often entered.
fn counted(recorded: &Recorded, names: &BTreeMap<String, String>) -> BTreeMap<String, [u64; 4]> {
    recorded.pugmark(&["stat", "--json", "--by", "object,function", "-o", "stat", "--", "./program"]);
    let counted: Value = serde_json::from_slice(&fs::read(recorded.0.file("stat")).unwrap()).unwrap();
    let rows = counted["rows"].as_array().unwrap().iter();
    let own = rows.filter(|row| row["object"].as_str().unwrap().ends_with("/program"));
    let row = |row: &Value| {
        let name = row["function"].as_str().unwrap();
        let counts = ["instructions", "branches", "calls", "entered"].map(|of| row[of].as_u64().unwrap());
        (names.get(name).map_or(name, |name| name).to_owned(), counts)
    };
    own.map(row).collect()
}

#[test]
fn functions_of_a_stripped_program_are_counted_as_by_name() {
    if !pugmark_recorder::emulator_is_installed() {
        return println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
    }
    let options = ["-O2", "-no-pie"];
    let named = Recorded::new(PROGRAM, &options, &[]);
    let stripped = Recorded::new(PROGRAM, &[&options[..], &["-s"]].concat(), &[]);
    let (expected, found) = (counted(&named, &BTreeMap::new()), counted(&stripped, &names(&named, 0)));
    for function in ["once", "twice", "rare", "compare", "main", "_start"] {
        assert!(expected.contains_key(function), "{expected:?}");
        assert_eq!(found.get(function), expected.get(function), "{function}");
    }
}

/// Returns the names of the program's functions by the address that stands for each.
fn names(recorded: &Recorded, moved: u64) -> BTreeMap<String, String> {
    let listed = recorded.run("nm", &["program"]);
    let address = |line: &str| {
        let mut words = line.split(' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((format!("{:#x}", address + moved), words.nth(1)?.to_owned()))
    };
    listed.lines().filter_map(address).collect()
}

/// Returns how far the program was moved.
fn moved(recorded: &Recorded) -> u64 {
    let line = recorded.pugmark(&["script", "-F", "ip", "--function", "main", "rec"]);
    let at = u64::from_str_radix(line.lines().next().unwrap().trim(), 16).unwrap();
    let names = recorded.run("nm", &["program"]);
    let main = names.lines().find(|line| line.ends_with(" T main")).unwrap();
    at - u64::from_str_radix(main.split(' ').next().unwrap(), 16).unwrap()
}
