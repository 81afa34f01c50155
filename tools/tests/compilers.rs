//! `pugmark coverage -f autofdo` and `-f bolt`: LLVM's programs must read from them what was executed, and make the
//! program better by them.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use object::{Object, ObjectSegment, SegmentFlags, elf::PF_X};
use pugmark_harness::scratch::Scratch;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Command, Output},
};

/// `sum` is called four times, the last time by a jump; `odd` and `even` through a pointer. `clamp` is inlined.
/// The branches that are expected are never taken.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define ALONE __attribute__((noinline))
long last(long n);
static long odd(long x) { return x * x + 1; }
static long even(long x) { return x * -x; }
static long (*const kinds[])(long) = {even, odd, odd, odd};
static inline long clamp(long x) {
    if (x < 0)
        return 0;
    if (__builtin_expect(x > 900, 1))
        return 900 + x % 7;
    return x;
}
ALONE long sum(long n, long k) {
    long all = 0;
    for (long i = 0; i < n; i++) {
        all += clamp(kinds[i & 3](i % 16) & k);
        if (__builtin_expect(all > 100000, 1))
            all = all % 1009 + last(all % 7);
    }
    return all;
}
ALONE long last(long n) {
    if (n < 2)
        return 0;
    return sum(n - 1, 7);
}
static int order(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}
int main(int count, char **words) {
    long n = atoi(words[1]), all = 0;
    int *list = malloc(n * sizeof *list);
    for (long i = 0; i < n; i++)
        list[i] = i * 7919 % 1009;
    qsort(list, n, sizeof *list, order);
    for (long k = 0; k < 3; k++)
        all += sum(n, k);
    all += last(n);
    if (count > 5)
        puts("many words");
    printf("%ld %d\n", all, list[n / 2]);
    return 0;
}
"#;
/// The number of elements that the program is given.
const NUMBER: &str = "100";

/// A folder with the program, its source, and the recording `rec` of it.
struct Recorded(Scratch);

impl Recorded {
    /// Compiles and records the program; `None` if there is no clang.
    fn new(options: &[&str]) -> Option<Self> {
        let recorded = Self(Scratch::new().unwrap());
        fs::write(recorded.0.file("program.c"), PROGRAM).unwrap();
        if recorded.output("clang", &["--version"]).is_none() {
            println!("skipped: clang is not installed");
            return None;
        }
        recorded.compile("program", options);
        recorded.run(PUGMARK, &["record", "-o", "rec", "--", "./program", NUMBER]);
        Some(recorded)
    }

    fn compile(&self, out: &str, options: &[&str]) {
        let always =
            ["-O2", "-g", "-fdebug-info-for-profiling", "-Wl,-q", "-Wall", "-Werror", "-o", out, "program.c"];
        self.run("clang", &[&always[..], options].concat());
    }

    /// Runs a program in the folder; `None` if there is none of this name.
    fn output(&self, program: &str, words: &[&str]) -> Option<Output> {
        Command::new(program).args(words).current_dir(self.0.folder()).output().ok()
    }

