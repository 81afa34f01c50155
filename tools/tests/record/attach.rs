//! `pugmark record -p`: a process that runs already is recorded and goes on.

use crate::{
    programs::{Scratch, compile, symbol},
    recorded::{addresses, check},
};
use pugmark_recorder::{Cause, Ending, Engine, RecordOptions, Recording, record};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Two threads calculate, the same, until there is input, and compare; a third one waits, and a signal is counted. A
/// call of `turn` is a step of the calculation. The exit status says what went wrong: nothing, if it is the number of
/// signals and 40.
const CALCULATES: &str = r#"
#include <poll.h>
#include <stdio.h>
static volatile int signals, over;
static volatile unsigned long turns[2];
static void count(int signal) { signals++; }
__attribute__((noipa)) static unsigned long turn(unsigned long x) { return x * 6364136223846793005ul + 1; }
__attribute__((noipa)) static void wake(void) {}
static void *calculate(void *number) {
    unsigned long x = 1, n = 0;
    while (!over) { x = turn(x); turns[(long)number] = ++n; }
    /* x_n = a^n + (a^n - 1) / (a - 1), by repeated squaring of x -> a * x + c. */
    unsigned long a = 6364136223846793005ul, c = 1, expected = 1;
    for (; n; n >>= 1) {
        if (n & 1) expected = a * expected + c;
        c = a * c + c;
        a *= a;
    }
    return (void *)(long)(x != expected);
}
static void *wait_often(void *argument) {
    struct timespec time = {0, 2000000};
    while (!over) { if (nanosleep(&time, 0)) return (void *)1; wake(); }
    return 0;
}

int main(void) {
    pthread_t threads[3];
    void *wrong;
    struct sigaction action = { .sa_handler = count, .sa_flags = SA_RESTART };
    sigset_t set;
    sigaction(SIGUSR1, &action, 0);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    /* Only the main thread is to get it. */
    pthread_sigmask(SIG_BLOCK, &set, 0);
    for (long i = 0; i < 2; i++) if (pthread_create(&threads[i], 0, calculate, (void *)i)) return 1;
    if (pthread_create(&threads[2], 0, wait_often, 0)) return 1;
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    char line[16];
    for (;;) {
        if (printf("%lu %lu\n", turns[0], turns[1]) < 0 || fflush(stdout)) return 2;
        if (read(0, line, sizeof line) <= 0) break;
    }
    over = 1;
    for (int i = 0; i < 3; i++) if (pthread_join(threads[i], &wrong) || wrong) return 3 + i;
    return 40 + signals;
}
"#;

/// The program while it runs.
struct Running {
    scratch: Scratch,
    child: Child,
    input: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(name: &str) -> Option<Self> {
        let scratch = compile(name, CALCULATES)?;
        let mut command = Command::new(scratch.path("program"));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let (input, out) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("a pipe")));
        let mut running = Self { scratch, child, input, out };
        running.turns(false);
        Some(running)
    }

    /// Returns how many turns each thread has made. It asks for that, unless it is told already.
    fn turns(&mut self, ask: bool) -> [u64; 2] {
        if ask {
            self.input.as_mut().expect("a pipe").write_all(b"?\n").expect("it reads");
        }
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        let mut words = line.split_whitespace().map(|word| word.parse().expect("a number"));
        [(); 2].map(|()| words.next().expect(&line))
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: it takes numbers; the child was not waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Checks that nobody traces it and that all of its threads go on; then ends it and returns its exit status.
    fn end(mut self) -> Option<i32> {
        for task in fs::read_dir(format!("/proc/{}/task", self.pid())).expect("threads") {
            let status = fs::read_to_string(task.expect("a thread").path().join("status")).expect("a status");
            assert!(status.contains("TracerPid:\t0\n"), "{status}");
        }
        let before = self.turns(true);
        thread::sleep(Duration::from_millis(50));
        let after = self.turns(true);
        assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
        self.input = None;
        self.child.wait().expect("it ends").code()
    }

    fn options(&self) -> RecordOptions {
        let out = self.scratch.path("out");
        let program: [&str; 0] = [];
        RecordOptions { out, pid: Some(self.pid()), ..RecordOptions::new(program) }
    }
}

fn with(options: RecordOptions, start: Option<&str>, stop: Option<&str>, limit: Option<u64>) -> Recording {
    let trigger = |text: Option<&str>| text.map(|text| text.parse().expect(text));
    let options = RecordOptions { start: trigger(start), stop: trigger(stop), limit, ..options };
    record(&options, &mut |_| {}).expect("it is recorded")
}

#[test]
fn a_process_is_recorded_with_all_of_its_threads_and_goes_on() {
    let Some(running) = Running::start("attach-all") else { return };
    // Each time it is let go in another place.
    for limit in (0..12).map(|round| 2000 + 37 * round) {
        let recording = with(running.options(), None, None, Some(limit));
        assert_eq!((recording.ending, recording.cause), (Ending::GoesOn, Cause::Limit), "{limit}");
        let parts: Vec<_> = recording.parts.iter().map(|part| (part.task, check(part))).collect();
        assert_eq!(parts.iter().map(|(task, _)| *task).collect::<Vec<_>>(), [1, 2, 3, 4]);
        let count: u64 = parts.iter().map(|(_, count)| count).sum();
        // Who waits in the kernel may have executed the instruction that led there.
        assert!((limit..limit + 4).contains(&count), "{limit}: {parts:?}");
        assert!(parts[1].1 > 0 && parts[2].1 > 0, "{parts:?}");
        let index = fs::read(running.scratch.path("out/recording.json")).expect("an index");
        let index: Value = serde_json::from_slice(&index).expect("an index");
        assert_eq!((&index["attached_to"], &index["ending"]), (&running.pid().into(), &Value::Null));
        assert_eq!(index["program"][0], running.scratch.path("program").to_str().expect("a name"));
    }
    assert_eq!(running.end(), Some(40));
}

