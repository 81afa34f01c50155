//! Everything that could be lost: threads that cannot open files, recordings that are not finished, programs that are
//! not recorded.

use crate::{
    check_all, for_each_engine, options,
    programs::{Scratch, compile},
    tasks,
};
use pugmark_recorder::{Cause, Ending, Engine, NotFollowed, RecordOptions, record};
use serde_json::Value;
use std::{
    fs::{self, File},
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Starts three threads, one after the other, after something that makes it hard to open files, or executes another
/// program.
const HARD: &str = r#"
#include <stdlib.h>
#include <sys/resource.h>
static void *work(void *unused) { for (volatile int i = 0; i < 1000; i++); return 0; }
int main(int count, char **words) {
    struct rlimit files = { 32, 32 }, size = { 4096, 4096 };
    switch (words[1][0]) {
    case 'u': case 'e': if (setgid(65534) || setuid(65534)) return 1; break;
    case 'c': if (chroot(words[2]) || chdir("/")) return 1; break;
    case 'n': if (setrlimit(RLIMIT_NOFILE, &files)) return 1; while (dup(1) >= 0); break;
    case 's': if (setrlimit(RLIMIT_FSIZE, &size)) return 1; break;
    }
    if (words[1][0] == 'e') { execl("/bin/true", "true", (char *)0); return 1; }
    for (int n = 0; n < 3; n++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, 0)) return 2;
        pthread_join(thread, 0);
    }
    return 0;
}
"#;

fn is_root() -> bool {
    // SAFETY: takes nothing and returns a number.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn threads_are_recorded_where_the_program_can_open_no_files() {
    for_each_engine(|engine| {
        let Some(program) = compile("hard", HARD) else { return };
        let (file, empty) = (program.path("program"), program.path("empty"));
        fs::create_dir_all(&empty).expect("a folder");
        for how in ["user", "chroot", "number of files", "size of files"] {
            if ["user", "chroot"].contains(&how) && !is_root() {
                println!("skipped: only root can change the user and the root folder");
                continue;
            }
            let words = [file.as_os_str(), how.as_ref(), empty.as_os_str()];
            let options = RecordOptions { out: program.path(how), ..options(engine, words) };
            let recording = record(&options, &mut |_| {}).expect(how);
            assert_eq!((recording.ending, recording.unreported), (Ending::Exit(0), 0), "{how} {engine:?}");
            assert_eq!(tasks(&recording), [1, 2, 3, 4], "{how} {engine:?}");
            check_all(&recording);
        }
    });
}

#[test]
fn a_program_that_cannot_be_followed_is_said_and_one_that_was_not_executed_is_not() {
    let failing = r#"
int main(void) {
    char *words[] = { "x", 0 };
    execv("/nonexistent", words);
    execv("/", words);
    return execv((char *)8, words) == -1 ? 0 : 1;
}
"#;
    for_each_engine(|engine| {
        let Some(program) = compile("failing", failing) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, recording.not_followed), (Ending::Exit(0), vec![]));
    });
    if !is_root() {
        println!("skipped: only root can change the user");
        return;
    }
    if !pugmark_recorder::emulator_is_installed() {
        return;
    }
    // The other user may not open what the recorder has.
    let Some(program) = compile("other-user", HARD) else { return };
    let words = [program.path("program").into_os_string(), "exec".into()];
    let options = RecordOptions { out: program.path("out"), ..options(Engine::Emulator, words) };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    let pid = recording.parts[0].thread.pid;
    let program = "/bin/true".to_owned();
    assert_eq!(
        (recording.ending, &*recording.not_followed),
        (Ending::Exit(0), &[NotFollowed { pid, program }][..])
    );
    let index = fs::read(options.out.join("recording.json")).expect("an index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    assert_eq!(index["not_followed"], serde_json::json!([{ "pid": pid, "program": "/bin/true" }]));
    check_all(&recording);
}

/// Executes a program, or says which user it is.
const RIGHTS: &str = r#"
int main(int count, char **words) {
    if (count == 1) return geteuid() ? 8 : 7;
    if (fork() == 0) { execl(words[1], words[1], (char *)0); _exit(99); }
    int status;
    wait(&status);
    return WEXITSTATUS(status);
}
"#;

