//! The exit statuses of the program.

#[allow(dead_code)]
#[path = "../src/source/perf_data/builder.rs"]
mod builder;
mod hostile;
#[allow(dead_code)]
#[path = "../src/object_file.rs"]
mod object_file;

use builder::{Made, NONE, PerfFileBuilder, info, trace};

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const PUGMARK: &str = env!("CARGO_BIN_EXE_pugmark");

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken).
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";

/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];

/// A folder that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-status-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("code"), CODE).unwrap();
        fs::write(folder.join("trace"), TRACE).unwrap();
        Self(folder)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

fn status_and_stderr(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn decode_fails_where_something_is_wrong_or_nothing_is_found_unless_that_is_allowed() {
    let folder = Scratch::new("decode");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.0.join(name), bytes).unwrap();
    write("empty", &[]);
    write("damaged", &[TRACE, &[0x09]].concat());
    // A record of 24 bytes that leads to an address without code.
    write("records", &[[0_u8; 8], 0x1000_u64.to_le_bytes(), [0; 8]].concat());
    for (arguments, status) in [
        (&["--raw", "code:0x1000", "trace"][..], 0),
        (&["--layer", "packets", "trace"], 0),
        (&["--raw", "code:0x2000", "trace"], 1),
        (&["--layer", "packets", "damaged"], 1),
        (&["--layer", "events", "damaged"], 1),
        (&["empty"], 1),
        // No PSB.
        (&["code"], 1),
        (&["--source", "bts", "empty"], 1),
        (&["--source", "bts", "--raw", "code:0x1000", "--start", "0x1000", "records"], 1),
    ] {
        for json in [&[][..], &["--json"]] {
            let run = |more: &[&str]| {
                let all = [&["decode"], json, more, arguments].concat();
                folder.command(PUGMARK, &all).output().unwrap().status.code()
            };
            assert_eq!(run(&[]), Some(status), "{arguments:?} {json:?}");
            assert_eq!(run(&["--allow-errors"]), Some(0), "{arguments:?} {json:?}");
        }
    }
    // --allow-errors does not cover what cannot be done at all.
    let output = folder.command(PUGMARK, &["decode", "--allow-errors", "missing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// Command lines that follow what was executed, without their files.
const FOLLOWING: [&[&str]; 13] = [
    &["decode"],
    &["decode", "--layer", "packets"],
    &["decode", "--layer", "events"],
    &["report"],
    &["report", "--children"],
    &["coverage", "-f", "edges"],
    &["coverage", "-f", "afl"],
    &["flamegraph"],
    &["last"],
    &["timeline", "-o", "page"],
    &["script"],
    &["script", "-F", "ip"],
    &["script", "--branches"],
];

#[test]
fn each_command_says_of_a_file_without_a_trace_what_it_is() {
    let folder = Scratch::new("foreign");
    fs::create_dir_all(folder.0.join("rec")).unwrap();
    for (file, bytes) in [
        (
            "program",
            &b"\x7fELF\x02\x01\x01 and so on, with as many bytes as a header has, of which there are 64"[..],
        ),
        ("notes", b"Call me back.\n"),
        ("rec/trace.pt", TRACE),
        ("rec/notes.json", b"{}"),
    ] {
        fs::write(folder.0.join(file), bytes).unwrap();
    }
    let others = [&["diff", "notes"][..], &["calls", "--of", "f"], &["annotate", "f"], &["gdb", "--stdio"]];
    let follows = |command: &&&[&str]| !command.contains(&"--layer") || command.contains(&"packets");
    for command in FOLLOWING.iter().filter(follows).chain(&others) {
        for (file, what) in [
            (
                "program",
                "no PSB in the 76 bytes of program: it is no Intel PT trace, but application/x-executable",
            ),
            ("notes", "no PSB in the 14 bytes of notes: it is no Intel PT trace, but text"),
            ("rec/notes.json", "no PSB in the 2 bytes of rec/notes.json: the recording is the folder rec"),
        ] {
            let output = folder.command(PUGMARK, &[command, &["--raw", "code:0x1000", file][..]].concat());
            let (status, stderr) = status_and_stderr(&{ output }.output().unwrap());
            assert_eq!(status, Some(1), "{command:?} {file}: {stderr}");
            assert!(stderr.contains(what), "{command:?} {file}: {stderr}");
        }
    }
}

#[test]
fn losses_that_perf_reports_are_a_failure_of_each_command() {
    let folder = Scratch::new("reported");
    let made = Made { time: 5, cpu: 3, task: (7, 8) };
    let size = TRACE.len() as u64;
    let lost_samples = builder::record(13, 0, &builder::longs(&[3, 7 | 8 << 32, 5, 3, 77]));
    // A buffer was full when the trace ended, so nothing follows the gap.
    let full = made.aux_of(0, size, 1);
    let half_a_record = made.aux(0)[..20].to_vec();
    let cases = [
        ("whole", made.aux_of(0, size, 0), None),
        ("records", made.lost(2), Some("perf lost 2 records")),
        ("samples", lost_samples, Some("perf lost 3 records")),
        ("full", full, Some("perf lost some of the trace, 1 times")),
        ("partial", made.aux_of(0, size, 4), Some("perf lost some of the trace, 1 times")),
        ("cut", half_a_record, Some("at 0x")),
    ];
    for (name, record, says) in cases {
        let records = vec![info(false), made.begins(), trace(0, 0, NONE, 8, TRACE), record];
        fs::write(folder.0.join(name), PerfFileBuilder::new(records).file()).unwrap();
        for command in FOLLOWING {
            let run = [command, &["--raw", "code:0x1000", name]].concat();
            let (status, said) = status_and_stderr(&folder.command(PUGMARK, &run).output().unwrap());
            assert_eq!(status, Some(i32::from(says.is_some())), "{run:?} {said}");
            let warnings = says.map_or(0, |words| said.matches(words).count());
            assert_eq!(warnings, usize::from(says.is_some()), "{run:?} {said}");
        }
        let allowed = ["decode", "--allow-errors", "--raw", "code:0x1000", name];
        assert_eq!(folder.command(PUGMARK, &allowed).output().unwrap().status.code(), Some(0), "{name}");
    }
}

#[test]
fn packets_that_the_processor_lost_are_a_failure_of_each_command() {
    let folder = Scratch::new("lost");
    // OVF, FUP (1000), TNT (taken, taken).
    let lost = [TRACE, b"\x02\xf3\x7d\0\x10\0\0\0\0\x0e"].concat();
    fs::write(folder.0.join("lost"), lost).unwrap();
    for command in FOLLOWING {
        for (trace, status) in [("trace", 0), ("lost", 1)] {
            let run = [command, &["--raw", "code:0x1000", trace]].concat();
            let output = folder.command(PUGMARK, &run).output().unwrap();
            let (code, mut said) = status_and_stderr(&output);
            assert_eq!(code, Some(status), "{run:?} {said}");
            said.push_str(&String::from_utf8_lossy(&output.stdout));
            let says = ["overflows     1, first at 0x1c", "losses in the traces"];
            let is_said = says.iter().any(|words| said.contains(words));
            assert_eq!(is_said, trace == "lost", "{run:?} {said}");
        }
    }
}

/// Command lines that print something.
const PRINTING: [&[&str]; 25] = [
    &["decode", "--raw", "code:0x1000", "trace"],
    &["decode", "--json", "--raw", "code:0x1000", "trace"],
    &["decode", "--cpu", "list"],
    &["bench", "--cpu=list"],
    &["coverage", "-f", "edges", "--raw", "code:0x1000", "trace"],
    &["coverage", "-f", "edges", "--json", "--raw", "code:0x1000", "trace"],
    &["last", "--raw", "code:0x1000", "trace"],
    &["last", "--json", "--raw", "code:0x1000", "trace"],
    &["timeline", "-o", "page", "--raw", "code:0x1000", "trace"],
    &["coverage", "-f", "afl", "--raw", "code:0x1000", "trace"],
    &["flamegraph", "--raw", "code:0x1000", "trace"],
    &["flamegraph", "-f", "folded", "--raw", "code:0x1000", "trace"],
    &["report", "--raw", "code:0x1000", "trace"],
    &["report", "--json", "--raw", "code:0x1000", "trace"],
    &["script", "--raw", "code:0x1000", "trace"],
    &["bench", "--seconds", "0", "--layer", "packets", "trace"],
    &["bench", "--seconds", "0", "--layer", "packets", "--json", "trace"],
    &["ibs", "samples"],
    &["pmc", "list"],
    &["pmc", "encode", "amd64_fam19h_zen4::RETIRED_INSTRUCTIONS"],
    &["pmc", "dispatch", "--cpu", "k7", "RETIRED_INSTRUCTIONS"],
    &["man", "pages"],
    &["completions", "bash"],
    &["--help"],
    &["--version"],
];

/// Returns an IBS sample with all registers 0: size, capabilities, three registers of a fetch.
fn samples() -> Vec<u8> {
    [&28_u32.to_le_bytes()[..], &7_u32.to_le_bytes(), &[0; 24]].concat()
}

#[test]
fn samples_that_are_none_are_warned_of() {
    let folder = Scratch::new("samples");
    fs::write(folder.0.join("empty"), []).unwrap();
    let output = folder.command(PUGMARK, &["ibs", "empty"]).output().unwrap();
    let warning = "pugmark: warning: empty is empty: there is no sample\n";
    assert_eq!((status_and_stderr(&output), output.stdout), ((Some(0), warning.into()), vec![]));
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure_with_a_reason() {
    let folder = Scratch::new("full");
    fs::write(folder.0.join("samples"), samples()).unwrap();
    for arguments in PRINTING {
        let good = folder.command(PUGMARK, arguments).output().unwrap();
        assert_eq!(status_and_stderr(&good), (Some(0), String::new()), "{arguments:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = folder.command(PUGMARK, arguments).stdout(full).output().unwrap();
        let (status, stderr) = status_and_stderr(&output);
        assert_eq!(status, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("No space left on device"), "{arguments:?}: {stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let folder = Scratch::new("closed");
    fs::write(folder.0.join("samples"), samples()).unwrap();
    for arguments in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = folder.command(PUGMARK, arguments).stdout(writer).output().unwrap();
        assert_eq!(status_and_stderr(&output), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn a_message_that_cannot_be_written_changes_no_status() {
    let folder = Scratch::new("silent");
    let Ok(full) = File::options().write(true).open("/dev/full") else { return };
    for (arguments, status) in [(&["decode", "missing"][..], 1), (&["decode", "code"], 1), (&["decode"], 2)] {
        let full = full.try_clone().unwrap();
        let output = folder.command(PUGMARK, arguments).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
    }
}
