//! `pugmark annotate`: each instruction of a function must have callgrind's count, and each line of source gcov's.

use super::Recorded;
use serde_json::Value;
use std::{collections::BTreeMap, fs};

/// `work` has a branch that is never taken, and calls a function that is put into it.
const PROGRAM: &str = r"
static inline __attribute__((always_inline)) int square(int x) {
    return x * x;
}
__attribute__((noipa)) int work(int n) {
    int sum = 0;
    while (n > 0) {
        n--;
        if (n % 3 == 0)
            sum += square(n);
        else if (n == 1000)
            sum = -1;
        sum++;
    }
    return sum;
}
int main(void) {
    volatile int sum = work(30);
    sum += work(5);
    return 0;
}";

fn recorded() -> Recorded {
    Recorded::new(PROGRAM, &["-O0", "-no-pie"], &[])
}

impl Recorded {
    /// Returns the only function that is annotated.
    fn annotate(&self, options: &[&str]) -> Value {
        let text = self.pugmark(&[&["annotate", "--json"], options, &["work", "rec"]].concat());
        let found: Value = serde_json::from_str(&text).unwrap();
        let [function] = &found["functions"].as_array().unwrap()[..] else { panic!("{found}") };
        function.clone()
    }

    /// Returns the address of `work`.
    fn address(&self) -> u64 {
        let names = self.run("nm", &["program"]);
        let line = names.lines().find(|line| line.ends_with(" T work")).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    }
}

/// Returns the count of each instruction of `work` by callgrind: its own, not that of calls.
fn callgrind(recorded: &Recorded) -> Option<BTreeMap<u64, u64>> {
    let options = ["--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"];
    let arguments =
        [&["--tool=callgrind", "--callgrind-out-file=out"], &options[..], &["./program"]].concat();
    let output = recorded.output("valgrind", &arguments)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = fs::read_to_string(recorded.0.file("out")).unwrap();
    let (mut counts, mut is_in, mut is_call) = (BTreeMap::new(), false, false);
    for line in profile.lines() {
        is_in = line.strip_prefix("fn=").map_or(is_in, |name| name == "work");
        if let Some((address, count)) = line.strip_prefix("0x").and_then(|line| line.split_once(' '))
            && !std::mem::take(&mut is_call)
            && is_in
        {
            let address = u64::from_str_radix(address, 16).unwrap();
            *counts.entry(address).or_default() += count.parse::<u64>().unwrap();
        }
        is_call |= line.starts_with("calls=");
    }
    Some(counts)
}

#[test]
fn each_instruction_has_the_count_of_callgrind_and_those_that_were_not_executed_have_none() {
    let recorded = recorded();
    let function = recorded.annotate(&[]);
    let instructions = function["instructions"].as_array().unwrap();
    let begin = recorded.address();
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap();
    let counts: BTreeMap<u64, u64> =
        instructions.iter().map(|insn| (begin + number(insn, "offset"), number(insn, "count"))).collect();
    // All of its instructions are there, as objdump lists them.
    let listed = recorded.run("objdump", &["-d", "--disassemble=work", "--no-show-raw-insn", "program"]);
    let listed = listed.lines().filter_map(|line| {
        u64::from_str_radix(line.trim().split_once(':')?.0, 16).ok().filter(|_| line.starts_with(' '))
    });
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), listed.collect::<Vec<_>>());
    assert_eq!(number(&function, "sum"), counts.values().sum::<u64>());
    // `sum = -1` is never executed.
    assert_eq!(counts.values().filter(|count| **count == 0).count(), 1, "{function}");
    let text = recorded.pugmark(&["annotate", "work", "rec"]);
    assert!(text.starts_with("work (") && text.lines().count() == counts.len() + 2, "{text}");
    let Some(expected) = callgrind(&recorded) else {
        return println!("skipped: valgrind is not installed");
    };
    let executed: BTreeMap<_, _> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(executed, expected);
}

