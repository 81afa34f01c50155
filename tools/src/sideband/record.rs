//! Reads a perf record.

use super::{RecordProblem, Sample, StreamConfig};
use std::borrow::Cow;

/// A record and its sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedRecord<'a> {
    /// The event that the record reports.
    pub record: Record<'a>,
    /// The record's sample, with the time and the thread of the event.
    pub sample: Sample,
    /// The TSC of the record's time; 0 if it has no time, so that it is due at once.
    pub tsc: u64,
    /// True if the event happened in kernel mode.
    pub kernel: bool,
}

/// `PERF_RECORD_*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Memory was mapped.
    Mmap {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The address.
        addr: u64,
        /// The size in bytes.
        len: u64,
        /// The offset in the file, in bytes.
        pgoff: u64,
        /// The fields that only `MMAP2` has.
        more: Option<Mmap2>,
        /// The file's name, or a name in brackets.
        filename: Cow<'a, str>,
    },
    /// Records were lost.
    Lost {
        /// The identifier of the event whose records were lost.
        id: u64,
        /// The number of lost records.
        lost: u64,
    },
    /// A thread has a new name.
    Comm {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The name.
        comm: Cow<'a, str>,
        /// True if the name changed by exec.
        exec: bool,
    },
    /// A thread ended.
    Exit(Fork),
    /// A thread began.
    Fork(Fork),
    /// Sampling stopped because there were too many samples.
    Throttle(Throttle),
    /// Sampling continues.
    Unthrottle(Throttle),
    /// There is new trace.
    Aux {
        /// The offset in the trace buffer.
        offset: u64,
        /// The size in bytes.
        size: u64,
        /// `PERF_AUX_FLAG_*`.
        flags: u64,
    },
    /// Tracing began.
    ItraceStart {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// Samples were lost.
    LostSamples {
        /// The number of lost samples.
        lost: u64,
    },
    /// The thread was switched in or out.
    Switch {
        /// True if the thread was switched out.
        out: bool,
    },
    /// A thread was switched in or out, as reported for a whole processor.
    SwitchCpuWide {
        /// True if the thread was switched out.
        out: bool,
        /// The process that runs next, or ran before.
        pid: u32,
        /// Its thread.
        tid: u32,
    },
    /// A record of another type.
    Unknown {
        /// The header's type.
        kind: u32,
        /// The header's misc.
        misc: u16,
    },
}

/// The fields that `MMAP2` has in addition to those of `MMAP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap2 {
    /// The device's major number.
    pub maj: u32,
    /// The device's minor number.
    pub min: u32,
    /// The inode.
    pub ino: u64,
    /// Its generation.
    pub ino_generation: u64,
    /// `PROT_*`.
    pub prot: u32,
    /// `MAP_*`.
    pub flags: u32,
}

/// The fields of `FORK` and `EXIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub ppid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread that created it.
    pub ptid: u32,
    /// The time in perf's clock.
    pub time: u64,
}

/// The fields of `THROTTLE` and `UNTHROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// The time in perf's clock.
    pub time: u64,
    /// The event.
    pub id: u64,
    /// The event's instance.
    pub stream_id: u64,
}

/// The reason that no record was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRecord {
    /// The bytes end, or they do not continue with a record.
    End,
    /// The record cannot be read or placed in time.
    Problem(RecordProblem),
}

impl From<RecordProblem> for NoRecord {
    fn from(problem: RecordProblem) -> Self {
        Self::Problem(problem)
    }
}

/// `PERF_RECORD_MISC_CPUMODE_MASK` and `PERF_RECORD_MISC_KERNEL`.
const MISC_CPUMODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
/// `PERF_RECORD_MISC_COMM_EXEC` and `PERF_RECORD_MISC_SWITCH_OUT`.
const MISC_13: u16 = 1 << 13;
/// `PERF_AUX_FLAG_TRUNCATED`.
pub const AUX_TRUNCATED: u64 = 1;
/// `PERF_AUX_FLAG_PARTIAL`: the trace has gaps, as where a hypervisor has switched it off.
pub(crate) const AUX_PARTIAL: u64 = 4;

