//! Accesses to the save area, and checks of its pages.

use pugmark_decoder_core::ds::{Buffer, Field, ManagementArea, Width};

use super::DsBuffer;
use crate::intel::unit::Bus;
use crate::memory::Mapping;

const PAGE: u64 = 4096;

/// A part of memory in one page or in two: the physical address in each page, and the number of bytes in the first.
struct TranslatedRange {
    first: u64,
    second: Option<u64>,
    split: usize,
}

/// Accesses to the save area. They return `None` if an access faults or there is no memory.
impl Bus<'_> {
    /// Reads the fields of one buffer.
    pub(crate) fn ds_buffer(&mut self, which: DsBuffer, width: Width) -> Option<Buffer> {
        let mut bytes = [0; ManagementArea::bytes(Width::Bits64)];
        let bytes = &mut bytes[..ManagementArea::bytes(width)];
        self.ds_read(self.shared.ds.base, bytes)?;
        let area = ManagementArea::parse(width, bytes).ok()?;
        Some(match which {
            DsBuffer::Bts => area.bts,
            DsBuffer::Pebs => area.pebs,
        })
    }

    /// Stores a record, then advances the buffer's index. If either access faults, neither is done.
    pub(crate) fn ds_store(
        &mut self,
        which: DsBuffer,
        width: Width,
        (at, record): (u64, &[u8]),
        index: u64,
    ) -> Option<()> {
        let field = match which {
            DsBuffer::Bts => Field::BtsIndex,
            DsBuffer::Pebs => Field::PebsIndex,
        };
        let field_at = self.shared.ds.base.wrapping_add(field.offset(width) as u64);
        self.translate_range(field_at, width.bytes(), true)?;
        self.ds_write(at, record)?;
        self.ds_write(field_at, &index.to_le_bytes()[..width.bytes()])
    }

    /// Reads the value to which a counter is reset.
    pub(crate) fn ds_counter_reset(&mut self, counter: u8, width: Width) -> Option<u64> {
        let mut bytes = [0; 8];
        let at = self.shared.ds.base.wrapping_add(Field::CounterReset(counter).offset(width) as u64);
        self.ds_read(at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    fn ds_read(&mut self, address: u64, out: &mut [u8]) -> Option<()> {
        let TranslatedRange { first, second, split } = self.translate_range(address, out.len(), false)?;
        let (front, back) = out.split_at_mut(split);
        let read = self.mem.read(first, front) && second.is_none_or(|second| self.mem.read(second, back));
        read.then_some(())
    }

    fn ds_write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let TranslatedRange { first, second, split } = self.translate_range(address, bytes.len(), true)?;
        let (front, back) = bytes.split_at(split);
        let written =
            self.mem.write(first, front) && second.is_none_or(|second| self.mem.write(second, back));
        if !written {
            self.shared.violations.writes_outside_memory += 1;
        }
        written.then_some(())
    }

    /// Translates all pages of an access, before any part of the access is done.
    fn translate_range(&mut self, address: u64, len: usize, write: bool) -> Option<TranslatedRange> {
        let split = len.min((PAGE - address % PAGE) as usize);
        let first = self.translate_page(address, write)?;
        let second = match split == len {
            true => None,
            false => Some(self.translate_page(address.wrapping_add(split as u64), write)?),
        };
        Some(TranslatedRange { first, second, split })
    }

    fn translate_page(&mut self, address: u64, write: bool) -> Option<u64> {
        if self.shared.ds.fault.is_some() {
            return None;
        }
        let Mapping { physical, supervisor, marked, .. } = match self.mem.translate(address, write) {
            Ok(mapping) => mapping,
            Err(fault) => {
                self.shared.violations.ds_page_faults += 1;
                self.shared.ds.fault = Some(fault);
                return None;
            }
        };
        self.shared.violations.ds_user_pages += u32::from(!supervisor);
        self.shared.violations.ds_pages_not_marked += u32::from(!marked);
        let page = address / PAGE;
        let slot = &mut self.shared.ds.last_frames[usize::from(page != self.shared.ds.base / PAGE)];
        let frame = physical / PAGE;
        let moved = slot.replace((page, frame)).is_some_and(|last| last.0 == page && last.1 != frame);
        self.shared.violations.ds_pages_moved += u32::from(moved);
        Some(physical)
    }
}
