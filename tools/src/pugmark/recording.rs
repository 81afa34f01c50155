//! Finds the traces to decode: one file, or those of a recording's folder.

use crate::code::elf::{self, Segment};
use crate::code::image::ImageSection;
use crate::description::{Description, IMAGE, INDEX, TRACE};
use crate::output::tell;
use crate::perf_data::{AuxTrace, Mapping, PerfData, VDSO};
use anyhow::{Context, Result, ensure};
use object::ReadCache;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
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
    /// The trace's bytes and its code, if the file is one of `perf record`.
    pub perf: Option<PerfTrace>,
}

/// A trace in a file of `perf record`.
#[derive(Clone, Debug, Default)]
pub struct PerfTrace {
    /// The packets.
    pub bytes: Vec<u8>,
    /// The code of the programs.
    pub code: Vec<ImageSection>,
    /// The kernel's code.
    pub kernel: Vec<ImageSection>,
    /// The text of the kernel's /proc/kallsyms, if perf kept a copy of it.
    pub kallsyms: Option<PathBuf>,
}

impl PerfTrace {
    /// The kernel's code and its symbols beside a file of `perf record`, if perf kept a copy of them (`--kcore`).
    ///
    /// # Errors
    /// If the copy cannot be read.
    pub fn kernel_beside(file: &Path) -> Result<Self> {
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
}

#[derive(Deserialize)]
struct Index {
    parts: Vec<IndexedPart>,
}

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

    /// Returns the traces in a file of `perf record`. The files that it names are looked for in the folder `symfs`, if
    /// one is given. The kernel's code is there if perf kept a copy of it (`--kcore`).
    ///
    /// # Errors
    /// If the file cannot be read, or has no traces of Intel PT.
    pub fn in_perf_data(file: &Path, symfs: Option<&Path>) -> Result<Vec<Self>> {
        let data = PerfData::read(file)?;
        let PerfData { cpu, clocks, .. } = data;
        warnings(&data).for_each(|warning| tell(format_args!("pugmark: warning: {warning}")));
        let code: Vec<_> = data.mappings.iter().filter_map(|mapping| section(mapping, symfs)).collect();
        let PerfTrace { kernel, kallsyms, .. } = PerfTrace::kernel_beside(file)?;
        let description = Description { file: file.into(), cpu, clocks, ..Description::default() };
        let several = data.traces.len() > 1;
        let traced = |trace: AuxTrace| Self {
            trace: file.into(),
            description: Some(description.clone()),
            part: several.then(|| IndexedPart { dir: trace.to_string(), ..IndexedPart::default() }),
            perf: Some(PerfTrace {
                bytes: trace.bytes,
                code: code.clone(),
                kernel: kernel.clone(),
                kallsyms: kallsyms.clone(),
            }),
            image: None,
        };
        Ok(data.traces.into_iter().map(traced).collect())
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
        title
    }
}

/// The part of a mapping that is in its file; `None`, with a warning, if there is no such file. There need not be one
/// of the vdso, which few programs call.
fn section(mapping: &Mapping, symfs: Option<&Path>) -> Option<ImageSection> {
    let Mapping { address: vaddr, len, offset, path, .. } = mapping;
    let file =
        symfs.map_or_else(|| path.clone(), |folder| folder.join(path.strip_prefix("/").unwrap_or(path)));
    let Some(size) = fs::metadata(&file).ok().filter(fs::Metadata::is_file).map(|data| data.len()) else {
        if path != Path::new(VDSO) {
            tell(format_args!(
                "pugmark: warning: there is no file {}; --symfs says where to look",
                file.display()
            ));
        }
        return None;
    };
    let len = size.saturating_sub(*offset).min(*len);
    Some(ImageSection { file, offset: *offset, len, vaddr: *vaddr })
}

/// The kernel's code in perf's copy of /proc/kcore, where every segment is at its address.
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
    match fs::read(&file) {
        Ok(text) => Ok(serde_json::from_slice::<Index>(&text).with_context(what)?.parts),
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

/// What may be wrong with what perf recorded.
fn warnings(data: &PerfData) -> impl Iterator<Item = String> {
    let lost = (data.losses > 0).then(|| format!("perf lost some of the trace, {} times", data.losses));
    let several = (data.processes().len() > 1).then(|| {
        "several processes were traced; where they have different code at the same address, that of the \
         last one is used"
            .into()
    });
    lost.into_iter().chain(several)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_several_processes_are_warned_of() {
        let of = |losses, processes: &[i32]| {
            let mapping = |process: &i32| Mapping {
                process: *process,
                address: 0x1000,
                len: 0x1000,
                offset: 0,
                path: "/a".into(),
            };
            let mappings = processes.iter().map(mapping).collect();
            warnings(&PerfData { losses, mappings, ..PerfData::default() }).collect::<Vec<_>>()
        };
        assert_eq!(of(0, &[7, 7]), [] as [&str; 0]);
        assert_eq!(of(1, &[7]), ["perf lost some of the trace, 1 times"]);
        let both = of(2, &[7, 8]);
        assert!(both[0].ends_with(" 2 times") && both[1].starts_with("several processes"), "{both:?}");
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
