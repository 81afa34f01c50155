//! Where tracing starts and stops: `--start` and `--stop`.

use crate::{
    check_all, for_each_engine, options,
    programs::{Scratch, compile, compile_bare, symbol},
    recorded::{addresses, check},
    tasks,
};
use pugmark_recorder::{
    Cause, Ending, Engine, Missing, RecordError, RecordOptions, emulator_is_installed, record,
};
use std::{fs, process::Command};

/// Calls `work` and `done` four times, and makes a system call before the last time. It ends with status 3.
const SWITCHED: &str = r#"
__asm__(".globl _start, caller, after, ask, work, done\n"
        ".type caller, @function\n .type work, @function\n .type done, @function\n"
        "_start: xor %ebp, %ebp\n mov $3, %ebx\n"
        "1: call caller\n call done\n dec %ebx\n jnz 1b\n"
        "mov $39, %eax\n" /* getpid */
        "ask: syscall\n call caller\n call done\n"
        "mov $3, %edi\n mov $231, %eax\n syscall\n" /* exit_group */
        "caller: call work\n"
        "after: ret\n"
        ".size caller, . - caller\n"
        ".p2align 12\nwork: mov $100, %ecx\n"
        "1: dec %ecx\n jnz 1b\n"
        "xor %eax, %eax\n ret\n"
        ".size work, . - work\n"
        "done: nop\n ret\n"
        ".size done, . - done\n");
int in_memory = 1; /* callgrind looks for functions where data is, too */
"#;
/// The instructions of `work`; of a round of the loop with the calls in it; and of all.
const WORK: u64 = 3 + 2 * 100;
const ROUND: u64 = 1 + 1 + WORK + 1 + 1 + 2 + 2;
const ALL: u64 = 2 + 3 * ROUND + 2 + (ROUND - 2) + 3;

fn switched(plain: &RecordOptions, start: Option<&str>, stop: Option<&str>) -> RecordOptions {
    let trigger = |text: Option<&str>| text.map(|text| text.parse().expect(text));
    RecordOptions { start: trigger(start), stop: trigger(stop), ..plain.clone() }
}

