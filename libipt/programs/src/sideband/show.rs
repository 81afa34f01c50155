//! Formats records as text, as the options `--sb:*` request.

use super::Cursor;
use pugmark_tools::sideband::{AUX_TRUNCATED, Fork, Record, Sample, Throttle, TimedRecord};
use std::io::{self, Write};

/// The parts of records to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShowOptions {
    /// The layout; without one, records are not shown.
    pub layout: Option<RecordLayout>,
    /// True if the file of each record is shown.
    pub filename: bool,
    /// True if the offset of each record in the file is shown.
    pub offset: bool,
    /// True if the time of each record is shown, as TSC.
    pub time: bool,
    /// True if warnings about losses are shown.
    pub warn: bool,
}

/// The layout of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLayout {
    /// One line per record.
    Compact,
    /// One line per field.
    Verbose,
}

/// A field's name, which only the verbose layout shows, and its value.
type Field = (&'static str, String);

impl ShowOptions {
    /// Writes a record. Without a layout, the columns before the record still make a line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn event(&self, event: &TimedRecord<'_>, cursor: &Cursor<'_>, out: &mut dyn Write) -> io::Result<()> {
        let (name, offset) = (&cursor.stream.name, cursor.offset);
        match (self.filename, self.offset) {
            (true, true) => write!(out, "{name}:{offset:016x}  ")?,
            (true, false) => write!(out, "{name}  ")?,
            (false, true) => write!(out, "{offset:016x}  ")?,
            (false, false) => {}
        }
        if self.time && event.sample.time.is_some() {
            write!(out, "{:016x}  ", event.tsc)?;
        }
        match self.layout {
            Some(RecordLayout::Compact) => {
                let samples: String = compact_sample(&event.sample).iter().map(|s| format!(" {s}")).collect();
                writeln!(out, "{}  {{{samples} }}", compact_record(&event.record))
            }
            Some(RecordLayout::Verbose) => {
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

#[cfg(test)]
mod tests {
    use super::super::Stream;
    use super::*;
    use pugmark_tools::sideband::{Mmap2, StreamConfig};

    fn shown(show: &ShowOptions, record: &Record<'_>, sample: &Sample) -> String {
        let stream = Stream::new("s".into(), vec![], true, StreamConfig::default());
        let cursor = Cursor::new(&stream, 0);
        let event = TimedRecord { record: record.clone(), sample: *sample, tsc: 0x2a, kernel: false };
        let mut out = vec![];
        show.event(&event, &cursor, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_of_what_is_in_front_of_a_record_makes_a_line_by_itself() {
        let (without, with) = (Sample::default(), Sample { time: Some(7), ..Sample::default() });
        let (none, record) = (ShowOptions::default(), Record::Switch { out: false });
        for (show, timeless, timed) in [
            (none, "", ""),
            (ShowOptions { warn: true, ..none }, "", ""),
            (ShowOptions { filename: true, ..none }, "s  \n", "s  \n"),
            (ShowOptions { offset: true, ..none }, "0000000000000000  \n", "0000000000000000  \n"),
            (ShowOptions { time: true, ..none }, "\n", "000000000000002a  \n"),
            (
                ShowOptions { filename: true, offset: true, time: true, ..none },
                "s:0000000000000000  \n",
                "s:0000000000000000  000000000000002a  \n",
            ),
        ] {
            assert_eq!(shown(&show, &record, &without), timeless, "{show:?}");
            assert_eq!(shown(&show, &record, &with), timed, "{show:?}");
        }
    }

    #[test]
    fn each_kind_of_record_has_its_name_and_its_fields_in_both_layouts() {
        let fork = Fork { pid: 0xa1, ppid: 0xa2, tid: 0xa3, ptid: 0xa4, time: 0xa5 };
        let throttle = Throttle { time: 0xb1, id: 0xb2, stream_id: 0xb3 };
        let more = Mmap2 { maj: 0xc1, min: 0xc2, ino: 0xc3, ino_generation: 0xc4, prot: 0xc5, flags: 0xc6 };
        let mmap = |more| Record::Mmap {
            pid: 0xd1,
            tid: 0xd2,
            addr: 0xd3,
            len: 0xd4,
            pgoff: 0xd5,
            more,
            filename: "f".into(),
        };
        let comm = |exec| Record::Comm { pid: 0xe1, tid: 0xe2, comm: "c".into(), exec };
        let (pid, tid) = (0xf1, 0xf2);
        let aux = |flags| Record::Aux { offset: 0x11, size: 0x12, flags };
        let forked = ["pid: a1", "ppid: a2", "tid: a3", "ptid: a4", "time: a5"];
        let throttled = ["time: b1", "id: b2", "stream_id: b3"];
        let mapped = ["pid: d1", "tid: d2", "addr: d3", "len: d4", "pgoff: d5"];
        let mapped_more = ["maj: c1", "min: c2", "ino: c3", "ino_generation: c4", "prot: c5", "flags: c6"];
        for (record, name, compact, verbose) in [
            (mmap(None), "MMAP", "  d1/d2, d3, d4, d5, f", [&mapped[..], &["filename: f"]].concat()),
            (
                mmap(Some(more)),
                "MMAP2",
                "  d1/d2, d3, d4, d5, c1, c2, c3, c4, c5, c6, f",
                [&mapped[..], &mapped_more, &["filename: f"]].concat(),
            ),
            (Record::Lost { id: 1, lost: 0x10 }, "LOST", "  1, 10", vec!["id: 1", "lost: 10"]),
            (comm(false), "COMM", "  e1/e2, c", vec!["pid: e1", "tid: e2", "comm: c"]),
            (comm(true), "COMM.EXEC", "  e1/e2, c", vec!["pid: e1", "tid: e2", "comm: c"]),
            (Record::Exit(fork), "EXIT", "  a1/a3, a2/a4, a5", forked.to_vec()),
            (Record::Fork(fork), "FORK", "  a1/a3, a2/a4, a5", forked.to_vec()),
            (Record::Throttle(throttle), "THROTTLE", "  b1, b2, b3", throttled.to_vec()),
            (Record::Unthrottle(throttle), "UNTHROTTLE", "  b1, b2, b3", throttled.to_vec()),
            (aux(0), "AUX", "  11, 12, 0", vec!["aux offset: 11", "aux size: 12", "flags: 0"]),
            (aux(1), "AUX.TRUNCATED", "  11, 12, 1", vec!["aux offset: 11", "aux size: 12", "flags: 1"]),
            (aux(2), "AUX", "  11, 12, 2", vec!["aux offset: 11", "aux size: 12", "flags: 2"]),
            (Record::ItraceStart { pid, tid }, "ITRACE_START", "  f1/f2", vec!["pid: f1", "tid: f2"]),
            (Record::LostSamples { lost: 0x13 }, "LOST_SAMPLES", "  13", vec!["lost: 13"]),
            (Record::Switch { out: false }, "SWITCH.IN", "", vec![]),
            (Record::Switch { out: true }, "SWITCH.OUT", "", vec![]),
            (
                Record::SwitchCpuWide { out: false, pid, tid },
                "SWITCH_CPU_WIDE.IN",
                "  f1/f2",
                vec!["prev pid: f1", "prev tid: f2"],
            ),
            (
                Record::SwitchCpuWide { out: true, pid, tid },
                "SWITCH_CPU_WIDE.OUT",
                "  f1/f2",
                vec!["next pid: f1", "next tid: f2"],
            ),
        ] {
            let show = |layout| {
                shown(&ShowOptions { layout, ..ShowOptions::default() }, &record, &Sample::default())
            };
            assert_eq!(show(Some(RecordLayout::Compact)), format!("PERF_RECORD_{name}{compact}  {{ }}\n"));
            let lines: String = verbose.iter().map(|field| format!("  {field}\n")).collect();
            assert_eq!(show(Some(RecordLayout::Verbose)), format!("PERF_RECORD_{name}\n{lines}"));
        }
        let unknown = Record::Unknown { kind: 0x63, misc: 0x14 };
        let show =
            |layout| shown(&ShowOptions { layout, ..ShowOptions::default() }, &unknown, &Sample::default());
        assert_eq!(show(Some(RecordLayout::Compact)), "UNKNOWN (63, 14)  { }\n");
        assert_eq!(show(Some(RecordLayout::Verbose)), "UNKNOWN\n  type: 63\n  misc: 14\n");
    }

    #[test]
    fn samples_follow_their_record_in_order() {
        let sample = Sample {
            tid: Some((0xa1, 0xa2)),
            time: Some(0xa3),
            id: Some(0xa4),
            cpu: Some(0xa5),
            stream_id: Some(0xa6),
            identifier: Some(0xa7),
        };
        let record = Record::Switch { out: false };
        let show = |layout| shown(&ShowOptions { layout, ..ShowOptions::default() }, &record, &sample);
        let compact = "PERF_RECORD_SWITCH.IN  { a1/a2 a3 a4 cpu-a5 a6 a7 }\n";
        assert_eq!(show(Some(RecordLayout::Compact)), compact);
        let verbose = "PERF_RECORD_SWITCH.IN\n  pid: a1\n  tid: a2\n  time: a3\n  id: a4\n\
                       \x20 cpu: a5\n  stream id: a6\n  identifier: a7\n";
        assert_eq!(show(Some(RecordLayout::Verbose)), verbose);
    }
}
