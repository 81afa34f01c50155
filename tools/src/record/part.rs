//! One part of a recording: its files.

use super::{
    Error, Options,
    hardware::{Clock, Hardware},
};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_model::ExecMode;
use serde_json::json;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// One trace with its image and its truth.
#[derive(Clone, Debug)]
pub struct Part {
    /// Whose it is. 1: the program's main thread; threads and children follow in the order in which they were started.
    pub task: u32,
    /// The directory of its files.
    pub dir: PathBuf,
    /// The program that ran.
    pub program: String,
    /// The instructions that were traced.
    pub truth: AddressHash,
    /// The trace's length in bytes.
    pub bytes: u64,
    /// Transfers of control that nothing explains: there the trace is not right.
    pub unexplained: u32,
}

/// A part that is being recorded.
pub(super) struct Open {
    task: u32,
    dir: PathBuf,
    program: String,
    ranges: Vec<(u64, u64)>,
    /// The hardware that traces it.
    pub(super) hardware: Hardware<BufWriter<File>>,
}

impl Open {
    /// Begins a part.
    pub(super) fn begin(
        options: &Options,
        place: Place,
        program: String,
        ranges: Vec<(u64, u64)>,
        clock: Clock,
    ) -> Result<Self, Error> {
        let dir = place.directory(&options.out);
        fs::create_dir_all(&dir).map_err(|error| Error::File { path: dir.clone(), error })?;
        let path = dir.join(TRACE);
        let file = File::create(&path).map_err(|error| Error::File { path, error })?;
        let hardware = Hardware::start(options, &ranges, clock, BufWriter::new(file))?;
        Ok(Self { task: place.task, dir, program, ranges, hardware })
    }

    /// Ends it, in front of the instruction at `at` unless the program is in the kernel, and writes its files.
    pub(super) fn end(
        mut self,
        options: &Options,
        at: (u64, ExecMode),
        sections: &[(u64, Vec<u8>)],
    ) -> Result<Part, Error> {
        self.hardware.finish(at)?;
        let part = Part {
            truth: self.hardware.truth(),
            bytes: self.hardware.bytes(),
            unexplained: self.hardware.unexplained(),
            task: self.task,
            dir: self.dir,
            program: self.program,
        };
        write(&part.dir, CODE, |out| sections.iter().try_for_each(|(_, bytes)| out.write_all(bytes)))?;
        let mut offset = 0;
        let image = json!({ "sections": sections.iter().map(|(base, bytes)| {
            let section = json!({ "file": CODE, "offset": offset, "len": bytes.len(), "vaddr": base });
            offset += bytes.len();
            section
        }).collect::<Vec<_>>() });
        write(&part.dir, IMAGE, |out| writeln!(out, "{image:#}"))?;
        let profile = options.profile;
        let (family, model, stepping) = signature(profile.signature);
        let truth = json!({
            "count": part.truth.count(),
            "hash": format!("{:#018x}", part.truth.value()),
            "bytes": part.bytes,
            "program": part.program,
            "task": part.task,
            "arguments": options.program.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "unexplained": part.unexplained,
            "ranges": self.ranges.iter().map(|(first, last)| [first, last].map(|address| format!("{address:#x}")))
                .collect::<Vec<_>>(),
            "profile": profile.name,
            "cpu": format!("{family}/{model}/{stepping}"),
            "ctl": format!("{:#x}", options.ctl()),
            "cpuid_15h": { "eax": profile.tsc_ratio.1, "ebx": profile.tsc_ratio.0 },
            "mtc_freq": options.mtc.unwrap_or(0),
            "nom_freq": profile.non_turbo_ratio,
            "tsc_last": self.hardware.tsc(),
        });
        write(&part.dir, TRUTH, |out| writeln!(out, "{truth:#}"))?;
        Ok(part)
    }
}

/// Which part it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The task's number, from 1.
    pub(super) task: u32,
    /// The part's number among those of the task, from 1.
    pub(super) number: usize,
}

impl Place {
    fn directory(self, out: &Path) -> PathBuf {
        let task = if self.task == 1 { out.into() } else { out.join(format!("task-{}", self.task)) };
        if self.number == 1 { task } else { task.join(self.number.to_string()) }
    }
}

/// Removes all parts but the first of an earlier recording in the same place.
pub(super) fn remove_parts(out: &Path) {
    for task in 1.. {
        let place = |number| Place { task, number }.directory(out);
        let first = if task == 1 { 2 } else { 1 };
        let parts: Vec<_> = (first..).map(place).take_while(|dir| dir.join(TRACE).exists()).collect();
        if task > 1 && parts.is_empty() {
            break;
        }
        // What cannot be removed is overwritten, or stays.
        for dir in parts.iter().rev() {
            for name in [TRACE, CODE, IMAGE, TRUTH] {
                let _ = fs::remove_file(dir.join(name));
            }
            let _ = fs::remove_dir(dir);
        }
    }
}

const TRACE: &str = "trace.pt";
const CODE: &str = "code.bin";
const IMAGE: &str = "image.json";
const TRUTH: &str = "truth.json";

fn write(dir: &Path, name: &str, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    let path = dir.join(name);
    let filled = File::create(&path).and_then(|file| {
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        out.flush()
    });
    filled.map_err(|error| Error::File { path, error })
}

/// Family, model and stepping of CPUID.01H:EAX. Source: SDM vol. 2, "CPUID".
fn signature(eax: u32) -> (u32, u32, u32) {
    let family = eax >> 8 & 0xf;
    let extended = if family == 0xf { eax >> 20 & 0xff } else { 0 };
    (family + extended, eax >> 4 & 0xf | eax >> 12 & 0xf0, eax & 0xf)
}
