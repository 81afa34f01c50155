//! Checks the GitHub action: its inputs, and what its steps do with them.

use pugmark_harness::images::workspace;
use pugmark_harness::scratch::Scratch;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Returns the scripts of the action's steps: the text that is deeper than `run: |`.
fn scripts(action: &str) -> Vec<String> {
    let mut scripts: Vec<String> = vec![];
    let mut depth = None;
    for line in action.lines() {
        let own = line.len() - line.trim_start().len();
        if line.trim() == "run: |" {
            scripts.push(String::new());
            depth = Some(own + 2);
        } else if let (Some(depth), Some(script)) = (depth.filter(|depth| own >= *depth), scripts.last_mut())
        {
            script.push_str(&line[depth..]);
            script.push('\n');
        } else {
            depth = None;
        }
    }
    scripts
}

/// Returns the words that follow `mark` in a text, each up to the first character that is in no name.
fn names<'a>(text: &'a str, mark: &str) -> BTreeSet<&'a str> {
    let name =
        |rest: &'a str| rest.split(|letter: char| !letter.is_ascii_lowercase()).next().unwrap_or_default();
    text.split(mark).skip(1).map(name).collect()
}

#[test]
fn each_input_is_declared_and_used() {
    let action = fs::read_to_string(workspace().join("action.yml")).unwrap();
    let (inputs, runs) = action.split_once("\nruns:\n").unwrap();
    let declared: BTreeSet<&str> = inputs
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.trim().trim_end_matches(':'))
        .collect();
    assert_eq!(declared, names(runs, "${{ inputs."));
    assert!(declared.contains("boot"));
}

#[test]
fn a_command_reaches_pugmark_with_its_files_and_arguments_as_a_shell_reads_them() {
    let action = fs::read_to_string(workspace().join("action.yml")).unwrap();
    let scripts = scripts(&action);
    let [install, boot] = &scripts[..] else { panic!("{scripts:?}") };
    let scratch = Scratch::new().unwrap();
    let program = scratch.file("pugmark");
    fs::write(&program, "#!/bin/sh\nprintf '%s|' \"$@\"\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", scratch.folder().display(), std::env::var("PATH").unwrap());
    let bash = |script: &str, [run, with, boot]: [&str; 3]| {
        let mut command = Command::new("bash");
        // As GitHub starts the shell of a step.
        command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
        command.envs([
            ("RUN", run),
            ("WITH", with),
            ("BOOT", boot),
            ("PROFILE", "icelake"),
            ("LINUX", "trixie-cloud"),
        ]);
        command.envs([("TIMEOUT", "9"), ("OUT", "out"), ("PATH", &path)]);
        let output = command.current_dir(scratch.folder()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let start = "boot|--profile|icelake|--timeout|9|";
    for (inputs, status, arguments) in [
        (
            ["./test *.c && echo \"a b\"", "data\n./x:/y z\n\n", ""],
            0,
            "--linux|trixie-cloud|--out|out|--with|data|--with|./x:/y z|--|sh|-c|./test *.c && echo \"a b\"|sh|\
             ./test|*.c|&&|echo|\"a|b\"|",
        ),
        (["", "", "--kernel k --append 'a=1 b'"], 0, "--kernel|k|--append|a=1 b|"),
        (["", "", ""], 2, ""),
    ] {
        let expected = if arguments.is_empty() { String::new() } else { format!("{start}{arguments}") };
        assert_eq!(bash(boot, inputs), (Some(status), expected), "{inputs:?}");
    }
    assert!(scratch.file("out").is_dir());
    assert_eq!(bash(&format!("exit 0\n{install}"), [""; 3]).0, Some(0));
}
