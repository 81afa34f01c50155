//! A PEBS record, and the records of a buffer.

use super::words::WordReader;
use super::{CounterValues, Memory, Registers, TxAbort, VectorRegisters, adaptive, architectural, fixed};
use crate::{Error, ErrorKind};

/// The layout of PEBS records in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 40 bytes, registers of 32 bits: NetBurst without DTES64, outside IA-32e mode.
    Bits32,
    /// Format 0, 144 bytes: the registers.
    Registers,
    /// Format 1, 176 bytes: also IA32_PERF_GLOBAL_STATUS and the memory access.
    Latency,
    /// Format 2, 192 bytes: also the eventing IP and TX abort information.
    Transaction,
    /// Format 3, 200 bytes: also the time, and the applicable counters instead of IA32_PERF_GLOBAL_STATUS.
    Time,
    /// Formats 4 to 6: groups of fields, at least 32 bytes. Format 5 differs only in the place of the counter reset
    /// values ([`Format::general_resets`]). Format 6 has one more group: [`CounterValues`].
    Adaptive,
    /// Format 15, architectural PEBS: fragments of groups, at least 16 bytes each. The records are not in the DS area.
    Architectural,
}

/// A PEBS record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PebsRecord<'a> {
    /// The registers after the instruction that caused the record.
    pub registers: Option<Registers>,
    /// The address of the instruction that caused the record.
    pub eventing_ip: Option<u64>,
    /// IA32_PERF_GLOBAL_STATUS before the record was stored: its bits are the counters that had overflowed.
    pub global_status: Option<u64>,
    /// The counters that the record is for.
    pub applicable_counters: Option<u64>,
    /// Memory access information.
    pub memory: Option<Memory>,
    /// TX abort information.
    pub tx_abort: Option<TxAbort>,
    /// The time-stamp counter.
    pub tsc: Option<u64>,
    /// Cycles from the retirement of the previous instruction to that of this one; 0 or `None` if the processor does
    /// not report it.
    pub retire_latency: Option<u16>,
    /// XMM0 to XMM15.
    pub xmm: Option<&'a [u8; 256]>,
    /// The last branches, the latest first.
    pub branches: Option<SampledBranches<'a>>,
    /// The values of counters when the record was stored. Only in format 6 and in architectural records.
    pub counters: Option<CounterValues<'a>>,
    /// SSP, the shadow stack pointer. Only in architectural records.
    pub ssp: Option<u64>,
    /// The vector registers beyond XMM0 to XMM15. Only in architectural records.
    pub vectors: VectorRegisters<'a>,
    /// True if the processor was in 64-bit mode. Only in architectural records.
    pub mode_64: Option<bool>,
}

/// Last branch records in a PEBS record, the latest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampledBranches<'a>(&'a [u8]);

/// A last branch record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampledBranch {
    /// MSR_LASTBRANCH_x_FROM_IP.
    pub from: u64,
    /// MSR_LASTBRANCH_x_TO_IP.
    pub to: u64,
    /// MSR_LBR_INFO_x.
    pub info: u64,
}

impl Format {
    /// Returns the format for the number in IA32_PERF_CAPABILITIES\[11:8\]; `None` for an unknown number.
    #[must_use]
    pub const fn from_capabilities(format: u8) -> Option<Self> {
        match format {
            0 => Some(Self::Registers),
            1 => Some(Self::Latency),
            2 => Some(Self::Transaction),
            3 => Some(Self::Time),
            4..=6 => Some(Self::Adaptive),
            15 => Some(Self::Architectural),
            _ => None,
        }
    }

    /// Returns the number of general-purpose counter reset values in the management area of the DS area, which precede
    /// those of the fixed-function counters, for the number in IA32_PERF_CAPABILITIES\[11:8\].
    ///
    /// Source: Linux, `arch/x86/events/intel/ds.c`, `intel_pmu_pebs_enable`, by Intel's authors.
    #[must_use]
    pub const fn general_resets(format: u8) -> u8 {
        match format {
            0..=4 => 8,
            _ => 32,
        }
    }

