//! The frame of a file of `perf record`: its header, its events, its features, and its records one after the other.
//!
//! Every size is held against the bytes that are there before it is used, and no memory is reserved by a number that
//! the file gives.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The file in a folder of perf's that has the header; the others have this name, a dot and a number.
const DATA: &str = "data";
/// The bytes that the file begins with, also of a big-endian one.
pub(super) const MAGIC: &[u8] = b"PERFILE2";
const SWAPPED: &[u8] = b"2ELIFREP";
/// The sizes of the header of a file, and of one that was written to a pipe.
const HEADER: usize = 104;
const PIPE_HEADER: usize = 16;
/// The header has one bit for each feature there can be.
const FEATURES: u32 = 256;

/// The numbers of the features that are read.
pub(super) mod feature {
    pub(in super::super) const CPUID: u32 = 9;
    pub(in super::super) const EVENT_DESC: u32 = 12;
    pub(in super::super) const PMU_MAPPINGS: u32 = 16;
    pub(in super::super) const BPF_PROG_INFO: u32 = 25;
}

/// The types of records that no sideband of libipt has: `PERF_RECORD_*` of include/uapi/linux/perf_event.h, and of
/// tools/lib/perf/include/perf/event.h for those that perf itself writes.
pub(super) mod kind {
    pub(in super::super) const SAMPLE: u32 = 9;
    pub(in super::super) const KSYMBOL: u32 = 17;
    pub(in super::super) const TEXT_POKE: u32 = 20;
    pub(in super::super) const HEADER_ATTR: u32 = 64;
    pub(in super::super) const TRACING_DATA: u32 = 66;
    pub(in super::super) const AUXTRACE_INFO: u32 = 70;
    pub(in super::super) const AUXTRACE: u32 = 71;
    pub(in super::super) const HEADER_FEATURE: u32 = 80;
    pub(in super::super) const COMPRESSED: u32 = 81;
    pub(in super::super) const COMPRESSED2: u32 = 83;
}

/// `perf_event_attr`, as far as it says what is in records, and the event's identifiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventAttr {
    pub(super) kind: u32,
    pub(super) config: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) branch_sample_type: u64,
    /// The number of registers in a sample: of the program, and of the code that was interrupted.
    pub(super) user_registers: u32,
    pub(super) interrupt_registers: u32,
    pub(super) ids: Vec<u64>,
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct PerfFile {
    bytes: Vec<u8>,
    pub(super) events: Vec<EventAttr>,
    features: Vec<(u32, Range<usize>)>,
    data: Range<usize>,
    piped: bool,
    /// Where the file ends, if that is within its records.
    short: Option<String>,
    /// More files of records alone, by name: each thread of `perf record --threads` writes one.
    beside: Vec<(String, Vec<u8>)>,
}

/// A record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawRecord<'a> {
    /// Its offset in the file.
    pub(super) at: u64,
    pub(super) kind: u32,
    pub(super) misc: u16,
    /// Its bytes, the header's eight included.
    pub(super) bytes: &'a [u8],
    /// The bytes after it that belong to it: the trace of an AUXTRACE record.
    pub(super) more: &'a [u8],
}

impl<'a> RawRecord<'a> {
    pub(super) fn body(&self) -> &'a [u8] {
        self.bytes.get(8..).unwrap_or_default()
    }
}

/// Records one after the other, and the place where they stop making sense.
#[derive(Clone, Debug)]
pub(super) struct RawRecords<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the bytes are in the file.
    base: u64,
    piped: bool,
    /// Why no record follows, before the bytes end.
    pub(super) cut: Option<String>,
}

impl PerfFile {
    /// Returns the file that has the header: the path, or a file in the folder there.
    pub(super) fn header_of(path: &Path) -> PathBuf {
        if path.is_dir() { path.join(DATA) } else { path.into() }
    }

