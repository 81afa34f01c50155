//! `pugmark report` of programs whose calls are known: the instructions and time of functions with all that they
//! called, and selected rows. Valgrind's callgrind, which executes the same programs in its own way, must count the
//! same.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod stacks;

use pugmark_harness::scratch::Scratch;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Output},
};

/// A program without a library: recursions of one function and of two, tail calls, calls by pointer, and a jump out of
/// several functions. Its data is in its file, because Valgrind reads the symbols of no other one.
const CALLS: &str = r#"
static void *mark[5];
static volatile int sink = 1;
#define ALONE __attribute__((noipa))
ALONE int fib(int n) { return n < 2 ? n : fib(n - 1) ^ fib(n - 2); }
ALONE int leaf(int x) { return x * 3 + 1; }
ALONE int tail(int x) { return leaf(x + 1); }
ALONE int even(int n);
ALONE int odd(int n) { return n == 0 ? 0 : even(n - 1); }
ALONE int even(int n) { return n == 0 ? 1 : odd(n - 1); }
ALONE int pong(int n);
ALONE int ping(int n) { int other = n ? pong(n - 1) : 0; return other + 1; }
ALONE int pong(int n) { int other = n ? ping(n - 1) : 0; return other + leaf(n); }
ALONE int twice(int (*function)(int), int x) { return function(x) + function(x + 1); }
ALONE void deep(int n) { if (n == 0) __builtin_longjmp(mark, 1); deep(n - 1); sink++; }
ALONE int guarded(int n) { if (__builtin_setjmp(mark)) return leaf(n) + tail(n); deep(n); return -1; }
ALONE int run(void) {
    int sum = fib(10) + even(101) + ping(30) + twice(tail, 5) + twice(fib, 3);
    for (int i = 0; i < 20; i++) sum += tail(i);
    return sum + guarded(7) + leaf(guarded(2));
}
ALONE void begin(void) {
    sink = run();
    __asm__ volatile("syscall" : : "a"(60L), "D"(0L));
    __builtin_unreachable();
}
__asm__(".globl _start\n_start: and $-16, %rsp\n call begin");
"#;

/// Its functions, but for those that have not ended when the program does.
const FUNCTIONS: [&str; 11] =
    ["run", "fib", "leaf", "tail", "even", "odd", "ping", "pong", "twice", "deep", "guarded"];

/// `main` calls each of `sort`, `guarded` and `interrupted` once. They sort with a function of the program, leave
/// functions by `longjmp`, and are interrupted by signals.
const WAYS: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static jmp_buf mark;
static volatile int n;
#define ALONE __attribute__((noipa))
ALONE int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
ALONE void sort(void) {
    int list[30];
    for (int i = 0; i < 30; i++) list[i] = i * 7919 % 100;
    qsort(list, 30, sizeof *list, order);
    n += list[3];
}
ALONE void deep(int x) { if (!x) longjmp(mark, 1); deep(x - 1); n++; }
ALONE int guarded(void) { if (setjmp(mark)) return n + 7; deep(7); return 0; }
ALONE void in_handler(void) { for (int i = 0; i < 10; i++) n++; }
ALONE void handler(int number) { (void)number; in_handler(); n++; }
ALONE void once(void) { kill(getpid(), SIGUSR1); n++; }
ALONE void interrupted(void) { for (int i = 0; i < 3; i++) once(); n++; }
static inline __attribute__((always_inline)) int square(int x) { return x * x + n; }
ALONE int squares(void) { int sum = 0; for (int i = 0; i < 5; i++) sum += square(i); return sum; }
int main(void) {
    signal(SIGUSR1, handler);
    sort();
    n += guarded();
    interrupted();
    n += squares();
    n++;
    return 0;
}
"#;

/// A program and its recording in a folder.
struct Recorded(Scratch);

impl Recorded {
    fn new(program: &str, flags: &[&str], options: &[&str]) -> Self {
        let recorded = Self::compiled("cc", "program.c", program, flags);
        recorded.record(&[&["--engine", "stepping"], options].concat());
        recorded
    }

