//! The program's environment, in an emulator that has one of its own.

use crate::{options, programs::compile};
use pugmark_recorder::{Ending, Engine, RecordOptions, emulator_is_installed, record};
use std::{path::Path, process::Command};

/// Prints its environment, and that of the process, then executes itself, with another variable if the
/// word says so.
const SHOWING: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    static char bytes[1 << 16];
    for (char **variable = environ; *variable; variable++) puts(*variable);
    int length = read(open("/proc/self/environ", O_RDONLY), bytes, sizeof bytes);
    for (int at = 0; at < length; at++) if (!bytes[at]) bytes[at] = '\n';
    printf("process: %.*s\n", length, bytes);
    fflush(stdout);
    char *rest[] = { words[0], words[1] ? words[2] : 0, 0 };
    switch (words[1] ? words[1][0] : 0) {
    case 'a': execv(words[0], rest); return 1;
    case 's': setenv("G_SLICE", "x,y", 1); execv(words[0], rest); return 1;
    }
    return 0;
}
"#;

/// Runs the program in this environment, by these words before it. Returns what it saw, with the lines of the
/// process's environment in order of the alphabet.
fn seen(program: &Path, before: &[&str], environment: &[(&str, &str)]) -> Vec<Vec<String>> {
    let mut words: Vec<&str> = before.to_vec();
    words.extend([program.to_str().expect("a name"), "again", "set"]);
    let mut command = Command::new(words[0]);
    // The emulator is found there.
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(&words[1..]).env_clear().env("PATH", path).envs(environment.iter().copied());
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = |part: (usize, &str)| -> Vec<String> {
        let mut lines: Vec<_> = part.1.lines().map(str::to_owned).collect();
        if part.0 % 2 == 1 {
            lines.sort();
        }
        lines
    };
    text.split("process: ").flat_map(|part| part.split("\n\n")).enumerate().map(lines).collect()
}

#[test]
fn a_program_and_what_it_executes_have_the_environment_that_they_have_natively() {
    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return;
    }
    let Some(scratch) = compile("environment", SHOWING) else { return };
    let out = scratch.path("out").display().to_string();
    let pugmark = env!("CARGO_BIN_EXE_pugmark");
    for environment in [
        &[][..],
        &[("B", "1"), ("A", "2")],
        &[("G_SLICE", "debug-blocks,all"), ("G_SLICE_X", "1")],
        &[("G_SLICE_X", "1"), ("Z", "=")],
        &[("G_SLICE", "always-malloc")],
        &[("G_SLICE", "")],
    ] {
        let native = seen(&scratch.path("program"), &[], environment);
        assert_eq!(native.len(), 7, "{native:?}");
        for before in [&[pugmark, "record", "-o", &out, "--"][..], &[pugmark, "stat", "--"]] {
            assert_eq!(seen(&scratch.path("program"), before, environment), native, "{environment:?}");
        }
    }
}

/// Forks while threads begin and end. The processes that are forked execute code that is not translated yet, and the
/// emulator allocates memory for that.
const FORKING: &str = r#"
static volatile int over;
__asm__("fresh: .rept 3000\n jmp 1f\n nop\n1: nop\n .endr\n ret\n");
void fresh(void);
static void *leaf(void *unused) { return 0; }
static void *begin(void *unused) {
    for (pthread_t thread; !over; ) if (!pthread_create(&thread, 0, leaf, 0)) pthread_join(thread, 0);
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(threads + n, 0, begin, 0);
    for (int n = 0; n < 100; n++) {
        pid_t child = fork();
        /* One that hangs is ended by a signal. */
        if (!child) { alarm(60); fresh(); _exit(0); }
        int status;
        if (waitpid(child, &status, 0) != child || status) return 1;
    }
    over = 1;
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    return 0;
}
"#;

#[test]
fn a_process_that_is_forked_while_threads_begin_does_not_hang() {
    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return;
    }
    let Some(scratch) = compile("forking", FORKING) else { return };
    let plain = options(Engine::Emulator, [scratch.path("program")]);
    let options = RecordOptions { out: scratch.path("out"), limit: Some(1), ..plain };
    assert_eq!(record(&options, &mut |_| {}).expect("it is recorded").ending, Ending::Exit(0));
}
