use super::builder::{
    AUX, Made, NONE, PerfFileBuilder, SAMPLE_TYPE, bpf_program, compressed, info, longs, record, trace,
};
use super::*;
use crate::source::TextPoke;

const MADE: Made = Made { time: 5, cpu: 3, task: (7, 8) };
/// Returns a PSB+ with a time, and something after it.
fn psb(tsc: u8, more: &[u8]) -> Vec<u8> {
    [&[0x02, 0x82].repeat(8)[..], &[0x19, tsc, 0, 0, 0, 0, 0, 0], &[0x02, 0x23], more].concat()
}

fn read(bytes: &[u8]) -> Result<PerfData> {
    PerfData::of(&PerfFile::parse(bytes.to_vec())?)
}

fn file(records: &[Vec<u8>]) -> Vec<u8> {
    PerfFileBuilder { config: 3 << 14 | 0x400, ..PerfFileBuilder::new(records.to_vec()) }.file()
}

fn aux(cpu: Option<u32>, thread: Option<u32>, offset: u64, bytes: &[u8]) -> AuxTrace {
    AuxTrace { cpu, thread, offset, reference: 0, bytes: bytes.into() }
}

fn mapping(path: &str, executable: bool) -> SystemChange {
    let path: Arc<Path> = Path::new(path).into();
    SystemChange::Map(Mapping {
        process: 7,
        address: 0x40_0000,
        len: 0x3000,
        offset: 0x1000,
        path,
        executable,
    })
}

fn poke(old: &[u8], new: &[u8]) -> SystemChange {
    SystemChange::Poke(TextPoke { address: 0x1000, old: old.into(), new: new.into() })
}

/// Records of each kind, and what is made of them.
fn each_kind() -> (Vec<Vec<u8>>, Vec<SystemChange>) {
    let task = |pid, tid| SystemTask { pid, tid };
    let own = task(7, 8);
    let mut older = longs(&[7 | 8 << 32, 0x40_0000, 0x3000, 0x1000]);
    older.extend(b"/bin/y\0\0");
    older.extend(longs(&[7 | 8 << 32, 5, 3, 77]));
    let name = |exec| SystemChange::Name { task: own, name: "x".into(), exec };
    let switch = |from, to| SystemChange::Switch { from, to };
    let all = [
        (MADE.maps(0x40_0000, 0x3000, 0x1000, "/bin/x"), mapping("/bin/x", true)),
        (MADE.maps_with(0x40_0000, 0x3000, 0x1000, 3, "/bin/x"), mapping("/bin/x", false)),
        // As older kernels record it: a flag says that it is of data.
        (record(1, 2, &older), mapping("/bin/y", true)),
        (record(1, 2 | 1 << 13, &older), mapping("/bin/y", false)),
        (MADE.named("x", true), name(true)),
        (MADE.named("x", false), name(false)),
        (MADE.forks((9, 10)), SystemChange::Fork { task: task(9, 10), parent: 7, has_mappings: true }),
        (MADE.switches_to((11, 12)), switch(Some(own), Some(task(11, 12)))),
        (MADE.begins(), switch(None, Some(own))),
        (MADE.pokes(0x1000, b"", b"abc"), poke(b"", b"abc")),
        (MADE.pokes(0x1000, b"\x0f\x1f", b""), poke(b"\x0f\x1f", b"")),
        (MADE.aux(1), SystemChange::TraceLost),
        (MADE.aux(4), SystemChange::TraceLost),
        (MADE.lost(6), SystemChange::RecordsLost(6)),
    ];
    all.into_iter().unzip()
}

#[test]
fn records_of_each_kind_say_what_the_system_did() {
    let (mut records, changes) = each_kind();
    // Nothing is lost, and the end of a thread.
    records.extend([MADE.aux(0), info(false), trace(0, 0, 3, NONE, b"12345678")]);
    let data = read(&file(&records)).unwrap();
    let expected = changes.into_iter().map(|change| SystemRecord { time: 5, cpu: Some(3), change });
    assert_eq!(data.records, expected.collect::<Vec<_>>());
    assert_eq!(data.problems, [] as [&str; 0]);
    assert_eq!(data.cpu, Some(Cpu::intel(6, 94, 3)));
    let clocks =
        Clocks { mtc_freq: 3, nom_freq: 42, cpuid_15h_eax: 2, cpuid_15h_ebx: 168, ..Clocks::default() };
    assert_eq!((data.clocks, data.clock), (clocks, Some(PerfClock { zero: 0, shift: 0, mult: 1 })));
}