    /// Returns what a program prints that succeeds.
    fn run(&self, program: &str, words: &[&str]) -> String {
        let output = self.output(program, words).unwrap_or_else(|| panic!("{program} is missing"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap() + &errors
    }

    /// Returns the first of LLVM's programs of this name that is installed, with a version at its end or without.
    fn llvm(&self, name: &str) -> Option<String> {
        let names =
            std::iter::once(name.into()).chain((14..30).rev().map(|version| format!("{name}-{version}")));
        let found = names.into_iter().find(|name| self.output(name, &["--version"]).is_some());
        if found.is_none() {
            println!("skipped: {name} is not installed");
        }
        found
    }

    /// Writes a profile into a file with the name of its format, and returns its lines.
    fn profile(&self, format: &str) -> Vec<String> {
        self.run(PUGMARK, &["coverage", "-f", format, "-o", format, "rec"]);
        fs::read_to_string(self.0.file(format)).unwrap().lines().map(Into::into).collect()
    }

    /// Returns the number of branches that a program takes: those that do not go on with the next instruction.
    fn taken(&self, program: &str) -> usize {
        self.run(PUGMARK, &["record", "-o", "taken.rec", "--", program, NUMBER]);
        self.run(PUGMARK, &["script", "--branches", "-F", "ip,addr", "taken.rec"]).lines().count()
    }
}

const PUGMARK: &str = env!("CARGO_BIN_EXE_pugmark");

/// The functions of a profile, each with its lines.
fn functions(lines: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut functions = BTreeMap::<String, Vec<String>>::new();
    let mut name = String::new();
    for line in lines {
        match line.starts_with(' ') {
            true => functions.get_mut(&name).unwrap().push(line.clone()),
            false => {
                name.clone_from(line);
                functions.entry(line.clone()).or_default();
            }
        }
    }
    functions
}

#[test]
fn clang_takes_the_profile_and_inlines_by_it() {
    let Some(recorded) = Recorded::new(&[]) else { return };
    let profile = functions(&recorded.profile("autofdo"));
    let counts = |name: &str| {
        let (head, lines) = profile.iter().find(|(head, _)| head.split(':').next() == Some(name)).unwrap();
        (head.rsplit(':').next().unwrap().parse::<u64>().unwrap(), lines)
    };
    // Three times 100 rounds, and once 99; of each four rounds three are odd.
    let (entered, lines) = counts("sum");
    assert_eq!(entered, 4);
    assert!(lines.iter().any(|line| line.ends_with(": 399 odd:299 even:100")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(": clamp:")), "{lines:?}");
    assert_eq!([counts("odd").0, counts("even").0, counts("main").0, counts("last").0], [299, 100, 1, 1]);
    // By a jump, and by the C library.
    assert!(counts("last").1.iter().any(|line| line.ends_with(" 1 sum:1")), "{:?}", counts("last"));
    assert!(counts("order").0 > 300, "{:?}", counts("order"));
    if let Some(profdata) = recorded.llvm("llvm-profdata") {
        let shown = recorded.run(&profdata, &["show", "--sample", "autofdo"]);
        assert!(shown.contains("Function: sum: ") && shown.contains(", 4, "), "{shown}");
        recorded.run(&profdata, &["merge", "--sample", "--text", "-o", "merged", "autofdo"]);
        let merged = fs::read_to_string(recorded.0.file("merged")).unwrap();
        assert_eq!(functions(&merged.lines().map(Into::into).collect::<Vec<_>>()), profile);
    }
    // No warning of a function that does not match; hot calls through the pointer become direct ones.
    let before = recorded.run("./program", &[NUMBER]);
    recorded.compile("better", &["-fprofile-sample-use=autofdo"]);
    assert_eq!(recorded.run("./better", &[NUMBER]), before);
    assert!(recorded.taken("./better") < recorded.taken("./program"));
    // Without lines there is no profile.
    recorded.compile("bare", &["-g0"]);
    recorded.run(PUGMARK, &["record", "-o", "bare.rec", "--", "./bare", NUMBER]);
    let refused = recorded.output(PUGMARK, &["coverage", "-f", "autofdo", "bare.rec"]).unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("compile it with -g"), "{said}");
}

/// Returns the lines of a profile of LLVM's or ours without totals, callees and code that has no line.
fn lines_alone(lines: &[String]) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let mut path: Vec<String> = vec![];
    for line in lines {
        let depth = line.len() - line.trim_start().len();
        let words: Vec<_> = line.split_whitespace().collect();
        path.truncate(depth);
        let [place, count, ..] = words[..] else {
            path.push(line.split(':').next().unwrap().into());
            continue;
        };
        match count.split_once(':') {
            Some((callee, _)) => path.push(format!("{place}{callee}")),
            // From the first line of a function back to line 0 are many lines.
            None if place.trim_end_matches(':').parse::<f64>().unwrap() < 60000.0 => {
                found.insert((format!("{}:{place}", path.join(",")), count.into()));
            }
            None => {}
        }
    }
    found
}

