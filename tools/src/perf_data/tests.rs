use super::*;

/// A file of `perf record` with these records, whose `perf_event_attr` has `config` and belongs to PMU 9.
fn file(config: u64, records: &[Vec<u8>]) -> Vec<u8> {
    const ATTR: usize = 136;
    let longs = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let data: Vec<u8> = records.concat();
    let attrs_at = 104;
    let data_at = attrs_at + ATTR + 16;
    // Feature 9 is the processor's name.
    let header = [
        u64::from_le_bytes(*b"PERFILE2"),
        104,
        (ATTR + 16) as u64,
        attrs_at as u64,
        (ATTR + 16) as u64,
        data_at as u64,
        data.len() as u64,
        0,
        0,
        1 << 9,
        0,
        0,
        0,
    ];
    let mut attr = [&9u32.to_le_bytes()[..], &(ATTR as u32).to_le_bytes(), &longs(&[config])].concat();
    attr.resize(ATTR + 16, 0);
    let name = b"GenuineIntel,6,94,3\0";
    let feature_at = data_at + data.len();
    let section = [feature_at as u64 + 16, 4 + name.len() as u64];
    [&longs(&header)[..], &attr, &data, &longs(&section), &(name.len() as u32).to_le_bytes(), name].concat()
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = 8 + body.len() as u16;
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

fn info(fields: &[u64]) -> Vec<u8> {
    let fields = fields.iter().flat_map(|field| field.to_le_bytes());
    record(70, 0, &[1, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(fields).collect::<Vec<u8>>())
}

/// An AUXTRACE record: number, offset, CPU, thread, and the bytes, which are not in the record's size.
fn trace(index: u32, offset: u64, cpu: u32, thread: u32, bytes: &[u8]) -> Vec<u8> {
    let head = [bytes.len() as u64, offset, 0x1234].into_iter().flat_map(|field| field.to_le_bytes());
    let tail = [index, thread, cpu, 0].into_iter().flat_map(|field| field.to_le_bytes());
    [record(71, 0, &head.chain(tail).collect::<Vec<u8>>()), bytes.to_vec()].concat()
}

fn mapping(process: u32, address: u64, protection: u32, path: &[u8]) -> Vec<u8> {
    let mut body = [process, process].iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    body.extend([address, 0x3000, 0x1000, 0, 0, 0].iter().flat_map(|field| field.to_le_bytes()));
    body.extend([protection, 2].iter().flat_map(|field| field.to_le_bytes()));
    body.extend(path);
    body.resize((body.len() + 1).next_multiple_of(8), 0);
    record(10, 2, &body)
}

/// A mapping as older kernels record it: without the protection, but a flag says that it is of data.
fn older_mapping(process: u32, address: u64, data: bool, path: &[u8]) -> Vec<u8> {
    const MMAP_DATA: u16 = 1 << 13;
    let mut body = [process, process].iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    body.extend([address, 0x3000, 0x1000].iter().flat_map(|field: &u64| field.to_le_bytes()));
    body.extend(path);
    body.resize((body.len() + 1).next_multiple_of(8), 0);
    record(1, 2 | if data { MMAP_DATA } else { 0 }, &body)
}

fn aux(flags: u64) -> Vec<u8> {
    record(11, 0, &[0, 8, flags].iter().flat_map(|field: &u64| field.to_le_bytes()).collect::<Vec<u8>>())
}

/// A record that is no loss, though its bytes are those of one.
fn other(kind: u32) -> Vec<u8> {
    record(kind, 0, &[0, 8, 1].iter().flat_map(|field: &u64| field.to_le_bytes()).collect::<Vec<u8>>())
}

fn read(bytes: &[u8]) -> Result<PerfData> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pugmark-perf-{}-{number}", std::process::id()));
    std::fs::write(&path, bytes)?;
    let is_one = PerfData::is_one(&path);
    let data = PerfData::read(&path);
    std::fs::remove_file(&path)?;
    assert_eq!(is_one, bytes.starts_with(MAGIC));
    data
}

const NONE: u32 = u32::MAX;

#[test]
fn traces_mappings_and_clocks_are_what_was_recorded() {
    let mut fields = [0; 17];
    // PMU, MTC's bits in the event's configuration, the ratio of TSC to crystal, the ratio of TSC to bus clock.
    for (at, value) in [(0, 9), (11, 0xf << 14), (12, 168), (13, 2), (15, 42)] {
        fields[at] = value;
    }
    let data = read(&file(
        3 << 14 | 0x400,
        &[
            info(&fields),
            mapping(7, 0x40_0000, 5, b"/bin/x"),
            mapping(7, 0x50_0000, 3, b"/bin/data"),
            mapping(7, 0x7fff_0000, 5, b"[vdso]"),
            mapping(7, 0x7ffe_0000, 5, b"[uprobes]"),
            mapping(8, 0x60_0000, 5, b"/lib/y"),
            aux(0),
            aux(1),
            // PERF_RECORD_ITRACE_START and PERF_RECORD_LOST_SAMPLES.
            other(12),
            other(13),
            trace(0, 0, 3, NONE, b"12345\0\0\0"),
            trace(0, 5, 3, NONE, b"678"),
            trace(1, 0, NONE, 12, b"abcdefgh"),
            trace(0, 8, 3, NONE, b"9abcdefg"),
            trace(0, 32, 3, NONE, b"after gap"),
        ],
    ))
    .unwrap();
    let aux = |cpu, thread, offset, bytes: &[u8]| AuxTrace { cpu, thread, offset, bytes: bytes.into() };
    let mapping = |process, address, path: &str| Mapping {
        process,
        address,
        len: 0x3000,
        offset: 0x1000,
        path: path.into(),
    };
    let expected = PerfData {
        traces: vec![
            aux(Some(3), None, 0, b"123456789abcdefg"),
            aux(Some(3), None, 32, b"after gap"),
            aux(None, Some(12), 0, b"abcdefgh"),
        ],
        mappings: vec![
            mapping(7, 0x40_0000, "/bin/x"),
            mapping(7, 0x7fff_0000, "[vdso]"),
            mapping(8, 0x60_0000, "/lib/y"),
        ],
        cpu: Some(Cpu::intel(6, 94, 3)),
        clocks: Clocks {
            mtc_freq: 3,
            nom_freq: 42,
            cpuid_15h_eax: 2,
            cpuid_15h_ebx: 168,
            ..Clocks::default()
        },
        losses: 1,
    };
    assert_eq!(data, expected);
    assert_eq!(data.processes(), BTreeSet::from([7, 8]));
    let names: Vec<_> = data.traces.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["cpu-3", "cpu-3 from 0x20", "thread-12"]);
}