#[test]
fn a_program_that_has_rights_of_its_own_has_them_and_is_said_not_to_be_recorded() {
    const NOBODY: u32 = 65534;
    if !is_root() || !pugmark_recorder::emulator_is_installed() {
        println!(
            "skipped: only root can make such a program, and only the emulator is other than the system"
        );
        return;
    }
    let Some(scratch) = compile("rights", RIGHTS) else { return };
    let copy = |from: &Path, name: &str, mode| {
        fs::copy(from, scratch.path(name)).expect("a copy");
        fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(mode)).expect("its mode");
    };
    copy(&scratch.path("program"), "root", 0o4755);
    copy(Path::new(env!("CARGO_BIN_EXE_pugmark")), "pugmark", 0o755);
    let out = scratch.path("of-nobody");
    fs::create_dir(&out).expect("a folder");
    std::os::unix::fs::chown(&out, Some(NOBODY), Some(NOBODY)).expect("another owner");
    let run = |words: &[&Path]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).uid(NOBODY).gid(NOBODY).current_dir(&out).stdin(Stdio::null());
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let [program, root, pugmark] = ["program", "root", "pugmark"].map(|name| scratch.path(name));
    for executed in [&root, &program] {
        let (native, _) = run(&[&program, executed]);
        for how in ["record", "stat"] {
            let (status, said) = run(&[&pugmark, how.as_ref(), "--".as_ref(), &program, executed]);
            assert_eq!(status, native, "{said}");
            let is_said =
                said.contains(&format!(" executed {}: it and what it starts are not", executed.display()));
            assert_eq!(is_said, native == Some(7), "{said}");
        }
    }
}

#[test]
fn the_limit_is_exact_while_a_task_waits_in_the_kernel() {
    let waiting = "
int main(void) {
    if (fork() == 0) { for (volatile int i = 0; i < 10000; i++); _exit(0); }
    wait(0);
    return 0;
}
";
    for_each_engine(|engine| {
        let Some(program) = compile("waiting", waiting) else { return };
        // The dynamic linker executes more or less than that before, as the system has it.
        let (start, limit) = ("main".parse().ok(), Some(20_000));
        let options = options(engine, [program.path("program")]);
        let options = RecordOptions { out: program.path("out"), start, limit, ..options };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        let count: u64 = recording.parts.iter().map(|part| part.truth.count()).sum();
        assert_eq!((count, recording.cause), (20_000, Cause::Limit), "{engine:?}");
        assert_eq!(tasks(&recording), [1, 2]);
        check_all(&recording);
    });
}

#[test]
fn the_limit_is_exact_at_each_instruction_of_a_process_that_ends_while_another_waits() {
    // A child whose end no signal tells, by clone and wait4 with __WALL.
    let ending = r#"
__attribute__((naked, noinline)) void tested(void) {
    __asm__("mov $56, %eax; xor %edi, %edi; xor %esi, %esi; syscall; test %eax, %eax; jz 1f;"
            "mov $61, %eax; mov $-1, %edi; xor %esi, %esi; mov $0x40000000, %edx; xor %r10d, %r10d; syscall; ret;"
            "1: mov $60, %eax; xor %edi, %edi; syscall");
}
int main(void) { tested(); return 0; }
"#;
    for_each_engine(|engine| {
        let Some(program) = compile("ending", ending) else { return };
        for limit in 1..=18 {
            let start = "tested".parse().ok();
            let options = options(engine, [program.path("program")]);
            let options = RecordOptions { out: program.path("out"), start, limit: Some(limit), ..options };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            let count: u64 = recording.parts.iter().map(|part| part.truth.count()).sum();
            assert_eq!((count, recording.cause), (limit, Cause::Limit), "{engine:?}");
        }
    });
}

