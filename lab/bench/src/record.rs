//! Recordings of common programs, made by `pugmark record` and kept in the build folder.
//!
//! With QEMU's user-mode emulator this takes seconds. Without it the recorder single-steps 30 000 to 50 000
//! instructions a second on an idle machine. So the inputs are small, and tracing ends after a number of instructions;
//! the programs then continue untraced.

use super::load::{Load, recorded_load};
use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::cargo;
use pugmark_harness::images::target_folder;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// The inputs of the programs.
const INPUTS: [(&str, &str); 4] = [
    ("sample.py", include_str!("inputs/sample.py")),
    ("sample.sql", include_str!("inputs/sample.sql")),
    ("sample.c", include_str!("inputs/sample.c")),
    ("threads.c", include_str!("inputs/threads.c")),
];

/// `sample.sql` with more rows.
const LARGE_SQL: &str = "large.sql";

/// The input of the compressors: of about the size that can be traced to the end.
const TEXT: &str = "sample.txt";
const TEXT_BYTES: usize = 60_000;

/// The programs, with their arguments; `{NAME}` is the path of an input.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("python3", &["/usr/bin/python3", "-S", "{sample.py}"]),
    ("sqlite3", &["sqlite3", "-init", "{sample.sql}", ":memory:", ".quit"]),
    ("cc1", &["{cc1}", "-quiet", "-O2", "-o", "/dev/null", "{sample.c}"]),
    ("gzip", &["gzip", "-c", "{sample.txt}"]),
    ("bzip2", &["bzip2", "-c", "{sample.txt}"]),
];

/// The ways to trace a program: the suffix of the recording's name, the options, and the number of instructions. All
/// but the last compress returns; the last is for decoders that do not support return compression.
const VARIANTS: [(&str, &[&str], u32); 3] = [
    ("", &[], 12_000_000),
    ("-timing", &["--tsc", "--mtc=3", "--cyc=0"], 5_000_000),
    ("-returns", &["--no-ret-compression"], 3_000_000),
];

/// perf's default: a PSB each 2^(11+3) bytes.
const PSB: &str = "--psb=3";

/// Returns the names of all recordings.
pub(super) fn names() -> impl Iterator<Item = String> {
    PROGRAMS.iter().flat_map(|(program, _)| {
        // One program is enough to see the effect of a trace without return compression.
        let variants = VARIANTS.iter().filter(|(suffix, ..)| *suffix != "-returns" || *program == "python3");
        variants.map(move |(suffix, ..)| format!("{program}{suffix}"))
    })
}

/// Returns the recordings whose names contain one of `only`, or all; makes those that are missing.
///
/// With `again` all of them are made anew.
pub(super) fn recordings(only: &[String], again: bool) -> Result<Vec<Load>> {
    let folder = target_folder().join("bench");
    let wanted = |name: &String| only.is_empty() || only.iter().any(|part| name.contains(part));
    let names: Vec<_> = names().filter(wanted).collect();
    ensure!(!names.is_empty(), "no recording is called that; there are {}", all_names());
    let missing: Vec<_> =
        names.iter().filter(|name| again || !folder.join(name).join("trace.pt").exists()).collect();
    if !missing.is_empty() {
        make(&folder, &missing)?;
    }
    let load = |name: &String| {
        let dir = folder.join(name);
        let timing = name.ends_with("-timing");
        recorded_load(name, &dir.join("trace.pt"), &dir.join("image.json"), timing)
    };
    names.iter().map(load).collect()
}

fn all_names() -> String {
    names().collect::<Vec<_>>().join(", ")
}

