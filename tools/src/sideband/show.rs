//! Records as text: `--sb:*`.

use super::record::{AUX_TRUNCATED, Fork, Throttle};
use super::{Cursor, Event, Record, Sample};
use std::io::{self, Write};

/// What to show of records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Show {
    /// How; not at all without.
    pub layout: Option<Layout>,
    /// With their file.
    pub filename: bool,
    /// With their offset in it.
    pub offset: bool,
    /// With their time as TSC.
    pub time: bool,
    /// With warnings of what is lost.
    pub warn: bool,
}

/// How to lay out a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A line a record.
    Compact,
    /// A line a field.
    Verbose,
}

/// A field's name, which only the verbose layout shows, and its value.
type Field = (&'static str, String);

impl Show {
    /// Writes a record. Without a layout, what is to be shown in front of it is still a line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn event(&self, event: &Event<'_>, cursor: &Cursor<'_>, out: &mut dyn Write) -> io::Result<()> {
        let (name, offset) = (&cursor.stream.name, cursor.offset);
        match (self.filename, self.offset) {
            (true, true) => write!(out, "{name}:{offset:016x}  ")?,
            (true, false) => write!(out, "{name}  ")?,
            (false, true) => write!(out, "{offset:016x}  ")?,
            (false, false) => {}
        }
        if self.time && event.sample.time.is_some() {
            write!(out, "{:016x}  ", event.due)?;
        }
        match self.layout {
            Some(Layout::Compact) => {
                let samples: String = compact_sample(&event.sample).iter().map(|s| format!(" {s}")).collect();
                writeln!(out, "{}  {{{samples} }}", compact_record(&event.record))
            }
            Some(Layout::Verbose) => {
                writeln!(out, "{}", name_of(&event.record))?;
                for (name, value) in fields(&event.record).into_iter().chain(verbose_sample(&event.sample)) {
                    writeln!(out, "  {name}: {value}")?;
                }
                Ok(())
            }
            None if self.filename || self.offset || self.time => writeln!(out),
            None => Ok(()),
        }
    }
}

