//! Times of recordings with few packets of time, and what a program does where it is not traced.

use super::{PUGMARK, Recorded};
use std::collections::BTreeMap;

/// Many calls, of functions that take differently long, over several PSB periods.
const CALLS: &str = "
    static volatile int sum;
    __attribute__((noinline)) static void few(void) { for (int i = 0; i < 10; i++) sum += i; }
    __attribute__((noinline)) static void many(void) { for (int i = 0; i < 100; i++) sum += i; }
    int main(void) { for (int i = 0; i < 150; i++) { few(); if (i % 3) many(); } return 0; }";

/// Returns the times in nanoseconds and the addresses of all calls and returns, and what is said.
fn calls(recorded: &Recorded, recording: &str) -> (Vec<(u64, String)>, String) {
    let output = recorded.output(PUGMARK, &["script", "--calls", "-F", "time,ip", recording]).unwrap();
    assert!(output.status.success());
    let line = |line: &str| {
        let (time, ip) = line.trim().split_once(':').unwrap();
        (time.replace('.', "").parse().unwrap(), ip.trim().to_owned())
    };
    let text = String::from_utf8(output.stdout).unwrap();
    (text.lines().map(line).collect(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn times_between_tsc_packets_pass_with_the_trace_and_a_warning_says_so() {
    let recorded = Recorded::new(CALLS, &["-O1"], &["--time"]);
    recorded.pugmark(&["record", "--engine", "stepping", "--tsc", "-o", "coarse", "--", "./program"]);
    let (fine, said) = calls(&recorded, "rec");
    assert_eq!(said, "");
    let (coarse, said) = calls(&recorded, "coarse");
    assert!(said.contains("the only times of the trace are in TSC packets"), "{said}");
    let addresses =
        |calls: &[(u64, String)]| -> Vec<String> { calls.iter().map(|call| call.1.clone()).collect() };
    assert_eq!(addresses(&fine), addresses(&coarse));
    let whole = fine.last().unwrap().0 - fine[0].0;
    let mut errors: Vec<u64> =
        fine.iter().zip(&coarse).map(|(fine, coarse)| fine.0.abs_diff(coarse.0)).collect();
    errors.sort_unstable();
    assert!(errors[errors.len() / 2] < whole / 20, "{} of {whole}", errors[errors.len() / 2]);
    // Calls have a length.
    let distinct = coarse.windows(2).filter(|pair| pair[0].0 < pair[1].0).count();
    assert!(distinct * 2 > coarse.len(), "{distinct} of {}", coarse.len());
}

#[test]
fn system_calls_have_the_names_that_strace_gives_them() {
    let source = "
        #include <fcntl.h>
        #include <stdlib.h>
        #include <sys/stat.h>
        #include <unistd.h>
        int main(void) {
            char text[9];
            for (int i = 0; i < 5; i++) { int file = open(\"program.c\", O_RDONLY); read(file, text, 9); close(file); }
            struct stat about; stat(\".\", &about); getppid(); getuid(); free(malloc(1 << 20));
            return write(1, \"done\\n\", 5) != 5;
        }";
    let recorded = Recorded::new(source, &[], &["--time"]);
    let text = recorded.pugmark(&["last", "-n", "1000000", "rec"]);
    let mut traced = BTreeMap::<&str, usize>::new();
    for call in text.lines().filter_map(|line| line.split_once("(not traced: ")?.1.strip_suffix(')')) {
        *traced.entry(call).or_default() += 1;
    }
    assert_eq!([traced["openat"], traced["read"]].map(|count| count >= 5), [true; 2], "{traced:?}");
    let Some(output) = recorded.output("strace", &["-o", "calls", "./program"]) else {
        eprintln!("skipped: there is no strace");
        return;
    };
    assert!(output.status.success());
    let calls = std::fs::read_to_string(recorded.0.file("calls")).unwrap();
    let mut native = BTreeMap::<&str, usize>::new();
    for call in calls.lines().filter_map(|line| Some(line.split_once('(')?.0)) {
        *native.entry(call).or_default() += 1;
    }
    // The first one is before the program; the last one's number comes to it by a register, and nothing follows.
    for outside in ["execve", "exit_group"] {
        native.remove(outside);
    }
    assert_eq!(traced, native);
}
