//! Finds the traces to decode: one file, or those of a recording's folder.

use crate::code::elf::{self, Segment};
use crate::code::image::ImageSection;
use crate::description::Description;
use crate::file::read_regular;
use crate::output::tell;
use crate::perf_clock::PerfClock;
use crate::source::foreign::{has_no_psb, kind_of};
use crate::source::perf_data::{AuxTrace, PerfData, VDSO};
use crate::symbols::JitSymbols;
use crate::text::printable;
use crate::timeline::{CodePart, KernelBytes, ProcessTimeline, SpaceId};
use anyhow::{Context, Result, anyhow, ensure};
use object::ReadCache;
use pugmark_recorder::files::{IMAGE, INDEX, TRACE, TRUTH};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    ops::Range,
    path::{Component, Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

/// Where `perf record --kcore` puts a copy of the kernel's code, beside its file.
const KCORE: &str = "kcore_dir/kcore";
/// Where `perf record --kcore` puts a copy of the kernel's symbols.
const KALLSYMS: &str = "kcore_dir/kallsyms";

/// A trace and what the files beside it say of it.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    /// The trace's file.
    pub trace: PathBuf,
    /// The recording's image, if the trace belongs to a recording.
    pub image: Option<PathBuf>,
    /// The recording's description.
    pub description: Option<Description>,
    /// The part of the recording that it is; only known in a recording's folder.
    pub part: Option<IndexedPart>,
    /// The code of a program, if it was recorded by `perf record`.
    pub perf: Option<PerfTrace>,
    /// All of a file of `perf record`.
    pub recording: Option<Rc<PerfRecording>>,
    /// The instructions of each thread that are wanted, by their numbers; empty if all are.
    pub windows: Vec<Range<u64>>,
    /// The thread that is wanted of a file of `perf record`, if not all are.
    pub(super) tid: Option<i32>,
}

/// Says that a thread that is wanted is not there, and which are.
pub(super) fn no_thread<'p>(tid: i32, there: impl Iterator<Item = &'p IndexedPart>) -> anyhow::Error {
    let known: Vec<_> = there.map(IndexedPart::title).collect();
    anyhow!("--tid {tid}: there is no such thread among: {}", known.join("; "))
}

impl Traced {
    /// Says that nothing in a trace can be decoded, and what it is instead; `None` if something can be.
    pub(super) fn no_trace(&self, trace: &[u8]) -> Option<String> {
        let name = printable(&self.trace.display().to_string()).into_owned();
        if trace.is_empty() {
            return Some(format!("{name} is empty: there is nothing to decode"));
        }
        has_no_psb(trace).then(|| {
            let folder = self
                .trace
                .parent()
                .filter(|folder| folder.join(TRACE).is_file() && !self.trace.ends_with(TRACE));
            let what = match (folder, kind_of(trace)) {
                (Some(folder), _) => format!("the recording is the folder {}", folder.display()),
                (None, Some(kind)) => format!("it is no Intel PT trace, but {kind}"),
                (None, None) => "is it an Intel PT trace? If not, use --source".to_owned(),
            };
            format!("no PSB in the {} bytes of {name}: {what}", trace.len())
        })
    }

    /// Compares the number of instructions that decoding has found, without errors, with that which the recorder has
    /// counted. Tells if it is another one, and returns the number of errors: 1 then, or 0.
    pub(super) fn misses(&self, found: u64) -> usize {
        let Some((count, _)) = self.description.as_ref().and_then(|description| description.truth) else {
            return 0;
        };
        if found == count || !self.windows.is_empty() {
            return 0;
        }
        tell(format_args!(
            "pugmark: warning: {}: decoding finds {found} of {count} instructions: a loop of direct jumps and calls \
             alone leaves nothing in a trace, and counts once",
            printable(&self.trace.display().to_string())
        ));
        1
    }
}

