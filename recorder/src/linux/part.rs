//! One part of a recording, and its files, which are written as it goes: what is there can be decoded, even if this
//! process is killed or the disk is full.

use super::{
    Cause, RecordError, RecordOptions, ThreadInfo,
    code::{CodeSnapshots, PAGE_BYTES},
    folder::{self, PartNumber},
    maps::TaskMapping,
    pt_unit::PtUnit,
    truth::Truth,
};
use crate::files::{self, CODE, IMAGE, TRACE, TRUTH};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_model::ExecMode;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// One trace with its image and its truth.
#[derive(Clone, Debug)]
pub struct Part {
    /// The number of its task. 1 is the program's main thread; threads and children follow in the order in which they
    /// were started.
    pub task: u32,
    /// The directory of its files.
    pub dir: PathBuf,
    /// The path of the program's file.
    pub program: String,
    /// The thread that ran it.
    pub thread: ThreadInfo,
    /// The TSC at its begin and at its end. All processors of the recording have the same clock.
    pub tsc: (u64, u64),
    /// Why it ended.
    pub cause: Cause,
    /// The number and hash of the traced instructions.
    pub truth: AddressHash,
    /// The trace's length in bytes.
    pub bytes: u64,
    /// The instruction that the thread was at, and had not ended; `None` if it was in the kernel, or nobody knows.
    pub at: Option<u64>,
    /// The signal that has ended the process, if it is known that this thread got it.
    pub signal: Option<i32>,
    /// The access at `at` that has ended the process.
    pub fault: Option<Fault>,
    /// The number of transfers of control that nothing explains; the trace is wrong there.
    pub unexplained: u32,
    /// The jitdumps of the process that were mapped.
    pub(super) dumps: Vec<PathBuf>,
}

/// An access for which the system has ended a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The signal: SIGSEGV or SIGBUS.
    pub signal: i32,
    /// The address that was accessed; `None` if the processor does not tell, as for one that is not canonical.
    pub address: Option<u64>,
}

/// The most time of a recording that is lost if this process is killed.
pub(super) const WRITE_EVERY: Duration = Duration::from_millis(100);
/// The number of bytes of the trace that are written to the file at once.
const WRITTEN_AT_ONCE: usize = 1 << 18;

/// A part that is being recorded.
pub(super) struct OpenPart<T> {
    task: u32,
    dir: PathBuf,
    program: String,
    pub(super) thread: ThreadInfo,
    tsc_first: u64,
    ranges: Vec<(u64, u64)>,
    trace: GrowingFile,
    code: GrowingFile,
    /// Where in the file of code the pages are that begin at these addresses.
    pages: BTreeMap<u64, u64>,
    /// The files that were mapped, in the order in which they were.
    mapped: Vec<TaskMapping>,
    known: HashSet<TaskMapping>,
    /// The PT unit of its processor.
    pub(super) pt_unit: PtUnit<T>,
}

