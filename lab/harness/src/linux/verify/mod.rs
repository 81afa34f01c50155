//! perf in a guest, compared with the truth: one machine makes many recordings, and the log is split by them.

mod accesses;
mod answers;
mod branches;
mod names;
mod rows;

use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use rows::{Check, Row, all, short};

use self::answers::{Found, addresses, perf, perf_script, pugmark, pugmark_text, traced_samples};
use super::{Event, Guest, LinuxMachine, LinuxOutcome, Monitor};
use crate::images::Images;
use crate::scratch::Scratch;
use crate::truth::Truth;
use pugmark_launch::linux::PTWRITE_COUNT;

/// The programs and folders of the host that the table needs.
#[derive(Clone, Debug)]
pub struct Verify {
    /// The kernel's ELF file.
    pub kernel: PathBuf,
    /// busybox, which needs no libraries.
    pub busybox: PathBuf,
    /// perf, for the guest and for the host.
    pub perf: PathBuf,
    /// Our decoder.
    pub pugmark: PathBuf,
    /// The folder for the data of wrong rows: perf's file, the guest's files, and the log.
    pub kept: PathBuf,
}

/// A row that was right.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Number of instructions, branches or samples that were compared.
    pub compared: u64,
    /// Number of instructions of the programs in the log.
    pub instructions: u64,
    /// Number of stepped instructions, including the kernel's and perf's own.
    pub stepped: u64,
    /// The size of perf's file.
    pub bytes: u64,
    /// Duration of perf, by the host's clock.
    pub time: Duration,
}

impl Verify {
    /// Runs the rows, and passes the result of each to `each`. If a machine cannot be run to its end, all its rows are
    /// wrong, and the next machine is run.
    ///
    /// # Errors
    /// If a file of the host cannot be written.
    pub fn run(&self, rows: &[Row], mut each: impl FnMut(&Row, Result<Verified>)) -> Result<()> {
        for rows in rows.chunk_by(|a, b| a.machine() == b.machine()) {
            let scratch = Scratch::new()?;
            let (outcome, times) = match self.boot(rows, scratch.folder()) {
                Ok(booted) => booted,
                Err(error) => {
                    rows.iter().for_each(|row| each(row, Err(anyhow!("its machine failed: {error:#}"))));
                    continue;
                }
            };
            for (index, (row, time)) in rows.iter().zip(times).enumerate() {
                let mut compared = self.judge(row, index, &outcome, scratch.folder());
                if let Err(error) = compared {
                    let kept = self.keep(row, index, &outcome, scratch.folder())?;
                    compared = Err(error.context(format!("kept in {}", kept.display())));
                }
                each(row, compared.and_then(|compared| verified(row, compared, index, &outcome, time)));
            }
        }
        Ok(())
    }

    /// Runs the commands of rows with the same machine. The guest's files are in `root` in the folder afterwards, and
    /// its results are in the folder. Also returns the duration of perf in each row.
    fn boot(&self, rows: &[Row], folder: &Path) -> Result<(LinuxOutcome, Vec<Duration>)> {
        let mut guest = Guest::new(&self.busybox);
        let perf = self.perf.to_str().context("perf's path is no UTF-8")?;
        guest.add(&perf.parse().map_err(anyhow::Error::msg)?)?;
        if rows.iter().any(|row| row.arguments.contains(rows::SEQ)) {
            guest.add(&rows::SEQ.parse().map_err(anyhow::Error::msg)?)?;
        }
        guest.script(&script(rows));
        guest.files().write_to(&folder.join("root"))?;
        let initramfs = folder.join("initramfs");
        std::fs::write(&initramfs, guest.files().archive()?)?;
        let profile = rows[0].profile;
        let machine = LinuxMachine {
            monitor: Some(Monitor {
                image: Images::build()?.monitor,
                options: format!("profile={profile} times=0"),
            }),
            processors: rows[0].processors,
            memory: rows[0].memory,
            ..LinuxMachine::new(self.kernel.clone(), initramfs)
        };
        let (mut output, mut lines) = (Vec::new(), Vec::new());
        let outcome = machine.run(|event| {
            if let Event::Output(bytes) = event {
                output.extend_from_slice(bytes);
                lines.resize_with(output.iter().filter(|&&byte| byte == b'\n').count(), Instant::now);
            }
        })?;
        let output = String::from_utf8_lossy(&output);
        ensure!(outcome.status == 0, "the script ended with status {}: {output}", outcome.status);
        outcome.write_files(folder)?;
        outcome.write_vdso(&folder.join("root"))?;
        let times: Vec<_> = lines.chunks_exact(2).map(|line| line[1] - line[0]).collect();
        ensure!(times.len() == rows.len(), "not each row began and ended: {output}");
        Ok((outcome, times))
    }

