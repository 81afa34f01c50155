//! Makes files of `perf record` for tests.

/// `sample_type` of the events: TID, TIME, CPU and IDENTIFIER.
pub(crate) const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 16;
/// PERF_SAMPLE_AUX.
pub(crate) const AUX: u64 = 1 << 20;
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// The number of Intel PT's PMU, and of its event.
const PMU: u32 = 9;
const ID: u64 = 77;

/// A file, whose clock counts the ticks of the TSC.
#[derive(Clone, Debug)]
pub(crate) struct PerfFileBuilder {
    pub(crate) config: u64,
    pub(crate) sample_type: u64,
    pub(crate) records: Vec<Vec<u8>>,
    /// The contents of the feature that has BPF programs.
    pub(crate) bpf: Vec<u8>,
}

pub(crate) fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Returns a record without what comes at the end of each.
pub(crate) fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = 8 + body.len() as u16;
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes
}

/// When a record is made, on which processor, and of which thread: process and thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    pub(crate) task: (u32, u32),
}

impl Made {
    fn record(self, kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let Self { time, cpu, task: (pid, tid) } = self;
        record(kind, misc, &[body, &longs(&[pair(pid, tid), time, pair(cpu, 0), ID])].concat())
    }

    /// Makes the record of a mapping of a file, which can be executed, in the process.
    pub(crate) fn maps(self, address: u64, len: u64, offset: u64, path: &str) -> Vec<u8> {
        self.maps_with(address, len, offset, 5, path)
    }

    pub(crate) fn maps_with(self, address: u64, len: u64, offset: u64, prot: u32, path: &str) -> Vec<u8> {
        let (pid, tid) = self.task;
        let fields = longs(&[pair(pid, tid), address, len, offset, 0, 0, 0, pair(prot, 2)]);
        self.record(10, 2, &[fields, text(path)].concat())
    }

    /// Makes the record of a process that executes a program, or only has another name.
    pub(crate) fn named(self, name: &str, exec: bool) -> Vec<u8> {
        let (pid, tid) = self.task;
        self.record(3, u16::from(exec) << 13, &[longs(&[pair(pid, tid)]), text(name)].concat())
    }

    /// Makes the record of a process that begins another one, or a thread.
    pub(crate) fn forks(self, (pid, tid): (u32, u32)) -> Vec<u8> {
        let (parent, by) = self.task;
        self.record(7, 0, &longs(&[pair(pid, parent), pair(tid, by), self.time]))
    }

    /// Makes the record of a switch of the processor from the thread to another one.
    pub(crate) fn switches_to(self, (pid, tid): (u32, u32)) -> Vec<u8> {
        self.record(15, 1 << 13, &longs(&[pair(pid, tid)]))
    }

    /// Makes the record of the begin of tracing in the thread.
    pub(crate) fn begins(self) -> Vec<u8> {
        let (pid, tid) = self.task;
        self.record(12, 0, &longs(&[pair(pid, tid)]))
    }

    /// Makes the record of more of a trace, of which some may be lost.
    pub(crate) fn aux(self, flags: u64) -> Vec<u8> {
        self.aux_of(0, 8, flags)
    }

    /// Makes the record of more of a trace, from `offset` on.
    pub(crate) fn aux_of(self, offset: u64, size: u64, flags: u64) -> Vec<u8> {
        self.record(11, 0, &longs(&[offset, size, flags]))
    }

    /// Makes the record of lost records.
    pub(crate) fn lost(self, count: u64) -> Vec<u8> {
        self.record(2, 0, &longs(&[ID, count]))
    }

    /// Makes the record of a change of the kernel's code.
    pub(crate) fn pokes(self, address: u64, old: &[u8], new: &[u8]) -> Vec<u8> {
        let counts = [old.len(), new.len()].map(|count| (count as u16).to_le_bytes()).concat();
        let mut body = [&address.to_le_bytes()[..], &counts, old, new].concat();
        body.resize(body.len().next_multiple_of(8), 0);
        self.record(20, 1, &body)
    }

    /// Makes the record of code that the kernel has made or removed.
    pub(crate) fn names_code(self, address: u64, flags: u16, name: &str) -> Vec<u8> {
        let fields = longs(&[address, 4 | 1 << 32 | u64::from(flags) << 48]);
        self.record(17, 1, &[fields, text(name)].concat())
    }

    /// Returns a sample with a part of a trace.
    pub(crate) fn sample(self, bytes: &[u8]) -> Vec<u8> {
        let Self { time, cpu, task: (pid, tid) } = self;
        let body = longs(&[ID, pair(pid, tid), time, pair(cpu, 0), bytes.len() as u64]);
        record(9, 2, &[&body, bytes].concat())
    }
}

