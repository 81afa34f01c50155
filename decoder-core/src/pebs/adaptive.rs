//! Formats 4 to 6 (adaptive PEBS): a basic group, and the groups that MSR_PEBS_DATA_CFG selects.
//!
//! The basic group's first word lists the groups. Bits 31:0 are the record format (bit 0 memory, 1 general-purpose
//! registers, 2 XMM registers, 3 branches, 4 counters, 5 metrics; bits 31:24 the number of branches less one), bits
//! 47:32 the retire latency, bits 63:48 the record's size. Counters and metrics are one group, the last one, which
//! begins with a header that lists its contents.

use super::registers::WORDS;
use super::words::{WordReader, WordWriter};
use super::{
    CounterValues, DataSourceEncoding, Format, Memory, PebsRecord, Registers, SampledBranch, SampledBranches,
    TxAbort,
};
use crate::ErrorKind;

const MEMORY: u32 = 1 << 0;
const REGISTERS: u32 = 1 << 1;
const XMM: u32 = 1 << 2;
const BRANCHES: u32 = 1 << 3;
const COUNTERS: u32 = 1 << 4;
const METRICS: u32 = 1 << 5;
const BRANCH_COUNT_SHIFT: u32 = 24;
const MOST_BRANCHES: usize = 32;

const MEMORY_BYTES: usize = 32;
const XMM_BYTES: usize = 256;

pub(super) fn parse(bytes: &[u8]) -> Result<(PebsRecord<'_>, usize), ErrorKind> {
    let truncated = |needed| ErrorKind::Truncated { bytes: bytes.len(), needed };
    let least = Format::Adaptive.least_bytes();
    let mut reader = WordReader(bytes);
    let [first, ip, counters, tsc] = reader.words().ok_or(truncated(least))?;
    let format = first as u32;
    let size = usize::from((first >> 48) as u16);
    let mut groups = bytes_of(format)?;
    if format & (COUNTERS | METRICS) != 0 {
        let header = bytes.get(groups..).map(WordReader).and_then(|mut reader| reader.words());
        let header = header.ok_or(truncated(size.max(groups + CounterValues::HEADER_BYTES)))?;
        let (.., values) = CounterValues::parse_header(header).ok_or(ErrorKind::UnknownGroups { format })?;
        groups += CounterValues::HEADER_BYTES + 8 * values;
    }
    if size != groups {
        return Err(ErrorKind::RecordSize { size, groups });
    }
    let mut record = PebsRecord {
        eventing_ip: Some(ip),
        applicable_counters: Some(counters),
        tsc: Some(tsc),
        retire_latency: Some((first >> 32) as u16),
        ..PebsRecord::default()
    };
    read_groups(&mut record, format, reader).ok_or(truncated(size))?;
    Ok((record, size))
}

fn read_groups<'a>(record: &mut PebsRecord<'a>, format: u32, mut reader: WordReader<'a>) -> Option<()> {
    if format & MEMORY != 0 {
        let [address, source, latency, tx_abort] = reader.words()?;
        record.memory = Some(Memory { address, source: DataSourceEncoding(source), latency });
        record.tx_abort = Some(TxAbort(tx_abort));
    }
    if format & REGISTERS != 0 {
        record.registers = Some(Registers::from_adaptive(reader.words()?));
    }
    if format & XMM != 0 {
        record.xmm = Some(reader.bytes()?);
    }
    if format & BRANCHES != 0 {
        let (branches, rest) = reader.0.split_at_checked(branch_count(format) * SampledBranch::BYTES)?;
        record.branches = Some(SampledBranches::of_bytes(branches));
        reader = WordReader(rest);
    }
    if format & (COUNTERS | METRICS) != 0 {
        let (general, fixed, metrics, values) = CounterValues::parse_header(reader.words()?)?;
        let values = reader.0.get(..8 * values)?;
        record.counters = CounterValues::of_bytes(general, fixed, metrics, values);
    }
    Some(())
}

pub(super) fn emit(record: &PebsRecord<'_>, out: &mut [u8]) -> Result<usize, ErrorKind> {
    let mut format = 0;
    let with_memory = record.memory.is_some() || record.tx_abort.is_some();
    for (there, group) in [
        (with_memory, MEMORY),
        (record.registers.is_some(), REGISTERS),
        (record.xmm.is_some(), XMM),
        (record.branches.is_some(), BRANCHES),
    ] {
        format |= if there { group } else { 0 };
    }
    if let Some(branches) = record.branches {
        let count = branches.iter().len();
        let Some(less_one) = count.checked_sub(1).filter(|less_one| *less_one < MOST_BRANCHES) else {
            return Err(ErrorKind::LastBranchCount { count });
        };
        format |= (less_one as u32) << BRANCH_COUNT_SHIFT;
    }
    let mut size = bytes_of(format)?;
    if let Some(counters) = record.counters {
        let [which, metrics] = counters.header();
        format |= if which != 0 || metrics == 0 { COUNTERS } else { 0 };
        format |= if metrics != 0 { METRICS } else { 0 };
        size += CounterValues::HEADER_BYTES + counters.as_bytes().len();
    }
    let truncated = ErrorKind::Truncated { bytes: out.len(), needed: size };
    let mut writer = WordWriter(out.get_mut(..size).ok_or(truncated)?);
    write_groups(record, format, size, &mut writer).ok_or(truncated)?;
    Ok(size)
}

fn write_groups(
    record: &PebsRecord<'_>,
    format: u32,
    size: usize,
    writer: &mut WordWriter<'_>,
) -> Option<()> {
    let latency = u64::from(record.retire_latency.unwrap_or_default());
    writer.words(&[
        u64::from(format) | latency << 32 | (size as u64) << 48,
        record.eventing_ip.unwrap_or_default(),
        record.applicable_counters.unwrap_or_default(),
        record.tsc.unwrap_or_default(),
    ])?;
    if format & MEMORY != 0 {
        let Memory { address, source, latency } = record.memory.unwrap_or_default();
        writer.words(&[address, source.0, latency, record.tx_abort.unwrap_or_default().0])?;
    }
    if let Some(registers) = record.registers {
        writer.words(&registers.adaptive())?;
    }
    if let Some(xmm) = record.xmm {
        writer.bytes(xmm)?;
    }
    if let Some(branches) = record.branches {
        writer.bytes(branches.as_bytes())?;
    }
    if let Some(counters) = record.counters {
        writer.words(&counters.header())?;
        writer.bytes(counters.as_bytes())?;
    }
    Some(())
}

/// Returns the size in bytes of a record with these groups, without the counter group.
fn bytes_of(format: u32) -> Result<usize, ErrorKind> {
    let count = branch_count(format);
    if format & BRANCHES != 0 && count > MOST_BRANCHES {
        return Err(ErrorKind::LastBranchCount { count });
    }
    let known = MEMORY | REGISTERS | XMM | BRANCHES | COUNTERS | METRICS | 0xff << BRANCH_COUNT_SHIFT;
    if format & !known != 0 {
        return Err(ErrorKind::UnknownGroups { format });
    }
    let mut bytes = Format::Adaptive.least_bytes();
    for (group, size) in [
        (MEMORY, MEMORY_BYTES),
        (REGISTERS, WORDS * 8),
        (XMM, XMM_BYTES),
        (BRANCHES, count * SampledBranch::BYTES),
    ] {
        bytes += if format & group != 0 { size } else { 0 };
    }
    Ok(bytes)
}

fn branch_count(format: u32) -> usize {
    (format >> BRANCH_COUNT_SHIFT) as usize + 1
}
