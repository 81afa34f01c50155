//! Raw samples in the format of Linux' perf: `struct perf_ibs_data`.

use super::{Caps, FetchRegisters, FetchSample, OpRegisters, OpSample, Part};
use crate::{Error, ErrorKind};

/// A raw sample: a size of 32 bits, the capabilities in 32 bits, and the registers, each in 64 bits.
///
/// A fetch has IbsFetchCtl, IbsFetchLinAd, IbsFetchPhysAd, and IC_IBS_EXTD_CTL with [`Caps::FETCH_CTL_EXTD`].
/// An op has IbsOpCtl, IbsOpRip, IbsOpData, IbsOpData2, IbsOpData3, IbsDcLinAd, IbsDcPhysAd, then IbsBrTarget with
/// [`Caps::BRN_TRGT`] and IbsOpData4 with [`Caps::OP_DATA4`]. As in `PERF_SAMPLE_RAW`, the size counts the capabilities
/// and the registers, but not itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// The capabilities of the unit.
    pub caps: Caps,
    /// The registers.
    pub kind: RawRegisters,
}

/// The registers of one of the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawRegisters {
    /// The registers of the fetch unit.
    Fetch(FetchRegisters),
    /// The registers of the op unit.
    Op(OpRegisters),
}

/// A sample of one of the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// A fetch.
    Fetch(FetchSample),
    /// An op.
    Op(OpSample),
}

const SIZE: usize = 4;
const CAPS: usize = 4;
const FETCH: usize = 3;
const OP: usize = 7;
const MOST: usize = OP + 2;

impl RawSample {
    /// The size of the longest record, in bytes.
    pub const MAX_BYTES: usize = SIZE + CAPS + 8 * MOST;

    /// Reads a record, with its size field, from the start of `bytes`. Returns the record and its size in bytes.
    ///
    /// # Errors
    ///
    /// The bytes end within the record, or its size field has an impossible value.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ErrorKind> {
        let truncated = |needed| ErrorKind::Truncated { bytes: bytes.len(), needed };
        let (size, rest) = bytes.split_first_chunk().ok_or(truncated(SIZE))?;
        let size = u32::from_le_bytes(*size);
        let needed = SIZE.saturating_add(size as usize);
        let raw = rest.get(..size as usize).ok_or(truncated(needed))?;
        Ok((Self::parse_raw(raw)?, needed))
    }

    /// Reads all of `raw`: the content of `PERF_SAMPLE_RAW` after its size field.
    ///
    /// # Errors
    ///
    /// The length is not that of a fetch or an op with these capabilities.
    pub fn parse_raw(raw: &[u8]) -> Result<Self, ErrorKind> {
        let (caps, rest) =
            raw.split_first_chunk().ok_or(ErrorKind::Truncated { bytes: raw.len(), needed: CAPS })?;
        let caps = Caps(u32::from_le_bytes(*caps));
        let (words, odd) = (rest.len() / 8, rest.len() % 8);
        // The longest fetch has fewer registers than the shortest op.
        let kind = match words {
            n if n == fetch_words(caps) && odd == 0 => RawRegisters::Fetch(fetch(rest)),
            n if n == op_words(caps) && odd == 0 => RawRegisters::Op(op(caps, rest)),
            _ => return Err(ErrorKind::SampleSize { size: raw.len() as u32, caps: caps.0 }),
        };
        Ok(Self { caps, kind })
    }

    /// Writes the record, with its size field, to the start of `out` and returns its size in bytes. Registers that
    /// the capabilities exclude are omitted.
    ///
    /// # Errors
    ///
    /// The record does not fit.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, ErrorKind> {
        let (words, count) = match &self.kind {
            RawRegisters::Fetch(fetch) => (fetch_array(fetch), fetch_words(self.caps)),
            RawRegisters::Op(op) => (op_array(self.caps, op), op_words(self.caps)),
        };
        let needed = SIZE + CAPS + 8 * count;
        let bytes = out.len();
        let truncated = ErrorKind::Truncated { bytes, needed };
        let out = out.get_mut(..needed).ok_or(truncated)?;
        let (head, rest) = out.split_at_mut(SIZE + CAPS);
        let (size, caps) = head.split_at_mut(SIZE);
        size.copy_from_slice(&((needed - SIZE) as u32).to_le_bytes());
        caps.copy_from_slice(&self.caps.0.to_le_bytes());
        for (place, word) in rest.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(needed)
    }

    /// Returns the sample; `None` if the registers have none. The capabilities are those of the record; family and
    /// model are those of `part`.
    #[must_use]
    pub const fn sample(&self, part: Part) -> Option<Sample> {
        let part = Part { caps: self.caps, ..part };
        match self.kind {
            RawRegisters::Fetch(registers) => match FetchSample::new(part, registers) {
                Some(sample) => Some(Sample::Fetch(sample)),
                None => None,
            },
            RawRegisters::Op(registers) => match OpSample::new(part, registers) {
                Some(sample) => Some(Sample::Op(sample)),
                None => None,
            },
        }
    }
}

