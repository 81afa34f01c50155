//! GDB in Debian's Linux on the virtual hardware: it records a program with Intel PT and walks back, with the installed
//! libipt and with ours.
//!
//! The test is long, because the machine and our library have to be built: `PUGMARK_LONG=1 cargo test -p
//! pugmark-harness --test gdb`.

use anyhow::{Context, Result, ensure};
use pugmark_harness::images::{Images, build_libipt};
use pugmark_harness::linux::packages;
use pugmark_harness::linux::{Guest, LinuxMachine, Monitor};
use pugmark_harness::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;

const GDB: &str = "/usr/bin/gdb";

/// The traced program: `sum` calls `add` twenty times, then `_start` calls `done`.
const PROGRAM: &str = "
    .globl _start
    .type _start, @function
    .type sum, @function
    .type add, @function
    .type done, @function
_start:
    mov $20, %edi
    call sum
    call done
    mov $60, %eax
    xor %edi, %edi
    syscall
    .size _start, . - _start
sum:
    xor %eax, %eax
1:  call add
    dec %edi
    jnz 1b
    ret
    .size sum, . - sum
add:
    add %edi, %eax
    ret
    .size add, . - add
done:
    ret
    .size done, . - done
";

/// Number of instructions from `sum` to `done`: two around the twenty iterations of five, and the call of `done`.
const INSTRUCTIONS: u32 = 1 + 20 * 5 + 1 + 1;

/// GDB's commands. It walks back from `done` to the last iteration of `sum`, and then anywhere.
const STEPS: &str = r"
set width 0
set height 0
set confirm off
set startup-with-shell off
break *sum
break *done
run
record btrace pt
continue
info record
reverse-stepi
reverse-stepi
x/i $pc
reverse-stepi
x/i $pc
reverse-stepi 7
x/i $pc
backtrace
reverse-finish
record goto begin
x/i $pc
stepi 2
x/i $pc
record goto 50
x/i $pc
record goto end
record function-call-history /ci 1,100
record instruction-history 1,200
record stop
kill
";

/// Runs GDB with either library, whose paths are equally long, and shows which one it loaded.
const SCRIPT: &str = "
for which in debian pugmark; do
    export LD_LIBRARY_PATH=/ipt/$which
    LD_DEBUG=libs gdb --version 2>&1 | grep -o 'calling init: .*libipt.*' >/out/$which.loaded
    gdb -nx -batch -x /walk/steps /walk/walk >/out/$which.txt 2>&1
done
";

/// Returns the kernel, busybox and the installed libipt, or the reason why the test cannot run here.
fn found() -> Result<[PathBuf; 3], String> {
    if std::env::var_os("PUGMARK_LONG").is_none_or(|value| value != "1") {
        return Err("it is long, and PUGMARK_LONG is not 1".into());
    }
    if !Path::new(GDB).is_file() {
        return Err("gdb is not installed".into());
    }
    let output = Command::new("ldd").arg(GDB).output().map_err(|error| error.to_string())?;
    let libraries = String::from_utf8_lossy(&output.stdout).into_owned();
    let libipt = libraries.lines().find_map(|line| line.trim().strip_prefix("libipt.so.2 => "));
    let libipt = libipt.and_then(|line| line.split(' ').next()).ok_or("gdb is built without libipt")?;
    let packages = packages::packages(true);
    let linux = packages.kernel().and_then(|kernel| Ok([kernel, packages.busybox()?]));
    let Ok([kernel, busybox]) = linux else { return Err("Debian's Linux is not installed".into()) };
    Ok([kernel, busybox, libipt.into()])
}

/// Returns the text of a file that the guest left, without the process ID.
fn text(file: &[u8]) -> String {
    let text = String::from_utf8_lossy(file);
    let lines = text.lines().map(|line| line.split(" (process ").next().unwrap_or(line));
    lines.filter(|line| !line.starts_with("[Inferior ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn gdb_walks_back_through_what_it_recorded_with_our_library_as_with_the_installed_one() -> Result<()> {
    let [kernel, busybox, libipt] = match found() {
        Ok(found) => found,
        Err(reason) => {
            println!("skipped: {reason}");
            return Ok(());
        }
    };
    let scratch = Scratch::new()?;
    let [source, walk, steps] = ["walk.s", "walk", "steps"].map(|name| scratch.file(name));
    std::fs::write(&source, PROGRAM)?;
    std::fs::write(&steps, STEPS)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-nostdlib", "-no-pie", "-o"]).arg(&walk).arg(&source);
    ensure!(compiler.status().context("cannot start cc")?.success(), "cc failed");
    let mut guest = Guest::new(&busybox);
    let ours = build_libipt()?;
    for (file, path) in [
        (Path::new(GDB), GDB),
        (&walk, "/walk/walk"),
        (&steps, "/walk/steps"),
        (&libipt, "/ipt/debian/libipt.so.2"),
        (&ours, "/ipt/pugmark/libipt.so.2"),
    ] {
        guest.add(&format!("{}:{path}", file.display()).parse().map_err(anyhow::Error::msg)?)?;
    }
    guest.script(SCRIPT);
    let initramfs = scratch.file("initramfs");
    std::fs::write(&initramfs, guest.files().archive()?)?;
    let machine = LinuxMachine {
        monitor: Some(Monitor { image: Images::build()?.monitor, options: "profile=skylake".into() }),
        memory: Some(512),
        ..LinuxMachine::new(kernel, initramfs)
    };
    let outcome = machine.run(|_| {})?;
    for which in ["debian", "pugmark"] {
        let loaded = text(outcome.file(&format!("{which}.loaded"))?);
        assert!(loaded.ends_with(&format!("/ipt/{which}/libipt.so.2")), "{loaded}");
    }
    let theirs = text(outcome.file("debian.txt")?);
    let ours = text(outcome.file("pugmark.txt")?);
    println!("{ours}");
    assert_eq!(theirs, ours);
    let recorded = format!("Recorded {INSTRUCTIONS} instructions in ");
    let walked = ["<sum+11>:\tret", "<sum+9>:\tjne", "<sum+2>:\tcall"];
    for expected in [&recorded, "(0 gaps)"].into_iter().chain(walked) {
        assert!(ours.contains(expected), "{expected:?} is not in\n{ours}");
    }
    // Each instruction has a line with its number.
    let lines = ours.lines().filter(|line| line.contains("\t   0x") || line.contains("\t=> 0x")).count();
    assert!(lines >= INSTRUCTIONS as usize, "{lines} lines:\n{ours}");
    Ok(())
}
