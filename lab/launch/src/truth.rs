//! Reads the monitor's log ("the truth") from the file that is the machine's memory.

use anyhow::{Context, Result, ensure};
use memmap2::{Mmap, MmapOptions};
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

pub use pugmark_truth::{Branch, BranchKind, Record, RecordFlags};
use pugmark_truth::{Header, Log, REGION_BASE, REGION_BYTES};
pub use pugmark_truth::{LogMode, Sum};

use crate::scratch::open;

/// The log of one machine.
#[derive(Debug, Default)]
pub struct Truth {
    /// Number of records of the log that were read.
    read: usize,
    sessions: HashMap<u16, Vec<Record>>,
    branches: HashMap<u16, Vec<Branch>>,
    times: HashMap<u16, Vec<Time>>,
    branch_level: BranchLevel,
    place: LogPlace,
    sums: Vec<Sum>,
}

/// The location of the log in the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    /// Address of the first byte.
    pub start: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Default for LogPlace {
    fn default() -> Self {
        Self { start: REGION_BASE, bytes: REGION_BYTES }
    }
}

impl LogPlace {
    /// Parses the location from the monitor's options.
    #[must_use]
    pub fn of(options: &str) -> Self {
        let last = options.split_whitespace().filter_map(|word| word.strip_prefix("log=")).next_back();
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let place = last.and_then(|text| {
            let (start, bytes) = text.split_once('+')?;
            Some(Self { start: number(start)?, bytes: number(bytes)? })
        });
        place.unwrap_or_default()
    }
}

/// The privilege level of a branch between levels, for filters by level.
///
/// The manual only defines that records are kept by "CPL", not whether that is the level before or after the branch.
/// The monitor's option `branch-level` has the same two values.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "Setting Up CPL-Qualified BTS".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BranchLevel {
    /// The level of the branch's source.
    From,
    /// The level of the branch's target.
    #[default]
    To,
}

impl BranchLevel {
    /// Parses the level from the monitor's options.
    #[must_use]
    pub fn of(options: &str) -> Self {
        let last =
            options.split_whitespace().filter_map(|word| word.strip_prefix("branch-level=")).next_back();
        if last == Some("from") { Self::From } else { Self::To }
    }

    /// Returns the privilege level at which a branch counts.
    #[must_use]
    pub const fn cpl(self, branch: &Branch) -> u8 {
        match self {
            Self::From => branch.from_cpl,
            Self::To => branch.to_cpl,
        }
    }
}

/// The time at which an instruction retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// The instruction's number within its session, from 0 on.
    pub index: usize,
    /// The time-stamp counter that the tracing hardware received for it.
    pub tsc: u64,
}

impl Truth {
    /// Returns an empty log of a machine whose branches count at this level.
    #[must_use]
    pub fn with_branch_level(branch_level: BranchLevel) -> Self {
        Self { branch_level, ..Self::default() }
    }

    /// Returns an empty log of a machine whose monitor has these options.
    #[must_use]
    pub fn with_options(options: &str) -> Self {
        Self { branch_level: BranchLevel::of(options), place: LogPlace::of(options), ..Self::default() }
    }

    /// Returns the sums of a log that keeps no records (`log-mode=hash`).
    #[must_use]
    pub fn sums(&self) -> &[Sum] {
        &self.sums
    }

    /// Returns counts and hashes of what was read, by session, processor and privilege level: those that the log keeps,
    /// or those of its records.
    #[must_use]
    pub fn summed(&self) -> Vec<Sum> {
        let mut sums = self.sums.clone();
        let records = self.sessions.values().flatten().filter(|record| !record.flags.is_software_interrupt());
        for Record { rip, session, flags, cpu, .. } in records {
            let key = (*session, *cpu, flags.cpl());
            let index = sums.iter().position(|sum| (sum.session, sum.cpu, sum.cpl) == key);
            let index = index.unwrap_or_else(|| {
                let (session, cpu, cpl) = key;
                sums.push(Sum { session, cpu, cpl, instructions: 0, hash: hash(&[]) });
                sums.len() - 1
            });
            let sum = &mut sums[index];
            (sum.instructions, sum.hash) = (sum.instructions + 1, Sum::hash_of(sum.hash, *rip));
        }
        sums.sort_unstable_by_key(|sum| (sum.session, sum.cpu, sum.cpl));
        sums
    }