    /// Reads a file, or the files of a folder in which perf has put them.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Self::parse(read_regular(path)?);
        }
        let mut file = Self::parse(read_regular(&path.join(DATA)).context("it has no file `data`")?)?;
        for (name, path) in numbered_files(path)? {
            let bytes = read_regular(&path).with_context(|| name.clone())?;
            file.beside.push((name, bytes));
        }
        Ok(file)
    }

    /// Reads the frame.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self> {
        ensure!(!bytes.starts_with(SWAPPED), "it is big-endian");
        ensure!(bytes.starts_with(MAGIC), "it is not a file of perf record");
        match long(&bytes, 8).context("the file ends in its header")? {
            size if size == HEADER as u64 => Self::with_header(bytes),
            size if size == PIPE_HEADER as u64 => Ok(Self::from_pipe(bytes)),
            size => bail!("at 0x8: a header of {size:#x} bytes is neither a file's nor a pipe's"),
        }
    }

    fn with_header(bytes: Vec<u8>) -> Result<Self> {
        let at = |place| long(&bytes, place).context("the file ends in its header");
        let (each, events_at, events_size) = (at(16)?, at(24)?, at(32)?);
        let (data_at, data_size) = (at(40)?, at(48)?);
        // A perf that was killed has not written the size of what it recorded.
        let data_size = if data_size == 0 { u64::MAX } else { data_size };
        let data = within(&bytes, data_at, data_size);
        let data_end = data_at.saturating_add(data_size);
        let short = (data_size != u64::MAX && data_end > bytes.len() as u64)
            .then(|| format!("it ends at {:#x}, and its records at {data_end:#x}", bytes.len()));
        let events = within(&bytes, events_at, events_size);
        let each = usize::try_from(each).ok().filter(|each| *each > 16 || events.is_empty());
        let each = each.with_context(|| format!("at 0x10: an event of {each:?} bytes"))?;
        let event = |event: &[u8]| {
            let (attr, ids) = event.split_at(each.saturating_sub(16));
            let ids = within(&bytes, long(ids, 0)?, long(ids, 8)?);
            Some(EventAttr::parse(attr, &bytes[ids]))
        };
        let events = bytes[events].chunks_exact(each.max(1)).filter_map(event).collect();
        let mut features = vec![];
        let mut section_at = data_at.saturating_add(data_size);
        for number in 0..FEATURES {
            let bits = long(&bytes, 72 + number as usize / 64 * 8).unwrap_or(0);
            if bits >> (number % 64) & 1 == 1 {
                let section = within(&bytes, section_at, 16);
                if let (Some(from), Some(size)) = (long(&bytes[section.clone()], 0), long(&bytes[section], 8))
                {
                    features.push((number, within(&bytes, from, size)));
                }
                section_at = section_at.saturating_add(16);
            }
        }
        Ok(Self { events, features, data, piped: false, short, bytes, beside: vec![] })
    }

    /// Makes a file of records from a pipe, which have their events and features among them.
    fn from_pipe(bytes: Vec<u8>) -> Self {
        let mut file = Self {
            events: vec![],
            features: vec![],
            data: PIPE_HEADER..bytes.len(),
            piped: true,
            short: None,
            bytes,
            beside: vec![],
        };
        let (mut events, mut features) = (vec![], vec![]);
        for record in file.records().by_ref() {
            let body = record.body();
            match record.kind {
                kind::HEADER_ATTR => {
                    let size = long(body, 0).map_or(0, |word| (word >> 32) as usize);
                    let (attr, ids) = body.split_at(size.min(body.len()));
                    events.push(EventAttr::parse(attr, ids));
                }
                kind::HEADER_FEATURE => {
                    let Some(number) = long(body, 0).and_then(|number| u32::try_from(number).ok()) else {
                        continue;
                    };
                    let from = record.at as usize + 16;
                    features.push((number, from..from + body.len() - 8));
                }
                _ => {}
            }
        }
        (file.events, file.features) = (events, features);
        file
    }

    /// Returns the records of the other files, with each file's name.
    pub(super) fn beside(&self) -> impl Iterator<Item = (&str, RawRecords<'_>)> {
        self.beside.iter().map(|(name, bytes)| (&**name, RawRecords::new(bytes, 0, false)))
    }

    /// Returns the records.
    pub(super) fn records(&self) -> RawRecords<'_> {
        let bytes = self.bytes.get(self.data.clone()).unwrap_or_default();
        RawRecords::new(bytes, self.data.start as u64, self.piped)
    }

    /// Returns the bytes of a feature.
    fn feature(&self, wanted: u32) -> Option<FeatureField<'_>> {
        let (_, range) = self.features.iter().find(|(number, _)| *number == wanted)?;
        self.bytes.get(range.clone()).map(FeatureField)
    }

    /// Returns the feature that describes BPF programs.
    pub(super) fn bpf_programs(&self) -> &[u8] {
        self.feature(feature::BPF_PROG_INFO).map_or(&[], |field| field.0)
    }

    /// Returns the processor's name as perf writes it: `GenuineIntel,6,94,3`.
    pub(super) fn cpu_id(&self) -> Option<&str> {
        self.feature(feature::CPUID)?.text()
    }

    /// Returns the names of the events, as far as the file has them.
    pub(super) fn event_names(&self) -> Vec<&str> {
        let read = || {
            let mut field = self.feature(feature::EVENT_DESC)?;
            let (count, size) = (field.int()?, field.int()?);
            let mut names = vec![];
            for _ in 0..count {
                field.take(size as usize)?;
                let ids = field.int()? as usize;
                names.push(field.text()?);
                field.take(ids.checked_mul(8)?)?;
            }
            Some(names)
        };
        read().unwrap_or_default()
    }

    /// Returns the number of the PMU with a name.
    pub(super) fn pmu(&self, wanted: &str) -> Option<u32> {
        let mut field = self.feature(feature::PMU_MAPPINGS)?;
        for _ in 0..field.int()? {
            let number = field.int()?;
            if field.text()? == wanted {
                return Some(number);
            }
        }
        None
    }

    /// Returns the reason why not all of its records are there.
    pub(super) fn short(&self) -> Option<&str> {
        self.short.as_deref()
    }

    /// Returns the size of all files in bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.beside.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }
}

