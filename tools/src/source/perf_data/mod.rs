//! Reads the file that `perf record` writes: the traces of Intel PT in it, what the system did while they were taken,
//! and what the file says about the processor; and the samples of other files.
//!
//! Compressed records, traces in samples (`--aux-sample`), snapshots, what was written to a pipe, a folder with a file
//! for each thread of perf, and several files of one recording (`--switch-output`) are read, too. Of a file that is cut
//! short, or damaged from some place on, all is read that comes before that place.
//!
//! The records are read by the code that reads the sideband of ptxed, [`crate::sideband`].
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt, include/uapi/linux/perf_event.h; the fields of
//! the AUXTRACE_INFO record of Intel PT: tools/perf/util/intel-pt.h.

mod bpf;
#[cfg(test)]
pub(crate) mod builder;
mod compressed;
mod file;
mod info;
mod poke;
pub mod sample;
pub mod samples;
mod several;
mod traces;

use super::{Mapping, SystemChange, SystemRecord, SystemTask};
use crate::perf_clock::PerfClock;
use crate::sideband::{
    AUX_PARTIAL, AUX_TRUNCATED, Mmap2, NoRecord, Record, RecordProblem, StreamConfig, TimedRecord,
};
use anyhow::{Context, Result, bail};
use file::{EventAttr, MAGIC, PerfFile, RawRecord, kind};
use info::PtInfo;
use pugmark_decoder_core::config::Clocks;
use pugmark_decoder_core::errata::Cpu;
use rustc_hash::FxHashMap;
use sample::{PerfSample, SampleLayout};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use traces::{TraceGap, TracePart, TracePieces};

pub use bpf::KernelName;
pub use traces::AuxTrace;

/// Perf's name of the code that the kernel gives every program.
pub const VDSO: &str = "[vdso]";
/// PROT_EXEC of mmap.
const EXECUTABLE: u32 = 4;
/// `perf_event_attr`: bit `sample_id_all`.
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// The type of tracepoints, and the place of `next_pid` among the fields of `sched:sched_switch`.
const TRACEPOINT: u32 = 2;
const SCHED_SWITCH: &str = "sched:sched_switch";
const NEXT_PID_AT: usize = 56;
/// `PERF_RECORD_MISC_MMAP_DATA` and `PERF_RECORD_MISC_FORK_EXEC`.
const MISC_13: u16 = 1 << 13;
/// The limit of the memory that records may take: this many times the size of the file, and this much more.
const MOST_TIMES: usize = 2;
const MOST_MORE: usize = 192 << 20;
/// The most problems that are told.
const MOST_PROBLEMS: usize = 8;

/// The contents of a file of `perf record`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfData {
    /// The traces, by CPU or by thread.
    pub traces: Vec<AuxTrace>,
    /// The changes of the system, in the order of the file, by perf's clock.
    pub records: Vec<SystemRecord>,
    /// The processor, if it is Intel's.
    pub cpu: Option<Cpu>,
    /// The names of code that the kernel has made, in the order of the file.
    pub names: Vec<KernelName>,
    /// Its clocks.
    pub clocks: Clocks,
    /// The relation of perf's clock to the TSC.
    pub clock: Option<PerfClock>,
    /// The first few parts that cannot be read, with their places in the file.
    pub problems: Vec<String>,
}

impl PerfData {
    /// Returns whether a file is one of `perf record`, or a folder has one.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        let path = Self::header_of(path);
        let mut begin = [0; MAGIC.len()];
        let found = path.is_file().then(|| File::open(path).and_then(|mut file| file.read_exact(&mut begin)));
        matches!(found, Some(Ok(()))) && begin == *MAGIC
    }

    /// Returns the file that has the header: the path, or a file in the folder there.
    #[must_use]
    pub fn header_of(path: &Path) -> PathBuf {
        PerfFile::header_of(path)
    }

    /// Reads a file or folder.
    ///
    /// # Errors
    /// If it cannot be read, is damaged where it begins, or has no traces of Intel PT.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_all(&[path.into()])
    }

    /// Reads the files of one recording, in the order of their times, whatever theirs is here.
    ///
    /// # Errors
    /// The same, or if one of them is of another recording.
    pub fn read_all(paths: &[PathBuf]) -> Result<Self> {
        let read = |path: &PathBuf| {
            let read = || PerfParts::of(&PerfFile::open(path)?);
            read().with_context(|| format!("cannot read {}", path.display()))
        };
        let files = paths.iter().map(|path| Ok((path.as_path(), read(path)?)));
        Ok(several::joined(files.collect::<Result<_>>()?)?.finish())
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        Self::of(&PerfFile::parse(bytes)?)
    }

    fn of(file: &PerfFile) -> Result<Self> {
        PerfParts::of(file).map(PerfParts::finish)
    }
}