/// LLVM's own program, from the same branches as the processor's last branch records have them.
#[test]
fn each_line_has_the_count_that_llvm_profgen_finds() {
    // Of a program without libraries, which the records would not be followed through.
    let Some(recorded) = Recorded::new(&["-static"]) else { return };
    let Some(profgen) = recorded.llvm("llvm-profgen") else { return };
    let program = fs::read(recorded.0.file("program")).unwrap();
    let file = object::File::parse(&*program).unwrap();
    let is_code = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
    let code = file.segments().find(|segment| is_code(segment.flags())).unwrap();
    let (from, path) = (code.file_range().0, recorded.0.file("program"));
    let mut script = format!(
        "PERF_RECORD_MMAP2 1/1: [{:#x}({:#x}) @ {from:#x} 08:11 1 1]: r-xp {}\n",
        code.address(),
        code.size(),
        path.display()
    );
    let branches = recorded.run(PUGMARK, &["script", "--branches", "-F", "ip,addr", "rec"]);
    let branches: Vec<(&str, &str)> = branches
        .lines()
        .filter_map(|line| line.split_once("=>"))
        .map(|(from, to)| (from.trim(), to.trim()))
        .collect();
    // Each stack begins with the last branch of the one before, as the way from there to the next one belongs to it.
    for number in (0..branches.len()).step_by(31) {
        let stack = &branches[number..branches.len().min(number + 32)];
        script += &format!(" {}", stack[stack.len() - 1].1);
        stack.iter().rev().for_each(|(from, to)| script += &format!(" 0x{from}/0x{to}/P/-/-/0"));
        script += "\n\n";
    }
    fs::write(recorded.0.file("script"), script).unwrap();
    recorded.run(&profgen, &["--perfscript=script", "--binary=program", "--output=theirs", "--format=text"]);
    let theirs = fs::read_to_string(recorded.0.file("theirs")).unwrap();
    let theirs = lines_alone(&theirs.lines().map(Into::into).collect::<Vec<_>>());
    assert!(theirs.len() > 30, "{theirs:?}");
    assert_eq!(lines_alone(&recorded.profile("autofdo")), theirs);
}

#[test]
fn bolt_takes_the_profile_without_a_complaint_and_fewer_branches_are_taken() {
    let Some(recorded) = Recorded::new(&[]) else { return };
    let Some(bolt) = recorded.llvm("llvm-bolt") else { return };
    let lines = recorded.profile("bolt");
    assert!(lines.iter().any(|line| line.starts_with("B X:0 ")), "main is called by a library: {lines:?}");
    let words = ["program", "-o", "bolted", "-data=bolt", "-pa", "-reorder-blocks=ext-tsp", "-dyno-stats"]
        .into_iter();
    let words: Vec<_> = words.chain(["-print-sorted-by=executed-instructions"]).collect();
    let said = recorded.run(&bolt, &words);
    for none in ["mismatching disassembled function contents: 0", "involving unknown regions: 0"] {
        assert!(said.contains(none), "{said}");
    }
    // It counts as many instructions. Where padding is in the middle of a function, it would count that, too.
    let report = recorded.run(PUGMARK, &["report", "--json", "rec"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    for function in ["order", "odd", "even", "last"] {
        let row = report["rows"].as_array().unwrap().iter().find(|row| row["function"] == function).unwrap();
        let is_of = |line: &&str| line.trim().split(['/', '(', ' ']).next() == Some(function);
        let line = said.lines().filter(|line| line.contains("(executed-instructions=")).find(is_of);
        let executed = format!("(executed-instructions={})", row["instructions"]);
        assert!(line.is_some_and(|line| line.ends_with(&executed)), "{function} {executed}: {said}");
    }
    assert_eq!(recorded.run("./bolted", &[NUMBER]), recorded.run("./program", &[NUMBER]));
    assert!(recorded.taken("./bolted") < recorded.taken("./program"));
}
