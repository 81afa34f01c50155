//! `pugmark decode` and `pugmark bench` as programs.

use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Processor, trace, instructions, hash, errors.
const TRACES: [(&str, &str, u64, &str, usize); 5] = [
    ("6/79/1", "intelpt-trace/3842849.trace", 21, "0xc641aab252dbd17c", 0),
    ("6/79/1", "intelpt-trace-multi-file/multi-file.trace", 45, "0xddb6bb34daaab2ab", 1),
    ("6/85/4", "intelpt-multi-core-trace/cores/45.intelpt_trace", 61825, "0x2da476411a3646e6", 1),
    ("6/85/4", "intelpt-multi-core-trace/cores/51.intelpt_trace", 19521, "0xa1fc7f8ca749977f", 3),
    ("6/85/4", "dynamorio/pt.bin", 8, "0x347039f82b911e59", 0),
];

/// PSB, TSC (5), MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken), TSC (9).
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x05\0\0\0\0\0\0\x99\x01\
    \x7d\0\x10\0\0\0\0\x02\x23\x0e\x19\x09\0\0\0\0\0\0";

/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];

/// A folder of its own, with the code in a file.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pugmark-test-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("code"), CODE).unwrap();
    fs::write(folder.join("trace"), TRACE).unwrap();
    folder
}