    /// Keeps the data of a row.
    fn keep(&self, row: &Row, index: usize, outcome: &LinuxOutcome, folder: &Path) -> Result<PathBuf> {
        let kept = self.kept.join(format!("{}-{}", row.profile, row.processors));
        std::fs::create_dir_all(&kept)?;
        let from = |name: &str| folder.join(name);
        let mut copy = Command::new("cp");
        copy.arg("-r").args([from("root"), from(&format!("{index}.data"))]).arg(&kept);
        ensure!(copy.status()?.success(), "cannot keep what belongs to the row");
        let mut truth = Vec::new();
        outcome.truth.write_session(session(index), &mut truth)?;
        std::fs::write(kept.join(format!("{index}.truth")), truth)?;
        Ok(kept)
    }

    /// Compares the recording of a row with the truth. Returns the number of compared items.
    fn judge(&self, row: &Row, index: usize, outcome: &LinuxOutcome, folder: &Path) -> Result<u64> {
        let text = |name: &str| -> Result<String> {
            Ok(String::from_utf8_lossy(outcome.file(&format!("{index}.{name}"))?).into_owned())
        };
        let status = text("status")?;
        ensure!(status.trim() == "0", "perf ended with status {}: {}", status.trim(), text("log")?);
        let data = folder.join(format!("{index}.data"));
        let root = folder.join("root");
        let script = |arguments: &[&str]| perf_script(&self.perf, &data, &root, arguments);
        let by_cpu = row.check.truth(&outcome.truth, session(index));
        let instructions = by_cpu.values().map(|all| all.len() as u64).sum();
        ensure!(instructions > 1000, "only {instructions} instructions retired under tracing");
        let whole = || -> Vec<u64> { by_cpu.values().flatten().copied().collect() };
        let compared = match &row.check {
            Check::Instructions | Check::Everything | Check::Written | Check::Undated => {
                let traces: Vec<Found> = by_cpu.values().map(|all| Found::of(all)).collect();
                let ours = pugmark(&self.pugmark, &data, &root)?;
                // The trace of a CPU on which the program never ran is empty.
                let ours: Vec<Found> = ours.into_iter().filter(|found| found.count > 0).collect();
                ensure!(ours == traces, "pugmark finds {ours:x?}, the log has {traces:x?}");
                let by_perf = perf_by_cpu(&script(&["--itrace=i1i", "-F", "cpu,ip"])?)?;
                let [cpus, of_perf] = [by_cpu.len(), by_perf.len()];
                if matches!(row.check, Check::Undated) && cpus == 1 {
                    let found = by_perf.values().next().map_or(&[][..], Vec::as_slice);
                    is_end(found, &whole(), &script(&["--itrace=e"])?).context("perf script")?;
                } else {
                    ensure!(of_perf == cpus, "perf finds {of_perf} CPUs, the log has {cpus}");
                    for (found, truth) in by_perf.values().zip(by_cpu.values()) {
                        same(found, truth).context("perf script")?;
                    }
                    let perf = |arguments: &[&str]| perf(&self.perf, &data, &root, arguments);
                    let pugmark = |arguments: &[&str]| pugmark_text(&self.pugmark, &data, &root, arguments);
                    names::check(&perf, &pugmark)?;
                    branches::check(&perf, &pugmark)?;
                }
                if matches!(row.check, Check::Written) {
                    let found = payloads(&script(&["--itrace=w", "-F", "synth"])?)?;
                    same(&found, &(0..PTWRITE_COUNT).collect::<Vec<_>>()).context("PTWRITE")?;
                }
                instructions
            }
            Check::Within(range) => {
                let truth: Vec<u64> = whole().into_iter().filter(|ip| range.contains(ip)).collect();
                let ours = pugmark(&self.pugmark, &data, &root)?;
                ensure!(
                    ours == [Found::of(&truth)],
                    "pugmark finds {ours:x?}, the log has {:x?}",
                    Found::of(&truth)
                );
                let by_perf = addresses(&script(&["--itrace=i1i", "-F", "ip"])?)?;
                let by_perf: Vec<u64> = by_perf
                    .iter()
                    .enumerate()
                    // Instead of a jump that leaves the range perf prints its target.
                    .map(|(index, ip)| match (range.contains(ip), truth.get(index)) {
                        (false, Some(&jump)) => jump,
                        _ => *ip,
                    })
                    .collect();
                same(&by_perf, &truth).context("perf script")?;
                truth.len() as u64
            }
            Check::Last => {
                let truth = whole();
                let last = |count: usize| truth.len().checked_sub(count).map(|at| &truth[at..]);
                let ours = pugmark(&self.pugmark, &data, &root)?;
                let count = ours.iter().map(|found| found.count).sum::<u64>();
                let expected = last(count as usize).context("pugmark finds more than the log has")?;
                ensure!(ours == [Found::of(expected)], "pugmark finds {ours:x?}: not the last of the log");
                let found = addresses(&script(&["--itrace=i1i", "-F", "ip"])?)?;
                ensure!(found.len() > 1000, "perf finds only {} instructions", found.len());
                same(&found, last(found.len()).context("perf finds more than the log has")?)?;
                count
            }
            Check::Branches => {
                let found = addresses(&script(&["--itrace=b", "-F", "ip,addr"])?.replace("=>", " "))?;
                let branches = outcome.truth.branches(session(index)).iter();
                let user = branches.filter(|branch| outcome.truth.branch_level().cpl(branch) == 3);
                let truth: Vec<[u64; 2]> = user.map(|branch| [branch.from, branch.to]).collect();
                let buffers = buffer_sizes(&script(&["--dump-raw-trace"])?)?;
                same(&found, &in_buffers(&truth, &buffers)?)?;
                found.len() as u64 / 2
            }
            Check::Samples | Check::Skidding | Check::Fetches | Check::Accesses => {
                let found = addresses(&script(&["--hide-call-cache", "-F", "ip"])?)?;
                let truth: HashSet<u64> = whole().into_iter().collect();
                // A fetch may begin within an instruction, whose other bytes were fetched before.
                let before = if matches!(row.check, Check::Fetches) { MAX_INSTRUCTION - 1 } else { 0 };
                let retired = |ip: u64| (ip.saturating_sub(before)..=ip).any(|ip| truth.contains(&ip));
                let strange = found.iter().find(|ip| !retired(**ip));
                ensure!(strange.is_none(), "no instruction retired at the sample's {strange:x?}");
                ensure!(found.len() > 10, "only {} samples", found.len());
                if matches!(row.check, Check::Accesses) {
                    let printed = script(&["-F", accesses::COLUMNS])?;
                    let report =
                        pugmark_text(&self.pugmark, &data, &root, &["mem", "--json", "--limit", "0"])?;
                    let same = accesses::check(&printed, &report)?;
                    ensure!(same > 10, "only {same} samples of memory accesses");
                }
                found.len() as u64
            }
            Check::Traced(period) => {
                let truth = one_in(*period, &whole());
                let found = addresses(&script(&["--itrace=o", "--hide-call-cache", "-F", "ip"])?)?;
                same(&found, &truth).context("perf script")?;
                same(&traced_samples(&self.pugmark, &data)?, &truth).context("pugmark pebs")?;
                ensure!(found.len() > 10, "only {} samples", found.len());
                found.len() as u64
            }
            Check::Stacks => {
                let found = stacks(&script(&["--hide-call-cache", "-F", "brstack"])?)?;
                let branches = outcome.truth.branches(session(index)).iter();
                let truth: HashSet<_> = branches.map(|branch| (branch.from, branch.to)).collect();
                let strange = found.iter().find(|branch| !truth.contains(branch));
                ensure!(strange.is_none(), "no branch was taken from and to {strange:x?}");
                ensure!(found.len() > 20, "only {} branches", found.len());
                found.len() as u64
            }
            Check::Count => {
                let line = text("data")?;
                let count = line.lines().find_map(|line| line.split(',').next()?.parse::<u64>().ok());
                let count = count.with_context(|| format!("perf stat prints no number: {line}"))?;
                ensure!(count == instructions, "perf stat counts {count}, the log has {instructions}");
                count
            }
        };
        Ok(compared)
    }
}

