//! PERF_RECORD_TEXT_POKE: the kernel has changed its own code, for a static key, a probe, or a tracer.
//!
//! Source: Linux, include/uapi/linux/perf_event.h, `PERF_RECORD_TEXT_POKE`; kernel/events/core.c,
//! `perf_event_text_poke`, which fills the record up to a multiple of eight bytes.

use super::file::{self, RawRecord};
use crate::sideband::{RecordProblem, Sample, StreamConfig};
use crate::source::TextPoke;

/// The sizes of the fields before the bytes: the address, and the numbers of old and of new bytes.
const FIELDS: usize = 8 + 2 + 2;

/// Reads a record, and the sample at its end.
pub(super) fn text_poke(
    record: &RawRecord<'_>,
    config: &StreamConfig,
) -> Result<(TextPoke, Sample), RecordProblem> {
    let body = record.body();
    let address = file::long(body, 0).ok_or(RecordProblem::Size)?;
    let count = |at: usize| {
        let bytes = body.get(at..).and_then(|rest| rest.first_chunk()).ok_or(RecordProblem::Size)?;
        Ok(usize::from(u16::from_le_bytes(*bytes)))
    };
    let (old, new) = (count(8)?, count(10)?);
    let bytes = body.get(FIELDS..FIELDS + old + new).ok_or(RecordProblem::Size)?;
    let rest = body.get((FIELDS + old + new).next_multiple_of(8)..).ok_or(RecordProblem::Size)?;
    let (old, new) = bytes.split_at(old);
    let (sample, _) = Sample::parse(rest, config)?;
    Ok((TextPoke { address, old: old.into(), new: new.into() }, sample))
}
