//! `pugmark calls --stats`, `--longest` and `--callers`, held against Perfetto's trace and callgrind.

use super::{Scratch, perfettos_calls};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, process::Command};

fn measured(folder: &Scratch, of: &str, options: &[&str]) -> Value {
    let text = folder.text(&[&["calls", "--json", "--of", of], options, &["rec"]].concat());
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_calls_of_a_function_took_as_long_as_perfettos_trace_has_them() {
    let Some(folder) = Scratch::recorded("measured") else { return };
    folder.text(&["timeline", "-f", "perfetto", "-o", "out", "rec"]);
    let all = perfettos_calls(&fs::read(folder.0.join("out")).unwrap());
    let first = all.iter().map(|(from, ..)| *from).min().unwrap();
    for function in ["leaf", "down", "main"] {
        let of = all.iter().filter(|(.., path)| path.rsplit('/').next() == Some(function));
        let mut calls: Vec<(u64, u64)> = of.map(|(from, to, _)| (to - from, from - first)).collect();
        calls.sort_unstable();
        let times: Vec<u64> = calls.iter().map(|(took, _)| *took).collect();
        let found = measured(&folder, function, &["--stats", "--longest", "2"]);
        assert_eq!((&found["calls"], &found["unit"]), (&json!(calls.len()), &json!("ns")), "{function}");
        let expected = json!({
            "min": times[0],
            "median": times[times.len().div_ceil(2) - 1],
            "p99": times[times.len() - 1],
            "max": times[times.len() - 1],
            "total": times.iter().sum::<u64>(),
        });
        assert_eq!(found["ns"], expected, "{function}");
        let longest = found["longest"].as_array().unwrap();
        assert_eq!(longest.len(), calls.len().min(2), "{function}");
        for call in longest {
            let call = ["time", "begin"].map(|name| call[name].as_u64().unwrap());
            assert!(calls.contains(&(call[0], call[1])) && call[0] >= times[times.len() - longest.len()]);
        }
    }
    // A page's address takes the place of a call as it is printed.
    let text = folder.text(&["calls", "--longest", "1", "--of", "main", "rec"]);
    let main = all.iter().find(|(.., path)| path.ends_with("/main")).unwrap();
    assert!(text.contains(&format!(" #{}-{} ", main.0 - first, main.1 - first)), "{text}");
    let output = folder.pugmark(&["calls", "--stats", "--of", "nobody", "rec"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--of nobody: no function of that name was called")
    );
}

#[test]
fn a_function_has_the_callers_that_callgrind_counts() {
    let Some(folder) = Scratch::recorded("callers") else { return };
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=callgrind", "./program"]).current_dir(&folder.0);
    if valgrind.output().is_err() {
        return println!("skipped: valgrind is not installed");
    }
    let counted = callgrinds_calls(&fs::read_to_string(folder.0.join("callgrind")).unwrap());
    for function in ["leaf", "busy", "down"] {
        let found = measured(&folder, function, &["--callers"]);
        let mut callers = BTreeMap::<String, u64>::new();
        for caller in found["callers"].as_array().unwrap() {
            // Each place in it by itself.
            let (name, _) = caller["caller"].as_str().unwrap().split_once("+0x").unwrap();
            *callers.entry(name.into()).or_default() += caller["calls"].as_u64().unwrap();
        }
        let of = counted.iter().filter(|((_, to), _)| to == function);
        let expected: BTreeMap<_, _> = of.map(|((from, _), calls)| (from.clone(), *calls)).collect();
        assert!(!expected.is_empty(), "{counted:?}");
        assert_eq!(callers, expected, "{function}");
    }
}

/// Returns the number of calls by caller and function in a file of callgrind. A call of a function by itself has the
/// function's name with its depth.
fn callgrinds_calls(file: &str) -> BTreeMap<(String, String), u64> {
    let mut names = BTreeMap::<String, String>::new();
    let mut name = |text: &str| {
        let (id, rest) = text.split_once(')').unwrap();
        let known = names.entry(id.into()).or_default();
        if !rest.is_empty() {
            *known = rest.trim().split('\'').next().unwrap().into();
        }
        known.clone()
    };
    let (mut calls, mut from, mut to) = (BTreeMap::new(), String::new(), String::new());
    for line in file.lines() {
        match line.split_once('=') {
            Some(("fn", text)) => from = name(text),
            Some(("cfn", text)) => to = name(text),
            Some(("calls", text)) => {
                let count: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
                *calls.entry((from.clone(), to.clone())).or_default() += count;
            }
            _ => {}
        }
    }
    calls
}
