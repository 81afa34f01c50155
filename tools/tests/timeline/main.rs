//! `pugmark timeline`, `pugmark last` and `pugmark calls`.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod browser;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod flame;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod measured;
mod page;

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// PSB, TSC (5), MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken).
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x05\0\0\0\0\0\0\x99\x01\
    \x7d\0\x10\0\0\0\0\x02\x23\x0e";
/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];

/// Returns a trace with two losses: the same, CBR (ratio 8), TSC (9), OVF, FUP (1000), TNT (taken, taken), TSC (20), no
/// packet, and the same again with TSC (50).
fn lossy() -> Vec<u8> {
    let more = b"\
        \x02\x03\x08\0\x19\x09\0\0\0\0\0\0\x02\xf3\x3d\0\x10\x0e\x19\x14\0\0\0\0\0\0\x09";
    let mut again = TRACE.to_vec();
    again[17] = 50;
    [TRACE, more, &again].concat()
}

/// `leaf` runs six times in `busy`, and `down` calls itself until it is four deep.
const PROGRAM: &str = r"
__attribute__((noinline)) int leaf(int x) { return x * 3 + 1; }
__attribute__((noinline)) int busy(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += leaf(i);
    return sum;
}
__attribute__((noinline)) int down(int n) { return n ? down(n - 1) + leaf(n - 1) % 2 * n : 0; }
int main(void) { return busy(3) + down(3) == 7; }";

