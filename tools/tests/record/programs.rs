//! The programs to record.

use object::{Object, ObjectSymbol};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// A directory of its own that is removed when the value is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        // Tests run at the same time, and two can have the same program.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pugmark-record-{}-{number}-{name}", process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Returns a path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

/// Compiles a C program to `program` in the directory, statically linked; `None` if there is no compiler.
pub(crate) fn compile(name: &str, source: &str) -> Option<Scratch> {
    compile_with(name, &[PRELUDE, source].concat(), &[])
}

/// Compiles without the C library, whose functions depend on the processor.
pub(crate) fn compile_bare(name: &str, source: &str) -> Option<Scratch> {
    compile_with(name, source, &["-nostdlib", "-ffreestanding", "-fcf-protection=none"])
}

fn compile_with(name: &str, source: &str, options: &[&str]) -> Option<Scratch> {
    let scratch = Scratch::new(name);
    fs::write(scratch.path("program.c"), source).expect("the source");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-static", "-fno-stack-protector"])
        .args(options)
        .arg("-o")
        .args(["program", "program.c"].map(|file| scratch.path(file)));
    match cc.output() {
        Ok(output) if output.status.success() => Some(scratch),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => {
            println!("skipped: a compiler is not installed");
            None
        }
    }
}

/// Returns the address of a function or label in the program of a directory.
pub(crate) fn symbol(scratch: &Scratch, name: &str) -> u64 {
    let bytes = fs::read(scratch.path("program")).expect("the program");
    let file = object::File::parse(&*bytes).expect("the program");
    file.symbol_by_name(name).expect(name).address()
}

const PRELUDE: &str = "
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
";

/// Signals of all kinds, interrupted system calls, string instructions. The exit status is the number of the failed
/// step.
pub(crate) const EVENTS: &str = r#"
static sigjmp_buf back;
static volatile int counted;
static void count(int signal) { counted++; }
static void leave(int signal) { siglongjmp(back, 1); }

int main(void) {
    signal(SIGUSR1, count); signal(SIGTRAP, count); signal(SIGALRM, count);
    signal(SIGSEGV, leave); signal(SIGILL, leave); signal(SIGFPE, leave);
    raise(SIGUSR1);
    __asm__ volatile("int3");
    if (counted != 2) return 1;
    if (!sigsetjmp(back, 1)) { *(volatile int *)8 = 1; return 2; }
    if (!sigsetjmp(back, 1)) { __asm__ volatile("ud2"); return 3; }
    if (!sigsetjmp(back, 1)) {
        __asm__ volatile("xor %%ecx, %%ecx; cltd; idivl %%ecx" ::: "rax", "rcx", "rdx");
        return 4;
    }

    /* A signal into running code, and one into a system call that is not restarted. */
    struct itimerval soon = {{0, 0}, {0, 5000}};
    setitimer(ITIMER_REAL, &soon, 0);
    while (counted != 3) {}
    soon.it_value.tv_usec = 50000;
    struct timespec long_time = {20, 0};
    setitimer(ITIMER_REAL, &soon, 0);
    if (nanosleep(&long_time, 0) == 0 || counted != 4) return 5;

    /* System calls that are restarted, after a handler and without one. */
    int ends[2];
    char byte;
    if (pipe(ends)) return 6;
    setitimer(ITIMER_REAL, &soon, 0);
    if (!fork()) { usleep(300000); _exit(write(ends[1], "x", 1) != 1); }
    if (read(ends[0], &byte, 1) != 1 || counted != 5) return 7;
    int status;
    wait(&status);
    if (status) return 8;
    if (!fork()) { usleep(100000); _exit(0); }
    struct timespec time = {0, 300000000};
    if (nanosleep(&time, 0)) return 9;
    wait(&status);

    static char bytes[5000];
    char *to = bytes;
    unsigned long many = sizeof bytes, none = 0;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(many) : "a"(7) : "memory");
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(none) : "a"(7) : "memory");
    if (bytes[4999] != 7) return 10;

    /* Stepping must not show. */
    unsigned long flags;
    __asm__ volatile("pushfq; pop %0" : "=r"(flags));
    if (flags & 0x100) return 11;
    __asm__ volatile("push %1; popfq; pushfq; pop %0" : "=r"(flags) : "r"(0x4c1ul) : "cc");
    if ((flags & 0xcd5) != 0x4c1) return 12;
    /* AC: 64 bits change it, 16 bits leave it alone. */
    __asm__ volatile("push %1; popfq; pushw $0xd5; popfw; pushfq; pop %0; push %2; popfq"
                     : "=&r"(flags) : "r"(0x40400ul), "r"(0x2ul) : "cc");
    if ((flags & 0x40dd5) != 0x400d5) return 13;
    __asm__ volatile("pushw $0xd5; popfw; pushfq; pop %0" : "=r"(flags) :: "cc");
    if ((flags & 0x40dd5) != 0xd5) return 14;
    unsigned short half;
    __asm__ volatile("pushfw; popw %0" : "=r"(half));
    if (half & 0x100) return 15;
    __asm__ volatile("cld; mov %%ss, %%eax; mov %%eax, %%ss; nop" ::: "rax");
    return 0;
}
"#;

