//! `pugmark boot --linux`: a command of the host in a virtual Linux.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use anyhow::{Context, Result, ensure};
use pugmark_harness::{images::build_monitor, linux::packages, scratch::Scratch, truth::hash};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Returns the command, with a cache that has what tests have downloaded; `None` if that is missing.
fn pugmark(scratch: &Scratch, arguments: &[&str]) -> Option<Command> {
    let packages = packages::packages(true);
    let (kernel, busybox) = (packages.kernel(), packages.busybox());
    let Some(kernel) = kernel.as_ref().ok().filter(|_| busybox.is_ok()) else {
        println!("skipped: {kernel:?}, {busybox:?}");
        return None;
    };
    let cache = scratch.file("cache");
    if !cache.exists() {
        fs::create_dir_all(cache.join("pugmark")).unwrap();
        symlink(&packages.folder, cache.join("pugmark/linux")).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command.args(["boot", "--linux"]).arg(kernel).args(arguments);
    command.current_dir(scratch.folder()).env("PUGMARK_MONITOR", build_monitor().unwrap());
    command.env("XDG_CACHE_HOME", &cache).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_command_runs_with_its_files_live_and_hands_its_status_on() -> Result<()> {
    let scratch = Scratch::new()?;
    let folder = scratch.file("it's a, folder");
    fs::create_dir(&folder)?;
    fs::write(folder.join("data"), "of the host\n")?;
    fs::write(
        folder.join("run"),
        "#!/bin/sh\necho first; read -r line <data; echo \"$line\" >/out/a/b; sleep 10; kill -9 $$\n",
    )?;
    Command::new("chmod").arg("+x").arg(folder.join("run")).status()?;
    fs::create_dir(scratch.file("out"))?;
    let words = [
        "--out",
        "../out",
        "--",
        "sh",
        "-c",
        "mkdir /out/a && ./run data; echo status $? >&2; exit 37",
        "run",
        "data",
    ];
    let Some(mut command) = pugmark(&scratch, &words) else { return Ok(()) };
    let mut child = command.current_dir(&folder).spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("an output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    assert_eq!(line, "first\n");
    // The command sleeps for ten seconds of the guest's time.
    assert!(child.try_wait()?.is_none());
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    let ended = child.wait_with_output()?;
    assert_eq!((rest.as_str(), ended.status.code()), ("Killed\nstatus 137\n", Some(37)), "{}", said(&ended));
    assert_eq!(fs::read_to_string(scratch.file("out/a/b"))?, "of the host\n");
    Ok(())
}

/// Returns the number at a name in `pugmark decode`'s output.
fn value<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    Ok(line.trim())
}

#[test]
fn perf_records_in_it_what_the_monitor_logs() -> Result<()> {
    let scratch = Scratch::new()?;
    if !Path::new("/usr/bin/perf").exists() {
        println!("skipped: there is no perf");
        return Ok(());
    }
    fs::write(scratch.file("notes"), "some notes")?;
    let perf = "perf record -e intel_pt//u -o /out/perf.data -- gzip -k notes";
    let words: Vec<&str> =
        ["--symfs", "root", "--truth", "truth", "--"].into_iter().chain(perf.split(' ')).collect();
    let Some(mut command) = pugmark(&scratch, &words) else { return Ok(()) };
    let output = command.output()?;
    // gzip warns about the guest's clock.
    ensure!(matches!(output.status.code(), Some(0 | 2)), "{}", said(&output));
    let mut decode = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    decode.args(["decode", "--hash", "--symfs", "root", "perf.data"]).current_dir(scratch.folder());
    let decoded = decode.output()?;
    let text = String::from_utf8_lossy(&decoded.stdout).into_owned();
    // The log has some instructions of perf itself, too, in perf's address space.
    let truth = fs::read_to_string(scratch.file("truth"))?;
    let mut spaces: HashMap<&str, Vec<u64>> = HashMap::new();
    for line in truth.lines() {
        if let ["0", "0", "3", space, address] = line.split(' ').collect::<Vec<_>>()[..] {
            let digits = address.trim_start_matches("0x").trim_end_matches('!');
            spaces.entry(space).or_default().push(u64::from_str_radix(digits, 16)?);
        }
    }
    let longest = spaces.values().max_by_key(|addresses| addresses.len()).context("an empty log")?;
    ensure!(longest.len() > 10_000, "{} instructions", longest.len());
    let found = (value(&text, "instructions ")?, value(&text, "hash ")?);
    let expected = (longest.len().to_string(), format!("{:#018x}", hash(longest)));
    assert_eq!(found, (expected.0.as_str(), expected.1.as_str()), "{}", said(&output));
    Ok(())
}

#[test]
fn linux_and_its_command_are_recorded_with_the_names_of_the_kernels_functions() -> Result<()> {
    let scratch = Scratch::new()?;
    fs::write(scratch.file("notes"), "some notes")?;
    let words = "--record r --start __x64_sys_execve --stop count:100000 -- gzip -kc notes";
    let Some(mut command) = pugmark(&scratch, &words.split(' ').collect::<Vec<_>>()) else { return Ok(()) };
    let output = command.output()?;
    ensure!(matches!(output.status.code(), Some(0 | 2)), "{}", said(&output));
    ensure!(output.stdout.starts_with(b"\x1f\x8b"), "what gzip writes comes as it is");
    let view = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        let output = command.args(arguments).arg("r").current_dir(scratch.folder()).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    view(&["decode", "--check"])?;
    let report = view(&["report"])?;
    for name in ["__x64_sys_execve", "load_elf_binary"] {
        ensure!(report.lines().any(|line| line.ends_with(&format!("  {name}"))), "{name}: {report}");
    }
    Ok(())
}

#[test]
fn a_time_limit_and_what_is_wrong_have_statuses_of_their_own() -> Result<()> {
    let scratch = Scratch::new()?;
    for (words, status, message) in [
        (&["--timeout", "1", "--", "true"][..], 124, "truth: nothing was traced\n"),
        (&["--", "no-such-program"], 127, "no-such-program: not found\n"),
        (&["--record", "r", "--start", "no_such", "--", "true"], 125, "it has no such function"),
        (&["--with", "missing", "--", "true"], 125, "there is no file "),
        (&["--out", "missing", "--", "true"], 125, "--out missing: there is no such folder\n"),
        (&["--symfs", ".", "--", "true"], 125, "--symfs .: it exists already\n"),
        (&["--memory", "300", "--", "true"], 125, "300 would end within the monitor\n"),
        (&["--memory", "8", "--", "true"], 125, "the guest ended before it had sent everything"),
    ] {
        let Some(mut command) = pugmark(&scratch, &[]) else { return Ok(()) };
        let output = command.args(words).output()?;
        let both = format!("{}{}", String::from_utf8_lossy(&output.stdout), said(&output));
        assert_eq!(output.status.code(), Some(status), "{words:?}: {both}");
        assert!(both.contains(message), "{words:?}: {both}");
    }
    Ok(())
}
