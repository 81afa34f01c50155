//! The names of the files in a recording's folder.

/// The trace of a part.
pub const TRACE: &str = "trace.pt";
/// The image of a part, which lists the traced code.
pub const IMAGE: &str = "image.json";
/// The bytes of the traced code, which the image refers to.
pub const CODE: &str = "code.bin";
/// The truth of a part: the number and hash of its instructions, and what describes its processor.
pub const TRUTH: &str = "truth.json";
/// The list of a recording's parts.
pub const INDEX: &str = "recording.json";
/// The prefix of the folders of all tasks but the first; the task's number follows.
pub const TASK: &str = "task-";

/// Returns the name of a process's list of functions, as perf knows it.
#[must_use]
pub fn perf_map(pid: i32) -> String {
    format!("perf-{pid}.map")
}

/// Returns the name of a process's list of functions with their code, as perf knows it.
#[must_use]
pub fn jitdump(pid: i32) -> String {
    format!("jit-{pid}.dump")
}
