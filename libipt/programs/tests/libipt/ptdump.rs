//! Lines of ptdump that the recorded runs do not cover.

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
fn errors_of_the_command_line_have_libipts_texts() {
    let folder = Folder::new("ptdump-usage", &[("t", &PSB), ("empty", &[])]);
    for (args, status, text) in [
        (&["t:1-"][..], 2, "bad file t:1-: invalid argument."),
        (&["t:-"], 2, "bad file t:-: invalid argument."),
        (&["empty:5"], 1, "bad offset 0x5 into empty."),
        (&["--mtc-freq", "256", "t"], 1, "--mtc-freq: value too big: 256."),
        (&["--mtc-freq", "--time", "t"], 1, "--mtc-freq: missing argument."),
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
    // A stream may have no records, and a range may end after the file's end.
    for args in [&["--pevent", "empty", "t"][..], &["--pevent", "t:16-99", "t"], &["--cpu", "6/78/", "t"]] {
        assert_eq!(folder.lines(Tool::Ptdump, args), ["0000000000000000  psb"], "{args:?}");
    }
    let ran = folder.run(Tool::Ptdump, &["--cpu", "6/1", "none"]);
    assert_eq!(ran.out, "[0: failed to determine errata: unknown cpu]\n");
    assert_eq!((ran.err.as_str(), ran.status), ("{prog}: failed to open none: 2.\n", Some(1)));
}

/// PSB, PSBEND, PAD, TSC, TMA, CBR, MTC, CYC, MTC, MODE.Exec, TIP, TIP.
const ALL: &[u8] = b"\x02\x23\0\x19\0\x10\0\0\0\0\0\
    \x02\x73\x10\0\0\x02\0\x02\x03\x02\0\x59\x03\x83\x59\x05\x99\x01\x2d\x34\x12\x0d";

#[test]
fn options_choose_lines() {
    let names = |args: &[&str]| -> Vec<String> {
        let lines = lines(&[&PSB, ALL], &[args, &["--no-offset"]].concat());
        lines.iter().map(|line| line.split(' ').next().unwrap_or_default().into()).collect()
    };
    let of = |text: &str| -> Vec<String> { text.split(' ').map(Into::into).collect() };
    for (args, shown) in [
        (&[][..], "psb psbend pad tsc tma cbr mtc cyc mtc mode.exec tip tip"),
        (&["--no-pad"], "psb psbend tsc tma cbr mtc cyc mtc mode.exec tip tip"),
        (&["--no-cyc"], "psb psbend pad tsc tma cbr mtc mtc mode.exec tip tip"),
        (&["--no-timing"], "psb psbend pad mode.exec tip tip"),
        (&["--quiet", "--time"], "[26: [28: [28: [29: [29:"),
    ] {
        assert_eq!(names(args), of(shown), "{args:?}");
    }
    assert_eq!(lines(&[&PSB, ALL], &["--quiet"]), [""; 0]);
}

#[test]
fn options_choose_columns() {
    const CLOCKS: [&str; 8] =
        ["--mtc-freq", "3", "--nom-freq", "4", "--cpuid-0x15.eax", "1", "--cpuid-0x15.ebx", "4"];
    let lines = |args: &[&str]| lines(&[&PSB, ALL], &[&CLOCKS, args].concat());
    // The column after each timing packet, or the message before it.
    for (args, columns) in [
        (&["--time"][..], "tsc=1000 tsc=1000 - tsc=101e tsc=103e tsc=105e"),
        (&["--time", "--no-cyc"], "tsc=1000 tsc=1000 - tsc=101e tsc=105e"),
        (&["--time", "--time-delta"], "tsc=+1000 tsc=+0 - tsc=+1e tsc=+20 tsc=+20"),
        (&["--time", "--no-tcal"], "tsc=1000 tsc=1000 - tsc=101e ! tsc=101e tsc=105e"),
        (&["--tcal"], "! fcr=<unavailable> - fcr=2.000 fcr=2.000 - fcr=4.000"),
        (&["--tcal", "--no-cyc"], "! fcr=<unavailable> - fcr=2.000 fcr=2.000 fcr=2.000"),
        (&["--tcal", "--time-delta"], "! fcr=<unavailable> - fcr=+2.000 fcr=+0.000 - fcr=+2.000"),
        (&["--time", "--mtc-freq", "4"], "tsc=1000 tsc=1000 - tsc=107e tsc=109e tsc=10fe"),
        (&["--time", "--cpuid-0x15.eax", "2"], "tsc=1000 tsc=1000 - tsc=100e tsc=102e tsc=102e"),
        (&["--tcal", "--nom-freq", "8"], "! fcr=<unavailable> - fcr=4.000 fcr=4.000 - fcr=4.000"),
    ] {
        let shown: Vec<_> = lines(&[args, &["--no-offset"]].concat())
            .iter()
            .filter(|line| !["psb", "pad", "mod", "tip"].contains(&&line[..3]))
            .map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                _ if line.starts_with('[') => "!".into(),
                [.., id @ ("tsc" | "fcr"), value] if line.len() > 40 => {
                    format!("{id}={}", value.trim_start_matches('0'))
                }
                _ => "-".into(),
            })
            .collect();
        assert_eq!(shown.join(" "), columns, "{args:?}");
    }
    assert_eq!(
        lines(&["--raw", "--no-offset"])[..2],
        ["02820282028202820282028202820282  psb", "0223                              psbend"]
    );
    let last = |args: &[&str]| lines(args)[9..].join("|");
    assert_eq!(
        last(&["--raw", "--no-offset", "--exec-mode"]),
        "9901                              mode.exec  cs.l                      em   64-bit|\
         2d3412                            tip        1: ????????????1234|\
         0d                                tip        0: ????????????????"
    );
    assert_eq!(
        last(&["--lastip"]),
        "000000000000002b  mode.exec  cs.l|\
         000000000000002d  tip        1: ????????????1234       ip   0000000000001234|\
         0000000000000030  tip        0: ????????????????       ip   <suppressed>"
    );
}

