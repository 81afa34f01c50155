//! `pugmark pmc` as a program, and its answers to the shared test vectors.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// Runs the program. Returns its output, its messages, and true if it succeeded.
fn run(arguments: &[&str], input: String) -> (String, String, bool) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pugmark"))
        .arg("pmc")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pugmark");
    let mut stdin = program.stdin.take().expect("standard input");
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = program.wait_with_output().expect("pugmark");
    // A program that does not read its input may end before all of it is written.
    _ = writer.join();
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr), output.status.success())
}

fn print(arguments: &[&str]) -> String {
    let (printed, messages, success) = run(arguments, String::new());
    assert!(success, "{arguments:?}: {messages}");
    printed
}

#[test]
fn encode_prints_the_canonical_string_and_the_code() {
    let event = "amd64_fam10h_barcelona::DATA_CACHE_MISSES:e=1";
    let canonical = "amd64_fam10h_barcelona::DATA_CACHE_MISSES:k=1:u=1:e=1:i=0:c=0:h=0:g=0";
    assert_eq!(print(&["encode", event]), format!("{canonical} 0x570041\n"));
    assert_eq!(
        print(&["encode", "--json", event]),
        format!(
            "{{\"canonical\":\"{canonical}\",\"code\":\"0x570041\",\"event\":\"{event}\",\
             \"name\":\"DATA_CACHE_MISSES\",\"pmu\":\"amd64_fam10h_barcelona\"}}\n"
        )
    );
    assert!(print(&["encode", "--plm", "u", event]).ends_with(" 0x550041\n"));
}

#[test]
fn a_processor_has_the_end_of_its_name_and_its_code_names() {
    let zen4 = print(&["list", "amd64_fam19h_zen4"]);
    assert!(zen4.contains("RETIRED_INSTRUCTIONS"), "{zen4}");
    for name in ["zen4", "Genoa", "fam19h_zen4"] {
        assert_eq!(print(&["list", name]), zen4, "{name}");
    }
    let info = |name: &str| print(&["info", &format!("{name}::RETIRED_INSTRUCTIONS")]);
    assert_eq!(info("zen4"), info("amd64_fam19h_zen4"));
    // A blank line separates two blocks, and does not precede the first.
    let both = print(&["info", "RETIRED_INSTRUCTIONS"]);
    assert_eq!(both.matches("RETIRED_INSTRUCTIONS 0xc0").count(), both.matches("\n\nRETIRED").count() + 1);
    let select = "pmc0 PERFEVTSEL0 MSR 0xc0010200";
    for name in ["zen5", "fam1ah_zen5", "amd64_fam1ah_zen5", "turin"] {
        let registers = print(&["dispatch", "--cpu", name, "RETIRED_INSTRUCTIONS"]);
        assert!(registers.contains(select.split_once(' ').unwrap().1), "{name}: {registers}");
    }
    let registers = print(&["dispatch", "--cpu", "bobcat", "RETIRED_INSTRUCTIONS"]);
    assert!(registers.contains("PERFEVTSEL0 MSR 0xc0010000"), "{registers}");
}