#[test]
fn the_program_and_its_children_are_killed_at_the_limit_if_that_is_asked_for() {
    // Each would go on for ever: one computes, one waits in the kernel, one starts others.
    let endless = "
int main(void) {
    int ends[2];
    char byte = 0;
    if (pipe(ends)) return 1;
    if (fork() == 0) { write(ends[1], &byte, 1); for (;;) pause(); }
    if (fork() == 0) { write(ends[1], &byte, 1); for (;;) { if (fork() == 0) _exit(0); wait(0); } }
    for (int i = 0; i < 2; i++) read(ends[0], &byte, 1);
    for (volatile int i = 0; i >= 0; i = (i + 1) % 1000);
}
";
    for_each_engine(|engine| {
        let Some(program) = compile("endless", endless) else { return };
        let (start, limit) = ("main".parse().ok(), Some(20_000));
        let options = options(engine, [program.path("program")]);
        let options =
            RecordOptions { out: program.path("out"), start, limit, kill_at_limit: true, ..options };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.cause, recording.ending), (Cause::Limit, Ending::Signal(9)), "{engine:?}");
        let count: u64 = recording.parts.iter().map(|part| part.truth.count()).sum();
        assert_eq!(count, 20_000, "{engine:?}");
        check_all(&recording);
        if engine == Engine::Stepping {
            assert_eq!(tasks(&recording)[..3], [1, 2, 3]);
        } // The emulator's limit counts in the order in which the threads' rings are read.
        // Those that have ended, and that nobody has waited for, have no command line any more.
        let path = program.path("program").to_str().expect("a name").as_bytes().to_vec();
        let is_its = |process: &fs::DirEntry| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            line.windows(path.len()).any(|part| part == path)
        };
        let left: Vec<_> = fs::read_dir("/proc").expect("it is there").flatten().filter(is_its).collect();
        assert!(left.is_empty(), "{engine:?}: {left:?}");
    });
}

/// Waits until the trace has a given size, then harms the process that records it, and goes on.
const HARMFUL: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
static void *volatile sink;
static __attribute__((noinline)) int step(int n) { sink = &n; return n + 1; }
static void work(int turns) { for (int n = 0; n < turns; ) n = step(n); }
static long size(const char *file) { struct stat found; return stat(file, &found) ? 0 : found.st_size; }
int main(int count, char **words) {
    struct rlimit limit;
    int parent = getppid(), kills = words[1][0] == 'k';
    long place = atol(words[4]);
    if (!kills) limit.rlim_cur = limit.rlim_max = place;
    while (size(words[3]) < (kills ? place : 4096)) work(100);
    if (kills) kill(parent, SIGKILL);
    else if (prlimit(parent, RLIMIT_FSIZE, &limit, 0)) return 1;
    work(3000000);
    return creat(words[2], 0600) < 0;
}
"#;

/// Returns the numbers of bytes at which the recorder is harmed: for stepping, which is slow, only the first ones.
fn places(engine: Engine) -> impl Iterator<Item = u64> {
    (0..if engine == Engine::Emulator { 20 } else { 4 }).map(|n| 700 + 4100 * n)
}

/// Records the harmful program, up to this number of bytes. Returns how the recorder ended, and what it said.
fn harm(scratch: &Scratch, engine: Engine, how: &str, place: u64) -> (ExitStatus, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command
        .args(["record", "--no-ret-compression", "--engine", engine.name(), "-o"])
        .arg(scratch.path("out"));
    command.arg("--").args([scratch.path("program").as_os_str(), how.as_ref()]);
    command.arg(scratch.path("alive")).arg(scratch.path("out/trace.pt")).arg(place.to_string());
    let _ = fs::remove_file(scratch.path("alive"));
    // A pipe would stay open as long as the program.
    let said = scratch.path("said");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said).expect("a file"));
    let status = command.status().expect("it runs");
    (status, fs::read_to_string(said).expect("what it said"))
}

/// Checks that a recording that was not finished decodes without an error, and that it is said to be that.
fn decodes_up_to_its_end(out: &Path) {
    let decode = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .args(["decode", "--json"])
        .arg(out)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&decode.stderr);
    assert!(said.contains("the recording was not finished"), "{said}");
    assert_eq!(decode.status.code(), Some(0), "{said}");
    let totals: Value = serde_json::from_slice(&decode.stdout).expect("totals");
    let count = totals["parts"][0]["instructions"].as_u64().expect("a number");
    assert!(count > 1000, "{totals}");
}