/// The contents of a file of `perf record`.
#[derive(Debug)]
pub struct PerfRecording {
    /// The traces.
    pub traces: Vec<Arc<AuxTrace>>,
    /// The threads and their code, by perf's clock.
    pub timeline: ProcessTimeline,
    /// The relation of perf's clock to the TSC.
    pub clock: Option<PerfClock>,
    /// The kernel's code and symbols, if perf kept a copy of them.
    pub kernel: PerfTrace,
}

/// The code of a program that was recorded by `perf record`.
#[derive(Clone, Debug, Default)]
pub struct PerfTrace {
    /// The code of the programs.
    pub code: Vec<ImageSection>,
    /// The kernel's code.
    pub kernel: Vec<ImageSection>,
    /// The text of the kernel's /proc/kallsyms, if perf kept a copy of it.
    pub kallsyms: Option<PathBuf>,
    /// The names of code that the kernel has made since.
    pub made: Rc<JitSymbols>,
    /// Bytes of the kernel's code that were others when they were executed, by address.
    pub changed: KernelBytes,
}

impl PerfTrace {
    /// Returns the kernel's code and its symbols beside a file of `perf record`, if perf kept a copy of them
    /// (`--kcore`).
    ///
    /// # Errors
    /// If the copy cannot be read.
    pub fn kernel_beside(file: &Path) -> Result<Self> {
        let file = PerfData::header_of(file);
        let kcore = file.with_file_name(KCORE);
        let kernel = if kcore.is_file() { kernel(&kcore)? } else { vec![] };
        let kallsyms = Some(file.with_file_name(KALLSYMS)).filter(|file| file.is_file());
        Ok(Self { kernel, kallsyms, ..Self::default() })
    }
}

/// A part of a recording, as the recording's index lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedPart {
    /// The part's folder, relative to the recording's.
    pub dir: String,
    /// The task's number; 1 is the program's main thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<i32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// The program's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// The signal that ended the process, if this thread got it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The address that the thread accessed in vain, for which it got the signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

#[derive(Deserialize)]
struct Index {
    parts: Vec<IndexedPart>,
    #[serde(default)]
    unfinished: bool,
}

/// The thread of a part in the part's description, which an index that is not finished lacks.
#[derive(Default, Deserialize)]
struct PartThread {
    task: Option<u32>,
    pid: Option<i32>,
    tid: Option<i32>,
    comm: Option<String>,
    program: Option<String>,
}

impl PartThread {
    fn read(folder: &Path, dir: String) -> IndexedPart {
        // Without one only the folder's name is known.
        let text = fs::read(folder.join(&dir).join(TRUTH)).unwrap_or_default();
        let Self { task, pid, tid, comm, program: exe } = serde_json::from_slice(&text).unwrap_or_default();
        IndexedPart { dir, task, pid, tid, comm, exe, ..IndexedPart::default() }
    }
}

/// The warning about a trace that the recorder did not end.
pub const UNFINISHED: &str = "the recording was not finished: what was recorded until then is shown";

impl Traced {
    /// Returns the trace in a file, with the image and description beside it if it belongs to a recording.
    #[must_use]
    pub fn file(trace: &Path) -> Self {
        if trace.as_os_str() == "-" {
            return Self { trace: trace.into(), ..Self::default() };
        }
        // A file of that name may be another program's, so decode the trace without it.
        let description = Description::beside(trace).unwrap_or_else(|error| {
            tell(format_args!("pugmark: warning: {error}: {}; the trace is decoded without it", error.error));
            None
        });
        let image = description.is_some().then(|| trace.with_file_name(IMAGE)).filter(|image| image.exists());
        Self { trace: trace.into(), image, description, ..Self::default() }
    }