/// A file that is written piece by piece. A piece that does not fit is not there.
struct GrowingFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl GrowingFile {
    fn make(path: PathBuf) -> Result<Self, RecordError> {
        Ok(Self { file: folder::make_file(&path)?, path, len: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        let written = self.file.write_all(bytes);
        if written.is_ok() {
            self.len += bytes.len() as u64;
        } else {
            // The error to report is the first one.
            let _ = self.file.set_len(self.len);
        }
        written.map_err(|error| RecordError::File { path: self.path.clone(), error })
    }
}

impl<T: Truth> OpenPart<T> {
    /// Begins a part, which this unit traces.
    pub(super) fn begin(
        options: &RecordOptions,
        place: PartNumber,
        (program, thread): (String, ThreadInfo),
        ranges: Vec<(u64, u64)>,
        pt_unit: PtUnit<T>,
    ) -> Result<Self, RecordError> {
        let tsc_first = pt_unit.tsc();
        let dir = place.make(&options.out)?;
        let [trace, code] = [TRACE, CODE].map(|name| GrowingFile::make(dir.join(name)));
        let (trace, code, pages) = (trace?, code?, BTreeMap::new());
        let (mapped, known, task) = (vec![], HashSet::new(), place.task);
        let part = Self {
            task,
            dir,
            program,
            thread,
            tsc_first,
            ranges,
            trace,
            code,
            pages,
            mapped,
            known,
            pt_unit,
        };
        part.write_image()?;
        let mut truth = part.describe(options);
        truth["unfinished"] = true.into();
        truth["task"] = part.task.into();
        part.thread.describe(&mut truth);
        write_json(&part.dir, TRUTH, &truth)?;
        Ok(part)
    }

    /// Notes the files that are mapped now, so that what is opened while the program runs has names, too.
    pub(super) fn note_mappings(&mut self, mappings: &[TaskMapping]) {
        for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.is_file()) {
            if self.known.insert(mapping.clone()) {
                self.mapped.push(mapping.clone());
            }
        }
    }

    /// Returns true if much of the trace is not written.
    pub(super) fn has_much(&self) -> bool {
        self.pt_unit.waiting() >= WRITTEN_AT_ONCE
    }

    /// Writes what there is of the trace, after the code that it needs.
    pub(super) fn write(&mut self, code: &mut CodeSnapshots) -> Result<(), RecordError> {
        let fresh = code.take_fresh();
        if !fresh.is_empty() {
            let bytes: Vec<u8> = fresh.iter().flat_map(|(_, bytes)| *bytes).copied().collect();
            let begin = self.code.len;
            self.code.append(&bytes)?;
            self.pages
                .extend((begin..).step_by(PAGE_BYTES).zip(&fresh).map(|(at, (address, _))| (*address, at)));
            self.write_image()?;
        }
        let file = &mut self.trace;
        self.pt_unit.take_trace(|trace| if trace.is_empty() { Ok(()) } else { file.append(trace) })
    }

    /// Returns true if pages that follow one another in memory do not do so in the file.
    fn is_scattered(&self) -> bool {
        let next = |(address, at): (&u64, &u64)| (*address + PAGE_BYTES as u64, *at + PAGE_BYTES as u64);
        let pairs = self.pages.iter().map(next).zip(self.pages.iter().skip(1));
        pairs.into_iter().any(|((address, at), (second, second_at))| address == *second && at != *second_at)
    }

    /// Writes the list of the pages of code, and of the files that were mapped. Pages that follow one another in memory
    /// and in the file are one section.
    fn write_image(&self) -> Result<(), RecordError> {
        let mut sections: Vec<(u64, u64, u64)> = vec![];
        for (&address, &at) in &self.pages {
            match sections.last_mut() {
                Some((base, begin, len)) if *base + *len == address && *begin + *len == at => {
                    *len += PAGE_BYTES as u64;
                }
                _ => sections.push((address, at, PAGE_BYTES as u64)),
            }
        }
        let section =
            |(base, offset, len)| json!({ "file": CODE, "offset": offset, "len": len, "vaddr": base });
        let mapped = self.mapped.iter().map(|mapping| {
            let TaskMapping { start, end, offset, name, .. } = mapping;
            json!({ "file": name, "offset": offset, "len": end - start, "vaddr": start })
        });
        let image = json!({
            "mapped": mapped.collect::<Vec<_>>(),
            "sections": sections.into_iter().map(section).collect::<Vec<_>>(),
        });
        write_json(&self.dir, IMAGE, &image)
    }

    /// Ends the part and writes its files. Unless the program is in the kernel, the trace ends before the instruction
    /// at `at`.
    pub(super) fn end(
        mut self,
        options: &RecordOptions,
        cause: Cause,
        at: (u64, ExecMode),
        code: &mut CodeSnapshots,
    ) -> Result<Part, RecordError> {
        self.pt_unit.finish(at)?;
        self.write(code)?;
        self.write_image()?;
        if self.is_scattered() {
            code.renew();
            self.write(code)?;
        }
        let mut truth = self.describe(options);
        let name = files::jitdump(self.thread.pid);
        let mapped = self.mapped.iter().map(|mapping| PathBuf::from(&mapping.name));
        let part = Part {
            dumps: mapped.filter(|path| path.ends_with(&name)).collect(),
            truth: self.pt_unit.take_truth(),
            bytes: self.pt_unit.bytes(),
            unexplained: self.pt_unit.unexplained(),
            task: self.task,
            dir: self.dir,
            program: self.program,
            thread: self.thread,
            tsc: (self.tsc_first, self.pt_unit.tsc()),
            at: Some(at.0).filter(|at| *at != 0),
            signal: None,
            fault: None,
            cause,
        };
        truth["unexplained"] = part.unexplained.into();
        part.describe(&mut truth);
        write_json(&part.dir, TRUTH, &truth)?;
        Ok(part)
    }

    /// Returns what is true of the part from its begin on.
    fn describe(&self, options: &RecordOptions) -> Value {
        let profile = options.profile;
        json!({
            "program": self.program,
            "ranges": self.ranges.iter().map(|(first, last)| [first, last].map(|address| format!("{address:#x}")))
                .collect::<Vec<_>>(),
            "profile": profile.name,
            "cpu": options.cpu().to_string(),
            "ctl": format!("{:#x}", options.ctl()),
            "cpuid_15h": { "eax": profile.tsc_ratio.1, "ebx": profile.tsc_ratio.0 },
            "mtc_freq": options.mtc.unwrap_or(0),
            "nom_freq": profile.non_turbo_ratio,
        })
    }
}

impl ThreadInfo {
    /// Adds to an object what is known of the thread.
    fn describe(&self, object: &mut Value) {
        object["pid"] = self.pid.into();
        object["tid"] = self.tid.into();
        object["comm"] = self.comm.as_str().into();
        object["arguments"] = self.arguments.as_slice().into();
    }
}

impl Part {
    /// Returns where the program was when a signal ended it, and in which thread.
    #[must_use]
    pub fn ended_at(parts: &[Self]) -> Option<(u64, &ThreadInfo)> {
        Self::ended_in(parts).and_then(|part| Some((part.at?, &part.thread)))
    }

