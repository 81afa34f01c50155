//! Runs of code, remembered: each is decoded once and then found by its first address.
//!
//! The memory for that is the caller's, and what does not fit replaces what was there.

use super::run::Run;
use crate::{
    image::{AddressSpace, Image},
    mode::ExecMode,
};

/// A place in the caller's memory for one run of code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    run: Run,
    ip: u64,
    space: u64,
}

/// Runs in the caller's memory, by first address, address space and mode.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    slots: &'a mut [Slot],
    shift: u32,
    /// The image is the same in all address spaces.
    one_space: bool,
    space: u64,
}

impl<'a> Cache<'a> {
    pub(super) fn new(memory: &'a mut [Slot], image: Image<'_>) -> Self {
        let bits = memory.len().checked_ilog2().unwrap_or(0);
        let slots = memory.get_mut(..1 << bits).unwrap_or_default();
        slots.fill(Slot::default());
        let one_space = image.sections().iter().all(|section| section.space == AddressSpace::Any);
        Self { slots, shift: 64 - bits.max(1), one_space, space: 0 }
    }

    /// From here on code is that of the address space of `cr3`.
    pub(super) fn enter(&mut self, cr3: Option<u64>) {
        if !self.one_space {
            // Bits 4:0 do not tell address spaces apart; here they tell the unknown one from that of zero.
            self.space = cr3.map_or(1, |cr3| cr3 & !0x1f);
        }
    }

    /// The run at `ip`.
    #[inline]
    pub(super) fn get(&self, ip: u64, mode: ExecMode) -> Option<&Run> {
        let slot = self.slots.get(self.index(ip))?;
        let hit = slot.ip == ip && slot.run.insns != 0 && slot.space == self.space && slot.run.is_of(mode);
        hit.then_some(&slot.run)
    }

    #[cold]
    pub(super) fn insert(&mut self, ip: u64, run: Run) {
        let (space, index) = (self.space, self.index(ip));
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot { run, ip, space };
        }
    }

    #[inline]
    fn index(&self, ip: u64) -> usize {
        // Multiplicative hashing by the golden ratio.
        (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}
