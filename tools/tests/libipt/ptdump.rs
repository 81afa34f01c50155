//! ptdump's lines where no recorded run has them.

use crate::run::{Folder, Tool};
use pugmark_decoder_core::packet::PSB;

fn lines(trace: &[&[u8]], args: &[&str]) -> Vec<String> {
    let name = std::thread::current().name().unwrap_or_default().replace(':', "-");
    let folder = Folder::new(&name, &[("t", &trace.concat())]);
    folder.lines(Tool::Ptdump, &[args, &["t"]].concat())
}

#[test]
fn block_packets_are_unknown_opcodes() {
    assert_eq!(
        lines(&[&PSB, &[0x02, 0x63, 0x01, 0x00]], &[]),
        ["0000000000000000  psb", "[10: error decoding packet: unknown opcode]"],
    );
}

#[test]
fn after_an_error_tracking_starts_over() {
    assert_eq!(
        lines(&[&PSB, &[0x2d, 0x34, 0x12, 0xed], &PSB, &[0x0d]], &["--no-offset", "--lastip"]),
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
    let trace: [&[u8]; 2] = [&PSB, &[0x07, 0x02, 0xf3, 0x02, 0x23]];
    assert_eq!(
        lines(&trace, &["--raw", "--cpu", "6/94"])[1..],
        [
            "0000000000000010  0702                              ovf",
            "0000000000000013  0223                              psbend"
        ],
    );
    assert_eq!(lines(&trace, &["--cpu", "6/85"])[1], "0000000000000010  cyc        20");
}

#[test]
fn a_trace_without_psb_shows_nothing() {
    assert_eq!(lines(&[&[0; 64]], &[]), [""; 0]);
    assert_eq!(lines(&[&[0; 64]], &["--no-sync", "--no-pad"]), [""; 0]);
    assert_eq!(lines(&[&[0; 64]], &["--no-sync"]).len(), 64);
}

#[test]
fn what_is_wrong_with_the_command_line_is_told_in_libipts_words() {
    let folder = Folder::new("ptdump-usage", &[("t", &PSB), ("empty", &[])]);
    for (args, status, text) in [
        (&["t:1-"][..], 2, "bad file t:1-: invalid argument."),
        (&["t:-"], 2, "bad file t:-: invalid argument."),
        (&["empty:5"], 1, "bad offset 0x5 into empty."),
        (&["--sb:switch", "t"], 1, "unknown option: --sb:switch."),
        (&["--pevent:bogus", "t"], 1, "unknown option: --pevent:bogus."),
        (&["--pevent:kcore"], 1, "--pevent:kcore: missing argument."),
        (&["--pevent:sample-config"], 1, "bad sample config --pevent:sample-config: internal error."),
        (&["--pevent", "none", "t"], 1, "error loading none: bad file."),
        (&["--pevent", "t:17", "t"], 1, "error loading t: out of memory."),
        (&["--pevent", "t:0x8000000000000000", "t"], 1, "error loading t: invalid argument."),
        (&["--pevent", "t:0-0x8000000000000000", "t"], 1, "error loading t: invalid argument."),
        (&["--pevent", ".", "t"], 1, "error loading .: out of memory."),
        (&["."], 1, "failed to allocated memory .."),
        (&["--cpu", "6/78/3/1", "t"], 1, "cpu must be specified as f/m[/s]"),
    ] {
        let ran = folder.run(Tool::Ptdump, args);
        assert_eq!((ran.err, ran.status), (format!("{{prog}}: {text}\n"), Some(status)), "{args:?}");
        assert_eq!(ran.out, "");
    }
    // Records may be none, and their range may go over the end.
    for args in [&["--pevent", "empty", "t"][..], &["--pevent", "t:16-99", "t"], &["--cpu", "6/78/", "t"]] {
        assert_eq!(folder.lines(Tool::Ptdump, args), ["0000000000000000  psb"], "{args:?}");
    }
    let ran = folder.run(Tool::Ptdump, &["--cpu", "6/1", "none"]);
    assert_eq!(ran.out, "[0: failed to determine errata: unknown cpu]\n");
    assert_eq!((ran.err.as_str(), ran.status), ("{prog}: failed to open none: 2.\n", Some(1)));
}