#[test]
fn time_is_relative_where_a_missing_tsc_is_no_error() {
    // CBR, MTC, MTC.
    let trace: [&[u8]; 2] = [&PSB, b"\x59\x03\x59\x05"];
    let args = ["--time", "--no-offset", "--cpuid-0x15.eax", "1", "--cpuid-0x15.ebx", "4"];
    let unknown = "error printing time: no timing information";
    assert_eq!(
        lines(&trace, &args)[1..],
        [
            format!("[10: {unknown}]"),
            format!("mtc        3{:25}tsc  <unavailable>", ""),
            format!("[12: {unknown}]"),
            format!("mtc        5{:25}tsc  <unavailable>", ""),
        ]
    );
    assert_eq!(
        lines(&trace, &[&args[..], &["--no-wall-clock"]].concat())[1..],
        [
            format!("mtc        3{:25}tsc  0000000000000000", ""),
            format!("mtc        5{:25}tsc  0000000000000008", ""),
        ]
    );
}

#[test]
fn an_overflow_keeps_the_calibration_if_asked_to() {
    // CBR, OVF, CBR.
    let trace: [&[u8]; 2] = [&PSB, b"\x02\x03\x02\0\x02\xf3\x59\x01"];
    let args = ["--tcal", "--no-offset", "--nom-freq", "4", "--cpuid-0x15.eax", "1", "--cpuid-0x15.ebx", "4"];
    for (more, ratio) in [(&[][..], "<unavailable>"), (&["--keep-tcal-on-ovf"], "2.000")] {
        let lines = lines(&trace, &[&args[..], more].concat());
        assert!(lines.last().unwrap().ends_with(&format!("fcr  {ratio}")), "{more:?}: {lines:?}");
    }
}