/// Gets the time through the vsyscall page, the predecessor of the vDSO.
pub(crate) const VSYSCALL: &str = r#"
int main(void) {
    time_t (*old)(time_t *) = (void *)0xffffffffff600400;
    time_t before = time(0), there = 0, now = old(&there);
    for (int i = 0; i < 3; i++) old(0);
    return now != there || now < before || now > before + 60;
}
"#;

/// Executes code in memory that only the program itself can read. The exit status is 9 if the system does not support
/// such memory.
pub(crate) const SECRET: &str = r#"
#include <sys/syscall.h>
int main(void) {
    int file = syscall(447, 0); /* memfd_secret */
    if (file < 0 || ftruncate(file, 4096)) return 9;
    unsigned char *code = mmap((void *)0x12345000, 4096, 7, MAP_SHARED | MAP_FIXED, file, 0);
    if (code == MAP_FAILED) return 9;
    memcpy(code, "\xb8\1\0\0\0\xc3", 6);
    return ((int (*)(void))code)() != 1;
}
"#;

/// Four threads that repeatedly change the mapping of memory.
pub(crate) const MAPS: &str = r#"
static void *change(void *argument) {
    for (int i = 0; i < 1000; i++) mprotect(argument, 4096, PROT_READ);
    return 0;
}

int main(void) {
    pthread_t threads[4];
    char *pages = mmap(0, 4 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], 0, change, pages + 4096 * i)) return 1;
    for (int i = 0; i < 4; i++)
        if (pthread_join(threads[i], 0)) return 2;
    return 0;
}
"#;

/// Writes code, executes it, and overwrites it with other code; then executes another program.
pub(crate) const PARTS: &str = r#"
int main(void) {
    unsigned char *code = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int sum = 0;
    for (int round = 0; round < 4; round++) {
        /* mov eax, 1; ret, the second time elsewhere, the third time the same, and then 2 in the first one's place. */
        unsigned char *at = code + (round == 1 ? 64 : 0);
        memcpy(at, "\xb8\1\0\0\0\xc3", 6);
        at[1] = round == 3 ? 2 : 1;
        sum += ((int (*)(void))at)();
    }
    if (sum != 5) return 1;
    execl("/bin/true", "true", (char *)0);
    return 2;
}
"#;

/// A function with a known number of instructions.
const WORK: &str = r#"
__asm__(".globl work\n.type work, @function\n"
        "work: mov $100, %ecx\n"
        "1: dec %ecx\n jnz 1b\n"
        "xor %eax, %eax\n ret\n"
        ".size work, . - work\n");
int work(void);
"#;

