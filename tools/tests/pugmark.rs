//! `pugmark decode` and `pugmark bench` as programs.

mod terminal;

use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
#[cfg(target_os = "linux")]
use terminal::terminal;

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

/// Makes a folder for one test, with the code and the trace as files.
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
    // A program that refuses its arguments does not read its input.
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
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/real");
    for (cpu, trace, instructions, hash, errors) in TRACES {
        let folder = trace.split('/').next().unwrap();
        let image = format!("{folder}/image.json");
        for layer in ["insns", "blocks"] {
            let decode = [
                "decode",
                "--json",
                "--allow-errors",
                "--image",
                &image,
                "--cpu",
                cpu,
                "--layer",
                layer,
                trace,
            ];
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

/// Returns an ELF file with the code after its headers, to be loaded at `vaddr`.
fn elf(vaddr: u64) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let size = CODE.len() as u64;
    let ident = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0";
    // Entry, offsets of the program and section headers, sizes of the header and of one program header, their number.
    let header = [&ident[..], &words(&[vaddr, 64, 0, 64 << 32 | 56 << 48, 1])].concat();
    // PT_LOAD, readable and executable.
    [header, words(&[5 << 32 | 1, 120, vaddr, vaddr, size, size, 1]), CODE.to_vec()].concat()
}

#[test]
fn code_comes_from_elf_files_where_they_say_or_moved() {
    let folder = scratch("elf");
    fs::write(folder.join("at"), elf(0x1000)).unwrap();
    fs::write(folder.join("moved"), elf(0x40_0000)).unwrap();
    for (arguments, instructions, errors) in [
        (&["--elf", "at"][..], 6, 0),
        (&["--elf", "moved:0x1000"], 6, 0),
        (&["--elf", "moved"], 0, 1),
        // Later code hides earlier code.
        (&["--elf", "at", "--raw", "code:0x1002"], 7, 0),
    ] {
        for layer in ["insns", "blocks"] {
            let arguments =
                [&["decode", "--json", "--allow-errors", "--layer", layer, "trace"], arguments].concat();
            let totals = json(&folder, &arguments, &[]);
            let found = (&totals["instructions"], totals["errors"].as_array().unwrap().len());
            assert_eq!(found, (&instructions.into(), errors), "{arguments:?}: {totals}");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_trace_is_read_as_the_options_say() {
    let folder = scratch("options");
    let psb = &TRACE[..16];
    let overflow = [psb, b"\x07\x02\xf3\x02\x23"].concat();
    // MODE.Exec with IF before PSBEND.
    let interrupts = [&TRACE[..25], b"\x05", &TRACE[26..]].concat();
    // TSC (10), TNT (taken).
    let later = [TRACE, b"\x19\x0a\0\0\0\0\0\0\x06"].concat();
    for (options, layer, trace, field, plain, value) in [
        ("--cpu 6/94", "packets", &overflow[..], "packets", 4, 3),
        ("--errata skd007", "packets", &overflow, "packets", 4, 3),
        ("--iflags", "events", &interrupts, "events", 3, 4),
        ("--ticks", "insns", &later, "events", 0, 1),
        ("--ticks", "blocks", &later, "events", 0, 1),
    ] {
        let arguments = ["decode", "--json", "--allow-errors", "--raw", "code:0x1000", "--layer", layer, "-"];
        assert_eq!(json(&folder, &arguments, trace)[field], plain, "{layer} without {options}");
        let arguments: Vec<_> = arguments.into_iter().chain(options.split(' ')).collect();
        assert_eq!(json(&folder, &arguments, trace)[field], value, "{layer} with {options}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn text_has_the_hash_where_it_is_asked_for() {
    let folder = scratch("hash");
    let hash = json(&folder, &["decode", "--json", "--raw", "code:0x1000", "trace"], &[])["hash"].clone();
    for layer in ["insns", "blocks"] {
        let arguments = ["decode", "--raw", "code:0x1000", "--layer", layer, "trace"];
        let text = |arguments: &[&str]| String::from_utf8(pugmark(&folder, arguments, &[]).stdout).unwrap();
        assert!(!text(&arguments).contains("hash"), "{layer}");
        let line = format!("hash          {}\n", hash.as_str().unwrap());
        assert!(text(&[&arguments[..], &["--hash"]].concat()).contains(&line), "{layer}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_text_of_a_trace_has_these_lines() {
    let folder = scratch("whole-text");
    let arguments =
        ["decode", "--cpu", "6/94/3", "--hash", "--raw", "code:0x1000", "--layer", "blocks", "trace"];
    let output = pugmark(&folder, &arguments, &[]);
    let hash = json(&folder, &["decode", "--json", "--raw", "code:0x1000", "trace"], &[])["hash"].clone();
    let expected = format!(
        "bytes         44\npackets       7\nevents        0\ninstructions  6\nblocks        2\nhash          {}\n\
         tsc first     0x5\ntsc last      0x9\nerrors        0\nprocessor     6/94/3\n",
        hash.as_str().unwrap()
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn text_says_what_is_wrong_where_and_what_to_do() {
    let folder = scratch("text");
    let damaged = [TRACE, &[0x09], TRACE].concat();
    for (trace, code, lines) in [
        (TRACE, "code:0x1000", &["errors        0"][..]),
        (
            TRACE,
            "code:0x2000",
            &[
                "errors        1",
                "no memory in the image for the instruction at 0x1000",
                "advice: give the code at these addresses with --image, --elf or --raw",
            ],
        ),
        (
            &damaged,
            "code:0x1000",
            &["  0x2c: unknown packet opcode 0x09", "advice: the trace is damaged there"],
        ),
    ] {
        let output = pugmark(&folder, &["decode", "--raw", code, "-"], trace);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in lines {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(text.contains("advice"), lines.len() > 1, "{text}");
        assert_eq!(output.status.success(), lines.len() == 1, "{text}");
        assert!(output.stderr.is_empty());
    }
    let output = pugmark(&folder, &["decode", "code"], &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("no PSB in the 8 bytes of code"), "{stderr}");
    let warning = |arguments: &[&str], input: &[u8]| {
        String::from_utf8(pugmark(&folder, arguments, input).stderr).unwrap()
    };
    assert_eq!(warning(&["decode", "-"], &[]), "pugmark: warning: - is empty: there is nothing to decode\n");
    assert!(warning(&["decode", "trace"], &[]).contains("no code was given"));
    assert_eq!(warning(&["decode", "--layer", "events", "trace"], &[]), "");
    // PSB, PSBEND: no code is executed, so none is missing.
    assert_eq!(warning(&["decode", "-"], &[&TRACE[..16], b"\x02\x23"].concat()), "");
    // A PERF_RECORD_COMM. Branch records have no PSB, so no warning about a missing one is due.
    let other = [3, 0, 0, 0, 0, 0, 8, 0];
    for layer in ["packets", "insns", "blocks"] {
        assert_eq!(
            warning(&["decode", "--source", "perf-bts", "--layer", layer, "-"], &other),
            "",
            "{layer}"
        );
    }
    // The text shows only the first hundred errors.
    let many = [TRACE, &[0x09]].concat().repeat(101);
    let output = pugmark(&folder, &["decode", "--raw", "code:0x1000", "-"], &many);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("unknown packet opcode 0x09").count(), 100);
    assert!(
        text.contains("errors        101") && text.contains("and 1 more; --json prints them all"),
        "{text}"
    );
    fs::remove_dir_all(folder).unwrap();
}

/// Reading does not crash, because its memory is reserved first.
#[cfg(target_os = "linux")]
#[test]
fn a_trace_that_is_larger_than_the_memory_is_refused() {
    let folder = scratch("larger");
    fs::File::create(folder.join("larger")).unwrap().set_len(1 << 40).unwrap();
    let script = "ulimit -v 400000 && exec \"$0\" decode larger";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_pugmark")]).current_dir(&folder);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot read the trace larger") && stderr.contains("memory"), "{stderr}");
    fs::remove_dir_all(folder).unwrap();
}

/// Returns a thread that returns true if the words appear on the screen before the program ends.
#[cfg(target_os = "linux")]
fn watch(mut screen: fs::File, words: &'static [&str]) -> std::thread::JoinHandle<bool> {
    use std::io::Read;
    // The thread stops reading for words when it has seen them: a program that shows none would wait for the end of its
    // input forever.
    std::thread::spawn(move || {
        let mut seen = vec![];
        let mut bytes = [0; 4096];
        while !words.iter().all(|words| String::from_utf8_lossy(&seen).contains(words)) {
            match screen.read(&mut bytes) {
                Ok(count) if count > 0 => seen.extend(&bytes[..count]),
                // The program ended.
                _ => return false,
            }
        }
        // Read on to the end, so that the program does not block on a full screen.
        while screen.read(&mut bytes).is_ok_and(|count| count > 0) {}
        true
    })
}

#[cfg(target_os = "linux")]
#[test]
fn progress_is_shown_while_it_is_measured_and_recorded() {
    let folder = scratch("progress-of-others");
    for (arguments, words) in [
        (&["bench", "--seconds", "1", "--layer", "packets", "trace"][..], &["measuring"][..]),
        // The number of steps is a multiple of 4096.
        (&["record", "--engine", "stepping", "--out", "out", "--", "true"], &["6 steps, ", "kB of trace"]),
    ] {
        let (screen, stderr) = terminal();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pugmark"))
            .args(arguments)
            .current_dir(&folder)
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let shown = watch(screen, words);
        child.wait().unwrap();
        assert!(shown.join().unwrap(), "{words:?} was not shown");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn progress_is_shown_on_terminals_only_while_a_slow_pipe_is_read() {
    use std::{thread::sleep, time::Duration};
    let folder = scratch("progress");
    let (screen, stderr) = terminal();
    let mut child = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .args(["decode", "--json", "--raw", "code:0x1000", "-"])
        .current_dir(&folder)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let shown = watch(screen, &["reading"]);
    for piece in TRACE.chunks(6) {
        stdin.write_all(piece).unwrap();
        sleep(Duration::from_millis(200));
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(shown.join().unwrap(), "nothing was shown");
    let totals: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(totals["instructions"], 6);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn errors_have_a_place_and_decoding_goes_on_at_the_next_psb() {
    let folder = scratch("errors");
    let twice = [TRACE, &[0x09], TRACE].concat();
    for layer in ["packets", "events", "query", "insns", "blocks"] {
        let arguments = ["decode", "--json", "--allow-errors", "--raw", "code:0x1000", "--layer", layer, "-"];
        let totals = json(&folder, &arguments, &twice);
        let errors = totals["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 1, "{layer}");
        assert_eq!(errors[0]["offset"], TRACE.len(), "{layer}");
        assert_eq!(errors[0]["text"], "unknown packet opcode 0x09", "{layer}");
        assert_eq!(totals["packets"], 14, "{layer}");
    }
    let totals = json(&folder, &["decode", "--json", "--allow-errors", "--raw", "code:0x2000", "trace"], &[]);
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
            let arguments = [
                "decode",
                "--json",
                "--allow-errors",
                "--raw",
                "code:0x1000",
                "--source",
                source,
                "--start",
                "0x1000",
            ];
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
            // No path without a branch leads from the first record to the second.
            let totals = json(&folder, &arguments, &[&a[..], &record(0x1000, 0x1005), &c].concat());
            let error = &totals["errors"][0];
            assert_eq!(
                (&error["offset"], &error["address"]),
                (&size.into(), &0x1000.into()),
                "{source} {layer}"
            );
            let text = error["text"].as_str().unwrap();
            assert!(text.starts_with("no path without a branch from 0x1005 to 0x1000"), "{text}");
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
        let megabytes = TRACE.len() as f64 / 1e6;
        assert!((number("mb_per_s") * number("seconds_median") / megabytes - 1.0).abs() < 0.001, "{speed}");
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
    let shortest = json(&folder, &["bench", "--seconds", "0", "--json", "--layer", "packets", "trace"], &[]);
    assert_eq!(shortest["threads"], 1);
    assert_eq!(shortest["runs"], 3);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn several_threads_give_what_one_gives() {
    let folder = scratch("threads");
    // PSB+, then TNTs (taken, taken): enough for several segments.
    let trace = [&TRACE[..35], &[0x0e; 20_000]].concat().repeat(20);
    fs::write(folder.join("trace"), trace).unwrap();
    for layer in ["packets", "events", "query", "insns", "blocks", "edges"] {
        let arguments = ["--raw", "code:0x1000", "--layer", layer, "trace", "--threads"];
        let speed = |threads| {
            let bench = [&["bench", "--seconds", "0", "--json"], &arguments[..], &[threads]].concat();
            let speed = json(&folder, &bench, &[]);
            assert_eq!(speed["threads"].to_string(), threads);
            (speed["count"].clone(), speed["hash"].clone())
        };
        assert_eq!(speed("1"), speed("3"), "{layer}");
        assert_eq!(speed("1").1.is_string(), matches!(layer, "insns" | "blocks" | "edges"), "{layer}");
        if layer == "edges" {
            // Two blocks per TNT, except the one that is unknown at the start.
            assert_eq!(speed("1").0, 2 * 20 * 20_000);
            continue;
        }
        let totals = |threads| {
            let output = pugmark(&folder, &[&["decode"], &arguments[..], &[threads]].concat(), &[]);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(totals("1"), totals("3"), "{layer}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn refusals_say_what_and_where() {
    let folder = scratch("refusals");
    fs::write(folder.join("image.json"), r#"{"sections":[{"file":"code","offset":4,"len":6,"vaddr":0}]}"#)
        .unwrap();
    fs::write(folder.join("endless.json"), r#"{"sections":[{"file":"/dev/zero","len":6,"vaddr":0}]}"#)
        .unwrap();
    fs::write(folder.join("none"), []).unwrap();
    for (arguments, text) in [
        (&["decode", "missing"][..], "cannot read the trace missing"),
        (
            &["decode", "--raw", "code", "trace"],
            "--raw code: the code's address is missing: write FILE:BASE, as in code:0x1000",
        ),
        (
            &["decode", "--image", "image.json", "trace"],
            "image image.json, section 0: wants 0x6 bytes from offset 0x4 of code, which has 0x8 in all",
        ),
        (&["decode", "--elf", "code", "trace"], "ELF file code"),
        (&["decode", "--cpu", "6/1", "trace"], "the errata of processor 6/1/0 are not known"),
        (&["decode", "--cpu", "x", "trace"], "not a processor"),
        (
            &["decode", "--source", "bts", "--layer", "query", "trace"],
            "branch records have no layer query: use --layer packets, insns or blocks",
        ),
        (&["decode", "--source", "bts", "--handler", "2-1", "trace"], "not an address"),
        (&["bench", "--seconds", "x", "trace"], "not a number of seconds"),
        (&["bench", "--seconds", "-1", "trace"], "not a number of seconds"),
        (&["bench", "--threads", "0", "trace"], "'0' for '--threads <N>'"),
        (&["decode", "--layer", "edges", "trace"], "edges are for `pugmark bench`"),
        (
            &["decode", "--threads", "2", "--source", "bts", "trace"],
            "--threads needs an Intel PT trace: branch records are decoded on one thread",
        ),
        (
            &["decode", "--start", "0x1000", "trace"],
            "--next, --start, --end, --handler and --one-level are for branch records: use --source",
        ),
        (&["bench", "none"], "none is empty: there is nothing to measure"),
        (&["decode", "--mtc-freq", "256", "trace"], "too large: the field has 8 bits, at most 0xff"),
        (&["decode", "--image", "endless.json", "trace"], "file /dev/zero: not a regular file"),
    ] {
        let output = pugmark(&folder, arguments, &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(text), "{arguments:?}: {stderr}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn each_help_fits_on_a_screen_and_has_an_example() {
    let folder = scratch("help");
    let mut subcommands = vec![
        "decode",
        "bench",
        "ibs",
        "mem",
        "pebs",
        "pmc encode",
        "pmc list",
        "pmc info",
        "pmc dispatch",
        "man",
        "coverage",
        "last",
        "timeline",
        "flamegraph",
        "report",
        "script",
        "calls",
        "diff",
        "completions",
    ];
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        subcommands.extend(["record", "stat", "boot"]);
    }
    for subcommand in subcommands {
        let arguments: Vec<_> = subcommand.split(' ').chain(["--help"]).collect();
        let output = pugmark(&folder, &arguments, &[]);
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && help.lines().count() <= 48, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
        let examples = help.split("Example").nth(1).expect(subcommand);
        assert!(examples.contains(&format!("\n  pugmark {subcommand} ")), "{help}");
    }
    fs::remove_dir_all(folder).unwrap();
}