/// Returns the result of a row that was right, with the number of items `compared` in it.
fn verified(
    row: &Row,
    compared: u64,
    index: usize,
    outcome: &LinuxOutcome,
    time: Duration,
) -> Result<Verified> {
    // With the kernel's code, perf writes a folder.
    let file =
        outcome.file(&format!("{index}.data")).or_else(|_| outcome.file(&format!("{index}.data/data")));
    let bytes = file?.len() as u64;
    let stepped = outcome.truth.session(session(index)).len() as u64;
    let instructions =
        row.check.truth(&outcome.truth, session(index)).values().map(|all| all.len() as u64).sum();
    Ok(Verified { compared, instructions, stepped, bytes, time })
}

/// Maximum length of an instruction in bytes.
const MAX_INSTRUCTION: u64 = 15;

/// A process that retires at most this many instructions while a counter counts or branches are recorded is perf. Up to
/// 72 have been observed.
const OF_PERF: usize = 200;

/// Returns the log's session of a row.
const fn session(index: usize) -> u16 {
    index as u16 + 1
}

/// Shell commands that keep Linux's scheduler from preempting a program within a second. If PEBS records go into PT's
/// trace without a PMI, Linux does not know how often the counter was reloaded: a program that was preempted starts
/// another period when it resumes.
const NO_PREEMPTION: &str = "echo NO_WAKEUP_PREEMPTION >/sys/kernel/debug/sched/features\n\
    echo 1000000000 >/sys/kernel/debug/sched/min_granularity_ns\n";

