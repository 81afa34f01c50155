//! perf's sideband records, as both programs show them.

use crate::run::{Folder, Tool, record};
use pugmark_decoder_core::packet::PSB;

/// Returns a SWITCH record of a process at a time.
fn switch(pid: u64, time: u64) -> Vec<u8> {
    record(14, 0, &[pid, time])
}

fn tsc(tsc: u8) -> [u8; 8] {
    [0x19, tsc, 0, 0, 0, 0, 0, 0]
}

#[test]
fn records_of_several_streams_are_merged_by_time() {
    let trace = [&PSB[..], &[0x02, 0x23], &tsc(5), &tsc(6)].concat();
    let first = [switch(0xa, 1), switch(0xb, 5), switch(0xc, 9)].concat();
    let second = [switch(0x1a, 1), switch(0x1b, 5), switch(0x1c, 7)].concat();
    let folder = Folder::new("merge", &[("t", &trace), ("1", &first), ("2", &second)]);
    let args = ["--sb", "--pevent:sample-type", "6", "--pevent:primary", "1", "--pevent:secondary", "2"];
    // Among records with the same time, that of the stream continued last comes first.
    let expected =
        ["{ a/0 1 }", "{ 1a/0 1 }", "{ 1b/0 5 }", "{ b/0 5 }", "tsc 5", "tsc 6", "{ 1c/0 7 }", "{ c/0 9 }"];
    // Ignoring CYCs does not change the times of the other packets.
    for cycles in [&[][..], &["--no-cyc"]] {
        let args = [&args[..], cycles, &["--no-offset", "t"]].concat();
        let have: Vec<_> = folder
            .lines(Tool::Ptdump, &args)
            .iter()
            .filter(|line| !line.starts_with("psb"))
            .map(|line| {
                line.replace("PERF_RECORD_SWITCH.IN  ", "").split_whitespace().collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(have, expected, "{cycles:?}");
    }
}

#[test]
fn records_without_a_time_come_with_the_first_packet_of_time() {
    // CYC, PAD, TSC (5).
    let trace = [&PSB[..], &[0x02, 0x23, 0x0b, 0x00], &tsc(5)].concat();
    let folder = Folder::new("no-time", &[("t", &trace), ("s", &record(14, 0, &[]))]);
    for (cycles, expected) in
        [(&[][..], &["PERF", "cyc", "pad", "tsc"][..]), (&["--no-cyc"], &["pad", "PERF", "tsc"])]
    {
        let args = [&["--sb", "--pevent", "s", "--no-offset"], cycles, &["t"]].concat();
        let lines = folder.lines(Tool::Ptdump, &args);
        // CYC has no calibration, and the line about that comes before it.
        let lines: Vec<_> =
            lines.iter().filter(|line| !line.starts_with('[') && !line.starts_with("psb")).collect();
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{lines:?}");
    }
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_ends_its_stream() {
    let trace = [&PSB[..], &[0x02, 0x23]].concat();
    // A LOST record without its fields.
    let records = [switch(1, 1), record(2, 0, &[1, 2]), switch(2, 2)].concat();
    let folder = Folder::new("bad-record", &[("t", &trace), ("s", &records), ("first", &records[24..])]);
    let shown = ["--sb", "--sb:filename", "--sb:offset", "--pevent:sample-type", "6", "--pevent"];
    assert_eq!(
        folder.lines(Tool::Ptdump, &[&shown[..], &["s", "t"]].concat())[2..],
        [
            "s:0000000000000000  PERF_RECORD_SWITCH.IN  { 1/0 1 }",
            "[s:0000000000000018 sideband error: decoder out of sync]",
        ],
    );
    // The same with --quiet, and before all other lines if the first record is bad.
    let quiet = ["--quiet", "--pevent:sample-type", "6", "--pevent", "first", "t"];
    let line = "[first:0000000000000000 sideband error: decoder out of sync]";
    assert_eq!(folder.lines(Tool::Ptdump, &quiet), [line]);
    assert_eq!(folder.lines(Tool::Ptdump, &quiet[1..])[0], line);
}

#[test]
fn what_is_shown_of_records_is_up_to_options_in_their_order() {
    let folder = Folder::new("show", &[("t", &PSB), ("none", &[0; 64]), ("s", &switch(1, 2))]);
    let records = ["--pevent:sample-type", "6", "--pevent", "s"];
    for (options, lines) in [
        (&["--quiet"][..], &[][..]),
        (&["--sb", "--quiet"], &[]),
        (&["--quiet", "--sb"], &["PERF_RECORD_SWITCH.IN  { 1/0 2 }"]),
        (&["--quiet", "--sb:verbose", "--sb"], &["PERF_RECORD_SWITCH.IN  { 1/0 2 }"]),
        (&["--quiet", "--sb:time", "--sb"], &["0000000000000002  PERF_RECORD_SWITCH.IN  { 1/0 2 }"]),
        // The columns in front of a record make a line even without the record.
        (&["--quiet", "--sb:offset", "--sb:time"], &["0000000000000000  0000000000000002  "]),
        (&["--quiet", "--sb:filename"], &["s  "]),
        (&["--quiet", "--sb:time"], &["0000000000000002  "]),
        (&["--quiet", "--sb:offset"], &["0000000000000000  "]),
    ] {
        let args = [options, &records, &["t"]].concat();
        assert_eq!(folder.lines(Tool::Ptdump, &args), lines, "{options:?}");
    }
    // Two records make two lines.
    folder.add("two", &[switch(1, 2), switch(1, 3)].concat());
    let args = ["--quiet", "--sb:filename", "--pevent:sample-type", "6", "--pevent", "two", "t"];
    assert_eq!(folder.lines(Tool::Ptdump, &args), ["two  ", "two  "]);
    // Records are shown even if the trace has no PSB.
    let args = [&["--sb"], &records[..], &["none"]].concat();
    assert_eq!(folder.lines(Tool::Ptdump, &args), ["PERF_RECORD_SWITCH.IN  { 1/0 2 }"]);
}

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
const START: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";

#[test]
fn code_comes_from_the_image_of_the_traced_process() {
    // 1000: nop; 1001: ret. TIP.PGD without an address.
    let code = [0x90, 0xc3];
    let trace = [START, &[0x01]].concat();
    let name = u64::from_le_bytes(*b"code\0\0\0\0");
    let records = [
        record(1, 2, &[7 | 7 << 32, 0x1000, 0x1000, 0, name]),
        record(12, 0, &[7 | 7 << 32]),
        record(2, 0, &[0, 3]),
    ];
    let folder = Folder::new("image", &[("t", &trace), ("code", &code), ("s", &records.concat())]);
    let args = ["--no-inst", "--sb:switch", "--sb:warn", "--pevent:primary", "s", "--pt", "t"];
    let shown = [
        "[context: pid-7]",
        "[s:0000000000000040 sideband warning: sideband lost]",
        "0000000000001000",
        "0000000000001001",
        "[disabled]",
    ];
    assert_eq!(folder.lines(Tool::Ptxed, &args), shown);
    // With a folder in which the file does not exist.
    let elsewhere = [&["--pevent:sysroot", "no/such/"], &args[..]].concat();
    let lines = folder.lines(Tool::Ptxed, &elsewhere);
    assert_eq!(lines[0], "[s:0000000000000000 sideband error: bad file]");
    assert_eq!(*lines.last().unwrap(), "[1c, 1000: error: no memory mapped at this address]");
}

#[test]
fn the_kernels_code_is_in_every_process() {
    let trace = [START, &[0x01]].concat();
    let mut kernel = vec![0; 64 + 56];
    kernel[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // One program header after the file header: PT_LOAD, at the file's end, for 1000.
    kernel[32] = 64;
    kernel[56] = 1;
    kernel[64] = 1;
    kernel[64 + 8] = 120;
    kernel[64 + 17] = 0x10;
    kernel[64 + 32] = 2;
    kernel.extend([0x90, 0xc3]);
    let start = record(12, 0, &[7 | 7 << 32]);
    let folder = Folder::new("kcore", &[("t", &trace), ("kcore", &kernel), ("s", &start)]);
    let args = ["--no-inst", "-v", "--pevent:kcore", "kcore", "--pevent:primary", "s", "--pt", "t"];
    assert_eq!(
        folder.lines(Tool::Ptxed, &args),
        ["kcore: offset=0x78 size=0x2 vaddr=0x1000.", "0000000000001000", "0000000000001001", "[disabled]"],
    );
    // The code given on the command line is not in a process's image.
    folder.add("code", &[0x90, 0xc3]);
    let args = ["--no-inst", "--raw", "code:0x1000", "--pevent:primary", "s", "--pt", "t"];
    assert_eq!(folder.lines(Tool::Ptxed, &args), ["[1c, 1000: error: no memory mapped at this address]"]);
}
