//! One half's buffer, with its fields of the management area.

use super::DsLayout;
use super::block::Block;
use super::layout::Field;
use super::memory::LinearMemory;
use super::plan::{BufferMode, Division};
use core::ptr::NonNull;

/// A buffer of records, and its four fields of the management area.
#[derive(Debug)]
pub(crate) struct RecordBuffer<L: LinearMemory> {
    block: Block<L>,
    division: Division,
    mode: BufferMode,
    layout: DsLayout,
    fields: NonNull<u8>,
}

// SAFETY: the fields are in a block that the same area owns, and that goes with it.
unsafe impl<L: LinearMemory + Send> Send for RecordBuffer<L> where Block<L>: Send {}

impl<L: LinearMemory> RecordBuffer<L> {
    /// # Safety
    ///
    /// At `fields` are the four fields of a half in this layout, which nobody else writes to, for as long as this lives.
    pub(super) const unsafe fn new(
        block: Block<L>,
        division: Division,
        mode: BufferMode,
        layout: DsLayout,
        fields: NonNull<u8>,
    ) -> Self {
        Self { block, division, mode, layout, fields }
    }

    pub(super) const fn block(&self) -> &Block<L> {
        &self.block
    }

    /// How many records it holds.
    pub(crate) const fn capacity(&self) -> u64 {
        self.division.records
    }

    /// What happens when it is full.
    pub(crate) const fn mode(&self) -> BufferMode {
        self.mode
    }

    /// The size of a record.
    pub(crate) const fn record_bytes(&self) -> u64 {
        self.division.record_bytes
    }

    /// The size of all records.
    pub(crate) const fn end(&self) -> u64 {
        self.division.end()
    }

    /// Writes the fields: an empty buffer. The processor does not record.
    pub(super) fn reset(&mut self) {
        let base = self.block.start();
        self.set(Field::Base, base);
        self.set(Field::Index, base);
        self.set(Field::Maximum, base + self.division.end());
        self.set(Field::Threshold, base + self.division.threshold);
        if self.mode == BufferMode::Circular {
            self.mark_end();
        }
    }

    /// How many bytes of records there are from the base to the index; an index that is nowhere in the buffer is an
    /// error.
    pub(super) fn filled(&self) -> Result<u64, BadIndex> {
        let base = self.block.start();
        let index = self.get(Field::Index);
        let filled = index.wrapping_sub(base);
        // One record more: what the processor does at the absolute maximum is not the same everywhere.
        match filled <= self.end() + self.record_bytes() && filled.is_multiple_of(self.record_bytes()) {
            true => Ok(filled.min(self.end())),
            false => Err(BadIndex { index, base }),
        }
    }

    /// Whether the index has come to the threshold; may be asked while the processor records.
    pub(super) fn is_due(&self) -> bool {
        self.get(Field::Index) >= self.get(Field::Threshold)
    }

    /// Whether the index has come to the absolute maximum, where nothing more is recorded.
    pub(super) fn is_full(&self) -> bool {
        self.get(Field::Index) >= self.get(Field::Maximum)
    }

    /// Records from one offset to another one. The processor does not record.
    pub(super) fn records(&self, from: u64, to: u64) -> &[u8] {
        debug_assert!(from <= to && to <= self.end());
        // SAFETY: the offset is within the buffer.
        let start = unsafe { self.block.pointer().add(from as usize) };
        // SAFETY: memory of ours that was written at the start; the processor does not write to it while the buffer is
        // borrowed: the session that owns it has stopped the recording.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), (to - from) as usize) }
    }

    /// Forgets the records before an offset: those behind it, up to `filled`, move to the base. The processor does not
    /// record.
    pub(super) fn consume(&mut self, until: u64, filled: u64) {
        let left = filled - until;
        let base = self.block.pointer();
        // SAFETY: the offset is within the buffer.
        let from = unsafe { base.add(until as usize) };
        // SAFETY: both are within the buffer, which nobody else uses now.
        unsafe { core::ptr::copy(from.as_ptr(), base.as_ptr(), left as usize) };
        self.set(Field::Index, self.block.start() + left);
        if self.mode == BufferMode::Circular {
            self.mark_end();
        }
    }

    /// Whether the last record was written since [`RecordBuffer::reset`]: a circular buffer has gone round.
    pub(super) fn went_round(&self) -> bool {
        let last = self.end() - self.record_bytes();
        !self.records(last, self.end()).iter().all(|&byte| byte == UNWRITTEN)
    }

    /// Puts a record at the end that no branch leaves.
    fn mark_end(&mut self) {
        let last = self.end() - self.record_bytes();
        // SAFETY: the offset is within the buffer.
        let to = unsafe { self.block.pointer().add(last as usize) };
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
        // SAFETY: one of the four fields that `new` was promised.
        unsafe { self.fields.add(field.offset(self.layout) as usize) }
    }
}

/// A byte of records that were not written: an address of these is not canonical.
const UNWRITTEN: u8 = 0xa5;

/// The index of the management area is no record's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// What it is.
    pub index: u64,
    /// The buffer's base.
    pub base: u64,
}