fn pugmark(folder: &Path, arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn json(folder: &Path, arguments: &[&str], stdin: &[u8]) -> Value {
    let output = pugmark(folder, arguments, stdin);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn real_traces_have_the_known_totals() {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors/real");
    if !real.is_dir() {
        println!("skipped: no {}", real.display());
        return;
    }
    for (cpu, trace, instructions, hash, errors) in TRACES {
        let folder = trace.split('/').next().unwrap();
        let image = format!("{folder}/image.json");
        for layer in ["insns", "blocks"] {
            let decode = ["decode", "--json", "--image", &image, "--cpu", cpu, "--layer", layer, trace];
            let totals = json(&real, &decode, &[]);
            assert_eq!(totals["instructions"], instructions, "{trace} {layer}");
            assert_eq!(totals["hash"], hash, "{trace} {layer}");
            assert_eq!(totals["errors"].as_array().unwrap().len(), errors, "{trace} {layer}");
            assert_eq!(totals["blocks"].as_u64().unwrap() > 0, layer == "blocks", "{trace} {layer}");
        }
    }
}

#[test]
fn code_comes_from_images_and_raw_files_and_the_trace_from_pipes() {
    let folder = scratch("code");
    let image = r#"{"sections":[{"file":"code","offset":2,"len":6,"vaddr":4098},
        {"file":"code","offset":0,"len":2,"vaddr":4096}]}"#;
    fs::write(folder.join("image.json"), image).unwrap();
    let expected =
        json(&folder, &["decode", "--json", "--raw", "code:0x1000", "--layer", "insns", "trace"], &[]);
    assert_eq!((&expected["instructions"], &expected["bytes"]), (&6.into(), &TRACE.len().into()));
    assert_eq!((&expected["tsc_first"], &expected["tsc_last"]), (&5.into(), &9.into()));
    assert_eq!((&expected["packets"], &expected["errors"]), (&7.into(), &Value::Array(vec![])));
    for arguments in [
        &["decode", "--json", "--image", "image.json", "--layer", "blocks", "-"][..],
        &["decode", "--json", "--raw", "code:4096", "--layer", "blocks", "-"],
        &["decode", "--json", "--raw", "code:4096", "-"],
        &["decode", "--json", "--raw", "code:4096", "--layer", "insns", "-"],
    ] {
        let totals = json(&folder, arguments, TRACE);
        for field in ["instructions", "hash", "packets", "bytes", "tsc_first", "tsc_last", "errors"] {
            assert_eq!(totals[field], expected[field], "{arguments:?}: {field}");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn errors_have_a_place_and_decoding_goes_on_at_the_next_psb() {
    let folder = scratch("errors");
    let twice = [TRACE, &[0x09], TRACE].concat();
    for layer in ["packets", "events", "query", "insns", "blocks"] {
        let arguments = ["decode", "--json", "--raw", "code:0x1000", "--layer", layer, "-"];
        let totals = json(&folder, &arguments, &twice);
        let errors = totals["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 1, "{layer}");
        assert_eq!(errors[0]["offset"], TRACE.len(), "{layer}");
        assert_eq!(errors[0]["text"], "unknown packet opcode 0x09", "{layer}");
        assert_eq!(totals["packets"], 14, "{layer}");
    }
    let totals =
        json(&folder, &["decode", "--json", "--raw", "code:0x2000", "--layer", "blocks", "trace"], &[]);
    assert_eq!(totals["errors"][0]["address"], 0x1000);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn branch_records_are_decoded_in_each_layout() {
    let folder = scratch("branches");
    let branches = [(0x1002_u64, 0x1005_u64), (0x1006, 0x1000), (0x1006, 0x1000)];
    let wide = |from: u64, to: u64| [from.to_le_bytes(), to.to_le_bytes(), 0x10_u64.to_le_bytes()].concat();
    let narrow = |from: u64, to: u64| {
        [(from as u32).to_le_bytes(), (to as u32).to_le_bytes(), 0x10_u32.to_le_bytes()].concat()
    };
    // A PERF_RECORD_SAMPLE of 24 bytes.
    let sample =
        |from: u64, to: u64| [[9, 0, 0, 0, 0, 0, 24, 0], from.to_le_bytes(), to.to_le_bytes()].concat();
    type Layout<'a> = (&'a str, &'a dyn Fn(u64, u64) -> Vec<u8>, usize);
    let layouts: [Layout; 3] = [("bts", &wide, 24), ("bts32", &narrow, 12), ("perf-bts", &sample, 24)];
    for (source, record, size) in layouts {
        let [a, b, c] = branches.map(|(from, to)| record(from, to));
        let bytes = [&a[..], &b, &c].concat();
        for layer in ["insns", "blocks"] {
            let arguments =
                ["decode", "--json", "--raw", "code:0x1000", "--source", source, "--start", "0x1000"];
            let arguments = [&arguments[..], &["--layer", layer, "-"]].concat();
            let totals = json(&folder, &arguments, &bytes);
            // 1000, 1002; 1005, 1006; then 1000 and 1002, 1004, 1005, 1006.
            assert_eq!(
                (&totals["packets"], &totals["instructions"]),
                (&3.into(), &9.into()),
                "{source} {layer}"
            );
            assert_eq!(totals["hash"], "0xd637118b87c9ce31", "{source} {layer}");
            assert_eq!(totals["errors"].as_array().unwrap().len(), 0, "{source} {layer}");
            // Nothing leads from the first to the second.
            let totals = json(&folder, &arguments, &[&a[..], &record(0x1000, 0x1005), &c].concat());
            let error = &totals["errors"][0];
            assert_eq!(
                (&error["offset"], &error["address"]),
                (&size.into(), &0x1000.into()),
                "{source} {layer}"
            );
            let text = error["text"].as_str().unwrap();
            assert!(text.starts_with("branch record 1: no straight way from 0x1005 to 0x1000"), "{text}");
        }
    }
    // A circular buffer: the oldest record is at its end.
    let bytes = [wide(0x1006, 0x1000), wide(0x1002, 0x1005)].concat();
    let arguments = ["decode", "--json", "--raw", "code:0x1000", "--source", "bts", "--next", "24", "-"];
    let totals = json(&folder, &arguments, &bytes);
    assert_eq!((&totals["instructions"], &totals["blocks"]), (&3.into(), &2.into()));
    assert_eq!(totals["errors"].as_array().unwrap().len(), 0);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn bench_gives_the_counts_of_decode() {
    let folder = scratch("bench");
    for layer in ["packets", "events", "query", "insns", "blocks"] {
        let arguments = ["--json", "--raw", "code:0x1000", "--layer", layer, "trace"];
        let speed = json(&folder, &[&["bench", "--seconds", "0.01"], &arguments[..]].concat(), &[]);
        let totals = json(&folder, &[&["decode"], &arguments[..]].concat(), &[]);
        let number = |field: &str| speed[field].as_f64().unwrap();
        assert!(number("seconds_min") <= number("seconds_median") && number("mb_per_s") > 0.0, "{speed}");
        assert_eq!((&speed["layer"], &speed["bytes"]), (&layer.into(), &TRACE.len().into()));
        assert_eq!(speed["hash"], totals["hash"], "{layer}");
        let of = |field: &str| totals[field].as_u64().unwrap();
        let count = match layer {
            "packets" => of("packets"),
            "events" => of("events"),
            "query" => of("events") + of("conditional_branches") + of("indirect_branches"),
            _ => of("instructions"),
        };
        assert_eq!(speed["count"], count, "{layer}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn refusals_say_what_and_where() {
    let folder = scratch("refusals");
    fs::write(folder.join("image.json"), r#"{"sections":[{"file":"code","offset":4,"len":6,"vaddr":0}]}"#)
        .unwrap();
    for (arguments, text) in [
        (&["decode", "missing"][..], "cannot read the trace missing"),
        (&["decode", "--raw", "code", "trace"], "--raw code: say where the code was, as FILE:BASE"),
        (&["decode", "--image", "image.json", "trace"], "section 0: code has no 0x6 bytes from 0x4 on"),
        (&["decode", "--elf", "code", "trace"], "ELF file code"),
        (&["decode", "--cpu", "6/1", "trace"], "the errata of processor 6/1/0 are not known"),
        (&["decode", "--cpu", "x", "trace"], "not a processor"),
        (&["decode", "--source", "bts", "--layer", "query", "trace"], "branch records have no such layer"),
        (&["decode", "--source", "bts", "--handler", "2-1", "trace"], "not an address"),
        (&["bench", "--seconds", "x", "trace"], "not a number of seconds"),
    ] {
        let output = pugmark(&folder, arguments, &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(text), "{arguments:?}: {stderr}");
    }
    fs::remove_dir_all(folder).unwrap();
}
