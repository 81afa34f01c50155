//! The registers that the driver reads and writes for each of its operations, as the monitor reports them: each access
//! takes a hundred cycles and more, and many of them are made with interrupts off.

use pugmark_harness::images::Images;
use pugmark_harness::machine::Machine;
use std::collections::BTreeMap;

/// Returns the manual's name of a register that the driver uses, without IA32_.
fn name(msr: &str) -> &str {
    match msr {
        "0x1d9" => "DEBUGCTL",
        "0x38e" => "PERF_GLOBAL_STATUS",
        "0x390" => "PERF_GLOBAL_OVF_CTRL",
        "0x560" => "RTIT_OUTPUT_BASE",
        "0x561" => "RTIT_OUTPUT_MASK_PTRS",
        "0x570" => "RTIT_CTL",
        "0x571" => "RTIT_STATUS",
        other => other,
    }
}

/// Returns the access that a line reports: `read` or `wrote` and the register, for RTIT_CTL also the written TraceEn.
fn access(line: &str) -> Option<String> {
    let words: Vec<&str> = line.strip_prefix("monitor: ")?.split(' ').collect();
    let &[how @ ("read" | "wrote"), _, msr, value, _] = words.as_slice() else { return None };
    let value = u64::from_str_radix(value.strip_prefix("value=0x")?, 16).ok()?;
    let name = name(msr.strip_prefix("msr=")?);
    Some(match (how, name, value & 1) {
        ("wrote", "RTIT_CTL", 1) => "starts".into(),
        ("wrote", "RTIT_CTL", _) => "stops".into(),
        _ => format!("{how} {name}"),
    })
}

#[test]
fn a_start_an_interrupt_and_a_stop_take_these_accesses_and_no_others() {
    let images = Images::build().unwrap();
    let mut accesses = vec![];
    let machine = Machine::on_monitor(&images, "profile=skylake accesses=on", "only=small-buffers");
    let outcome = machine.run(|line| accesses.extend(access(line))).unwrap();
    let run = outcome.transcript.runs.iter().find(|run| run.name == "small-buffers").unwrap();
    let pmis = run.stat.unwrap().pmis as usize;
    // The accesses up to each start and stop, and their number of occurrences.
    let mut found: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    for part in accesses.split_inclusive(|access| access == "starts" || access == "stops") {
        *found.entry(part.iter().map(String::as_str).collect()).or_default() += 1;
    }
    let position = ["wrote RTIT_STATUS", "wrote RTIT_OUTPUT_BASE", "wrote RTIT_OUTPUT_MASK_PTRS", "starts"];
    let read = ["read RTIT_STATUS", "read RTIT_OUTPUT_BASE", "read RTIT_OUTPUT_MASK_PTRS"];
    // The writable bits of the output's mask are probed once.
    let tried = ["read RTIT_OUTPUT_MASK_PTRS", "wrote RTIT_OUTPUT_MASK_PTRS"].repeat(2);
    let unused = ["read DEBUGCTL", "read RTIT_CTL"];
    let cleared = ["wrote PERF_GLOBAL_OVF_CTRL"];
    let first = [&["read RTIT_CTL"][..], &tried, &unused, &read, &cleared, &position].concat();
    // These prove that the registers are still the trace's own.
    let owned = ["read RTIT_CTL", "read RTIT_OUTPUT_BASE"];
    let interrupted = [&["read RTIT_STATUS", "read PERF_GLOBAL_STATUS"][..], &owned, &["stops"]].concat();
    let acknowledged = ["read PERF_GLOBAL_STATUS", "wrote PERF_GLOBAL_OVF_CTRL"];
    let looks = ["read PERF_GLOBAL_STATUS", "read DEBUGCTL", "read RTIT_CTL"];
    let again = [&acknowledged[..], &read, &looks, &position].concat();
    let stopped = [&["read RTIT_STATUS"][..], &owned, &["stops"]].concat();
    // The registers have their values from before the trace.
    let restored = ["wrote RTIT_STATUS", "wrote RTIT_OUTPUT_MASK_PTRS", "wrote RTIT_OUTPUT_BASE", "stops"];
    let given_back = [&read[..], &owned, &["read RTIT_OUTPUT_MASK_PTRS"], &restored].concat();
    let expected =
        BTreeMap::from([(first, 1), (interrupted, pmis), (again, pmis), (stopped, 1), (given_back, 1)]);
    assert!(pmis > 20, "{pmis}");
    assert_eq!(found, expected);
}
