//! Programs that a signal ends: who got it, where, and for which access.

use crate::{
    check_all, for_each_engine, options,
    programs::{Scratch, compile},
};
use pugmark_recorder::{Ending, Fault, Part, RecordOptions, record};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Stdio},
};

/// Crashes in one of several ways, in the first thread or in another one, while others run. With another word, a
/// handler prints what the system tells.
const CRASHING: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
static volatile int ready;
static long how;
static void tell(int signal, siginfo_t *info, void *context) {
    long at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    printf("%d %d %lx %lx\n", signal, info->si_code == SI_KERNEL, (long)info->si_addr, at);
    fflush(stdout);
    _exit(0);
}
__asm__("read_at: mov (%rdi), %eax\n ret\nwrite_at: nop\n movq $1, (%rdi)\n ret\ncopy_to: mov $9000, %ecx\n"
    " xor %eax, %eax\n rep stosb\n ret\nhalt: hlt\n ret\ninvalid: ud2\n");
void read_at(long), write_at(long), copy_to(long), halt(long), invalid(long);
static void *crash(void *unused) {
    char file[] = "/tmp/pugmark-crash-XXXXXX";
    int end = mkstemp(file);
    unlink(file);
    int own = MAP_PRIVATE | MAP_ANONYMOUS;
    char *page = mmap((void *)0x7100000000, 8192, PROT_READ | PROT_WRITE, own | MAP_FIXED, -1, 0);
    mprotect(page + 4096, 4096, PROT_READ);
    char *beyond = mmap((void *)0x7000000000, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, end, 0);
    /* Faults that are none of the program: its own code is written to and executed. */
    char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, own, -1, 0);
    for (int n = 0; n < 3; n++) { code[n] = 0x90; code[n + 1] = 0xc3; ((void (*)(void))code)(); }
    switch (how) {
    case 0: read_at(8); break;
    case 1: write_at((long)read_at); break;
    case 2: read_at(0x8000000000000000); break;
    case 3: read_at((long)beyond + 16); break;
    case 4: copy_to((long)page); break;
    case 5: halt(0); break;
    case 6: invalid(0); break;
    case 7: kill(getpid(), SIGSEGV); break;
    }
    return 0;
}
static void *run(void *unused) { ready = 1; for (;;); }
int main(int count, char **words) {
    struct sigaction action = { .sa_sigaction = tell, .sa_flags = SA_SIGINFO };
    how = atol(words[1]);
    int signals[] = { SIGSEGV, SIGBUS, SIGILL };
    for (int n = 0; n < 3 && words[2][0] == 't'; n++) sigaction(signals[n], &action, 0);
    if (count < 4) { crash(0); return 1; }
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    while (!ready);
    pthread_create(&thread, 0, crash, 0);
    for (;;);
}
"#;

/// The end of a program as the system tells it: the signal, the address of the access, and the instruction.
#[derive(Debug)]
struct NativeEnd {
    signal: i32,
    address: Option<u64>,
    at: u64,
}

/// Asks the system: runs the program alone, with its handler.
fn native(scratch: &Scratch, how: &str) -> NativeEnd {
    let output = Command::new(scratch.path("program")).args([how, "tell"]).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let words: Vec<&str> = text.split_whitespace().collect();
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).expect("a number");
    let signal = words[0].parse().expect("a signal");
    // The address of an access: the others' is that of the instruction.
    let is_access = words[1] == "0" && [libc::SIGSEGV, libc::SIGBUS].contains(&signal);
    NativeEnd { signal, address: is_access.then(|| hexadecimal(words[2])), at: hexadecimal(words[3]) }
}

#[test]
fn who_crashed_where_and_by_which_access_is_in_the_recording_as_the_system_tells_it() {
    for_each_engine(|engine| {
        let Some(scratch) = compile("crashing", CRASHING) else { return };
        for (how, threads) in (0..7).flat_map(|how| [(how, false), (how, true)]) {
            let how = how.to_string();
            let native = native(&scratch, &how);
            let mut words =
                vec![scratch.path("program").into_os_string(), how.clone().into(), "crash".into()];
            words.extend(threads.then(|| "threads".into()));
            let options = RecordOptions { out: scratch.path("out"), ..options(engine, words) };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!(recording.ending, Ending::Signal(native.signal), "{how}");
            // Where several threads run, only an access tells whose signal it was.
            let is_fault = [libc::SIGSEGV, libc::SIGBUS].contains(&native.signal) && how != "5";
            if threads && !is_fault {
                continue;
            }
            let part = Part::ended_in(&recording.parts).expect("a part");
            assert_eq!(part.task, if threads { 3 } else { 1 }, "{how} {engine:?}");
            assert_eq!(part.at, Some(native.at), "{how} {engine:?}: {native:x?}");
            if !is_fault {
                // Accesses that the emulator has handled are none.
                assert_eq!(part.fault.and_then(|fault| fault.address), None, "{how} {engine:?}");
            } else {
                let expected = Fault { signal: native.signal, address: native.address };
                assert_eq!(part.fault, Some(expected), "{how} {engine:?} {threads}");
                is_said(&options, part.fault);
            }
        }
    });
}

/// Returns the part of the index that has the signal.
fn crashed_part(options: &RecordOptions) -> Value {
    let index = fs::read(options.out.join("recording.json")).expect("an index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    let crashed = |part: &&Value| !part["signal"].is_null();
    let parts: Vec<&Value> = index["parts"].as_array().expect("parts").iter().filter(crashed).collect();
    assert_eq!(parts.len(), 1, "{index}");
    for name in ["signal", "tid", "at"] {
        assert_eq!(parts[0][name], index["ending"][name], "{name}");
    }
    parts[0].clone()
}

/// Checks that the index and `pugmark last` have the fault.
fn is_said(options: &RecordOptions, fault: Option<Fault>) {
    let Some(Fault { signal, address: Some(address) }) = fault else { return };
    let crashed = crashed_part(options);
    assert_eq!((&crashed["signal"], &crashed["address"]), (&signal.into(), &format!("{address:#x}").into()));
    let last = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .args(["last", "-n", "4"])
        .arg(&options.out)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let text = String::from_utf8(last.stdout).expect("text");
    let said = format!(", by signal {signal}, accessing {address:#x}\n");
    assert_eq!(text.matches(&said).count(), 1, "{text}");
}

#[test]
fn a_signal_that_was_sent_is_no_access() {
    for_each_engine(|engine| {
        let Some(scratch) = compile("sent", CRASHING) else { return };
        let words = [scratch.path("program").into_os_string(), "7".into(), "crash".into()];
        let options = RecordOptions { out: scratch.path("out"), ..options(engine, words) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!(recording.ending, Ending::Signal(libc::SIGSEGV));
        let part = Part::ended_in(&recording.parts).expect("a part");
        assert_eq!((part.task, part.fault), (1, None));
        let crashed = crashed_part(&options);
        assert_eq!((&crashed["signal"], &crashed["address"]), (&json!(11), &Value::Null));
        check_all(&recording);
    });
}