    /// Returns the level at which branches count.
    #[must_use]
    pub const fn branch_level(&self) -> BranchLevel {
        self.branch_level
    }

    /// Returns every instruction of a trace session, in order.
    #[must_use]
    pub fn session(&self, session: u16) -> &[Record] {
        self.sessions.get(&session).map_or(&[], Vec::as_slice)
    }

    /// Returns every branch that was taken in a trace session while branches were recorded, in order.
    #[must_use]
    pub fn branches(&self, session: u16) -> &[Branch] {
        self.branches.get(&session).map_or(&[], Vec::as_slice)
    }

    /// Returns the times at which some of a session's instructions retired, in the order in which they were logged.
    #[must_use]
    pub fn times(&self, session: u16) -> &[Time] {
        self.times.get(&session).map_or(&[], Vec::as_slice)
    }

    /// Returns the sessions that have records, in ascending order.
    #[must_use]
    pub fn sessions(&self) -> Vec<u16> {
        let mut sessions: Vec<u16> = self.sessions.keys().copied().collect();
        sessions.sort_unstable();
        sessions
    }

    /// Returns the number of records read, including those that a ring has overwritten, or that are only summed up.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read
    }

    /// Returns true if no record was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read == 0
    }

    /// Reads the records that the log has so far; of a ring those that are not overwritten yet. The machine may be
    /// running, if the log is no ring.
    ///
    /// # Errors
    /// If the file cannot be read, the memory has no log, or the log was too small.
    pub fn follow(&mut self, ram: &Path) -> Result<()> {
        let map = map(ram, self.place)?;
        let log = Log::new(&map).context("the monitor left no log")?;
        ensure_complete(log.header())?;
        let records = log.records();
        let overwritten = (log.header().total() as usize).saturating_sub(records.len());
        if log.header().mode() == LogMode::Hash {
            self.sums = log.sums().collect();
        } else {
            records.skip(self.read.saturating_sub(overwritten)).for_each(|record| self.take_in(record));
        }
        self.read = log.header().total() as usize;
        Ok(())
    }

    /// Adds a record of the log.
    pub fn take_in(&mut self, record: Record) {
        match (record.time(), record.branch()) {
            (None, None) => self.sessions.entry(record.session).or_default().push(record),
            (None, Some(branch)) => self.branches.entry(record.session).or_default().push(branch),
            (Some(tsc), _) => {
                // The time belongs to the last instruction of the same processor.
                let of_it = |other: &Record| other.cpu == record.cpu;
                let index = self.session(record.session).iter().rposition(of_it);
                let times = self.times.entry(record.session).or_default();
                times.extend(index.map(|index| Time { index, tsc }));
            }
        }
    }

    /// Writes `session cpu cpl cr3 address`, one line per record; a `!` follows the address of a software interrupt.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.sessions().into_iter().try_for_each(|session| self.write_session(session, out))
    }

    /// Writes like [`Self::write`], for one session.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_session(&self, session: u16, out: &mut impl Write) -> io::Result<()> {
        for record in self.session(session) {
            let Record { rip, cr3, session, flags, cpu } = record;
            let mark = if flags.is_software_interrupt() { "!" } else { "" };
            writeln!(out, "{session} {cpu} {} {cr3:#x} {rip:#x}{mark}", flags.cpl())?;
        }
        Ok(())
    }
}

/// Returns the number of records in the log so far; 0 until QEMU has created the file and the monitor has begun the
/// log.
///
/// # Errors
/// If the file cannot be read, or the log is full: later execution of the machine cannot be judged.
pub fn retired(ram: &Path) -> Result<u64> {
    retired_at(ram, LogPlace::default())
}

