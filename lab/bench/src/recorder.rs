//! `cargo xtask bench --recorder`: the slowdown of programs while `pugmark record` records them.
//!
//! Each program runs alone and recorded, in turns, and the fastest run of each counts, in real time: the emulator and
//! the recorder work at the same time. The decoded recording must match the truth log.

use super::record::{argument, write_inputs};
use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::cargo;
use pugmark_harness::images::target_folder;
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// The number of runs of each program, alone and recorded.
const RUNS: u32 = 3;

/// The programs, with their arguments; `{NAME}` is the path of an input.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("python3", &["/usr/bin/python3", "-S", "{sample.py}"]),
    ("sqlite3", &["sqlite3", "-init", "{large.sql}", ":memory:", ".quit"]),
    ("cc1", &["{cc1}", "-quiet", "-O2", "-o", "/dev/null", "{sample.c}"]),
    ("four threads", &["{threads}"]),
];

/// The measurements of a program.
struct RecorderSpeed {
    alone: Duration,
    recorded: Duration,
    instructions: u64,
    bytes: u64,
}

impl RecorderSpeed {
    /// Returns the slowdown.
    fn ratio(&self) -> f64 {
        self.recorded.as_secs_f64() / self.alone.as_secs_f64()
    }
}

/// Measures all programs and prints a table.
pub(super) fn measure() -> Result<()> {
    cargo(&["build", "--release", "--quiet", "-p", "pugmark-tools", "--bin", "pugmark"], &[])?;
    let folder = target_folder().join("bench");
    let inputs = folder.join("inputs");
    write_inputs(&inputs)?;
    let built = Command::new("gcc")
        .args(["-O2", "-pthread", "-o"])
        .args([inputs.join("threads"), inputs.join("threads.c")])
        .status()
        .context("gcc is not installed, which builds a program to record")?;
    ensure!(built.success(), "gcc cannot build threads.c");
    println!("| program | alone | recorded | times as long | instructions | a second | bytes of trace |");
    println!("|---|---|---|---|---|---|---|");
    for (name, words) in PROGRAMS {
        let words: Vec<OsString> =
            words.iter().map(|word| Ok(argument(word, &inputs)?.into())).collect::<Result<_>>()?;
        let speed = speed(name, &words, &folder.join("recorder"))?;
        println!(
            "| {name} | {:.3} s | {:.2} s | {:.0} | {} | {:.0} million | {} |",
            speed.alone.as_secs_f64(),
            speed.recorded.as_secs_f64(),
            speed.ratio(),
            speed.instructions,
            speed.instructions as f64 / speed.recorded.as_secs_f64() / 1e6,
            speed.bytes
        );
    }
    Ok(())
}

fn speed(name: &str, words: &[OsString], out: &Path) -> Result<RecorderSpeed> {
    let pugmark = target_folder().join("release/pugmark");
    let (mut alone, mut recorded) = (Duration::MAX, Duration::MAX);
    for _ in 0..RUNS {
        alone = alone.min(time(Command::new(&words[0]).args(&words[1..]))?);
        let mut command = Command::new(&pugmark);
        command.args(["record", "--engine", "emulator", "-o"]).arg(out).arg("--").args(words);
        recorded = recorded.min(time(&mut command)?);
    }
    let decoded = Command::new(&pugmark).args(["decode", "--check"]).arg(out).output()?;
    ensure!(
        decoded.status.success(),
        "{name} is not decoded to the truth: {}{}",
        String::from_utf8_lossy(&decoded.stdout),
        String::from_utf8_lossy(&decoded.stderr)
    );
    let index: Value = serde_json::from_slice(&fs::read(out.join("recording.json"))?)?;
    let parts = index["parts"].as_array().context("no parts in recording.json")?;
    let sum = |field: &str| parts.iter().filter_map(|part| part[field].as_u64()).sum();
    Ok(RecorderSpeed { alone, recorded, instructions: sum("count"), bytes: sum("bytes") })
}

/// Returns the real time of a command, which must succeed.
fn time(command: &mut Command) -> Result<Duration> {
    // Without this Python's string hashes, and so its execution, differ in each run.
    command.env("PYTHONHASHSEED", "0").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begin = Instant::now();
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let time = begin.elapsed();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {error}");
    Ok(time)
}