impl From<&Sample> for RawSample {
    fn from(sample: &Sample) -> Self {
        match sample {
            Sample::Fetch(fetch) => {
                Self { caps: fetch.part().caps, kind: RawRegisters::Fetch(*fetch.registers()) }
            }
            Sample::Op(op) => Self { caps: op.part().caps, kind: RawRegisters::Op(*op.registers()) },
        }
    }
}

/// Consecutive raw samples. An error ends them, because the start of the next one is unknown.
#[derive(Clone, Debug)]
pub struct RawSamples<'a> {
    bytes: &'a [u8],
    offset: u64,
}

impl<'a> RawSamples<'a> {
    /// Creates the iterator over the records in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Returns the offset at which the next record begins.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

impl Iterator for RawSamples<'_> {
    type Item = Result<RawSample, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        match RawSample::parse(self.bytes) {
            Ok((record, bytes)) => {
                self.bytes = self.bytes.get(bytes..).unwrap_or_default();
                self.offset += bytes as u64;
                Some(Ok(record))
            }
            Err(kind) => {
                self.bytes = &[];
                Some(Err(Error { offset: self.offset, kind }))
            }
        }
    }
}

const fn fetch_words(caps: Caps) -> usize {
    FETCH + caps.has(Caps::FETCH_CTL_EXTD) as usize
}

const fn op_words(caps: Caps) -> usize {
    OP + caps.has(Caps::BRN_TRGT) as usize + caps.has(Caps::OP_DATA4) as usize
}

fn word(words: &[u8], n: usize) -> u64 {
    words.get(8 * n..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn fetch(words: &[u8]) -> FetchRegisters {
    let [ctl, linear, physical, extended] = [0, 1, 2, 3].map(|n| word(words, n));
    FetchRegisters { ctl, linear, physical, extended }
}

fn fetch_array(fetch: &FetchRegisters) -> [u64; MOST] {
    [fetch.ctl, fetch.linear, fetch.physical, fetch.extended, 0, 0, 0, 0, 0]
}

fn op(caps: Caps, words: &[u8]) -> OpRegisters {
    let [ctl, rip, data, data2, data3, dc_linear, dc_physical] =
        [0, 1, 2, 3, 4, 5, 6].map(|n| word(words, n));
    let has_target = caps.has(Caps::BRN_TRGT);
    let br_target = if has_target { word(words, OP) } else { 0 };
    let data4 = if caps.has(Caps::OP_DATA4) { word(words, OP + usize::from(has_target)) } else { 0 };
    OpRegisters { ctl, rip, data, data2, data3, dc_linear, dc_physical, br_target, data4 }
}

fn op_array(caps: Caps, op: &OpRegisters) -> [u64; MOST] {
    let (first, second) = match caps.has(Caps::BRN_TRGT) {
        true => (op.br_target, op.data4),
        false => (op.data4, 0),
    };
    [op.ctl, op.rip, op.data, op.data2, op.data3, op.dc_linear, op.dc_physical, first, second]
}
