//! Debian's Linux as a guest.

use anyhow::Result;
use pugmark_harness::images::Images;
use pugmark_harness::linux::packages;
use pugmark_harness::linux::{Event, Guest, LinuxMachine, Monitor};
use pugmark_harness::scratch::Scratch;
use std::path::PathBuf;

/// Returns Debian's kernel and busybox, if they have been downloaded; otherwise reports that the test is skipped.
fn debian() -> Option<[PathBuf; 2]> {
    let packages = packages::packages(true);
    let found = packages.kernel().and_then(|kernel| Ok([kernel, packages.busybox()?]));
    if found.is_err() {
        println!("skipped: Debian's Linux is not installed");
    }
    found.ok()
}

/// Returns a machine without a monitor.
fn machine(scratch: &Scratch, kernel: PathBuf, guest: &Guest) -> Result<LinuxMachine> {
    let initramfs = scratch.file("initramfs");
    std::fs::write(&initramfs, guest.files().archive()?)?;
    Ok(LinuxMachine::new(kernel, initramfs))
}

#[test]
fn a_guest_on_the_machine_itself_sends_what_its_command_writes_its_status_and_its_files() -> Result<()> {
    let Some([kernel, busybox]) = debian() else { return Ok(()) };
    let scratch = Scratch::new()?;
    let mut guest = Guest::new(&busybox);
    std::fs::write(
        scratch.file("bytes"),
        (0..100_000u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect::<Vec<_>>(),
    )?;
    guest.add(&format!("{}:/bytes", scratch.file("bytes").display()).parse().unwrap())?;
    let script = "echo out; echo err >&2; mkdir /out/a; cp /bytes '/out/a/b c'; : >/out/empty; exit 7";
    guest.command(&["sh", "-c", script].map(String::from));
    let machine = machine(&scratch, kernel, &guest)?;
    let mut output = Vec::new();
    let outcome = machine.run(|event| {
        if let Event::Output(bytes) = event {
            output.extend_from_slice(bytes);
        }
    })?;
    assert_eq!((outcome.status, String::from_utf8(output)?.as_str()), (7, "out\nerr\n"));
    assert!(outcome.file("a/b c")? == std::fs::read(scratch.file("bytes"))?);
    assert_eq!(outcome.file("empty")?, b"");
    assert_eq!(outcome.files.len(), 2);
    assert!(outcome.truth.is_empty());
    Ok(())
}

#[test]
fn the_files_of_a_guest_that_is_not_judged_do_not_need_the_log() -> Result<()> {
    let Some([kernel, busybox]) = debian() else { return Ok(()) };
    let scratch = Scratch::new()?;
    let mut guest = Guest::new(&busybox);
    guest.command(&["sh", "-c", "echo kept > /out/file"].map(String::from));
    let monitor = Monitor { image: Images::build()?.monitor, options: "profile=skylake truth=off".into() };
    let machine =
        LinuxMachine { monitor: Some(monitor), judged: false, ..machine(&scratch, kernel, &guest)? };
    let outcome = machine.run(|_| {})?;
    assert_eq!((outcome.status, outcome.file("file")?), (0, &b"kept\n"[..]));
    Ok(())
}

#[test]
fn a_guest_that_ends_early_fails_with_its_last_words() -> Result<()> {
    let Some([kernel, busybox]) = debian() else { return Ok(()) };
    let scratch = Scratch::new()?;
    let mut guest = Guest::new(&busybox);
    guest.command(&["sh", "-c", "echo c >/proc/sysrq-trigger"].map(String::from));
    let machine = machine(&scratch, kernel, &guest)?;
    let error = machine.run(|_| {}).unwrap_err().to_string();
    assert!(
        error.contains("ended before it had sent everything") && error.contains("sysrq triggered crash"),
        "{error}"
    );
    Ok(())
}

/// Number of rewrites; with `PUGMARK_LONG=1`, fifteen times as many.
const REWRITES: u32 = 100;

/// Linux replaces the first byte of an instruction by an INT3 while it changes the rest, and the other processors
/// execute that INT3 meanwhile.
#[test]
fn linux_rewrites_its_code_on_two_processors() -> Result<()> {
    let Some([kernel, busybox]) = debian() else { return Ok(()) };
    let scratch = Scratch::new()?;
    let rewrites = if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") {
        15 * REWRITES
    } else {
        REWRITES
    };
    let file = "/proc/sys/kernel/sched_schedstats";
    let script = format!(
        "while :; do :; done & i=0; while [ $i -lt {rewrites} ]; do echo 1 >{file}; echo 0 >{file}; \
         i=$((i + 1)); done; kill $!; cat {file}; nproc; echo $i"
    );
    let mut guest = Guest::new(&busybox);
    guest.command(&["sh".into(), "-c".into(), script]);
    let monitor = Monitor { image: Images::build()?.monitor, options: "profile=skylake".into() };
    let machine =
        LinuxMachine { monitor: Some(monitor), processors: 2, ..machine(&scratch, kernel, &guest)? };
    let mut output = Vec::new();
    let outcome = machine.run(|event| {
        if let Event::Output(bytes) = event {
            output.extend_from_slice(bytes);
        }
    })?;
    assert_eq!((outcome.status, String::from_utf8(output)?), (0, format!("0\n2\n{rewrites}\n")));
    Ok(())
}