#[test]
fn an_overflow_marks_where_some_of_a_trace_was_lost() {
    let psb_end = b"\x02\x23";
    use pugmark_decoder_core::packet::PSB;
    let bytes = |before: &[u8]| [&PSB[..], psb_end, before, b"\x11abcdefgh"].concat();
    let marked = |left: &[u8]| bytes(&[left, b"\x02\xf3"].concat());
    let traces = |records: &[Vec<u8>]| read(&file(records)).unwrap().traces;
    let truncated = |bytes: &[u8]| MADE.aux_of(0, bytes.len() as u64 - 9, 1);
    // A TIP of which all bytes, some, or one were stored, and none but the padding before it.
    // A PSB+ that is whole; one without its end, in the middle of its FUP; and half a PSB.
    let again = [b"\0", &PSB[..], b"\x99\x01\x7d\0\0\0\0\x81\xff\x02\x23"].concat();
    let cut_again = [(&again[..], again.len()), (&again[..22], 1), (&again[..9], 1)];
    let cut_packets = [(&b"\0\x2d\x03\x04"[..], 4), (b"\0\x2d\x03", 1), (b"\0\x2d", 1), (b"\0", 1)];
    for (before, left) in cut_packets.into_iter().chain(cut_again) {
        let (whole, expected) = (bytes(before), marked(&before[..left]));
        let of_cpu = |cpu| trace(0, 0, cpu, NONE, &whole);
        let cpu = [aux(Some(3), None, 0, &expected)];
        assert_eq!(traces(&[info(false), of_cpu(3), truncated(&whole)]), cpu, "{before:x?}");
        // The same record twice, and the record before the trace.
        assert_eq!(traces(&[info(false), truncated(&whole), of_cpu(3), truncated(&whole)]), cpu);
        let of_thread = trace(0, 0, NONE, 8, &whole);
        assert_eq!(traces(&[info(false), of_thread, truncated(&whole)]), [aux(None, Some(8), 0, &expected)]);
        // Of another processor; and where nothing follows.
        assert_eq!(traces(&[info(false), of_cpu(4), truncated(&whole)]), [aux(Some(4), None, 0, &whole)]);
        let end = &whole[..whole.len() - 9];
        assert_eq!(traces(&[info(false), trace(0, 0, 3, NONE, end), truncated(&whole)])[0].bytes, end);
        // The offsets of snapshots mean nothing.
        assert_eq!(traces(&[info(true), of_cpu(3), truncated(&whole)])[0].bytes, whole);
    }
    // Nothing was lost.
    let whole = bytes(b"");
    let records = [info(false), trace(0, 0, 3, NONE, &whole), MADE.aux_of(0, 18, 0)];
    assert_eq!(traces(&records)[0].bytes, whole);
}

#[test]
fn compressed_records_and_those_from_a_pipe_are_the_same() {
    let (records, _) = each_kind();
    let many = records.concat().repeat(40);
    let rest = [info(false), trace(0, 0, 3, NONE, b"12345678")];
    let plain = read(&file(&[&rest[..], std::slice::from_ref(&many)].concat())).unwrap();
    assert_eq!(plain.records.len(), 40 * records.len());
    for each in [1, 50, 701, 30_000] {
        let packed = compressed(&many, each);
        assert_eq!(read(&file(&[&rest[..], &packed].concat())).unwrap(), plain, "{each}");
        // A stream that is cut is read up to the cut.
        let cut = read(&file(&[&rest[..], &packed[..packed.len() - 1]].concat())).unwrap();
        assert!(cut.records.len() < plain.records.len(), "{each}");
        assert_eq!(cut.records, plain.records[..cut.records.len()], "{each}");
    }
    let builder =
        PerfFileBuilder { config: 3 << 14 | 0x400, ..PerfFileBuilder::new([&rest[..], &[many]].concat()) };
    assert_eq!(read(&builder.pipe()).unwrap(), plain);
}

#[test]
fn a_stream_that_grows_without_end_is_refused() {
    // Blocks of one byte that is repeated 128 KiB times.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    for _ in 0..1200 {
        bomb.extend([0x02, 0, 0x10, 0]);
    }
    let records = [info(false), record(81, 0, &bomb)];
    let found = read(&file(&records));
    // The repeated byte reads as records of type 0 and size 0, of which nothing is kept.
    let text = found.map_or_else(|error| format!("{error:#}"), |data| data.problems.concat());
    assert!(text.contains("compressed"), "{text}");
}