/// The contents of a file, to which those of another one can be added.
struct PerfParts {
    pieces: TracePieces,
    samples: TracePieces,
    /// Where some of a trace was lost.
    gaps: Vec<TraceGap>,
    /// The first and the last time of a record.
    times: Option<(u64, u64)>,
    /// All but the traces.
    data: PerfData,
}

impl PerfParts {
    fn of(file: &PerfFile) -> Result<Self> {
        let mut reader = PerfReader::new(file);
        let problems = compressed::each_record(file, &mut |record| reader.record(record))?;
        reader.data.problems.extend(problems);
        reader.finish(file)
    }

    fn finish(self) -> PerfData {
        let mut traces = self.pieces.marked(&self.gaps);
        traces.extend(self.samples.into_traces());
        PerfData { traces, ..self.data }
    }
}

/// Reads records.
struct PerfReader<'a> {
    events: &'a [EventAttr],
    /// The number of each event by its identifiers.
    by_id: FxHashMap<u64, usize>,
    /// Which events are switches of threads.
    switches: Vec<bool>,
    config: StreamConfig,
    info: Option<PtInfo>,
    pieces: TracePieces,
    gaps: Vec<TraceGap>,
    samples: TracePieces,
    /// The number of bytes of a trace that came in samples of each processor or thread.
    sampled: FxHashMap<u32, u64>,
    paths: FxHashMap<String, Arc<Path>>,
    /// The first and the last time of a record.
    times: Option<(u64, u64)>,
    /// The memory that the records may still take, in bytes.
    room: usize,
    data: PerfData,
}

impl<'a> PerfReader<'a> {
    fn new(file: &'a PerfFile) -> Self {
        let events = &file.events;
        let names = file.event_names();
        let is_switch = |(number, event): (usize, &EventAttr)| {
            event.kind == TRACEPOINT && names.get(number).is_some_and(|name| *name == SCHED_SWITCH)
        };
        Self {
            by_id: numbers_by_id(events),
            switches: events.iter().enumerate().map(is_switch).collect(),
            config: stream_config(events),
            events,
            info: None,
            pieces: TracePieces::default(),
            gaps: vec![],
            samples: TracePieces::of_snapshots(),
            sampled: FxHashMap::default(),
            paths: FxHashMap::default(),
            times: None,
            room: file.size().saturating_mul(MOST_TIMES).saturating_add(MOST_MORE),
            data: PerfData { cpu: file.cpu_id().and_then(processor), ..PerfData::default() },
        }
    }

    fn problem(&mut self, problem: impl FnOnce() -> String) {
        if self.data.problems.len() < MOST_PROBLEMS {
            self.data.problems.push(problem());
        }
    }

    fn record(&mut self, record: &RawRecord<'_>) -> Result<()> {
        match record.kind {
            kind::AUXTRACE_INFO => {
                let info = PtInfo::parse(record.body())?;
                self.pieces.are_snapshots = info.has_snapshots();
                self.info = Some(info);
            }
            kind::AUXTRACE => self.trace(record),
            kind::SAMPLE => self.sample(record)?,
            kind::KSYMBOL => match KernelName::parse(record, &self.config) {
                Ok(name) => {
                    self.room = self.room.saturating_sub(2 * record.bytes.len());
                    self.data.names.extend(name.filter(|_| self.room > 0));
                }
                Err(problem) => self.problem(|| unreadable(record, problem)),
            },
            kind::TEXT_POKE => match poke::text_poke(record, &self.config) {
                Ok((poke, sample)) => {
                    self.room = self.room.saturating_sub(poke.old.len() + poke.new.len() + 64);
                    self.add(sample.time, sample.cpu, SystemChange::Poke(poke))?;
                }
                Err(problem) => self.problem(|| unreadable(record, problem)),
            },
            0 | 64.. => {}
            _ => match TimedRecord::parse(record.bytes, &self.config) {
                Ok((found, _)) => self.system(record, found)?,
                Err(NoRecord::End) => {}
                Err(NoRecord::Problem(problem)) => self.problem(|| unreadable(record, problem)),
            },
        }
        Ok(())
    }

    fn trace(&mut self, record: &RawRecord<'_>) {
        let body = record.body();
        let at = |place| file::long(body, place);
        let (Some(offset), Some(reference), Some(numbers), Some(cpu)) = (at(8), at(16), at(24), at(32))
        else {
            return self.problem(|| format!("at {:#x}: an AUXTRACE record that is too short", record.at));
        };
        self.pieces.add(TracePart {
            index: numbers as u32,
            thread: known((numbers >> 32) as u32),
            cpu: known(cpu as u32),
            offset,
            reference,
            bytes: record.more,
        });
    }

