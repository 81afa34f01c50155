//! Compares the programs with libipt's test vectors and with recorded runs of libipt's programs.

use crate::run::Tool;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/ptt")
}

fn strings(values: &Value) -> Vec<&str> {
    values.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
}

/// Repeats a file of recorded runs: output, error output and exit status must be equal byte for byte.
fn repeat(tool: Tool, file: &str, inputs: &str, least: usize) {
    let folder = vectors();
    let records = fs::read_to_string(folder.join("golden").join(file)).unwrap();
    let mut count = 0;
    for record in records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        // The wording of disassembly differs from XED's.
        if record["tool"] != tool.name() || record["class"] == "disasm" {
            continue;
        }
        let ran = tool.run(&folder.join(inputs), &strings(&record["args"]));
        let id = &record["id"];
        assert_eq!(ran.out, record["stdout"].as_str().unwrap(), "{id}");
        assert_eq!(ran.err, record["stderr"].as_str().unwrap(), "{id}");
        assert_eq!(ran.status.map(i64::from), record["rc"].as_i64(), "{id}");
        count += 1;
    }
    println!("{file}: {count} runs");
    assert!(count >= least, "{file}: only {count} runs");
}

#[test]
fn ptdump_repeats_recorded_runs_to_the_byte() {
    repeat(Tool::Ptdump, "examples.jsonl", "examples", 500);
}

#[test]
fn ptdump_repeats_recorded_command_line_errors_to_the_byte() {
    repeat(Tool::Ptdump, "cli.jsonl", "examples", 20);
}

#[test]
fn ptxed_repeats_recorded_runs_to_the_byte() {
    repeat(Tool::Ptxed, "examples.jsonl", "examples", 600);
}

#[test]
fn ptxed_repeats_recorded_command_line_errors_to_the_byte() {
    repeat(Tool::Ptxed, "cli.jsonl", "examples", 12);
}

#[test]
fn ptxed_repeats_recorded_runs_over_elf_files_to_the_byte() {
    repeat(Tool::Ptxed, "elf.jsonl", "golden/elf", 60);
}

/// Returns the arguments of each run of a vector.
fn runs(vector: &Value, tool: Tool) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let mut options: Vec<String> =
        strings(&vector["tools"][tool.name()]["options"]).into_iter().map(Into::into).collect();
    let mut records = vec![];
    for stream in vector["sideband"].as_array().unwrap() {
        let format = text(&stream["format"]);
        for (key, value) in stream["options"].as_object().unwrap() {
            records.extend([format!("--{format}:{key}"), text(value)]);
        }
        records.extend([format!("--{format}:{}", text(&stream["priority"])), text(&stream["file"])]);
    }
    let decoders: &[&str] = match tool {
        Tool::Ptdump => {
            options.extend(records);
            options.push(text(&vector["pt"]));
            &[]
        }
        Tool::Ptxed => {
            let code = format!("{}:{}", text(&vector["bin"]), text(&vector["base"]));
            let code = ["--raw".into(), code];
            let trace = ["--no-inst".into(), "--check".into(), "--pt".into(), text(&vector["pt"])];
            options = code.into_iter().chain(options).chain(trace).chain(records).collect();
            &["--insn-decoder", "--block-decoder"]
        }
    };
    let cpus = strings(&vector["cpus"]);
    let cpus =
        if cpus.is_empty() { vec![vec![]] } else { cpus.iter().map(|cpu| vec!["--cpu", cpu]).collect() };
    let decoders =
        if decoders.is_empty() { vec![vec![]] } else { decoders.iter().map(|one| vec![*one]).collect() };
    let heads = cpus.iter().flat_map(|cpu| decoders.iter().map(move |decoder| [&cpu[..], decoder].concat()));
    heads.map(|head| head.into_iter().map(Into::into).chain(options.clone()).collect()).collect()
}

fn shows_vectors(tool: Tool, least: usize) {
    let folder = vectors();
    let folder = folder.join("examples");
    let normal = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(Into::into).collect()).collect()
    };
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().is_some_and(|path| path.ends_with(".cmd.json")) {
            continue;
        }
        let vector: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let Some(expected) = vector["tools"][tool.name()]["expect"].as_str() else { continue };
        let expected = fs::read(folder.join(expected)).unwrap();
        for args in runs(&vector, tool) {
            let ran = tool.run(&folder, &args.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(normal(&ran.out), normal(&String::from_utf8_lossy(&expected)), "{args:?}");
            count += 1;
        }
    }
    println!("{count} runs");
    assert!(count >= least, "only {count} runs");
}

#[test]
fn ptdump_shows_vectors_as_expected_but_for_white_space() {
    shows_vectors(Tool::Ptdump, 50);
}

#[test]
fn ptxed_shows_vectors_as_expected_but_for_white_space() {
    shows_vectors(Tool::Ptxed, 80);
}
