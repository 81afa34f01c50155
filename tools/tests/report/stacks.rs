//! Programs whose returns do not go where their calls came from: `report`, which counts instructions where they are,
//! and `flamegraph`, which follows calls, book the same instructions to the same functions.

use super::{Recorded, rows};
use std::{collections::BTreeMap, process::Command};

/// The name here for code without a symbol. A flame graph has its address, and `report` the address of its function, or
/// the name of its file.
const UNKNOWN: &str = "[unknown]";

/// Returns a function's name, or [`UNKNOWN`].
fn known(name: &str) -> &str {
    if name.starts_with("0x") || name.starts_with(UNKNOWN) { UNKNOWN } else { name }
}

/// Chains of calls, the outermost function first, and the instructions of each.
struct Chains(Vec<(Vec<String>, u64)>);

impl Chains {
    fn of(recorded: &Recorded) -> Self {
        let folded = recorded.text(&["flamegraph", "-f", "folded", "rec"]);
        let chain = |line: &str| {
            let (chain, count) = line.rsplit_once(' ').unwrap();
            (chain.split(';').map(str::to_owned).collect(), count.parse().unwrap())
        };
        Self(folded.lines().map(chain).collect())
    }

    /// Returns the chains that end with this function.
    fn to(&self, name: &str) -> impl Iterator<Item = &[String]> {
        self.0
            .iter()
            .filter(move |(chain, _)| chain.last().is_some_and(|last| last == name))
            .map(|(chain, _)| &chain[..])
    }

    /// Asserts that each chain to `name` ends like this.
    fn assert_end(&self, name: &str, end: &[&str]) {
        assert!(self.to(name).next().is_some(), "{name}: {:?}", self.0);
        for chain in self.to(name) {
            assert!(
                chain.ends_with(&end.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()),
                "{chain:?}"
            );
        }
    }
}

/// Asserts that all views count the same, and returns the flame graph.
fn views_agree(recorded: &Recorded, functions: &[&str]) -> Chains {
    let chains = Chains::of(recorded);
    let mut folded: BTreeMap<&str, u64> = BTreeMap::new();
    for (chain, count) in &chains.0 {
        let name = chain.last().unwrap();
        *folded.entry(known(name)).or_default() += count;
    }
    for options in [&[][..], &["--children"]] {
        let report = recorded.report(&[&["--by", "function"], options].concat());
        let mut reported: BTreeMap<&str, u64> = BTreeMap::new();
        for row in rows(&report) {
            let whole = &row["instructions_with_children"];
            let own = row["instructions"].as_u64().unwrap();
            assert!(whole.is_null() || whole.as_u64() >= Some(own), "{row}");
            if own > 0 {
                *reported.entry(known(row["function"].as_str().unwrap())).or_default() += own;
            }
        }
        assert_eq!(folded, reported);
        assert_eq!(report["instructions"], folded.values().sum::<u64>());
    }
    for name in functions {
        assert!(folded.contains_key(name), "{name}: {folded:?}");
    }
    chains
}

/// Functions that are called and that return through thunks, and one that is called by a return.
const THUNKS: &str = r#"
typedef long (*function)(long);
#define ALONE __attribute__((noipa))
ALONE long a(long x) { return x + 1; }
ALONE long b(long x) { return x * 2; }
function volatile table[2] = { a, b };
ALONE long pushed(long x) {
    long result;
    __asm__ volatile("lea 1f(%%rip), %%rax\n push %%rax\n lea a(%%rip), %%rax\n push %%rax\n ret\n 1:\n"
        : "=a"(result) : "D"(x) : "rcx", "rdx", "rsi", "memory");
    return result;
}
ALONE long tail(long x) { return table[x & 1](x); }
ALONE long indirect(long n) { long sum = 0; for (long i = 0; i < n; i++) sum += table[i & 1](i); return sum; }
ALONE long by_pushes(long n) { long sum = 0; for (long i = 0; i < n; i++) sum += pushed(i); return sum; }
ALONE long by_tails(long n) { long sum = 0; for (long i = 0; i < n; i++) sum += tail(i); return sum; }
long volatile sink;
int main(void) { sink = indirect(6) + by_pushes(6) + by_tails(6); return 0; }
"#;

#[test]
fn functions_behind_retpolines_and_return_thunks_are_not_their_thunks() {
    let thunks = ["thunk", "thunk-inline"];
    for thunk in thunks {
        let flags =
            ["-mno-red-zone", &format!("-mindirect-branch={thunk}"), &format!("-mfunction-return={thunk}")];
        let recorded = Recorded::new(THUNKS, &flags, &["--start", "main"]);
        let chains =
            views_agree(&recorded, &["a", "b", "pushed", "indirect", "by_pushes", "by_tails", "main"]);
        let deepest = chains.0.iter().map(|(chain, _)| chain.len()).max();
        assert!(deepest < Some(12), "{deepest:?}");
        if thunk == "thunk" {
            let after_thunk = |chain: &[String]| chain[chain.len() - 2].contains("thunk");
            assert!(!chains.to("b").chain(chains.to("a")).any(after_thunk));
            chains.assert_end("pushed", &["main", "by_pushes", "pushed"]);
            chains.assert_end("indirect", &["main", "indirect"]);
        }
    }
}

