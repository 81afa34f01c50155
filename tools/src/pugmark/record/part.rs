//! One part of a recording, and its files.

use super::{
    Cause, RecordError, RecordOptions, ThreadInfo,
    hardware::{Clock, Hardware},
    truth::Truth,
};
use crate::description::{IMAGE, INDEX, TRACE, TRUTH};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_model::ExecMode;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
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
    /// The number of transfers of control that nothing explains; the trace is wrong there.
    pub unexplained: u32,
}

/// How many bytes of the trace are written to the file at once.
const WRITTEN_AT_ONCE: usize = 1 << 18;

/// A part that is being recorded.
pub(super) struct OpenPart<T> {
    task: u32,
    dir: PathBuf,
    program: String,
    pub(super) thread: ThreadInfo,
    tsc_first: u64,
    ranges: Vec<(u64, u64)>,
    /// The hardware that traces it.
    pub(super) hardware: Hardware<BufWriter<File>, T>,
}

impl<T: Truth> OpenPart<T> {
    /// Begins a part. With the clock comes whether the program is in the kernel.
    pub(super) fn begin(
        options: &RecordOptions,
        place: PartNumber,
        (program, thread): (String, ThreadInfo),
        ranges: Vec<(u64, u64)>,
        time: (Clock, bool),
        truth: T,
    ) -> Result<Self, RecordError> {
        let dir = place.directory(&options.out);
        fs::create_dir_all(&dir).map_err(|error| RecordError::File { path: dir.clone(), error })?;
        let path = dir.join(TRACE);
        let file = File::create(&path).map_err(|error| RecordError::File { path, error })?;
        let tsc_first = time.0.get();
        let out = BufWriter::with_capacity(WRITTEN_AT_ONCE, file);
        let hardware = Hardware::start(options, &ranges, time, out, truth)?;
        Ok(Self { task: place.task, dir, program, thread, tsc_first, ranges, hardware })
    }

    /// Ends the part and writes its files. Unless the program is in the kernel, the trace ends before the instruction
    /// at `at`.
    pub(super) fn end(
        mut self,
        options: &RecordOptions,
        cause: Cause,
        at: (u64, ExecMode),
        sections: &[(u64, Vec<u8>)],
    ) -> Result<Part, RecordError> {
        self.hardware.finish(at)?;
        let part = Part {
            truth: self.hardware.take_truth(),
            bytes: self.hardware.bytes(),
            unexplained: self.hardware.unexplained(),
            task: self.task,
            dir: self.dir,
            program: self.program,
            thread: self.thread,
            tsc: (self.tsc_first, self.hardware.tsc()),
            cause,
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
        let mut truth = json!({
            "program": part.program,
            "unexplained": part.unexplained,
            "ranges": self.ranges.iter().map(|(first, last)| [first, last].map(|address| format!("{address:#x}")))
                .collect::<Vec<_>>(),
            "profile": profile.name,
            "cpu": options.cpu().to_string(),
            "ctl": format!("{:#x}", options.ctl()),
            "cpuid_15h": { "eax": profile.tsc_ratio.1, "ebx": profile.tsc_ratio.0 },
            "mtc_freq": options.mtc.unwrap_or(0),
            "nom_freq": profile.non_turbo_ratio,
        });
        part.describe(&mut truth);
        write(&part.dir, TRUTH, |out| writeln!(out, "{truth:#}"))?;
        Ok(part)
    }
}

impl Part {
    /// Adds to an object what both `truth.json` and the recording's index say of a part.
    pub(super) fn describe(&self, object: &mut Value) {
        object["task"] = self.task.into();
        object["pid"] = self.thread.pid.into();
        object["tid"] = self.thread.tid.into();
        object["comm"] = self.thread.comm.as_str().into();
        object["arguments"] = self.thread.arguments.as_slice().into();
        object["tsc_first"] = self.tsc.0.into();
        object["tsc_last"] = self.tsc.1.into();
        object["ended"] = self.cause.to_string().into();
        object["count"] = self.truth.count().into();
        object["hash"] = format!("{:#018x}", self.truth.value()).into();
        object["bytes"] = self.bytes.into();
    }
}

/// The position of a part in its recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartNumber {
    /// The task's number, from 1.
    pub(super) task: u32,
    /// The part's number among those of its task, from 1.
    pub(super) number: usize,
}