fn name_of(record: &Record<'_>) -> &'static str {
    match record {
        Record::Mmap { more: None, .. } => "PERF_RECORD_MMAP",
        Record::Mmap { more: Some(_), .. } => "PERF_RECORD_MMAP2",
        Record::Lost { .. } => "PERF_RECORD_LOST",
        Record::Comm { exec: false, .. } => "PERF_RECORD_COMM",
        Record::Comm { exec: true, .. } => "PERF_RECORD_COMM.EXEC",
        Record::Exit(_) => "PERF_RECORD_EXIT",
        Record::Fork(_) => "PERF_RECORD_FORK",
        Record::Throttle(_) => "PERF_RECORD_THROTTLE",
        Record::Unthrottle(_) => "PERF_RECORD_UNTHROTTLE",
        Record::Aux { flags, .. } if flags & AUX_TRUNCATED != 0 => "PERF_RECORD_AUX.TRUNCATED",
        Record::Aux { .. } => "PERF_RECORD_AUX",
        Record::ItraceStart { .. } => "PERF_RECORD_ITRACE_START",
        Record::LostSamples { .. } => "PERF_RECORD_LOST_SAMPLES",
        Record::Switch { out: false } => "PERF_RECORD_SWITCH.IN",
        Record::Switch { out: true } => "PERF_RECORD_SWITCH.OUT",
        Record::SwitchCpuWide { out: false, .. } => "PERF_RECORD_SWITCH_CPU_WIDE.IN",
        Record::SwitchCpuWide { out: true, .. } => "PERF_RECORD_SWITCH_CPU_WIDE.OUT",
        Record::Unknown { .. } => "UNKNOWN",
    }
}

fn fields(record: &Record) -> Vec<Field> {
    let hex = |value: u64| format!("{value:x}");
    let half = |value: u32| format!("{value:x}");
    match record {
        Record::Mmap { pid, tid, addr, len, pgoff, more, filename } => {
            let mut fields = vec![
                ("pid", half(*pid)),
                ("tid", half(*tid)),
                ("addr", hex(*addr)),
                ("len", hex(*len)),
                ("pgoff", hex(*pgoff)),
            ];
            if let Some(more) = more {
                fields.extend([
                    ("maj", half(more.maj)),
                    ("min", half(more.min)),
                    ("ino", hex(more.ino)),
                    ("ino_generation", hex(more.ino_generation)),
                    ("prot", half(more.prot)),
                    ("flags", half(more.flags)),
                ]);
            }
            fields.push(("filename", filename.to_string()));
            fields
        }
        Record::Lost { id, lost } => vec![("id", hex(*id)), ("lost", hex(*lost))],
        Record::Comm { pid, tid, comm, .. } => {
            vec![("pid", half(*pid)), ("tid", half(*tid)), ("comm", comm.to_string())]
        }
        Record::Exit(Fork { pid, ppid, tid, ptid, time })
        | Record::Fork(Fork { pid, ppid, tid, ptid, time }) => vec![
            ("pid", half(*pid)),
            ("ppid", half(*ppid)),
            ("tid", half(*tid)),
            ("ptid", half(*ptid)),
            ("time", hex(*time)),
        ],
        Record::Throttle(Throttle { time, id, stream_id })
        | Record::Unthrottle(Throttle { time, id, stream_id }) => {
            vec![("time", hex(*time)), ("id", hex(*id)), ("stream_id", hex(*stream_id))]
        }
        Record::Aux { offset, size, flags } => {
            vec![("aux offset", hex(*offset)), ("aux size", hex(*size)), ("flags", hex(*flags))]
        }
        Record::ItraceStart { pid, tid } => vec![("pid", half(*pid)), ("tid", half(*tid))],
        Record::LostSamples { lost } => vec![("lost", hex(*lost))],
        Record::Switch { .. } => vec![],
        Record::SwitchCpuWide { out: true, pid, tid } => {
            vec![("next pid", half(*pid)), ("next tid", half(*tid))]
        }
        Record::SwitchCpuWide { out: false, pid, tid } => {
            vec![("prev pid", half(*pid)), ("prev tid", half(*tid))]
        }
        Record::Unknown { kind, misc } => vec![("type", half(*kind)), ("misc", half((*misc).into()))],
    }
}

fn compact_record(record: &Record) -> String {
    let pair = |pid: u32, tid: u32| format!("{pid:x}/{tid:x}");
    let values = match record {
        Record::Exit(fork) | Record::Fork(fork) => {
            vec![pair(fork.pid, fork.tid), pair(fork.ppid, fork.ptid), format!("{:x}", fork.time)]
        }
        Record::Mmap { pid, tid, .. }
        | Record::Comm { pid, tid, .. }
        | Record::ItraceStart { pid, tid }
        | Record::SwitchCpuWide { pid, tid, .. } => {
            let rest = fields(record).into_iter().skip(2).map(|(_, value)| value);
            std::iter::once(pair(*pid, *tid)).chain(rest).collect()
        }
        _ => fields(record).into_iter().map(|(_, value)| value).collect::<Vec<_>>(),
    };
    match (record, values.join(", ")) {
        (Record::Unknown { .. }, values) => format!("{} ({values})", name_of(record)),
        (_, values) if values.is_empty() => name_of(record).into(),
        (_, values) => format!("{}  {values}", name_of(record)),
    }
}

fn compact_sample(sample: &Sample) -> Vec<String> {
    let hex = |value: Option<u64>| value.map(|value| format!("{value:x}"));
    [
        sample.tid.map(|(pid, tid)| format!("{pid:x}/{tid:x}")),
        hex(sample.time),
        hex(sample.id),
        sample.cpu.map(|cpu| format!("cpu-{cpu:x}")),
        hex(sample.stream_id),
        hex(sample.identifier),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn verbose_sample(sample: &Sample) -> impl Iterator<Item = Field> {
    let half = |value: Option<u32>| value.map(u64::from);
    [
        ("pid", half(sample.tid.map(|(pid, _)| pid))),
        ("tid", half(sample.tid.map(|(_, tid)| tid))),
        ("time", sample.time),
        ("id", sample.id),
        ("cpu", half(sample.cpu)),
        ("stream id", sample.stream_id),
        ("identifier", sample.identifier),
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, format!("{value:x}"))))
}
