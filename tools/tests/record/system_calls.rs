//! Programs that give the system addresses of nothing, and as much as it takes.

use super::{
    check_all, for_each_engine, options,
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