/// Returns the guest's script: row after row, each in a session of its own.
fn script(rows: &[Row]) -> String {
    let mut text = String::from("echo 0 >/proc/sys/kernel/randomize_va_space\n");
    if rows.iter().any(|row| matches!(row.check, Check::Traced(_))) {
        text.push_str(NO_PREEMPTION);
    }
    for (index, row) in rows.iter().enumerate() {
        let kind = if matches!(row.check, Check::Count) { "stat -x," } else { "record" };
        let set = |session: u16| -> String {
            (0..row.processors).map(|cpu| format!("taskset {:x} session {session}\n", 1 << cpu)).collect()
        };
        let _ = write!(
            text,
            "{}echo row {index} begins\nperf {kind} -o /out/{index}.data {} >/tmp/output 2>/out/{index}.log\n\
             echo $? >/out/{index}.status\necho row {index} ends\n{}",
            set(session(index)),
            row.arguments,
            set(0),
        );
    }
    text
}

impl Check {
    /// Returns the addresses of the instructions of a session that a recording must have, by CPU.
    fn truth(&self, truth: &Truth, session: u16) -> BTreeMap<u16, Vec<u64>> {
        let all = truth.session(session);
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for record in all.iter().filter(|record| record.flags.cpl() == 3) {
            *counts.entry(record.cr3).or_default() += 1;
        }
        let mut by_cpu: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for record in all {
            let belongs = match self {
                Self::Everything => record.flags.is_traced(),
                Self::Skidding | Self::Fetches | Self::Accesses => true,
                _ if record.flags.cpl() != 3 => false,
                Self::Instructions | Self::Undated | Self::Written | Self::Within(_) | Self::Last => {
                    record.flags.is_traced()
                }
                Self::Branches | Self::Stacks | Self::Samples | Self::Traced(_) | Self::Count => {
                    counts[&record.cr3] > OF_PERF
                }
            };
            if belongs {
                by_cpu.entry(record.cpu).or_default().push(record.rip);
            }
        }
        by_cpu
    }
}

/// Returns the instructions sampled with a period: a counter overflows at one, and the next one is sampled.
fn one_in(period: usize, truth: &[u64]) -> Vec<u64> {
    truth.iter().skip(period).step_by(period + 1).copied().collect()
}

/// Returns the addresses in lines such as `[000]  401234`, by CPU.
fn perf_by_cpu(text: &str) -> Result<BTreeMap<String, Vec<u64>>> {
    let mut by_cpu: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let (cpu, ip) = line.trim().split_once(']').with_context(|| format!("no CPU: {line:?}"))?;
        by_cpu.entry(cpu.into()).or_default().push(u64::from_str_radix(ip.trim(), 16)?);
    }
    Ok(by_cpu)
}

/// Returns the numbers in lines such as `IP: 1 payload: 0x41 A`.
fn payloads(text: &str) -> Result<Vec<u64>> {
    let words = text.lines().filter_map(|line| line.split_once("payload: ")?.1.split_whitespace().next());
    let numbers = words.map(|word| u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16));
    numbers.collect::<Result<_, _>>().context("perf script prints something else than a number")
}