fn make(folder: &Path, names: &[&String]) -> Result<()> {
    let limits: u32 = names
        .iter()
        .filter_map(|name| program_and_variant(name))
        .map(|(_, (_, _, limit))| limit / 1000)
        .sum();
    println!(
        "recording {}: {} million instructions, which takes {} to {} minutes without QEMU's user-mode emulator",
        names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
        limits / 1000,
        limits.div_ceil(50 * 60),
        limits.div_ceil(20 * 60)
    );
    cargo(&["build", "--release", "--quiet", "-p", "pugmark-tools", "--bin", "pugmark"], &[])?;
    let inputs = folder.join("inputs");
    write_inputs(&inputs)?;
    for name in names {
        let begin = Instant::now();
        record(folder, &inputs, name)?;
        println!("  {name}: {:.0} s", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Writes the inputs of all programs into a folder.
pub(super) fn write_inputs(inputs: &Path) -> Result<()> {
    fs::create_dir_all(inputs)?;
    for (name, contents) in INPUTS {
        fs::write(inputs.join(name), contents)?;
    }
    fs::write(inputs.join(TEXT), text())?;
    let (_, sql) = INPUTS[1];
    fs::write(inputs.join(LARGE_SQL), sql.replace("i < 4000", "i < 60000"))?;
    Ok(())
}

type Program = (&'static str, &'static [&'static str]);
type Variant = (&'static str, &'static [&'static str], u32);

/// Returns the program and the variant of a recording.
fn program_and_variant(name: &str) -> Option<(Program, Variant)> {
    let program = PROGRAMS.into_iter().find(|(program, _)| name.starts_with(program))?;
    let variant = VARIANTS.into_iter().find(|(suffix, ..)| name.get(program.0.len()..) == Some(*suffix))?;
    Some((program, variant))
}

fn record(folder: &Path, inputs: &Path, name: &str) -> Result<()> {
    let ((_, words), (_, flags, limit)) = program_and_variant(name).context("no such recording")?;
    let words: Vec<_> = words.iter().map(|word| argument(word, inputs)).collect::<Result<_>>()?;
    // An interrupted recording is not used.
    let unfinished = folder.join("unfinished");
    let output = Command::new(target_folder().join("release/pugmark"))
        .args(["record", PSB, "--limit", &limit.to_string(), "-o"])
        .arg(&unfinished)
        .args(flags)
        .arg("--")
        .args(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .context("cannot start pugmark record")?;
    ensure!(
        unfinished.join("trace.pt").exists(),
        "{name} was not recorded: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let finished = folder.join(name);
    if finished.exists() {
        fs::remove_dir_all(&finished)?;
    }
    fs::rename(unfinished, finished)?;
    Ok(())
}

/// Returns the path that an argument stands for.
pub(super) fn argument(word: &str, inputs: &Path) -> Result<PathBuf> {
    match word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
        Some("cc1") => {
            let output = Command::new("gcc").arg("-print-prog-name=cc1").output();
            let output = output.context("gcc is not installed, whose compiler is recorded")?;
            Ok(String::from_utf8(output.stdout)?.trim().into())
        }
        Some(input) => Ok(inputs.join(input)),
        None => Ok(word.into()),
    }
}

/// Returns words in a random order.
fn text() -> String {
    const WORDS: [&str; 16] = [
        "the",
        "a",
        "packet",
        "trace",
        "branch",
        "target",
        "of",
        "processor",
        "buffer",
        "when",
        "reads",
        "each",
        "byte",
        "is",
        "and",
        "memory",
    ];
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        text += WORDS[random.usize(..WORDS.len())];
        if random.u8(..5) == 0 {
            text += &random.u16(..1000).to_string();
        }
        text.push(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recording_has_a_program_and_a_variant() {
        let names: Vec<_> = names().collect();
        assert_eq!(names.len(), 11);
        for name in names {
            let ((program, words), (suffix, ..)) =
                program_and_variant(&name).expect("a program and a variant");
            assert_eq!(format!("{program}{suffix}"), name);
            for input in words.iter().filter(|word| word.starts_with('{') && **word != "{cc1}") {
                let input = input.trim_matches(['{', '}']);
                assert!(input == TEXT || INPUTS.iter().any(|(name, _)| *name == input), "{input}");
            }
        }
        assert!(program_and_variant("python4").is_none() && program_and_variant("gzip-something").is_none());
    }
}
