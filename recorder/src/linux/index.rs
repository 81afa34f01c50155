//! Writes `recording.json`: which task ran which program, and how the recording ended.

use super::{
    Cause, Deviation, DeviationKind, Ending, NotFollowed, Part, RecordError, RecordOptions, part::write_json,
};
use crate::files::INDEX;
use serde_json::{Value, json};
use std::{path::Path, time::SystemTime};

/// Writes the index of a recording that begins: what is true of it as long as it is not finished. Its parts have to be
/// looked for.
pub(super) fn begin(options: &RecordOptions, begun: SystemTime) -> Result<(), RecordError> {
    let mut index = describe(options, begun);
    index["unfinished"] = true.into();
    index["parts"] = json!([]);
    write_json(&options.out, INDEX, &index)
}

/// Writes the index of a recording that began at `begun`, with the programs that are not in it, and where the
/// emulator is no Linux.
pub(super) fn write(
    options: &RecordOptions,
    begun: SystemTime,
    (parts, ending, cause): (&[Part], Ending, Cause),
    (not_followed, deviations): (&[NotFollowed], &[Deviation]),
) -> Result<(), RecordError> {
    let ending = match ending {
        Ending::Exit(status) => json!({ "exit": status }),
        Ending::Signal(signal) => {
            let mut ending = json!({ "signal": signal });
            if let Some(part) = Part::ended_in(parts) {
                ending["at"] = part.at.map(|at| format!("{at:#x}")).into();
                ending["tid"] = part.thread.tid.into();
            }
            ending
        }
        Ending::GoesOn => Value::Null,
    };
    let mut index = describe(options, begun);
    if options.pid.is_some() {
        index["program"] = parts.first().map(|part| part.thread.arguments.clone()).unwrap_or_default().into();
    }
    index["ended"] = cause.to_string().into();
    index["ending"] = ending;
    let entry_of = |NotFollowed { pid, program }: &NotFollowed| json!({ "pid": pid, "program": program });
    index["not_followed"] = not_followed.iter().map(entry_of).collect();
    let entry_of = |Deviation { pid, kind }: &Deviation| match kind {
        DeviationKind::NoFilter => json!({ "pid": pid, "kind": "no_filter" }),
        DeviationKind::NoCall(number) => json!({ "pid": pid, "kind": "no_call", "call": number }),
        DeviationKind::NoSharedMemory => json!({ "pid": pid, "kind": "no_shared_memory" }),
        DeviationKind::StaleCode => json!({ "pid": pid, "kind": "stale_code" }),
    };
    index["deviations"] = deviations.iter().map(entry_of).collect();
    let ended_in = Part::ended_in(parts).map(|part| &part.dir);
    let entry = |part: &Part| {
        let mut entry = entry(&options.out, part);
        let signal = index["ending"]["signal"].as_i64().filter(|_| ended_in == Some(&part.dir));
        // Of two threads of a process that got one at once, it is unknown which of them ended the process.
        let got = |other: &&Part| other.thread.pid == part.thread.pid && other.signal.is_some();
        let own = part.signal.filter(|_| parts.iter().filter(got).count() == 1);
        entry["signal"] = own.map(i64::from).or(signal).into();
        entry["address"] =
            part.fault.and_then(|fault| fault.address).map(|address| format!("{address:#x}")).into();
        entry
    };
    index["parts"] = parts.iter().map(entry).collect();
    write_json(&options.out, INDEX, &index)
}

fn describe(options: &RecordOptions, begun: SystemTime) -> Value {
    let unix = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "program": options.program.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
        "attached_to": options.pid,
        "machine": options.machine,
        "profile": options.profile.name,
        "cpu": options.cpu().to_string(),
        "begun": unix.as_secs_f64(),
        "limit": options.limit,
        "start": options.start.as_ref().map(ToString::to_string),
        "stop": options.stop.as_ref().map(ToString::to_string),
    })
}

fn entry(out: &Path, part: &Part) -> Value {
    let dir = part.dir.strip_prefix(out).unwrap_or(&part.dir);
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let mut entry = json!({ "dir": dir, "exe": part.program });
    part.describe(&mut entry);
    entry
}