    fn sample(&mut self, record: &RawRecord<'_>) -> Result<()> {
        let Some(number) = event_of(self.events, &self.by_id, record) else { return Ok(()) };
        let event = &self.events[number];
        let is_switch = self.switches.get(number).is_some_and(|is_switch| *is_switch);
        if event.sample_type & sample::AUX == 0 && !is_switch {
            return Ok(());
        }
        let sample = match PerfSample::parse(record.body(), &event.layout()) {
            Ok(sample) => sample,
            Err(error) => {
                self.problem(|| format!("at {:#x}: {error}", record.at));
                return Ok(());
            }
        };
        if let Some(range) = sample.aux {
            let bytes = record.body().get(range).unwrap_or_default();
            let thread = sample.ids.map(|(_, tid)| tid as u32);
            let index = sample.cpu.or(thread).unwrap_or(0);
            let offset = self.sampled.entry(index).or_default();
            let clock = self.info.as_ref().and_then(PtInfo::clock);
            let reference = clock.zip(sample.time).and_then(|(clock, time)| clock.tsc(time)).unwrap_or(0);
            let thread = thread.filter(|_| sample.cpu.is_none());
            self.samples.add(TracePart { index, cpu: sample.cpu, thread, offset: *offset, reference, bytes });
            *offset += bytes.len() as u64;
        }
        let next = sample
            .raw
            .filter(|_| is_switch)
            .and_then(|raw| Some(i32::from_le_bytes(*raw.get(NEXT_PID_AT..)?.first_chunk()?)));
        match next {
            // The process is that of the thread.
            Some(tid) => {
                let to = Some(SystemTask { pid: -1, tid });
                let from = sample.ids.map(|(pid, tid)| SystemTask { pid, tid });
                self.add(sample.time, sample.cpu, SystemChange::Switch { from, to })
            }
            None => Ok(()),
        }
    }

    fn system(&mut self, raw: &RawRecord<'_>, found: TimedRecord<'_>) -> Result<()> {
        let task = |pid: u32, tid: u32| SystemTask { pid: pid as i32, tid: tid as i32 };
        if let Some(time) = found.sample.time.filter(|time| !matches!(*time, 0 | u64::MAX)) {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
        }
        let own = found.sample.tid.map(|(pid, tid)| task(pid, tid));
        let change = match found.record {
            Record::Mmap { pid, addr, len, pgoff, more, filename, .. } => {
                let executable = match more {
                    Some(Mmap2 { prot, .. }) => prot & EXECUTABLE != 0,
                    None => raw.misc & MISC_13 == 0,
                };
                let path = self.path(&filename);
                let process = pid as i32;
                SystemChange::Map(Mapping { process, address: addr, len, offset: pgoff, path, executable })
            }
            Record::Comm { pid, tid, comm, exec } => {
                self.room = self.room.saturating_sub(comm.len());
                SystemChange::Name { task: task(pid, tid), name: comm.into(), exec }
            }
            Record::Fork(fork) => SystemChange::Fork {
                task: task(fork.pid, fork.tid),
                parent: fork.ppid as i32,
                // perf makes such records of processes that exist, and lists the mappings of each.
                has_mappings: raw.misc & MISC_13 == 0,
            },
            Record::ItraceStart { pid, tid } => SystemChange::Switch { from: None, to: Some(task(pid, tid)) },
            Record::SwitchCpuWide { out: true, pid, tid } => {
                SystemChange::Switch { from: own, to: Some(task(pid, tid)) }
            }
            Record::SwitchCpuWide { out: false, pid, tid } => {
                SystemChange::Switch { from: Some(task(pid, tid)), to: own }
            }
            Record::Switch { out: true } => SystemChange::Switch { from: own, to: None },
            Record::Switch { out: false } => SystemChange::Switch { from: None, to: own },
            Record::Aux { flags, offset, size } if flags & (AUX_TRUNCATED | AUX_PARTIAL) != 0 => {
                // Where the gaps of a partial one are is not known.
                if flags & AUX_TRUNCATED != 0 {
                    let (cpu, thread) = (found.sample.cpu, found.sample.tid.map(|(_, tid)| tid));
                    self.gaps.push(TraceGap { cpu, thread, offset: offset.saturating_add(size) });
                }
                SystemChange::TraceLost
            }
            Record::Lost { lost, .. } | Record::LostSamples { lost } => SystemChange::RecordsLost(lost),
            _ => return Ok(()),
        };
        self.add(found.sample.time, found.sample.cpu, change)
    }

