//! Records of architectural PEBS: fragments of groups, each with a header.
//!
//! A header's bits 15:0 are the fragment's size with the header, bit 30 is set in 64-bit mode, and bit 31 if the record
//! continues in the next fragment; so does one without any of the bits above the size. The bits above list the groups,
//! which follow in this order: basic (bit 63), auxiliary (62), general-purpose registers (61), registers of XSAVE (XMM
//! 49, the upper halves of YMM 50, the opmasks 53, the upper halves of ZMM 54, ZMM16 to ZMM31 55), last branches
//! (41:40: 8, 16, or as many as their header says), counters (39:35).
//!
//! Source: Linux, `arch/x86/include/asm/perf_event.h`, `struct arch_pebs_header` and those after it, and
//! `arch/x86/events/intel/ds.c`, `setup_arch_pebs_sample_data`; for the registers beyond XMM the series "Support vector
//! and more extended registers in perf"; all by Intel's authors. The manual's chapter was not at hand. In doubt: bytes
//! after the groups, up to the fragment's size, are taken for padding; a group occurs once in a record.

use super::registers::WORDS;
use super::words::{WordReader, WordWriter};
use super::{
    CounterValues, DataSourceEncoding, Memory, PebsRecord, Registers, SampledBranch, SampledBranches,
    TxAbort, VectorRegisters,
};
use crate::ErrorKind;

pub(super) const HEADER_BYTES: usize = 16;

const MODE_64: u64 = 1 << 30;
const CONTINUES: u64 = 1 << 31;
const COUNTERS: u64 = 0x1f << 35;
const COUNTERS_GENERAL: u64 = 1 << 36;
const COUNTERS_FIXED: u64 = 1 << 37;
const COUNTERS_METRICS: u64 = 1 << 38;
const BRANCHES: u64 = 0b11 << 40;
const BRANCHES_SHIFT: u32 = 40;
const XMM: u64 = 1 << 49;
const YMM_HIGH: u64 = 1 << 50;
const OPMASK: u64 = 1 << 53;
const ZMM_HIGH: u64 = 1 << 54;
const ZMM_16_31: u64 = 1 << 55;
const XSAVE: u64 = XMM | YMM_HIGH | OPMASK | ZMM_HIGH | ZMM_16_31;
const REGISTERS: u64 = 1 << 61;
const AUXILIARY: u64 = 1 << 62;
const BASIC: u64 = 1 << 63;

/// The groups that this decoder knows.
const KNOWN: u64 = BASIC | AUXILIARY | REGISTERS | XSAVE | BRANCHES | COUNTERS;
/// The bits in which groups are listed.
const LIST: u64 = !0 << 35;
/// The bit that says that the retire latency is valid, in its word.
const LATENCY_VALID: u64 = 1 << 16;

/// The groups of fixed size, and their sizes in bytes.
const SIZES: [(u64, usize); 9] = [
    (BASIC, 6 * 8),
    (AUXILIARY, 8 * 8),
    (REGISTERS, (WORDS + 2) * 8),
    (XSAVE, 2 * 8),
    (XMM, 256),
    (YMM_HIGH, 256),
    (OPMASK, 64),
    (ZMM_HIGH, 512),
    (ZMM_16_31, 1024),
];
/// The size of the header of last branches: a reserved word, IA32_LBR_CTL, their number, and the last event's record.
const BRANCHES_HEADER_BYTES: usize = 6 * 8;

/// Reads the record at the start of `bytes`, with all its fragments.
pub(super) fn parse(bytes: &[u8]) -> Result<(PebsRecord<'_>, usize), ErrorKind> {
    let mut record = PebsRecord::default();
    let (mut at, mut seen) = (0, 0);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let truncated = |size| ErrorKind::Truncated { bytes: bytes.len(), needed: at + size };
        let [header, _] = WordReader(rest).words().ok_or(truncated(HEADER_BYTES))?;
        let size = usize::from(header as u16);
        if size < HEADER_BYTES {
            return Err(ErrorKind::RecordSize { size, groups: HEADER_BYTES });
        }
        let fragment = rest.get(..size).ok_or(truncated(size))?;
        let listed = header & LIST;
        if listed & !KNOWN != 0 {
            return Err(ErrorKind::UnknownGroups { format: (header >> 32) as u32 });
        }
        if repeats(seen, listed) {
            return Err(ErrorKind::RepeatedGroups { format: (header >> 32) as u32 });
        }
        let groups = bytes_of(header, fragment)?;
        let short = ErrorKind::RecordSize { size, groups };
        read_groups(&mut record, header, fragment).filter(|()| groups <= size).ok_or(short)?;
        seen |= listed;
        at += size;
        let is_null = header & !0xffff == 0;
        record.mode_64 = if is_null { record.mode_64 } else { Some(header & MODE_64 != 0) };
        if header & CONTINUES == 0 && !is_null {
            return Ok((record, at));
        }
    }
}