/// Returns the branches in words such as `0x401234/0x405678/P/-/-/0`: source and target.
fn stacks(text: &str) -> Result<Vec<(u64, u64)>> {
    let number = |part: Option<&str>| u64::from_str_radix(part?.strip_prefix("0x")?, 16).ok();
    let branch = |word: &str| {
        let mut parts = word.split('/');
        let ends = number(parts.next()).zip(number(parts.next()));
        ends.with_context(|| format!("{word:?} is no branch"))
    };
    text.split_whitespace().map(branch).collect()
}

/// Returns the sizes of the buffers of branch records, in records, from lines such as
/// `… PERF_RECORD_AUXTRACE size: 0x180  offset: 0  …`.
fn buffer_sizes(text: &str) -> Result<Vec<usize>> {
    /// Source: SDM vol. 3, Debug, Branch Profile, "BTS and DS Save Area".
    const RECORD: usize = 24;
    let sizes =
        text.lines().filter_map(|line| line.split_once("PERF_RECORD_AUXTRACE size: 0x")?.1.split(' ').next());
    sizes.map(|size| Ok(usize::from_str_radix(size, 16).context("perf prints no size")? / RECORD)).collect()
}

/// Returns the branches that perf finds in buffers with these numbers of records, as addresses: those of the truth,
/// without the first, which are perf's own, while the event is being scheduled, and without the last of each buffer,
/// which perf drops.
fn in_buffers(truth: &[[u64; 2]], buffers: &[usize]) -> Result<Vec<u64>> {
    let records = buffers.iter().sum();
    let first = truth.len().checked_sub(records).context("perf has recorded more than the log has")?;
    ensure!(first < 100, "perf has recorded {records} of {} branches", truth.len());
    let (mut rest, mut found) = (&truth[first..], Vec::new());
    for &buffer in buffers {
        let (records, others) = rest.split_at(buffer);
        found.extend(records[..buffer.saturating_sub(1)].as_flattened());
        rest = others;
    }
    Ok(found)
}

/// Checks that perf finds the last instructions of the truth, and that it reports errors in place of those before.
fn is_end(found: &[u64], truth: &[u64], errors: &str) -> Result<()> {
    let at = truth.len().checked_sub(found.len()).context("it finds more than the log has")?;
    same(found, &truth[at..])?;
    let reported = errors.contains("Failed to get instruction");
    ensure!(reported == (at > 0), "it leaves out {at} instructions, and reports these errors: {errors:?}");
    Ok(())
}