#[test]
fn each_line_has_the_count_of_gcov() {
    let recorded = recorded();
    let function = recorded.annotate(&["--source"]);
    let lines = function["lines"].as_array().unwrap().iter().map(|line| {
        let number = line["line"].as_str().unwrap().rsplit(':').next().unwrap().parse::<usize>().unwrap();
        (number, line["count"].as_u64().unwrap())
    });
    let mut lines: BTreeMap<_, _> = lines.collect();
    // The end of a function is no line to gcov.
    assert_eq!(lines.remove(&16), Some(2), "{lines:?}");
    recorded.run("cc", &["-O0", "--coverage", "-o", "counted", "program.c"]);
    recorded.run("./counted", &[]);
    let Some(output) = recorded.output("gcov", &["-t", "counted-program.c"]) else {
        return println!("skipped: gcov is not installed");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let gcov: BTreeMap<usize, u64> = text
        .lines()
        .filter_map(|line| {
            let mut columns = line.split(':').map(str::trim);
            let count = columns.next()?.replace("#####", "0");
            Some((columns.next()?.parse().ok()?, count.trim_end_matches('*').parse().ok()?))
        })
        .collect();
    assert_eq!((lines.len(), lines[&12]), (11, 0), "{lines:?}");
    let of_work: BTreeMap<_, _> = gcov.into_iter().filter(|(line, _)| lines.contains_key(line)).collect();
    assert_eq!(lines, of_work, "{text}");
    let shown = recorded.pugmark(&["annotate", "--source", "work", "rec"]);
    assert!(shown.lines().any(|line| line.ends_with("sum += square(n);")), "{shown}");
}

#[test]
fn a_function_that_was_not_executed_is_refused_with_similar_names() {
    let recorded = recorded();
    let (status, text) = recorded.refused(&["annotate", "wrok", "rec"]);
    assert_eq!(status, Some(1));
    assert!(
        text.contains("annotate wrok: no function of that name was executed; similar names: work"),
        "{text}"
    );
    recorded.refused(&["annotate", "--object", "libc.so.6", "work", "rec"]);
    // Of the first call alone.
    let part = recorded.annotate(&["--between", "work"]);
    assert_eq!(part["instructions"][0]["count"], 1, "{part}");
}

/// Returns the numbers of a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn a_function_without_a_name_is_asked_for_by_the_address_that_views_print() {
    let named = recorded();
    let work = named.annotate(&[])["sum"].as_u64().unwrap();
    let recorded = Recorded::new(PROGRAM, &["-O0", "-no-pie", "-s"], &[]);
    let address = format!("{:#x}", named.address());
    let report = recorded.pugmark(&["report", "rec"]);
    assert!(report.lines().any(|line| line.ends_with(&format!("  {address}"))), "{report}");
    // Each command has the instructions that the names of the same program tell.
    let annotated = recorded.pugmark(&["annotate", &address, "rec"]);
    assert!(annotated.starts_with(&format!("{address} (")), "{annotated}");
    assert!(annotated.lines().next().unwrap().ends_with(&format!(": {work} instructions")), "{annotated}");
    assert_eq!(recorded.pugmark(&["script", "--function", &address, "rec"]).lines().count() as u64, work);
    let stats = recorded.pugmark(&["calls", "--stats", "--of", &address, "rec"]);
    assert!(stats.starts_with(&format!("{address}: 2 calls\n")), "{stats}");
    assert_eq!(numbers(stats.lines().last().unwrap()).last(), Some(&work), "{stats}");
    let between = recorded.pugmark(&["report", "--between", &address, "rec"]);
    let first_call = numbers(stats.lines().last().unwrap())[3];
    assert!(between.contains(&format!("in all: {first_call} instructions")), "{between} {stats}");
    assert_eq!(recorded.pugmark(&["last", "--before", &address, "-n", "1", "rec"]).lines().count(), 2);
    // Its caller has the address that report prints, too.
    let callers = recorded.pugmark(&["calls", "--callers", "--of", &address, "rec"]);
    let place = callers.lines().last().unwrap().rsplit(' ').next().unwrap();
    let caller = place.split_once("+0x").unwrap().0.to_owned();
    assert!(report.lines().any(|line| line.ends_with(&format!("  {caller}"))), "{callers}{report}");
    let made = recorded.pugmark(&["calls", "--of", &caller, "rec"]);
    assert!(made.lines().count() == 2 && made.lines().all(|line| line.ends_with(&address)), "{made}");
    let (status, text) = recorded.refused(&["annotate", "--source", &address, "rec"]);
    assert_eq!(
        (status, text.contains("no line of 0x") && text.contains("no debug information")),
        (Some(1), true)
    );
}

