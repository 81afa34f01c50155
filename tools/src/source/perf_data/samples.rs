//! The samples in a file of `perf record`, and what was mapped in each process while they were taken.

use super::file::{PerfFile, RawRecord, kind};
use super::sample::{PerfSample, SampleLayout};
use super::{compressed, stream_config};
use crate::sideband::{Fork, NoRecord, Record, StreamConfig, TimedRecord};
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
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
    /// The number of samples that the kernel lost.
    pub lost: u64,
}

/// An event that was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledEvent {
    /// Its name as it was given to perf.
    pub name: String,
    /// True if its raw samples are those of IBS for ops.
    pub is_ibs_op: bool,
    layout: SampleLayout,
}

/// The mappings of a process.
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
        let read = || Self::of(&PerfFile::open(path)?);
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    pub(super) fn of(file: &PerfFile) -> Result<Self> {
        let mut found = Self { events: events(file), amd: file.cpu_id().and_then(amd), ..Self::default() };
        let ids = super::numbers_by_id(&file.events);
        let config = stream_config(&file.events);
        let (mut records, mut number) = (vec![], 0);
        let problems = compressed::each_record(file, &mut |record| {
            match record.kind {
                kind::SAMPLE => {
                    let event = super::event_of(&file.events, &ids, record);
                    let sample = found.parse(record, event).with_context(|| format!("sample {number}"))?;
                    records.push(sample);
                    number += 1;
                }
                0 | 64.. => {}
                _ => records.extend(SampledRecord::parse(record, &config)?),
            }
            Ok(())
        })?;
        if let Some(problem) = problems.into_iter().next() {
            bail!(problem);
        }
        // Each processor has recorded for itself, and each thread of perf has written for itself.
        records.sort_by_key(|(time, _)| *time);
        // The program that each process runs now.
        let mut running = HashMap::new();
        for (_, record) in records {
            found.record(record, &mut running);
        }
        Ok(found)
    }

    /// Reads a sample of an event, and its time.
    fn parse(&self, record: &RawRecord<'_>, event: Option<usize>) -> Result<(u64, SampledRecord)> {
        let event = event.context("it is of no event of the file")?;
        let sample = PerfSample::parse(record.body(), &self.events[event].layout)?;
        Ok((sample.time.unwrap_or(0), SampledRecord::Sample(sample, event)))
    }

    fn record(&mut self, record: SampledRecord, running: &mut HashMap<i32, usize>) {
        match record {
            SampledRecord::Sample(sample, event) => {
                let program = self.program(sample.ids.map_or(0, |(pid, _)| pid), running);
                self.samples.push((sample, event, program));
            }
            SampledRecord::Map(process, mapping) => {
                let program = self.program(process, running);
                self.programs[program].mappings.push(mapping);
            }
            SampledRecord::Name { pid, tid, name, exec } => {
                self.threads.insert(tid, name);
                if exec {
                    running.remove(&pid);
                }
            }
            SampledRecord::Fork(fork) => {
                if let Some(name) = self.threads.get(&(fork.ptid as i32)).cloned() {
                    self.threads.insert(fork.tid as i32, name);
                }
                // A thread has its process's mappings; a new process has those of its parent.
                if fork.pid != fork.ppid {
                    let parent = self.program(fork.ppid as i32, running);
                    let mappings = self.programs[parent].mappings.clone();
                    running.insert(fork.pid as i32, self.programs.len());
                    self.programs.push(Program { process: fork.pid as i32, mappings });
                }
            }
            SampledRecord::Lost(lost) => self.lost += lost,
        }
    }

    /// Returns the number of the program that a process runs.
    fn program(&mut self, process: i32, running: &mut HashMap<i32, usize>) -> usize {
        *running.entry(process).or_insert_with(|| {
            self.programs.push(Program { process, mappings: vec![] });
            self.programs.len() - 1
        })
    }
}

/// A record that says something of samples.
enum SampledRecord {
    /// A sample, and the number of its event.
    Sample(PerfSample, usize),
    /// A process has mapped something.
    Map(i32, ProgramMapping),
    /// A thread has a name; or another one, because it executes another program.
    Name { pid: i32, tid: i32, name: String, exec: bool },
    /// A thread begins.
    Fork(Fork),
    /// The number of samples that were lost.
    Lost(u64),
}

impl SampledRecord {
    /// Reads a record, and its time: 0 if it has none.
    fn parse(raw: &RawRecord<'_>, config: &StreamConfig) -> Result<Option<(u64, Self)>> {
        let found = match TimedRecord::parse(raw.bytes, config) {
            Ok((found, _)) => found,
            Err(NoRecord::End) => return Ok(None),
            Err(NoRecord::Problem(problem)) => bail!(super::unreadable(raw, problem)),
        };
        let record = match found.record {
            Record::Mmap { pid, addr, len, pgoff, filename, .. } => {
                let path = (&*filename).into();
                Self::Map(pid as i32, ProgramMapping { address: addr, len, offset: pgoff, path })
            }
            Record::Comm { pid, tid, comm, exec } => {
                Self::Name { pid: pid as i32, tid: tid as i32, name: comm.into_owned(), exec }
            }
            Record::Fork(fork) => Self::Fork(fork),
            Record::Lost { lost, .. } => Self::Lost(lost),
            _ => return Ok(None),
        };
        let time = found.sample.time.filter(|time| *time != u64::MAX).unwrap_or(0);
        Ok(Some((time, record)))
    }
}

fn events(file: &PerfFile) -> Vec<SampledEvent> {
    let (names, ibs_op) = (file.event_names(), file.pmu("ibs_op"));
    let event = |(number, event): (usize, &super::EventAttr)| SampledEvent {
        name: names.get(number).map_or_else(|| format!("event {number}"), |name| (*name).to_owned()),
        is_ibs_op: ibs_op == Some(event.kind),
        layout: event.layout(),
    };
    file.events.iter().enumerate().map(event).collect()
}

/// Returns family and model in `AuthenticAMD,25,17,1`.
fn amd(text: &str) -> Option<(u8, u8)> {
    let mut words = text.split(',');
    let is_amd = words.next()? == "AuthenticAMD";
    let mut number = || words.next()?.parse().ok();
    let numbers = (number()?, number()?);
    is_amd.then_some(numbers)
}
