//! The instructions of a block.

use super::Block;
use crate::{
    flow::fetch,
    image::{Asid, Image, Window},
    insn::{Class, Insn},
    mode::ExecMode,
};

/// The instructions of a [`Block`], each with its address, in order.
///
/// The iteration ends early if the image does not hold all of the block; then the block is from another image.
#[derive(Clone, Debug)]
pub struct Insns<'a> {
    image: Image<'a>,
    space: Asid,
    window: Window<'a>,
    mode: ExecMode,
    ip: u64,
    left: u32,
}

impl<'a> Insns<'a> {
    /// Iterates over the instructions of `block`, which was executed in that address space.
    #[must_use]
    pub fn new(image: Image<'a>, space: impl Into<Asid>, block: &Block) -> Self {
        let window = Window::default();
        Self { image, space: space.into(), window, mode: block.mode, ip: block.ip, left: block.insns }
    }

    /// Continues with another block of the same image.
    ///
    /// Faster than a new iterator for each block, as long as the address space stays the same: the section is not
    /// looked up again.
    pub(crate) fn restart(&mut self, block: &Block) {
        (self.mode, self.ip, self.left) = (block.mode, block.ip, block.insns);
    }
}

impl Iterator for Insns<'_> {
    type Item = (u64, Insn);

    #[inline]
    fn next(&mut self) -> Option<(u64, Insn)> {
        self.left = self.left.checked_sub(1)?;
        let ip = self.ip;
        let (window, insn) = fetch(self.image, self.space, self.window, ip, self.mode).ok()?;
        self.window = window;
        self.ip = match (insn.class, insn.target) {
            (Class::NearJump | Class::NearCall, Some(target)) => target,
            _ => insn.next(ip),
        };
        Some((ip, insn))
    }
}