#[test]
fn a_recorder_that_is_killed_leaves_a_recording_and_a_program_that_goes_on_or_ends() {
    for_each_engine(|engine| {
        let Some(program) = compile("killed", HARMFUL) else { return };
        for place in places(engine) {
            let (status, said) = harm(&program, engine, "kill", place);
            assert_eq!(status.signal(), Some(9), "{said}");
            decodes_up_to_its_end(&program.path("out"));
            let begin = Instant::now();
            let is_over = || match engine {
                Engine::Emulator => program.path("alive").exists(),
                // The system ends it with the one that traces it.
                _ => !runs(&program.path("program")),
            };
            while !is_over() {
                assert!(begin.elapsed() < Duration::from_secs(60), "it waits for the recorder");
                thread::sleep(Duration::from_millis(20));
            }
        }
    });
}

/// Returns true if a process runs this program.
fn runs(program: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
    processes
        .into_iter()
        .any(|process| fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program))
}

#[test]
fn a_disk_that_is_full_leaves_what_was_recorded_until_then() {
    for_each_engine(|engine| {
        let Some(program) = compile("full", HARMFUL) else { return };
        for place in places(engine) {
            let (status, said) = harm(&program, engine, "full", place);
            assert_eq!(status.code(), Some(125), "{place}: {said}");
            assert!(said.contains("cannot be written: File too large"), "{place}: {said}");
            decodes_up_to_its_end(&program.path("out"));
        }
    });
}

#[test]
fn a_recording_is_a_secret_and_the_one_before_is_kept() {
    let scratch = Scratch::new("secret-files");
    let out = scratch.path("out");
    for _ in 0..2 {
        let options = RecordOptions { out: out.clone(), limit: Some(100), ..RecordOptions::new(["true"]) };
        record(&options, &mut |_| {}).expect("it is recorded");
    }
    for folder in [out, scratch.path("out.old")] {
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        let files = fs::read_dir(&folder).expect("a folder").filter_map(Result::ok);
        let mut names: Vec<_> = files.map(|file| (file.file_name(), mode(&file.path()))).collect();
        names.sort();
        let expected = ["code.bin", "image.json", "recording.json", "trace.pt", "truth.json"];
        assert_eq!(names, expected.map(|name| (name.into(), 0o600)));
    }
}

/// Makes a function, lists it for perf, writes a file with the name of a jitdump and maps it as runtimes do.
const RUNTIME: &str = r#"
#include <stdio.h>
int main(int count, char **words) {
    char name[200];
    char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(code, 0x90, 31);
    code[31] = 0xc3;
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx 20 made_by_a_runtime\n", (long)code);
    fclose(map);
    snprintf(name, sizeof name, "%s/jit-%d.dump", words[1], getpid());
    int dump = open(name, O_RDWR | O_CREAT, 0600);
    if (write(dump, "functions", 9) != 9) return 1;
    mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, dump, 0);
    ((void (*)(void))code)();
    return 0;
}
"#;

#[test]
fn what_a_runtime_has_listed_of_its_code_is_in_the_recording() {
    for_each_engine(|engine| {
        let Some(scratch) = compile("runtime", RUNTIME) else { return };
        let folder = scratch.path("");
        let words = [scratch.path("program").into_os_string(), folder.clone().into()];
        let options = RecordOptions { out: scratch.path("out"), ..options(engine, words) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!(recording.ending, Ending::Exit(0));
        let pid = recording.parts[0].thread.pid;
        let lists =
            [Path::new("/tmp").join(format!("perf-{pid}.map")), folder.join(format!("jit-{pid}.dump"))];
        for list in lists {
            let copy = options.out.join(list.file_name().expect("a name"));
            assert_eq!(fs::read(copy).expect("a copy"), fs::read(&list).expect("a list"), "{engine:?}");
            fs::remove_file(list).expect("it is there");
        }
        let report = Command::new(env!("CARGO_BIN_EXE_pugmark"))
            .arg("report")
            .arg(&options.out)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&report.stdout).into_owned();
        let row = text.lines().find(|line| line.ends_with("made_by_a_runtime"));
        assert!(row.is_some_and(|row| row.contains(" 32 ")), "{text}");
        // The next recording has none of them.
        let options = RecordOptions { program: vec!["true".into()], limit: Some(1), ..options };
        for _ in 0..2 {
            record(&options, &mut |_| {}).expect("it is recorded");
        }
        assert!(!scratch.path("out.old").join(format!("perf-{pid}.map")).exists());
    });
}