impl<'a> TimedRecord<'a> {
    /// Reads the record at the front of `bytes` and returns it with its size.
    ///
    /// # Errors
    /// [`NoRecord`].
    pub fn parse(bytes: &'a [u8], config: &StreamConfig) -> Result<(Self, usize), NoRecord> {
        let &[a, b, c, d, e, f, g, h, ..] = bytes else { return Err(NoRecord::End) };
        let (kind, misc) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
        let size = usize::from(u16::from_le_bytes([g, h]));
        if size < 8 {
            return Err(RecordProblem::Size.into());
        }
        let body = bytes.get(8..size).filter(|_| kind != 0).ok_or(NoRecord::End)?;
        let mut fields = Fields(body);
        let record = Record::parse(kind, misc, &mut fields)?;
        let (sample, tsc) = match record {
            // An unknown record's fields have an unknown size, so its sample cannot be located.
            Record::Unknown { .. } => (Sample::default(), 0),
            _ => Sample::parse(fields.0, config)?,
        };
        let kernel = misc & MISC_CPUMODE == MISC_KERNEL;
        Ok((Self { record, sample, tsc, kernel }, size))
    }
}

impl<'a> Record<'a> {
    fn parse(kind: u32, misc: u16, fields: &mut Fields<'a>) -> Result<Self, RecordProblem> {
        Ok(match kind {
            1 | 10 => Self::Mmap {
                pid: fields.u32_before_text()?,
                tid: fields.u32_before_text()?,
                addr: fields.u64_before_text()?,
                len: fields.u64_before_text()?,
                pgoff: fields.u64_before_text()?,
                more: if kind == 10 { Some(fields.mmap2()?) } else { None },
                filename: fields.text()?,
            },
            2 => Self::Lost { id: fields.u64()?, lost: fields.u64()? },
            3 => Self::Comm {
                pid: fields.u32_before_text()?,
                tid: fields.u32_before_text()?,
                comm: fields.text()?,
                exec: misc & MISC_13 != 0,
            },
            4 => Self::Exit(fields.fork()?),
            5 => Self::Throttle(fields.throttle()?),
            6 => Self::Unthrottle(fields.throttle()?),
            7 => Self::Fork(fields.fork()?),
            11 => Self::Aux { offset: fields.u64()?, size: fields.u64()?, flags: fields.u64()? },
            12 => Self::ItraceStart { pid: fields.u32()?, tid: fields.u32()? },
            13 => Self::LostSamples { lost: fields.u64()? },
            14 => Self::Switch { out: misc & MISC_13 != 0 },
            15 => Self::SwitchCpuWide { out: misc & MISC_13 != 0, pid: fields.u32()?, tid: fields.u32()? },
            kind => Self::Unknown { kind, misc },
        })
    }
}