    fn add(&mut self, time: Option<u64>, cpu: Option<u32>, change: SystemChange) -> Result<()> {
        // As much again for the memory in which they grow.
        let Some(room) = self.room.checked_sub(2 * size_of::<SystemRecord>()) else {
            bail!(
                "its records take more than {MOST_TIMES} times the memory that it has bytes, and {MOST_MORE:#x} more"
            );
        };
        self.room = room;
        let time = time.filter(|time| *time != u64::MAX).unwrap_or(0);
        self.data.records.push(SystemRecord { time, cpu, change });
        Ok(())
    }

    fn path(&mut self, name: &str) -> Arc<Path> {
        if let Some(known) = self.paths.get(name) {
            return known.clone();
        }
        self.room = self.room.saturating_sub(4 * name.len());
        let path: Arc<Path> = Path::new(name).into();
        self.paths.insert(name.into(), path.clone());
        path
    }

    fn finish(mut self, file: &PerfFile) -> Result<PerfParts> {
        let Some(info) = &self.info else {
            let cut = self.data.problems.first().map(|problem| format!("; {problem}")).unwrap_or_default();
            bail!("it has no traces: no AUXTRACE_INFO record{cut}")
        };
        self.data.clocks = info.clocks(&file.events);
        self.data.clock = info.clock();
        let programs = bpf::functions(file.bpf_programs());
        self.data.records.extend(bpf::changes(programs, &self.data.names));
        let Self { pieces, samples, gaps, times, data, .. } = self;
        Ok(PerfParts { pieces, samples, gaps, times, data })
    }
}

impl EventAttr {
    /// Returns the layout of its samples.
    pub(super) const fn layout(&self) -> SampleLayout {
        SampleLayout {
            sample_type: self.sample_type,
            read_format: self.read_format,
            branch_sample_type: self.branch_sample_type,
            user_registers: self.user_registers,
            interrupt_registers: self.interrupt_registers,
        }
    }
}

/// Returns the number of each event by its identifiers.
fn numbers_by_id(events: &[EventAttr]) -> FxHashMap<u64, usize> {
    let ids = |(number, event): (usize, &'_ EventAttr)| {
        event.ids.iter().map(|id| (*id, number)).collect::<Vec<_>>()
    };
    events.iter().enumerate().flat_map(ids).collect()
}

/// Returns the number of the event that a sample is of.
fn event_of(events: &[EventAttr], by_id: &FxHashMap<u64, usize>, record: &RawRecord<'_>) -> Option<usize> {
    let first = match events {
        [] => return None,
        [_] => return Some(0),
        [first, ..] => first,
    };
    // If the events have several kinds of samples, the identifier comes first in all of them.
    let at = sample::id_at(first.sample_type)?;
    by_id.get(&file::long(record.body(), at)?).copied()
}

/// Finds the layout of records that are no samples. If all events have the same values at the end of their records, the
/// identifier is not needed.
fn stream_config(events: &[EventAttr]) -> StreamConfig {
    let at_end = |event: &EventAttr| if event.flags & SAMPLE_ID_ALL == 0 { 0 } else { event.sample_type };
    let first = events.first().map_or(0, at_end);
    let differ = events.iter().any(|event| at_end(event) != first);
    let configs = events.iter().filter(|_| differ).flat_map(|event| {
        let ids = event.ids.iter().filter(|_| at_end(event) != first);
        ids.map(move |id| (*id, at_end(event)))
    });
    StreamConfig { sample_type: first, sample_configs: configs.collect(), ..StreamConfig::default() }
}

fn unreadable(record: &RawRecord<'_>, problem: RecordProblem) -> String {
    let what = match problem {
        RecordProblem::Text => "a text that does not end",
        RecordProblem::Internal | RecordProblem::Size => "another size than that of its fields",
        _ => "an identifier that it cannot have",
    };
    format!("at {:#x}: a record of type {} with {what}", record.at, record.kind)
}

/// Returns the processor in `GenuineIntel,6,94,3`: vendor, family, model and stepping.
fn processor(text: &str) -> Option<Cpu> {
    let mut words = text.split(',');
    let intel = words.next()? == "GenuineIntel";
    let mut number = || words.next()?.parse().ok();
    let [family, model, stepping] = [number()?, number()?, number()?];
    let (model, stepping) = (u8::try_from(model).ok()?, u8::try_from(stepping).ok()?);
    intel.then(|| Cpu::intel(family, model, stepping))
}

/// Returns a number that is not -1.
const fn known(number: u32) -> Option<u32> {
    if number == u32::MAX { None } else { Some(number) }
}

#[cfg(test)]
mod tests;
