//! `pugmark coverage --minimise`: few recordings that have executed all that many have.

use super::{
    CountedFile, CoverageOptions, CoveredLane, covered,
    executed::{Edge, Executed},
};
use crate::{
    output::tell,
    pugmark::{progress::Progress, verdict::Verdict},
};
use anyhow::{Context, Result, ensure};
use rustc_hash::FxHashMap;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The edges of a recording, by their numbers, and the number of its instructions.
#[derive(Debug, Default)]
struct Candidate {
    edges: Vec<u32>,
    insns: u64,
}

impl CoverageOptions {
    /// Chooses recordings, prints them, and copies them to a folder.
    pub(super) fn minimise(&self, folder: &Path, progress: &mut Progress) -> Result<ExitCode> {
        let of_all = std::iter::once(&self.input.trace).chain(&self.input.more).chain(&self.union);
        let traces: Vec<&PathBuf> = of_all.collect();
        let names = names_in(folder, &traces)?;
        let mut verdict = Verdict::default();
        let mut input = self.input.clone();
        input.more.clear();
        let first = input.traces(&mut verdict, progress)?;
        let code = covered(&input, &first, progress)?;
        let of = self.file(&first)?.map(|of| CountedFile::load(&of, &code)).transpose()?;
        let (mut numbers, mut all) = (FxHashMap::default(), vec![]);
        for (number, trace) in traces.iter().enumerate() {
            let others = match number {
                0 => vec![],
                _ => self.others("--minimise", trace, (&code, of.as_ref()), &mut verdict, progress)?,
            };
            let lanes = if number == 0 { &code } else { &others };
            verdict.errors += lanes.iter().map(|lane| lane.executed.errors).sum::<usize>();
            all.push(Candidate::of(lanes, of.as_ref(), &mut numbers));
        }
        verdict.is_empty = numbers.is_empty();
        let chosen = chosen(&all, numbers.len());
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for (number, _) in &chosen {
            let (from, to) = (traces[*number], folder.join(&names[*number]));
            let what = || format!("cannot copy {} to {}", from.display(), to.display());
            copy(from, &to).with_context(what)?;
        }
        let row = |(number, added): &(usize, usize)| {
            (all[*number].edges.len(), *added, traces[*number].display().to_string())
        };
        self.print_rows(&chosen.iter().map(row).collect::<Vec<_>>())?;
        tell(format_args!(
            "{} of {} recordings have all {} edges: {}",
            chosen.len(),
            all.len(),
            numbers.len(),
            folder.display()
        ));
        Ok(verdict.status())
    }
}

/// Returns the edges of a recording: of a file if it is given.
pub(super) fn edges_of(lanes: &[CoveredLane], of: Option<&CountedFile>) -> BTreeSet<Edge> {
    let executed = lanes.iter().map(|CoveredLane { code, executed, .. }| match of {
        Some(of) => executed.of_file(of.place(), of.moved_in(code)),
        None => executed.clone(),
    });
    executed.flat_map(|executed| executed.edges.into_keys()).collect()
}

impl Candidate {
    /// Returns a recording's edges. Those that no recording has had get the next `numbers`.
    fn of(lanes: &[CoveredLane], of: Option<&CountedFile>, numbers: &mut FxHashMap<Edge, u32>) -> Self {
        let number = |edge: Edge| {
            let next = numbers.len() as u32;
            *numbers.entry(edge).or_insert(next)
        };
        let edges = edges_of(lanes, of).into_iter().map(number).collect();
        let insns = |Executed { insns, .. }: &Executed| insns.values().sum::<u64>();
        Self { edges, insns: lanes.iter().map(|lane| insns(&lane.executed)).sum() }
    }
}

/// Chooses recordings that together have all of the `count` edges: again and again the one that adds most, of equals
/// the one with fewer instructions; at last without those whose edges the others have. Returns their numbers in order,
/// each with the number of edges that it adds.
fn chosen(all: &[Candidate], count: usize) -> Vec<(usize, usize)> {
    let mut seen = vec![false; count];
    let new =
        |seen: &[bool], number: usize| all[number].edges.iter().filter(|edge| !seen[**edge as usize]).count();
    let (mut order, mut of_edges) = (vec![], vec![0_u32; count]);
    let mut left: BinaryHeap<_> = all
        .iter()
        .enumerate()
        .map(|(number, candidate)| (candidate.edges.len(), Reverse(candidate.insns), Reverse(number)))
        .collect();
    // A recording never adds more than it did before, so the others need no look while this one adds more than that.
    while let Some((_, size, Reverse(number))) = left.pop() {
        let now = (new(&seen, number), size, Reverse(number));
        if left.peek().is_some_and(|next| *next > now) {
            left.push(now);
        } else if now.0 > 0 {
            order.push(number);
            for edge in &all[number].edges {
                seen[*edge as usize] = true;
                of_edges[*edge as usize] += 1;
            }
        }
    }
    let mut needed = vec![];
    for number in order {
        let edges = &all[number].edges;
        if edges.iter().all(|edge| of_edges[*edge as usize] > 1) {
            edges.iter().for_each(|edge| of_edges[*edge as usize] -= 1);
        } else {
            needed.push(number);
        }
    }
    seen.fill(false);
    let adds = |number: usize| {
        let added = new(&seen, number);
        all[number].edges.iter().for_each(|edge| seen[*edge as usize] = true);
        (number, added)
    };
    needed.into_iter().map(adds).collect()
}