    /// Returns the part in which the program was when a signal ended it, if that is known: that of the thread that got
    /// the signal, or the only one.
    #[must_use]
    pub fn ended_in(parts: &[Self]) -> Option<&Self> {
        let pid = parts.iter().find(|part| part.task == 1)?.thread.pid;
        let last = || parts.iter().filter(move |part| part.thread.pid == pid && part.cause == Cause::Over);
        let mut got = last().filter(|part| part.signal.is_some());
        match (got.next(), got.next()) {
            (Some(part), None) => Some(part),
            (Some(_), Some(_)) => None,
            _ => last().next().filter(|_| last().count() == 1),
        }
    }

    /// Adds to an object what both `truth.json` and the recording's index say of a part.
    pub(super) fn describe(&self, object: &mut Value) {
        object["task"] = self.task.into();
        self.thread.describe(object);
        object["tsc_first"] = self.tsc.0.into();
        object["tsc_last"] = self.tsc.1.into();
        object["ended"] = self.cause.to_string().into();
        object["count"] = self.truth.count().into();
        object["hash"] = format!("{:#018x}", self.truth.value()).into();
        object["bytes"] = self.bytes.into();
        object["at"] = self.at.map(|at| format!("{at:#x}")).into();
    }
}

/// Writes a file of the recording.
pub(super) fn write_json(dir: &Path, name: &str, value: &Value) -> Result<(), RecordError> {
    folder::write(dir, name, |out: &mut dyn io::Write| writeln!(out, "{value:#}"))
}