/// Returns true if both lists have a group.
const fn repeats(seen: u64, listed: u64) -> bool {
    let fields = seen & listed & !(BRANCHES | COUNTERS) != 0;
    let branches = seen & BRANCHES != 0 && listed & BRANCHES != 0;
    let counters = seen & COUNTERS != 0 && listed & COUNTERS != 0;
    fields || branches || counters
}

/// Returns the size in bytes of the groups of a fragment, with its header.
fn bytes_of(header: u64, fragment: &[u8]) -> Result<usize, ErrorKind> {
    let mut bytes = HEADER_BYTES + fixed_bytes(header);
    if header & BRANCHES != 0 {
        let depth = fragment.get(bytes + 16..).and_then(|rest| WordReader(rest).word()).unwrap_or_default();
        let count = branch_count(header, depth);
        bytes = bytes
            .saturating_add(BRANCHES_HEADER_BYTES)
            .saturating_add(count.saturating_mul(SampledBranch::BYTES));
    }
    if header & COUNTERS != 0 {
        let listed = fragment.get(bytes..).and_then(|rest| WordReader(rest).words());
        let unknown = ErrorKind::UnknownGroups { format: (header >> 32) as u32 };
        let values = match listed.map(CounterValues::parse_header) {
            Some(Some((.., values))) => values,
            Some(None) => return Err(unknown),
            None => 0,
        };
        bytes = bytes.saturating_add(CounterValues::HEADER_BYTES + 8 * values);
    }
    Ok(bytes)
}

fn fixed_bytes(header: u64) -> usize {
    SIZES.iter().filter(|(group, _)| header & group != 0).map(|(_, bytes)| bytes).sum()
}

/// Returns the number of last branches; `depth` is that in their header.
fn branch_count(header: u64, depth: u64) -> usize {
    match (header & BRANCHES) >> BRANCHES_SHIFT {
        0 => 0,
        1 => 8,
        2 => 16,
        _ => usize::try_from(depth).unwrap_or(usize::MAX),
    }
}

fn read_groups<'a>(record: &mut PebsRecord<'a>, header: u64, fragment: &'a [u8]) -> Option<()> {
    let mut reader = WordReader(fragment.get(HEADER_BYTES..)?);
    if header & BASIC != 0 {
        let [ip, counters, tsc, latency, ..]: [u64; 6] = reader.words()?;
        record.eventing_ip = Some(ip);
        record.applicable_counters = Some(counters);
        record.tsc = Some(tsc);
        record.retire_latency = (latency & LATENCY_VALID != 0).then_some(latency as u16);
    }
    if header & AUXILIARY != 0 {
        let [address, _, _, _, _, source, latency, tx_abort] = reader.words()?;
        record.memory = Some(Memory { address, source: DataSourceEncoding(source), latency });
        record.tx_abort = Some(TxAbort(tx_abort));
    }
    if header & REGISTERS != 0 {
        record.registers = Some(Registers::from_adaptive(reader.words()?));
        let [ssp, _] = reader.words()?;
        record.ssp = Some(ssp);
    }
    if header & XSAVE != 0 {
        let [_, _] = reader.words()?;
        let has = |group| header & group != 0;
        let vectors = &mut record.vectors;
        record.xmm = if has(XMM) { Some(reader.bytes()?) } else { record.xmm };
        vectors.ymm_high = if has(YMM_HIGH) { Some(reader.bytes()?) } else { vectors.ymm_high };
        vectors.opmask = if has(OPMASK) { Some(reader.bytes()?) } else { vectors.opmask };
        vectors.zmm_high = if has(ZMM_HIGH) { Some(reader.bytes()?) } else { vectors.zmm_high };
        vectors.zmm_16_31 = if has(ZMM_16_31) { Some(reader.bytes()?) } else { vectors.zmm_16_31 };
    }
    if header & BRANCHES != 0 {
        let [_, _, depth, ..]: [u64; 6] = reader.words()?;
        let bytes = branch_count(header, depth).checked_mul(SampledBranch::BYTES)?;
        let (branches, rest) = reader.0.split_at_checked(bytes)?;
        record.branches = Some(SampledBranches::of_bytes(branches));
        reader = WordReader(rest);
    }
    if header & COUNTERS != 0 {
        let (general, fixed, metrics, values) = CounterValues::parse_header(reader.words()?)?;
        let values = reader.0.get(..8 * values)?;
        record.counters = CounterValues::of_bytes(general, fixed, metrics, values);
    }
    Some(())
}

