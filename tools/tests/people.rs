//! `pugmark report` and `pugmark script`: a program whose calls are known, recorded and looked at.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use pugmark_decoder_core::hash::AddressHash;
use pugmark_recorder::emulator_is_installed;
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
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
        Self::of(name, PROGRAM, &["--engine", engine])
    }

    fn of(name: &str, program: &str, options: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-people-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("program.c"), program).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args([
            "-g",
            "-O1",
            "-pthread",
            "-foptimize-sibling-calls",
            "-fno-ipa-cp",
            "-o",
            "program",
            "program.c",
        ]);
        assert!(compiler.current_dir(&folder).status().unwrap().success());
        let recorded = Self(folder);
        recorded.text(&[&["record"], options, &["-o", "rec", "--", "./program"]].concat());
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
    // The number of calls in the loader depends on the processor and on LD_LIBRARY_PATH, which cargo sets.
    let most_called = recorded.json(&["report", "--sort", "calls", "--object", "program", "rec"]);
    assert_eq!(most_called["rows"][0]["function"], "fib");
    let limited = recorded.json(&["report", "--percent-limit", "5", "rec"]);
    let percents = limited["rows"].as_array().unwrap().iter().map(|row| row["percent"].as_f64().unwrap());
    assert!(percents.clone().count() > 0 && percents.clone().all(|percent| percent >= 5.0));
    let csv = recorded.text(&["report", "--csv", "rec"]);
    let fib = row(&report, "fib").unwrap();
    assert!(csv.starts_with("percent,instructions,branches,calls,object,function\n"), "{csv}");
    assert!(csv.contains(&format!(",{},{},177,\"", fib["instructions"], fib["branches"])), "{csv}");
}