#[test]
fn a_name_that_is_not_there_brings_near_ones_to_mind() {
    for (arguments, message) in [
        (
            &["list", "zen6"][..],
            "NOTFOUND: no PMU and no processor is called \"zen6\"; similar names: zen1, zen2, zen3, zen4, zen5",
        ),
        (
            &["info", "amd64_fam10h_barcelna::PROBE"],
            "NOTFOUND: no PMU and no processor is called \"amd64_fam10h_barcelna\"; similar names: \
             amd64_fam10h_barcelona",
        ),
        (
            &["info", "k7::RETIRED_INSTRUCTION"],
            "NOTFOUND: no event is called \"RETIRED_INSTRUCTION\"; similar names: RETIRED_INSTRUCTIONS",
        ),
        (&["dispatch", "--cpu", "k9", "PROBE"], "NOTFOUND: no processor is called \"k9\"; similar names: k7"),
        (
            &["dispatch", "--cpu", "k8_revb", "PROBS"],
            "NOTFOUND: \"PROBS\" at 0: the processor has no event of this name; similar names: PROBE",
        ),
        (
            &["dispatch", "--cpu", "k8_revb", "PROBE:MIS"],
            "UMASK: \"MIS\" at 6: not a unit mask of the event; similar names: MISS",
        ),
        (
            &["encode", "zen4::RETIRED_INSTRUCTIONS"],
            "NOTFOUND: \"zen4\" at 0: no PMU has this name; similar names: amd64_fam19h_zen4",
        ),
        (
            &["encode", "amd64_k7::RETIRED_INSTRUCTION"],
            "NOTFOUND: \"RETIRED_INSTRUCTION\" at 10: the PMU has no event of this name; \
             similar names: RETIRED_INSTRUCTIONS",
        ),
        (
            &["encode", "amd64_k8_revb::PROBE:MIS"],
            "ATTR: \"MIS\" at 21: neither a unit mask of the event nor a modifier of the PMU; similar names: MISS",
        ),
    ] {
        let (printed, messages, success) = run(arguments, String::new());
        assert_eq!((printed.as_str(), messages, success), ("", format!("pugmark: {message}\n"), false));
    }
    let (printed, _, success) = run(&["encode", "--json", "amd64_k8_revb::PROBE:MIS"], String::new());
    assert!(printed.contains("\"near\":[\"MISS\"]") && !success, "{printed}");
}

#[test]
fn an_error_has_libpfms_name_a_sentence_and_status_1() {
    for (arguments, message) in [
        (
            &["encode", "amd64_k8_revb::PROBE:zzz"][..],
            "ATTR: \"zzz\" at 21: neither a unit mask of the event nor a modifier of the PMU",
        ),
        (
            &["encode", "amd64_k8_revb::PROBE:c=256"],
            "ATTR_VAL: \"c=256\" at 21: the counter mask 256 is above 255",
        ),
        (&["list", "i386"], "NOTFOUND: no PMU and no processor is called \"i386\""),
        (&["info", "PROBES"], "NOTFOUND: no event is called \"PROBES\"; similar names: PROBE"),
        (
            &["dispatch", "--cpu", "k7", "PROBE:ALL"],
            "NOTFOUND: \"PROBE\" at 0: the processor has no event of this name",
        ),
        (
            &["dispatch", "--cpu", "k8_revb", "RETIRED_UOPS", "--guest"],
            "BADHOST: event 0: guest and host are known since family 10h",
        ),
        (&["dispatch", "--cpu", "k8_revb", "--ibs-op", "16"], "BADHOST: the processor has no IBS"),
    ] {
        let (printed, messages, success) = run(arguments, String::new());
        assert_eq!((printed.as_str(), messages, success), ("", format!("pugmark: {message}\n"), false));
    }
    let (printed, _, success) = run(&["encode", "--json", "amd64_k8_revb::PROBE:zzz"], String::new());
    assert!(printed.contains("\"error\":\"ATTR\"") && !success, "{printed}");
}