/// Writes the record as one fragment.
pub(super) fn emit(record: &PebsRecord<'_>, out: &mut [u8]) -> Result<usize, ErrorKind> {
    let header = header_of(record);
    let mut bytes = HEADER_BYTES + fixed_bytes(header);
    if let Some(branches) = record.branches {
        bytes += BRANCHES_HEADER_BYTES + branches.as_bytes().len();
    }
    if let Some(counters) = record.counters {
        bytes += CounterValues::HEADER_BYTES + counters.as_bytes().len();
    }
    // IA32_PEBS_INDEX counts 16 bytes.
    let size = bytes.next_multiple_of(16);
    let in_header = u16::try_from(size).map_err(|_| ErrorKind::TooWide { value: size as u64 })?;
    let truncated = ErrorKind::Truncated { bytes: out.len(), needed: size };
    let out = out.get_mut(..size).ok_or(truncated)?;
    out.fill(0);
    let mut writer = WordWriter(out);
    writer.words(&[header | u64::from(in_header), 0]).ok_or(truncated)?;
    write_groups(record, header, &mut writer).ok_or(truncated)?;
    Ok(size)
}

/// Returns the header without the size.
fn header_of(record: &PebsRecord<'_>) -> u64 {
    let VectorRegisters { ymm_high, opmask, zmm_high, zmm_16_31 } = record.vectors;
    let with_basic = record.eventing_ip.is_some()
        || record.applicable_counters.is_some()
        || record.tsc.is_some()
        || record.retire_latency.is_some();
    let table = [
        (record.mode_64 == Some(true), MODE_64),
        (with_basic, BASIC),
        (record.memory.is_some() || record.tx_abort.is_some(), AUXILIARY),
        (record.registers.is_some() || record.ssp.is_some(), REGISTERS),
        (record.xmm.is_some(), XMM),
        (ymm_high.is_some(), YMM_HIGH),
        (opmask.is_some(), OPMASK),
        (zmm_high.is_some(), ZMM_HIGH),
        (zmm_16_31.is_some(), ZMM_16_31),
    ];
    let mut header = table.into_iter().filter(|(there, _)| *there).fold(0, |header, (_, bit)| header | bit);
    if let Some(branches) = record.branches {
        let field = match branches.iter().len() {
            8 => 1,
            16 => 2,
            _ => 3,
        };
        header |= field << BRANCHES_SHIFT;
    }
    if let Some(counters) = record.counters {
        let [listed, metrics] = counters.header();
        header |= if listed as u32 != 0 || listed == 0 && metrics == 0 { COUNTERS_GENERAL } else { 0 };
        header |= if listed >> 32 != 0 { COUNTERS_FIXED } else { 0 };
        header |= if metrics != 0 { COUNTERS_METRICS } else { 0 };
    }
    header
}

fn write_groups(record: &PebsRecord<'_>, header: u64, writer: &mut WordWriter<'_>) -> Option<()> {
    if header & BASIC != 0 {
        let latency = record.retire_latency.map_or(0, |latency| u64::from(latency) | LATENCY_VALID);
        writer.words(&[
            record.eventing_ip.unwrap_or_default(),
            record.applicable_counters.unwrap_or_default(),
            record.tsc.unwrap_or_default(),
            latency,
            0,
            0,
        ])?;
    }
    if header & AUXILIARY != 0 {
        let Memory { address, source, latency } = record.memory.unwrap_or_default();
        writer.words(&[address, 0, 0, 0, 0, source.0, latency, record.tx_abort.unwrap_or_default().0])?;
    }
    if header & REGISTERS != 0 {
        writer.words(&record.registers.unwrap_or_default().adaptive())?;
        writer.words(&[record.ssp.unwrap_or_default(), 0])?;
    }
    if header & XSAVE != 0 {
        let VectorRegisters { ymm_high, opmask, zmm_high, zmm_16_31 } = record.vectors;
        writer.words(&[0, 0])?;
        let registers: [Option<&[u8]>; 5] = [
            record.xmm.map(|it| &it[..]),
            ymm_high.map(|it| &it[..]),
            opmask.map(|it| &it[..]),
            zmm_high.map(|it| &it[..]),
            zmm_16_31.map(|it| &it[..]),
        ];
        registers.into_iter().flatten().try_for_each(|bytes| writer.bytes(bytes))?;
    }
    if let Some(branches) = record.branches {
        writer.words(&[0, 0, branches.iter().len() as u64, 0, 0, 0])?;
        writer.bytes(branches.as_bytes())?;
    }
    if let Some(counters) = record.counters {
        writer.words(&counters.header())?;
        writer.bytes(counters.as_bytes())?;
    }
    Some(())
}
