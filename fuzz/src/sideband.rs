//! Checks the reading of perf's sideband records.

use crate::heap;
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{config::Clocks, errata::Errata};
use pugmark_ipt::{EventDecoder, EventOptions, Release};
use pugmark_ipt_programs::{
    code::SectionCache,
    sideband::{Follower, ImagePlan, MergedStreams, ProcessImages, RecordLayout, ShowOptions, Stream},
};
use pugmark_tools::sideband::{StreamConfig, TimedRecord};
use std::{
    collections::HashMap,
    io::{self, Write},
};

/// Checks that records follow each other in their file, that each is shown once, and that a process's image made from
/// them takes little more memory than the records.
///
/// # Panics
/// If any of this is wrong.
pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok((config, show, split)) = settings(&mut u) else { return };
    let bytes = u.take_rest();
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    let count = records(first, &config) + records(second, &config);
    let stream = |bytes: &[u8], primary| Stream::new("sb".into(), bytes.to_vec(), primary, config.clone());
    let streams = [stream(first, true), stream(second, false)];
    let mut lines = Lines::default();
    let ((), held) = heap::measure(|| {
        let mut session = MergedStreams::new(&streams, &mut lines).expect("lines take all");
        session.show(u64::MAX, &show, &mut lines).expect("lines take all");
    });
    if show.layout.is_some() {
        assert!(lines.count >= count, "{} lines for {count} records", lines.count);
    }
    let ((), applied) = heap::measure(|| apply(&streams, show));
    let most = 32 * data.len().cast_signed() + (16 << 10);
    for held in [held, applied] {
        assert!(held.most <= most && held.left <= 0, "{held:?} for {} bytes", data.len());
    }
}

fn settings(u: &mut Unstructured<'_>) -> Result<(StreamConfig, ShowOptions, usize)> {
    let config = StreamConfig {
        sample_type: u.arbitrary()?,
        sample_configs: vec![(u.arbitrary()?, u.arbitrary()?)],
        time_zero: u.arbitrary()?,
        time_shift: u.arbitrary()?,
        time_mult: u.arbitrary()?,
        tsc_offset: u.arbitrary()?,
        kernel_start: u.arbitrary()?,
        // No name in a record can be a file below a folder that does not exist.
        sysroot: "/nonexistent/".into(),
        vdso: HashMap::new(),
    };
    let layout = *u.choose(&[None, Some(RecordLayout::Compact), Some(RecordLayout::Verbose)])?;
    let show = ShowOptions {
        layout,
        filename: u.arbitrary()?,
        offset: u.arbitrary()?,
        time: u.arbitrary()?,
        warn: u.arbitrary()?,
    };
    Ok((config, show, u.arbitrary::<u16>()?.into()))
}

/// Returns the number of records up to the first that cannot be read.
fn records(bytes: &[u8], config: &StreamConfig) -> usize {
    let (mut at, mut count) = (0, 0);
    while let Ok((_, size)) = TimedRecord::parse(&bytes[at..], config) {
        assert!(size >= 8 && at + size <= bytes.len(), "{size} bytes at {at:#x}");
        at += size;
        count += 1;
    }
    count
}

/// Applies the records at the events of a trace that has events of each kind.
fn apply(streams: &[Stream], show: ShowOptions) {
    let mut cache = SectionCache::default();
    let plan = ImagePlan::new(streams, &[], &mut cache);
    let images = ProcessImages::new(plan, &cache);
    let mut lines = Lines::default();
    let mut follower = Follower::new(streams, &images, show, true, &mut lines).expect("lines take all");
    let options = EventOptions {
        errata: Errata::NONE,
        clocks: Clocks::UNKNOWN,
        keep_calibration: false,
        iflags: false,
        release: Release::V2_3,
    };
    let mut decoder = EventDecoder::new(TRACE, options);
    while decoder.sync_forward().is_ok() {
        while let Ok(event) = decoder.next() {
            follower.event(&event, &mut lines).expect("lines take all");
        }
    }
}

/// TSC packets before events that are in the kernel or not.
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x10\0\0\0\0\0\0\x99\x01\
    \x7d\0\x10\0\0\0\0\x02\x23\
    \x19\x20\0\0\0\0\0\0\x3d\x08\x10\x6d\0\0\0\x80\xff\xff\x02\x43\0\x10\0\0\0\0\
    \x19\0\x10\0\0\0\0\0\x01\x19\xff\xff\xff\xff\xff\xff\xff\x71\0\0\0\0\0\0";

/// A writer that counts lines.
#[derive(Default)]
struct Lines {
    count: usize,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.count += bytes.iter().filter(|&&byte| byte == b'\n').count();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
