//! The cache of decoded instructions of a section: a small number for each byte of the code. The rest of an instruction
//! is in the code itself.

use super::{
    code::{Detail, Extra},
    insn::PtInsn,
};
use std::{
    ffi::c_int,
    sync::atomic::{AtomicU16, Ordering},
};

/// The size, class and mode of an instruction, and the position of its displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u16);

const DETAILS: [Detail; 4] = [Detail::Other, Detail::MovCr3, Detail::VmEntry, Detail::Vmptrld];

impl Shape {
    /// Returns the shape in a word, if it was decoded in this mode.
    #[inline(always)]
    pub(crate) fn in_mode(word: u16, mode: c_int) -> Option<Self> {
        let shape = Self(word);
        (shape.mode() == mode && word != 0).then_some(shape)
    }

    /// Returns the shape of an instruction that was decoded.
    fn new(insn: &PtInsn, extra: &Extra) -> Self {
        // Widths: 4 bits each for the size and the class, 2 each for the mode, the width and the detail.
        let width = extra.displacement.map_or(0, |_| (extra.width as u16).ilog2() + 1) as u16;
        let (class, mode) = (insn.class as u16, insn.mode as u16);
        Self(u16::from(insn.size) | class << 4 | mode << 8 | width << 10 | (extra.detail as u16) << 12)
    }

    #[inline(always)]
    pub(crate) const fn size(self) -> u8 {
        (self.0 & 0xf) as u8
    }

    #[inline(always)]
    pub(crate) const fn class(self) -> c_int {
        (self.0 >> 4 & 0xf) as c_int
    }

    /// Returns the execution mode that the instruction was decoded in; never zero.
    #[inline(always)]
    pub(crate) const fn mode(self) -> c_int {
        (self.0 >> 8 & 3) as c_int
    }

    /// Returns the binary logarithm of the displacement's size in bytes, plus one; zero if there is no displacement.
    #[inline(always)]
    const fn width(self) -> u32 {
        (self.0 >> 10 & 3) as u32
    }

    /// Returns the displacement of an instruction whose first bytes are `bytes`: the last bytes of the instruction. The
    /// code does not branch on their number, because that branch would be mispredicted.
    #[inline(always)]
    pub(crate) fn displacement(self, bytes: &[u8; LONGEST]) -> Option<i32> {
        let width = self.width().checked_sub(1)?;
        let size = u32::from(self.size());
        let Some(after) = 8_u32.checked_sub(size) else { return self.far_displacement(bytes) };
        let first = i64::from_le_bytes(*bytes.first_chunk()?);
        // A displacement has at most 32 bits.
        Some((first.wrapping_shl(8 * after) >> (64 - (8 << width))) as i32)
    }

    /// Returns the same for an instruction with many prefixes.
    #[cold]
    fn far_displacement(self, bytes: &[u8; LONGEST]) -> Option<i32> {
        let last = bytes.get(..usize::from(self.size()))?;
        match self.width() {
            0 => None,
            1 => last.last().map(|byte| byte.cast_signed().into()),
            2 => last.last_chunk().map(|bytes| i16::from_le_bytes(*bytes).into()),
            _ => last.last_chunk().map(|bytes| i32::from_le_bytes(*bytes)),
        }
    }

    /// Returns the fields that the caller does not get.
    pub(crate) fn extra(self, bytes: &[u8; LONGEST]) -> Extra {
        let width = match self.width() {
            0 => 0,
            log => 1 << (log - 1),
        };
        let detail = DETAILS[usize::from(self.0 >> 12 & 3)];
        Extra { detail, displacement: self.displacement(bytes), width }
    }
}

/// Size of the longest instruction in bytes.
pub(crate) const LONGEST: usize = 15;

/// The shapes of a section's instructions, by offset. Decoders in several threads may share them.
#[derive(Debug)]
pub(crate) struct Shapes(Box<[AtomicU16]>);

impl Shapes {
    pub(crate) fn new(bytes: usize) -> Self {
        // Zeroed memory is mapped on first use, and most of it is never used.
        let shapes = Box::into_raw(vec![0_u16; bytes].into_boxed_slice());
        // SAFETY: both types have the same size and alignment, and nobody else has the memory.
        Self(unsafe { Box::from_raw(shapes as *mut [AtomicU16]) })
    }

    /// Caches an instruction at an offset.
    pub(crate) fn set(&self, offset: u64, insn: &PtInsn, extra: &Extra) {
        if let Some(place) = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset)) {
            place.store(Shape::new(insn, extra).0, Ordering::Relaxed);
        }
    }

    /// Returns the shapes from an offset on.
    pub(crate) fn from(&self, offset: usize) -> &[AtomicU16] {
        self.0.get(offset..).unwrap_or_default()
    }
}