#[test]
fn list_and_info_describe() {
    let all = print(&["list"]);
    for line in ["pmu\tamd64_fam1ah_zen5\t81 events\t", "cpu\tfam10h_reve\t125 events\t"] {
        assert!(all.contains(line), "{all}");
    }
    let events = print(&["list", "amd64_k7"]);
    assert_eq!(events.lines().count(), 24);
    assert_eq!(
        events.lines().nth(8),
        Some("CPU_CLK_UNHALTED\t0x076\tclocks in which the core is not halted")
    );

    let event = print(&["info", "amd64_fam10h_barcelona::l3_cache_misses"]);
    let lines: Vec<&str> = event.lines().collect();
    assert_eq!(lines[0], "L3_CACHE_MISSES 0x4e1: reads that miss the L3 cache");
    assert_eq!(lines[1], "  pmu: amd64_fam10h_barcelona");
    assert_eq!(lines[5], "  0x07 ANY_READ: reads of any kind [default] [alone]");
    assert_eq!(lines[6], "  0xf0 ALL_CORES: any core [group 1] [default] [alone]");
    assert_eq!(lines[7], "  modifiers: k u e i c h g");
    // Without a PMU in the request, PMUs with the same event share a block.
    let event = print(&["info", "PROBE"]);
    assert!(event.contains("  pmu: amd64_k8_revb amd64_k8_revc\n"), "{event}");
    let event = print(&["info", "fam10h_revc::IBSFETCH_EVENT"]);
    assert!(event.ends_with("  0x00 NO_RANDOM: the period is not randomized [alone]\n"), "{event}");
    let json = print(&["info", "--json", "amd64_k7::RETIRED_UOPS"]);
    assert!(json.contains("\"code\":\"0xc1\"") && json.contains("\"unit_masks\":[]"), "{json}");
}

#[test]
fn dispatch_prints_each_register() {
    let arguments =
        ["dispatch", "--cpu", "fam10h_revc", "CPU_CLK_UNHALTED@k", "--edge", "--ibs-op", "0x12345,uops"];
    let lines = "pmc0@0xc0010000=0x560076 PERFEVTSEL0 MSR 0xc0010000\n\
                 pmc7@0x0=0xa1234 IbsOpCtl MSR 0xc0011033\n\
                 pmd0@0xc0010004/rdpmc0\n\
                 pmd9@0x0/rdpmc0\n\
                 op_base=1 pmd9..pmd15\n";
    assert_eq!(print(&arguments), lines);
    let json =
        print(&["dispatch", "--cpu", "k7", "RETIRED_UOPS", "--unavailable", "1", "--plm", "8", "--json"]);
    assert!(json.contains("\"value\":\"0x5100c1\"") && json.contains("\"msr\":\"0xc0010001\""), "{json}");
}

#[test]
fn a_batch_fails_in_the_end_when_a_line_was_no_request() {
    let rows = "k7\n\
                k7\tRETIRED_UOPS\t9\t0\tno\t0\t0\t0\t0/0\t0/0\n";
    let (printed, messages, success) = run(&["dispatch", "--batch"], rows.to_owned());
    let answers: Vec<&str> =
        printed.lines().map(|line| line.split('\t').next().unwrap_or_default()).collect();
    assert_eq!(answers, ["INVAL", "SUCCESS"]);
    assert_eq!(
        messages,
        "line 1: 1 columns, but a request has 10\npugmark: 1 lines are not requests, as said above\n"
    );
    assert!(!success);
}

#[test]
fn batches_answer_the_vectors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/libpfm");
    // The file, the action, the number of columns of a request, and the columns of its answer.
    for (file, action, request, answer) in [
        ("validate.tsv", "encode", 1, &[2, 4, 5][..]),
        ("encode-examples.tsv", "encode", 1, &[2, 3, 4]),
        ("dispatch-examples.tsv", "dispatch", 10, &[11, 12, 13, 14]),
    ] {
        let text = fs::read_to_string(folder.join(file)).expect(file);
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split('\t').collect()).collect();
        assert!(!rows.is_empty(), "{file}");
        let requests: String = rows.iter().map(|row| row[..request].join("\t") + "\n").collect();
        let (printed, messages, success) = run(&[action, "--batch"], requests);
        assert!(success, "{file}: {messages}");
        assert_eq!(printed.lines().count(), rows.len(), "{file}");
        for (row, answered) in rows.iter().zip(printed.lines()) {
            let expected: Vec<&str> = answer.iter().map(|&column| row[column]).collect();
            let expected = expected.join("\t");
            let expected = expected.strip_prefix("PFM_").unwrap_or(&expected);
            assert_eq!(answered, expected.strip_prefix("ERR_").unwrap_or(expected), "{file}: {row:?}");
        }
    }
}
