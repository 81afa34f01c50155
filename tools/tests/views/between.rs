//! `--between`: a part of a recording, by times, calls and PTWRITEs, in all commands that have the option. Two parts
//! that meet must have everything once, and callgrind must count as many instructions in a call.

use super::Recorded;
use serde_json::Value;
use std::{collections::BTreeMap, fs};

/// `work` is called twice, and calls `leaf`; a thread of its own calls `other`.
const PROGRAM: &str = r"
#include <pthread.h>
#define ALONE __attribute__((noipa))
ALONE int leaf(int x) { return x * 3 + 1; }
ALONE int work(int n) { int s = 0; for (int i = 0; i < n; i++) s += leaf(i); return s; }
ALONE int after(int x) { return x ^ 1; }
ALONE void *other(void *x) { work(4); return x; }
int main(void) {
    pthread_t thread;
    volatile int sum = work(50);
    sum += after(sum) + work(7);
    pthread_create(&thread, 0, other, 0);
    pthread_join(thread, 0);
    return 0;
}";

fn recorded(options: &[&str]) -> Recorded {
    Recorded::new(PROGRAM, &["-O1", "-pthread"], options)
}

impl Recorded {
    /// Returns what a command prints of a part of the recording, as JSON.
    fn json(&self, command: &[&str], part: &str) -> Value {
        let text = self.pugmark(&[command, &["--json", "--between", part, "rec"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the number of the first thread.
    fn tid(&self) -> String {
        self.pugmark(&["script", "-F", "tid", "rec"]).lines().next().unwrap().trim().to_owned()
    }
}

/// Returns the counts of the rows of a report, by their function.
fn counts(report: &Value) -> BTreeMap<String, [u64; 3]> {
    let mut counts = BTreeMap::<_, [u64; 3]>::new();
    for row in report["rows"].as_array().unwrap() {
        let sums = counts.entry(row["function"].as_str().unwrap().to_owned()).or_default();
        for (sum, column) in sums.iter_mut().zip(["instructions", "branches", "time"]) {
            *sum += row[column].as_u64().unwrap_or_default();
        }
    }
    counts
}

#[test]
fn the_parts_before_and_after_a_time_have_everything_once() {
    let recorded = recorded(&["--tsc", "--mtc", "--cyc"]);
    let times = |part: &str| recorded.pugmark(&["script", "-F", "tid,time,ip", "--between", part, "rec"]);
    let time = |line: &str| -> f64 {
        line.split_whitespace().find_map(|word| word.strip_suffix(':')).unwrap().parse().unwrap()
    };
    let all = times(",");
    let line = all.lines().nth(all.lines().count() / 3).unwrap();
    let at = time(line);
    let (before, after) = (times(&format!(",{at:.9}")), times(&format!("{at:.9},")));
    let (earlier, later): (Vec<_>, Vec<_>) = all.lines().partition(|line| time(line) < at);
    assert!(earlier.len() > 1000 && later.len() > 1000);
    assert_eq!(before.lines().collect::<Vec<_>>(), earlier);
    assert_eq!(after.lines().collect::<Vec<_>>(), later);
    let (status, text) = recorded.refused(&["last", "--between", "100s,", "rec"]);
    assert!(status == Some(1) && text.contains("nothing is in that part"), "{text}");
    // The same time in another unit.
    assert_eq!(times(&format!("{:.0}ns,", at * 1e9)), after);
    // Counts and time of functions, also where calls are followed.
    for options in [&["report", "--time"][..], &["report", "--time", "--children"]] {
        let part = |part: &str| recorded.json(&[options, &["--by", "function"]].concat(), part);
        let (before, after) = (part(&format!(",{at:.9}")), part(&format!("{at:.9},")));
        assert_eq!(before["instructions"], earlier.len() as u64);
        assert_eq!(after["instructions"], later.len() as u64);
        let mut sum = counts(&before);
        for (function, counts) in counts(&after) {
            let sums = sum.entry(function).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        assert_eq!(sum, counts(&part(",")), "{options:?}");
    }
}

#[test]
fn a_call_is_the_part_from_its_first_instruction_to_its_return() {
    let recorded = recorded(&[]);
    let instructions = |part: &str| recorded.json(&["report"], part)["instructions"].as_u64().unwrap();
    let listed = |part: &str| recorded.pugmark(&["script", "-F", "sym", "--between", part, "rec"]);
    // Both threads: each has its own first call.
    let all: Vec<_> =
        recorded.pugmark(&["script", "-F", "tid,sym", "rec"]).lines().map(str::to_owned).collect();
    let mut first = BTreeMap::<&str, (usize, bool)>::new();
    for line in &all {
        let (tid, symbol) = line.trim().split_once(' ').unwrap();
        let (count, is_over) = first.entry(tid).or_default();
        let is_in = matches!(symbol.trim(), "work" | "leaf");
        *is_over |= *count > 0 && !is_in;
        *count += usize::from(is_in && !*is_over);
    }
    let expected: usize = first.values().map(|(count, _)| count).sum();
    assert_eq!((first.len(), listed("work").lines().count()), (2, expected));
    assert_eq!(instructions("work"), expected as u64);
    // From the first call of one function to that of another: the first call of `work`, and the way to `after`.
    let before_after = listed("work,after");
    assert_eq!(before_after.lines().filter(|symbol| symbol.trim() == "leaf").count(), 50 * 2 + 4 * 2);
    // All who have called it are there, though they were called before.
    let stacks = recorded.pugmark(&["flamegraph", "-f", "folded", "--between", "work", "rec"]);
    assert!(stacks.lines().any(|stack| stack.contains(";main;work;leaf ")), "{stacks}");
    let sum: u64 = stacks.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, expected as u64);
    // Other commands.
    assert_eq!(recorded.json(&["calls", "--of", "work"], "work")["calls"].as_array().unwrap().len(), 54);
    assert_eq!(recorded.json(&["calls", "--stats", "--of", "leaf"], "work")["calls"], 54);
    let edges = recorded.json(&["coverage", "-f", "edges"], "work");
    assert!(!edges["edges"].as_array().unwrap().is_empty(), "{edges}");
    let last = recorded.pugmark(&["last", "-n", "1", "--between", "work,after", "rec"]);
    assert!(last.contains("it ended at main+"), "{last}");
    let drawn =
        recorded.pugmark(&["timeline", "-f", "firefox", "-o", "x.json", "--between", "work,after", "rec"]);
    assert!(drawn.ends_with(" of 2 threads\n"), "{drawn}");
    callgrind_agrees(&recorded);
}

/// Checks the instructions of the calls of `after`, which is called once.
fn callgrind_agrees(recorded: &Recorded) {
    let arguments = ["--tool=callgrind", "--callgrind-out-file=out", "--toggle-collect=after", "./program"];
    let Some(output) = recorded.output("valgrind", &arguments) else {
        return println!("skipped: valgrind is not installed");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = fs::read_to_string(recorded.0.file("out")).unwrap();
    let total = profile.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    let ours = recorded.json(&["report"], "after")["instructions"].as_u64();
    assert_eq!(ours, total.trim().parse().ok());
}

#[test]
fn the_threads_one_by_one_have_everything_once() {
    let recorded = recorded(&[]);
    let tids: std::collections::BTreeSet<_> = recorded
        .pugmark(&["script", "-F", "tid", "rec"])
        .lines()
        .map(|line| line.trim().to_owned())
        .collect();
    assert_eq!(tids.len(), 2);
    let counts_of = |more: &[&str]| {
        let text = recorded.pugmark(&[&["report", "--json"], more, &["rec"]].concat());
        counts(&serde_json::from_str(&text).unwrap())
    };
    let mut sums = BTreeMap::<String, [u64; 3]>::new();
    for tid in &tids {
        for (function, counts) in counts_of(&["--tid", tid]) {
            let sum = sums.entry(function).or_default();
            (0..3).for_each(|column| sum[column] += counts[column]);
        }
    }
    assert_eq!(sums, counts_of(&[]));
    assert!(sums.contains_key("other"));
    // Each view has the option; a thread that is not there is an error that lists those that are.
    let own = recorded.tid();
    for (number, view) in [
        &["report"][..],
        &["last"],
        &["flamegraph", "-f", "folded"],
        &["calls", "--of", "work"],
        &["annotate", "work"],
        &["coverage", "-f", "edges"],
        &["timeline", "-o", "x.html"],
        &["script"],
    ]
    .iter()
    .enumerate()
    {
        recorded.pugmark(&[view, &["--tid", &own, "rec"][..]].concat());
        let (status, text) = recorded.refused(&[view, &["--tid", "1", "rec"][..]].concat());
        assert!(
            status == Some(1) && text.contains("--tid 1: there is no such thread among: "),
            "{number}: {text}"
        );
    }
}

#[test]
fn instructions_are_numbers_where_there_is_no_time() {
    let recorded = recorded(&[]);
    let lines = |part: &str| {
        recorded.pugmark(&["script", "-F", "ip", "--tid", &recorded.tid(), "--between", part, "rec"])
    };
    let all = lines(",");
    let expected: Vec<_> = all.lines().skip(100).take(23).collect();
    assert_eq!(lines("100,123").lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_part_that_is_not_there_is_refused_with_similar_names() {
    let recorded = recorded(&[]);
    for (command, part, status, words) in [
        (
            &["report"][..],
            "wrok",
            1,
            "--between wrok: no function of that name was called there; similar names: work",
        ),
        (
            &["last"],
            "work,aftr",
            1,
            "--between aftr: no function of that name was called there; similar names: after",
        ),
        (&["script"], "ptw:0x2a,", 1, "--between ptw:0x2a: no PTWRITE has written that there"),
        (&["calls", "--of", "main"], "1ms,", 1, "--between 1ms: the trace has no time in seconds"),
        (&["report"], "7,3", 1, "--between: nothing is in that part"),
        (&["last"], ",0", 1, "--between: nothing is in that part"),
        (&["diff", "rec"], "after,3", 1, "--between after: no function of that name was called there"),
        (&["diff", "rec"], "5,5", 1, "--between: nothing is in that part"),
        (&["coverage", "-f", "afl"], "work", 1, "--between: a map of edges is made without"),
        (&["timeline", "-o", "x"], "7", 2, "write two times, functions or ptw:VALUE"),
        (&["decode"], "work", 2, "unexpected argument '--between'"),
        (&["bench"], "work", 2, "unexpected argument '--between'"),
    ] {
        let (code, text) = recorded.refused(&[command, &["--between", part, "rec"]].concat());
        assert!(code == Some(status) && text.contains(words), "{command:?} {part}: {code:?} {text}");
    }
}

#[test]
fn a_part_from_one_written_value_to_another_begins_and_ends_after_the_instructions_that_write_them() {
    use pugmark_decoder_core::packet::{Encoder, Ip, ModeExec, Packet, Ptw, PtwPayload};
    let folder = Recorded(pugmark_harness::scratch::Scratch::new().unwrap());
    // NOP, PTWRITE EAX, two NOPs, PTWRITE EAX, NOP, JMP RAX
    let code =
        [&[0x90][..], b"\xf3\x0f\xae\xe0", &[0x90; 2], b"\xf3\x0f\xae\xe0", &[0x90], b"\xff\xe0"].concat();
    fs::write(folder.0.file("code"), code).unwrap();
    let mut bytes = [0; 128];
    let mut trace = Encoder::new(&mut bytes);
    let written = |value| Packet::Ptw(Ptw { ip: false, payload: PtwPayload::Four(value) });
    for packet in [
        Packet::Psb,
        Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }),
        Packet::Fup(Ip::SignExtend48(0x1000)),
        Packet::PsbEnd,
        written(0x10),
        written(0x20),
        Packet::TipPgd(Ip::Suppressed),
    ] {
        trace.emit(&packet).unwrap();
    }
    fs::write(folder.0.file("trace.pt"), trace.trace()).unwrap();
    for (part, expected) in [
        ("ptw:0x10,ptw:0x20", &[0x1005, 0x1006, 0x1007][..]),
        ("ptw:0x20,", &[0x100b, 0x100c]),
        (",ptw:0x10", &[0x1000, 0x1001]),
        ("ptw:0x10,", &[0x1005, 0x1006, 0x1007, 0x100b, 0x100c]),
    ] {
        let text =
            folder.pugmark(&["script", "-F", "ip", "--between", part, "--raw", "code:0x1000", "trace.pt"]);
        let found: Vec<_> = text.lines().map(|line| u64::from_str_radix(line.trim(), 16).unwrap()).collect();
        assert_eq!(found, expected, "{part}");
    }
}
