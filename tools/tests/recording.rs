//! Whole recordings: descriptions are read, and traces are compared with their truth logs.

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const PUGMARK: &str = env!("CARGO_BIN_EXE_pugmark");

const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
/// MODE.Exec (64 bit), FUP (1000), PSBEND.
const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
/// TNT (taken, taken).
const TNT: &[u8] = b"\x0e";
/// TIP.PGE (1000).
const PGE: &[u8] = b"\x71\0\x10\0\0\0\0";

/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
/// The number and hash of the instructions on the path of `TNT`: 1000, 1002; 1005, 1006, 1000, 1002.
const COUNT: u64 = 6;
const HASH: &str = "0xdabbef5cd83098a6";

/// A folder that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-recording-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }

    /// Writes a part of a recording with this trace. `truth()` is right for a trace of PSB, state and TNT.
    fn part(&self, dir: &str, trace: &[&[u8]], truth: &Value) {
        self.write(&format!("{dir}/trace.pt"), &trace.concat());
        self.write(&format!("{dir}/code.bin"), &CODE);
        let image = json!({"sections": [{"file": "code.bin", "offset": 0, "len": 8, "vaddr": 0x1000}]});
        self.write(&format!("{dir}/image.json"), image.to_string().as_bytes());
        self.write(&format!("{dir}/truth.json"), truth.to_string().as_bytes());
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program).args(arguments).current_dir(&self.0).stdin(Stdio::null()).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> (Value, Option<i32>) {
        let output = self.run(PUGMARK, &[&["decode", "--json"], arguments].concat());
        (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

fn truth() -> Value {
    json!({"count": COUNT, "hash": HASH, "bytes": 28, "cpu": "6/94/3"})
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_check_says_what_is_not_as_the_truth() {
    let folder = Scratch::new("check");
    let whole = [PSB, STATE, TNT];
    for (what, value, difference) in [
        ("count", json!(COUNT), None),
        ("count", json!(7), Some("count 6 instead of 7")),
        ("hash", json!("0x0000000000000001"), Some("hash 0xdabbef5cd83098a6 instead of 0x0000000000000001")),
        ("bytes", json!(29), Some("bytes 28 instead of 29")),
    ] {
        let mut truth = truth();
        truth[what] = value;
        folder.part("one", &whole, &truth);
        for layer in ["insns", "blocks"] {
            let status = if difference.is_none() { 0 } else { 1 };
            let arguments = ["--check", "--layer", layer, "--allow-errors", "one/trace.pt"];
            let output = folder.run(PUGMARK, &[&["decode"], &arguments[..]].concat());
            let shown = text(&output.stdout);
            assert_eq!(output.status.code(), Some(status), "{truth} {shown}");
            let line = match difference {
                None => "check         equal to one/truth.json\n".to_owned(),
                Some(difference) => format!("check         not as one/truth.json: {difference}\n"),
            };
            assert!(shown.contains(&line), "{shown}");
            let (totals, code) = folder.json(&arguments);
            assert_eq!((&totals["check"]["equal"], code), (&difference.is_none().into(), Some(status)));
            let differences = totals["check"]["differences"].as_array().unwrap();
            assert_eq!(differences.len(), usize::from(difference.is_some()));
            assert!(differences.iter().all(|difference| difference["what"] == what), "{totals}");
        }
    }
    // Without --check there is no check.
    assert_eq!(folder.json(&["one/trace.pt"]).0["check"], Value::Null);
}

#[test]
fn what_has_no_truth_is_not_checked() {
    let folder = Scratch::new("no-truth");
    folder.part("one", &[PSB, STATE, TNT], &json!({"cpu": "6/94/3"}));
    folder.write("bare/trace.pt", &[PSB, STATE, TNT].concat());
    for (arguments, reason) in [
        (&["one/trace.pt"][..], "no truth.json with count and hash beside one/trace.pt"),
        (&["bare/trace.pt"], "no truth.json with count and hash beside bare/trace.pt"),
        (&["--layer", "packets", "one/trace.pt"], "--layer insns or blocks"),
        (&["--source", "bts", "one/trace.pt"], "--layer insns or blocks"),
    ] {
        let output = folder.run(PUGMARK, &[&["decode", "--check"], arguments].concat());
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(reason), "{arguments:?}: {stderr}");
    }
    // A file of that name from another program is reported and ignored.
    folder.write("bare/truth.json", b"[]");
    let output = folder.run(PUGMARK, &["decode", "--layer", "packets", "bare/trace.pt"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("bare/truth.json does not describe a recording"), "{output:?}");
}

#[test]
fn a_folder_is_all_of_its_tasks() {
    let folder = Scratch::new("folder");
    let whole = [PSB, STATE, TNT];
    folder.part("rec", &whole, &truth());
    folder.part("rec/task-2", &whole, &truth());
    let index = json!({"parts": [
        {"dir": ".", "task": 1, "pid": 7, "tid": 7, "comm": "main", "exe": "/bin/main", "count": 6},
        {"dir": "task-2", "task": 2, "pid": 7, "tid": 8, "comm": "worker", "exe": "/bin/main", "count": 6},
    ]});
    folder.write("rec/recording.json", index.to_string().as_bytes());
    let (totals, status) = folder.json(&["--check", "rec"]);
    assert_eq!(status, Some(0), "{totals}");
    assert_eq!((&totals["instructions"], &totals["errors"]), (&12.into(), &0.into()));
    let parts = totals["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 2);
    let second = &parts[1];
    assert_eq!(
        (&second["dir"], &second["tid"], &second["comm"]),
        (&"task-2".into(), &8.into(), &"worker".into())
    );
    assert_eq!((&second["hash"], &second["check"]["equal"]), (&HASH.into(), &true.into()));
    let shown = text(&folder.run(PUGMARK, &["decode", "rec"]).stdout);
    for line in [".: main (pid 7, tid 7), /bin/main\n", "task-2: worker (pid 7, tid 8), /bin/main\n"] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(shown.ends_with("in all 2: 12 instructions, 0 errors\n"), "{shown}");
    // One part with an error makes the whole run fail.
    folder.write("rec/task-2/trace.pt", &[PSB, STATE, TNT, &[0x09]].concat());
    // `bench` measures the trace of the main thread.
    let speed = folder.run(PUGMARK, &["bench", "--json", "--seconds", "0", "rec"]).stdout;
    let speed: Value = serde_json::from_slice(&speed).unwrap();
    assert_eq!((&speed["bytes"], &speed["count"]), (&28.into(), &COUNT.into()));
    for arguments in [&["rec"][..], &["--allow-errors", "--check", "rec"]] {
        assert_eq!(folder.json(arguments).1, Some(1), "{arguments:?}");
    }
    assert_eq!(folder.json(&["--allow-errors", "rec"]).1, Some(0));
    fs::create_dir_all(folder.0.join("nothing")).unwrap();
    let output = folder.run(PUGMARK, &["decode", "nothing"]);
    assert!(
        text(&output.stderr).contains("nothing is not a recording of `pugmark record`: it has no trace.pt")
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_processor_is_the_one_that_the_recording_names_unless_an_option_names_another() {
    let folder = Scratch::new("processor");
    // With erratum SKD007, the second and third byte of an apparent CYC are an OVF.
    let overflow: [&[u8]; 2] = [PSB, b"\x07\x02\xf3\x02\x23"];
    folder.part("one", &overflow, &truth());
    for (arguments, packets, cpu) in [
        (&[][..], 3, json!("6/94/3")),
        (&["--cpu", "none"], 4, Value::Null),
        (&["--cpu", "broadwell"], 4, json!("6/61/0")),
        (&["--cpu", "SKYLAKE"], 3, json!("6/94/0")),
    ] {
        let all = [&["--layer", "packets"], arguments, &["one/trace.pt"]].concat();
        let (totals, _) = folder.json(&all);
        assert_eq!((&totals["packets"], &totals["cpu"]), (&packets.into(), &cpu), "{arguments:?}");
    }
}

#[test]
fn the_pattern_of_bdm70_is_named_with_the_option_that_allows_for_it() {
    let folder = Scratch::new("bdm70");
    let trace = [PSB, STATE, PGE, TNT].concat();
    folder.write("trace", &trace);
    folder.write("code", &CODE);
    let arguments = ["--raw", "code:0x1000", "trace"];
    let (totals, status) = folder.json(&arguments);
    assert_eq!((&totals["errors"][0]["erratum"], status), (&"BDM70".into(), Some(1)), "{totals}");
    assert!(
        totals["advice"][0].as_str().unwrap().contains("name the traced processor with --cpu"),
        "{totals}"
    );
    let shown = text(&folder.run(PUGMARK, &[&["decode"], &arguments[..]].concat()).stdout);
    assert!(
        shown.contains("erratum BDM70") && shown.contains("name the traced processor with --cpu"),
        "{shown}"
    );
    for known in [["--cpu", "broadwell"], ["--errata", "bdm70"]] {
        let (totals, status) = folder.json(&[&known[..], &arguments].concat());
        assert_eq!((&totals["errors"], &totals["advice"], status), (&json!([]), &json!([]), Some(0)));
    }
    // An error of another kind is not attributed to the erratum.
    folder.write("trace", &[PSB, STATE, &[0x09]].concat());
    let (totals, _) = folder.json(&arguments);
    assert_eq!(totals["errors"][0]["erratum"], Value::Null, "{totals}");
}

#[test]
fn bdm70_is_named_in_traces_of_real_processors() {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/real");
    for (trace, cpu) in [
        ("intelpt-trace/3842849.trace", "broadwell-x"),
        ("intelpt-trace-multi-file/multi-file.trace", "6/79/1"),
    ] {
        let trace = real.join(trace);
        let image = trace.with_file_name("image.json");
        let (trace, image) = (trace.to_str().unwrap(), image.to_str().unwrap());
        let folder = Scratch::new("real");
        let (totals, _) = folder.json(&["--image", image, trace]);
        let errors = totals["errors"].as_array().unwrap();
        assert!(errors.len() > 2, "{totals}");
        let explained = errors.iter().filter(|error| error["erratum"] == "BDM70").count();
        assert!(explained + 1 >= errors.len(), "{totals}");
        let (totals, _) = folder.json(&["--image", image, "--cpu", cpu, trace]);
        let explained =
            totals["errors"].as_array().unwrap().iter().filter(|error| error["erratum"] == "BDM70");
        assert_eq!(explained.count(), 0);
    }
}

#[test]
fn the_names_of_processors_are_printed() {
    let folder = Scratch::new("list");
    for arguments in [&["decode", "--cpu", "list"][..], &["bench", "--cpu=list"]] {
        let output = folder.run(PUGMARK, arguments);
        let shown = text(&output.stdout);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{arguments:?}");
        assert!(shown.contains("skylake           6/94 ") && shown.lines().count() > 40, "{shown}");
    }
    // Only the exact word requests the list.
    let output = folder.run(PUGMARK, &["decode", "--cpu", "lists"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn every_view_of_a_recording_names_its_parts() {
    let folder = Scratch::new("views");
    folder.part("rec", &[PSB, STATE, TNT], &truth());
    let view = |arguments: &[&str]| {
        let output = folder.run(PUGMARK, &[arguments, &["rec"]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let rows = |by: &str| -> Value {
        serde_json::from_str::<Value>(&view(&["report", "--json", "--by", by])).unwrap()["rows"].take()
    };
    let row = |thread: &str, instructions: u64, percent: f64| {
        json!({"instructions": instructions, "branches": 2 * instructions / COUNT, "calls": 0, "percent": percent,
            "thread": thread})
    };
    // A single trace has no name of its own in a block cache.
    assert_eq!(view(&["flamegraph", "-f", "folded"]), format!("0x1000 {COUNT}\n"));
    assert_eq!(rows("thread"), json!([row(".", COUNT, 100.0)]));
    let entered = "               0 instructions  in 0x1000\n";
    assert_eq!(view(&["last"]), [".\n", entered, "it ended at 0x1002\n"].concat());

    folder.part("rec/task-2", &[PSB, STATE, TNT], &truth());
    assert_eq!(view(&["flamegraph", "-f", "folded"]), format!(".;0x1000 {COUNT}\ntask-2;0x1000 {COUNT}\n"));
    assert_eq!(rows("thread"), json!([row(".", COUNT, 50.0), row("task-2", COUNT, 50.0)]));
    let last = view(&["last"]);
    let names: Vec<&str> = last.lines().filter(|line| !line.starts_with(' ')).collect();
    let end = "it ended at 0x1002";
    assert_eq!(names, [".", end, "task-2", end], "{last}");
    assert_eq!(view(&["script", "-F", "ip"]).lines().count() as u64, 2 * COUNT);
    let edges = view(&["coverage", "-f", "edges"]);
    assert_eq!(edges, "0x1002 0x1005 2\n0x1006 0x1000 2\n");
}

#[test]
fn an_index_that_cannot_be_read_is_not_passed_over() {
    let folder = Scratch::new("index");
    folder.part("rec", &[PSB, STATE, TNT], &truth());
    fs::create_dir(folder.0.join("rec/recording.json")).unwrap();
    let output = folder.run(PUGMARK, &["decode", "rec"]);
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("the recording's index rec"), "{stderr}");
}

#[test]
fn every_view_warns_of_errors_and_of_a_trace_in_which_nothing_was_executed() {
    let folder = Scratch::new("warnings");
    let whole = [PSB, STATE, TNT].concat();
    folder.write("code", &CODE);
    folder.write("good", &whole);
    folder.write("damaged", &[&whole[..], &[0x09]].concat());
    folder.write("empty", &[]);
    for view in [&["report"][..], &["script"], &["coverage", "-f", "edges"]] {
        for (trace, good) in [("good", true), ("damaged", false), ("empty", false)] {
            let output = folder.run(PUGMARK, &[view, &["--raw", "code:0x1000", trace]].concat());
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(i32::from(!good)), "{view:?} {trace}: {stderr}");
            let warned = stderr.contains("`pugmark decode` says wh");
            assert_eq!(warned, !good, "{view:?} {trace}: {stderr}");
        }
    }
    for (trace, status) in [("good", 0), ("damaged", 1)] {
        let output = folder.run(PUGMARK, &["coverage", "-f", "afl", "--raw", "code:0x1000", trace]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 1 << 16), "{trace}");
    }
}
