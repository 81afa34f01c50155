//! Code of which a trace tells less than was executed: a loop of direct jumps and calls alone leaves no packets.

use super::Recorded;

/// The end of the stack is a signal, whose handler ends the program.
const PROGRAM: &str = r"
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>
int deep(int n) {
    volatile char room[4096];
    room[0] = n;
    return deep(n + 1) + room[0];
}
static void at_end(int signal) { _exit(signal != SIGSEGV); }
int main(void) {
    static char other[16384];
    stack_t stack = { .ss_sp = other, .ss_size = sizeof other };
    struct sigaction action = { .sa_handler = at_end, .sa_flags = SA_ONSTACK };
    sigaltstack(&stack, 0);
    sigaction(SIGSEGV, &action, 0);
    return deep(0);
}";

#[test]
fn each_command_says_that_a_recursion_that_never_ends_is_counted_once() {
    let recorded = Recorded::new(PROGRAM, &["-O1"], &[]);
    for (command, status) in [
        (&["report"][..], 1),
        (&["report", "--children"], 1),
        (&["decode"], 1),
        (&["decode", "--check"], 1),
        (&["last"], 1),
        (&["calls", "--of", "main"], 1),
        (&["calls", "--stats", "--of", "deep"], 1),
        (&["flamegraph", "-f", "folded"], 1),
        (&["timeline", "-o", "page.html"], 1),
        (&["script"], 1),
        (&["script", "--call-trace"], 1),
        (&["annotate", "deep"], 1),
        (&["coverage", "-f", "edges"], 1),
    ] {
        let output = recorded.output(env!("CARGO_BIN_EXE_pugmark"), &[command, &["rec"]].concat()).unwrap();
        let said = String::from_utf8(output.stderr).unwrap() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
        assert!(
            said.contains(" a loop of direct jumps and calls") || said.contains(" instead of "),
            "{command:?}"
        );
    }
}

#[test]
fn a_program_that_ends_is_not_said_to_miss_anything() {
    let recorded = Recorded::new("int main(void) { return 0; }", &["-O1"], &[]);
    for command in [&["report"][..], &["script"], &["last"], &["decode"], &["script", "--addresses", "1-2"]] {
        let output = recorded.output(env!("CARGO_BIN_EXE_pugmark"), &[command, &["rec"]].concat()).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{command:?}: {output:?}");
    }
}
