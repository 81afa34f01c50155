//! Formats 0 to 3 and the 32-bit one: fields at fixed places.

use super::registers::WORDS;
use super::words::{WordReader, WordWriter};
use super::{DataSourceEncoding, Format, Memory, PebsRecord, Registers, TxAbort};
use crate::ErrorKind;

/// The number of registers in the 32-bit format.
const NARROW: usize = 10;

pub(super) fn parse(format: Format, bytes: &[u8]) -> Result<PebsRecord<'static>, ErrorKind> {
    let needed = format.least_bytes();
    let truncated = ErrorKind::Truncated { bytes: bytes.len(), needed };
    read(format, WordReader(bytes)).ok_or(truncated)
}

fn read(format: Format, mut reader: WordReader<'_>) -> Option<PebsRecord<'static>> {
    if format == Format::Bits32 {
        let mut words = [0; WORDS];
        for word in &mut words[..NARROW] {
            *word = u32::from_le_bytes(*reader.bytes()?).into();
        }
        return Some(PebsRecord { registers: Some(Registers::from_fixed(words)), ..PebsRecord::default() });
    }
    let mut record =
        PebsRecord { registers: Some(Registers::from_fixed(reader.words()?)), ..PebsRecord::default() };
    if format == Format::Registers {
        return Some(record);
    }
    let [status, address, source, latency] = reader.words()?;
    match format {
        Format::Time => record.applicable_counters = Some(status),
        _ => record.global_status = Some(status),
    }
    record.memory = Some(Memory { address, source: DataSourceEncoding(source), latency });
    if format == Format::Latency {
        return Some(record);
    }
    record.eventing_ip = Some(reader.word()?);
    record.tx_abort = Some(TxAbort(reader.word()?));
    if format == Format::Time {
        record.tsc = Some(reader.word()?);
    }
    Some(record)
}

pub(super) fn emit(record: &PebsRecord<'_>, format: Format, out: &mut [u8]) -> Result<usize, ErrorKind> {
    let needed = format.least_bytes();
    let truncated = ErrorKind::Truncated { bytes: out.len(), needed };
    let out = out.get_mut(..needed).ok_or(truncated)?;
    let registers = record.registers.unwrap_or_default().fixed();
    let mut writer = WordWriter(out);
    if format == Format::Bits32 {
        let narrow = |value: &u64| u32::try_from(*value).map_err(|_| ErrorKind::TooWide { value: *value });
        for value in &registers {
            narrow(value)?;
        }
        for value in &registers[..NARROW] {
            writer.bytes(&narrow(value)?.to_le_bytes()).ok_or(truncated)?;
        }
        return Ok(needed);
    }
    let status = match format {
        Format::Time => record.applicable_counters,
        _ => record.global_status,
    };
    let memory = record.memory.unwrap_or_default();
    let rest = [
        status.unwrap_or_default(),
        memory.address,
        memory.source.0,
        memory.latency,
        record.eventing_ip.unwrap_or_default(),
        record.tx_abort.unwrap_or_default().0,
        record.tsc.unwrap_or_default(),
    ];
    writer.words(&registers).ok_or(truncated)?;
    let len = needed / 8 - WORDS;
    writer.words(rest.get(..len).unwrap_or_default()).ok_or(truncated)?;
    Ok(needed)
}
