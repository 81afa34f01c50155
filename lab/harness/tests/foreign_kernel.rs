//! A kernel from another source tree boots on the monitor and finds a processor with PT, or several.

use pugmark_harness::images::{Images, build_foreign_kernel};
use pugmark_harness::machine::{Machine, Outcome};
use pugmark_harness::report::End;
use pugmark_harness::truth::hash;
use std::collections::HashSet;

/// The session in which the first processor traces its work. Each start of another processor has one of the next.
const FIRST_SESSION: u16 = 10;

fn boot(monitor_options: &str, processors: u16) -> Outcome {
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let options = format!("profile=skylake {monitor_options}");
    let outcome = Machine::kernel_on_monitor(&images, &kernel, &options, &format!("processors={processors}"))
        .processors(processors)
        .run(|_| {})
        .unwrap();
    let ends: Vec<_> =
        outcome.transcript.runs.iter().map(|run| (run.name.as_str(), run.end.clone())).collect();
    let expected = [
        "boot",
        "cpuid",
        "protection",
        "work",
        "traps",
        "traps-in-session",
        "holes",
        "holes-in-session",
        "map",
        "dma",
        "ports",
        "no-memory",
        "no-memory-in-session",
        "patches",
        "patches-in-session",
        "clock",
        "processors",
    ];
    let expected = expected.map(|name| format!("foreign-{name}"));
    assert_eq!(ends, expected.each_ref().map(|name| (name.as_str(), Some(End::Ok))));
    outcome
}

#[test]
fn a_kernel_that_is_not_ours_finds_pt_and_gets_gp_on_a_reserved_bit() {
    for options in ["", "stretch=1"] {
        boot(options, 1);
    }
}

/// The kernel examines the reports about its memory, uses addresses without memory, and makes a device write there. The
/// monitor's heap and image are among these, and the monitor continues.
#[test]
fn what_is_done_where_no_memory_is_is_told_once_for_each_place() {
    let outcome = boot("", 1);
    let mut told = HashSet::new();
    for line in outcome.transcript.monitor.iter().filter_map(|line| line.strip_prefix("monitor: missing ")) {
        let numbers = line.split_whitespace().filter_map(|word| word.trim_end_matches(':').split_once("=0x"));
        let number = |wanted| {
            let mut numbers = numbers.clone().filter(|(name, _)| *name == wanted);
            numbers.next().and_then(|(_, digits)| u64::from_str_radix(digits, 16).ok())
        };
        let [address, rip] = ["address", "rip"].map(|name| number(name).unwrap_or_else(|| panic!("{line}")));
        assert!(address >= 256 << 20, "there is memory: {line}");
        assert!(told.insert((address >> 12, rip)), "told twice: {line}");
    }
    // The places of reads, writes and DMA, and of code, a page table and a stack.
    for address in [0x1000_0000, 0x1234_5000, 0x17ff_f000, 0x3fff_f000, 0x1400_0000, 1 << 40] {
        assert!(told.iter().any(|(page, _)| page << 12 == address), "{address:#x}: {told:x?}");
    }
    for address in [0x1800_1000, 0x1800_2000, 0x1800_3000] {
        assert!(told.iter().any(|(page, _)| page << 12 == address), "{address:#x}: {told:x?}");
    }
    assert_eq!(outcome.dump, b"D", "what is written over the edge of the monitor's port");
}

#[test]
fn a_guest_with_a_clock_of_its_own_measures_what_the_clock_is_told_to_take() {
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let options = "profile=icelake step=always clock=100";
    let run = |command_line| {
        Machine::kernel_on_monitor(&images, &kernel, options, command_line).run(|_| {}).unwrap()
    };
    let end = |command_line| {
        let runs = run(command_line).transcript.runs;
        runs.iter().find(|run| run.name == "foreign-clock").map(|run| run.end.clone())
    };
    assert_eq!(end("clock=100"), Some(Some(End::Ok)));
    assert_ne!(end("clock=99"), Some(Some(End::Ok)));
}

/// The same kernel, without announcing the accesses that are refused.
#[test]
fn a_kernel_that_breaks_a_rule_fails() {
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let machine = Machine::kernel_on_monitor(&images, &kernel, "profile=skylake", "silent");
    let error = machine.run(|_| {}).unwrap_err().to_string();
    for access in ["msr=0x570 value=0x8000000000000000", "msr=0xc0000080 value=0x4500"] {
        assert!(error.contains(&format!("monitor: refused processor=0 {access}")), "{error}");
    }
}

/// The log is the same for instructions executed one by one or in stretches, even for code that modifies itself.
#[test]
fn a_kernel_that_is_always_stepped_notices_nothing() {
    const CHANGES_ITSELF: u16 = 4;
    let [stretches, single] =
        ["step=always times=0", "step=always times=0 stretch=1"].map(|options| boot(options, 1).truth);
    let session = stretches.session(CHANGES_ITSELF);
    // Eight rounds, four of them with an addition more.
    assert_eq!(session.len(), 3 + 8 * 12 + 4 + 8, "{session:x?}");
    assert_eq!(session, single.session(CHANGES_ITSELF));
}

/// Our kernel's own file, its module, is at the end of RAM. The kernel is at the same addresses in both machines, so it
/// executes the same.
#[test]
fn a_guest_has_ram_on_both_sides_of_the_monitor_and_the_log_is_above_it() {
    let images = Images::build().unwrap();
    let run = |options: &str, mib| {
        let options = format!("profile=skylake times=0 {options}");
        let machine = Machine::on_monitor(&images, &options, "only=sort").memory(mib);
        machine.run(|_| {}).unwrap().truth
    };
    let usual = run("", 512);
    let session = usual.sessions()[0];
    let addresses: Vec<u64> = usual.session(session).iter().map(|record| record.rip).collect();
    assert!(addresses.len() > 1000, "{}", addresses.len());
    let place = "ram=640 log=0x28000000+0x3000000";
    let kept = run(place, 704);
    assert!(kept.session(session).iter().map(|record| record.rip).eq(addresses.iter().copied()));
    let sums = run(&format!("{place} log-mode=hash"), 704);
    let [sum] = sums.sums() else { panic!("{:?}", sums.sums()) };
    assert_eq!((sum.instructions, sum.hash), (addresses.len() as u64, hash(&addresses)));
    let ring = run("log=0x14000000+0x1000 log-mode=ring", 512);
    let last: Vec<u64> = ring.session(session).iter().map(|record| record.rip).collect();
    assert_eq!((last.len(), &last[..]), ((0x1000 - 64) / 24, &addresses[addresses.len() - last.len()..]));
}

#[test]
fn four_processors_are_started_by_the_guest_and_each_is_traced() {
    for options in ["", "step=always"] {
        let outcome = boot(options, 4);
        let session = |start: u16| outcome.truth.session(FIRST_SESSION + start);
        let addresses = |start| session(start).iter().map(|record| record.rip).collect::<Vec<_>>();
        let first = addresses(0);
        assert!(first.len() > 1000, "{options}: {} instructions", first.len());
        let mut processors = Vec::new();
        for start in 0..=5 {
            assert_eq!(addresses(start), first, "{options}: start {start}");
            let processor = session(start)[0].cpu;
            assert!(session(start).iter().all(|record| record.cpu == processor), "{options}: start {start}");
            processors.push(processor);
        }
        // The first starts of all processors happen at the same time; then two of them start again.
        assert_eq!((processors[0], processors[4], processors[5]), (0, processors[1], processors[2]));
        processors.truncate(4);
        processors.sort_unstable();
        assert_eq!(processors, [0, 1, 2, 3], "{options}");
    }
}
