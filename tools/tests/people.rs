//! `pugmark report` and `pugmark script`: a program whose calls are known, recorded and looked at.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use pugmark_decoder_core::hash::AddressHash;
use pugmark_tools::pugmark::record::emulator_is_installed;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// `fib(10)` is called, and calls itself, 177 times in all; of a sum, gcc would make a loop. `tail` jumps to `leaf`.
const PROGRAM: &str = r"
__attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) ^ fib(n - 2); }
__attribute__((noinline)) int leaf(int x) { return x * 3 + 1; }
__attribute__((noinline)) int tail(int x) { return leaf(x + 1); }
__attribute__((noinline)) int never(int x) { return x / 7; }
int main(int count, char **words) {
    (void)words;
    if (count > 5) return never(count);
    int sum = 0;
    for (int i = 0; i < 20; i++) sum += tail(i);
    volatile int result = sum + fib(10);
    (void)result;
    return 0;
}";

/// A folder with a recording of the program. It is removed when the value is dropped.
struct Recorded(PathBuf);

impl Recorded {
    fn new(name: &str, engine: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-people-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("program.c"), PROGRAM).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-foptimize-sibling-calls", "-fno-ipa-cp", "-o", "program", "program.c"]);
        assert!(compiler.current_dir(&folder).status().unwrap().success());
        let recorded = Self(folder);
        recorded.text(&["record", "--engine", engine, "-o", "rec", "--", "./program"]);
        recorded
    }

    fn text(&self, arguments: &[&str]) -> String {
        Self::text_in(&self.0, arguments)
    }

    fn text_in(folder: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        let output = command.args(arguments).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

fn row<'a>(report: &'a Value, function: &str) -> Option<&'a Value> {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| {
        row["function"] == function && row["object"].as_str().is_some_and(|name| name.ends_with("program"))
    })
}

#[test]
fn a_report_has_each_function_with_its_calls_and_all_instructions() {
    let recorded = Recorded::new("report", "stepping");
    let report = recorded.json(&["report", "rec"]);
    let truth = recorded.json(&["decode", "rec"]);
    assert_eq!(report["instructions"], truth["instructions"]);
    // A tail call is a call, too.
    for (function, calls) in [("fib", 177), ("leaf", 20), ("tail", 20), ("main", 1)] {
        assert_eq!(row(&report, function).expect(function)["calls"], calls, "{function}");
    }
    assert_eq!(row(&report, "never"), None);
    let sum = |report: &Value| -> u64 {
        report["rows"].as_array().unwrap().iter().map(|row| row["instructions"].as_u64().unwrap()).sum()
    };
    assert_eq!(report["instructions"], sum(&report));
    let threads = recorded.json(&["report", "--by", "thread", "rec"]);
    assert_eq!((threads["rows"].as_array().unwrap().len(), sum(&threads)), (1, sum(&report)));
    for row in report["rows"].as_array().unwrap() {
        let number = |name: &str| row[name].as_f64().unwrap();
        let share = 100.0 * number("instructions") / report["instructions"].as_f64().unwrap();
        assert!((number("percent") - share).abs() < 0.01, "{row}");
    }
    let first = |sort| recorded.json(&["report", "--sort", sort, "rec"])["rows"][0].clone();
    assert_eq!(first("calls")["function"], "fib");
    let limited = recorded.json(&["report", "--percent-limit", "5", "rec"]);
    let percents = limited["rows"].as_array().unwrap().iter().map(|row| row["percent"].as_f64().unwrap());
    assert!(percents.clone().count() > 0 && percents.clone().all(|percent| percent >= 5.0));
    let csv = recorded.text(&["report", "--csv", "rec"]);
    let fib = row(&report, "fib").unwrap();
    assert!(csv.starts_with("percent,instructions,branches,calls,object,function\n"), "{csv}");
    assert!(csv.contains(&format!(",{},{},177,\"", fib["instructions"], fib["branches"])), "{csv}");
}