#[test]
fn parts_that_follow_one_another_are_one_trace_and_a_gap_begins_another() {
    let data = read(&file(&[
        info(false),
        trace(0, 0, 3, NONE, b"12345\0\0\0"),
        trace(0, 5, 3, NONE, b"678"),
        trace(1, 0, NONE, 12, b"abcdefgh"),
        trace(0, 8, 3, NONE, b"9abcdefg"),
        trace(0, 16, 3, NONE, b""),
        trace(0, 32, 3, NONE, b"after gap"),
        trace(0, 32, 3, NONE, b"after gap"),
        trace(0, 33, 3, NONE, b"fter gap, and more"),
    ]))
    .unwrap();
    let expected = [
        aux(Some(3), None, 0, b"123456789abcdefg"),
        aux(Some(3), None, 32, b"after gap, and more"),
        aux(None, Some(12), 0, b"abcdefgh"),
    ];
    assert_eq!(data.traces, expected);
    let names: Vec<_> = data.traces.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["cpu-3", "cpu-3 from 0x20", "thread-12"]);
}

#[test]
fn the_bytes_that_snapshots_share_are_there_once() {
    // Parts of one trace: each begins with a PSB+.
    let parts = [psb(1, b"\x06\x06\x06"), psb(2, b"\x04\x06"), psb(3, b"\x1e"), psb(4, b"\x0e\x0e")];
    let untimed =
        |number: u8| [&[0x02, 0x82].repeat(8)[..], &[0x02, 0x23], &[0x06 | number << 3; 5]].concat();
    let others = [untimed(0), untimed(1), untimed(2), untimed(3)];
    for parts in [parts, others] {
        let all = parts.concat();
        let snapshot = |range: std::ops::Range<usize>| parts[range].concat();
        let found = |snapshots: &[Vec<u8>]| -> Vec<Vec<u8>> {
            // The offsets of snapshots mean nothing.
            let traces = snapshots.iter().map(|bytes| trace(0, 0x1000, 3, NONE, bytes));
            let records: Vec<_> = [info(true)].into_iter().chain(traces).collect();
            read(&file(&records)).unwrap().traces.into_iter().map(|trace| trace.bytes).collect()
        };
        for (snapshots, expected) in [
            (vec![snapshot(0..4)], vec![all.clone()]),
            (vec![snapshot(0..4), snapshot(0..4)], vec![all.clone()]),
            (vec![snapshot(0..3), snapshot(1..4)], vec![all.clone()]),
            (vec![snapshot(0..2), snapshot(1..3), snapshot(2..4)], vec![all.clone()]),
            (vec![snapshot(0..1), snapshot(2..4)], vec![snapshot(0..1), snapshot(2..4)]),
            // The first bytes of a ring may be the end of a packet.
            (vec![snapshot(0..3), [&all[5..20], &snapshot(2..4)].concat()], vec![all.clone()]),
            // perf pads a snapshot.
            (vec![[&snapshot(0..3), &[0, 0][..]].concat(), snapshot(1..4)], vec![all.clone()]),
        ] {
            assert_eq!(found(&snapshots), expected, "{snapshots:x?}");
        }
    }
}

#[test]
fn traces_in_samples_are_those_of_their_processor() {
    let (one, other) = (psb(1, b"\x06\x06"), psb(2, b"\x04"));
    let on = |cpu| Made { cpu, ..MADE };
    let both = [&one[..], &other].concat();
    let samples = [on(1).sample(&one), on(2).sample(&other), on(1).sample(&both)];
    let builder = PerfFileBuilder {
        sample_type: SAMPLE_TYPE | AUX,
        ..PerfFileBuilder::new([&[info(false)], &samples[..]].concat())
    };
    let traces = read(&builder.file()).unwrap().traces;
    let of = |cpu, bytes: &[u8]| AuxTrace { reference: 5, ..aux(Some(cpu), None, 0, bytes) };
    assert_eq!(traces, [of(1, &both), of(2, &other)]);
}

/// A folder with files, which is removed when the value is dropped.
struct PerfFolder(PathBuf);

impl PerfFolder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
        Self(folder)
    }
}