    /// Returns what is in the files of a recording of `perf record`, which must be at least one. The kernel's code is
    /// there if perf kept a copy of it (`--kcore`) beside the first one.
    ///
    /// # Errors
    /// If a file cannot be read, or has no traces of Intel PT, or they are of several recordings.
    pub fn in_perf_data(files: &[PathBuf]) -> Result<(Self, usize)> {
        let file = files.first().context("no file is given")?.as_path();
        let PerfData { traces, records, cpu, mut names, clocks, clock, problems } =
            PerfData::read_all(files)?;
        let cut = problems.first().map(|problem| format!("; {problem}")).unwrap_or_default();
        ensure!(!traces.is_empty(), "{}: there is no byte of a trace in it{cut}", file.display());
        let timeline = ProcessTimeline::of(&records);
        let losses: Vec<_> = problems.into_iter().chain(warnings(&timeline)).collect();
        for loss in &losses {
            tell(format_args!("pugmark: warning: {}: {loss}", file.display()));
        }
        // Where several programs had the same place, the last one gives it its name.
        names.sort_by_key(|name| name.time);
        let made = names.iter().map(|name| (name.address, name.size, &*name.name));
        let kernel =
            PerfTrace { made: Rc::new(JitSymbols::of_kernel(made)), ..PerfTrace::kernel_beside(file)? };
        let description = Description { file: file.into(), cpu, clocks, ..Description::default() };
        let traced = Self {
            trace: file.into(),
            description: Some(description),
            recording: Some(Rc::new(PerfRecording {
                traces: traces.into_iter().map(Arc::new).collect(),
                timeline,
                clock,
                kernel,
            })),
            ..Self::default()
        };
        Ok((traced, losses.len()))
    }

    /// Returns the traces in a recording's folder.
    ///
    /// # Errors
    /// If there are none, or the recording's index cannot be read.
    pub fn in_folder(folder: &Path) -> Result<Vec<Self>> {
        let parts = parts(folder)?;
        ensure!(
            !parts.is_empty(),
            "{} is not a recording of `pugmark record`: it has no {TRACE}",
            folder.display()
        );
        let traced = |part: IndexedPart| {
            let trace = folder.join(&part.dir).join(TRACE);
            Self { part: Some(part), ..Self::file(&trace) }
        };
        Ok(parts.into_iter().map(traced).collect())
    }
}

impl IndexedPart {
    /// Returns `task-2: worker (pid 12, tid 13), /usr/bin/x`, as far as these are known.
    #[must_use]
    pub fn title(&self) -> String {
        let mut title = self.dir.clone();
        if let Some(comm) = &self.comm {
            title += &format!(": {comm}");
        }
        if let (Some(pid), Some(tid)) = (self.pid, self.tid) {
            title += &format!(" (pid {pid}, tid {tid})");
        }
        if let Some(exe) = &self.exe {
            title += &format!(", {exe}");
        }
        printable(&title).into_owned()
    }
}

impl PerfRecording {
    /// Returns the code of a space, and the kernel's. The files are looked for in the folder `symfs`, if one is given.
    /// Those that are not there are added to `missing`.
    #[must_use]
    pub fn code(
        &self,
        space: Option<SpaceId>,
        changed: KernelBytes,
        symfs: Option<&Path>,
        missing: &mut BTreeSet<PathBuf>,
    ) -> PerfTrace {
        let parts = space.map(|space| self.timeline.code(space)).unwrap_or_default();
        let code = parts.iter().filter_map(|part| section(part, symfs, missing)).collect();
        PerfTrace { code, changed, ..self.kernel.clone() }
    }
}

/// Returns the part of a mapping that is in its file; `None` if there is no such file. There need not be one of the
/// vdso, which few programs call.
fn section(part: &CodePart, symfs: Option<&Path>, missing: &mut BTreeSet<PathBuf>) -> Option<ImageSection> {
    let CodePart { address: vaddr, len, offset, path } = part;
    let file = super::code_names::place_of(path, symfs);
    let Some(size) = fs::metadata(&file).ok().filter(fs::Metadata::is_file).map(|data| data.len()) else {
        if **path != *Path::new(VDSO) {
            missing.insert(file);
        }
        return None;
    };
    let len = size.saturating_sub(*offset).min(*len);
    Some(ImageSection { file, offset: *offset, len, vaddr: *vaddr })
}

