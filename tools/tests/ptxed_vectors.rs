//! ptxed against libipt's test vectors and against recorded runs of libipt's ptxed.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PTXED: &str = env!("CARGO_BIN_EXE_ptxed");

fn vectors() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors/ptt");
    if folder.exists() {
        return Some(folder);
    }
    println!("skipped: no vectors in {}", folder.display());
    None
}

fn ptxed(folder: &Path, args: &[&str]) -> Output {
    Command::new(PTXED).args(args).current_dir(folder).output().unwrap()
}

fn strings(values: &Value) -> Vec<&str> {
    values.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
}

/// Repeats a file of recorded runs: output, error output and exit status are the same to the byte.
fn repeat(file: &str, inputs: &str, least: usize) {
    let Some(folder) = vectors() else { return };
    let records = fs::read_to_string(folder.join("golden").join(file)).unwrap();
    let mut count = 0;
    for record in records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        // The wording of disassembly is not XED's.
        if record["tool"] != "ptxed" || record["class"] == "disasm" {
            continue;
        }
        let output = ptxed(&folder.join(inputs), &strings(&record["args"]));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(PTXED, "{prog}");
        let id = &record["id"];
        assert_eq!(text(&output.stdout), record["stdout"].as_str().unwrap(), "{id}");
        assert_eq!(text(&output.stderr), record["stderr"].as_str().unwrap(), "{id}");
        assert_eq!(output.status.code().map(i64::from), record["rc"].as_i64(), "{id}");
        count += 1;
    }
    println!("{file}: {count} runs");
    assert!(count >= least, "{file}: only {count} runs");
}

#[test]
fn repeats_recorded_runs_to_the_byte() {
    repeat("examples.jsonl", "examples", 600);
}

#[test]
fn repeats_recorded_command_line_errors_to_the_byte() {
    repeat("cli.jsonl", "examples", 12);
}

#[test]
fn repeats_recorded_runs_over_elf_files_to_the_byte() {
    repeat("elf.jsonl", "golden/elf", 60);
}

#[test]
fn shows_vectors_as_expected_but_for_white_space() {
    let Some(folder) = vectors() else { return };
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
        let spec = &vector["tools"]["ptxed"];
        if spec.is_null() {
            continue;
        }
        let expected = fs::read(folder.join(spec["expect"].as_str().unwrap())).unwrap();
        let cpus = strings(&vector["cpus"]);
        let cpus = if cpus.is_empty() { vec![None] } else { cpus.into_iter().map(Some).collect() };
        let runs = cpus.iter().flat_map(|cpu| [(cpu, "--insn-decoder"), (cpu, "--block-decoder")]);
        for (cpu, decoder) in runs {
            let code = format!("{}:{}", vector["bin"].as_str().unwrap(), vector["base"].as_str().unwrap());
            let mut args = vec![decoder.to_string(), "--raw".into(), code];
            args.extend(cpu.iter().flat_map(|cpu| ["--cpu".to_string(), (*cpu).into()]));
            args.extend(strings(&spec["options"]).into_iter().map(Into::into));
            args.extend(["--no-inst", "--check", "--pt"].map(String::from));
            args.push(vector["pt"].as_str().unwrap().into());
            for stream in vector["sideband"].as_array().unwrap() {
                let format = stream["format"].as_str().unwrap();
                for (key, value) in stream["options"].as_object().unwrap() {
                    args.extend([format!("--{format}:{key}"), value.as_str().unwrap().into()]);
                }
                let priority = stream["priority"].as_str().unwrap();
                args.extend([format!("--{format}:{priority}"), stream["file"].as_str().unwrap().into()]);
            }
            let output = ptxed(&folder, &args.iter().map(String::as_str).collect::<Vec<_>>());
            let (have, expected) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&expected));
            assert_eq!(normal(&have), normal(&expected), "{} {cpu:?} {decoder}", vector["name"]);
            count += 1;
        }
    }
    println!("{count} runs");
    assert!(count >= 80, "only {count} runs");
}