impl Drop for PerfFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_files_of_a_folder_are_one_file() {
    let (records, changes) = each_kind();
    let rest = trace(0, 0, 3, NONE, b"12345678");
    let (first, second) = records.split_at(4);
    // File 10 comes after file 2; files with other names are not perf's.
    let files: [(&str, &[u8]); 5] = [
        ("data", &file(&[info(false)])),
        ("data.2", &first.concat()),
        ("data.10", &[&compressed(&second.concat(), 90).concat()[..], &rest, &[1, 2, 3]].concat()),
        ("data.old", b"PERFILE2"),
        ("data10", b"PERFILE2"),
    ];
    let folder = PerfFolder::new("folder", &files);
    std::fs::create_dir_all(folder.0.join("data.3")).unwrap();
    assert!(PerfData::is_one(&folder.0));
    let found = PerfData::read(&folder.0).unwrap();
    assert_eq!(found.records.into_iter().map(|record| record.change).collect::<Vec<_>>(), changes);
    assert_eq!(found.traces, [aux(Some(3), None, 0, b"12345678")]);
    let size = files[2].1.len() - 3;
    assert_eq!(found.problems, [format!("data.10: at {size:#x}: 0x3 bytes, which are no record")]);
}

#[test]
fn samples_of_several_files_come_in_the_order_of_their_times() {
    let at = |time| Made { time, ..MADE };
    let builder =
        PerfFileBuilder { sample_type: SAMPLE_TYPE | AUX, ..PerfFileBuilder::new(vec![info(false)]) };
    let samples = [at(9).sample(&[]), at(6).sample(&[])].concat();
    let programs =
        [at(5).named("x", true), at(5).maps(0x1000, 0x100, 0, "/x"), at(8).named("y", true)].concat();
    let folder =
        PerfFolder::new("samples", &[("data", &builder.file()), ("data.0", &samples), ("data.1", &programs)]);
    let found = samples::PerfSamples::read(&folder.0).unwrap();
    let of = |number: usize| &found.programs[found.samples[number].2].mappings;
    assert_eq!(found.samples.iter().map(|(sample, ..)| sample.time).collect::<Vec<_>>(), [Some(6), Some(9)]);
    assert_eq!((of(0).len(), of(1).len()), (1, 0));
}

#[test]
fn files_of_another_recording_are_refused() {
    let with_clock = |mult: u8| {
        let mut info = info(false);
        info[16 + 2 * 8] = mult;
        file(&[info, trace(0, 0, 3, NONE, b"12345678")])
    };
    let folder =
        PerfFolder::new("others", &[("a", &with_clock(1)), ("b", &with_clock(2)), ("c", &with_clock(1))]);
    let read = |names: [&str; 2]| PerfData::read_all(&names.map(|name| folder.0.join(name)));
    // No part is there twice.
    assert_eq!(read(["a", "c"]).unwrap(), read(["a", "a"]).unwrap());
    assert_eq!(read(["a", "c"]).unwrap().traces, [aux(Some(3), None, 0, b"12345678")]);
    let error = format!("{:#}", read(["a", "b"]).unwrap_err());
    assert!(error.contains("b is of another recording than") && error.ends_with("another one"), "{error}");
}

#[test]
fn bpf_programs_are_there_since_the_kernel_has_named_them() {
    let at = |time| Made { time, ..MADE };
    let (one, other): (&[u8], &[u8]) = (b"abc", b"defg");
    let records = [
        info(false),
        at(20).names_code(0x1000, 0, "bpf_prog_abababababababab_second"),
        at(15).names_code(0x1000, 1, "bpf_prog_cdcdcdcdcdcdcdcd_first"),
        at(10).names_code(0x1000, 0, "bpf_prog_cdcdcdcdcdcdcdcd_first"),
    ];
    let bpf = [
        &2_u32.to_le_bytes()[..],
        &bpf_program(0xab, &[(0x1000, one)]),
        &bpf_program(0xcd, &[(0x1000, other), (0x2000, one)]),
    ]
    .concat();
    let found = |bpf: &[u8]| {
        let builder = PerfFileBuilder { bpf: bpf.into(), ..PerfFileBuilder::new(records.to_vec()) };
        let changes = read(&builder.file()).unwrap().records.into_iter();
        let code = |record: SystemRecord| match record.change {
            SystemChange::Poke(TextPoke { address, old, new }) if old.is_empty() => {
                (record.time, address, new)
            }
            other => panic!("{other:?}"),
        };
        changes.map(code).collect::<Vec<_>>()
    };
    let expected: [(u64, u64, Arc<[u8]>); 3] =
        [(20, 0x1000, one.into()), (10, 0x1000, other.into()), (0, 0x2000, one.into())];
    assert_eq!(found(&bpf), expected);
    let file = PerfFileBuilder::new(records.to_vec()).file();
    let named = |name: &KernelName| (name.time, name.address, name.size, name.name[26..].to_owned());
    let names: Vec<_> = read(&file).unwrap().names.iter().map(named).collect();
    assert_eq!(names, [(20, 0x1000, 4, "second".to_owned()), (10, 0x1000, 4, "first".to_owned())]);
    for cut in 0..bpf.len() {
        let found = found(&bpf[..cut]);
        assert!(expected.starts_with(&found) && found.len() < expected.len(), "{cut}");
    }
}

