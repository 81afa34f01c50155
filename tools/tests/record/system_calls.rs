//! Programs that ask the system for what few ask for: addresses of nothing, as much as it takes, programs by their
//! descriptors, namespaces.

use super::{
    check_all, for_each_engine,
    losses::is_root,
    options,
    programs::{Scratch, compile},
};
use pugmark_recorder::{Ending, RecordOptions, record};

const WRONG_ADDRESSES: &str = r#"
#include <errno.h>
#include <sys/syscall.h>
static int fails(long result) { return result == -1 && errno == EFAULT; }
int main(void) {
    char *list[] = { "true", (char *)8, 0 };
    if (!fails(syscall(SYS_rt_sigaction, SIGUSR1, 8, 0, 8))) return 1;
    if (!fails(syscall(SYS_execve, 8, 0, 0))) return 2;
    if (!fails(syscall(SYS_execve, "/bin/true", 8, 0))) return 3;
    if (!fails(syscall(SYS_execve, "/bin/true", list, 0))) return 4;
    if (!fails(syscall(SYS_execve, "/bin/true", 0, 8))) return 5;
    return 0;
}
"#;

#[test]
fn a_program_may_give_the_system_wrong_addresses() {
    for_each_engine(|engine| {
        let Some(program) = compile("addresses", WRONG_ADDRESSES) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 1), "{engine:?}");
        check_all(&recording);
    });
}

#[test]
fn a_program_may_have_arguments_of_more_than_a_megabyte() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("arguments");
        let arguments = std::iter::once("/bin/true".to_owned()).chain((0..12).map(|_| "a".repeat(100_000)));
        let options = RecordOptions { out: scratch.path("out"), ..options(engine, arguments) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 1), "{engine:?}");
        check_all(&recording);
    });
}

const EXECUTES_ITSELF: &str = r#"
int main(int count, char **words) {
    if (!strcmp(words[0], "end")) return 20 + count;
    if (!strcmp(words[1], "exe")) {
        char *list[] = { words[0], words[1], "x", 0 }, *last[] = { "end", 0 };
        return execv("/proc/self/exe", count == 2 ? list : last);
    }
    static char bytes[1 << 16];
    int in = open(words[2], O_RDONLY), file = memfd_create("copy", MFD_CLOEXEC);
    for (int count; (count = read(in, bytes, sizeof bytes)) > 0;) write(file, bytes, count);
    char *list[] = { "end", "x", 0 };
    fexecve(file, list, environ);
    return 1;
}
"#;

#[test]
fn a_program_that_executes_itself_or_a_file_without_a_name_is_followed() {
    for_each_engine(|engine| {
        let Some(program) = compile("itself", EXECUTES_ITSELF) else { return };
        let path = program.path("program");
        for (way, count, status) in [("exe", 3, 21), ("descriptor", 2, 22)] {
            let line = [path.clone(), way.into(), path.clone()];
            let line = line.into_iter().take(if way == "exe" { 2 } else { 3 });
            let options = RecordOptions { out: program.path(way), ..options(engine, line) };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!(
                (recording.ending, recording.parts.len()),
                (Ending::Exit(status), count),
                "{engine:?}"
            );
            let programs: Vec<&str> = recording.parts.iter().map(|part| &*part.program).collect();
            let last = if way == "exe" { "/program" } else { "copy (deleted)" };
            assert!(
                programs.last().is_some_and(|program| program.ends_with(last)),
                "{engine:?} {programs:?}"
            );
            check_all(&recording);
        }
    });
}

const OWN_NAMESPACE: &str = r#"
#include <sched.h>
static void *work(void *unused) { return 0; }
int main(int count, char **words) {
    int status = 0;
    if (unshare(CLONE_NEWPID)) return 1;
    if (count > 1 && unshare(CLONE_NEWNS)) return 2;
    if (!fork()) {
        pthread_t thread;
        if (count > 1 && (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) || mount("proc", "/proc", "proc", 0, 0))) _exit(3);
        pthread_create(&thread, 0, work, 0);
        pthread_join(thread, 0);
        if (!fork()) _exit(getpid() > 1 ? 0 : 4);
        wait(&status);
        _exit(WEXITSTATUS(status) + (getpid() == 1 ? 5 : 6));
    }
    wait(&status);
    return WEXITSTATUS(status);
}
"#;

#[test]
fn a_process_that_has_another_number_in_a_namespace_is_recorded_to_its_end() {
    if !is_root() {
        println!("skipped: only root makes namespaces");
        return;
    }
    for_each_engine(|engine| {
        let Some(program) = compile("namespace", OWN_NAMESPACE) else { return };
        for more in [None, Some("proc")] {
            let line = [program.path("program")].into_iter().chain(more.map(Into::into));
            let options = RecordOptions { out: program.path("out"), ..options(engine, line) };
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!(
                (recording.ending, recording.parts.len()),
                (Ending::Exit(5), 4),
                "{engine:?} {more:?}"
            );
            assert_eq!((recording.unreported, recording.not_followed.len()), (0, 0), "{engine:?} {more:?}");
            check_all(&recording);
        }
    });
}
