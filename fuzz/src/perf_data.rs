//! The reader of files of `perf record`.

use crate::symbols::bounded;
use pugmark_tools::source::perf_data::PerfData;
use pugmark_tools::timeline::ProcessTimeline;

/// Checks that a file is read, whatever it says, with memory that its size allows, and that its timeline has code that
/// does not overlap.
///
/// # Panics
/// If that is not so.
pub fn check(file: &[u8]) {
    bounded(file, || {
        let Ok(data) = PerfData::parse(file.to_vec()) else { return };
        let timeline = ProcessTimeline::of(&data.records);
        for trace in &data.traces {
            let cpu = trace.cpu.unwrap_or(0);
            for turn in timeline.turns_of_cpu(cpu) {
                let mut done = 0;
                for part in turn.space.map(|space| timeline.code(space)).unwrap_or_default() {
                    assert!(done <= part.address && part.len > 0, "{part:?} after {done:#x}");
                    done = part.address.saturating_add(part.len);
                }
            }
        }
    });
}