impl PartNumber {
    fn directory(self, out: &Path) -> PathBuf {
        let task = if self.task == 1 { out.into() } else { out.join(format!("{TASK}{}", self.task)) };
        if self.number == 1 { task } else { task.join(self.number.to_string()) }
    }
}

/// Removes an earlier recording in the same place, because its leftover files would not belong to this one.
pub(super) fn remove_parts(out: &Path) {
    let _ = fs::remove_file(out.join(INDEX));
    // A task without parts leaves a gap in the numbers, so look at the names that exist.
    let names = fs::read_dir(out).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name());
    let others = names.filter_map(|name| name.to_str()?.strip_prefix(TASK)?.parse().ok());
    for task in others.chain([1]) {
        let place = |number| PartNumber { task, number }.directory(out);
        let parts: Vec<_> = (1..).map(place).take_while(|dir| dir.join(TRACE).exists()).collect();
        // A file that cannot be removed is overwritten, or stays.
        for dir in parts.iter().rev() {
            for name in [TRACE, CODE, IMAGE, TRUTH] {
                let _ = fs::remove_file(dir.join(name));
            }
            if dir != out {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

/// The prefix of the directories of all tasks but the first.
const TASK: &str = "task-";
const CODE: &str = "code.bin";

pub(super) fn write(
    dir: &Path,
    name: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), RecordError> {
    let path = dir.join(name);
    let filled = File::create(&path).and_then(|file| {
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        out.flush()
    });
    filled.map_err(|error| RecordError::File { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_recording_is_removed_and_all_of_it() {
        let out = std::env::temp_dir().join(format!("pugmark-parts-{}", std::process::id()));
        let recorded = ["", "2", "3", "task-2", "task-4", "task-4/2"];
        for dir in recorded {
            fs::create_dir_all(out.join(dir)).unwrap();
            for name in [TRACE, CODE, IMAGE, TRUTH] {
                fs::write(out.join(dir).join(name), "").unwrap();
            }
        }
        fs::write(out.join(INDEX), "").unwrap();
        // Files that do not belong to it: one in a part, one under the number of a part that does not exist, and
        // others.
        let others = ["notes", "task-4/notes", "5/trace.pt", "task-x/trace.pt", "2x/trace.pt"];
        for name in others {
            fs::create_dir_all(out.join(name).parent().unwrap()).unwrap();
            fs::write(out.join(name), "").unwrap();
        }
        remove_parts(&out);
        let left = |name: &str| out.join(name).exists();
        assert_eq!(others.map(left), [true; 5]);
        assert_eq!(["2", "3", "task-2", "task-4/2", INDEX].map(left), [false; 5]);
        for name in [TRACE, CODE, IMAGE, TRUTH] {
            assert!(!out.join(name).exists() && !out.join("task-4").join(name).exists(), "{name}");
        }
        fs::remove_dir_all(&out).unwrap();
        // There is nothing to remove.
        remove_parts(&out);
        assert!(!out.exists());
    }

    #[test]
    fn the_first_task_and_the_first_part_have_no_directory_of_their_own() {
        for (task, number, dir) in [
            (1, 1, "out"),
            (1, 2, "out/2"),
            (2, 1, "out/task-2"),
            (2, 2, "out/task-2/2"),
            (3, 10, "out/task-3/10"),
        ] {
            assert_eq!(PartNumber { task, number }.directory(Path::new("out")), Path::new(dir));
        }
    }
}
