//! When a wait is in the trace: it is the system call's time, not that of what came before.

use crate::{
    for_each_engine, options,
    programs::{compile_bare, symbol},
    recorded::check,
};
use pugmark_recorder::{Ending, RecordOptions, record};
use std::process::Command;

/// Waits at `waits` for a child that executes some 40 000 instructions.
const WAITS: &str = r#"
__asm__(".globl _start, waits, waited\n"
        "_start: mov $57, %eax\n syscall\n" /* fork */
        "test %eax, %eax\n jz 2f\n"
        "mov $61, %eax\n mov $-1, %rdi\n xor %esi, %esi\n xor %edx, %edx\n xor %r10d, %r10d\n" /* wait4 */
        "waits: syscall\n"
        "waited: mov $231, %eax\n xor %edi, %edi\n syscall\n" /* exit_group */
        "2: mov $20000, %ecx\n"
        "3: dec %ecx\n jnz 3b\n"
        "mov $231, %eax\n xor %edi, %edi\n syscall\n");
"#;

/// The largest number of recordings of the program. Where the child is done before its parent begins to wait, there is
/// no wait.
const ATTEMPTS: usize = 10;

#[test]
fn a_system_call_that_waits_begins_before_the_wait() {
    for_each_engine(|engine| {
        let Some(program) = compile_bare("waiting", WAITS) else { return };
        let plain = RecordOptions { out: program.path("out"), ..options(engine, [program.path("program")]) };
        let options = RecordOptions { tsc: true, mtc: Some(0), cyc: Some(0), ..plain };
        let mut times = vec![];
        let waits = |_| {
            let recording = record(&options, &mut |_| {}).expect("it is recorded");
            assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 2), "{engine:?}");
            assert_eq!(recording.parts.iter().map(check).collect::<Vec<_>>(), [13, 40_006], "{engine:?}");
            let script = Command::new(env!("CARGO_BIN_EXE_pugmark"))
                .args(["script", "-F", "tsc,ip"])
                .arg(program.path("out"))
                .output()
                .expect("it runs");
            let text = String::from_utf8(script.stdout).expect("text");
            let time = |ip: u64| -> u64 {
                let line = text.lines().find(|line| line.ends_with(&format!(" {ip:x}"))).expect(&text);
                let time = line.split_whitespace().find_map(|word| word.strip_prefix("0x")).expect(line);
                u64::from_str_radix(time, 16).expect(line)
            };
            let [begin, waits, waited] =
                ["_start", "waits", "waited"].map(|name| time(symbol(&program, name)));
            times.push([begin, waits, waited]);
            std::fs::remove_dir_all(program.path("out")).expect("it was recorded");
            assert!(waited - begin > 20_000, "{engine:?}: {times:?}");
            // Before it there is one other system call.
            waits - begin < 3000 && waited - waits > 20_000
        };
        assert!((0..ATTEMPTS).any(waits), "{engine:?}: {times:?}");
    });
}
