//! Programs that are counted without a trace: the counts are those of a recording.

use crate::{
    options,
    programs::{self, Scratch, compile, compile_bare, symbol},
    recorded::addresses,
};
use pugmark_recorder::{
    Counted, CountedThread, Ending, Engine, RecordOptions, Recording, count, emulator_is_installed, record,
};
use serde_json::Value;
use std::{collections::BTreeMap, ffi::OsString, fs, process::Command};

type Counts = BTreeMap<u64, u64>;

/// The status of a command that has failed, which the program's could not be.
const FAILED: i32 = 125;

/// A child process; a loop that begins with a repeated instruction; one that ends in its middle; an instruction that
/// reaches into the next page, which the emulator takes back.
const REPEATING: &str = r#"
char bytes[64];
__asm__(".globl _start\n"
    "_start: mov $57, %eax\n syscall\n"              /* fork */
    " xor %r12d, %r12d\n lea bytes(%rip), %rdi\n mov $5, %ecx\n"
    "1: rep stosb\n"
    " lea bytes(%rip), %rdi\n mov %r12d, %ecx\n and $3, %ecx\n inc %r12d\n cmp $20, %r12d\n jb 1b\n"
    "2: lea bytes(%rip), %rdi\n mov $64, %ecx\n mov $1, %al\n cld\n repne scasb\n"
    " xor %ecx, %ecx\n rep movsb\n inc %r12d\n cmp $40, %r12d\n jb 2b\n"
    " mov $7, %r13d\n"
    "3: jmp 4f\n .balign 4096\n .skip 4088\n"
    "4: nop\n nop\n nop\n movabs $0x1122334455667788, %rax\n dec %r13d\n jnz 3b\n"
    " mov $231, %eax\n mov $4, %edi\n syscall\n");
"#;

/// Threads that do the same each time, of which one forks.
const WORKERS: &str = r#"
__attribute__((noinline)) void work(int turns) {
    for (volatile int n = 0; n < turns; n++) { char from[9], to[9]; volatile int size = n % 9;
        unsigned long many = size; char *a = from, *b = to;
        __asm__ volatile("rep movsb" : "+D"(b), "+S"(a), "+c"(many) :: "memory"); }
}
static void *begin(void *turns) {
    work((long)turns);
    if ((long)turns == 3000) { if (fork() == 0) { work(500); _exit(0); } wait(0); }
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (long n = 0; n < 4; n++) pthread_create(threads + n, 0, begin, (void *)(1000 * (n + 1)));
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    work(100);
    return 0;
}
"#;

/// Returns the executions of each instruction of a thread.
fn counts(thread: &CountedThread) -> Counts {
    thread.instructions.iter().copied().collect()
}

/// Counts and records a program.
fn both(program: &Scratch) -> Option<(Counted, Recording)> {
    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return None;
    }
    let plain = options(Engine::Emulator, [program.path("program")]);
    let counted = count(&plain).expect("it is counted");
    let recording = record(&RecordOptions { out: program.path("out"), ..plain }, &mut |_| {});
    Some((counted, recording.expect("it is recorded")))
}

/// Returns how often each address occurs.
fn counts_of(addresses: Vec<u64>) -> Counts {
    let mut counts = Counts::new();
    addresses.into_iter().for_each(|address| *counts.entry(address).or_default() += 1);
    counts
}

#[test]
fn each_instruction_is_counted_as_often_as_a_recording_has_it() {
    for (name, source, ending) in [("bare", programs::BARE, 3), ("repeating", REPEATING, 4)] {
        let Some(program) = compile_bare(name, source) else { return };
        let Some((counted, recording)) = both(&program) else { return };
        assert_eq!((counted.ending, recording.ending), (Ending::Exit(ending), Ending::Exit(ending)));
        assert_eq!((counted.uncounted, &*counted.killed, &*counted.not_followed), (0, &[][..], &[][..]));
        let threads: Vec<Counts> = counted.threads.iter().map(counts).collect();
        let parts: Vec<Counts> = recording.parts.iter().map(|part| counts_of(addresses(part))).collect();
        assert_eq!(threads, parts, "{name}");
        let thread = &counted.threads[0];
        assert!(thread.program.ends_with("program") && thread.thread.comm == "program", "{thread:?}");
        assert!(thread.branches.iter().map(|(_, count)| count).sum::<u64>() > 15, "{name}");
    }
}

