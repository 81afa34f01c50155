//! Records whole machines. What a decoder finds must be what was executed: the truth says so, and QEMU's own log.
//!
//! These tests need QEMU's system emulator for x86-64 and are skipped without it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod decoded;
mod guest;
mod tasks_guest;

use decoded::{Step, Steps, decode};
use pugmark_recorder::{Cause, Ending, Missing, RecordError, RecordOptions, Recording, record};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

const QEMU: &str = "qemu-system-x86_64";
/// Each run executes the same, however long it takes.
const REPEATABLE: &str = "-icount shift=3,sleep=off -rtc base=2026-01-01,clock=vm -display none -nodefaults -no-reboot \
    -device isa-debug-exit,iobase=0xf4,iosize=4 -option-rom ";

/// A folder for one test, removed when it is over.
struct Folder(PathBuf, Vec<u8>);

impl Folder {
    fn new(name: &str) -> Self {
        Self::of(name, guest::rom())
    }

    /// Makes a folder for this guest, an option ROM.
    fn of(name: &str, rom: Vec<u8>) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-machine-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder, rom)
    }

    /// Returns the arguments with which QEMU executes the guest.
    fn arguments(&self) -> Vec<String> {
        let rom = self.0.join("rom");
        fs::write(&rom, &self.1).unwrap();
        format!("{REPEATABLE}{}", rom.display()).split(' ').map(String::from).collect()
    }

    fn record(&self, more: &[&str], change: impl FnOnce(&mut RecordOptions)) -> Recording {
        let program =
            [QEMU.into()].into_iter().chain(self.arguments()).chain(more.iter().map(ToString::to_string));
        let out = self.0.join("out");
        let mut options =
            RecordOptions { out, machine: true, ..RecordOptions::new(program.map(OsString::from)) };
        change(&mut options);
        record(&options, &mut |_| {}).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_missing() -> bool {
    let is_missing = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status().is_err();
    if is_missing {
        println!("skipped: {QEMU} is not installed");
    }
    is_missing
}

/// Returns what a decoder finds in all parts of a processor, which must be what their truths say.
fn check(recording: &Recording, processor: u32) -> Steps {
    let mut steps = Steps::default();
    for part in recording.parts.iter().filter(|part| part.task == processor) {
        let found = decode(part);
        assert_eq!((found.hash, part.unexplained), (part.truth, 0), "{}", part.dir.display());
        steps.all.extend(found.steps.all);
        steps.spaces.extend(found.steps.spaces);
    }
    steps
}

/// Returns the arguments with which QEMU makes a block of each instruction.
fn one_by_one() -> Vec<&'static str> {
    let version = Command::new(QEMU).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let (_, number) = version.split_once("version ").unwrap();
    match number.split('.').next().unwrap().parse::<u32>().unwrap() {
        ..9 => vec!["-singlestep"],
        _ => vec!["-accel", "tcg,one-insn-per-tb=on"],
    }
}

