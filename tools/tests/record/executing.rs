//! Programs that execute another one, which has threads.

use super::{check_all, for_each_engine, options, programs::compile, tasks};
use pugmark_recorder::{Ending, RecordOptions, record};

/// Executes itself, and then starts two threads.
const THREADS_AFTER: &str = r#"
static void *nothing(void *p) { return p; }
int main(int count, char **words) {
    pthread_t threads[2];
    if (count == 1) { execl(words[0], words[0], "again", (char *)0); return 1; }
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, nothing, 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;

/// The first thread of the new program goes on with the task; the others are tasks of their own.
#[test]
fn a_program_that_was_executed_starts_threads() {
    for_each_engine(|engine| {
        let Some(program) = compile("executing", THREADS_AFTER) else { return };
        let options =
            RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let recording = record(&options, &mut |_| {}).expect("it is recorded");
        assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(0), vec![1, 1, 2, 3]), "{engine:?}");
        check_all(&recording);
    });
}