#[test]
fn a_function_that_script_does_not_find_is_an_error() {
    let recorded = recorded();
    for (function, expected) in [
        ("wrok", "--function wrok: no function of that name was executed; similar names: work"),
        ("0x10", "--function 0x10: no function of that name was executed"),
    ] {
        let (status, text) = recorded.refused(&["script", "--function", function, "rec"]);
        assert_eq!((status, text.contains(expected)), (Some(1), true), "{text}");
    }
    // Of a function that was executed, nothing may be within the addresses.
    assert_eq!(recorded.pugmark(&["script", "--function", "work", "--addresses", "1-2", "rec"]), "");
}

/// A function that is put into two others, twice into one of them, and is one of its own, too.
const INLINED: &str = "static volatile int sink;
static inline __attribute__((always_inline)) void step(int x) {
    sink += x;
    if (x & 1)
        sink ^= 7;
}
__attribute__((noinline)) void few(int n) { for (int i = 0; i < n; i++) step(i); }
__attribute__((noinline)) void twice(int n) {
    for (int i = 0; i < n; i++) step(i);
    for (int i = 0; i < n; i++) step(i + 1);
}
int main(void) { few(10); twice(30); step(5); return 0; }
";

#[test]
fn lines_that_were_put_into_several_places_have_the_count_of_gcov() {
    let recorded = Recorded::new(INLINED, &["-O2", "-fno-unroll-loops", "-fno-tree-vectorize"], &[]);
    let counts = |text: &str| -> BTreeMap<usize, u64> {
        let line = |line: &str| {
            let (number, count) = line.strip_prefix("DA:")?.split_once(',')?;
            Some((number.parse().ok()?, count.parse().ok()?))
        };
        text.lines().filter_map(line).filter(|(line, _)| [3, 5].contains(line)).collect()
    };
    let lcov = counts(&recorded.pugmark(&["coverage", "-f", "lcov", "rec"]));
    assert_eq!(lcov, BTreeMap::from([(3, 10 + 30 + 30 + 1), (5, 5 + 15 + 15 + 1)]));
    // In a function, its own copies.
    let text = recorded.pugmark(&["annotate", "--source", "--json", "twice", "rec"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of_line = |number: &str| {
        let lines = json["functions"][0]["lines"].as_array().unwrap();
        lines.iter().find(|line| line["line"].as_str().unwrap().ends_with(number)).unwrap()["count"].as_u64()
    };
    assert_eq!([of_line(".c:3"), of_line(".c:5")], [Some(60), Some(30)], "{text}");
    recorded.run("cc", &["--coverage", "-O0", "-o", "counted", "program.c"]);
    recorded.run("./counted", &[]);
    let Some(output) = recorded.output("gcov", &["-t", "counted-program.c"]) else {
        return println!("skipped: gcov is not installed");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let mut parts = line.split(':').map(str::trim);
        let count = parts.next()?.trim_end_matches('*').parse().ok()?;
        Some((parts.next()?.parse().ok()?, count))
    };
    let gcov: BTreeMap<usize, u64> =
        text.lines().filter_map(line).filter(|(line, _)| [3, 5].contains(line)).collect();
    assert_eq!(lcov, gcov, "{text}");
}