/// Coroutines, of which one calls others in its own stack.
const COROUTINES: &str = r#"
#include <ucontext.h>
#define ALONE __attribute__((noipa))
static ucontext_t before, one[2];
static char stacks[2][65536];
ALONE long work(long x) { return x * 3 + 1; }
ALONE void yield(int from) { swapcontext(&one[from], &one[!from]); }
ALONE void body0(void) { for (int i = 0; i < 6; i++) { work(i); swapcontext(&one[0], &one[1]); } }
ALONE void body1(void) { for (int i = 0; i < 6; i++) { work(i); yield(1); } }
ALONE void done(void) { }
int main(void) {
    for (int i = 0; i < 2; i++) {
        getcontext(&one[i]);
        one[i].uc_stack.ss_sp = stacks[i];
        one[i].uc_stack.ss_size = 65536;
        one[i].uc_link = &before;
        makecontext(&one[i], i ? body1 : body0, 0);
    }
    swapcontext(&before, &one[0]);
    done();
    return 0;
}
"#;

#[test]
fn coroutines_have_stacks_of_their_own() {
    let recorded = Recorded::new(COROUTINES, &[], &["--start", "main"]);
    let chains = views_agree(&recorded, &["body0", "body1", "yield", "work", "done", "main"]);
    for body in ["body0", "body1"] {
        assert!(chains.to(body).all(|chain| *chain == [body]), "{:?}", chains.0);
    }
    chains.assert_end("yield", &["body1", "yield"]);
    chains.assert_end("done", &["main", "done"]);
    for chain in chains.to("work") {
        assert!(chain.len() == 2 && chain[0].starts_with("body"), "{chain:?}");
    }
}

/// Exceptions that leave several functions, of which some have something to clean up.
const EXCEPTIONS: &str = r#"
#define ALONE __attribute__((noipa))
static volatile int sink;
struct Guard { int value; ALONE ~Guard() { sink = value; } };
extern "C" {
ALONE void after(int x) { sink += x; }
ALONE void thrower(int x) { if (x) throw x; sink++; }
ALONE void deeper(int depth, int x) { Guard guard{depth}; if (depth) deeper(depth - 1, x); else thrower(x); sink++; }
ALONE int catcher(int x) { try { deeper(4, x); } catch (int caught) { after(caught); return caught; } return 0; }
}
int main() { for (int i = 0; i < 3; i++) catcher(i); after(9); return 0; }
"#;

#[test]
fn exceptions_are_caught_in_the_function_that_catches() {
    if Command::new("c++").arg("--version").output().is_err() {
        return println!("skipped: c++ is not installed");
    }
    let recorded = Recorded::compiled("c++", "program.cc", EXCEPTIONS, &[]);
    recorded.record(&["--start", "main"]);
    let chains = views_agree(&recorded, &["thrower", "deeper", "catcher", "after", "main"]);
    // The compiler may have put the code that catches into a function of its own.
    let ends: Vec<&[String]> = chains.to("after").collect();
    assert!(ends.len() == 2 && *ends[0] == ["main", "after"], "{ends:?}");
    assert!(ends[1].starts_with(&["main".into(), "catcher".into()]) && ends[1].len() <= 4, "{ends:?}");
    chains.assert_end("catcher", &["main", "catcher"]);
}

/// Functions that are left by returns to code of their caller, as OCaml raises exceptions, and a recursion that is left
/// at once.
const POPS: &str = r#"
#include <setjmp.h>
#include <stdlib.h>
#define ALONE __attribute__((noipa))
static volatile long sink, depth = 20000;
static jmp_buf mark;
void *handler;
ALONE void raise_it(void) { __asm__ volatile("mov handler(%rip), %rsp\n pop %rax\n ret\n"); }
ALONE void between(long x) { if (x) raise_it(); sink++; }
ALONE void caught(void) { sink += 2; }
ALONE void pops(long x) {
    __asm__ volatile(
        "lea 1f(%%rip), %%rax\n push %%rax\n push %%rax\n mov %%rsp, handler(%%rip)\n mov %0, %%rdi\n"
        "sub $8, %%rsp\n call between\n add $24, %%rsp\n jmp 2f\n"
        "1: call caught\n 2:\n" : : "r"(x) : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
}
ALONE void down(long n) { if (n) down(n - 1); else if (sink) longjmp(mark, 1); sink++; }
ALONE void deep(void) { if (!setjmp(mark)) down(depth); caught(); }
int main(void) { for (long i = 0; i < 4; i++) pops(i & 1); deep(); sink = 0; deep(); return 0; }
"#;

#[test]
fn returns_that_raise_and_deep_recursions_leave_what_they_leave() {
    let recorded = Recorded::new(POPS, &["-mno-red-zone"], &["--start", "main"]);
    let chains = views_agree(&recorded, &["raise_it", "between", "caught", "pops", "down", "deep"]);
    // No chain is so long that a line for each is too much.
    assert_eq!(chains.to("down").map(<[String]>::len).max(), Some(256));
    chains.assert_end("pops", &["main", "pops"]);
    let ends: Vec<&[String]> = chains.to("caught").collect();
    assert_eq!(ends, [&["main", "deep", "caught"][..], &["main", "pops", "caught"]]);
}

/// Threads that take work from one another.
const THREADS: &str = r#"
#include <pthread.h>
#define ALONE __attribute__((noipa))
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static int left = 12;
ALONE long work(long x) { return x * 7 + 3; }
ALONE int take(void) {
    pthread_mutex_lock(&lock);
    int taken = left > 0 ? left-- : 0;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
    return taken;
}
ALONE void *pool(void *argument) { for (int n; (n = take());) work(n); return argument; }
int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, pool, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;

#[test]
fn each_thread_has_its_own_stack() {
    let recorded = Recorded::new(THREADS, &["-pthread"], &[]);
    let chains = views_agree(&recorded, &["work", "take", "pool", "main"]);
    chains.assert_end("work", &["pool", "work"]);
    chains.assert_end("take", &["pool", "take"]);
}