/// A folder that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-timeline-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("code"), CODE).unwrap();
        fs::write(folder.join("trace"), TRACE).unwrap();
        Self(folder)
    }

    /// Makes the same with a recording of the program; `None` without a compiler.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn recorded(name: &str) -> Option<Self> {
        Self::recorded_program(name, PROGRAM)
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn recorded_program(name: &str, source: &str) -> Option<Self> {
        let folder = Self::new(name);
        fs::write(folder.0.join("program.c"), source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-static", "-o", "program", "program.c"]).current_dir(&folder.0);
        let Ok(output) = cc.output() else {
            println!("skipped: a compiler is not installed");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.pugmark(&["record", "--tsc", "--mtc", "--cyc", "-o", "rec", "--", "./program"]);
        Some(folder)
    }

    fn pugmark(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pugmark")).args(arguments).current_dir(&self.0).output().unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.pugmark(arguments);
        // A trace with errors is drawn, and the exit status reports the errors.
        let message = String::from_utf8_lossy(&output.stderr);
        let drawn = message.contains(" errors and losses in the traces") && output.status.code() == Some(1);
        assert!(output.status.success() || drawn, "{arguments:?}: {message}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the data in a page.
    fn page(&self, arguments: &[&str]) -> Value {
        self.text(&[&["timeline", "-o", "page.html"], arguments].concat());
        page::data(&fs::read_to_string(self.0.join("page.html")).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

#[test]
fn what_is_lost_is_drawn_from_the_loss_to_where_the_trace_goes_on() {
    let folder = Scratch::new("loss");
    fs::write(folder.0.join("lossy"), lossy()).unwrap();
    let status = folder.pugmark(&["timeline", "-o", "page.html", "--raw", "code:0x1000", "lossy"]).status;
    assert_eq!(status.code(), Some(1));
    let data = folder.page(&["--raw", "code:0x1000", "lossy"]);
    let track = &data["tracks"][0];
    assert_eq!((&data["unit"], track["slices"].as_array().unwrap().len()), (&"ticks".into(), 3), "{data}");
    let reasons = ["the processor lost packets", "the trace is damaged, or its code is not known"];
    for (number, why) in reasons.iter().enumerate() {
        let loss = &track["losses"][number];
        assert_eq!(loss[2], *why);
        assert_eq!(track["slices"][number][1], loss[0], "{data}");
        assert_eq!(track["slices"][number + 1][0], loss[1], "{data}");
    }
    // The drawing begins between TSC 5 and 9; it continues with the second PSB+, at 50.
    let damaged = &track["losses"][1];
    assert!(damaged[0].as_u64() <= Some(20) && damaged[1] == 50 - 8, "{data}");
    assert_eq!(track["marks"][0][1], "core to bus ratio 8", "{data}");
    // The same in a profile for Firefox, beginning with the first instruction.
    let profile = FirefoxProfile::load(&folder, &["--raw", "code:0x1000", "lossy"]);
    let time = |at: &Value| at.as_f64().map(|at| at / 1e6);
    let lost = |number: usize| {
        let loss = &track["losses"][number];
        ("LOST", reasons[number], "red", time(&loss[0]), time(&loss[1]))
    };
    assert_eq!(profile.markers()[..2], [lost(0), lost(1)]);
    assert_eq!(profile.markers()[2].0, "frequency");
    let lasts = |of: &str| {
        let samples =
            profile.samples().into_iter().filter(|(_, path, _)| path.iter().any(|(_, name)| *name == of));
        samples.map(|(at, _, weight)| (at, at + weight)).collect::<Vec<_>>()
    };
    let drawn = |pair: &Value| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap());
    assert_eq!(lasts("[lost]"), [drawn(&track["losses"][0]), drawn(&track["losses"][1])]);
    assert_eq!(lasts("0x1000"), [0, 1, 2].map(|number: usize| drawn(&track["slices"][number])));
    assert_eq!(profile.0["meta"]["product"], "pugmark; a nanosecond is one of the ticks");
    // The same in the text of the last events.
    let last = folder.text(&["last", "-n", "3", "--raw", "code:0x1000", "lossy"]);
    let lines: Vec<_> = last.lines().map(str::trim).collect();
    let lost = "LOST: the trace is damaged, or its code is not known";
    assert!(lines[1].ends_with(lost) && lines[2].ends_with("in 0x1000"), "{last}");
    assert_eq!(lines[3..], ["it ended at 0x1002"], "{last}");
}

#[test]
fn calls_that_are_not_drawn_any_more_are_warned_of() {
    let folder = Scratch::new("calls");
    fs::write(folder.0.join("three"), lossy()).unwrap();
    let timeline = |arguments: &[&str]| {
        let last = ["-o", "out", "--raw", "code:0x1000", "three"];
        let output = folder.pugmark(&[&["timeline"], arguments, &last].concat());
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let drawn = |calls| format!("out: {calls} of 1 thread\n");
    for format in ["perfetto", "firefox"] {
        let [out, err] = timeline(&["-f", format, "--calls", "1"]);
        assert_eq!(out, drawn("1 call"));
        let warning = "pugmark: warning: drew the first 1 calls, up to ";
        let rest = err.lines().find_map(|line| line.strip_prefix(warning)).unwrap_or_else(|| panic!("{err}"));
        let (upto, rest) = rest.split_once(" of ").unwrap();
        let (all, rest) = rest.split_once(" ticks; draw more with --calls").unwrap();
        let [upto, all] = [upto, all].map(|text| text.parse::<u64>().unwrap());
        assert!(0 < upto && upto < 10 && (40..50).contains(&all), "{upto} {all} {rest}");
        let [out, err] = timeline(&["-f", format, "--calls", "3"]);
        assert!(out == drawn("3 calls") && !err.contains("drew the first"), "{out} {err}");
    }
    // A page has all of them.
    assert_eq!(timeline(&["--calls", "1"])[0], drawn("3 calls"));
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_page_that_must_be_small_has_the_whole_run_in_runs_and_says_so() {
    let Some(folder) = Scratch::recorded("small") else { return };
    let whole = folder.page(&["rec"]);
    let output = folder.pugmark(&["timeline", "-o", "small.html", "--megabytes", "0", "rec"]);
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let small = page::data(&fs::read_to_string(folder.0.join("small.html")).unwrap());
    let slices = whole["tracks"][0]["slices"].as_array().unwrap();
    assert_eq!(out, format!("small.html: {} calls of 1 thread\n", slices.len()));
    let level = &small["levels"][0];
    assert_eq!((&small["tracks"][0]["slices"], level), (&serde_json::json!([]), &serde_json::json!(27)));
    let runs = small["tracks"][0]["runs"]["27"].as_array().unwrap();
    let periods = whole["tracks"][0]["untraced"].as_array().unwrap().len();
    let calls: u64 = runs.iter().map(|run| run[4].as_u64().unwrap()).sum();
    assert_eq!(calls as usize, slices.len() + periods, "{small}");
    // Each depth is one run, from its first call's begin to its last one's end.
    let depths: Vec<_> =
        runs.iter().map(|run| [0, 1, 2].map(|index: usize| run[index].as_u64().unwrap())).collect();
    for [from, to, depth] in depths {
        let at = |slice: &&Value| slice[2] == depth;
        let bars = slices.iter().chain(whole["tracks"][0]["untraced"].as_array().unwrap()).filter(at);
        let times = bars.map(|slice| [0, 1].map(|index| slice[index].as_u64().unwrap()));
        let all = times.reduce(|all, one| [all[0].min(one[0]), all[1].max(one[1])]);
        assert_eq!(all, Some([from, to]), "depth {depth}");
    }
    let warning = small["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with(&format!("{calls} of {calls} calls, those shorter than ")), "{warning}");
    assert!(err.contains(&format!("pugmark: warning: {warning}\n")), "{err}");
    assert_eq!(whole["warnings"], serde_json::json!([]));
}

#[test]
fn without_time_instructions_are_counted() {
    let folder = Scratch::new("untimed");
    fs::write(folder.0.join("untimed"), [&TRACE[..16], &TRACE[24..]].concat()).unwrap();
    let data = folder.page(&["--raw", "code:0x1000", "untimed"]);
    assert_eq!(data["unit"], "instructions");
    assert_eq!(data["tracks"][0]["slices"][0], serde_json::json!([0, 6, 0, 0, 6, null]), "{data}");
    assert_eq!(data["names"], serde_json::json!(["0x1000", "(not traced)"]));
    let output = folder.pugmark(&["timeline", "-o", "page.html", "--raw", "code:0x2000", "untimed"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing was executed in the trace"));
}

/// Returns the fields of a protocol buffer's message: a number, or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a byte");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if *first < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = vec![];
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = varint(&mut bytes);
        let (inner, rest) = bytes.split_at(if key & 7 == 2 { value as usize } else { 0 });
        assert!(matches!(key & 7, 0 | 2), "wire type {}", key & 7);
        bytes = rest;
        found.push((key >> 3, value, inner));
    }
    found
}

/// Returns the calls in a trace for Perfetto: begin, end, and the functions from the outermost one on, as a path.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn perfettos_calls(trace: &[u8]) -> Vec<(u64, u64, String)> {
    let (mut open, mut calls, mut time) = (vec![], vec![], 0);
    for (field, _, packet) in fields(trace) {
        assert_eq!(field, 1);
        let packet = fields(packet);
        let Some((.., event)) = packet.iter().find(|(field, ..)| *field == 11) else { continue };
        let event = fields(event);
        let number =
            |from: &[(u64, u64, &[u8])], wanted| from.iter().find(|(field, ..)| *field == wanted).unwrap().1;
        let at = number(&packet, 8);
        match number(&event, 9) {
            1 => {
                let name = event.iter().find(|(field, ..)| *field == 23).unwrap().2;
                open.push((at, String::from_utf8(name.to_vec()).unwrap()));
            }
            2 => {
                let path: Vec<&str> = open.iter().map(|(_, name)| name.as_str()).collect();
                let path = path.join("/");
                calls.push((open.pop().expect("an open slice").0, at, path));
            }
            3 => continue,
            other => panic!("type {other}"),
        }
        assert!(at >= time, "{at} after {time}");
        time = at;
    }
    assert_eq!(open, []);
    calls
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn perfettos_trace_has_each_call_inside_its_caller() {
    let Some(folder) = Scratch::recorded("perfetto") else { return };
    folder.text(&["timeline", "-f", "perfetto", "-o", "out", "rec"]);
    let calls = perfettos_calls(&fs::read(folder.0.join("out")).unwrap());
    let ending = |end: &str| calls.iter().filter(|(.., path)| path.ends_with(end)).count();
    assert_eq!(ending("/main/busy/leaf"), 3, "{calls:?}");
    assert_eq!(ending("/main/down/down/down/down"), 1, "{calls:?}");
    assert_eq!((ending("/main/down/leaf"), ending("/leaf")), (1, 6), "{calls:?}");
}

/// A sample's time, its stack with the functions' names, from the outermost one on, and its weight.
type FirefoxSample<'a> = (u64, Vec<(usize, &'a str)>, u64);
/// A marker's row, its text, the colour of its category, its begin and its end.
type FirefoxMarker<'a> = (&'a str, &'a str, &'a str, Option<f64>, Option<f64>);

/// A profile for Firefox with consistent tables.
struct FirefoxProfile(Value);

impl FirefoxProfile {
    fn load(folder: &Scratch, arguments: &[&str]) -> Self {
        folder.text(&[&["timeline", "-f", "firefox", "-o", "out.json"], arguments].concat());
        let profile: Value = serde_json::from_slice(&fs::read(folder.0.join("out.json")).unwrap()).unwrap();
        // The table that each column is an index of; null is no index.
        let categories = profile["meta"]["categories"].as_array().unwrap().len();
        for thread in profile["threads"].as_array().unwrap() {
            let len = |table: &str| thread[table]["length"].as_u64().unwrap() as usize;
            let strings = thread["stringArray"].as_array().unwrap().len();
            for (table, column, below) in [
                ("samples", "stack", len("stackTable")),
                ("stackTable", "frame", len("frameTable")),
                ("stackTable", "prefix", len("stackTable")),
                ("frameTable", "func", len("funcTable")),
                ("frameTable", "category", categories),
                ("funcTable", "name", strings),
                ("markers", "name", strings),
                ("markers", "category", categories),
            ] {
                let values = thread[table][column].as_array().unwrap();
                assert_eq!(values.len(), len(table), "{table}.{column}");
                let mut known = values.iter().filter_map(Value::as_u64);
                assert!(known.all(|index| (index as usize) < below), "{table}.{column}: {values:?}");
            }
            for (stack, prefix) in thread["stackTable"]["prefix"].as_array().unwrap().iter().enumerate() {
                assert!(prefix.as_u64().is_none_or(|prefix| (prefix as usize) < stack), "{stack}: {prefix}");
            }
            for column in ["stack", "timeDeltas", "weight", "threadCPUDelta"] {
                assert_eq!(thread["samples"][column].as_array().unwrap().len(), len("samples"), "{column}");
            }
        }
        Self(profile)
    }

    /// Returns the samples of the first thread.
    fn samples(&self) -> Vec<FirefoxSample<'_>> {
        let thread = &self.0["threads"][0];
        let column = |table: &str, column: &str, index: usize| thread[table][column][index].as_u64();
        // The unit is milliseconds; a nanosecond is a millionth.
        let nanoseconds = |millis: &Value| (millis.as_f64().unwrap() * 1e6).round() as u64;
        let mut now = 0;
        let samples = (0..thread["samples"]["length"].as_u64().unwrap() as usize).map(|sample| {
            now += nanoseconds(&thread["samples"]["timeDeltas"][sample]);
            let mut path = vec![];
            let mut next = column("samples", "stack", sample);
            while let Some(stack) = next {
                let frame = column("stackTable", "frame", stack as usize).unwrap();
                let function = column("frameTable", "func", frame as usize).unwrap();
                let name = column("funcTable", "name", function as usize).unwrap();
                path.push((stack as usize, thread["stringArray"][name as usize].as_str().unwrap()));
                next = column("stackTable", "prefix", stack as usize);
            }
            path.reverse();
            (now, path, nanoseconds(&thread["samples"]["weight"][sample]))
        });
        samples.collect()
    }

    /// Returns the boxes of the stack chart: begin, end, and the functions from the outermost one on, as a path. A
    /// stack that two adjacent samples share continues from the first to the second.
    ///
    /// Source: Firefox Profiler, src/profile-logic/stack-timing.ts.
    fn boxes(&self) -> Vec<(u64, u64, String)> {
        let (mut open, mut boxes): (Vec<(u64, (usize, &str))>, _) = (vec![], vec![]);
        for (at, path, _) in self.samples() {
            let shared = open.iter().zip(&path).take_while(|((_, open), stack)| open == *stack).count();
            while open.len() > shared {
                let names: Vec<&str> = open.iter().map(|(_, (_, name))| *name).collect();
                let path = names.join("/");
                boxes.push((open.pop().unwrap().0, at, path));
            }
            open.extend(path[shared..].iter().map(|stack| (at, *stack)));
        }
        assert_eq!(open, []);
        boxes
    }

    /// Returns the markers of the first thread.
    fn markers(&self) -> Vec<FirefoxMarker<'_>> {
        let thread = &self.0["threads"][0];
        let markers = &thread["markers"];
        let string =
            |index: &Value| thread["stringArray"][index.as_u64().unwrap() as usize].as_str().unwrap();
        let marker = |number: usize| {
            let category = markers["category"][number].as_u64().unwrap() as usize;
            (
                string(&markers["name"][number]),
                string(&markers["data"][number]["text"]),
                self.0["meta"]["categories"][category]["color"].as_str().unwrap(),
                markers["startTime"][number].as_f64(),
                markers["endTime"][number].as_f64(),
            )
        };
        (0..markers["length"].as_u64().unwrap() as usize).map(marker).collect()
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_stack_chart_of_a_profile_for_firefox_has_the_calls_of_perfettos_trace() {
    let Some(folder) = Scratch::recorded("firefox") else { return };
    folder.text(&["timeline", "-f", "perfetto", "-o", "out", "rec"]);
    let mut calls = perfettos_calls(&fs::read(folder.0.join("out")).unwrap());
    let first = calls.iter().map(|(from, ..)| *from).min().unwrap();
    calls.iter_mut().for_each(|(from, to, _)| (*from, *to) = (*from - first, *to - first));
    let profile = FirefoxProfile::load(&folder, &["rec"]);
    let mut boxes = profile.boxes();
    boxes.sort();
    calls.sort();
    assert!(calls.len() > 50, "{calls:?}");
    assert_eq!(boxes, calls);
    // The total weight of the samples is the total duration of the outermost functions.
    let weight: u64 = profile.samples().iter().map(|(_, _, weight)| weight).sum();
    let outermost = calls.iter().filter(|(.., path)| !path.contains('/')).map(|(from, to, _)| to - from);
    assert_eq!(weight, outermost.sum::<u64>());
    let [thread, meta] = [&profile.0["threads"][0], &profile.0["meta"]];
    assert!(thread["name"].as_str().unwrap().starts_with(".: program (pid "), "{thread}");
    assert_eq!((&meta["product"], &meta["symbolicated"]), (&"pugmark".into(), &true.into()));
    assert_eq!(thread["samples"]["weightType"], "tracing-ms");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_last_calls_before_a_function_are_indented_by_depth() {
    let Some(folder) = Scratch::recorded("last") else { return };
    let text = folder.text(&["last", "-n", "4", "--before", "leaf", "rec"]);
    let calls: Vec<_> =
        text.lines().filter_map(|line| line.split_once(" ns  ")).map(|(_, call)| call).collect();
    assert_eq!(calls.len(), 4, "{text}");
    // The outermost `down` makes the last call of `leaf`, after the inner ones have returned.
    assert!(calls[3].trim_start().starts_with("down+") && calls[3].ends_with(" -> leaf"), "{text}");
    assert_eq!(calls[2].trim(), "return", "{text}");
    // The trace is named first. The outermost calls shown are not indented.
    assert!(text.starts_with(".: program (pid "), "{text}");
    assert!(calls.iter().any(|call| !call.starts_with(' ')), "{text}");
    let json = folder.text(&["last", "-n", "4", "--json", "rec"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["traces"][0]["last"].as_array().unwrap().len(), 4, "{json}");
    let output = folder.pugmark(&["last", "--before", "nobody", "rec"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--symbols FILE gives more names"));
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_calls_of_a_function_come_in_order_with_what_was_executed_before() {
    let Some(folder) = Scratch::recorded("made") else { return };
    let json: Value =
        serde_json::from_str(&folder.text(&["calls", "--json", "--of", "main", "rec"])).unwrap();
    let calls = json["calls"].as_array().unwrap();
    assert_eq!(calls.iter().map(|call| &call["name"]).collect::<Vec<_>>(), ["busy", "down"], "{json}");
    let at = |number: usize| calls[number]["at"].as_u64().unwrap();
    let busy = folder.text(&["calls", "--of", "busy", "rec"]);
    let lines: Vec<(u64, &str)> = busy
        .lines()
        .map(|line| line.trim().split_once("  ").unwrap())
        .map(|(number, name)| (number.parse().unwrap(), name))
        .collect();
    assert_eq!(lines.iter().map(|(_, name)| *name).collect::<Vec<_>>(), ["leaf"; 3], "{busy}");
    // The first of these calls is after the call of `busy`, the last is before that of `down`.
    assert!(at(0) < lines[0].0 && lines.is_sorted() && lines[2].0 < at(1), "{json} {busy}");
    // Two more parts of the same task, with the same trace, continue the count.
    let rec = folder.0.join("rec");
    let part: Value = serde_json::from_slice(&fs::read(rec.join("truth.json")).unwrap()).unwrap();
    fs::create_dir(rec.join("2")).unwrap();
    for name in ["trace.pt", "image.json", "code.bin", "truth.json"] {
        fs::copy(rec.join(name), rec.join("2").join(name)).unwrap();
    }
    let mut index: Value = serde_json::from_slice(&fs::read(rec.join("recording.json")).unwrap()).unwrap();
    let mut second = index["parts"][0].clone();
    second["dir"] = "2".into();
    index["parts"].as_array_mut().unwrap().extend([second.clone(), second]);
    let again = |index: &Value| -> [u64; 2] {
        fs::write(rec.join("recording.json"), index.to_string()).unwrap();
        let text = folder.text(&["calls", "--json", "--of", "main", "rec"]);
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["calls"].as_array().unwrap().len(), 6, "{json}");
        [2, 4].map(|call: usize| json["calls"][call]["at"].as_u64().unwrap())
    };
    let count = part["count"].as_u64().unwrap();
    assert_eq!(again(&index), [count + at(0), 2 * count + at(0)]);
    // In another task the count restarts.
    index["parts"][1]["task"] = 2.into();
    index["parts"][2]["task"] = 3.into();
    assert_eq!(again(&index), [at(0); 2]);
    let output = folder.pugmark(&["calls", "--of", "leaf", "rec"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--of leaf: no function of that name makes a call")
    );
}
