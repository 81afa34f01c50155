//! LLDB reads a trace that `pugmark record` made, with the installed libipt and with ours: both must list what was
//! executed.
//!
//! It runs where an LLDB with Intel PT is installed (Debian's lldb-22 has it) and our library is built:
//! `PUGMARK_LONG=1 cargo test -p pugmark-tools --test lldb`.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use pugmark_harness::images::build_libipt;
use pugmark_harness::scratch::Scratch;
use pugmark_recorder::{RecordOptions, record};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The names under which Debian installs LLDB, the newest first.
const LLDBS: [&str; 6] = ["lldb-22", "lldb-21", "lldb-20", "lldb-19", "lldb-18", "lldb"];

/// A program whose addresses are the same in each run: calls, returns and loops, some thousand instructions.
const PROGRAM: &str = r#"
static unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static unsigned (*volatile recursive)(unsigned) = fib;
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call start\n");
__attribute__((used, noreturn)) static void start(void) {
    volatile unsigned sink = recursive(12);
    (void)sink;
    __asm__ volatile("syscall" :: "a"(231ul), "D"(0ul));
    __builtin_unreachable();
}
"#;

fn has_intel_pt(lldb: &str) -> bool {
    let output = Command::new(lldb).args(["--batch", "-o", "trace schema intel-pt"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(r#""type": "intel-pt""#))
}

/// Returns the addresses that LLDB lists of the trace of a bundle, with a library in `libraries` or the installed one;
/// `None` if LLDB ends badly.
fn listed(lldb: &str, bundle: &Path, libraries: Option<&Path>) -> Option<Vec<u64>> {
    let mut command = Command::new(lldb);
    command.args(["--batch", "-o", &format!("trace load {}", bundle.display())]);
    command.args(["-o", "thread trace dump instructions --forwards --raw --count 1000000"]);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // A line of an instruction is its number and its address: `    1: 0x00000000004014f0`.
    let address = |line: &str| u64::from_str_radix(line.split_once(": 0x")?.1.trim(), 16).ok();
    assert!(!text.contains("error"), "{text}");
    (output.status.success() && text.contains("no more data"))
        .then(|| text.lines().filter_map(address).collect())
}

#[test]
fn lldb_lists_what_was_executed_with_the_installed_libipt_and_with_ours() {
    if std::env::var_os("PUGMARK_LONG").is_none_or(|value| value != "1") {
        println!("skipped: it is long, and was not asked for by PUGMARK_LONG=1");
        return;
    }
    let Some(lldb) = LLDBS.into_iter().find(|lldb| has_intel_pt(lldb)) else {
        println!("skipped: no LLDB with Intel PT is installed");
        return;
    };
    let scratch = Scratch::new().expect("a folder");
    let program = scratch.file("program");
    fs::write(scratch.file("program.c"), PROGRAM).expect("the source");
    let mut cc = Command::new("cc");
    cc.args([
        "-O1",
        "-static",
        "-nostdlib",
        "-ffreestanding",
        "-fcf-protection=none",
        "-fno-stack-protector",
    ]);
    let built = cc.arg("-o").arg(&program).arg(scratch.file("program.c")).status().expect("a compiler");
    assert!(built.success());
    let options = RecordOptions { out: scratch.file("out"), ..RecordOptions::new([&program]) };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    let count = recording.parts[0].truth.count();
    assert!(count > 3000, "{count}");

    // The profile's processor is a Skylake. A program that is not relocated is where its file says.
    let bundle = scratch.file("trace.json");
    let description = json!({
        "type": "intel-pt",
        "cpuInfo": { "vendor": "GenuineIntel", "family": 6, "model": 94, "stepping": 3 },
        "processes": [{
            "pid": 1,
            "triple": "x86_64-*-linux",
            "threads": [{ "tid": 1, "iptTrace": scratch.file("out").join("trace.pt") }],
            "modules": [{ "systemPath": program, "file": program, "loadAddress": "0x400000" }],
        }],
    });
    fs::write(&bundle, description.to_string()).expect("the bundle");
    let libraries = scratch.file("lib");
    fs::create_dir_all(&libraries).expect("a folder");
    fs::copy(build_libipt().expect("our library"), libraries.join("libipt.so.2")).expect("a copy");

    let ours = listed(lldb, &bundle, Some(&libraries)).expect("it ends well with ours");
    assert_eq!(ours.len() as u64, count);
    match listed(lldb, &bundle, None) {
        Some(theirs) => assert_eq!(ours, theirs),
        None => println!("{lldb} ends badly with the installed libipt"),
    }
    println!("{lldb}: {count} instructions with either library");
}
