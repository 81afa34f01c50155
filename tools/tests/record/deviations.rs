//! Programs for which the emulator is no Linux: they are told apart from those for which it is.

use crate::{
    for_each_engine, options,
    programs::{Scratch, compile},
};
use pugmark_recorder::{Deviation, DeviationKind, Ending, Engine, RecordOptions, Recording, record};
use serde_json::{Value, json};
use std::fs;

/// Asks for what the first letter of its word says. Returns 0 if the system gives it.
const ASKING: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
static char stack[65536];
static int end(void *unused) { _exit(0); }
static int filter(void) {
    struct sock_filter allow = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
    struct sock_fprog program = { 1, &allow };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}
static int share(void) {
    int status, child = clone(end, stack + sizeof stack, CLONE_VM | SIGCHLD, 0);
    return child < 0 || waitpid(child, &status, 0) != child || status;
}
static int change(void) {
    int file = syscall(SYS_memfd_create, "code", 0), wrong = 0;
    if (file < 0 || ftruncate(file, 4096)) return 1;
    char *written = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *executed = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    for (char n = 0; n < 9; n++) {
        memcpy(written, (char[]){ 0xb8, n, 0, 0, 0, 0xc3 }, 6);
        wrong |= ((int (*)(void))executed)() != n;
    }
    return wrong;
}
int main(int count, char **words) {
    switch (words[1][0]) {
    case 'f': return filter();
    case 'c': return syscall(SYS_io_uring_setup, 0, 0) && errno == ENOSYS;
    case 's': return share();
    case 'w': return change();
    }
    return 0;
}
"#;

fn asking(program: &Scratch, engine: Engine, word: &str) -> Recording {
    let words = [program.path("program").into_os_string(), word.into()];
    let options = RecordOptions { out: program.path("out"), ..options(engine, words) };
    record(&options, &mut |_| {}).expect("it is recorded")
}

#[test]
fn what_the_emulator_lacks_is_said_where_a_program_asks_for_it() {
    for_each_engine(|engine| {
        let Some(program) = compile("asking", ASKING) else { return };
        let call = u32::try_from(libc::SYS_io_uring_setup).expect("a number");
        for (word, kind, entry) in [
            ("filter", Some(DeviationKind::NoFilter), json!({ "kind": "no_filter" })),
            ("call", Some(DeviationKind::NoCall(call)), json!({ "kind": "no_call", "call": call })),
            ("share", Some(DeviationKind::NoSharedMemory), json!({ "kind": "no_shared_memory" })),
            ("write", Some(DeviationKind::StaleCode), json!({ "kind": "stale_code" })),
            ("nothing", None, Value::Null),
        ] {
            let recording = asking(&program, engine, word);
            let pid = recording.parts[0].thread.pid;
            let expected: Vec<_> = kind.filter(|_| engine == Engine::Emulator).into_iter().collect();
            let found: Vec<_> = expected.iter().map(|&kind| Deviation { pid, kind }).collect();
            assert_eq!(recording.deviations, found, "{word}");
            // The system lacks none of it.
            assert_eq!(recording.ending, Ending::Exit(expected.len() as i32), "{engine:?} {word}");
            let index = fs::read(program.path("out/recording.json")).expect("an index");
            let mut index: Value = serde_json::from_slice(&index).expect("JSON");
            let entries = index["deviations"].as_array_mut().expect("a list");
            entries.iter_mut().for_each(|found| assert_eq!(found["pid"].take(), pid));
            assert_eq!(entries.len(), expected.len(), "{word}");
            for found in entries {
                let mut entry = entry.clone();
                entry["pid"] = Value::Null;
                assert_eq!(*found, entry, "{word}");
            }
        }
    });
}