#[test]
fn two_runs_part_at_a_branch_and_differ_by_functions() {
    const PARTS: &str = r#"
__attribute__((noipa)) int few(int x) { return x + 1; }
__attribute__((noipa)) int many(int x) { int sum = 0; for (int i = 0; i < x; i++) sum ^= i; return sum; }
__attribute__((noipa)) int choose(int x) { return x > 1 ? many(100) : few(1); }
__attribute__((noipa)) void begin(long *stack) {
    long status = choose((int)stack[0]) > 100000;
    __asm__ volatile("syscall" : : "a"(60L), "D"(status));
    __builtin_unreachable();
}
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin");
"#;
    let folder = std::env::temp_dir().join(format!("pugmark-diff-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let recorded = Recorded(folder);
    fs::write(recorded.0.join("parts.c"), PARTS).unwrap();
    let mut compiler = Command::new("cc");
    // A program's work before `main` depends on the number of its arguments.
    compiler.args(["-g", "-O1", "-static", "-nostdlib", "-o", "parts", "parts.c"]).current_dir(&recorded.0);
    assert!(compiler.status().unwrap().success());
    for (name, words) in [("one", &[][..]), ("again", &[]), ("two", &["word"])] {
        recorded.text(&[&["record", "--engine", "stepping", "-o", name, "--", "./parts"], words].concat());
    }
    let diff = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        let output = command.arg("diff").args(arguments).current_dir(&recorded.0).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, text) = diff(&["one", "again"]);
    assert!(status == Some(0) && text.contains("instructions, the same\n"), "{text}");
    let (status, text) = diff(&["one", "two"]);
    assert_eq!(status, Some(1), "{text}");
    // The branch is in `choose`, which `begin` has called.
    for line in [
        " instructions are the same, up to choose+0x",
        "    called at begin+0x",
        "  one goes on at choose+0x",
        "  two goes on at choose+0x",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("(parts.c:4)"), "{text}");
    let (status, text) = diff(&["--json", "one", "two"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &json["same"]), (Some(1), &Value::from(false)));
    // The counts of functions that differ equal those of each recording's report.
    let counts = |recording: &str| -> HashMap<String, u64> {
        let report = recorded.json(&["report", recording]);
        let rows = report["rows"].as_array().unwrap().iter();
        rows.map(|row| (row["function"].as_str().unwrap().into(), row["instructions"].as_u64().unwrap()))
            .collect()
    };
    let (one, two) = (counts("one"), counts("two"));
    let rows = json["functions"].as_array().unwrap();
    assert!(rows[0]["function"] == "many" && rows.len() == 3, "{json}");
    for row in rows {
        let name = row["function"].as_str().unwrap();
        let expected = [&one, &two].map(|counts| counts.get(name).copied().unwrap_or(0));
        assert_eq!(row["instructions"], serde_json::json!(expected), "{name}");
        assert!(["few", "many", "choose"].contains(&name) && expected[0] != expected[1], "{name}");
    }
    // The instructions before are those that both scripts begin with.
    let lines = |recording: &str| recorded.text(&["script", "-F", "ip", recording]);
    let (left, right) = (lines("one"), lines("two"));
    let common = left.lines().zip(right.lines()).take_while(|(left, right)| left == right).count();
    assert_eq!(json["traces"][0]["common"], common as u64);
    // With the only object file, and with names that no object file has.
    for (name, found) in [("parts", true), ("./parts", true), ("arts", false), ("other", false)] {
        let (status, alone) = diff(&["--json", "--object", name, "one", "two"]);
        assert_eq!((status, alone == text), (Some(1), found), "{name}: {alone}");
    }
    let (_, text) = diff(&["--limit", "1", "one", "two"]);
    assert!(
        text.contains("many (") && !text.contains("few (") && text.contains("2 functions more differ"),
        "{text}"
    );
}

#[test]
fn entries_of_linkage_tables_have_the_names_that_objdump_gives_them() {
    const CALLS: &str = r#"
#include <stdlib.h>
#include <string.h>
static int order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
int main(int count, char **words) {
    char *list[] = {"one", "two", "three", words[0]};
    qsort(list, 4, sizeof *list, order);
    return (int)strlen(list[count]) > 10000;
}"#;
    // One table; or a second one, whose entries begin with ENDBR64.
    for (name, flags) in
        [("plain", &["-fcf-protection=none"][..]), ("ibt", &["-fcf-protection=full", "-Wl,-z,ibtplt"])]
    {
        let folder = std::env::temp_dir().join(format!("pugmark-linkage-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("calls.c"), CALLS).unwrap();
        let recorded = Recorded(folder);
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).current_dir(&recorded.0).output().unwrap();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        run("cc", &[&["-O1", "-no-pie", "-fno-builtin", "-o", "calls", "calls.c"], flags].concat());
        let listing = run("objdump", &["-d", "calls"]);
        recorded.text(&["record", "--engine", "stepping", "-o", "rec", "--", "./calls"]);
        let text = recorded.text(&["script", "-F", "ip,symoff", "rec"]);
        let executed: HashSet<&str> = text.lines().map(str::trim).collect();
        // 0000000000401030 <strcmp@plt>:
        let entries = listing.lines().filter_map(|line| line.strip_suffix("@plt>:")?.split_once(" <"));
        let found: Vec<&str> = entries
            .filter(|(address, name)| {
                let address = address.trim_start_matches('0');
                let is_known = executed.contains(&*format!("{address} {name}@plt+0x0"));
                let was_executed = executed.iter().any(|line| line.split(' ').next() == Some(address));
                assert_eq!(is_known, was_executed, "{address} {name}");
                is_known
            })
            .map(|(_, name)| name)
            .collect();
        assert!(["strcmp", "qsort", "strlen"].iter().all(|name| found.contains(name)), "{name}: {found:?}");
    }
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
    for name in ["fib", "main", "tail", "leaf"] {
        assert_eq!(own(name), reported(name), "{name}");
    }
    // A function with all that it called, also by a jump, is the sum of the chains that it is in. `report` has the
    // same, and is compared with callgrind.
    let children = recorded.json(&["report", "--children", "rec"]);
    for name in ["fib", "main", "tail", "leaf", "_dl_start", "_dl_relocate_object"] {
        let Some(row) = row(&children, name) else { continue };
        let whole = lines.iter().filter(|(chain, _)| chain.contains(&name)).map(|(_, count)| count);
        assert_eq!(row["instructions_with_children"], whole.sum::<u64>(), "{name}: {row}");
    }
    // fib(10) calls fib(9), and that goes on down to fib(1); main calls each.
    let recursion = lines.iter().map(|(chain, _)| chain.iter().filter(|name| **name == "fib").count()).max();
    assert_eq!(recursion, Some(10));
    // The first caller of either in each chain.
    let callers = lines.iter().flat_map(|(chain, _)| {
        ["fib", "tail"].map(|name| chain.windows(2).find(|pair| pair[1] == name).map(|pair| pair[0]))
    });
    assert!(callers.flatten().all(|caller| caller == "main"), "{text}");
    let jumped = lines.iter().filter_map(|(chain, _)| chain.strip_suffix(&["leaf"]));
    assert!(
        jumped.clone().count() > 0 && jumped.clone().all(|chain| chain.ends_with(&["main", "tail"])),
        "{text}"
    );
    recorded.text(&["flamegraph", "-o", "flame.svg", "rec"]);
    let svg = fs::read_to_string(recorded.0.join("flame.svg")).unwrap();
    assert!(svg.contains(&format!("<title>all: {} instructions, 100.00 %", report["instructions"])), "{svg}");
    assert!(svg.contains("<title>fib: ") && svg.contains("<title>tail: "), "{svg}");
}

#[test]
fn either_engine_says_which_program_it_was_wherever_the_report_is_made() {
    for engine in ["stepping", "emulator"] {
        if engine == "emulator" && !emulator_is_installed() {
            println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
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

#[test]
fn instructions_are_counted_and_shown_with_their_lines_of_source() {
    let recorded = Recorded::new("lines", "stepping");
    let by = |key: &str| recorded.json(&["report", "--by", key, "rec"]);
    let (lines, functions, inlined) = (by("line"), by("function"), by("inlined"));
    let sum = |report: &Value| -> u64 {
        report["rows"].as_array().unwrap().iter().map(|row| row["instructions"].as_u64().unwrap()).sum()
    };
    assert_eq!((sum(&lines), sum(&inlined)), (sum(&functions), sum(&functions)));
    let of = |report: &Value, key: &str, end: &str| -> u64 {
        let rows = report["rows"].as_array().unwrap().iter();
        let rows = rows.filter(|row| row[key].as_str().is_some_and(|name| name.ends_with(end)));
        rows.map(|row| row["instructions"].as_u64().unwrap()).sum()
    };
    // Each of these functions is on a line of its own.
    for (function, line) in [("fib", 2), ("leaf", 3), ("tail", 4)] {
        let expected = of(&functions, "function", function);
        assert!(expected > 0, "{function}");
        assert_eq!(of(&lines, "line", &format!("/program.c:{line}")), expected, "{function}");
        assert_eq!(of(&inlined, "inlined", function), expected, "{function}");
    }
    // As perf script has it: below the instruction.
    let script = recorded.text(&["script", "--function", "fib", "-F", "sym,srcline", "rec"]);
    assert_eq!(script, " fib\n  program.c:2\n".repeat(of(&functions, "function", "fib") as usize));
    let last = recorded.text(&["last", "-n", "1", "--before", "tail", "rec"]);
    assert!(last.contains(" (program.c:10) -> tail (program.c:4)"), "{last}");
    recorded.text(&["timeline", "-o", "page.html", "rec"]);
    let page = fs::read_to_string(recorded.0.join("page.html")).unwrap();
    assert!(page.contains("/program.c:10\""), "the page names where tail was called");
}

/// Returns the addresses in a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok()).collect()
}

#[test]
fn branches_are_where_the_instructions_do_not_follow_one_another() {
    let recorded = Recorded::new("branches", "stepping");
    let insns = recorded.text(&["script", "--insns", "-F", "ip,insn", "rec"]);
    // The address of each instruction and the one after it.
    let insns: Vec<(u64, u64)> = insns
        .lines()
        .map(|line| {
            let (ip, bytes) = line.split_once(" insn: ").unwrap();
            let ip = u64::from_str_radix(ip.trim(), 16).unwrap();
            (ip, ip + bytes.split(' ').count() as u64)
        })
        .collect();
    let expected: Vec<_> =
        insns.windows(2).filter(|pair| pair[0].1 != pair[1].0).map(|pair| (pair[0].0, pair[1].0)).collect();
    let text = recorded.text(&["script", "--branches", "-F", "ip,addr", "rec"]);
    let branches: Vec<_> = text.lines().map(numbers).map(|found| (found[0], found[1])).collect();
    let next: std::collections::BTreeMap<u64, u64> = insns.iter().copied().collect();
    // System calls are not traced, and a branch may go to the next instruction.
    let outside = |(from, to): &(u64, u64)| *from == 0 || *to == 0 || next.get(from) == Some(to);
    let inside: Vec<_> = branches.iter().copied().filter(|branch| !outside(branch)).collect();
    assert!(expected.len() > 1000);
    assert_eq!(inside, expected);
    // It begins with the first instruction.
    assert_eq!(branches[0], (0, insns[0].0));
    let calls = recorded.text(&["script", "--calls", "-F", "flags,ip,sym,symoff,addr", "rec"]);
    let to_fib: Vec<_> = calls.lines().filter(|line| line.ends_with(" fib+0x0")).collect();
    assert_eq!(to_fib.len(), 177);
    assert!(to_fib.iter().all(|line| line.starts_with("  call             ")), "{}", to_fib[0]);
    let returns = calls.lines().filter(|line| line.starts_with("  return ") && line.contains(" fib+0x"));
    assert_eq!(returns.filter(|line| line.split(" => ").next().unwrap().contains(" fib+0x")).count(), 177);
    assert!(calls.lines().all(|line| !line.starts_with("  jcc ") && !line.starts_with("  jmp ")));
    let shown = recorded.text(&["script", "--function", "leaf", "-F", "disasm", "rec"]);
    assert!(shown.lines().any(|line| line == "  ret"), "{shown}");
}

/// Two threads work in turns and make no system call in between. One works a hundred times as much in each turn, so
/// that their instructions alone do not keep them in step.
const TURNS: &str = r#"
#include <pthread.h>
static int turn;
__attribute__((noinline)) void work(int most) { for (volatile int i = 0; i < most; i++) {} }
static void *run(void *argument) {
    int own = (int)(long)argument;
    for (int round = 0; round < 100; round++) {
        while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != own) __builtin_ia32_pause();
        work(own ? 30 : 3000);
        __atomic_exchange_n(&turn, !own, __ATOMIC_SEQ_CST);
    }
    return 0;
}
int main(void) {
    pthread_t other;
    if (pthread_create(&other, 0, run, (void *)1)) return 1;
    run(0);
    return pthread_join(other, 0);
}
"#;

#[test]
fn threads_that_hand_over_without_the_system_keep_their_order_in_time() {
    if !pugmark_recorder::emulator_is_installed() {
        return println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
    }
    let options = ["--engine", "emulator", "--tsc", "--mtc", "--cyc"];
    let recorded = Recorded::of("turns", TURNS, &options);
    let calls = recorded.text(&["script", "--calls", "-F", "tid,time,sym,addr", "rec"]);
    let mut entered: Vec<(f64, &str)> = calls
        .lines()
        .filter(|line| line.ends_with(" work"))
        .map(|line| {
            let mut words = line.split_whitespace();
            let thread = words.next().unwrap();
            (words.next().unwrap().trim_end_matches(':').parse().unwrap(), thread)
        })
        .collect();
    assert_eq!(entered.len(), 200, "{calls}");
    entered.sort_by(|a, b| a.0.total_cmp(&b.0));
    let out_of_turn = entered.windows(2).filter(|pair| pair[0].1 == pair[1].1).count();
    // A thread can see that it is its turn between the other one's last look at the clock and its hand-over: 15 times
    // on a busy machine. Without an order it would be a hundred.
    assert!(out_of_turn <= 40, "{out_of_turn}: {entered:?}");
}

#[test]
fn a_call_trace_has_each_call_below_its_caller_at_its_time() {
    let recorded = Recorded::new("calls", "stepping");
    let indent = |line: &str| line.len() - line.trim_start().len();
    let trace = recorded.text(&["script", "--call-trace", "--function", "main", "rec"]);
    let depths = |name: &str| -> Vec<usize> {
        trace.lines().filter(|line| line.trim_start() == name).map(indent).collect()
    };
    assert_eq!(depths("main"), [0], "{trace}");
    assert_eq!(depths("tail"), [4; 20]);
    let fib = depths("fib");
    // fib(10) calls fib(9), and that goes on down to fib(1).
    assert_eq!((fib.len(), fib.iter().min(), fib.iter().max()), (177, Some(&4), Some(&40)));
    let lines = recorded.text(&["script", "--call-trace", "--function", "main", "-F", "+srcline", "rec"]);
    assert!(lines.lines().any(|line| line == "    tail  called at program.c:10"), "{lines}");
    recorded.text(&[
        "record",
        "--engine",
        "stepping",
        "--tsc",
        "--mtc",
        "--cyc",
        "-o",
        "timed",
        "--",
        "./program",
    ]);
    let time = |line: &str| -> f64 { line.trim().split_once(':').unwrap().0.parse().unwrap() };
    let all = recorded.text(&["script", "--branches", "-F", "+time", "timed"]);
    let times: Vec<f64> = all.lines().map(time).collect();
    assert!(times.is_sorted() && times[0] < times[times.len() - 1], "{times:?}");
    // Where tracing goes off or on between two instructions belongs to the first one's part, whatever its time.
    let lines: Vec<_> = all.lines().collect();
    let later = |after: usize| {
        let is_one = |at: &usize| times[*at] > times[*at - 1] && !lines[*at].contains("[unknown]");
        times[(after..times.len()).find(is_one).unwrap()]
    };
    let (from, to) = (later(times.len() / 3), later(times.len() / 2));
    let range = format!("{from:.9},{to:.9}");
    let some = recorded.text(&["script", "--branches", "-F", "+time", "--time", &range, "timed"]);
    let expected: Vec<_> = all.lines().filter(|line| (from..to).contains(&time(line))).collect();
    assert!(!expected.is_empty());
    assert_eq!(some.lines().collect::<Vec<_>>(), expected);
    let timed = recorded.text(&["script", "--call-trace", "--function", "main", "timed"]);
    let without: String =
        timed.lines().map(|line| line.split_once(": ").unwrap().1.to_owned() + "\n").collect();
    assert_eq!(without, trace);
    // A thread that is not there.
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    let output = command.args(["script", "--tid", "1", "rec"]).current_dir(&recorded.0).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--tid 1: there is no such thread among: "), "{text}");
    let pid = text.split("(pid ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let one = recorded.text(&["script", "--tid", &pid, "-F", "pid,tid,ip", "rec"]);
    assert!(one.lines().all(|line| line.starts_with(&format!("{pid:>7}/{pid:<7}  "))), "{one}");
}