#[test]
fn it_runs_at_its_own_speed_until_the_place_where_tracing_starts() {
    let Some(mut running) = Running::start("attach-run") else { return };
    let (wake, turn) = (symbol(&running.scratch, "wake"), symbol(&running.scratch, "turn"));
    let begin = running.turns(true);
    // The thread that waits reaches it every two milliseconds, and the others never do.
    let recording = with(running.options(), Some("wake"), Some("count:4"), Some(4 * 5));
    let since = running.turns(true);
    assert_eq!((recording.cause, recording.parts.len(), recording.parts[0].task), (Cause::Limit, 1, 4));
    let traced = addresses(&recording.parts[0]);
    assert_eq!(traced.len(), 20);
    assert!(traced.chunks(4).all(|chunk| chunk[0] == wake && chunk == &traced[..4]), "{traced:x?}");
    // By steps it would have been some hundred.
    assert!(since[0] - begin[0] > 10_000 && since[1] - begin[1] > 10_000, "{begin:?} {since:?}");
    // Who comes there first stops all.
    let recording = with(running.options(), None, Some("turn"), None);
    assert_eq!((recording.ending, recording.cause), (Ending::GoesOn, Cause::Stop));
    assert!(recording.parts.iter().all(|part| !addresses(part).contains(&turn)), "{:?}", recording.parts);
    assert_eq!(running.end(), Some(40));
}

/// Starts `pugmark record -p` with these options.
fn command(running: &Running, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command.args(["record", "-p", &running.pid().to_string(), "--out"]).arg(running.scratch.path("out"));
    command.args(words).stdin(Stdio::null());
    let take_signals = || {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: it sets no handler, and it may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: it only sets the default actions.
    unsafe { command.pre_exec(take_signals) };
    command.spawn().expect("it runs")
}

/// Waits for the end of a recording and returns its exit status; `None` if it does not end.
fn status(recorder: &mut Child) -> Option<i32> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Some(status) = recorder.try_wait().expect("a child") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(5));
    }
    recorder.kill().expect("a child");
    recorder.wait().expect("it was killed");
    None
}

/// Waits until a process is traced by somebody.
fn until_traced(running: &Running) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("a status");
        if !status.contains("TracerPid:\t0\n") {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("nobody has attached to it");
}

#[test]
fn a_key_or_a_signal_ends_the_recording_and_not_the_process() {
    let Some(running) = Running::start("attach-end") else { return };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut recorder = command(&running, &[]);
        until_traced(&running);
        thread::sleep(Duration::from_millis(200));
        // SAFETY: it takes numbers; the child was not waited for.
        assert_eq!(unsafe { libc::kill(recorder.id().cast_signed(), signal) }, 0);
        assert_eq!(status(&mut recorder), Some(0));
        let index = fs::read(running.scratch.path("out/recording.json")).expect("an index");
        let index: Value = serde_json::from_slice(&index).expect("an index");
        assert_eq!(index["ended"], format!("signal {signal}"));
        let decoded = Command::new(env!("CARGO_BIN_EXE_pugmark"))
            .args(["decode", "--check"])
            .arg(running.scratch.path("out"))
            .output()
            .expect("it runs");
        assert!(decoded.status.success(), "{}", String::from_utf8_lossy(&decoded.stdout));
    }
    assert_eq!(running.end(), Some(40));
}

#[test]
fn its_signals_reach_it_while_it_is_recorded() {
    let Some(running) = Running::start("attach-signals") else { return };
    let mut recorder = command(&running, &["--start", "SIGUSR1", "--limit", "3"]);
    until_traced(&running);
    running.signal(libc::SIGUSR1);
    assert_eq!(status(&mut recorder), Some(0));
    running.signal(libc::SIGUSR1);
    assert_eq!(running.end(), Some(42));
}

#[test]
fn the_end_of_the_process_ends_the_recording() {
    let Some(mut running) = Running::start("attach-over") else { return };
    let mut recorder = command(&running, &["--start", "wake", "--stop", "count:4"]);
    until_traced(&running);
    running.turns(true);
    running.input = None;
    assert_eq!(status(&mut recorder), Some(40));
    assert_eq!(running.child.wait().expect("it ends").code(), Some(40));
}

#[test]
fn who_cannot_be_attached_to_is_said() {
    let refused = |pid: i32, engine: Engine| {
        let program: [&str; 0] = [];
        let out = std::env::temp_dir().join("pugmark-nobody");
        let options = RecordOptions { out, engine, pid: Some(pid), ..RecordOptions::new(program) };
        let error = record(&options, &mut |_| {}).expect_err("it is refused");
        format!("{:#}", anyhow::Error::from(error))
    };
    // No process has this number.
    assert_eq!(refused(0x3fff_ffff, Engine::Auto), "there is no process 1073741823");
    // A process cannot trace itself.
    let own = std::process::id().cast_signed();
    assert!(refused(own, Engine::Auto).starts_with(&format!("process {own} cannot be attached to: ")));
    assert_eq!(
        refused(own, Engine::Emulator),
        "not in the emulator: it starts programs, and cannot take over one that runs; use --engine stepping"
    );
}