#[test]
fn tracing_starts_and_stops_where_it_is_asked_to_and_both_engines_make_the_same_trace() {
    let Some(program) = compile_bare("switched", SWITCHED) else { return };
    let at = |name: &str| format!("{:#x}", symbol(&program, name));
    let all_but_one = format!("count:{}", ALL - 1);
    let all = format!("count:{ALL}");
    let (work, done) = (at("work"), at("done"));
    let rows: [(Option<&str>, Option<&str>, u64, Cause); 21] = [
        (None, None, ALL, Cause::Over),
        (Some("work"), Some("after"), 4 * WORK, Cause::Over),
        (Some("work"), Some("done"), 4 * (WORK + 2), Cause::Over),
        (Some(&work), Some(&done), 4 * (WORK + 2), Cause::Over),
        (Some("program:work"), Some("program:done"), 4 * (WORK + 2), Cause::Over),
        (Some("work"), None, ALL - 4, Cause::Over),
        (None, Some("work"), 4, Cause::Stop),
        (None, Some("done"), 2 + 2 + WORK + 2, Cause::Stop),
        // In the middle of a function: after its first instruction, which has five bytes.
        (Some("work+0x5"), Some("done"), 4 * (WORK + 1), Cause::Over),
        (Some("done"), Some("work"), 6 + 6 + 8 + 5, Cause::Over),
        // The same place, in turns.
        (Some("work"), Some("work"), 2 * ROUND + 2, Cause::Over),
        // At the instruction that leads to the kernel.
        (Some("ask"), Some("work"), 3, Cause::Over),
        (Some("work"), Some("ask"), 3 * ROUND - 2 + 1 + WORK + 2 + 2 + 3, Cause::Over),
        (Some("count:100"), Some("count:10"), ALL / 110 * 10, Cause::Over),
        (Some("count:1"), None, ALL - 1, Cause::Over),
        // The last instruction of `work`, of which nothing else is traced, in the second round; and one in the fourth.
        (Some("count:417"), Some("count:1"), 2, Cause::Over),
        (Some(&all_but_one), None, 1, Cause::Over),
        (None, Some("count:7"), 7, Cause::Stop),
        // There is no instruction before which it could stop.
        (None, Some(&all), ALL, Cause::Over),
        (Some("work"), Some("count:5"), 4 * 5, Cause::Over),
        (Some("count:300"), Some("done"), 120 + 124, Cause::Over),
    ];
    let traces = |tweak: fn(RecordOptions) -> RecordOptions, start, stop, expected: Option<(u64, Cause)>| {
        let mut traces = vec![];
        let engines = if emulator_is_installed() { &[Engine::Stepping, Engine::Emulator][..] } else { &[] };
        for &engine in engines {
            let plain = tweak(RecordOptions {
                out: program.path("out"),
                ..options(engine, [program.path("program")])
            });
            let recording = record(&switched(&plain, start, stop), &mut |_| {}).expect("it is recorded");
            let what = format!("{engine:?} {start:?} {stop:?}");
            assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(3), 1), "{what}");
            let found = (check(&recording.parts[0]), recording.cause);
            assert_eq!(found, expected.unwrap_or(found), "{what}");
            let trace = fs::read(program.path("out").join("trace.pt")).expect("a trace");
            traces.push((trace, recording.parts[0].tsc.1));
        }
        assert!(
            traces.windows(2).all(|pair| pair[0].0 == pair[1].0),
            "{start:?} {stop:?}: the traces differ"
        );
        traces
    };
    for (start, stop, expected, cause) in rows {
        traces(|options| options, start, stop, Some((expected, cause)));
    }
    // Also where each instruction has its time, which passes while nothing is traced; and with other options.
    let timing = |options| RecordOptions { tsc: true, mtc: Some(0), cyc: Some(0), ..options };
    let whole = traces(timing, None, None, None);
    for (start, stop) in [(Some("count:100"), Some("count:10")), (Some("count:636"), Some("done"))] {
        let parts = traces(timing, start, stop, None);
        assert_eq!(
            parts.iter().map(|(_, end)| end).collect::<Vec<_>>(),
            whole.iter().map(|(_, end)| end).collect::<Vec<_>>(),
            "{start:?}"
        );
    }
    let uncompressed = |options| RecordOptions { ret_compression: false, ..options };
    traces(uncompressed, Some("work"), Some("done"), Some((4 * (WORK + 2), Cause::Over)));
    let limited = |options| RecordOptions { limit: Some(300), ..options };
    traces(limited, Some("work"), Some("done"), Some((300, Cause::Limit)));
    let filtered = |options| RecordOptions { ranges: vec!["work".parse().expect("a range")], ..options };
    traces(filtered, Some("done"), None, Some((3 * WORK, Cause::Over)));
}

/// Returns the output of a program; `None` if it is not installed.
fn output(name: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(name).args(arguments).output() else {
        println!("skipped: {name} is not installed");
        return None;
    };
    let streams = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&streams).into_owned())
}

#[test]
fn what_is_traced_of_a_function_is_what_gdb_steps_and_callgrind_counts() {
    let Some(program) = compile_bare("outside", SWITCHED) else { return };
    let file = program.path("program");
    let name = file.to_str().expect("a name");
    let mut traced = vec![];
    for_each_engine(|engine| {
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [file.clone()]) };
        let recording =
            record(&switched(&plain, Some("work"), Some("after")), &mut |_| {}).expect("it is recorded");
        traced.push(addresses(&recording.parts[0]));
    });
    let steps = "while $pc != (unsigned long)&after\nprintf \"at %#lx\\n\", $pc\nstepi\nend\n";
    let script = format!("set pagination off\nbreak *&work\nrun\n{steps}continue\n{steps}");
    fs::write(program.path("gdb"), script).expect("a script");
    let commands = program.path("gdb");
    if let Some(text) = output("gdb", &["-nx", "-batch", "-x", commands.to_str().expect("a name"), name]) {
        let lines = text.lines().filter_map(|line| line.strip_prefix("at 0x"));
        let stepped: Vec<u64> = lines.map(|digits| u64::from_str_radix(digits, 16).expect(digits)).collect();
        // Two of the four calls: gdb takes its time.
        assert_eq!(stepped.len() as u64, 2 * WORK, "{text}");
        assert!(traced.iter().all(|traced| traced.starts_with(&stepped)), "{stepped:x?}");
    }
    let out = format!("--callgrind-out-file={}", program.path("callgrind").display());
    let options = ["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=work", &out, name];
    if let Some(text) = output("valgrind", &options) {
        let line = text.lines().find_map(|line| line.split_once("Collected : "));
        let counted: usize = line.expect(&text).1.trim().parse().expect(&text);
        assert!(traced.iter().all(|traced| traced.len() == counted), "{counted} {}", traced[0].len());
    }
}