    /// Compiles a program, without recording it.
    fn compiled(compiler: &str, name: &str, program: &str, flags: &[&str]) -> Self {
        let recorded = Self(Scratch::new().unwrap());
        fs::write(recorded.0.file(name), program).unwrap();
        recorded.run(compiler, &[&["-g", "-O2", "-o", "program", name], flags].concat());
        recorded
    }

    fn record(&self, options: &[&str]) {
        self.text(&[&["record", "-o", "rec"], options, &["--", "./program"]].concat());
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.0.folder());
        command
    }

    fn text(&self, arguments: &[&str]) -> String {
        self.run(env!("CARGO_BIN_EXE_pugmark"), arguments)
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_pugmark"), arguments).output().unwrap()
    }

    /// Runs `pugmark report` with these options.
    fn report(&self, options: &[&str]) -> Value {
        let json = self.text(&[&["report", "--json"], options, &["rec"]].concat());
        serde_json::from_str(&json).unwrap()
    }

    /// Returns these fields of each instruction, in order.
    fn script(&self, fields: &str) -> Vec<String> {
        let text = self.text(&["script", "--insns", "-F", fields, "rec"]);
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().unwrap()
}

/// Returns a number of the row whose column `key` is `name`.
fn number(report: &Value, key: &str, name: &str, column: &str) -> u64 {
    let row = rows(report).iter().find(|row| row[key] == name);
    row.unwrap_or_else(|| panic!("{name}: {report}"))[column].as_u64().unwrap()
}

/// Returns callgrind's count of each function: `fib'2` is `fib` that `fib` has called. `None` without Valgrind.
fn callgrind(recorded: &Recorded) -> Option<[BTreeMap<String, u64>; 2]> {
    let arguments = ["--tool=callgrind", "--callgrind-out-file=callgrind.out", "./program"];
    let output = recorded.command("valgrind", &arguments).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(["no", "yes"].map(|inclusive| {
        let inclusive = format!("--inclusive={inclusive}");
        let arguments = [&inclusive, "--threshold=100", "--auto=no", "callgrind.out"];
        // 2,759 (69.01%)  program.c:fib [/tmp/x/program]
        let text = recorded.run("callgrind_annotate", &arguments);
        let row = |line: &str| {
            let (count, rest) = line.split_once('(')?;
            let (_, place) = rest.split_once("program.c:")?;
            let name = place.split_once(" [")?.0.to_owned();
            Some((name, count.trim().replace(',', "").parse().ok()?))
        };
        text.lines().filter_map(row).collect()
    }))
}

#[test]
fn each_function_has_the_instructions_that_callgrind_counts_alone_and_with_what_it_calls() {
    let recorded = Recorded::new(CALLS, &["-static", "-nostdlib", "-fcf-protection=none"], &[]);
    let Some([own, whole]) = callgrind(&recorded) else {
        return println!("skipped: valgrind is not installed");
    };
    let report = recorded.report(&["--children", "--by", "function"]);
    for name in FUNCTIONS {
        let ours = |column| number(&report, "function", name, column);
        let again = own.get(&format!("{name}'2")).copied().unwrap_or(0);
        assert_eq!(ours("instructions"), own[name] + again, "{name}: {own:?}");
        // The outermost call of a recursive function includes all inner ones.
        assert_eq!(ours("instructions_with_children"), whole[name], "{name}: {whole:?}");
    }
    // Both have counted all of them, and nothing else: 12 with `begin`, and `_start`.
    assert_eq!(rows(&report).len(), 13);
    // The outermost function includes all.
    assert_eq!(number(&report, "function", "_start", "instructions_with_children"), report["instructions"]);
    // Lines, too: `run` is on five, of which three call.
    let lines = recorded.report(&["--children", "--by", "line", "--function", "run"]);
    let line = |line: u32| -> u64 {
        let end = format!("/program.c:{line}");
        let row = rows(&lines).iter().find(|row| row["line"].as_str().unwrap().ends_with(&end));
        row.unwrap_or_else(|| panic!("{lines}"))["instructions_with_children"].as_u64().unwrap()
    };
    assert_eq!([17, 18, 19, 20, 21].map(line).iter().sum::<u64>(), whole["run"], "{lines}");
    assert!(rows(&lines).iter().all(|row| row["function"] == "run"), "{lines}");
}