/// Returns the names that recordings get in the folder, which must be new or empty.
fn names_in(folder: &Path, traces: &[&PathBuf]) -> Result<Vec<OsString>> {
    let is_free = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    ensure!(is_free, "--minimise {}: it must be a new folder or an empty one", folder.display());
    let (mut names, mut known) = (vec![], BTreeMap::new());
    for trace in traces {
        let path = fs::canonicalize(trace).with_context(|| format!("cannot read {}", trace.display()))?;
        let name = path.file_name().with_context(|| format!("{} has no name", trace.display()))?.to_owned();
        if let Some(other) = known.insert(name.clone(), trace) {
            anyhow::bail!(
                "--minimise: {} and {} would have one name in the folder",
                other.display(),
                trace.display()
            );
        }
        names.push(name);
    }
    Ok(names)
}

/// Copies a file, or a folder with all files in it. Where the file system has links, nothing is copied.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() || kind.is_file() {
                copy(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
        return Ok(());
    }
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(all: &[(&[u32], u64)]) -> Vec<Candidate> {
        all.iter().map(|(edges, insns)| Candidate { edges: edges.to_vec(), insns: *insns }).collect()
    }

    #[test]
    fn the_one_that_adds_most_is_first_and_of_equals_the_shorter_one() {
        let all = candidates(&[(&[0, 1], 5), (&[0, 1, 2], 9), (&[2, 0, 1], 8), (&[3], 1), (&[], 0)]);
        assert_eq!(chosen(&all, 4), [(2, 3), (3, 1)]);
        assert_eq!(chosen(&[], 0), []);
        // The largest one is not needed any more when the others are there.
        let all = candidates(&[(&[0, 1, 2, 3], 1), (&[0, 1, 4], 1), (&[2, 3, 5], 1)]);
        assert_eq!(chosen(&all, 6), [(1, 3), (2, 3)]);
    }

    /// Returns the least number of recordings that have all edges.
    fn fewest(all: &[Candidate], count: usize) -> u32 {
        let masks: Vec<u64> =
            all.iter().map(|one| one.edges.iter().map(|edge| 1_u64 << edge).sum()).collect();
        let has_all = |set: &u32| {
            let union = masks.iter().enumerate().filter(|(number, _)| set >> number & 1 == 1);
            union.fold(0, |union, (_, mask)| union | mask) == (1 << count) - 1
        };
        (0..1_u32 << all.len()).filter(has_all).map(u32::count_ones).min().unwrap()
    }

    #[test]
    fn random_recordings_are_all_needed_and_hardly_more_than_the_fewest() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut ours, mut least) = (0, 0);
        for _ in 0..100 {
            let count = random.usize(1..20);
            let mut all: Vec<Candidate> = (0..random.usize(1..10))
                .map(|_| {
                    let own = (0..count as u32).filter(|_| random.u8(0..4) == 0).collect();
                    Candidate { edges: own, insns: random.u64(1..5) }
                })
                .collect();
            // Each edge is one of some recording.
            for edge in 0..count as u32 {
                if !all.iter().any(|one| one.edges.contains(&edge)) {
                    let number = random.usize(0..all.len());
                    all[number].edges.push(edge);
                }
            }
            let chosen = chosen(&all, count);
            assert_eq!(chosen.iter().map(|(_, added)| added).sum::<usize>(), count, "{all:?}");
            for (left_out, _) in &chosen {
                let others = chosen.iter().filter(|(number, _)| number != left_out);
                let edges: BTreeSet<u32> =
                    others.flat_map(|(number, _)| all[*number].edges.iter().copied()).collect();
                assert!(edges.len() < count, "{left_out} of {chosen:?}: {all:?}");
            }
            ours += chosen.len();
            least += fewest(&all, count) as usize;
        }
        assert!(ours >= least && ours * 100 <= least * 105, "{ours} {least}");
    }
}