/// The number of instructions that `work` executes: three outside the loop, and two per round.
pub(crate) const WORK_INSNS: u64 = 3 + 2 * 100;

/// Returns a program that executes `work` once.
pub(crate) fn filter() -> String {
    format!("{WORK} int main(void) {{ return work(); }}")
}

/// Returns a program with a thread that waits in the kernel while the main thread executes `work`.
pub(crate) fn waits() -> String {
    format!("{WORK}{WAITS}")
}

const WAITS: &str = r#"
__asm__(".globl rest\n.type rest, @function\n"
        "rest: mov $34, %eax\n" /* pause */
        "syscall\n ret\n"
        ".size rest, . - rest\n");
int rest(void);
static void *thread(void *argument) { rest(); return 0; }

int main(void) {
    pthread_t other;
    if (pthread_create(&other, 0, thread, 0)) return 1;
    usleep(100000);
    return work();
}
"#;

/// Kills itself with the first of two adjacent system calls.
pub(crate) const KILLED: &str = r#"
__asm__(".globl last\n.type last, @function\n"
        "last: mov $39, %eax\n" /* getpid */
        "syscall\n mov %eax, %edi\n mov $15, %esi\n mov $62, %eax\n" /* kill */
        "syscall\n syscall\n ret\n"
        ".size last, . - last\n");
int last(void);
int main(void) { return last(); }
"#;

/// Returns a program of which two threads and a child execute `work` once, while one thread waits in the kernel, and of
/// which another child executes another program.
pub(crate) fn tasks() -> String {
    format!("{WORK}{TASKS}")
}

const TASKS: &str = r#"
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *thread(void *argument) {
    prctl(PR_SET_NAME, "worker");
    pthread_mutex_lock(&mutex);
    int result = work();
    pthread_mutex_unlock(&mutex);
    return (void *)(long)result;
}

int main(void) {
    pthread_t threads[2];
    void *result;
    int status;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], 0, thread, 0)) return 1;
    usleep(1000);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < 2; i++)
        if (pthread_join(threads[i], &result) || result) return 2;
    if (!fork()) _exit(work());
    if (wait(&status) < 0 || status) return 3;
    if (!vfork()) { execl("/bin/true", "true", (char *)0); _exit(1); }
    if (wait(&status) < 0 || status) return 4;
    /* A child that outlives the program's main thread. */
    if (!fork()) { usleep(100000); _exit(0); }
    return 0;
}
"#;

/// Executes itself again, as many times as its argument says.
pub(crate) const AGAIN: &str = r#"
#include <stdlib.h>
#include <stdio.h>
int main(int count, char **words) {
    int left = count > 1 ? atoi(words[1]) : 12;
    char text[16];
    snprintf(text, sizeof text, "%d", left - 1);
    if (left) execl(words[0], words[0], text, (char *)0);
    return left;
}
"#;

/// Children whose handlers were set right before their fork, in turn two different ones. The first two instructions of
/// `bad` are executed. The third, a call, faults because there is no stack: it begins, but control flow continues in
/// the inherited handler, which a call of `bad` cannot reach.
pub(crate) const INHERITED: &str = r#"
__asm__(".globl bad\n.type bad, @function\n"
        "bad: mov $8, %eax\n"
        "mov %rax, %rsp\n call bad\n"
        ".size bad, . - bad\n");
int bad(void);
static char stack[1 << 16];
static void one(int signal) { _exit(1); }
static void two(int signal) { _exit(2); }

int main(void) {
    stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    if (sigaltstack(&other, 0)) return 1;
    for (int i = 0; i < 20; i++) {
        int status;
        struct sigaction action = { .sa_handler = i % 2 ? one : two, .sa_flags = SA_ONSTACK };
        if (sigaction(SIGSEGV, &action, 0)) return 1;
        if (!fork()) _exit(bad());
        if (wait(&status) < 0 || status != (i % 2 ? 1 : 2) << 8) return 1;
    }
    return 0;
}
"#;

