//! Names of a program that was moved, its libraries and threads, and what GDB is not told.

use super::{Recorded, places};

/// A second thread calls `work` in its own way.
const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
int value = 5;
__attribute__((noipa)) int work(int n) {
    return n * value;
}
__attribute__((noipa)) int other(int n) {
    int sum = work(n);
    sum += work(n + 1);
    return sum;
}
void *thread(void *n) {
    return (void *)(long)other(*(int *)n);
}
int main(void) {
    pthread_t second;
    int n = 3;
    pthread_create(&second, 0, thread, &n);
    int sum = work(1);
    pthread_join(second, 0);
    puts("the end");
    return sum != 5;
}"#;

fn recorded() -> Recorded {
    Recorded::new(THREADS, &["-O0", "-pie", "-fPIE", "-pthread"], &[])
}

#[test]
fn a_program_that_was_moved_has_its_names_and_its_libraries_too() {
    let recorded = recorded();
    let commands = [
        "break main",
        "break puts",
        "continue",
        "info symbol $pc",
        "x/i $pc",
        "info line *$pc",
        "continue",
        "info symbol $pc",
    ];
    let Some(text) = recorded.gdb("rec", &commands) else { return };
    assert!(text.contains("main + ") && text.contains(" in section .text of "), "{text}");
    assert!(text.lines().any(|line| line.starts_with("=> 0x") && line.contains(" <main+")), "{text}");
    assert!(text.contains("Line 18 of \"program.c\""), "{text}");
    let puts = text
        .lines()
        .any(|line| line.starts_with("puts") && line.contains("of /") && line.contains("libc.so.6"));
    assert!(puts, "{text}");
    let moved = text.lines().find_map(|line| line.strip_prefix("=> 0x")?.split(' ').next());
    // The file has `main` below 0x10000.
    assert!(moved.is_some_and(|moved| u64::from_str_radix(moved, 16).unwrap() > 0x10_0000), "{text}");
}

#[test]
fn a_trace_without_a_recording_has_the_names_of_the_file_that_is_its_code() {
    let source = r#"int value = 7;
        __asm__(".text\n.globl _start\n_start: nop\n call other\n ud2\nother: nop\n ud2\n");"#;
    let recorded = Recorded::new(source, &["-static", "-nostdlib"], &[]);
    recorded.run("cp", &["rec/trace.pt", "alone.pt"]);
    let commands = ["break *other", "continue", "monitor where", "x/i $pc", "echo data:\\n", "print value"];
    let Some(text) = recorded.gdb("--elf program alone.pt", &commands) else { return };
    assert_eq!(places(&text), [2], "{text}");
    assert!(text.contains("thread 1: alone.pt\n") && text.contains(" <other>:\tnop"), "{text}");
    // The file says 7, but nothing says that it was 7 then.
    assert!(text.contains("Cannot access memory at address") && !text.contains("= 7"), "{text}");
}

#[test]
fn each_thread_has_its_own_position_and_the_selected_one_goes() {
    let recorded = recorded();
    let second = recorded.addresses("rec/task-2").len();
    let main = recorded.addresses("rec").len() - second;
    let commands = [
        "info threads",
        "break work",
        "continue",
        "monitor where",
        "thread 2",
        "monitor where",
        // It has two calls; then it ends.
        "continue",
        "continue",
        "continue",
        "monitor where",
        "thread 1",
        "monitor where",
        "continue",
        "monitor where",
        // Thread 1 has one call; the other stays at its end.
        "reverse-continue",
        "monitor where",
        "thread 2",
        "reverse-continue",
        "reverse-continue",
        "monitor where",
        "set scheduler-locking on",
        "thread 1",
        "stepi",
        "monitor where",
        "info threads",
    ];
    let Some(text) = recorded.gdb("rec", &commands) else { return };
    let [at, begin, end, same, end_of_main, again, first, stepped] = places(&text)[..] else {
        panic!("{text}")
    };
    // GDB has stepped thread 1 away from its breakpoint before thread 2 went.
    assert_eq!((begin, end, same, end_of_main), (0, second - 1, at + 1, main - 1), "{text}");
    // The same backwards.
    assert_eq!((again, stepped), (at, at), "{text}");
    assert!(first > 0 && first < second - 10, "{text}");
    assert_eq!(text.matches("hit Breakpoint 1").count(), 1 + 2 + 1 + 2 + 1, "{text}");
    let threads: Vec<_> = text.lines().filter(|line| line.contains(" (program, tid ")).collect();
    assert_eq!(threads.len(), 4, "{text}");
    assert!(threads[0].starts_with("* 1 ") && threads[3].contains("work"), "{text}");
}

#[test]
fn what_a_trace_does_not_have_is_not_made_up() {
    let recorded = recorded();
    let commands = [
        "break work",
        "continue",
        "print $rsp",
        "print $eflags",
        "print n",
        "echo data:\\n",
        "print value",
        "print *(unsigned char *)work",
        "set var value = 7",
        "set $rip = 5",
        "monitor where",
        "backtrace",
        "info registers rip",
    ];
    let Some(text) = recorded.gdb("rec", &commands) else { return };
    for words in [
        "$1 = <unavailable>",
        "$2 = <unavailable>",
        "$3 = <unavailable>",
        "Cannot access memory at address 0x",
        "Could not write registers",
        "#0  work (n=<unavailable>)",
        "rip            0x",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // ENDBR64 or PUSH RBP begins the function.
    assert!(text.contains("$4 = 243") || text.contains("$4 = 85"), "{text}");
}

#[test]
fn lines_are_stepped_forwards_and_backwards() {
    let recorded = recorded();
    let commands = ["break other", "thread 2", "continue", "step", "reverse-step", "step", "step"];
    let Some(text) = recorded.gdb("rec", &commands) else { return };
    let lines: Vec<_> = text.lines().filter(|line| line.contains('\t')).collect();
    let lines: Vec<_> =
        lines.iter().filter_map(|line| line.split_once('\t')?.0.parse::<u32>().ok()).collect();
    assert_eq!(lines[..5], [9, 5, 9, 5, 6], "{text}");
}
