//! Segment descriptors in the guest's GDT and LDT.

use super::cpu::{Cpu, Segment};
use super::exception::GuestError;
use super::linear::{read_array, write_linear};
use super::memory::GuestMemory;
use super::paging::{Access, AccessKind};

/// A segment descriptor and its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    /// The linear address of the descriptor.
    address: u64,
    /// The segment register as it would be loaded.
    pub(super) segment: Segment,
}

impl Descriptor {
    /// Returns the descriptor that `selector` names; `None` if it is beyond the limit of its table, or there is no such
    /// table.
    ///
    /// Source: SDM vol. 3, Protected-Mode Memory Management, "Segment Descriptors", "Segment Selectors".
    pub(super) fn find<M: GuestMemory + ?Sized>(
        cpu: &Cpu,
        memory: &mut M,
        selector: u16,
    ) -> Result<Option<Self>, GuestError> {
        let (base, limit) = if selector & 4 == 0 {
            (cpu.gdtr.base, u32::from(cpu.gdtr.limit))
        } else if cpu.ldtr.has(Segment::P) {
            (cpu.ldtr.base, cpu.ldtr.limit)
        } else {
            return Ok(None);
        };
        let offset = u64::from(selector & 0xfff8);
        if offset + 7 > u64::from(limit) {
            return Ok(None);
        }
        let address = base.wrapping_add(offset);
        let bytes = read_array(cpu, memory, address, Access::implicit(AccessKind::Read))?;
        Ok(Some(Self { address, segment: unpack(selector, u64::from_le_bytes(bytes)) }))
    }

    pub(super) const fn is_code(&self) -> bool {
        self.segment.has(Segment::S | Segment::CODE)
    }

    pub(super) const fn is_conforming(&self) -> bool {
        self.segment.has(Segment::CONFORMING)
    }

    pub(super) const fn is_writable_data(&self) -> bool {
        self.segment.has(Segment::S | Segment::READ_WRITE) && !self.segment.has(Segment::CODE)
    }

    pub(super) const fn is_present(&self) -> bool {
        self.segment.has(Segment::P)
    }

    /// Sets the accessed flag in memory, as loading the segment does, and returns the new content of the segment
    /// register with this `selector`.
    pub(super) fn load<M: GuestMemory + ?Sized>(
        &self,
        cpu: &Cpu,
        memory: &mut M,
        selector: u16,
    ) -> Result<Segment, GuestError> {
        let attributes = self.segment.attributes | Segment::ACCESSED;
        if attributes != self.segment.attributes {
            let access = Access::implicit(AccessKind::Write);
            write_linear(cpu, memory, self.address.wrapping_add(5), &[attributes as u8], access)?;
        }
        Ok(Segment { selector, attributes, ..self.segment })
    }
}

/// Returns SS without a descriptor, as 64-bit mode allows it below CPL 3.
pub(super) const fn null_stack_segment(selector: u16, cpl: u8) -> Segment {
    Segment { selector, attributes: (cpl as u16) << 5, limit: 0, base: 0 }
}

/// Returns whether `selector` names the null descriptor.
pub(super) const fn is_null(selector: u16) -> bool {
    selector & 0xfffc == 0
}

/// Returns the selector part of an error code.
pub(super) const fn error_code(selector: u16) -> u32 {
    (selector & 0xfffc) as u32
}

fn unpack(selector: u16, raw: u64) -> Segment {
    let attributes = (raw >> 40 & 0xff | raw >> 44 & 0xf00) as u16;
    let count = (raw & 0xffff | raw >> 32 & 0xf_0000) as u32;
    let limit = if attributes & Segment::G != 0 { count << 12 | 0xfff } else { count };
    let base = raw >> 16 & 0xff_ffff | raw >> 32 & 0xff00_0000;
    Segment { selector, attributes, limit, base }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_its_base_and_its_limit_in_pieces() {
        for (raw, attributes, limit, base) in [
            (0x12c9_9334_5678_abcd, 0xc93, 0x9abc_dfff, 0x1234_5678),
            // The limit counts bytes, not pages.
            (0x1249_9334_5678_abcd, 0x493, 0x9_abcd, 0x1234_5678),
            (0xff00_00ff_ffff_0000, 0, 0, 0xffff_ffff),
            (0x000f_0000_0000_ffff, 0, 0xf_ffff, 0),
            (0x00f0_ff00_0000_0000, 0xfff, 0xfff, 0),
        ] {
            let expected = Segment { selector: 0x33, attributes, limit, base };
            assert_eq!(unpack(0x33, raw), expected, "{raw:#x}");
        }
    }
}