    /// Returns the minimum size of a record, in bytes.
    #[must_use]
    pub const fn least_bytes(self) -> usize {
        match self {
            Self::Bits32 => 40,
            Self::Registers => 0x90,
            Self::Latency => 0xb0,
            Self::Transaction => 0xc0,
            Self::Time => 0xc8,
            Self::Adaptive => 32,
            Self::Architectural => architectural::HEADER_BYTES,
        }
    }
}

impl<'a> PebsRecord<'a> {
    /// Reads the record at the start of `bytes`, and returns it and its size in bytes.
    ///
    /// # Errors
    /// The bytes are not a record of this format.
    pub fn parse(format: Format, bytes: &'a [u8]) -> Result<(Self, usize), ErrorKind> {
        match format {
            Format::Adaptive => adaptive::parse(bytes),
            Format::Architectural => architectural::parse(bytes),
            _ => fixed::parse(format, bytes).map(|record| (record, format.least_bytes())),
        }
    }

    /// Writes the record to the start of `out` and returns its size in bytes.
    ///
    /// A field that the format does not have is omitted. A field that the record does not have is 0. In the adaptive
    /// and the architectural format, the fields of the record determine the groups. An architectural record is one
    /// fragment.
    ///
    /// # Errors
    /// `out` is too short, or a value does not fit.
    pub fn emit(&self, format: Format, out: &mut [u8]) -> Result<usize, ErrorKind> {
        match format {
            Format::Adaptive => adaptive::emit(self, out),
            Format::Architectural => architectural::emit(self, out),
            _ => fixed::emit(self, format, out),
        }
    }

    /// Returns the address of the instruction to be executed next.
    #[must_use]
    pub const fn next_ip(&self) -> Option<u64> {
        match self.registers {
            Some(registers) => Some(registers.rip),
            None => None,
        }
    }

    /// Returns the registers, unless a transaction aborted: then only RIP is valid.
    #[must_use]
    pub fn valid_registers(&self) -> Option<Registers> {
        self.registers.filter(|_| !self.tx_abort.is_some_and(TxAbort::aborted))
    }

    /// Returns the memory access, unless a transaction aborted: then it is not valid.
    #[must_use]
    pub fn valid_memory(&self) -> Option<Memory> {
        self.memory.filter(|_| !self.tx_abort.is_some_and(TxAbort::aborted))
    }
}

impl<'a> SampledBranches<'a> {
    /// Creates branches from their layout in memory.
    #[must_use]
    pub fn new(branches: &'a [[u8; SampledBranch::BYTES]]) -> Self {
        Self(branches.as_flattened())
    }

    /// Creates branches from memory that holds whole branches only.
    pub(super) const fn of_bytes(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the branches in their layout in memory, of [`SampledBranch::BYTES`] each.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Iterates over the branches, the latest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SampledBranch> + use<'a> {
        let branches = self.0.chunks_exact(SampledBranch::BYTES);
        branches.map(|bytes| bytes.first_chunk().map(SampledBranch::parse).unwrap_or_default())
    }
}

impl SampledBranch {
    /// The size of a branch in memory, in bytes.
    pub const BYTES: usize = 24;

    /// Reads a branch.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [from, to, info] = WordReader(bytes).words().unwrap_or_default();
        Self { from, to, info }
    }

    /// Writes a branch.
    #[must_use]
    pub fn emit(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip([self.from, self.to, self.info]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The records of a buffer, in the order in which they were stored.
///
/// An error ends the iteration, because the start of the next record is unknown.
#[derive(Clone, Debug)]
pub struct PebsRecords<'a> {
    bytes: &'a [u8],
    format: Format,
    offset: u64,
}

impl<'a> PebsRecords<'a> {
    /// Creates the iterator over the records in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], format: Format) -> Self {
        Self { bytes, format, offset: 0 }
    }
}

impl<'a> Iterator for PebsRecords<'a> {
    type Item = Result<PebsRecord<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let offset = self.offset;
        match PebsRecord::parse(self.format, self.bytes) {
            Ok((record, size)) => {
                self.bytes = self.bytes.get(size..).unwrap_or_default();
                self.offset += size as u64;
                Some(Ok(record))
            }
            Err(kind) => {
                self.bytes = &[];
                Some(Err(Error { offset, kind }))
            }
        }
    }
}