impl EventAttr {
    /// Reads what is there; fields that a shorter one has not are 0.
    fn parse(attr: &[u8], ids: &[u8]) -> Self {
        let at = |place| long(attr, place).unwrap_or(0);
        Self {
            kind: at(0) as u32,
            config: at(8),
            sample_type: at(24),
            read_format: at(32),
            flags: at(40),
            branch_sample_type: at(72),
            user_registers: at(80).count_ones(),
            interrupt_registers: at(96).count_ones(),
            ids: ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect(),
        }
    }
}

impl<'a> RawRecords<'a> {
    /// Returns the records in these bytes, which are at `base` in the file.
    pub(super) const fn new(bytes: &'a [u8], base: u64, piped: bool) -> Self {
        Self { bytes, at: 0, base, piped, cut: None }
    }

    /// Returns the number of bytes that were used.
    pub(super) const fn used(&self) -> usize {
        self.at
    }

    /// Returns the bytes after a record that belong to it.
    fn more(&mut self, kind: u32, body: &[u8]) -> &'a [u8] {
        let size = match kind {
            kind::AUXTRACE => long(body, 0).unwrap_or(0),
            kind::TRACING_DATA if self.piped => {
                (long(body, 0).unwrap_or(0) & u64::from(u32::MAX)).next_multiple_of(8)
            }
            _ => return &[],
        };
        let range = within(self.bytes, self.at as u64, size);
        if (range.len() as u64) < size {
            let at = self.base + self.at as u64;
            let has = range.len();
            self.cut = Some(format!("at {at:#x}: {size:#x} bytes of a trace, of which {has:#x} are there"));
        }
        self.at = range.end;
        &self.bytes[range]
    }
}

impl<'a> Iterator for RawRecords<'a> {
    type Item = RawRecord<'a>;

    fn next(&mut self) -> Option<RawRecord<'a>> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty() && self.cut.is_none())?;
        let at = self.base + self.at as u64;
        let size = long(rest, 0).map(|header| (header >> 48) as usize);
        let found = size.filter(|size| *size >= 8).and_then(|size| rest.get(..size));
        let Some(bytes) = found else {
            let left = rest.len();
            self.cut = Some(match size {
                Some(size) => format!("at {at:#x}: a record of {size:#x} bytes, with {left:#x} left"),
                None => format!("at {at:#x}: {left:#x} bytes, which are no record"),
            });
            return None;
        };
        self.at += bytes.len();
        let header = long(bytes, 0)?;
        let (kind, misc) = (header as u32, (header >> 32) as u16);
        let more = self.more(kind, &bytes[8..]);
        Some(RawRecord { at, kind, misc, bytes, more })
    }
}

/// The rest of a feature.
struct FeatureField<'a>(&'a [u8]);

impl<'a> FeatureField<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(found)
    }

    fn int(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    /// Returns a text with its size before it, up to its first zero.
    fn text(&mut self) -> Option<&'a str> {
        let size = self.int()? as usize;
        std::str::from_utf8(self.take(size)?.split(|byte| *byte == 0).next()?).ok()
    }
}

/// Reads a regular file, as much of it as its size says.
fn read_regular(path: &Path) -> Result<Vec<u8>> {
    let data = fs::metadata(path)?;
    ensure!(data.is_file(), "it is not a regular file");
    let mut bytes = vec![];
    bytes.try_reserve_exact(usize::try_from(data.len())?)?;
    File::open(path)?.take(data.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Lists the files in a folder that hold only records, in the order of their numbers.
fn numbered_files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = vec![];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(DATA).and_then(|rest| rest.strip_prefix('.')?.parse::<u32>().ok());
        if let Some(number) = number
            && entry.path().is_file()
        {
            found.push((number, name, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, name, path)| (name, path)).collect())
}

/// Returns the 64-bit number at a place.
pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the part of a range that is there.
fn within(bytes: &[u8], from: u64, size: u64) -> Range<usize> {
    let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    clip(from)..clip(from.saturating_add(size))
}