/// Starts two threads and two children, one after the other, and calls `begin` and `end` in between. The second child
/// executes the program once more, which ends at once then.
const INHERITS: &str = r#"
__attribute__((noipa)) static void work(void) {}
__attribute__((noipa)) static void begin(void) {}
__attribute__((noipa)) static void end(void) {}
static void *thread(void *argument) { work(); return 0; }
static void start(void) {
    pthread_t other;
    pthread_create(&other, 0, thread, 0);
    pthread_join(other, 0);
}

int main(int count, char **words) {
    if (count > 1) return 0;
    start();
    begin();
    start();
    if (!fork()) { work(); _exit(0); }
    wait(0);
    end();
    start();
    if (!fork()) { work(); execl(words[0], words[0], "again", (char *)0); }
    wait(0);
    return 0;
}
"#;

#[test]
fn what_a_task_starts_is_traced_from_its_begin_if_the_task_is() {
    for_each_engine(|engine| {
        let Some(program) = compile("inherits", INHERITS) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        // Where it starts and stops, and which tasks have parts: those from the second on are threads, a child, a
        // thread, and a child.
        for (start, stop, expected) in [
            (Some("begin"), None, &[1, 3, 4, 5, 6, 6][..]),
            (Some("begin"), Some("end"), &[1, 3, 4]),
            (Some("end"), None, &[1, 5, 6, 6]),
            (Some("work"), None, &[2, 3, 4, 5, 6, 6]),
            (Some("begin"), Some("work"), &[1, 3, 4, 5, 6]),
        ] {
            let recording = record(&switched(&plain, start, stop), &mut |_| {}).expect("it is recorded");
            let found = (recording.ending, tasks(&recording));
            assert_eq!(found, (Ending::Exit(0), expected.to_vec()), "{engine:?} {start:?} {stop:?}");
            check_all(&recording);
        }
    });
}

/// Sends itself two signals of each kind.
const SIGNALLED: &str = r#"
static volatile int counted;
__attribute__((noipa)) static void one(int signal) { counted++; }
__attribute__((noipa)) static void two(int signal) { counted++; }
int main(void) {
    signal(SIGUSR1, one);
    signal(SIGUSR2, two);
    for (volatile int i = 0; i < 2; i++) { raise(SIGUSR1); raise(SIGUSR2); }
    return counted;
}
"#;

#[test]
fn a_signal_starts_and_stops_at_its_handler() {
    let Some(program) = compile("signalled", SIGNALLED) else { return };
    let engine = Engine::Auto;
    let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
    let signals = switched(&plain, Some("SIGUSR1"), Some("SIGUSR2"));
    let recording = record(&signals, &mut |_| {}).expect("it is recorded");
    assert_eq!((recording.ending, tasks(&recording)), (Ending::Exit(4), vec![1]));
    let traced = addresses(&recording.parts[0]);
    let (one, two) = (symbol(&program, "one"), symbol(&program, "two"));
    assert_eq!(traced[0], one);
    assert_eq!(traced.iter().filter(|ip| **ip == one).count(), 2);
    assert!(!traced.contains(&two));
    // Both times the same: from the handler to the next signal.
    assert_eq!(traced[..traced.len() / 2], traced[traced.len() / 2..]);
    let emulated = RecordOptions { engine: Engine::Emulator, ..signals };
    assert!(matches!(record(&emulated, &mut |_| {}), Err(RecordError::Emulator(_))));
    // Without a start, it ends all.
    let stop = record(&switched(&plain, None, Some("SIGUSR1")), &mut |_| {}).expect("it is recorded");
    assert_eq!((stop.ending, stop.cause), (Ending::Exit(4), Cause::Stop));
    assert!(!addresses(&stop.parts[0]).contains(&one));
}