#[test]
fn what_a_function_called_ends_where_its_caller_goes_on_also_after_signals_and_longjmp() {
    let recorded = Recorded::new(WAYS, &[], &["--tsc", "--mtc", "--cyc"]);
    let report = recorded.report(&["--children", "--by", "function"]);
    let whole = |name| number(&report, "function", name, "instructions_with_children");
    // From the function's first instruction to the next one of `main`.
    let executed = recorded.script("sym");
    let between = |name: &str| {
        let first = executed.iter().position(|found| found == name).unwrap();
        executed[first..].iter().position(|found| found == "main").unwrap() as u64
    };
    for name in ["sort", "guarded", "interrupted", "squares"] {
        assert_eq!(whole(name), between(name), "{name}");
    }
    // `main` is around them and includes all of them.
    let main = executed.iter().position(|found| found == "main").unwrap();
    let rest = executed[main..].iter().rposition(|found| found == "main").unwrap() + 1;
    assert_eq!(whole("main"), rest as u64);
    assert_eq!(
        whole("handler"),
        number(&report, "function", "handler", "instructions") + whole("in_handler")
    );
    // A signal's handler is called by the function that it interrupted.
    let calls = recorded.text(&["script", "--call-trace", "--function", "interrupted", "rec"]);
    let called = |name: &str| {
        let lines = calls.lines().filter_map(|line| line.split_once(':')).map(|(_, call)| call);
        let indents =
            lines.filter(|call| call.trim() == name).map(|call| call.len() - call.trim_start().len());
        indents.collect::<Vec<_>>()
    };
    let (once, handler, inner) = (called("once"), called("handler"), called("in_handler"));
    assert_eq!((once.len(), handler.len(), inner.len()), (3, 3, 3), "{calls}");
    assert!(once.iter().all(|indent| *indent == once[0]), "{calls}");
    for calls in [&once, &handler, &inner].windows(2) {
        assert!(calls[0].iter().zip(calls[1]).all(|(caller, called)| caller < called), "{calls:?}");
    }
    // An inlined function counts as called by the function that it is inlined into.
    let inlined = recorded.report(&["--children", "--by", "inlined"]);
    let own = |name| number(&inlined, "inlined", name, "instructions");
    let squares = number(&inlined, "inlined", "squares", "instructions_with_children");
    assert_eq!((squares, own("squares") + own("square (inlined)")), (whole("squares"), whole("squares")));
}

#[test]
fn time_is_somebodys_and_what_waits_has_the_time_of_what_is_not_traced() {
    let recorded = Recorded::new(WAYS, &[], &["--tsc", "--mtc", "--cyc"]);
    let report = recorded.report(&["--sort", "children-time", "--by", "function"]);
    assert_eq!(report["time_unit"], "ns");
    let own: u64 = rows(&report).iter().map(|row| row["time"].as_u64().unwrap()).sum();
    assert_eq!(report["time"], own);
    let times: Vec<u64> =
        rows(&report).iter().map(|row| row["time_with_children"].as_u64().unwrap()).collect();
    assert!(times.is_sorted_by(|one, next| one >= next), "{times:?}");
    // A flame graph has the same chain by chain: `main` and what it calls, until it ends.
    let folded = recorded.text(&["flamegraph", "-f", "folded", "--by", "time", "rec"]);
    let chains = folded.lines().map(|line| line.rsplit_once(' ').unwrap());
    let chains: Vec<(Vec<&str>, u64)> =
        chains.map(|(chain, count)| (chain.split(';').collect(), count.parse().unwrap())).collect();
    let sum = |is_it: &dyn Fn(&[&str]) -> bool| -> u64 {
        chains.iter().filter(|(chain, _)| is_it(chain)).map(|(_, count)| count).sum()
    };
    assert_eq!(report["time"], sum(&|_| true));
    for name in ["once", "interrupted", "sort", "in_handler", "[not traced: kill]"] {
        let time = |column| number(&report, "function", name, column);
        assert_eq!(time("time"), sum(&|chain| chain.last() == Some(&name)), "{name}: {folded}");
        assert_eq!(time("time_with_children"), sum(&|chain| chain.contains(&name)), "{name}: {folded}");
    }
    // Each signal takes system calls of a thousand ticks.
    let interrupted = |column| number(&report, "function", "interrupted", column);
    assert!(interrupted("time_with_children") > 10 * interrupted("time"), "{report}");
    // The same functions by instructions; time is beside them where it is asked for.
    let beside = recorded.report(&["--time", "--by", "function"]);
    assert_eq!(number(&beside, "function", "sort", "time"), number(&report, "function", "sort", "time"));
    assert!(beside["rows"][0].get("time_with_children").is_none(), "{beside}");
}

