//! `pugmark mem`, compared with the output of `perf script` for the same samples.

use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A folder that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-mem-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn pugmark(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pugmark")).args(arguments).current_dir(&self.0).output().unwrap()
    }

    /// Returns the report as JSON.
    fn report(&self, arguments: &[&str]) -> Value {
        let output = self.pugmark(&[&["mem", "--json", "--limit", "0"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns a record, given its kind and the bytes after its header.
fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = 8 + body.len() as u16;
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

const MMAP: u32 = 1;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
/// The code belongs to a program.
const USER: u16 = 2;
/// The process has executed another program.
const EXECUTED: u16 = 1 << 13;
/// The mapping is not code.
const DATA: u16 = 1 << 13;

/// Returns a text that is padded with zeros to whole longs.
fn text(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes
}

fn comm(misc: u16, process: u32, thread: u32, name: &str) -> Vec<u8> {
    record(COMM, misc, &[&process.to_le_bytes()[..], &thread.to_le_bytes(), &text(name)].concat())
}

fn mapping(misc: u16, process: u32, address: u64, len: u64, offset: u64, path: &str) -> Vec<u8> {
    let ids = [process.to_le_bytes(), process.to_le_bytes()].concat();
    record(MMAP, misc, &[ids, longs(&[address, len, offset]), text(path)].concat())
}

/// The fields of samples: IP, TID, ADDR, CPU, WEIGHT and DATA_SRC.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 7 | 1 << 14 | 1 << 15;

/// A sample of an access.
#[derive(Clone, Copy, Debug)]
struct Access {
    process: u32,
    thread: u32,
    cpu: u32,
    ip: u64,
    address: u64,
    weight: u64,
    data_src: u64,
}

const LOAD: u64 = 2;
const STORE: u64 = 4;
/// An access that hits the L1 and its TLB.
const HIT: u64 = 0x2908_0140;

impl Access {
    fn record(&self) -> Vec<u8> {
        let Self { process, thread, cpu, ip, address, weight, data_src } = *self;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let fields = [ip, pair(process, thread), address, pair(cpu, 0), weight, data_src];
        record(SAMPLE, USER, &longs(&fields))
    }
}

/// The number of the PMU of raw events.
const RAW_EVENTS: u32 = 4;

/// Returns a file of `perf record` with these records of an event of `sample_type`.
fn perf_data(sample_type: u64, records: &[Vec<u8>]) -> Vec<u8> {
    perf_data_with(RAW_EVENTS, sample_type, &[], records)
}

/// Returns the same for an event of a PMU, with features, each with its number.
fn perf_data_with(pmu: u32, sample_type: u64, features: &[(u32, Vec<u8>)], records: &[Vec<u8>]) -> Vec<u8> {
    const EVENT_BYTES: usize = 128;
    let data = records.concat();
    let begin = 104 + EVENT_BYTES + 16;
    let event_section = [(EVENT_BYTES + 16) as u64, 104, (EVENT_BYTES + 16) as u64];
    let header = [u64::from_le_bytes(*b"PERFILE2"), 104];
    let bits = features.iter().map(|(number, _)| 1 << number).sum();
    let rest = [begin as u64, data.len() as u64, 0, 0, bits, 0, 0, 0];
    // Type and size, config, period, the fields of samples.
    let mut event = longs(&[u64::from(pmu) | (EVENT_BYTES as u64) << 32, 0x1cd, 1000, sample_type]);
    event.resize(EVENT_BYTES + 16, 0);
    let mut at = (begin + data.len() + 16 * features.len()) as u64;
    let mut sections = vec![];
    for (_, bytes) in features {
        sections.extend(longs(&[at, bytes.len() as u64]));
        at += bytes.len() as u64;
    }
    let features = features.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    [longs(&header), longs(&event_section), longs(&rest), event, data, sections, features].concat()
}

/// Returns accesses with every value that a field of `data_src` has on some processor, and random other fields.
fn accesses() -> Vec<Access> {
    let levels: Vec<u64> = [0x8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000]
        .into_iter()
        .flat_map(|level| [level | 2, level | 4])
        .chain([1])
        .map(|level| level << 5)
        // For newer processors, Linux has a number, a bit for remote, and the number of hops.
        .chain((1..=4).chain(9..=15).map(|number| number << 33))
        .chain([1, 2, 3, 0xb, 0xd].map(|number| number << 33 | 1 << 37))
        .chain([1, 2].map(|hops| 0xb << 33 | 1 << 37 | hops << 43))
        .collect();
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut found = vec![];
    for round in 0..40 {
        for level in &levels {
            // None, hit and miss, in the L1 or the L2, or by a walk.
            let tlb = [1, 2 | 8, 2 | 0x10, 4 | 0x10][random(4) as usize];
            let operation = [LOAD, LOAD, STORE, 1][random(4) as usize];
            let snoop = [1, 2, 4, 8, 0x10][random(5) as usize];
            let lock = [1, 2][random(2) as usize];
            found.push(Access {
                process: 7,
                thread: 7 + random(3) as u32,
                cpu: random(4) as u32,
                ip: 0x1000 + random(64),
                address: if round % 5 == 0 { 0 } else { 0x7000 + random(0x4000) },
                weight: random(3) * random(500),
                data_src: operation | level | snoop << 19 | lock << 24 | tlb << 26,
            });
        }
    }
    found
}

/// The names of levels: perf's, and ours.
const LEVELS: [(&str, &str); 24] = [
    ("N/A", "unknown"),
    ("L1", "L1"),
    ("LFB/MAB", "line buffer"),
    ("L2", "L2"),
    ("L3", "L3"),
    ("Local RAM", "memory"),
    ("Remote RAM (1 hop)", "remote memory"),
    ("Remote RAM (2 hops)", "remote memory"),
    ("Remote Cache (1 hop)", "remote cache"),
    ("Remote Cache (2 hops)", "remote cache"),
    ("I/O", "I/O"),
    ("Uncached", "uncached"),
    ("L4", "L4"),
    ("Remote L1", "remote cache"),
    ("Remote L2", "remote cache"),
    ("Remote L3", "remote cache"),
    ("CXL", "extension memory"),
    ("Any cache", "a cache"),
    ("Remote Any cache", "remote cache"),
    ("Remote core, same node Any cache", "other core's cache"),
    ("Remote node, same socket Any cache", "remote cache"),
    ("RAM", "memory"),
    ("Remote RAM", "remote memory"),
    ("PMEM", "persistent memory"),
];

#[test]
fn what_perf_script_prints_of_accesses_is_what_is_counted() {
    let folder = Scratch::new("perf");
    let accesses = accesses();
    let records: Vec<Vec<u8>> = accesses.iter().map(Access::record).collect();
    fs::write(folder.0.join("perf.data"), perf_data(SAMPLE_TYPE, &records)).unwrap();
    let mut perf = Command::new("perf");
    perf.args(["script", "-i", "perf.data", "-F", "tid,cpu,addr,weight,data_src"]).current_dir(&folder.0);
    let Ok(output) = perf.output() else {
        println!("skipped: perf is not installed");
        return;
    };
    let printed = String::from_utf8(output.stdout).unwrap();
    // Each access has operation, level and state of the line; translation; cache line; latency.
    let (mut sources, mut translations, mut lines) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::<u64, BTreeSet<u64>>::new());
    let (mut latencies, mut locked, mut count) = (vec![], 0, 0);
    for line in printed.lines() {
        let (before, source) = line.split_once('|').unwrap();
        let fields: Vec<&str> = source.split('|').collect();
        let [operation, level, snoop, tlb, lock, rest] = fields[..] else { panic!("{line}") };
        let word = |field: &str, name: &str| field.strip_prefix(name).unwrap().trim().to_owned();
        let operation = match &*word(operation, "OP ") {
            "N/A" => continue,
            operation => operation.to_lowercase(),
        };
        let level = word(level, "LVL ");
        let (level, miss) = match level.strip_suffix(" miss") {
            Some(level) => (level, " miss"),
            None => (level.strip_suffix(" hit").unwrap_or(&level), ""),
        };
        let level = LEVELS.iter().find(|(theirs, _)| *theirs == level).unwrap_or_else(|| panic!("{level}")).1;
        let modified = if word(snoop, "SNP ") == "HitM" { ", modified" } else { "" };
        let translation = match &*word(tlb, "TLB ") {
            "N/A" => "unknown",
            "L1 hit" => "L1 TLB",
            "L2 hit" => "L2 TLB",
            "L2 miss" => "page walk",
            other => panic!("{other}"),
        };
        *sources.entry(format!("{operation} {level}{miss}{modified}")).or_insert(0_u64) += 1;
        *translations.entry(translation.to_owned()).or_insert(0_u64) += 1;
        locked += u64::from(word(lock, "LCK ") == "Yes");
        count += 1;
        let before: Vec<&str> = before.split_whitespace().collect();
        let [thread, _, address, _] = before[..] else { panic!("{line}") };
        let address = u64::from_str_radix(address, 16).unwrap();
        if address != 0 {
            lines.entry(address & !63).or_default().insert(thread.parse().unwrap());
        }
        let weight: u64 = rest.split_whitespace().last().unwrap().parse().unwrap();
        latencies.extend(Some(weight).filter(|weight| *weight != 0));
    }
    latencies.sort_unstable();
    let report = folder.report(&["perf.data"]);
    assert!(count > 500 && count < accesses.len(), "{count}");
    assert_eq!((&report["samples"], &report["accesses"]), (&json!(accesses.len()), &json!(count)));
    assert_eq!(report["locked"], locked);
    let by_name = |table: &str| -> BTreeMap<String, u64> {
        let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap());
        report[table].as_array().unwrap().iter().map(row).collect()
    };
    assert_eq!(by_name("sources"), sources);
    assert_eq!(by_name("translations"), translations);
    let latency = &report["latency"];
    assert_eq!(latency["sum"], latencies.iter().sum::<u64>());
    assert_eq!((&latency["count"], &latency["most"]), (&json!(latencies.len()), &json!(latencies.last())));
    assert_eq!(latency["median"], latencies[(latencies.len() - 1) / 2]);
    let found: BTreeMap<u64, u64> = report["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let address = row["address"].as_str().unwrap().trim_start_matches("0x");
            (u64::from_str_radix(address, 16).unwrap(), row["threads"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, lines.into_iter().map(|(line, threads)| (line, threads.len() as u64)).collect());
}

/// Samples of a program are named by its symbols and its debug information, in all processes that have the program.
#[cfg(target_os = "linux")]
#[test]
fn data_and_code_are_named_as_nm_and_addr2line_do() {
    use object::{Object, ObjectSegment};
    const SOURCE: &str = "int first[4] = {1}; static int second;\n\
        __attribute__((noinline)) int work(int n) {\n  second += n;\n  return first[n & 3];\n}\n\
        int main(int n, char **words) { return work(n); }\n";
    let folder = Scratch::new("names");
    fs::create_dir(folder.0.join("bin")).unwrap();
    fs::write(folder.0.join("program.c"), SOURCE).unwrap();
    let run = |name: &str, words: &[&str]| -> Option<String> {
        let output = Command::new(name).args(words).current_dir(&folder.0).output().ok()?;
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let compiled = run("cc", &["-g", "-O1", "-pie", "-fPIE", "-o", "bin/program", "program.c"]);
    let Some(symbols) = compiled.and_then(|_| run("nm", &["bin/program"])) else {
        println!("skipped: a compiler or nm is not installed");
        return;
    };
    let address = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
        u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap()
    };
    let ip = address("work") + 4;
    // The program is at two places: in process 20, and in 22, a child of 21 that executes no other program.
    let bytes = fs::read(folder.0.join("bin/program")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mappings = |process: u32, moved: u64| -> Vec<Vec<u8>> {
        let segments = file.segments().filter(|segment| segment.size() > 0);
        let mapped = segments.map(|segment| {
            let begin = segment.address() & !0xfff;
            let end = (segment.address() + segment.size()).next_multiple_of(0x1000);
            mapping(0, process, begin + moved, end - begin, segment.file_range().0 & !0xfff, "/bin/program")
        });
        mapped.collect()
    };
    let fork = |parent: u32, child: u32| {
        let ids = [child, parent, child, parent].map(u32::to_le_bytes).concat();
        record(FORK, 0, &[ids, longs(&[0])].concat())
    };
    let access = |process, moved, address: u64, data_src| Access {
        process,
        thread: process,
        cpu: 0,
        ip: ip + moved,
        address: address + moved,
        weight: 0,
        data_src,
    };
    const PLACES: [u64; 2] = [0x5555_5555_0000, 0x7777_7777_0000];
    let mut records = mappings(20, PLACES[0]);
    records.extend(mappings(21, PLACES[1]));
    records.push(fork(21, 22));
    // Later executions and mappings of the parent do not affect the child.
    records.push(comm(EXECUTED, 21, 21, "other"));
    records.push(mapping(0, 21, PLACES[1], 0x100_0000, 0, "/bin/other"));
    records.push(access(20, PLACES[0], address("second"), HIT | STORE).record());
    records.push(access(22, PLACES[1], address("first") + 8, HIT | LOAD).record());
    records.push(access(21, PLACES[1], address("first") + 8, HIT | LOAD).record());
    fs::write(folder.0.join("perf.data"), perf_data(SAMPLE_TYPE, &records)).unwrap();
    let report = folder.report(&["--symfs", ".", "perf.data"]);
    let mut lines: Vec<(u64, &str)> = report["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["process"].as_u64().unwrap(), row["data"].as_str().unwrap()))
        .collect();
    lines.sort_unstable();
    let expected = [(20, "second (/bin/program)"), (21, "/bin/other"), (22, "first+0x8 (/bin/program)")];
    assert_eq!(lines, expected);
    let rows = |table: &str| -> Vec<(String, u64)> {
        let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap());
        report[table].as_array().unwrap().iter().map(row).collect()
    };
    let functions = [("work (/bin/program)".to_owned(), 2), ("[unknown] ([unknown])".to_owned(), 1)];
    assert_eq!(rows("functions"), functions);
    let ip = format!("{:#x}", ip);
    if let Some(line) = run("addr2line", &["-e", "bin/program", &ip]) {
        assert_eq!(rows("source_lines"), [(line.trim().to_owned(), 2)]);
    }
}

/// A program whose threads count in one line, each in its own bytes, and all of them in another line.
#[test]
fn lines_that_threads_share_are_told_apart_by_whether_they_share_the_bytes() {
    let folder = Scratch::new("shared");
    let access = |thread, cpu, address, operation| Access {
        process: 20,
        thread,
        cpu,
        ip: 0x40_1000,
        address,
        weight: 0,
        data_src: HIT | operation,
    };
    let mut records = vec![comm(EXECUTED, 20, 20, "program"), comm(0, 20, 21, "worker")];
    records.push(mapping(DATA, 20, 0x1_0000, 0x10000, 0, "[heap]"));
    let accesses = [
        // Two threads, each with its own bytes.
        access(20, 0, 0x1_0000, STORE),
        access(20, 0, 0x1_0000, LOAD),
        access(21, 1, 0x1_0008, STORE),
        // The same bytes.
        access(20, 0, 0x1_0040, STORE),
        access(21, 1, 0x1_0040, LOAD),
        // No thread writes.
        access(20, 0, 0x1_0080, LOAD),
        access(21, 1, 0x1_0088, LOAD),
        // A single processor.
        access(20, 0, 0x1_00c0, STORE),
        access(21, 0, 0x1_00c8, STORE),
        // A single thread that moves to another processor.
        access(20, 0, 0x1_0100, STORE),
        access(20, 1, 0x1_0108, STORE),
        // Both read the bytes beside the written ones.
        access(20, 0, 0x1_0140, LOAD),
        access(21, 1, 0x1_0140, LOAD),
        access(20, 0, 0x1_0148, STORE),
        // Another process has another line at the same address.
        Access { process: 30, ..access(30, 1, 0x1_0180, STORE) },
        access(20, 0, 0x1_0180, STORE),
        // The kernel's addresses are the same in all processes; without a thread, the processor takes its place.
        Access { process: 0, ..access(0, 0, 0xffff_8880_0000_0000, STORE) },
        Access { process: 0, ..access(0, 1, 0xffff_8880_0000_0008, STORE) },
    ];
    records.extend(accesses.iter().map(Access::record));
    fs::write(folder.0.join("perf.data"), perf_data(SAMPLE_TYPE, &records)).unwrap();
    let report = folder.report(&["perf.data"]);
    let mut shared: Vec<(&str, &str)> = report["shared"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["address"].as_str().unwrap(), row["sharing"].as_str().unwrap()))
        .collect();
    shared.sort_unstable();
    assert_eq!(
        shared,
        [("0x10000", "false"), ("0x10040", "true"), ("0x10140", "false"), ("0xffff888000000000", "false"),]
    );
    let row = report["shared"].as_array().unwrap().iter().find(|row| row["address"] == "0x10000").unwrap();
    let parts: Vec<Value> = row["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| json!([part["offset"], part["thread"], part["cpus"], part["loads"], part["stores"]]))
        .collect();
    assert_eq!(parts, [json!([0, "program 20", [0], 1, 1]), json!([8, "worker 21", [1], 0, 1])]);
    assert_eq!((&row["data"], &row["process"]), (&json!("[heap]"), &json!(20)));
    let text = String::from_utf8(folder.pugmark(&["mem", "perf.data"]).stdout).unwrap();
    assert!(
        text.contains("      +0x08  0 loads, 1 stores by worker 21 on CPU 1: [heap]; at 0x401000\n"),
        "{text}"
    );
}

/// Returns a raw sample of op IBS on Zen 4: a load of 8 bytes at 7008 that missed the L1 and hit the L2 after 77
/// cycles.
fn raw_op() -> Vec<u8> {
    let data3 = 1 | 1 << 7 | 1 << 17 | 4 << 22 | 77 << 32;
    // IbsOpCtl, IbsOpRip, IbsOpData to IbsOpData3, IbsDcLinAd, IbsDcPhysAd, IbsBrTarget.
    let registers = longs(&[1 << 18, 0x40_1000, 0, 0, data3, 0x7008, 0, 0]);
    [&0xbff_u32.to_le_bytes()[..], &registers].concat()
}

#[test]
fn raw_samples_of_ibs_are_counted_in_a_file_of_their_own() {
    let folder = Scratch::new("raw");
    let op = raw_op();
    let sample = [&(op.len() as u32).to_le_bytes()[..], &op].concat();
    fs::write(folder.0.join("raw"), [sample.clone(), sample].concat()).unwrap();
    let report = folder.report(&["raw"]);
    assert_eq!((&report["samples"], &report["accesses"]), (&json!(2), &json!(2)));
    assert_eq!(report["sources"][0]["name"], "load L2");
    assert_eq!((&report["latency"]["sum"], &report["lines"][0]["address"]), (&json!(154), &json!("0x7000")));
    // The samples have no threads.
    assert_eq!(report["lines"][0]["threads"], 0);
    // Before family 17h no bit reports a miss of the L2.
    let report = folder.report(&["--cpu", "0x10/0x02", "raw"]);
    assert_eq!(report["sources"][0]["name"], "load unknown");
}

#[test]
fn raw_samples_of_ibs_in_perfs_file_say_more_than_linux_does() {
    const IBS_OP: u32 = 9;
    const RAW: u64 = 1 << 10;
    let folder = Scratch::new("ibs");
    let string = |text: &str| [&(text.len() as u32 + 1).to_le_bytes()[..], text.as_bytes(), &[0]].concat();
    // The processor and the PMUs are features 9 and 16.
    let features = |processor: &str, pmu: &str| {
        let pmus = [&1_u32.to_le_bytes()[..], &IBS_OP.to_le_bytes(), &string(pmu)].concat();
        [(9, string(processor)), (16, pmus)]
    };
    let op = raw_op();
    let raw = [&(op.len() as u32).to_le_bytes()[..], &op].concat();
    // IP, the raw sample, and the data source, a store to the L1.
    let body = [longs(&[0x40_1000]), raw, longs(&[HIT | STORE])].concat();
    let found = |processor: &str, pmu: &str| {
        let records = [record(SAMPLE, USER, &body)];
        let data = perf_data_with(IBS_OP, 1 | RAW | 1 << 15, &features(processor, pmu), &records);
        fs::write(folder.0.join("perf.data"), data).unwrap();
        folder.report(&["perf.data"])["sources"][0]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(found("AuthenticAMD,25,17,1", "ibs_op"), "load L2");
    // Before family 17h no bit reports a miss of the L2.
    assert_eq!(found("AuthenticAMD,16,2,3", "ibs_op"), "load unknown");
    // Raw samples of other events have another format.
    assert_eq!(found("AuthenticAMD,25,17,1", "other"), "store L1");
    assert_eq!(found("GenuineIntel,6,94,3", "ibs_op"), "load L2");
}

#[test]
fn a_file_without_accesses_says_why() {
    let folder = Scratch::new("errors");
    let refused = |name: &str, bytes: &[u8], expected: &str| {
        fs::write(folder.0.join(name), bytes).unwrap();
        let output = folder.pugmark(&["mem", name]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), message.trim_end()), (Some(1), expected));
    };
    refused("empty", b"", "pugmark: empty: it is empty");
    refused(
        "other",
        &[9; 16],
        "pugmark: other: neither a file of perf nor raw samples of IBS: 0x0: 16 bytes where 151587085 are needed",
    );
    refused("none", &perf_data(SAMPLE_TYPE, &[]), "pugmark: none: there is no sample in it");
    let access = Access { process: 7, thread: 7, cpu: 0, ip: 1, address: 2, weight: 3, data_src: HIT | LOAD };
    let whole = access.record();
    let short = record(SAMPLE, USER, &whole[8..whole.len() - 8]);
    refused(
        "short",
        &perf_data(SAMPLE_TYPE, &[whole, short]),
        "pugmark: cannot read short: sample 1: a sample of 40 bytes ends within its field DATA_SRC at 0x28",
    );
    refused(
        "plain",
        &perf_data(1, &[record(SAMPLE, USER, &longs(&[1]))]),
        "pugmark: plain: no sample of event 0 says what it accesses: `perf mem record`, or -d -W for `perf record`",
    );
    // 1: no operation.
    let nothing = Access { data_src: 1, ..access };
    refused(
        "nothing",
        &perf_data(SAMPLE_TYPE, &[nothing.record()]),
        "pugmark: warning: none of the samples is of a memory access",
    );
}

#[test]
fn a_limit_says_how_many_rows_there_are() {
    let folder = Scratch::new("limit");
    let records: Vec<Vec<u8>> = accesses().iter().map(Access::record).collect();
    fs::write(folder.0.join("perf.data"), perf_data(SAMPLE_TYPE, &records)).unwrap();
    let all = folder.report(&["perf.data"])["lines"].as_array().unwrap().len();
    let output = folder.pugmark(&["mem", "--limit", "2", "perf.data"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, lines) = text.split_once(&format!("\ncache lines, the first of {all}:\n")).unwrap();
    // A head, two rows, and an empty line.
    let rows: Vec<&str> = lines.lines().take(4).collect();
    assert!(rows[0].ends_with("threads") && rows[1].contains("  0x") && rows[2].contains("  0x"), "{text}");
    assert_eq!(rows[3], "");
}
