//! The code of BPF programs, which perf writes down at the end of a recording, and when the kernel loaded them.
//!
//! Source: Linux, tools/perf/util/header.c, `write_bpf_prog_info`, and tools/perf/util/bpf-utils.h, `struct perf_bpil`;
//! include/uapi/linux/bpf.h, `struct bpf_prog_info`; include/uapi/linux/perf_event.h, `PERF_RECORD_KSYMBOL`;
//! kernel/bpf/core.c, `bpf_prog_ksym_set_name`, for the names.

use super::file::{self, RawRecord};
use crate::sideband::{RecordProblem, Sample, StreamConfig};
use crate::source::{SystemChange, SystemRecord, TextPoke};
use std::fmt::Write;

/// The fields of `struct bpf_prog_info`, by their offsets: the tag, the size and the place of the code, the number and
/// the place of the functions' addresses and of their sizes.
mod field {
    pub(super) const TAG: usize = 8;
    pub(super) const CODE_SIZE: usize = 16;
    pub(super) const CODE: usize = 24;
    pub(super) const ADDRESSES_COUNT: usize = 104;
    pub(super) const ADDRESSES: usize = 112;
    pub(super) const SIZES: usize = 120;
}

/// `PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER`.
const UNREGISTER: u16 = 1;

/// A function that the kernel has made of a BPF program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BpfFunction {
    address: u64,
    /// The beginning of its name.
    prefix: String,
    code: Vec<u8>,
}

/// The name of code that the kernel has made (a BPF program, a trampoline), and since when it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// Where the code begins.
    pub address: u64,
    /// Its size in bytes.
    pub size: u32,
    /// Its name.
    pub name: String,
    /// Since when it is there, by perf's clock.
    pub time: u64,
}

/// Reads the functions in a feature, as far as they are there.
pub(super) fn functions(feature: &[u8]) -> Vec<BpfFunction> {
    let mut functions = vec![];
    // A number of programs; then the size of each one's description, that of its data, and a field that says which.
    let mut rest = feature.get(4..).unwrap_or_default();
    while let Some(sizes) = file::long(rest, 0) {
        let (info, data) = (sizes as u32 as usize, (sizes >> 32) as usize);
        let Some(end) = 16_usize.checked_add(info).and_then(|end| end.checked_add(data)) else { break };
        let Some(program) = rest.get(16..end) else { break };
        let (info, data) = program.split_at(info);
        add_functions(info, data, &mut functions);
        rest = &rest[end..];
    }
    functions
}

/// Adds the functions of a program.
fn add_functions(info: &[u8], data: &[u8], functions: &mut Vec<BpfFunction>) {
    let part = |at: usize| {
        let place = file::long(info, at).and_then(|place| usize::try_from(place).ok())?;
        data.get(place..)
    };
    let int = |at: usize| file::long(info, at).map(|word| word as u32 as usize);
    let (Some(addresses), Some(sizes), Some(code)) =
        (part(field::ADDRESSES), part(field::SIZES), part(field::CODE))
    else {
        return;
    };
    let (Some(count), Some(size), Some(tag)) =
        (int(field::ADDRESSES_COUNT), int(field::CODE_SIZE), info.get(field::TAG..field::CODE_SIZE))
    else {
        return;
    };
    let mut code = code.get(..size).unwrap_or(code);
    let mut prefix = "bpf_prog_".to_owned();
    for byte in tag {
        // A String takes everything.
        let _ = write!(prefix, "{byte:02x}");
    }
    for (address, size) in addresses.as_chunks().0.iter().zip(sizes.as_chunks().0).take(count) {
        let size = u32::from_le_bytes(*size) as usize;
        let Some((own, rest)) = code.split_at_checked(size) else { return };
        let (address, code_of) = (u64::from_le_bytes(*address), own.to_vec());
        functions.push(BpfFunction { address, prefix: prefix.clone(), code: code_of });
        code = rest;
    }
}

impl KernelName {
    /// Reads a KSYMBOL record; `None` if it says that something is there no more.
    pub(super) fn parse(
        record: &RawRecord<'_>,
        config: &StreamConfig,
    ) -> Result<Option<Self>, RecordProblem> {
        let body = record.body();
        let (Some(address), Some(fields), Some(text)) =
            (file::long(body, 0), file::long(body, 8), body.get(16..))
        else {
            return Err(RecordProblem::Size);
        };
        let end = text.iter().position(|byte| *byte == 0).ok_or(RecordProblem::Text)?;
        let rest = text.get((end + 1).next_multiple_of(8)..).ok_or(RecordProblem::Size)?;
        let (sample, _): (Sample, u64) = Sample::parse(rest, config)?;
        let is_there = (fields >> 48) as u16 & UNREGISTER == 0;
        let name = String::from_utf8_lossy(&text[..end]).into_owned();
        let time = sample.time.filter(|time| *time != u64::MAX).unwrap_or(0);
        Ok(is_there.then_some(Self { address, size: fields as u32, name, time }))
    }
}

/// Returns the functions as changes of the kernel's code, each with the time of its name.
pub(super) fn changes(
    functions: Vec<BpfFunction>,
    names: &[KernelName],
) -> impl Iterator<Item = SystemRecord> {
    functions.into_iter().map(|BpfFunction { address, prefix, code }| {
        let is_its = |name: &&KernelName| name.address == address && name.name.starts_with(&prefix);
        let time = names.iter().find(is_its).map_or(0, |name| name.time);
        let poke = TextPoke { address, old: [].into(), new: code.into() };
        SystemRecord { time, cpu: None, change: SystemChange::Poke(poke) }
    })
}
