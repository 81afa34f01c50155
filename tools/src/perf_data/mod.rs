//! Reads the file that `perf record` writes: the traces of Intel PT in it, the code that was mapped while they were
//! taken, and what the file says about the processor; and the samples of other files.
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt, include/uapi/linux/perf_event.h; the fields of
//! the AUXTRACE_INFO record of Intel PT: tools/perf/util/intel-pt.h.

mod info;
pub mod sample;
pub mod samples;

use anyhow::{Context, Result, bail};
use info::PtInfo;
use linux_perf_data::linux_perf_event_reader::{EventRecord, RawData};
use linux_perf_data::{PerfFileReader, PerfFileRecord, UserRecord, UserRecordType};
use pugmark_decoder_core::config::Clocks;
use pugmark_decoder_core::errata::Cpu;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// The bytes that the file begins with.
const MAGIC: &[u8] = b"PERFILE2";
/// What perf calls the code that the kernel gives every program.
pub const VDSO: &str = "[vdso]";
/// PROT_EXEC of mmap.
const EXECUTABLE: u32 = 4;

/// What is in a file of `perf record`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfData {
    /// The traces, by CPU or by thread.
    pub traces: Vec<AuxTrace>,
    /// The executable mappings of files and of the vdso, in the order in which they were made.
    pub mappings: Vec<Mapping>,
    /// The processor, if it is Intel's.
    pub cpu: Option<Cpu>,
    /// Its clocks.
    pub clocks: Clocks,
    /// How often the kernel said that some of a trace was lost.
    pub losses: u64,
}

/// A trace in one piece: a gap begins another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuxTrace {
    /// The CPU, if a CPU was traced.
    pub cpu: Option<u32>,
    /// The thread, if a thread was traced.
    pub thread: Option<u32>,
    /// Where the piece begins in everything that was traced for this CPU or thread.
    pub offset: u64,
    /// The packets.
    pub bytes: Vec<u8>,
}

impl fmt::Display for AuxTrace {
    /// Writes `cpu-0` or `thread-12`, and where the piece begins if it is not the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cpu, self.thread) {
            (Some(cpu), _) => write!(f, "cpu-{cpu}"),
            (None, Some(thread)) => write!(f, "thread-{thread}"),
            (None, None) => f.write_str("trace"),
        }?;
        if self.offset == 0 { Ok(()) } else { write!(f, " from {:#x}", self.offset) }
    }
}

/// An executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The process.
    pub process: i32,
    /// The first address.
    pub address: u64,
    /// Size in bytes.
    pub len: u64,
    /// Where the mapping begins in the file.
    pub offset: u64,
    /// The file, or [`VDSO`].
    pub path: PathBuf,
}

impl PerfData {
    /// Returns whether a file is one of `perf record`.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        let mut begin = [0; MAGIC.len()];
        let found = path.is_file().then(|| File::open(path).and_then(|mut file| file.read_exact(&mut begin)));
        matches!(found, Some(Ok(()))) && begin == *MAGIC
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or has no traces of Intel PT.
    pub fn read(path: &Path) -> Result<Self> {
        let read = || -> Result<Self> {
            let PerfFileReader { mut perf_file, mut record_iter } =
                PerfFileReader::parse_file(BufReader::new(File::open(path)?))?;
            let mut found = Pieces::default();
            let mut data = Self { cpu: perf_file.cpu_id()?.and_then(processor), ..Self::default() };
            let mut info = None;
            while let Some(record) = record_iter.next_record(&mut perf_file)? {
                match record {
                    PerfFileRecord::EventRecord { record, .. } => data.event(record.parse()?),
                    PerfFileRecord::UserRecord(record) => {
                        if record.record_type == UserRecordType::PERF_AUXTRACE_INFO {
                            info = Some(PtInfo::parse(&record.data.as_slice())?);
                        } else if let UserRecord::Auxtrace(part) = record.parse()? {
                            found.add(&part);
                        }
                    }
                }
            }
            let Some(info) = info else { bail!("it has no traces: no AUXTRACE_INFO record") };
            data.clocks = info.clocks(perf_file.event_attributes());
            data.traces = found.0.into_values().flatten().collect();
            Ok(data)
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    fn event(&mut self, record: EventRecord<'_>) {
        let (process, address, len, offset, path) = match record {
            EventRecord::Mmap2(map) if map.protection & EXECUTABLE != 0 => {
                (map.pid, map.address, map.length, map.page_offset, map.path)
            }
            EventRecord::Mmap(map) if map.is_executable => {
                (map.pid, map.address, map.length, map.page_offset, map.path)
            }
            EventRecord::Raw(raw) => {
                self.losses += u64::from(info::is_loss(&raw));
                return;
            }
            _ => return,
        };
        // `//anon` and the kernel's own names are no files, but there may be a copy of the vdso.
        let path = path_of(path);
        if path.is_absolute() && !path.starts_with("//anon") || path == Path::new(VDSO) {
            self.mappings.push(Mapping { process, address, len, offset, path });
        }
    }

    /// The processes that have mapped code.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<i32> {
        self.mappings.iter().map(|mapping| mapping.process).collect()
    }
}

fn path_of(path: RawData<'_>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(path.as_slice().into_owned()).into()
}

/// The processor in `GenuineIntel,6,94,3`: vendor, family, model and stepping.
fn processor(text: &str) -> Option<Cpu> {
    let mut words = text.split(',');
    let intel = words.next()? == "GenuineIntel";
    let mut number = || words.next()?.parse().ok();
    let [family, model, stepping] = [number()?, number()?, number()?];
    let (model, stepping) = (u8::try_from(model).ok()?, u8::try_from(stepping).ok()?);
    intel.then(|| Cpu::intel(family, model, stepping))
}

/// The pieces of each trace, by its number in the file.
#[derive(Default)]
struct Pieces(BTreeMap<u32, Vec<AuxTrace>>);

impl Pieces {
    /// Adds a part, to the last piece if it begins where that one ends. perf fills a part up to a multiple of eight
    /// bytes, so that a part may end a little after the next one begins.
    fn add(&mut self, part: &linux_perf_data::Auxtrace<'_>) {
        let bytes = part.aux_data.as_slice();
        let pieces = self.0.entry(part.index).or_default();
        let fill = |last: &AuxTrace| (last.offset + last.bytes.len() as u64).checked_sub(part.offset);
        match pieces.last_mut().map(|last| (fill(last), last)) {
            Some((Some(fill @ 0..8), last)) => {
                last.bytes.truncate(last.bytes.len().saturating_sub(fill as usize));
                last.bytes.extend_from_slice(&bytes);
            }
            _ => pieces.push(AuxTrace {
                cpu: known(part.cpu),
                thread: known(part.tid),
                offset: part.offset,
                bytes: bytes.into_owned(),
            }),
        }
    }
}

/// A number that is not -1.
const fn known(number: u32) -> Option<u32> {
    if number == u32::MAX { None } else { Some(number) }
}

#[cfg(test)]
mod tests;
