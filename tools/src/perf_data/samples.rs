//! The samples in a file of `perf record`, and what was mapped in each process while they were taken.

use super::sample::{PerfSample, SampleLayout};
use anyhow::{Context, Result, ensure};
use linux_perf_data::linux_perf_event_reader::{Endianness, EventRecord, RawEventRecord, RecordType};
use linux_perf_data::{PerfFile, PerfFileReader, PerfFileRecord};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The samples of a file.
#[derive(Clone, Debug, Default)]
pub struct PerfSamples {
    /// The events that were sampled.
    pub events: Vec<SampledEvent>,
    /// Each sample, with the number of its event and that of its program.
    pub samples: Vec<(PerfSample, usize, usize)>,
    /// The programs: what each process had mapped, from one `execve` to the next.
    pub programs: Vec<Program>,
    /// The names of threads.
    pub threads: HashMap<i32, String>,
    /// Family and model of the processor, if it is AMD's.
    pub amd: Option<(u8, u8)>,
    /// How many samples the kernel lost.
    pub lost: u64,
}

/// An event that was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledEvent {
    /// Its name as it was given to perf.
    pub name: String,
    /// Whether its raw samples are those of IBS for ops.
    pub is_ibs_op: bool,
    layout: SampleLayout,
}

/// What a process had mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The process.
    pub process: i32,
    /// The mappings in the order in which they were made.
    pub mappings: Vec<ProgramMapping>,
}

/// A mapping of a file, or of other memory that perf has a name for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramMapping {
    /// The first address.
    pub address: u64,
    /// Size in bytes.
    pub len: u64,
    /// Where the mapping begins in the file.
    pub offset: u64,
    /// The file, or a name such as `[heap]`.
    pub path: PathBuf,
}

impl PerfSamples {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        let read = || -> Result<Self> {
            let PerfFileReader { mut perf_file, mut record_iter } =
                PerfFileReader::parse_file(BufReader::new(File::open(path)?))?;
            ensure!(perf_file.endian() == Endianness::LittleEndian, "it is big-endian");
            let layouts = layouts(&mut File::open(path)?, perf_file.event_attributes().len())?;
            let mut found = Self {
                events: events(&perf_file, layouts)?,
                amd: perf_file.cpu_id()?.and_then(amd),
                ..Self::default()
            };
            // The program that each process runs now.
            let mut running = HashMap::new();
            while let Some(record) = record_iter.next_record(&mut perf_file)? {
                if let PerfFileRecord::EventRecord { attr_index, record } = record {
                    found.event(attr_index, &record, &mut running)?;
                }
            }
            Ok(found)
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    fn event(
        &mut self,
        event: usize,
        record: &RawEventRecord<'_>,
        running: &mut HashMap<i32, usize>,
    ) -> Result<()> {
        if record.record_type == RecordType::SAMPLE {
            let layout = &self.events[event].layout;
            let number = self.samples.len();
            let sample = PerfSample::parse(&record.data.as_slice(), layout)
                .with_context(|| format!("sample {number}"))?;
            let program = self.program(sample.ids.map_or(0, |(pid, _)| pid), running);
            self.samples.push((sample, event, program));
            return Ok(());
        }
        match record.parse()? {
            EventRecord::Mmap2(map) => {
                let place = (map.address, map.length, map.page_offset);
                self.map(map.pid, place, super::path_of(map.path), running);
            }
            EventRecord::Mmap(map) => {
                let place = (map.address, map.length, map.page_offset);
                self.map(map.pid, place, super::path_of(map.path), running);
            }
            EventRecord::Comm(comm) => {
                let name = String::from_utf8_lossy(&comm.name.as_slice()).into_owned();
                self.threads.insert(comm.tid, name);
                if comm.is_execve {
                    running.remove(&comm.pid);
                }
            }
            EventRecord::Fork(fork) => {
                if let Some(name) = self.threads.get(&fork.ptid).cloned() {
                    self.threads.insert(fork.tid, name);
                }
                // A thread has its process's mappings; a new process has those of its parent.
                if fork.pid != fork.ppid {
                    let parent = self.program(fork.ppid, running);
                    let mappings = self.programs[parent].mappings.clone();
                    running.insert(fork.pid, self.programs.len());
                    self.programs.push(Program { process: fork.pid, mappings });
                }
            }
            EventRecord::Lost(lost) => self.lost += lost.count,
            _ => {}
        }
        Ok(())
    }

    /// Notes what a process has mapped: `len` bytes of a file from `offset` on, at `address`.
    fn map(
        &mut self,
        process: i32,
        (address, len, offset): (u64, u64, u64),
        path: PathBuf,
        running: &mut HashMap<i32, usize>,
    ) {
        let program = self.program(process, running);
        self.programs[program].mappings.push(ProgramMapping { address, len, offset, path });
    }

    /// The number of the program that a process runs.
    fn program(&mut self, process: i32, running: &mut HashMap<i32, usize>) -> usize {
        *running.entry(process).or_insert_with(|| {
            self.programs.push(Program { process, mappings: vec![] });
            self.programs.len() - 1
        })
    }
}

/// Where the header of a file has the size of an event, and where the events begin.
///
/// Source: Linux, tools/perf/Documentation/perf.data-file-format.txt.
const EVENT_SIZE_AT: u64 = 16;
/// How much of an event is read: up to `sample_regs_user`.
const EVENT_BYTES: usize = 88;

/// The PMU's number and the layout of each event. The crate drops the bits that it does not know.
fn layouts(file: &mut (impl Read + Seek), count: usize) -> io::Result<Vec<(u32, SampleLayout)>> {
    let mut header = [[0; 8]; 2];
    file.seek(SeekFrom::Start(EVENT_SIZE_AT))?;
    file.read_exact(header.as_flattened_mut())?;
    let [size, begin] = header.map(u64::from_le_bytes);
    let layout = |number: usize| {
        let mut bytes = [0; EVENT_BYTES];
        file.seek(SeekFrom::Start(begin.saturating_add(size.saturating_mul(number as u64))))?;
        file.read_exact(&mut bytes)?;
        let long =
            |at: usize| bytes[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let layout = SampleLayout {
            sample_type: long(24),
            read_format: long(32),
            branch_sample_type: long(72),
            user_registers: long(80).count_ones(),
        };
        Ok((long(0) as u32, layout))
    };
    (0..count).map(layout).collect()
}

fn events(file: &PerfFile, layouts: Vec<(u32, SampleLayout)>) -> Result<Vec<SampledEvent>> {
    let pmus = file.pmu_mappings()?;
    let pmu = |number: u32| pmus.as_ref().and_then(|pmus| pmus.0.get(&number));
    let event = |(number, (of, layout)): (usize, (u32, SampleLayout))| SampledEvent {
        name: file.event_attributes()[number].name.clone().unwrap_or_else(|| format!("event {number}")),
        is_ibs_op: pmu(of).is_some_and(|name| name == "ibs_op"),
        layout,
    };
    Ok(layouts.into_iter().enumerate().map(event).collect())
}

/// Family and model in `AuthenticAMD,25,17,1`.
fn amd(text: &str) -> Option<(u8, u8)> {
    let mut words = text.split(',');
    let is_amd = words.next()? == "AuthenticAMD";
    let mut number = || words.next()?.parse().ok();
    let numbers = (number()?, number()?);
    is_amd.then_some(numbers)
}
