//! The DS save area: its memory, taken under the manual's rules.

use super::layout::Field;
use super::memory::{LinearMemory, LinearRequest};
use super::plan::{BufferMode, BufferPlan, Division, PlanError};
use super::rules::{self, Rule, Strictness, Warning, Warnings};
use super::{DsCapabilities, DsLayout};
use core::fmt;
use core::ptr::NonNull;
use x86_64::VirtAddr;

/// Memory for a processor's branch records, with the buffer management area. It gives everything back when dropped.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "BTS and DS Save
/// Area", "Setting Up the DS Save Area".
#[derive(Debug)]
pub struct DsArea<L: LinearMemory> {
    layout: DsLayout,
    management: Block<L>,
    bts: RecordBuffer<L>,
    mode: BufferMode,
    warnings: Warnings,
}

impl<L: LinearMemory + Clone> DsArea<L> {
    /// Takes the memory, writes to all of it, and checks each page in each address space.
    ///
    /// # Errors
    ///
    /// There is no memory, or a rule is broken; with [`Strictness::Strict`] also where the manual only recommends. What
    /// was taken is given back.
    pub fn allocate(
        memory: L,
        capabilities: &DsCapabilities,
        bts: &BufferPlan,
        strictness: Strictness,
    ) -> Result<Self, AreaError> {
        let layout = capabilities.layout;
        let division = Division::of(bts, layout.branch_record_bytes())?;
        let management =
            Block::allocate(memory.clone(), layout.management_bytes(COUNTERS), 0, layout.limit())?;
        let block = Block::allocate(memory, bts.bytes, bts.page_offset, layout.limit())?;
        let mut warnings = Warnings::default();
        warnings.of_plan(bts, &division);
        let mut area =
            Self { layout, management, bts: RecordBuffer { block, division }, mode: bts.mode, warnings };
        area.check(capabilities, strictness)?;
        area.reset();
        Ok(area)
    }
}

impl<L: LinearMemory> DsArea<L> {
    /// What the manual recommends and this area does not have.
    #[must_use]
    pub const fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// How many branch records it holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.bts.division.records
    }

    /// What happens when it is full.
    #[must_use]
    pub const fn mode(&self) -> BufferMode {
        self.mode
    }

    /// The layout of its fields and records.
    #[must_use]
    pub const fn layout(&self) -> DsLayout {
        self.layout
    }

    /// Checks the pages once more: address spaces may have been made since.
    pub(crate) fn check(
        &mut self,
        capabilities: &DsCapabilities,
        strictness: Strictness,
    ) -> Result<(), AreaError> {
        for block in [&self.management, &self.bts.block] {
            rules::check(block.memory(), block.start(), block.bytes, capabilities, &mut self.warnings)?;
        }
        match self.warnings.iter().next() {
            Some(warning) if strictness == Strictness::Strict => Err(AreaError::Warning(warning)),
            _ => Ok(()),
        }
    }

    /// What goes into IA32_DS_AREA.
    pub(crate) fn address(&self) -> u64 {
        self.management.start()
    }

    /// The size of a branch record.
    pub(crate) const fn record_bytes(&self) -> u64 {
        self.bts.division.record_bytes
    }

    /// Writes the management area: an empty buffer. The processor does not record.
    pub(crate) fn reset(&mut self) {
        let base = self.bts.block.start();
        self.set(Field::Base, base);
        self.set(Field::Index, base);
        self.set(Field::Maximum, base + self.bts.division.end());
        self.set(Field::Threshold, base + self.bts.division.threshold);
        if self.mode == BufferMode::Circular {
            self.mark_end();
        }
    }

    /// How many bytes of records there are from the base to the index; an index that is nowhere in the buffer is an
    /// error.
    pub(crate) fn filled(&self) -> Result<u64, BadIndex> {
        let base = self.bts.block.start();
        let index = self.get(Field::Index);
        let filled = index.wrapping_sub(base);
        // One record more: what the processor does at the absolute maximum is not the same everywhere.
        match filled <= self.bts.division.end() + self.record_bytes()
            && filled.is_multiple_of(self.record_bytes())
        {
            true => Ok(filled.min(self.bts.division.end())),
            false => Err(BadIndex { index, base }),
        }
    }

    /// Whether the index has come to the threshold; may be asked while the processor records.
    pub(crate) fn is_due(&self) -> bool {
        self.get(Field::Index) >= self.get(Field::Threshold)
    }

    /// Whether the index has come to the absolute maximum, where nothing more is recorded.
    pub(crate) fn is_full(&self) -> bool {
        self.get(Field::Index) >= self.get(Field::Maximum)
    }

    /// The size of all records.
    pub(crate) const fn end(&self) -> u64 {
        self.bts.division.end()
    }

    /// Records from one offset to another one. The processor does not record.
    pub(crate) fn records(&self, from: u64, to: u64) -> &[u8] {
        debug_assert!(from <= to && to <= self.end());
        // SAFETY: the offset is within the buffer.
        let start = unsafe { self.bts.block.pointer().add(from as usize) };
        // SAFETY: memory of ours that was written at the start; the processor does not write to it while the area is
        // borrowed: the session that owns it has stopped the recording.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), (to - from) as usize) }
    }

    /// Forgets the records before an offset: those behind it, up to `filled`, move to the base. The processor does not
    /// record.
    pub(crate) fn consume(&mut self, until: u64, filled: u64) {
        let left = filled - until;
        let base = self.bts.block.pointer();
        // SAFETY: the offset is within the buffer.
        let from = unsafe { base.add(until as usize) };
        // SAFETY: both are within the buffer, which nobody else uses now.
        unsafe { core::ptr::copy(from.as_ptr(), base.as_ptr(), left as usize) };
        self.set(Field::Index, self.bts.block.start() + left);
        if self.mode == BufferMode::Circular {
            self.mark_end();
        }
    }

    /// Whether the last record was written since [`DsArea::reset`]: a circular buffer has gone round.
    pub(crate) fn went_round(&self) -> bool {
        let last = self.end() - self.record_bytes();
        !self.records(last, self.end()).iter().all(|&byte| byte == UNWRITTEN)
    }

    /// Puts a record at the end that no branch leaves.
    fn mark_end(&mut self) {
        let last = self.end() - self.record_bytes();
        // SAFETY: the offset is within the buffer.
        let to = unsafe { self.bts.block.pointer().add(last as usize) };
        // SAFETY: one record within the buffer, which nobody else uses now.
        unsafe { to.write_bytes(UNWRITTEN, self.record_bytes() as usize) };
    }

    fn get(&self, field: Field) -> u64 {
        let at = self.field(field);
        match self.layout {
            // SAFETY: a field of the management area, aligned; the processor writes it while it records.
            DsLayout::Bits32 => u64::from(unsafe { at.cast::<u32>().read_volatile() }),
            // SAFETY: as above.
            DsLayout::Bits64 => unsafe { at.cast::<u64>().read_volatile() },
        }
    }

    fn set(&mut self, field: Field, value: u64) {
        let at = self.field(field);
        match self.layout {
            // SAFETY: a field of the management area, aligned. The addresses are below the layout's limit.
            DsLayout::Bits32 => unsafe { at.cast::<u32>().write_volatile(value as u32) },
            // SAFETY: as above.
            DsLayout::Bits64 => unsafe { at.cast::<u64>().write_volatile(value) },
        }
    }

    fn field(&self, field: Field) -> NonNull<u8> {
        // SAFETY: fields are within the management area.
        unsafe { self.management.pointer().add(field.offset(self.layout) as usize) }
    }
}