/// Returns the kernel's code in perf's copy of /proc/kcore, where every segment is at its address.
fn kernel(file: &Path) -> Result<Vec<ImageSection>> {
    let what = || format!("perf's copy of the kernel's code, {}", file.display());
    // Only its headers are read here.
    let segments = elf::segments(&ReadCache::new(File::open(file).with_context(what)?)).with_context(what)?;
    let section = |segment: &Segment| {
        let Segment { offset, size: len, vaddr, .. } = *segment;
        ImageSection { file: file.into(), offset, len, vaddr }
    };
    Ok(segments.loaded.iter().map(section).collect())
}

/// Lists the parts by the index, or by the names of the folders if there is no index.
fn parts(folder: &Path) -> Result<Vec<IndexedPart>> {
    let file = folder.join(INDEX);
    let what = || format!("the recording's index {}", file.display());
    match read_regular(&file) {
        Ok(text) => {
            let index: Index = serde_json::from_slice(&text).with_context(what)?;
            if !index.unfinished {
                let mut parts = index.parts;
                for part in &mut parts {
                    let inside = |piece| matches!(piece, Component::Normal(_) | Component::CurDir);
                    let is_inside = Path::new(&part.dir).components().all(inside);
                    ensure!(is_inside, "{}: part {} is not in that folder", what(), part.dir);
                    part.comm = part.comm.take().map(|comm| printable(&comm).into_owned());
                }
                return Ok(parts);
            }
            let mut dirs = vec![];
            collect(folder, "", &mut dirs);
            dirs.retain(|dir| fs::metadata(folder.join(dir).join(TRACE)).is_ok_and(|trace| trace.len() > 0));
            ensure!(
                !dirs.is_empty(),
                "{}: the recording was not finished, nor any of it written",
                folder.display()
            );
            tell(format_args!("pugmark: warning: {}: {UNFINISHED}", folder.display()));
            Ok(dirs.into_iter().map(|dir| PartThread::read(folder, dir)).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut dirs = vec![];
            collect(folder, "", &mut dirs);
            Ok(dirs.into_iter().map(|dir| IndexedPart { dir, ..IndexedPart::default() }).collect())
        }
        Err(error) => Err(error).with_context(what),
    }
}

/// Collects the folders that have a trace: this one, its parts by number, and then those of other tasks.
fn collect(folder: &Path, name: &str, dirs: &mut Vec<String>) {
    let join = |inner: &str| if name.is_empty() { inner.to_owned() } else { format!("{name}/{inner}") };
    if folder.join(name).join(TRACE).exists() {
        dirs.push(if name.is_empty() { ".".into() } else { name.into() });
    }
    let entries = fs::read_dir(folder.join(name)).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let number = |inner: &str| -> Option<(bool, u32)> {
        match inner.strip_prefix("task-") {
            Some(number) if name.is_empty() => Some((true, number.parse().ok()?)),
            _ => Some((false, inner.parse().ok()?)),
        }
    };
    let mut inner: Vec<_> = names.filter_map(|inner| Some((number(&inner)?, inner))).collect();
    inner.sort();
    for (_, inner) in inner {
        collect(folder, &join(&inner), dirs);
    }
}

/// Says what perf has lost, with the time of the first loss.
fn warnings(timeline: &ProcessTimeline) -> impl Iterator<Item = String> {
    let seconds = |time: u64| format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
    let trace = timeline.trace_losses();
    let trace = trace.first().map(|(time, cpu)| {
        let cpu = cpu.map(|cpu| format!(" on CPU {cpu}")).unwrap_or_default();
        format!("perf lost some of the trace, {} times, first at {}{cpu}", trace.len(), seconds(*time))
    });
    let records = timeline.losses();
    let count: u64 = records.iter().map(|(_, count)| count).sum();
    let records = records.first().map(|(time, _)| {
        format!(
            "perf lost {count} records, first at {}: switches and mappings may be missing from there on",
            seconds(*time)
        )
    });
    trace.into_iter().chain(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_warned_of_with_their_time() {
        use crate::source::{SystemChange, SystemRecord};
        let lost = |time, change| SystemRecord { time, cpu: Some(3), change };
        let records = [
            lost(2_000_000_007, SystemChange::TraceLost),
            lost(1_000_000_000, SystemChange::RecordsLost(5)),
            lost(3_000_000_000, SystemChange::RecordsLost(2)),
        ];
        let of = |records| warnings(&ProcessTimeline::of(records)).collect::<Vec<_>>();
        assert_eq!(of(&[]), [] as [&str; 0]);
        assert_eq!(
            of(&records[..1]),
            ["perf lost some of the trace, 1 times, first at 2.000000007 on CPU 3"]
        );
        let both = of(&records);
        assert!(both[1].starts_with("perf lost 7 records, first at 1.000000000"), "{both:?}");
    }

    #[test]
    fn without_an_index_the_folders_names_say_the_order() {
        let folder = std::env::temp_dir().join(format!("pugmark-folder-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for dir in ["task-10", "task-2/2", "10", "2", "other", "task-2/task-3"] {
            fs::create_dir_all(folder.join(dir)).unwrap();
            fs::write(folder.join(dir).join(TRACE), []).unwrap();
        }
        assert!(Traced::in_folder(&folder.join("none")).is_err());
        let dirs = |folder: &Path| -> Vec<String> {
            let traces = Traced::in_folder(folder).unwrap();
            traces.into_iter().map(|traced| traced.part.unwrap().dir).collect()
        };
        assert_eq!(dirs(&folder), ["2", "10", "task-2/2", "task-10"]);
        fs::write(folder.join(TRACE), []).unwrap();
        assert_eq!(dirs(&folder)[0], ".");
        let index =
            r#"{"parts": [{"dir": "task-10", "task": 10, "pid": 3, "tid": 4, "comm": "a", "exe": "/b"}]}"#;
        fs::write(folder.join(INDEX), index).unwrap();
        let traces = Traced::in_folder(&folder).unwrap();
        assert_eq!(traces.len(), 1);
        assert_eq!(traces[0].trace, folder.join("task-10").join(TRACE));
        assert_eq!(traces[0].part.as_ref().unwrap().title(), "task-10: a (pid 3, tid 4), /b");
        for dir in ["../other", "/other", "2/../../other"] {
            fs::write(folder.join(INDEX), format!(r#"{{"parts": [{{"dir": "{dir}"}}]}}"#)).unwrap();
            let error = Traced::in_folder(&folder).unwrap_err().to_string();
            assert!(error.ends_with(&format!("part {dir} is not in that folder")), "{error}");
        }
        fs::write(folder.join(INDEX), "{").unwrap();
        assert!(Traced::in_folder(&folder).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_kernels_code_is_where_perfs_copy_of_it_says() {
        // 64 bits, little-endian, a core file for x86-64.
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
        // No entry; the program headers follow; no section headers.
        bytes.extend([0u64, 64, 0].map(u64::to_le_bytes).concat());
        bytes.extend([0u16, 0, 64, 56, 2, 0, 0, 0].map(u16::to_le_bytes).concat());
        let segments = [(0x1000, 0xffff_ffff_8100_0000, 0x200), (0x1200, 0xffff_ffff_c000_0000, 0x30)];
        for (offset, address, size) in segments {
            bytes.extend([1u32, 7].map(u32::to_le_bytes).concat());
            bytes.extend([offset, address, 0, size, size, 0x1000].map(u64::to_le_bytes).concat());
        }
        bytes.resize(0x1230, 0);
        let file = std::env::temp_dir().join(format!("pugmark-kcore-{}", std::process::id()));
        fs::write(&file, &bytes).unwrap();
        let expected =
            segments.map(|(offset, vaddr, len)| ImageSection { file: file.clone(), offset, len, vaddr });
        assert_eq!(kernel(&file).unwrap(), expected);
        fs::write(&file, b"no ELF").unwrap();
        assert!(format!("{:#}", kernel(&file).unwrap_err()).contains("copy of the kernel's code"));
        fs::remove_file(&file).unwrap();
    }
}
