//! Steps and searches, forwards and backwards.

use super::{PUGMARK, Recorded, numbers, places};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

/// A program without libraries, of some hundred instructions.
const SMALL: &str = r#"
unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call start\n");
__attribute__((used, noreturn)) static void start(void) {
    volatile unsigned sink = fib(5);
    (void)sink;
    __asm__ volatile("syscall" :: "a"(231ul), "D"(0ul));
    __builtin_unreachable();
}
"#;
const ALONE: [&str; 5] = ["-O1", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"];

fn small() -> Recorded {
    Recorded::new(SMALL, &ALONE, &[])
}

#[test]
fn steps_are_at_the_addresses_that_script_lists_and_steps_back_at_the_same_in_reverse() {
    let recorded = small();
    let expected = recorded.addresses("rec");
    let count = expected.len();
    assert!((200..2000).contains(&count), "{count}");
    // One step more than there are instructions.
    let walk = |step| {
        format!(
            "set $n = 0\nwhile $n < {count}\n  {step}\n  printf \"at %lx\\n\", $pc\n  set $n = $n + 1\nend"
        )
    };
    let begin = "printf \"at %lx\\n\", $pc";
    let Some(text) =
        recorded.gdb("rec", &[begin, &walk("stepi"), "stepi", "echo turns\\n", &walk("reverse-stepi")])
    else {
        return;
    };
    let (forwards, back) = text.split_once("turns\n").unwrap();
    let last = expected[count - 1];
    // At the end it stays where it is.
    let mut steps = expected.clone();
    steps.push(last);
    assert_eq!(numbers(forwards, "at"), steps);
    assert!(forwards.contains("No more reverse-execution history."), "{forwards}");
    let mut steps: Vec<_> = expected.iter().rev().skip(1).copied().collect();
    steps.push(expected[0]);
    assert_eq!(numbers(back, "at"), steps);
    assert!(back.contains("No more reverse-execution history."), "{back}");
}

#[test]
fn a_breakpoint_is_reached_from_both_sides_at_every_place_where_it_was_executed() {
    let recorded = small();
    let addresses = recorded.addresses("rec");
    let Some(text) = recorded.gdb("rec", &["printf \"at %lx\\n\", (long)&fib"]) else { return };
    let [fib] = numbers(&text, "at")[..] else { panic!("{text}") };
    let expected: Vec<_> = (0..addresses.len()).filter(|number| addresses[*number] == fib).collect();
    // fib(5) makes 15 calls.
    assert_eq!(expected.len(), 15);
    let all = |go| format!("set $n = 0\nwhile $n < 15\n  {go}\n  monitor where\n  set $n = $n + 1\nend");
    let text = recorded.gdb("rec", &["break *fib", &all("continue"), "continue", "monitor where"]).unwrap();
    let mut forwards = expected.clone();
    forwards.push(addresses.len() - 1);
    assert_eq!(places(&text), forwards, "{text}");
    assert_eq!(
        text.matches("hit Breakpoint 1").count() + text.matches("\nBreakpoint 1, ").count(),
        15,
        "{text}"
    );
    assert!(text.contains("No more reverse-execution history."), "{text}");
    let text = recorded
        .gdb("--at end rec", &["break *fib", &all("reverse-continue"), "reverse-continue", "monitor where"])
        .unwrap();
    let mut back: Vec<_> = expected.into_iter().rev().collect();
    back.push(0);
    assert_eq!(places(&text), back, "{text}");
}

#[test]
fn a_crash_is_walked_back_from_the_instruction_that_was_not_executed() {
    let source = "int *nowhere; int work(void) { return *nowhere; } int main(void) { return work(); }";
    let recorded = Recorded::new(source, &["-O0", "-no-pie"], &[]);
    let commands = ["monitor where", "x/i $pc", "break *work", "reverse-continue", "monitor where"];
    let Some(text) = recorded.gdb("--at end rec", &commands) else { return };
    let count = recorded.addresses("rec").len();
    assert!(text.contains(", by signal 11, accessing 0x0"), "{text}");
    let [end, call] = places(&text)[..] else { panic!("{text}") };
    assert_eq!(end, count);
    // PUSH, MOV and the load of the pointer are executed.
    assert!((end - 4..end).contains(&call) && text.contains("<work+"), "{text}");
}

#[test]
fn gdb_and_an_editor_come_by_a_port_and_what_is_lost_is_said() {
    let recorded = small();
    // The second half of the trace has other bytes, but for a PSB and what follows at its end.
    let trace = fs::read(recorded.0.file("rec/trace.pt")).unwrap();
    let psb = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
    let begin = trace.windows(16).position(|bytes| bytes == psb).unwrap();
    let damaged = [&trace[..], &[0xc8; 3], &trace[begin..]].concat();
    fs::write(recorded.0.file("rec/trace.pt"), damaged).unwrap();
    let count = recorded.addresses("rec").len();
    let mut server = Command::new(PUGMARK)
        .args(["gdb", "--listen", "127.0.0.1:0", "rec"])
        .current_dir(recorded.0.folder())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let address = line.split_once("waits for GDB at ").unwrap().1.split_once(": ").unwrap().0.to_owned();
    let commands =
        ["continue", "monitor where", "monitor goto 3", "monitor goto begin", "monitor goto 100000"];
    let Some(text) = recorded.gdb_at(&format!("target remote {address}"), &commands) else {
        server.kill().unwrap();
        server.wait().unwrap();
        return;
    };
    assert!(
        text.contains(&format!("gap before instruction {}: the trace cannot be decoded", count / 2)),
        "{text}"
    );
    assert_eq!(places(&text), [count - 1, 3, 0], "{text}");
    assert!(text.contains("last gap before this: ") && text.contains("100000: no instruction"), "{text}");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("1 errors and losses in the traces"), "{rest}");
    assert_eq!(server.wait().unwrap().code(), Some(1));
}

#[test]
fn bad_input_is_refused() {
    let recorded = small();
    let refused = |arguments: &[&str]| {
        let output = recorded.output(PUGMARK, &[&["gdb", "--stdio"], arguments].concat()).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, expected, words) in [
        (&["none.rec"][..], 1, "none.rec"),
        (&["--pid", "1", "rec"], 1, "--pid 1: no such process executed anything; these did: pid "),
        (&["--at", "middle", "rec"], 2, "--at"),
        (&["program.c"], 1, "no code"),
        (&["-"], 1, "--stdio: standard input is GDB's"),
    ] {
        let (status, text) = refused(arguments);
        assert!(status == Some(expected) && text.contains(words), "{arguments:?}: {text}");
    }
    let output = recorded.output(PUGMARK, &["gdb", "--listen", "1.2.3.4:1", "rec"]).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("--listen 1.2.3.4:1: "), "{text}");
}
