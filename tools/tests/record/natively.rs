//! Programs that do what few programs do: they print the same as alone, and what they executed is recorded.

use crate::{check_all, for_each_engine, options, programs::compile};
use pugmark_recorder::{Ending, Engine, RecordOptions, record};
use std::{fs, process::Command};

/// Does what its first word says, and writes what came of it into the file of its second word.
const UNUSUAL: &str = r#"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
extern char **environ;
static volatile int count;
static sigjmp_buf back;
static char stack[65536];
static FILE *out;
static void note(int signal) { count++; }
static void jump(int signal) { char on; count += &on >= stack && &on < stack + sizeof stack; siglongjmp(back, 1); }
static void set(int signal, void (*handler)(int), int flags) {
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigaction(signal, &action, 0);
}
static int ended(pid_t child) {
    int status = -1;
    waitpid(child, &status, WUNTRACED);
    return status;
}
static void after(int flags) {
    struct itimerval once = { .it_value = { 0, 30000 } };
    count = 0;
    set(SIGALRM, note, flags);
    setitimer(ITIMER_REAL, &once, 0);
}
/* System calls that a signal interrupts, with and without SA_RESTART. */
static void interrupted(void) {
    int ends[2];
    char byte;
    struct timespec time = { 0, 100000000 };
    pipe(ends);
    after(0);
    int got = read(ends[0], &byte, 1);
    fprintf(out, "read %d %d %d\n", got, errno, count);
    after(SA_RESTART);
    pid_t child = fork();
    if (!child) { nanosleep(&time, 0); write(ends[1], "x", 1); _exit(0); }
    got = read(ends[0], &byte, 1);
    fprintf(out, "again %d %d %d\n", got, count, ended(child));
    after(SA_RESTART);
    got = nanosleep(&time, &time);
    fprintf(out, "nanosleep %d %d %d\n", got, errno, count);
    after(SA_RESTART);
    got = poll(0, 0, 100);
    fprintf(out, "poll %d %d %d\n", got, errno, count);
    sigset_t set;
    sigemptyset(&set);
    after(0);
    got = sigsuspend(&set);
    fprintf(out, "sigsuspend %d %d %d\n", got, errno, count);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, 0);
    after(0);
    got = sigwaitinfo(&set, 0);
    fprintf(out, "sigwaitinfo %d %d\n", got, count);
}
/* A signal of each kind: without a handler, after one was taken away, ignored. Another one from outside. */
static void signals(void) {
    for (int signal = 1; signal < 32; signal++) {
        int stops = signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
        for (int way = 0; way < 3 && !stops; way++) {
            pid_t child = fork();
            if (!child) {
                if (way == 1) { set(signal, note, 0); set(signal, SIG_DFL, 0); }
                /* The system handles SIGTRAP again after the first trap of a debugger. */
                if (way == 2 && signal != SIGTRAP) set(signal, SIG_IGN, 0);
                raise(signal);
                _exit(9);
            }
            fprintf(out, "%d %d: %x\n", signal, way, ended(child) & ~0x80);
        }
    }
    int ends[2];
    pipe(ends);
    pid_t child = fork();
    if (!child) { set(SIGABRT, note, 0); write(ends[1], "x", 1); while (!count) sched_yield(); _exit(8); }
    char byte;
    read(ends[0], &byte, 1);
    kill(child, SIGABRT);
    fprintf(out, "handled %x\n", ended(child));
}
static void stopped(void) {
    pid_t child = fork();
    if (!child) { raise(SIGSTOP); raise(SIGTSTP); _exit(5); }
    for (int n = 0; n < 3; n++) { fprintf(out, "%x\n", ended(child)); kill(child, SIGCONT); }
    child = fork();
    if (!child) for (;;) pause();
    kill(child, SIGSTOP);
    fprintf(out, "%x\n", ended(child));
    kill(child, SIGTERM);
    kill(child, SIGCONT);
    fprintf(out, "%x\n", ended(child));
}
static int deeper(int depth) {
    volatile char room[4096];
    room[0] = depth;
    return depth ? deeper(depth + 1) + room[0] : 0;
}
static void overflow(void) {
    stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    sigaltstack(&other, 0);
    set(SIGSEGV, jump, SA_ONSTACK);
    for (int n = 0; n < 3; n++) if (!sigsetjmp(back, 1)) deeper(getppid());
    fprintf(out, "overflows %d\n", count);
}
static int shares(void *unused) { count = 7; _exit(3); }
static void children(void) {
    pid_t child = vfork();
    if (!child) _exit(5);
    fprintf(out, "vfork %x\n", ended(child));
    child = clone(shares, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    fprintf(out, "clone %x\n", ended(child));
    posix_spawn(&child, "/bin/true", 0, 0, (char *[]){ "true", 0 }, environ);
    fprintf(out, "spawn %x\n", ended(child));
    pid_t many[60];
    int ends[2], sum = 0;
    pipe(ends);
    for (int n = 0; n < 60; n++) if (!(many[n] = fork())) { close(ends[1]); read(ends[0], stack, 1); _exit(n); }
    close(ends[1]);
    for (int n = 0; n < 60; n++) sum += ended(many[n]) >> 8;
    fprintf(out, "many %d\n", sum);
}
static void *leaf(void *unused) { return (void *)3; }
static void closed(void) {
    int file = dup2(fileno(out), 900);
    syscall(SYS_close_range, 0, 899, 0);
    syscall(SYS_close_range, 901, ~0U, 0);
    pthread_t thread;
    void *got = 0;
    if (!pthread_create(&thread, 0, leaf, 0)) pthread_join(thread, &got);
    pid_t child = fork();
    if (!child) { execl("/bin/true", "true", (char *)0); _exit(9); }
    dprintf(file, "%ld %x\n", (long)got, ended(child));
}
/* Executes a copy of itself in a file without a name. */
static void unnamed(char **words) {
    int copy = syscall(SYS_memfd_create, "copy", 0), own = open("/proc/self/exe", O_RDONLY);
    for (long n; (n = read(own, stack, sizeof stack)) > 0; ) write(copy, stack, n);
    fclose(out);
    fexecve(copy, (char *[]){ "called", "executed", words[2], "20", 0 }, environ);
}
static void executed(char **words) {
    int left = atoi(words[3]);
    char number[9];
    fprintf(out, "%s %d\n", words[0], left);
    fclose(out);
    sprintf(number, "%d", left - 1);
    if (left) execl("/proc/self/exe", words[0], words[1], words[2], number, (char *)0);
    _exit(left);
}
int main(int length, char **words) {
    out = fopen(words[2], "a");
    setvbuf(out, 0, _IONBF, 0);
    switch (words[1][0]) {
    case 'i': interrupted(); break;
    case 's': words[1][1] == 'i' ? signals() : stopped(); break;
    case 'o': overflow(); break;
    case 'v': children(); break;
    case 'c': closed(); break;
    case 'u': unnamed(words); return 1;
    case 'e': executed(words);
    }
    return 0;
}
"#;

#[test]
fn a_program_that_does_unusual_things_prints_the_same_as_alone() {
    for_each_engine(|engine| {
        let Some(program) = compile("unusual", UNUSUAL) else { return };
        let (seen, out) = (program.path("seen"), program.path("out"));
        let take = || {
            let text = fs::read_to_string(&seen).expect("what it wrote");
            fs::remove_file(&seen).expect("it is there");
            text
        };
        // Stepping children and what they execute would take minutes.
        let words: &[_] = match engine {
            Engine::Stepping => &["interrupted", "signals"],
            _ => &["interrupted", "signals", "stopped", "overflow", "vfork", "closed", "unnamed"],
        };
        for &word in words {
            let status =
                Command::new(program.path("program")).arg(word).arg(&seen).status().expect("it runs");
            let (alone, status) = (take(), status.code().expect("a status"));
            assert!(!alone.is_empty() && status == 0, "{word}");
            let words = [program.path("program").into_os_string(), word.into(), (&seen).into()];
            let options = RecordOptions { out: out.clone(), ..options(engine, words) };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!((recording.ending, take()), (Ending::Exit(0), alone), "{engine:?} {word}");
            assert_eq!((recording.unreported, &recording.not_followed), (0, &vec![]), "{engine:?} {word}");
            // A loop of direct calls leaves nothing in a trace.
            if word != "overflow" {
                check_all(&recording);
            }
        }
    });
}