/// Checks that two lists of addresses are equal; otherwise the error tells where they differ.
fn same(found: &[u64], truth: &[u64]) -> Result<()> {
    let at = found.iter().zip(truth).position(|(a, b)| a != b).unwrap_or(found.len().min(truth.len()));
    ensure!(
        found == truth,
        "finds {} of {}; the first difference is at {at}: {:x?} instead of {:x?}",
        found.len(),
        truth.len(),
        found.get(at),
        truth.get(at)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::Record;
    use pugmark_truth::RecordFlags;

    #[test]
    fn what_was_not_traced_or_is_perfs_own_is_not_expected() {
        let mut truth = Truth::default();
        let (user, kernel) = (RecordFlags::new(3), RecordFlags::new(0));
        for (rip, cr3, session, flags, cpu, times) in [
            (1, 10, 1, user, 0, 200),
            (2, 20, 1, user, 0, 200),
            (3, 20, 1, kernel.traced(), 0, 500),
            (4, 20, 1, user.traced(), 1, 1),
            (5, 20, 2, user, 0, 500),
            (6, 30, 1, user.traced(), 0, 300),
        ] {
            (0..times).for_each(|_| truth.take_in(Record { rip, cr3, session, flags, cpu }));
        }
        let samples = BTreeMap::from([(0, [vec![2; 200], vec![6; 300]].concat()), (1, vec![4])]);
        assert_eq!(Check::Samples.truth(&truth, 1), samples);
        assert_eq!(Check::Samples.truth(&truth, 3), BTreeMap::new());
        let traced = BTreeMap::from([(0, vec![6; 300]), (1, vec![4])]);
        assert_eq!(Check::Instructions.truth(&truth, 1), traced);
        let traced = BTreeMap::from([(0, [vec![3; 500], vec![6; 300]].concat()), (1, vec![4])]);
        assert_eq!(Check::Everything.truth(&truth, 1), traced);
    }

    #[test]
    fn the_instruction_after_an_overflow_is_sampled() {
        let truth: Vec<u64> = (0..10).collect();
        for (period, expected) in [(1, &[1, 3, 5, 7, 9][..]), (3, &[3, 7]), (9, &[9]), (10, &[])] {
            assert_eq!(one_in(period, &truth), expected, "{period}");
        }
    }

    #[test]
    fn lines_of_perf_are_split_by_cpu() {
        let found = perf_by_cpu(" [001]    401234 \n[000] 5\n[001] 6\n").unwrap();
        assert_eq!(found.into_values().collect::<Vec<_>>(), [vec![5], vec![0x40_1234, 6]]);
        assert!(perf_by_cpu("401234").is_err() && perf_by_cpu("[000] x").is_err());
    }

    #[test]
    fn payloads_and_branches_are_read_from_lines_of_perf() {
        assert_eq!(
            payloads(" IP: 1 payload: 0x1f  \nx\nIP: 0 payload: 0\nIP: 1 payload: 0x41 A").unwrap(),
            [0x1f, 0, 0x41]
        );
        assert!(payloads("payload: 0xy").is_err());
        let text = "  0x401000/0x401234/P/-/-/0/  0x5/0x6/M/-/-/0\n\n 0x7/0x8\n";
        assert_eq!(stacks(text).unwrap(), [(0x40_1000, 0x40_1234), (5, 6), (7, 8)]);
        assert!(stacks("0x1").is_err() && stacks("1/2").is_err());
    }

    #[test]
    fn a_difference_is_named_by_its_place() {
        assert!(same(&[1, 2], &[1, 2]).is_ok());
        for (found, truth, at) in
            [(&[1, 2][..], &[1, 3][..], "at 1: Some(2) instead of Some(3)"), (&[1], &[1, 2], "at 1: None")]
        {
            let error = same(found, truth).unwrap_err().to_string();
            assert!(error.contains(at), "{error}");
        }
    }

    #[test]
    fn perf_leaves_out_the_last_record_of_each_buffer() {
        let text = "0x1 [0x30]: PERF_RECORD_AUXTRACE size: 0x48  offset: 0  ref: 1\nx\n\
            0 0x2 [0x30]: PERF_RECORD_AUXTRACE size: 0x30  offset: 0x48  ref: 2";
        assert_eq!(buffer_sizes(text).unwrap(), [3, 2]);
        assert!(buffer_sizes("PERF_RECORD_AUXTRACE size: 0xx").is_err());
        let truth = [[9, 8], [1, 2], [3, 4], [5, 6], [7, 1], [2, 3]];
        assert_eq!(in_buffers(&truth, &[3, 2]).unwrap(), [1, 2, 3, 4, 7, 1]);
        assert_eq!(in_buffers(&truth, &[6, 0]).unwrap(), [9, 8, 1, 2, 3, 4, 5, 6, 7, 1]);
        assert!(in_buffers(&truth, &[7]).is_err() && in_buffers(&[[0; 2]; 101], &[1]).is_err());
    }

    #[test]
    fn what_perf_leaves_out_is_at_the_begin_and_reported() {
        let error = " instruction trace error type 1 ip 0x1 code 5: Failed to get instruction";
        assert!(is_end(&[1, 2, 3], &[1, 2, 3], "").is_ok());
        assert!(is_end(&[2, 3], &[1, 2, 3], error).is_ok() && is_end(&[], &[1], error).is_ok());
        for (found, errors) in
            [(&[2, 3][..], ""), (&[1, 2, 3], error), (&[1, 2], error), (&[0, 1, 2, 3], error)]
        {
            assert!(is_end(found, &[1, 2, 3], errors).is_err(), "{found:?}");
        }
    }

    #[test]
    fn each_row_has_a_session_of_its_own() {
        let text = script(&short());
        for index in 1..=short().len() {
            assert_eq!(text.matches(&format!("session {index}\n")).count(), 1, "{text}");
        }
        assert_eq!(text.matches("session 0\n").count(), short().len());
    }

    #[test]
    fn the_rows_of_a_machine_are_next_to_one_another() {
        let rows = all();
        let machines = rows.chunk_by(|a, b| a.machine() == b.machine());
        let machines: Vec<_> = machines.map(|rows| rows[0].machine()).collect();
        assert_eq!(machines.iter().collect::<HashSet<_>>().len(), machines.len(), "{machines:?}");
    }
}
