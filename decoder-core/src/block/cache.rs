//! Runs of code and paths over them, remembered: each is found out once and then found by its first address.
//!
//! The memory for that is the caller's, and what does not fit replaces what was there.

use super::{
    path::{Key, Path},
    run::Run,
};
use crate::{
    image::{AddressSpace, Asid, Image},
    mode::ExecMode,
};

/// A place in the caller's memory for one run of code and one path over some.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    path: Path,
    run: Run,
    ip: u64,
    space: u64,
}

/// What is in the caller's memory: runs by first address, address space and mode, and paths by their keys.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    slots: &'a mut [Slot],
    shift: u32,
    sees: Sees,
    space: u64,
    vmcs: Option<u64>,
}

/// By what of an address space the code of an image differs.
#[derive(Clone, Copy, Debug)]
struct Sees {
    cr3: bool,
    vmcs: bool,
}

impl Sees {
    fn of(image: Image<'_>) -> Self {
        let any = |has: fn(AddressSpace) -> Option<u64>| {
            image.reader().is_some() || image.sections().iter().any(|section| has(section.space).is_some())
        };
        Self { cr3: any(AddressSpace::cr3), vmcs: any(AddressSpace::vmcs) }
    }
}

impl<'a> Cache<'a> {
    pub(super) fn new(memory: &'a mut [Slot], image: Image<'_>) -> Self {
        let bits = memory.len().checked_ilog2().unwrap_or(0);
        let slots = memory.get_mut(..1 << bits).unwrap_or_default();
        slots.fill(Slot::default());
        Self { slots, shift: 64 - bits.max(1), sees: Sees::of(image), space: 0, vmcs: None }
    }

    /// From here on code is that of `image`, in the address space `space`.
    pub(super) fn set_image(&mut self, image: Image<'_>, space: Asid) {
        self.slots.fill(Slot::default());
        self.sees = Sees::of(image);
        self.enter(space);
    }

    /// From here on code is that of the address space `space`.
    pub(super) fn enter(&mut self, space: Asid) {
        if self.sees.cr3 {
            // Bits 4:0 do not tell address spaces apart; here they tell the unknown one from that of zero.
            self.space = space.cr3.map_or(1, |cr3| cr3 & !0x1f);
        }
        if self.sees.vmcs && self.vmcs != space.vmcs {
            self.vmcs = space.vmcs;
            self.slots.fill(Slot::default());
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
            (slot.run, slot.ip, slot.space) = (run, ip, space);
        }
    }

    /// The place of that key's path, and whether it is there.
    #[inline]
    pub(super) fn find(&self, key: Key) -> (usize, bool) {
        // Outcomes go where addresses have copies of one bit.
        let index = self.index(key.ip ^ u64::from(key.outcomes) << 57);
        (index, self.slots.get(index).is_some_and(|slot| slot.path.key == key))
    }

    /// The path in a place.
    #[inline]
    pub(super) fn path(&self, index: usize) -> Option<&Path> {
        self.slots.get(index).map(|slot| &slot.path)
    }

    /// Puts a path into its place.
    #[cold]
    pub(super) fn keep(&mut self, index: usize, path: Path) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.path = path;
        }
    }

    /// The key of a path in the address space that the decoder is in.
    #[inline]
    pub(super) fn key(&self, ip: u64, outcomes: u8, mode: ExecMode) -> Key {
        Key { ip, space: self.space, outcomes, mode: mode as u8 }
    }

    /// Whether there is no memory.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    fn index(&self, ip: u64) -> usize {
        // Multiplicative hashing by the golden ratio.
        (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}