#[test]
fn threads_and_children_are_counted_each_by_itself() {
    let Some(program) = compile("workers", WORKERS) else { return };
    let Some((counted, recording)) = both(&program) else { return };
    let begin = symbol(&program, "work");
    let of_work =
        |counts: &Counts| -> Counts { counts.range(begin..begin + 64).map(|(ip, n)| (*ip, *n)).collect() };
    let mut threads: Vec<Counts> = counted.threads.iter().map(|thread| of_work(&counts(thread))).collect();
    let mut parts: Vec<Counts> =
        recording.parts.iter().map(|part| of_work(&counts_of(addresses(part)))).collect();
    // Threads begin in any order.
    threads.sort();
    parts.sort();
    assert_eq!(threads.len(), 6);
    assert!(threads == parts, "{threads:?}\n{parts:?}");
    assert_eq!(counted.threads.iter().filter(|thread| thread.thread.tid != thread.thread.pid).count(), 4);
}

#[test]
fn what_a_program_did_before_a_signal_ended_it_is_counted_or_said_to_be_lost() {
    for (signal, source) in [
        (11, "int main(void) { for (volatile int n = 0; n < 10000; n++); return *(volatile int *)8; }"),
        (
            6,
            "int main(void) { for (volatile int n = 0; n < 10000; n++); kill(getpid(), SIGABRT); return 0; }",
        ),
        (
            9,
            "int main(void) { for (volatile int n = 0; n < 10000; n++); kill(getpid(), SIGKILL); return 0; }",
        ),
    ] {
        let Some(program) = compile(&format!("signal-{signal}"), source) else { return };
        if !emulator_is_installed() {
            return;
        }
        let counted = count(&options(Engine::Emulator, [program.path("program")])).expect("it is counted");
        assert_eq!(counted.ending, Ending::Signal(signal));
        let instructions: u64 = counted.threads[0].instructions.iter().map(|(_, count)| count).sum();
        let is_lost = !counted.killed.is_empty();
        assert_eq!(instructions > 30_000, !is_lost, "{signal}: {instructions}");
        assert!(!is_lost || signal == 9, "{signal}");
    }
}

#[test]
fn the_command_prints_rows_and_fails_above_a_limit() {
    let Some(program) = compile_bare("limited", programs::BARE) else { return };
    if !emulator_is_installed() {
        return;
    }
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        command.arg("stat").args(words).arg("--").arg(program.path("program"));
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let file = program.path("counts.json").display().to_string();
    let (status, said) = run(&["--by", "function", "--json", "-o", &file]);
    assert_eq!((status, &*said), (Some(3), ""), "{said}");
    let counts: Value = serde_json::from_slice(&fs::read(&file).expect("a file")).expect("JSON");
    let instructions = counts["instructions"].as_u64().expect("a number");
    let rows = counts["rows"].as_array().expect("rows");
    let row = |name: &str| rows.iter().find(|row| row["function"] == name).expect(name);
    // fib(15) calls itself so often.
    assert_eq!((row("fib")["entered"].as_u64(), row("fib")["calls"].as_u64()), (Some(1973), Some(1972)));
    assert_eq!(rows.iter().filter_map(|row| row["instructions"].as_u64()).sum::<u64>(), instructions);
    for (most, expected) in [(instructions, 3), (instructions - 1, 124)] {
        let (status, said) = run(&["--at-most", &format!("instructions={most}")]);
        assert_eq!(status, Some(expected), "{said}");
        assert!(said.contains(&format!("in all: {instructions} instructions")), "{said}");
        assert_eq!(said.contains("which is more than"), expected == 124, "{said}");
    }
    for (limit, expected, message) in [
        ("fib:entered=1973", 3, ""),
        ("fib:entered=1972", 124, "pugmark: 1973 entered of fib, which is more than 1972"),
        ("fib:calls=1971", 124, "1972 calls of fib, which is more than 1971"),
        ("fub:calls=1", FAILED, "--at-most fub: no function of that name was executed; similar names: fib"),
    ] {
        let (status, said) = run(&["--at-most", limit]);
        assert_eq!((status, said.contains(message)), (Some(expected), true), "{limit}: {said}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .args(["stat", "/no/such/program"].map(OsString::from))
        .output()
        .expect("it runs");
    assert_eq!(missing.status.code(), Some(127));
}
