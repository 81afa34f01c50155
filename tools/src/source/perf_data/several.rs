//! Several files of one recording (`perf record --switch-output`): each has all that perf knew when it began the file,
//! and then what happened. The traces go on from one file to the next.

use super::{MOST_PROBLEMS, PerfParts};
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// Puts files together, in the order of their times. What was so before a file begins without a time holds from the
/// end of the file before.
pub(super) fn joined(mut files: Vec<(&Path, PerfParts)>) -> Result<PerfParts> {
    // Those without a time come first, in their order.
    files.sort_by_key(|(_, parts)| parts.times.map(|(first, _)| first));
    let is_alone = files.len() == 1;
    let mut files = files.into_iter();
    let (first, mut all) = files.next().context("no file is given")?;
    if !is_alone {
        all.data.problems.iter_mut().for_each(|problem| *problem = named(first, problem));
    }
    for (path, later) in files {
        let (own, other) = (&all.data, &later.data);
        ensure!(
            (own.cpu, own.clocks, own.clock) == (other.cpu, other.clocks, other.clock),
            "{} is of another recording than {}: its processor or its clock is another one",
            path.display(),
            first.display()
        );
        let begin = all.times.map_or(0, |(_, last)| last);
        all.times = later.times.map(|(first, last)| (first, last.max(begin))).or(all.times);
        all.pieces.append(later.pieces);
        all.samples.append(later.samples);
        all.gaps.extend(later.gaps);
        let mut records = later.data.records;
        records.iter_mut().filter(|record| record.time == 0).for_each(|record| record.time = begin);
        all.data.records.append(&mut records);
        all.data.names.extend(later.data.names);
        all.data.problems.extend(later.data.problems.iter().map(|problem| named(path, problem)));
    }
    all.data.problems.truncate(MOST_PROBLEMS);
    Ok(all)
}

fn named(path: &Path, problem: &str) -> String {
    format!("{}: {problem}", path.display())
}
