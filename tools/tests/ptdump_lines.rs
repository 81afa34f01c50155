//! ptdump's lines where no recorded run has them.

use pugmark_decoder_core::packet::PSB;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A file that is gone with the value.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("pugmark-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn lines(args: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_ptdump")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
}

#[test]
fn block_packets_are_unknown_opcodes() {
    let trace = File::new("block.pt", &[&PSB[..], &[0x02, 0x63, 0x01, 0x00]].concat());
    assert_eq!(
        lines(&[trace.path()]),
        ["0000000000000000  psb", "[10: error decoding packet: unknown opcode]"],
    );
}

#[test]
fn after_an_error_tracking_starts_over() {
    let sync = [&PSB[..], &[0x2d, 0x34, 0x12], &[0xed]].concat();
    let trace = File::new("errors.pt", &[&sync[..], &PSB, &[0x0d]].concat());
    assert_eq!(
        lines(&["--no-offset", "--lastip", trace.path()]),
        [
            "psb",
            "tip        1: ????????????1234       ip   0000000000001234",
            "[13: error decoding packet: unknown packet]",
            "psb",
            "[24: error tracking last-ip: no ip]",
            "tip        0: ????????????????       ip   <unavailable>",
        ],
    );
}

#[test]
fn skd007_shows_the_overflow_at_the_offset_of_what_looks_like_a_cyc() {
    let trace = File::new("skd007.pt", &[&PSB[..], &[0x07, 0x02, 0xf3, 0x02, 0x23]].concat());
    assert_eq!(
        lines(&["--raw", "--cpu", "6/94", trace.path()])[1..],
        [
            "0000000000000010  0702                              ovf",
            "0000000000000013  0223                              psbend"
        ],
    );
    assert_eq!(lines(&["--cpu", "6/85", trace.path()])[1], "0000000000000010  cyc        20");
}

#[test]
fn a_trace_without_psb_shows_nothing() {
    let trace = File::new("nopsb.pt", &[0x00; 64]);
    assert_eq!(lines(&[trace.path()]), [""; 0]);
    assert_eq!(lines(&["--no-sync", "--no-pad", trace.path()]), [""; 0]);
    assert_eq!(lines(&["--no-sync", trace.path()]).len(), 64);
}

/// A SWITCH record of a process at a time.
fn switch(pid: u64, time: u64) -> Vec<u8> {
    [14 | 24 << 48, pid, time].iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
}

#[test]
fn records_of_several_streams_are_merged_by_time() {
    let tsc = |tsc: u8| [0x19, tsc, 0, 0, 0, 0, 0, 0];
    let trace = File::new("merge.pt", &[&PSB[..], &[0x02, 0x23], &tsc(5), &tsc(6)].concat());
    let first = File::new("merge-1.sb", &[switch(0xa, 1), switch(0xb, 5), switch(0xc, 9)].concat());
    let second = File::new("merge-2.sb", &[switch(0x1a, 1), switch(0x1b, 5), switch(0x1c, 7)].concat());
    let args = [
        "--sb",
        "--pevent:sample-type",
        "6",
        "--pevent:primary",
        first.path(),
        "--pevent:secondary",
        second.path(),
    ];
    // Of records of the same time those of the stream read last come first.
    let expected =
        ["{ a/0 1 }", "{ 1a/0 1 }", "{ 1b/0 5 }", "{ b/0 5 }", "tsc 5", "tsc 6", "{ 1c/0 7 }", "{ c/0 9 }"];
    let have: Vec<_> = lines(&[&args[..], &["--no-offset", trace.path()]].concat())
        .iter()
        .filter(|line| !line.starts_with("psb"))
        .map(|line| {
            line.replace("PERF_RECORD_SWITCH.IN  ", "").split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(have, expected);
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_ends_its_stream() {
    let trace = File::new("bad.pt", &[&PSB[..], &[0x02, 0x23]].concat());
    // A LOST record without its fields.
    let lost: Vec<u8> = [2_u64 | 24 << 48, 1, 2].iter().flat_map(|word| word.to_le_bytes()).collect();
    let records = File::new("bad.sb", &[switch(1, 1), lost, switch(2, 2)].concat());
    let name = records.path();
    let args =
        ["--sb", "--sb:filename", "--sb:offset", "--pevent:sample-type", "6", "--pevent", name, trace.path()];
    assert_eq!(
        lines(&args)[2..],
        [
            format!("{name}:0000000000000000  PERF_RECORD_SWITCH.IN  {{ 1/0 1 }}"),
            format!("[{name}:0000000000000018 sideband error: unknown packet]"),
        ],
    );
}
