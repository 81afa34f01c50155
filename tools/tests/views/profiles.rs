//! `pugmark flamegraph` in formats of other programs: callgrind_annotate and Go's pprof must read from them what
//! `pugmark report` counts, and speedscope's JSON must have the folded stacks.

use super::Recorded;
use serde_json::Value;
use std::{collections::BTreeMap, fs};

const PROGRAM: &str = r"
#define ALONE __attribute__((noipa))
ALONE int fib(int n) { return n < 2 ? n : fib(n - 1) ^ fib(n - 2); }
ALONE int leaf(int x) { return x * 3 + 1; }
ALONE int work(int n) { int s = 0; for (int i = 0; i < n; i++) s += leaf(i); return s; }
int main(void) {
    volatile int sum = work(20) + fib(9);
    (void)sum;
    return 0;
}";

fn recorded() -> Recorded {
    Recorded::new(PROGRAM, &["-O1"], &[])
}

impl Recorded {
    /// Writes a profile into a file with the name of its format.
    fn write(&self, format: &str) {
        self.pugmark(&["flamegraph", "-f", format, "-o", format, "rec"]);
    }

    /// Returns the instructions of each function by `pugmark report`.
    fn reported(&self) -> BTreeMap<String, u64> {
        let text = self.pugmark(&["report", "--json", "--by", "function", "rec"]);
        let report: Value = serde_json::from_str(&text).unwrap();
        let row =
            |row: &Value| (row["function"].as_str().unwrap().into(), row["instructions"].as_u64().unwrap());
        summed(report["rows"].as_array().unwrap().iter().map(row))
    }
}

/// Adds up counts by name. Code without a name has its address in stacks, and its file in reports.
fn summed(counts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in counts.filter(|(_, count)| *count > 0) {
        let is_unnamed = name.starts_with("0x") || name.starts_with("[unknown]");
        *sums.entry(if is_unnamed { String::new() } else { name }).or_default() += count;
    }
    sums
}

#[test]
fn callgrind_annotate_reads_each_functions_instructions() {
    let recorded = recorded();
    recorded.write("callgrind");
    let Some(output) = recorded.output("callgrind_annotate", &["--threshold=100", "--auto=no", "callgrind"])
    else {
        return println!("skipped: valgrind is not installed");
    };
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str| line.split('(').next()?.trim().replace(',', "").parse::<u64>().ok();
    let row = |line: &str| {
        let (_, name) = line.split_once("???:")?;
        Some((name.trim_end_matches("'2").to_owned(), number(line)?))
    };
    let executed = recorded.reported();
    assert_eq!(summed(text.lines().filter_map(row)), executed);
    let total = text.lines().find(|line| line.ends_with("PROGRAM TOTALS")).and_then(number);
    assert_eq!(total, Some(executed.values().sum()));
    // Calls, and what they took: `fib` calls itself as another function, as callgrind names it.
    let profile = fs::read_to_string(recorded.0.file("callgrind")).unwrap();
    for (caller, callee, count) in [("main", "work", 1), ("work", "leaf", 20), ("main", "fib", 1)] {
        let (_, function) = profile.split_once(&format!("\nfn={caller}\n")).unwrap();
        let function = function.split("\nfn=").next().unwrap();
        assert!(function.contains(&format!("cfn={callee}\ncalls={count} 0\n")), "{caller} {function}");
    }
    let inclusive =
        recorded.run("callgrind_annotate", &["--inclusive=yes", "--threshold=100", "--auto=no", "callgrind"]);
    let work = inclusive.lines().find(|line| line.trim_end().ends_with("???:work")).and_then(number);
    assert_eq!(work, Some(executed["work"] + executed["leaf"]), "{inclusive}");
}

#[test]
fn pprof_reads_each_functions_instructions() {
    let recorded = recorded();
    recorded.write("pprof");
    let arguments = ["tool", "pprof", "-top", "-nodecount=1000", "-nodefraction=0", "-unit=count", "pprof"];
    let Some(output) = recorded.output("go", &arguments) else {
        return println!("skipped: Go is not installed");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // flat  flat%  sum%  cum  cum%  name
    let row = |line: &str| -> Option<(String, [u64; 2])> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [flat, _, _, cum, _, name @ ..] = &words[..] else { return None };
        Some((name.join(" "), [flat.parse().ok()?, cum.parse().ok()?]))
    };
    let found: BTreeMap<_, _> = text.lines().filter_map(row).collect();
    let flat = summed(found.iter().map(|(name, [flat, _])| (name.clone(), *flat)));
    let executed = recorded.reported();
    assert_eq!(flat, executed, "{text}");
    assert_eq!(found["work"][1], executed["work"] + executed["leaf"], "{text}");
}

#[test]
fn speedscope_has_the_folded_stacks() {
    let recorded = recorded();
    recorded.write("speedscope");
    let file: Value = serde_json::from_slice(&fs::read(recorded.0.file("speedscope")).unwrap()).unwrap();
    let frames = file["shared"]["frames"].as_array().unwrap();
    let profile = &file["profiles"][0];
    let name = |frame: &Value| frames[frame.as_u64().unwrap() as usize]["name"].as_str().unwrap();
    // The time until the next event is the cost of the functions that are open.
    let (mut open, mut at, mut lines) = (vec![], 0, vec![]);
    for event in profile["events"].as_array().unwrap() {
        let now = event["at"].as_u64().unwrap();
        if now > at {
            lines.push(format!("{} {}", open.join(";"), now - at));
        }
        at = now;
        match event["type"].as_str().unwrap() {
            "O" => open.push(name(&event["frame"])),
            _ => assert_eq!(open.pop(), Some(name(&event["frame"]))),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let folded = recorded.pugmark(&["flamegraph", "-f", "folded", "rec"]);
    assert_eq!(lines, folded.lines().collect::<Vec<_>>());
    assert_eq!(profile["endValue"], recorded.reported().values().sum::<u64>());
    assert_eq!((&profile["type"], &profile["unit"]), (&"evented".into(), &"none".into()));
    // Options of the picture are refused.
    for option in [&["--icicle"][..], &["--diff", "rec"]] {
        let words = [&["flamegraph", "-f", "pprof"], option, &["rec"]].concat();
        assert_eq!(recorded.refused(&words).0, Some(1), "{option:?}");
    }
}