/// The unread fields of a record.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u32(&mut self) -> Result<u32, RecordProblem> {
        self.array().map(u32::from_le_bytes).ok_or(RecordProblem::Size)
    }

    fn u64(&mut self) -> Result<u64, RecordProblem> {
        self.array().map(u64::from_le_bytes).ok_or(RecordProblem::Size)
    }

    // libipt looks for the end of a record's text first, so that error has priority over errors in the fields before
    // the text.

    fn u32_before_text(&mut self) -> Result<u32, RecordProblem> {
        self.u32().map_err(|_| RecordProblem::Internal)
    }

    fn u64_before_text(&mut self) -> Result<u64, RecordProblem> {
        self.u64().map_err(|_| RecordProblem::Internal)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    /// Reads a text up to its first zero byte and skips the padding to a whole word.
    fn text(&mut self) -> Result<Cow<'a, str>, RecordProblem> {
        let len = self.0.iter().position(|&byte| byte == 0).ok_or(RecordProblem::Text)?;
        let (text, rest) = (&self.0[..len], self.0.get((len + 1).next_multiple_of(8)..));
        self.0 = rest.ok_or(RecordProblem::Size)?;
        Ok(String::from_utf8_lossy(text))
    }

    fn mmap2(&mut self) -> Result<Mmap2, RecordProblem> {
        Ok(Mmap2 {
            maj: self.u32_before_text()?,
            min: self.u32_before_text()?,
            ino: self.u64_before_text()?,
            ino_generation: self.u64_before_text()?,
            prot: self.u32_before_text()?,
            flags: self.u32_before_text()?,
        })
    }

    fn fork(&mut self) -> Result<Fork, RecordProblem> {
        Ok(Fork {
            pid: self.u32()?,
            ppid: self.u32()?,
            tid: self.u32()?,
            ptid: self.u32()?,
            time: self.u64()?,
        })
    }

    fn throttle(&mut self) -> Result<Throttle, RecordProblem> {
        Ok(Throttle { time: self.u64()?, id: self.u64()?, stream_id: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let header = u64::from(kind) | u64::from(misc) << 32 | (8 + 8 * words.len() as u64) << 48;
        std::iter::once(&header).chain(words).flat_map(|word| word.to_le_bytes()).collect()
    }

    fn pair(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    #[test]
    fn reads_each_kind_by_its_layout() {
        let name = u64::from_le_bytes(*b"a.out\0\0\0");
        let fork = Fork { pid: 1, ppid: 2, tid: 3, ptid: 4, time: 5 };
        let throttle = Throttle { time: 1, id: 2, stream_id: 3 };
        let more = Mmap2 { maj: 8, min: 1, ino: 9, ino_generation: 10, prot: 5, flags: 2 };
        let mmap = |more| Record::Mmap {
            pid: 1,
            tid: 2,
            addr: 0x1000,
            len: 0x20,
            pgoff: 3,
            more,
            filename: "a.out".into(),
        };
        for (kind, misc, words, record) in [
            (1, 0, &[pair(1, 2), 0x1000, 0x20, 3, name][..], mmap(None)),
            (10, 0, &[pair(1, 2), 0x1000, 0x20, 3, pair(8, 1), 9, 10, pair(5, 2), name], mmap(Some(more))),
            (2, 0, &[1, 2], Record::Lost { id: 1, lost: 2 }),
            (3, 0, &[pair(1, 2), name], Record::Comm { pid: 1, tid: 2, comm: "a.out".into(), exec: false }),
            (
                3,
                0x2000,
                &[pair(1, 2), name],
                Record::Comm { pid: 1, tid: 2, comm: "a.out".into(), exec: true },
            ),
            (4, 0, &[pair(1, 2), pair(3, 4), 5], Record::Exit(fork)),
            (5, 0, &[1, 2, 3], Record::Throttle(throttle)),
            (6, 0, &[1, 2, 3], Record::Unthrottle(throttle)),
            (7, 0, &[pair(1, 2), pair(3, 4), 5], Record::Fork(fork)),
            (11, 0, &[1, 2, 3], Record::Aux { offset: 1, size: 2, flags: 3 }),
            (12, 0, &[pair(1, 2)], Record::ItraceStart { pid: 1, tid: 2 }),
            (13, 0, &[7], Record::LostSamples { lost: 7 }),
            (14, 0x2000, &[], Record::Switch { out: true }),
            (15, 0, &[pair(1, 2)], Record::SwitchCpuWide { out: false, pid: 1, tid: 2 }),
            (99, 3, &[1], Record::Unknown { kind: 99, misc: 3 }),
        ] {
            let bytes = bytes(kind, misc, words);
            let event = TimedRecord { record, sample: Sample::default(), tsc: 0, kernel: misc & 7 == 1 };
            assert_eq!(
                TimedRecord::parse(&bytes, &StreamConfig::default()),
                Ok((event, bytes.len())),
                "{kind}"
            );
            for cut in 0..bytes.len() {
                assert_eq!(
                    TimedRecord::parse(&bytes[..cut], &StreamConfig::default()),
                    Err(NoRecord::End),
                    "{kind}"
                );
            }
        }
    }

    #[test]
    fn a_record_has_the_size_of_its_fields_and_samples() {
        let (text, size) = (RecordProblem::Text, RecordProblem::Size);
        let name = u64::from_le_bytes(*b"a.out\0\0\0");
        let endless = u64::from_le_bytes(*b"endless!");
        for (kind, words, problem) in [
            (1, &[1, 2, 3][..], RecordProblem::Internal),
            (1, &[1, 2, 3, 4], text),
            (1, &[1, 2, 3, 4, endless], text),
            (1, &[1, 2, 3, 4, name, 5], size),
            (10, &[1, 2, 3, 4, 5, 6, 7], RecordProblem::Internal),
            (3, &[], RecordProblem::Internal),
            (3, &[1, endless], text),
            (2, &[1], size),
            (2, &[1, 2, 3], size),
            (4, &[1, 2], size),
            (5, &[1, 2], size),
            (12, &[], size),
            (14, &[1], size),
            (15, &[], size),
        ] {
            let parsed = TimedRecord::parse(&bytes(kind, 0, words), &StreamConfig::default()).map(|_| ());
            assert_eq!(parsed, Err(problem.into()), "{kind} {words:?}");
        }
        let parsed = TimedRecord::parse(&[14, 0, 0, 0, 0, 0, 7, 0], &StreamConfig::default()).map(|_| ());
        assert_eq!(parsed, Err(size.into()));
        // A text that should be padded to a whole word, in a record whose size is no multiple of a word.
        let cut = [3, 0, 0, 0, 0, 0, 20, 0, 1, 0, 0, 0, 1, 0, 0, 0, b'a', 0, 0, 0];
        assert_eq!(TimedRecord::parse(&cut, &StreamConfig::default()).map(|_| ()), Err(size.into()));
        let zero = bytes(0, 0, &[1]);
        assert_eq!(TimedRecord::parse(&zero, &StreamConfig::default()).map(|_| ()), Err(NoRecord::End));
    }

    #[test]
    fn a_sample_follows_the_fields_and_has_the_time_of_its_record() {
        let config = StreamConfig { sample_type: 6, time_mult: 2, ..StreamConfig::default() };
        let switch = bytes(14, 0, &[pair(7, 8), 40]);
        let (event, size) = TimedRecord::parse(&switch, &config).unwrap();
        let sample = Sample { tid: Some((7, 8)), time: Some(40), ..Sample::default() };
        assert_eq!((event.sample, event.tsc, size), (sample, 20, 24));
        // An unknown record's fields have an unknown size, so no sample is read after them.
        let unknown = bytes(99, 0, &[pair(7, 8), 40]);
        let (event, _) = TimedRecord::parse(&unknown, &config).unwrap();
        assert_eq!((event.sample, event.tsc), (Sample::default(), 0));
    }

    #[test]
    fn a_text_takes_whole_words_with_the_zero_at_its_end() {
        for (len, words) in [(0, 1), (7, 1), (8, 2), (15, 2), (16, 3)] {
            let bytes = [vec![b'a'; len], vec![0; 8 * words - len], vec![9; 8]].concat();
            let mut fields = Fields(&bytes);
            assert_eq!((fields.text().unwrap().len(), fields.0), (len, &[9; 8][..]));
            assert_eq!(Fields(&bytes[..len]).text(), Err(RecordProblem::Text), "{len}");
            if len % 8 != 7 {
                assert_eq!(Fields(&bytes[..8 * words - 1]).text(), Err(RecordProblem::Size), "{len}");
            }
        }
    }
}