/// Returns AUXTRACE_INFO with a clock that counts ticks, or snapshots.
pub(crate) fn info(has_snapshots: bool) -> Vec<u8> {
    let mut fields = [0; 17];
    // PMU, multiplier and whether there is a clock, snapshots, MTC's bits, and the ratios of the clocks.
    let values = [
        (0, PMU.into()),
        (2, 1),
        (4, 1),
        (8, has_snapshots.into()),
        (11, 0xf << 14),
        (12, 168),
        (13, 2),
        (15, 42),
    ];
    for (at, value) in values {
        fields[at] = value;
    }
    record(70, 0, &[longs(&[1]), longs(&fields)].concat())
}

/// Returns an AUXTRACE record, of a processor or of a thread: the number of what is traced, and the bytes, which are
/// not in the record's size.
pub(crate) fn trace(index: u32, offset: u64, cpu: u32, thread: u32, bytes: &[u8]) -> Vec<u8> {
    let fields = longs(&[bytes.len() as u64, offset, 0, pair(index, thread), pair(cpu, 0)]);
    [record(71, 0, &fields), bytes.to_vec()].concat()
}

/// No processor, and no thread.
pub(crate) const NONE: u32 = u32::MAX;

/// Makes the description of a BPF program: a tag of eight bytes, and functions at their addresses.
pub(crate) fn bpf_program(tag: u8, functions: &[(u64, &[u8])]) -> Vec<u8> {
    let code: Vec<u8> = functions.iter().flat_map(|(_, code)| code.iter().copied()).collect();
    let addresses = longs(&functions.iter().map(|(address, _)| *address).collect::<Vec<_>>());
    let sizes: Vec<u8> = functions.iter().flat_map(|(_, code)| (code.len() as u32).to_le_bytes()).collect();
    let mut info = [0; 20];
    info[1] = u64::from_le_bytes([tag; 8]);
    // The sizes and the places in the data, which come one after the other.
    info[2] = code.len() as u64;
    info[13] = pair(functions.len() as u32, functions.len() as u32);
    info[14] = code.len() as u64;
    info[15] = info[14] + addresses.len() as u64;
    let data = [code, addresses, sizes].concat();
    [longs(&[pair(160, data.len() as u32), 0]), longs(&info), data].concat()
}

/// Returns COMPRESSED records with these bytes in a frame of zstd that does not end, cut into parts of `each` bytes.
pub(crate) fn compressed(bytes: &[u8], each: usize) -> Vec<Vec<u8>> {
    // The smallest window.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0];
    for block in bytes.chunks(700) {
        frame.extend(&((block.len() as u32) << 3).to_le_bytes()[..3]);
        frame.extend(block);
    }
    frame.chunks(each).map(|part| record(81, 0, part)).collect()
}

impl PerfFileBuilder {
    pub(crate) fn new(records: Vec<Vec<u8>>) -> Self {
        Self { config: 0, sample_type: SAMPLE_TYPE, records, bpf: vec![] }
    }

    fn attr(&self) -> Vec<u8> {
        let Self { config, sample_type, .. } = *self;
        let mut attr = longs(&[pair(PMU, 136), config, 1, sample_type, 0, SAMPLE_ID_ALL]);
        attr.resize(136, 0);
        attr
    }

    /// Returns the name of the processor, as a feature has it.
    fn cpu_id() -> Vec<u8> {
        let name = b"GenuineIntel,6,94,3\0";
        [&(name.len() as u32).to_le_bytes()[..], name].concat()
    }

    /// Returns the bytes of a file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let (attr, data) = (self.attr(), self.records.concat());
        let (attr_at, ids_at) = (104, 104 + attr.len() as u64 + 16);
        let data_at = ids_at + 8;
        let feature_at = data_at + data.len() as u64;
        let magic = u64::from_le_bytes(*b"PERFILE2");
        let each = attr.len() as u64 + 16;
        // The processor's name, and BPF programs.
        let bits = 1 << 9 | 1 << 25;
        let header =
            longs(&[magic, 104, each, attr_at, each, data_at, data.len() as u64, 0, 0, bits, 0, 0, 0]);
        let (cpu_id, bpf) = (Self::cpu_id(), &self.bpf);
        let bpf_at = feature_at + 32 + cpu_id.len() as u64;
        let sections = longs(&[feature_at + 32, cpu_id.len() as u64, bpf_at, bpf.len() as u64]);
        [header, attr, longs(&[ids_at, 8]), longs(&[ID]), data, sections, cpu_id, bpf.clone()].concat()
    }

    /// Returns the bytes that come out of a pipe.
    pub(crate) fn pipe(&self) -> Vec<u8> {
        let header = longs(&[u64::from_le_bytes(*b"PERFILE2"), 16]);
        let attr = record(64, 0, &[self.attr(), longs(&[ID])].concat());
        let feature = record(80, 0, &[longs(&[9]), Self::cpu_id()].concat());
        [header, attr, feature, self.records.concat()].concat()
    }
}
