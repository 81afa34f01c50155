//! Programs that a signal ends: who got it, where, and for which access.

use crate::{
    check_all, for_each_engine, options,
    programs::{Scratch, compile},
};
use pugmark_recorder::{Ending, Engine, Fault, Part, RecordOptions, Recording, record};
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
static pthread_t other;
static void tell(int signal, siginfo_t *info, void *context) {
    long at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    printf("%d %d %lx %lx\n", signal, info->si_code == SI_KERNEL, (long)info->si_addr, at);
    fflush(stdout);
    _exit(0);
}
__asm__("read_at: mov (%rdi), %eax\n ret\nwrite_at: nop\n movq $1, (%rdi)\n ret\ncopy_to: mov $9000, %ecx\n"
    " xor %eax, %eax\n rep stosb\n ret\nhalt: hlt\n ret\ninvalid: ud2\n"
    "divide: mov $1, %eax\n cltd\n idiv %edi\n ret\nthrough: sub $8, %rsp\n call *%rdi\n add $8, %rsp\n ret\n");
void read_at(long), write_at(long), copy_to(long), halt(long), invalid(long), divide(long), through(long);
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
    case 8: divide(0); break;
    case 9: through(0); break;
    case 10: abort(); break;
    case 11: raise(SIGTERM); break;
    case 12: pthread_kill(other, SIGUSR1); for (;;) pause();
    }
    return 0;
}
static int number = 1000, by = 7;
static void *run(void *unused) { ready = 1; for (;;) number = number / by + 1000; }
static void *rest(void *unused) { ready = 1; for (;;) pause(); }
int main(int count, char **words) {
    struct sigaction action = { .sa_sigaction = tell, .sa_flags = SA_SIGINFO };
    how = atol(words[1]);
    int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE };
    for (int n = 0; n < 4 && words[2][0] == 't'; n++) sigaction(signals[n], &action, 0);
    if (count < 4) { crash(0); return 1; }
    int rests = words[3][0] == 'r';
    pthread_t thread;
    pthread_create(&other, 0, rests ? rest : run, 0);
    while (!ready);
    pthread_create(&thread, 0, crash, 0);
    (rests ? rest : run)(0);
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

/// The other threads: none, two that compute, or two that wait.
const OTHERS: [Option<&str>; 3] = [None, Some("run"), Some("wait")];

/// Returns the others of each run: a race of the emulator's threads would show in some runs only.
fn runs(engine: Engine) -> impl Iterator<Item = Option<&'static str>> {
    let times = if matches!(engine, Engine::Stepping) { 1 } else { 3 };
    OTHERS.into_iter().cycle().take(OTHERS.len() * times)
}

/// Records a program that crashes, and returns what it was asked for, too.
fn crash(scratch: &Scratch, engine: Engine, how: u8, others: Option<&str>) -> (RecordOptions, Recording) {
    let mut words = vec![scratch.path("program").into_os_string(), how.to_string().into(), "crash".into()];
    words.extend(others.map(Into::into));
    let options = RecordOptions { out: scratch.path("out"), ..options(engine, words) };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    (options, recording)
}

#[test]
fn who_crashed_where_and_by_which_access_is_in_the_recording_as_the_system_tells_it() {
    for_each_engine(|engine| {
        let Some(scratch) = compile("crashing", CRASHING) else { return };
        for how in (0..10).filter(|how| *how != 7) {
            let native = native(&scratch, &how.to_string());
            for others in runs(engine) {
                let (options, recording) = crash(&scratch, engine, how, others);
                let case = format!("{how} {engine:?} {others:?}");
                assert_eq!(recording.ending, Ending::Signal(native.signal), "{case}");
                let part = Part::ended_in(&recording.parts).unwrap_or_else(|| panic!("{case}: no part"));
                assert_eq!(part.task, if others.is_some() { 3 } else { 1 }, "{case}");
                assert_eq!(part.signal, Some(native.signal), "{case}");
                assert_eq!(part.at, Some(native.at), "{case}: {native:x?}");
                // Accesses that the emulator has handled are none, nor is HLT.
                let is_fault = [libc::SIGSEGV, libc::SIGBUS].contains(&native.signal) && how != 5;
                let fault = Fault { signal: native.signal, address: native.address };
                let fault = Some(fault).filter(|_| is_fault);
                assert_eq!(part.fault.filter(|fault| is_fault || fault.address.is_some()), fault, "{case}");
                crashed_part(&options, part);
                is_said(&options, native.signal, fault);
            }
        }
    });
}

#[test]
fn who_got_a_signal_that_was_sent_to_a_thread_is_in_the_recording() {
    for_each_engine(|engine| {
        let Some(scratch) = compile("sent-to-thread", CRASHING) else { return };
        for (how, signal) in [(10, libc::SIGABRT), (11, libc::SIGTERM), (12, libc::SIGUSR1)] {
            for others in runs(engine) {
                // It needs another thread.
                if how == 12 && others.is_none() {
                    continue;
                }
                let (options, recording) = crash(&scratch, engine, how, others);
                let case = format!("{how} {engine:?} {others:?}");
                assert_eq!(recording.ending, Ending::Signal(signal), "{case}");
                let part = Part::ended_in(&recording.parts).unwrap_or_else(|| panic!("{case}: no part"));
                let sender = if others.is_some() { 3 } else { 1 };
                assert_eq!(part.task, if how == 12 { 2 } else { sender }, "{case}");
                assert_eq!((part.signal, part.fault), (Some(signal), None), "{case}");
                crashed_part(&options, part);
                is_said(&options, signal, None);
            }
        }
    });
}

/// Returns the part of the index that has the signal, which is that of a part.
fn crashed_part(options: &RecordOptions, expected: &Part) -> Value {
    let index = fs::read(options.out.join("recording.json")).expect("an index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    let crashed = |part: &&Value| !part["signal"].is_null();
    let parts: Vec<&Value> = index["parts"].as_array().expect("parts").iter().filter(crashed).collect();
    assert_eq!(parts.len(), 1, "{index}");
    for name in ["signal", "tid", "at"] {
        assert_eq!(parts[0][name], index["ending"][name], "{name}");
    }
    assert_eq!(parts[0]["tid"], expected.thread.tid);
    let address = expected.fault.and_then(|fault| fault.address).map(|address| format!("{address:#x}"));
    assert_eq!((&parts[0]["signal"], &parts[0]["address"]), (&expected.signal.into(), &address.into()));
    parts[0].clone()
}

/// Checks that `pugmark last` has the signal and the access, before the other threads.
fn is_said(options: &RecordOptions, signal: i32, fault: Option<Fault>) {
    let last = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .args(["last", "-n", "4"])
        .arg(&options.out)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let text = String::from_utf8(last.stdout).expect("text");
    let address = fault.and_then(|fault| fault.address);
    let accessing = address.map(|address| format!(", accessing {address:#x}")).unwrap_or_default();
    let said = format!(", by signal {signal}{accessing}\n");
    assert_eq!(text.matches(&said).count(), 1, "{text}");
    let first = text.find("it ended").expect("an end");
    let line = text[first..].lines().next().unwrap_or_default();
    assert!(line.ends_with(said.trim_end()), "{text}");
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
        assert_eq!((part.task, part.signal, part.fault), (1, Some(libc::SIGSEGV), None));
        let crashed = crashed_part(&options, part);
        assert_eq!((&crashed["signal"], &crashed["address"]), (&json!(11), &Value::Null));
        check_all(&recording);
    });
}