#[test]
fn a_flame_graph_has_each_chain_of_calls_with_its_instructions() {
    let recorded = Recorded::new("flame", "stepping");
    let report = recorded.json(&["report", "rec"]);
    let text = recorded.text(&["flamegraph", "-f", "folded", "rec"]);
    let lines: Vec<(Vec<&str>, u64)> = text
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(chain, count)| (chain.split(';').collect(), count.parse().unwrap()))
        .collect();
    assert_eq!(report["instructions"], lines.iter().map(|(_, count)| count).sum::<u64>());
    let own = |name: &str| -> u64 {
        lines.iter().filter(|(chain, _)| chain.last() == Some(&name)).map(|(_, count)| count).sum()
    };
    let reported = |name: &str| row(&report, name).expect(name)["instructions"].as_u64().unwrap();
    assert_eq!((own("fib"), own("main")), (reported("fib"), reported("main")));
    // A tail call stays in the function that made it.
    assert_eq!(own("tail"), reported("tail") + reported("leaf"));
    // fib(10) calls fib(9), and that goes on down to fib(1); main calls each.
    let recursion = lines.iter().map(|(chain, _)| chain.iter().filter(|name| **name == "fib").count()).max();
    assert_eq!(recursion, Some(10));
    // The first caller of either in each chain.
    let callers = lines.iter().flat_map(|(chain, _)| {
        ["fib", "tail"].map(|name| chain.windows(2).find(|pair| pair[1] == name).map(|pair| pair[0]))
    });
    assert!(callers.flatten().all(|caller| caller == "main"), "{text}");
    recorded.text(&["flamegraph", "-o", "flame.svg", "rec"]);
    let svg = fs::read_to_string(recorded.0.join("flame.svg")).unwrap();
    assert!(svg.contains(&format!("<title>all: {} instructions, 100.00 %", report["instructions"])), "{svg}");
    assert!(svg.contains("<title>fib: ") && svg.contains("<title>tail: "), "{svg}");
}

#[test]
fn either_engine_says_which_program_it_was_wherever_the_report_is_made() {
    for engine in ["stepping", "emulator"] {
        if engine == "emulator" && !emulator_is_installed() {
            println!("skipped: QEMU's user-mode emulator, version 5 to 8, is not installed");
            continue;
        }
        let recorded = Recorded::new(engine, engine);
        let folder = recorded.0.join("rec");
        let text = Recorded::text_in(
            Path::new("/"),
            &["report", "--json", folder.to_str().expect("the path is UTF-8")],
        );
        let report: Value = serde_json::from_str(&text).unwrap();
        let fib = row(&report, "fib").unwrap_or_else(|| panic!("{engine}: {text}"));
        assert_eq!(fib["calls"], 177, "{engine}");
        let program = fs::canonicalize(recorded.0.join("program")).unwrap();
        assert_eq!(fib["object"].as_str().map(Path::new), Some(&*program), "{engine}");
    }
}

#[test]
fn a_script_has_every_instruction_in_order_and_names_its_function() {
    let recorded = Recorded::new("script", "stepping");
    let truth = recorded.json(&["decode", "rec"]);
    let text = recorded.text(&["script", "-F", "ip", "rec"]);
    let mut hash = AddressHash::new();
    let mut count = 0;
    for line in text.lines() {
        assert_eq!(line.len(), 17, "{line}");
        hash.add(u64::from_str_radix(line.trim_start(), 16).unwrap());
        count += 1;
    }
    assert_eq!(truth["instructions"], count);
    assert!(truth.to_string().contains(&format!("{:#018x}", hash.value())), "{truth}");
    let report = recorded.json(&["report", "rec"]);
    let fib = recorded.text(&["script", "--function", "fib", "rec"]);
    assert_eq!(row(&report, "fib").unwrap()["instructions"], fib.lines().count());
    let first: Vec<_> = fib.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(first[1], "fib+0x0");
    assert!(first[2].starts_with('(') && first[2].ends_with("program)"), "{first:?}");
    assert_eq!(fib.lines().filter(|line| line.contains(" fib+0x0 ")).count(), 177);
    let from = u64::from_str_radix(first[0], 16).unwrap();
    let entry = format!("{from:#x}-{:#x}", from + 1);
    let entries = recorded.text(&["script", "-F", "sym", "--addresses", &entry, "rec"]);
    assert_eq!(entries, " fib\n".repeat(177));
}
