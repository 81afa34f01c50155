//! Writes `recording.json`: which task ran which program, and how the recording ended.

use super::{Cause, Ending, Part, RecordError, RecordOptions, part};
use crate::description::INDEX;
use serde_json::{Value, json};
use std::{fs, path::Path, time::SystemTime};

/// Writes the index of a recording that began at `begun`.
pub(super) fn write(
    options: &RecordOptions,
    begun: SystemTime,
    (parts, ending, cause): (&[Part], Ending, Cause),
) -> Result<(), RecordError> {
    let unix = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ending = match ending {
        Ending::Exit(status) => json!({ "exit": status }),
        Ending::Signal(signal) => json!({ "signal": signal }),
        Ending::GoesOn => Value::Null,
    };
    let program = match options.pid {
        None => options.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        Some(_) => parts.first().map(|part| part.thread.arguments.clone()).unwrap_or_default(),
    };
    let index = json!({
        "program": program,
        "attached_to": options.pid,
        "profile": options.profile.name,
        "cpu": options.cpu().to_string(),
        "begun": unix.as_secs_f64(),
        "limit": options.limit,
        "start": options.start.as_ref().map(ToString::to_string),
        "stop": options.stop.as_ref().map(ToString::to_string),
        "ended": cause.to_string(),
        "ending": ending,
        "parts": parts.iter().map(|part| entry(&options.out, part)).collect::<Vec<_>>(),
    });
    fs::create_dir_all(&options.out)
        .map_err(|error| RecordError::File { path: options.out.clone(), error })?;
    part::write(&options.out, INDEX, |out| writeln!(out, "{index:#}"))
}

fn entry(out: &Path, part: &Part) -> Value {
    let dir = part.dir.strip_prefix(out).unwrap_or(&part.dir);
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let mut entry = json!({ "dir": dir, "exe": part.program });
    part.describe(&mut entry);
    entry
}