#[test]
fn mappings_of_older_kernels_are_code_unless_they_say_data() {
    let records = [
        info(&[9]),
        older_mapping(7, 0x40_0000, false, b"/bin/x"),
        older_mapping(7, 0x50_0000, true, b"/bin/data"),
        trace(0, 0, 3, NONE, b"12345678"),
    ];
    let mappings = read(&file(0, &records)).unwrap().mappings;
    let found: Vec<_> = mappings.iter().map(|one| (one.address, one.len, one.offset, one.process)).collect();
    assert_eq!(found, [(0x40_0000, 0x3000, 0x1000, 7)]);
}

#[test]
fn a_file_without_traces_of_intel_pt_is_refused_and_so_is_one_that_is_cut() {
    let says = |bytes: &[u8]| format!("{:#}", read(bytes).unwrap_err());
    assert!(says(&file(0, &[aux(0)])).contains("no AUXTRACE_INFO record"));
    let bts = record(70, 0, &[2, 0, 0, 0, 0, 0, 0, 0]);
    assert!(says(&file(0, &[bts])).contains("not of Intel PT: AUXTRACE_INFO has type 2"));
    let whole = file(0, &[info(&[9]), trace(0, 0, 0, NONE, b"12345678")]);
    for end in [4, 50, 104, 200, whole.len() - 70, whole.len() - 30, whole.len() - 1] {
        assert!(read(&whole[..end]).is_err(), "{end}");
    }
    assert_eq!(read(&whole).unwrap().traces.len(), 1);
}

#[test]
fn only_intels_processors_have_errata_that_are_known() {
    assert_eq!(processor("GenuineIntel,6,94,3"), Some(Cpu::intel(6, 94, 3)));
    for text in ["AuthenticAMD,25,97,2", "GenuineIntel,6,94", "GenuineIntel,6,256,0", "", "GenuineIntel"] {
        assert_eq!(processor(text), None, "{text}");
    }
}