/// A child executes while a fault in the middle of a block kills its parent.
pub(crate) const APART: &str = r#"
__asm__(".globl bad\n.type bad, @function\n"
        "bad: mov $8, %eax\n"
        "mov %eax, (%rax)\n nop\n nop\n ret\n"
        ".size bad, . - bad\n");
int bad(void);

int main(void) {
    int parent = getpid(), ready[2];
    char byte;
    if (pipe(ready)) return 1;
    if (!fork()) {
        if (write(ready[1], "", 1) != 1) return 1;
        while (getppid() == parent) for (volatile int i = 0; i < 1000; i++) {}
        return 0;
    }
    if (read(ready[0], &byte, 1) != 1) return 1;
    return bad();
}
"#;

/// Each process ends as soon as it has made the next one.
pub(crate) const ORPHANS: &str = r#"
int main(void) {
    for (int i = 0; i < 20; i++)
        if (fork()) _exit(0);
    return 0;
}
"#;

/// A process that may not fork tries to fork.
pub(crate) const NO_CHILDREN: &str = r#"
#include <sys/resource.h>
int main(void) {
    struct rlimit limit = {0, 0};
    /* Who is root may fork in spite of the limit. */
    if (setrlimit(RLIMIT_NPROC, &limit) || setuid(65534)) return 1;
    return fork() != -1;
}
"#;

/// Copies its input to its output until the input ends; ignores SIGTERM if it has an argument. It does without the C
/// library, whose start takes seconds under stepping.
pub(crate) const LINES: &str = r#"
static long call(long number, long one, long two, long three) {
    register long four __asm__("r10") = 8; /* the bytes of a set of signals */
    __asm__ volatile("syscall" : "+a"(number) : "D"(one), "S"(two), "d"(three), "r"(four) : "rcx", "r11", "memory");
    return number;
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov (%rsp), %rdi\n and $-16, %rsp\n call start\n");
__attribute__((used, noreturn)) static void start(long arguments) {
    char line[64];
    unsigned long ignore[4] = {1}; /* SIG_IGN */
    long length;
    if (arguments > 1) call(13, 15, (long)ignore, 0); /* rt_sigaction */
    while ((length = call(0, 0, (long)line, sizeof line)) > 0) call(1, 1, (long)line, length); /* read, write */
    for (;;) call(231, 3, 0, 0); /* exit_group */
}
"#;

/// A thread other than the main one executes another program, which ends all other threads.
pub(crate) const EXEC: &str = r#"
static void *thread(void *argument) {
    execl("/bin/true", "true", (char *)0);
    return 0;
}
static void *other(void *argument) { for (;;) pause(); }

int main(void) {
    pthread_t threads[2];
    if (pthread_create(&threads[0], 0, other, 0)) return 1;
    if (pthread_create(&threads[1], 0, thread, 0)) return 1;
    for (;;) pause();
}
"#;

/// Threads that never end by themselves, one that ends them all, and a child that is killed. Each round of their loop
/// has a branch that is in the trace: without it, the trace would not determine the number of rounds.
pub(crate) const ENDS: &str = r#"
static void *endless(void *argument) { for (volatile long i = 1; i; i++) {} return 0; }

int main(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&thread, 0, endless, 0)) return 1;
    int child = fork();
    if (!child) endless(0);
    usleep(20000);
    int status;
    if (kill(child, SIGKILL) || wait(&status) != child || !WIFSIGNALED(status)) return 2;
    _exit(7);
}
"#;

/// One thread maps other code at the address where another thread executes.
pub(crate) const REMAP: &str = r#"
static int (*code)(void);
static volatile int turn;
static void *thread(void *argument) {
    while (turn != 1) {}
    int first = code();
    turn = 2;
    while (turn != 3) {}
    return (void *)(long)(first * 10 + code());
}

