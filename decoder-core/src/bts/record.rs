//! A branch record, as a value and as bytes.

use crate::ErrorKind;

/// A taken branch, an interrupt or an exception.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "BTS and DS Save Area", the
/// figures "32-bit Branch Trace Record Format" and "64-bit Branch Trace Record Format".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchRecord {
    /// "Last branch from": the linear address of the instruction that branched, was interrupted, or caused the
    /// exception.
    pub from: u64,
    /// "Last branch to": the linear address of the target, or of the handler's first instruction.
    pub to: u64,
    /// "Branch predicted": the target was predicted. Processors of the Core and Atom microarchitectures leave it clear,
    /// and a sample of perf has no field for it.
    pub predicted: bool,
}

/// The layout of a branch record in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// 12 bytes, fields of 32 bits: processors without DTES64 outside IA-32e mode.
    Bits32,
    /// 24 bytes, fields of 64 bits. `perf record -e intel_bts//` stores the same layout as AUX area.
    Bits64,
    /// 24 bytes: a PERF_RECORD_SAMPLE of PERF_SAMPLE_IP and PERF_SAMPLE_ADDR, as perf stores for the event
    /// `branch-instructions` with a period of one. Other records may lie between them.
    ///
    /// Source: Linux, include/uapi/linux/perf_event.h.
    PerfSample,
}

/// Bit 4 of the third field.
const PREDICTED: u8 = 1 << 4;

/// A perf record's header: its type, its misc field, its size.
pub(super) mod perf {
    pub(in super::super) const HEADER: usize = 8;
    pub(in super::super) const LOST: u32 = 2;
    pub(in super::super) const SAMPLE: u32 = 9;
}

impl Layout {
    /// Returns the size of a record, in bytes.
    #[must_use]
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::Bits32 => 12,
            Self::Bits64 | Self::PerfSample => 24,
        }
    }
}

impl BranchRecord {
    /// Returns true if the record is all zeros, like memory that was never written.
    #[must_use]
    pub(super) const fn is_empty(&self) -> bool {
        self.from == 0 && self.to == 0
    }

    /// Reads the record at the start of `bytes`. Ignores undefined bits of the third field, and a perf record's header.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`].
    pub fn parse(layout: Layout, bytes: &[u8]) -> Result<Self, ErrorKind> {
        let parsed = match layout {
            Layout::Bits32 => bytes.first_chunk::<12>().map(|bytes| {
                let [from, to, flags] = words32(bytes);
                Self { from: from.into(), to: to.into(), predicted: flags & u32::from(PREDICTED) != 0 }
            }),
            Layout::Bits64 => bytes.first_chunk().map(|bytes| {
                let [from, to, flags] = words64(bytes);
                Self { from, to, predicted: flags & u64::from(PREDICTED) != 0 }
            }),
            Layout::PerfSample => bytes.first_chunk().map(|bytes| {
                let [_header, from, to] = words64(bytes);
                Self { from, to, predicted: false }
            }),
        };
        parsed.ok_or(truncated(layout, bytes))
    }

    /// Writes the record to the start of `out` and returns its size in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if `out` is too short, [`ErrorKind::TooWide`] if an address has more than 32 bits but
    /// the layout has 32. Then nothing is written.
    pub fn emit(self, layout: Layout, out: &mut [u8]) -> Result<usize, ErrorKind> {
        let flags = if self.predicted { PREDICTED } else { 0 };
        let short = truncated(layout, out);
        match layout {
            Layout::Bits32 => {
                let narrow = |value| u32::try_from(value).map_err(|_| ErrorKind::TooWide { value });
                let words = [narrow(self.from)?, narrow(self.to)?, flags.into()];
                let out = out.first_chunk_mut::<12>().ok_or(short)?;
                for (to, word) in out.chunks_exact_mut(4).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            }
            Layout::Bits64 => emit64(out, [self.from, self.to, flags.into()]).ok_or(short)?,
            Layout::PerfSample => {
                let header = u64::from(perf::SAMPLE) | (layout.record_bytes() as u64) << 48;
                emit64(out, [header, self.from, self.to]).ok_or(short)?;
            }
        }
        Ok(layout.record_bytes())
    }
}

fn truncated(layout: Layout, bytes: &[u8]) -> ErrorKind {
    ErrorKind::Truncated { bytes: bytes.len(), needed: layout.record_bytes() }
}

fn words32(bytes: &[u8; 12]) -> [u32; 3] {
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    }
    words
}

fn words64(bytes: &[u8; 24]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
    words
}

fn emit64(out: &mut [u8], words: [u64; 3]) -> Option<()> {
    let out = out.first_chunk_mut::<24>()?;
    for (to, word) in out.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Some(())
}