/// Reads where nothing is, and goes on after it; and executes INT3.
const FAULTS: &str = r#"
__asm__(".globl bad, trap\n.type bad, @function\n.type trap, @function\n"
        "bad: mov 8, %eax\n ret\n .size bad, . - bad\n"
        "trap: int3\n ret\n .size trap, . - trap\n");
void bad(void), trap(void);
static sigjmp_buf back;
__attribute__((noipa)) static void leave(int signal) { siglongjmp(back, 1); }
__attribute__((noipa)) static void note(int signal) {}
int main(void) {
    signal(SIGSEGV, leave);
    signal(SIGTRAP, note);
    if (!sigsetjmp(back, 1)) bad();
    trap();
    return 0;
}
"#;

#[test]
fn a_place_is_reached_though_its_instruction_faults() {
    for_each_engine(|engine| {
        let Some(program) = compile("faults", FAULTS) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        for (place, handler) in [("bad", "leave"), ("trap", "note")] {
            let first = |start, stop| {
                let recording = record(&switched(&plain, start, stop), &mut |_| {}).expect("it is recorded");
                assert_eq!(recording.ending, Ending::Exit(0), "{engine:?} {place}");
                addresses(&recording.parts[0])
            };
            assert_eq!(first(Some(place), None)[0], symbol(&program, handler), "{engine:?} {place}");
            assert!(!first(None, Some(place)).contains(&symbol(&program, handler)), "{engine:?} {place}");
        }
    });
}

/// The emulator has libraries of its own in the program's process.
#[test]
fn only_the_program_has_functions_to_start_at() {
    for_each_engine(|engine| {
        let scratch = Scratch::new("own");
        let plain = RecordOptions { out: scratch.path("out"), ..options(engine, ["/bin/true"]) };
        let recording =
            record(&switched(&plain, Some("g_malloc0"), None), &mut |_| {}).expect("it is recorded");
        assert!(recording.parts.is_empty(), "{engine:?}");
        let missing = recording.unreached.first().and_then(|unreached| unreached.missing.as_ref());
        assert!(matches!(missing, Some(Missing::Function(_))), "{engine:?}: {:?}", recording.unreached);
    });
}

#[test]
fn what_is_not_reached_or_not_there_is_said() {
    let Some(program) = compile_bare("unreached", SWITCHED) else { return };
    for_each_engine(|engine| {
        for (words, status, said) in [
            (
                ["--start", "0x10", "--stop", "work"],
                3,
                "warning: --start 0x10 was never reached: nothing was traced",
            ),
            (
                ["--start", "work", "--stop", "0x10"],
                3,
                "warning: --stop 0x10 was never reached: the trace goes on to the end",
            ),
            (
                ["--start", "wrok", "--stop", "done"],
                125,
                "--start wrok: the files that the program mapped have no such function; similar names: work",
            ),
            (
                ["--start", "work", "--stop", "dne"],
                125,
                "--stop dne: the files that the program mapped have no such function; similar names: done",
            ),
            (
                ["--start", "libc:work", "--stop", "done"],
                125,
                "--start libc:work: the program mapped no file of that name, but these: program",
            ),
            (
                ["--start", "work+0x100", "--stop", "done"],
                125,
                "--start work+0x100: the function ends before that",
            ),
            (
                ["--start", "count:0", "--stop", "done"],
                125,
                "\"count:0\" is no place to start or stop at: write ",
            ),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
            let engine = if engine == Engine::Stepping { "stepping" } else { "emulator" };
            command.args(["record", "--engine", engine, "--out"]).arg(program.path("out"));
            command.args(words).arg("--").arg(program.path("program"));
            let output = command.output().expect("it runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{engine} {words:?}: {stderr}");
            assert!(stderr.contains(said), "{engine} {words:?}: {stderr}");
        }
    });
}