#[test]
fn a_trace_without_time_has_none() {
    let recorded = Recorded::new(CALLS, &["-static", "-nostdlib"], &[]);
    let report = recorded.report(&["--children"]);
    assert!(report.get("time").is_none() && report["rows"][0].get("time").is_none(), "{report}");
    for options in [&["--time"][..], &["--sort", "time"], &["--sort", "children-time"]] {
        let output = recorded.output(&[&["report"], options, &["rec"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{options:?}");
        let begin = format!("pugmark: {}: .: program (pid ", options.join(" "));
        let end = "the trace has no TSC packets (`pugmark record --time`)\n";
        assert!(stderr.starts_with(&begin) && stderr.ends_with(end), "{options:?}: {stderr}");
    }
}

#[test]
fn one_file_or_function_is_shown_alone_and_percentages_stay_those_of_all() {
    let recorded = Recorded::new(WAYS, &[], &[]);
    let all = recorded.report(&["--children"]);
    let program = recorded.report(&["--children", "--object", "program"]);
    let is_of = |row: &Value, name: &str| row["object"].as_str().unwrap().ends_with(name);
    let expected: Vec<&Value> = rows(&all).iter().filter(|row| is_of(row, "/program")).collect();
    assert_eq!(rows(&program).iter().collect::<Vec<_>>(), expected);
    assert!(expected.len() > 5 && expected.len() < rows(&all).len(), "{program}");
    let own = expected.iter().map(|row| row["instructions"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (&program["selected_instructions"], &program["instructions"]),
        (&own.into(), &all["instructions"])
    );
    let text = recorded.text(&["report", "--object", "program", "--function", "main", "rec"]);
    let percent = 100.0 * number(&all, "function", "main", "instructions") as f64
        / all["instructions"].as_f64().unwrap();
    assert!(text.contains(&format!("\n{percent:>7.2}  ")) && text.lines().count() == 4, "{text}");
    assert!(text.lines().nth(2).unwrap().ends_with(&format!(" instructions ({percent:.2} %)")), "{text}");
    // A function that exists only inlined into others.
    let inlined = recorded.report(&["--by", "inlined", "--function", "square"]);
    let names: Vec<_> = rows(&inlined).iter().map(|row| &row["inlined"]).collect();
    assert_eq!(names, ["square (inlined)"]);
    for (options, said) in [
        (&["--function", "nowhere"][..], "--function nowhere: nothing there was executed"),
        (&["--object", "libm.so.6"], "--object libm.so.6: nothing there was executed"),
        (
            &["--function", "main", "--object", "libc.so.6"],
            "--object libc.so.6 --function main: nothing there was executed",
        ),
    ] {
        let output = recorded.output(&[&["report"], options, &["rec"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(1), &*format!("pugmark: {said}\n")));
    }
    // Beside each line is its function, after the columns that were there before.
    let csv = recorded.text(&["report", "--by", "line", "--object", "program", "--csv", "rec"]);
    assert!(csv.starts_with("percent,instructions,branches,calls,line,function\n"), "{csv}");
    assert!(csv.lines().any(|line| line.ends_with("/program.c:18\",\"in_handler\"")), "{csv}");
    assert!(csv.lines().any(|line| line.ends_with("/program.c:22\",\"square\"")), "{csv}");
}

#[test]
fn each_thread_has_its_own_callers() {
    const THREADS: &str = r#"
#include <pthread.h>
__attribute__((noipa)) void work(int most) { for (volatile int i = 0; i < most; i++) {} }
__attribute__((noipa)) void *run(void *argument) { work(100); return argument; }
int main(void) {
    pthread_t other;
    if (pthread_create(&other, 0, run, 0)) return 1;
    work(1000);
    return pthread_join(other, 0);
}
"#;
    let recorded = Recorded::new(THREADS, &["-pthread"], &["--tsc"]);
    let report = recorded.report(&["--sort", "children-time", "--by", "thread,function"]);
    let of = |name: &str| -> Vec<(u64, u64)> {
        let rows = rows(&report).iter().filter(|row| row["function"] == name);
        let number = |row: &Value, column: &str| row[column].as_u64().unwrap();
        let mut found: Vec<_> = rows
            .map(|row| (number(row, "instructions"), number(row, "instructions_with_children")))
            .collect();
        found.sort_unstable();
        found
    };
    let (work, run, main) = (of("work"), of("run"), of("main"));
    assert_eq!((work.len(), run.len(), main.len()), (2, 1, 1), "{report}");
    assert!(work.iter().all(|(own, whole)| own == whole), "{report}");
    assert_eq!(run[0].1, run[0].0 + work[0].0, "{report}");
    assert!(main[0].1 > main[0].0 + work[1].0, "{report}");
    // Without threads in rows they are added up.
    let both = recorded.report(&["--children", "--by", "function"]);
    let sum = work.iter().map(|(own, _)| own).sum::<u64>();
    assert_eq!(number(&both, "function", "work", "instructions_with_children"), sum);
}

/// Opens a library, which is not among those that the program's file names.
const OPENS: &str = r#"
#include <dlfcn.h>
int main(void) {
    void *library = dlopen("./libwork.so", RTLD_NOW);
    int (*work)(int) = (int (*)(int))dlsym(library, "work");
    return work(1000) == 0;
}
"#;

#[test]
fn functions_of_a_library_that_is_opened_while_the_program_runs_have_names() {
    let recorded = Recorded(Scratch::new().unwrap());
    let library = "static __attribute__((noipa)) int inner(int n) { int x = 0; while (n--) x += n ^ x; return x; }\n\
                   int work(int n) { return inner(n) + 1; }\n";
    fs::write(recorded.0.file("work.c"), library).unwrap();
    fs::write(recorded.0.file("program.c"), OPENS).unwrap();
    recorded.run("cc", &["-g", "-O1", "-shared", "-fPIC", "-o", "libwork.so", "work.c"]);
    recorded.run("cc", &["-g", "-O1", "-o", "program", "program.c", "-ldl"]);
    let engines = ["stepping", "emulator"];
    let engines = if pugmark_recorder::emulator_is_installed() { &engines[..] } else { &engines[..1] };
    for engine in engines {
        recorded.text(&["record", "--engine", engine, "--start", "main", "-o", "rec", "--", "./program"]);
        let report = recorded.report(&["--by", "object,function"]);
        let own: Vec<_> = rows(&report)
            .iter()
            .filter(|row| row["object"].as_str().is_some_and(|name| name.ends_with("/libwork.so")))
            .map(|row| (row["function"].as_str().unwrap(), row["instructions"].as_u64().unwrap()))
            .filter(|(name, _)| matches!(*name, "inner" | "work"))
            .collect();
        let [("inner", inner), ("work", work)] = own[..] else { panic!("{engine}: {report:#}") };
        assert!(inner > 3000 && work < 20, "{engine}: {own:?}");
    }
}