int main(void) {
    /* mov eax, 1; ret, and a page further: nop; mov eax, 2; ret. */
    int file = memfd_create("code", 0);
    if (pwrite(file, "\xb8\1\0\0\0\xc3", 6, 0) != 6) return 1;
    if (pwrite(file, "\x90\xb8\2\0\0\0\xc3", 7, 4096) != 7) return 1;
    if (ftruncate(file, 8192)) return 1;
    void *at = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    code = at;
    pthread_t other;
    void *result;
    if (pthread_create(&other, 0, thread, 0)) return 2;
    turn = 1;
    while (turn != 2) {}
    if (mmap(at, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 4096) != at) return 3;
    turn = 3;
    if (pthread_join(other, &result)) return 4;
    return (long)result == 12 ? 0 : 5;
}
"#;

/// Its child starts a session, and thereby a group, and ends with status 5, as does the program.
pub(crate) const GROUP: &str = r#"
static long call(long number, long one, long two, long three) {
    register long four __asm__("r10") = 0;
    __asm__ volatile("syscall" : "+a"(number) : "D"(one), "S"(two), "d"(three), "r"(four) : "rcx", "r11", "memory");
    return number;
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call start\n");
__attribute__((used, noreturn)) static void start(void) {
    volatile int status = 0;
    long child = call(57, 0, 0, 0); /* fork */
    if (!child) {
        call(112, 0, 0, 0); /* setsid */
        for (;;) call(231, 5, 0, 0); /* exit_group */
    }
    call(61, child, (long)&status, 0); /* wait4 */
    for (;;) call(231, status >> 8 & 255, 0, 0);
}
"#;

/// A far return to the next instruction, PUSHF and POPF, and a load of SS: instructions that stepping must treat
/// specially. It ends with status 3.
pub(crate) const FAR: &str = r#"
__asm__(".globl _start\n_start: mov %cs, %eax\n push %rax\n lea 1f(%rip), %rcx\n push %rcx\n lretq\n"
        "1: pushfq\n popfq\n mov %ss, %ecx\n mov %ecx, %ss\n nop\n"
        "mov $3, %edi\n mov $231, %eax\n syscall\n"); /* exit_group */
"#;

/// The number of instructions that [`FAR`] executes.
pub(crate) const FAR_INSNS: u64 = 13;

/// Calls, loops, a jump table, string instructions and system calls, independent of the processor and of the stack's
/// address. It ends with status 3.
pub(crate) const BARE: &str = r#"
static unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static unsigned (*volatile recursive)(unsigned) = fib;
static volatile unsigned sink;
static char bytes[300];

static unsigned choose(unsigned n) {
    switch (n % 6) {
    case 0: return n + 7;
    case 1: return n * 3;
    case 2: return n ^ 0x55;
    case 3: return n - 1;
    case 4: return n << 2;
    default: return n >> 1;
    }
}

/* Instructions that reach into the next page, after others: the emulator begins a block for each of them. */
void edge2(void), edge5(void), edge9(void);
__asm__(".macro edge before\n .balign 4096\n .skip 4096 - \\before\n edge\\before:\n inc %eax\n"
        " .rept 4\n movabs $0x123456789abcdef, %rcx\n add %ecx, %eax\n .endr\n ret\n .endm\n"
        " edge 5\n edge 9\n edge 2\n");

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call start\n");
__attribute__((used, noreturn)) static void start(void) {
    sink = recursive(15);
    for (unsigned i = 0; i < 500; i++) sink += choose(i);
    for (int round = 0; round < 3; round++) edge2(), edge5(), edge9();
    for (int round = 0; round < 3; round++) {
        char *to = bytes;
        unsigned long many = 100 * round, id = 39; /* getpid */
        __asm__ volatile("rep stosb" : "+D"(to), "+c"(many) : "a"(round) : "memory");
        __asm__ volatile("syscall" : "+a"(id) :: "rcx", "r11", "memory");
    }
    __asm__ volatile("syscall" :: "a"(231ul), "D"(3ul)); /* exit_group */
    __builtin_unreachable();
}
"#;