/// Lets QEMU execute the guest instruction by instruction, and calls `each` with the offset in the code segment of each
/// instruction that begins.
fn log(folder: &Folder, mut each: impl FnMut(u64)) {
    let mut child = Command::new(QEMU)
        .args(folder.arguments())
        .args(one_by_one())
        .args(["-d", "exec,nochain", "-D", "/proc/self/fd/1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
        let Some((_, numbers)) = line.strip_prefix("Trace ").and_then(|line| line.split_once('[')) else {
            continue;
        };
        let mut numbers = numbers.split('/').map(|number| u64::from_str_radix(number, 16).unwrap());
        let (base, address) = (numbers.next().unwrap(), numbers.next().unwrap());
        each(if base == 0 { address } else { address.wrapping_sub(base) & 0xffff_ffff });
    }
    assert_eq!(child.wait().unwrap().code(), Some(guest::STATUS));
}

#[test]
fn a_machine_is_recorded_from_its_reset_to_its_end_as_qemu_has_executed_it() {
    if is_missing() {
        return;
    }
    let folder = Folder::new("log");
    let found = as_qemu_logs(&folder);
    // The guest writes them to CR3.
    assert!([0x1_4000, 0x1_0000].iter().all(|space| found.spaces.contains(space)), "{:x?}", found.spaces);
}

#[test]
fn a_task_in_virtual_8086_mode_is_recorded_as_qemu_has_executed_it() {
    if is_missing() {
        return;
    }
    as_qemu_logs(&Folder::of("virtual", tasks_guest::rom()));
}

/// Records the guest, checks that QEMU's log has what the trace has, and returns that.
fn as_qemu_logs(folder: &Folder) -> Steps {
    let recording = folder.record(&[], |_| ());
    assert_eq!(recording.ending, Ending::Exit(guest::STATUS));
    let found = check(&recording, 1);
    let mut steps = found.without_repetitions().peekable();
    // The reset vector.
    assert_eq!(steps.peek(), Some(&Step::Executed(0xfff0)));
    let (mut last, mut number, mut events, mut unfinished) = (None, 0, 0, 0);
    log(folder, |address| {
        // An instruction that repeats itself is one.
        if last.replace(address) == Some(address) {
            return;
        }
        number += 1;
        while let Some(Step::Event(at)) = steps.next_if(|step| matches!(step, Step::Event(_))) {
            events += 1;
            // It began, and did not end.
            if at == address {
                return;
            }
        }
        match steps.next() {
            Some(step) => assert_eq!(step, Step::Executed(address), "instruction {number}"),
            // The one by which it ends.
            None => unfinished += 1,
        }
    });
    assert_eq!((steps.next(), unfinished), (None, 1));
    assert!(events > 1000, "{events} interrupts and exceptions");
    drop(steps);
    found
}

#[test]
fn each_processor_has_a_trace_of_its_own() {
    if is_missing() {
        return;
    }
    let folder = Folder::new("processors");
    // On one thread, and on threads of their own.
    for (accelerator, repeatable) in [("tcg,thread=single", true), ("tcg,thread=multi", false)] {
        let recording = folder.record(&["-smp", "2", "-accel", accelerator], |options| {
            if !repeatable {
                // The emulator counts instructions only where all processors are on one thread.
                options.program.drain(1..3);
            }
        });
        assert_eq!(recording.ending, Ending::Exit(guest::STATUS), "{accelerator}");
        for processor in [1, 2] {
            let steps = check(&recording, processor);
            // The firmware starts the second one, and it waits.
            assert!(steps.all.len() > 50, "{accelerator}: {} of {processor}", steps.all.len());
            let names =
                recording.parts.iter().filter(|part| part.task == processor).map(|part| &part.thread.comm);
            assert!(names.into_iter().all(|name| *name == format!("CPU {}", processor - 1)), "{accelerator}");
        }
    }
}

/// Returns the addresses of the instructions that retired.
fn executed(steps: &Steps) -> Vec<u64> {
    let step = |step: &Step| match *step {
        Step::Executed(address) => Some(address),
        Step::Event(_) => None,
    };
    steps.all.iter().filter_map(step).collect()
}

#[test]
fn the_limit_ends_the_trace_after_an_instruction_and_the_machine_goes_on() {
    if is_missing() {
        return;
    }
    let folder = Folder::new("limit");
    let all = executed(&check(&folder.record(&[], |_| ()), 1));
    for limit in [1, 1000, all.len() / 2 + 1] {
        let recording = folder.record(&[], |options| options.limit = Some(limit as u64));
        assert_eq!((recording.cause, recording.ending), (Cause::Limit, Ending::Exit(guest::STATUS)));
        assert!(executed(&check(&recording, 1)) == all[..limit], "{limit}");
    }
}

#[test]
fn tracing_starts_and_stops_where_it_shall_and_time_passes_all_the_same() {
    if is_missing() {
        return;
    }
    let folder = Folder::new("switch");
    let whole = folder.record(&[], |_| ());
    let all = executed(&check(&whole, 1));
    // Of what the guest ends with, what it has executed most often.
    let often = |address: &&u64| all.iter().filter(|other| other == address).count();
    let place = *all[all.len() - 10..].iter().rev().max_by_key(often).unwrap();
    let last = all.iter().rposition(|address| *address == place).unwrap();
    let end = whole.parts.last().unwrap().tsc.1;
    let from_to = |start: &str, stop: Option<&str>| {
        let recording = folder.record(&[], |options| {
            options.start = Some(start.parse().unwrap());
            options.stop = stop.map(|stop| stop.parse().unwrap());
        });
        assert_eq!(recording.parts.last().unwrap().tsc.1, end, "{start}");
        executed(&check(&recording, 1))
    };
    let count = format!("count:{}", last - 1000);
    assert!(from_to(&count, None) == all[last - 1000..]);
    // Each time when it comes there, three instructions; that before which it stops does not start it again.
    let mut expected: Vec<u64> = vec![];
    let mut from = 0;
    while let Some(next) = all.get(from..).and_then(|rest| rest.iter().position(|address| *address == place))
    {
        let begin = from + next;
        expected.extend(&all[begin..all.len().min(begin + 3)]);
        from = begin + 4;
    }
    assert!(expected.len() > 30_000, "{}", expected.len());
    assert!(from_to(&format!("{place:#x}"), Some("count:3")) == expected);
    // The first time for good.
    let stopped = folder.record(&[], |options| options.stop = Some(format!("{place:#x}").parse().unwrap()));
    let end = all.iter().position(|address| *address == place).unwrap();
    assert_eq!((stopped.cause, stopped.ending), (Cause::Stop, Ending::Exit(guest::STATUS)));
    assert!(executed(&check(&stopped, 1)) == all[..end]);
}

#[test]
fn tracing_starts_and_stops_at_functions_that_a_file_names() {
    if is_missing() {
        return;
    }
    let folder = Folder::new("functions");
    let all = executed(&check(&folder.record(&[], |_| ()), 1));
    let place = all[all.len() / 2];
    let begin = all.iter().position(|address| *address == place).unwrap();
    let map = folder.0.join("map");
    let text = format!("{:016x} T entered\n{:016x} t twice\n2 t twice\n", place - 0x10, place + 1);
    fs::write(&map, text).unwrap();
    let recording = folder.record(&[], |options| {
        options.start = "entered+0x4".parse().ok();
        options.stop = "count:7".parse().ok();
        options.kernel_symbols = Some(map.clone());
        options.kernel_offset = 0xc;
    });
    assert_eq!(executed(&check(&recording, 1))[..7], all[begin..begin + 7]);
    for (start, missing) in [
        ("enterd", Missing::Function(vec!["entered".into(), "twice".into(), "twice".into()])),
        ("twice", Missing::Several(vec![2, place + 1])),
        ("ext4:entered", Missing::Object(vec!["vmlinux".into()])),
    ] {
        let out = folder.0.join("refused");
        let program = [QEMU, "-machine", "none"];
        let (start, kernel_symbols) = (start.parse().ok(), Some(map.clone()));
        let options =
            RecordOptions { out, machine: true, start, kernel_symbols, ..RecordOptions::new(program) };
        let error = record(&options, &mut |_| {}).unwrap_err();
        let RecordError::NoPlace { missing: found, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, missing);
        let unnamed = RecordOptions { kernel_symbols: None, ..options.clone() };
        let error = record(&unnamed, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("no file has the names of the machine's functions"), "{error}");
        assert!(!options.out.exists(), "nothing is written");
    }
}

#[test]
fn what_is_no_emulator_of_machines_is_refused() {
    for (program, says) in [
        ("true", "takes no plugin"),
        ("/no/such/program", "cannot be started"),
        ("qemu-system-x86_64 -daemonize", "leave out -daemonize"),
    ] {
        let out = std::env::temp_dir().join("pugmark-machine-refused");
        let options = RecordOptions { out, machine: true, ..RecordOptions::new(program.split(' ')) };
        let error = record(&options, &mut |_| {}).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(format!("{error}: {source}").contains(says), "{error}: {source}");
        assert!(!options.out.exists(), "nothing is written");
    }
}
