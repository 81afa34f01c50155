//! The record buffer of one half, with its fields in the management area.

use super::DsLayout;
use super::block::Block;
use super::layout::Field;
use super::memory::LinearMemory;
use super::plan::{BufferMode, Division};
use core::ptr::NonNull;

/// A buffer of records, and its four fields in the management area.
#[derive(Debug)]
pub(crate) struct RecordBuffer<L: LinearMemory> {
    block: Block<L>,
    division: Division,
    mode: BufferMode,
    layout: DsLayout,
    fields: NonNull<u8>,
}

// SAFETY: the fields are in a block that the same area owns and that moves with it.
unsafe impl<L: LinearMemory + Send> Send for RecordBuffer<L> where Block<L>: Send {}

impl<L: LinearMemory> RecordBuffer<L> {
    /// # Safety
    ///
    /// `fields` must point to the four fields of a half in this layout, and nothing else may write to them as long as
    /// this value lives.
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

    /// Returns the capacity in records.
    pub(crate) const fn capacity(&self) -> u64 {
        self.division.records
    }

    /// Returns the behaviour when the buffer is full.
    pub(crate) const fn mode(&self) -> BufferMode {
        self.mode
    }

    /// Returns the size of a record.
    pub(crate) const fn record_bytes(&self) -> u64 {
        self.division.record_bytes
    }

    /// Returns the size of all records.
    pub(crate) const fn end(&self) -> u64 {
        self.division.end()
    }

    /// Writes the fields of an empty buffer. The processor must not record.
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

    /// Returns the size of the records from the base to the index. An index that is not at the start of a record in the
    /// buffer is an error.
    pub(super) fn filled(&self) -> Result<u64, BadIndex> {
        let base = self.block.start();
        let index = self.get(Field::Index);
        let filled = index.wrapping_sub(base);
        // Allow one record more, because processors differ at the absolute maximum.
        match filled <= self.end() + self.record_bytes() && filled % self.record_bytes() == 0 {
            true => Ok(filled.min(self.end())),
            false => Err(BadIndex { index, base }),
        }
    }

    /// Returns whether the index has reached the threshold. May be called while the processor records.
    pub(super) fn is_due(&self) -> bool {
        self.get(Field::Index) >= self.get(Field::Threshold)
    }

    /// Returns whether the index has reached the absolute maximum, where nothing more is recorded.
    pub(super) fn is_full(&self) -> bool {
        self.get(Field::Index) >= self.get(Field::Maximum)
    }

    /// Returns the records between two offsets. The processor must not record.
    pub(super) fn records(&self, from: u64, to: u64) -> &[u8] {
        debug_assert!(from <= to && to <= self.end());
        // SAFETY: the offset is within the buffer.
        let start = unsafe { self.block.pointer().add(from as usize) };
        // SAFETY: our own memory, initialized at the allocation. The processor does not write to it while the buffer is
        // borrowed, because the session that owns it has stopped the recording.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), (to - from) as usize) }
    }

    /// Removes the records before the offset `until`: those from there to `filled` move to the base. The processor must
    /// not record.
    pub(super) fn consume(&mut self, until: u64, filled: u64) {
        let left = filled - until;
        let base = self.block.pointer();
        // SAFETY: the offset is within the buffer.
        let from = unsafe { base.add(until as usize) };
        // SAFETY: both are within the buffer, which nothing else uses now.
        unsafe { core::ptr::copy(from.as_ptr(), base.as_ptr(), left as usize) };
        self.set(Field::Index, self.block.start() + left);
        if self.mode == BufferMode::Circular {
            self.mark_end();
        }
    }

    /// Returns whether the last record was written since [`RecordBuffer::reset`], so that a circular buffer has
    /// wrapped.
    pub(super) fn went_round(&self) -> bool {
        let last = self.end() - self.record_bytes();
        !self.records(last, self.end()).iter().all(|&byte| byte == UNWRITTEN)
    }

    /// Fills the last record with a value that no branch produces.
    fn mark_end(&mut self) {
        let last = self.end() - self.record_bytes();
        // SAFETY: the offset is within the buffer.
        let to = unsafe { self.block.pointer().add(last as usize) };
        // SAFETY: one record within the buffer, which nothing else uses now.
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
        // SAFETY: one of the four fields that the caller of `new` promised.
        unsafe { self.fields.add(field.offset(self.layout) as usize) }
    }
}

/// The bytes of a record that was not written: addresses of these bytes are not canonical.
const UNWRITTEN: u8 = 0xa5;

/// The index in the management area is not at a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// The index.
    pub index: u64,
    /// The buffer's base.
    pub base: u64,
}