/// Returns the same as [`retired`], for a log at another place.
///
/// # Errors
/// Those of [`retired`].
pub fn retired_at(ram: &Path, place: LogPlace) -> Result<u64> {
    let made = std::fs::metadata(ram).is_ok_and(|file| file.len() >= place.start.saturating_add(place.bytes));
    if !made {
        return Ok(0);
    }
    let map = map(ram, place)?;
    let Ok(header) = Header::parse(&map) else { return Ok(0) };
    ensure_complete(&header)?;
    Ok(header.total())
}

fn ensure_complete(header: &Header) -> Result<()> {
    ensure!(header.lost() == 0, "the log was too small by {} records", header.lost());
    Ok(())
}

/// Maps the region of the log.
fn map(ram: &Path, place: LogPlace) -> Result<Mmap> {
    let file = open(ram)?;
    // SAFETY: QEMU writes to the file while it is mapped, so its bytes may change under the map. The monitor counts a
    // record after it has written it; it never changes a counted one unless the log is a ring, and only counted records
    // are read. Any bytes are a record, and any words are a sum.
    unsafe { MmapOptions::new().offset(place.start).len(place.bytes as usize).map(&file) }
        .context("cannot map the machine's memory")
}

/// Returns FNV-1a (64 bits) over addresses as little-endian `u64`.
#[must_use]
pub fn hash(addresses: &[u64]) -> u64 {
    let bytes = addresses.iter().flat_map(|address| address.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn record(rip: u64, session: u16) -> Record {
        Record { rip, cr3: 0x1000, session, flags: RecordFlags::new(3), cpu: 0 }
    }

    /// Writes a file like the machine's memory, with this log.
    fn save(scratch: &crate::scratch::Scratch, words: &[AtomicU64]) -> std::path::PathBuf {
        save_at(scratch, words, LogPlace::default())
    }

    fn save_at(
        scratch: &crate::scratch::Scratch,
        words: &[AtomicU64],
        place: LogPlace,
    ) -> std::path::PathBuf {
        let path = scratch.file("ram");
        let bytes: Vec<u8> =
            words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(place.start + place.bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, place.start).unwrap();
        path
    }

    #[test]
    fn follows_a_log_that_grows() {
        let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let scratch = crate::scratch::Scratch::new().unwrap();
        let path = scratch.file("ram");
        let mut truth = Truth::default();
        assert_eq!(retired(&path).unwrap(), 0);
        save(&scratch, &words);
        assert!(truth.follow(&path).is_err(), "memory without a log");
        assert_eq!(retired(&path).unwrap(), 0);

        let writer = pugmark_truth::LogWriter::new(&words).unwrap();
        writer.append(record(1, 1));
        save(&scratch, &words);
        truth.follow(&path).unwrap();
        writer.append(record(2, 2));
        writer.append(record(3, 1));
        let branch = Branch { from: 3, to: 9, kind: BranchKind::Call, from_cpl: 3, to_cpl: 0 };
        writer.append(Record::of_branch(branch, 1, 0));
        save(&scratch, &words);
        truth.follow(&path).unwrap();
        assert_eq!(retired(&path).unwrap(), 4);

        assert!(!truth.is_empty() && Truth::default().is_empty());
        let addresses = |session| truth.session(session).iter().map(|record| record.rip).collect::<Vec<_>>();
        assert_eq!((addresses(1), addresses(2), truth.len()), (vec![1, 3], vec![2], 4));
        assert_eq!((truth.branches(1), truth.branches(2)), (&[branch][..], &[][..]));
        let mut text = Vec::new();
        truth.write(&mut text).unwrap();
        assert_eq!(text, b"1 0 3 0x1000 0x1\n1 0 3 0x1000 0x3\n2 0 3 0x1000 0x2\n");
    }

    #[test]
    fn a_time_is_that_of_its_processors_last_instruction() {
        let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let writer = pugmark_truth::LogWriter::new(&words).unwrap();
        let on = |rip, cpu| Record { cpu, ..record(rip, 1) };
        // Times of a processor that has logged no instruction yet, of the first processor's second instruction, and of
        // the second processor's.
        for record in [
            Record::of_time(5, 1, 0),
            on(1, 0),
            on(2, 0),
            on(3, 1),
            Record::of_time(700, 1, 0),
            Record::of_time(800, 1, 1),
        ] {
            writer.append(record);
        }
        let scratch = crate::scratch::Scratch::new().unwrap();
        let mut truth = Truth::default();
        truth.follow(&save(&scratch, &words)).unwrap();
        assert_eq!(truth.times(1), [Time { index: 1, tsc: 700 }, Time { index: 2, tsc: 800 }]);
        assert_eq!((truth.session(1).len(), truth.len(), truth.times(2)), (3, 6, &[][..]));
    }

    #[test]
    fn a_log_that_is_too_small_is_an_error() {
        let words: Vec<AtomicU64> = (0..8 + 2 * 3).map(|_| AtomicU64::new(0)).collect();
        let writer = pugmark_truth::LogWriter::new(&words).unwrap();
        for records in 1..=3 {
            writer.append(record(records, 1));
            let scratch = crate::scratch::Scratch::new().unwrap();
            let path = save(&scratch, &words);
            assert_eq!(retired(&path).ok(), (records <= 2).then_some(records));
            assert_eq!(Truth::default().follow(&path).is_ok(), records <= 2);
        }
    }

    #[test]
    fn sessions_are_in_ascending_order() {
        let mut truth = Truth::default();
        (1..=20).rev().for_each(|session| truth.take_in(record(1, session)));
        assert!(truth.sessions().into_iter().eq(1..=20));
    }

    #[test]
    fn the_monitors_options_say_whose_level_a_branch_has() {
        for (options, expected) in [
            ("profile=core2", BranchLevel::To),
            ("profile=core2 branch-level=from", BranchLevel::From),
            ("branch-level=from branch-level=to", BranchLevel::To),
        ] {
            assert_eq!(BranchLevel::of(options), expected, "{options}");
            assert_eq!(Truth::with_branch_level(expected).branch_level(), expected);
        }
    }

    #[test]
    fn a_log_of_sums_and_a_ring_at_another_place_are_read() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let options = "profile=skylake log=0x1000+0x3000 log=0x2000+0x1000";
        assert_eq!(LogPlace::of(options), LogPlace { start: 0x2000, bytes: 0x1000 });
        assert_eq!(LogPlace::of("catalog=0x1000+0x1000"), LogPlace::default());
        for mode in [LogMode::Hash, LogMode::Ring] {
            let words: Vec<AtomicU64> = (0..8 + 2 * 3).map(|_| AtomicU64::new(0)).collect();
            let writer = pugmark_truth::LogWriter::with_mode(&words, mode).unwrap();
            let addresses: Vec<u64> = (1..=5).collect();
            addresses.iter().for_each(|&rip| writer.append(record(rip, 1)));
            let path = save_at(&scratch, &words, LogPlace::of(options));
            let mut truth = Truth::with_options(options);
            truth.follow(&path).unwrap();
            assert_eq!((retired_at(&path, LogPlace::of(options)).unwrap(), truth.len()), (5, 5));
            let kept: Vec<u64> = truth.session(1).iter().map(|record| record.rip).collect();
            let sum = |addresses: &[u64]| {
                let instructions = addresses.len() as u64;
                Sum { session: 1, cpu: 0, cpl: 3, instructions, hash: hash(addresses) }
            };
            if mode == LogMode::Ring {
                assert_eq!((kept, truth.sums()), (vec![4, 5], &[][..]));
                assert_eq!(truth.summed(), [sum(&[4, 5])]);
            } else {
                let sum = sum(&addresses);
                assert_eq!((kept, truth.sums()), (vec![], &[sum][..]));
                assert_eq!(truth.summed(), [sum]);
            }
        }
    }

    #[test]
    fn hashes_as_fnv_1a_does() {
        // FNV's published value for no bytes; then two `u64`, computed by hand.
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(&[0x1000, 0x1003]), 0xddee_fc94_8dc4_1886);
    }
}
