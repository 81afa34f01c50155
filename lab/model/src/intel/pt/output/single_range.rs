//! Single-range output. Source: SDM vol. 3, Intel Processor Trace, "Single Range Output".

use super::operational_error::OperationalError;
use crate::PhysMemory;

/// One circular range.
#[derive(Debug)]
pub(super) struct SingleRange {
    base: u64,
    mask: u32,
    offset: u32,
}

impl SingleRange {
    /// Makes the range from IA32_RTIT_OUTPUT_BASE and IA32_RTIT_OUTPUT_MASK_PTRS.
    pub(super) fn new(base: u64, mask_ptrs: u64) -> Result<Self, OperationalError> {
        let mask = mask_ptrs as u32 | 0x7f;
        let offset = (mask_ptrs >> 32) as u32;
        if mask & mask.wrapping_add(1) != 0 {
            return Err(OperationalError::MaskNotContiguous { mask });
        }
        if base & u64::from(mask) != 0 {
            return Err(OperationalError::BaseOverlapsMask { base, mask });
        }
        if offset > mask {
            return Err(OperationalError::OffsetBeyondRange { offset });
        }
        Ok(Self { base, mask, offset })
    }

    /// Writes bytes from the front of `bytes`, up to the wrap. Returns their number.
    pub(super) fn write(&mut self, bytes: &[u8], mem: &mut dyn PhysMemory, missed: &mut u32) -> usize {
        let room = u64::from(self.mask - self.offset) + 1;
        let len = room.min(bytes.len() as u64) as usize;
        if !mem.write(self.base + u64::from(self.offset), &bytes[..len]) {
            *missed += 1;
        }
        self.offset = self.offset.wrapping_add(len as u32) & self.mask;
        len
    }

    /// Returns IA32_RTIT_OUTPUT_MASK_PTRS.
    pub(super) fn mask_ptrs(&self) -> u64 {
        u64::from(self.offset) << 32 | u64::from(self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlatMemory;

    #[test]
    fn refuses_what_is_no_range() {
        let rows: [(u64, u64, Option<OperationalError>); 9] = [
            (0x1000, 0xfff, None),
            (0x80, 0x7f, None),
            (0, 0xffff_ffff, None),
            (0x1000, 0xfff_0000_0fff, None),
            (0x1000, 0x17f, Some(OperationalError::MaskNotContiguous { mask: 0x17f })),
            (0x1000, 0x2ff, Some(OperationalError::MaskNotContiguous { mask: 0x2ff })),
            (0x1000, 0xf00, Some(OperationalError::MaskNotContiguous { mask: 0xf7f })),
            (0x1800, 0xfff, Some(OperationalError::BaseOverlapsMask { base: 0x1800, mask: 0xfff })),
            (0x1000, 0x1000_0000_0fff, Some(OperationalError::OffsetBeyondRange { offset: 0x1000 })),
        ];
        for (base, mask_ptrs, error) in rows {
            assert_eq!(SingleRange::new(base, mask_ptrs).err(), error, "{base:x} {mask_ptrs:x}");
        }
    }

    #[test]
    fn wraps_to_its_base() {
        let mut ram = [0; 0x200];
        let mut mem = FlatMemory { base: 0x1000, bytes: &mut ram };
        let mut range = SingleRange::new(0x1080, 0x7e_0000_007f).expect("a range");
        let mut missed = 0;
        assert_eq!(range.write(&[1, 2, 3], &mut mem, &mut missed), 2);
        assert_eq!(range.write(&[3], &mut mem, &mut missed), 1);
        assert_eq!(range.mask_ptrs(), 0x1_0000_007f);
        assert_eq!((mem.bytes[0xfe], mem.bytes[0xff], mem.bytes[0x80], mem.bytes[0x100]), (1, 2, 3, 0));
        assert_eq!(missed, 0);
    }

    #[test]
    fn each_write_where_no_memory_is_counts_once_and_its_bytes_are_gone() {
        let mut mem = FlatMemory { base: 0x1000, bytes: &mut [0; 0x80] };
        let mut range = SingleRange::new(0x4000, 0xfff).expect("a range");
        let mut missed = 0;
        for writes in 1..4 {
            assert_eq!(range.write(&[1; 16], &mut mem, &mut missed), 16);
            assert_eq!((missed, range.mask_ptrs()), (writes, u64::from(writes) << 36 | 0xfff));
        }
    }
}