/// A byte of records that were not written: an address of these is not canonical.
const UNWRITTEN: u8 = 0xa5;

/// As many counter reset values as any processor has: 8 general-purpose counters, then 16 fixed-function ones.
const COUNTERS: u32 = 24;

#[derive(Debug)]
struct RecordBuffer<L: LinearMemory> {
    block: Block<L>,
    division: Division,
}

/// A block of linear memory, given back when dropped.
#[derive(Debug)]
struct Block<L: LinearMemory> {
    memory: L,
    address: VirtAddr,
    request: LinearRequest,
    /// Where in the first page it begins.
    offset: u64,
    bytes: u64,
}

impl<L: LinearMemory> Block<L> {
    fn allocate(memory: L, bytes: u64, offset: u16, limit: Option<u64>) -> Result<Self, AreaError> {
        let offset = u64::from(offset);
        let size = bytes
            .checked_add(offset)
            .and_then(|bytes| bytes.checked_next_multiple_of(PAGE))
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or(AreaError::NoMemory { bytes })?;
        let request = LinearRequest { size, limit };
        let address = memory.allocate(request).ok_or(AreaError::NoMemory { bytes })?;
        let block = Self { memory, address, request, offset, bytes };
        let last = address.as_u64().checked_add(size - 1);
        let fits = last.is_some_and(|last| limit.is_none_or(|limit| last < limit));
        if !address.is_aligned(PAGE) || !fits {
            return Err(AreaError::BadBlock { address: address.as_u64(), request });
        }
        // The processor must find accessed and dirty set, and never sees what was there before.
        // SAFETY: memory that was given to us, mapped whole.
        unsafe { block.memory.pointer(address).write_bytes(0, size as usize) };
        Ok(block)
    }

    const fn memory(&self) -> &L {
        &self.memory
    }

    fn start(&self) -> u64 {
        self.address.as_u64() + self.offset
    }

    fn pointer(&self) -> NonNull<u8> {
        // SAFETY: the offset is within the first page.
        unsafe { self.memory.pointer(self.address).add(self.offset as usize) }
    }
}

impl<L: LinearMemory> Drop for Block<L> {
    fn drop(&mut self) {
        // SAFETY: from `allocate` with this request; the processor does not record into it, because the session that
        // owns the area stops it first.
        unsafe { self.memory.free(self.address, self.request) }
    }
}

const PAGE: u64 = 0x1000;

/// The index of the management area is no record's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// What it is.
    pub index: u64,
    /// The buffer's base.
    pub base: u64,
}

/// Why there can be no such area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaError {
    /// The sizes do not fit.
    Plan(PlanError),
    /// The kernel has no memory.
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The kernel gave memory that is not as the request wants it.
    BadBlock {
        /// Its address.
        address: u64,
        /// What was asked for.
        request: LinearRequest,
    },
    /// A rule of the manual is broken.
    Rule(Rule),
    /// What the manual recommends was made a rule, and is not there.
    Warning(Warning),
}

impl From<PlanError> for AreaError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl From<Rule> for AreaError {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::NoMemory { bytes } => write!(f, "no linear memory for {bytes} bytes"),
            Self::BadBlock { address, request } => write!(
                f,
                "the kernel's memory at {address:#x} is not what was asked for: {:#x} bytes on a page boundary",
                request.size
            ),
            Self::Rule(rule) => rule.fmt(f),
            Self::Warning(warning) => warning.fmt(f),
        }
    }
}

impl core::error::Error for AreaError {}