#[test]
fn a_file_without_traces_of_intel_pt_is_refused() {
    let says = |bytes: &[u8]| format!("{:#}", read(bytes).unwrap_err());
    assert!(says(&file(&[MADE.aux(0)])).contains("no AUXTRACE_INFO record"));
    let bts = record(70, 0, &[2, 0, 0, 0, 0, 0, 0, 0]);
    assert!(says(&file(&[bts])).contains("not of Intel PT: AUXTRACE_INFO has type 2"));
    assert!(says(b"2ELIFREP").contains("big-endian"));
    assert!(says(b"PERFILE2").contains("ends in its header"));
    assert!(says(&[b"PERFILE2", &longs(&[7])[..]].concat()).contains("a header of 0x7 bytes"));
    let folder = std::env::temp_dir();
    assert!(!PerfData::is_one(&folder));
    assert!(format!("{:#}", PerfData::read(&folder).unwrap_err()).contains("it has no file `data`"));
}

#[test]
fn of_a_file_that_is_cut_all_is_read_that_comes_before() {
    let (records, _) = each_kind();
    let records = [&[info(false)], &records[..], &[trace(0, 0, 0, NONE, b"12345678")]].concat();
    let whole = file(&records);
    let all = read(&whole).unwrap();
    let first = 104 + 136 + 16 + 8 + records[0].len();
    let data_end = whole.len() - 32 - 24;
    for end in 0..whole.len() {
        match read(&whole[..end]) {
            Ok(data) => {
                assert!(end >= first, "{end}");
                assert_eq!(data.records, all.records[..data.records.len()], "{end}");
                let bytes = data.traces.first().map_or(&[][..], |trace| &trace.bytes);
                assert!(b"12345678".starts_with(bytes), "{end}");
                let is_whole = data.records == all.records && bytes.len() == 8;
                assert_eq!((data.problems.is_empty(), is_whole), (end >= data_end, end >= data_end), "{end}");
            }
            Err(error) => assert!(end < first, "{end}: {error:#}"),
        }
    }
    // perf was killed before it could write how much there is.
    let mut killed = whole[..data_end].to_vec();
    killed[48..56].fill(0);
    assert_eq!(read(&killed).unwrap().records, all.records);
}

#[test]
fn a_damaged_file_is_an_error_or_less_than_a_whole_one_and_takes_no_memory() {
    let (records, _) = each_kind();
    let records =
        [&[info(true)], &compressed(&records.concat(), 90)[..], &[trace(0, 0, 0, NONE, &psb(1, b"\x06"))]];
    let whole = file(&records.concat());
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..4000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.usize(1..4) {
            // Often where the header is, and often with bytes that make a number large.
            let at = if rng.bool() { rng.usize(..104) } else { rng.usize(..bytes.len()) };
            bytes[at] =
                *rng.choice([0, 0xff, 0x80, 1].iter()).unwrap() ^ if rng.bool() { 0 } else { rng.u8(..) };
        }
        if let Ok(data) = read(&bytes) {
            let size: usize = data.traces.iter().map(|trace| trace.bytes.len()).sum();
            assert!(size <= whole.len() && data.records.len() <= whole.len(), "{round}");
        }
        let _ = PerfFile::parse(bytes).and_then(|file| samples::PerfSamples::of(&file));
    }
}

#[test]
fn only_intels_processors_have_errata_that_are_known() {
    assert_eq!(processor("GenuineIntel,6,94,3"), Some(Cpu::intel(6, 94, 3)));
    for text in ["AuthenticAMD,25,97,2", "GenuineIntel,6,94", "GenuineIntel,6,256,0", "", "GenuineIntel"] {
        assert_eq!(processor(text), None, "{text}");
    }
}
