//! The cache of decoded runs of code and of paths over them, looked up by their first address.
//!
//! The memory is the caller's. A new entry replaces the one in its slot.

use super::{
    path::{Key, Path},
    run::Run,
};
use crate::{
    image::{AddressSpace, Asid, Image},
    mode::ExecMode,
};

/// A cache entry in the caller's memory: one run of code and one path over several.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    path: Path,
    run: Run,
    ip: u64,
    space: u64,
}

/// The cache: runs by first address, address space and mode, and paths by their keys.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    slots: &'a mut [Slot],
    shift: u32,
    sees: Sees,
    space: u64,
    vmcs: Option<u64>,
}

/// Which parts of an address space (CR3, VMCS) the image's code depends on.
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

    /// Switches to the code of `image`, in the address space `space`.
    pub(super) fn set_image(&mut self, image: Image<'_>, space: Asid) {
        self.slots.fill(Slot::default());
        self.sees = Sees::of(image);
        self.enter(space);
    }

    /// Switches to the code of the address space `space`.
    pub(super) fn enter(&mut self, space: Asid) {
        if self.sees.cr3 {
            // Bits 4:0 do not distinguish address spaces. Here they distinguish an unknown CR3 from a CR3 of zero.
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

    /// Returns the slot index for that key's path, and whether the path is there.
    #[inline]
    pub(super) fn find(&self, key: Key) -> (usize, bool) {
        // The outcomes go into the top bits, where addresses repeat one bit.
        let index = self.index(key.ip ^ u64::from(key.outcomes) << 57);
        (index, self.slots.get(index).is_some_and(|slot| slot.path.key == key))
    }

    /// The path in a slot.
    #[inline]
    pub(super) fn path(&self, index: usize) -> Option<&Path> {
        self.slots.get(index).map(|slot| &slot.path)
    }

    /// Stores a path in its slot.
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

    /// Whether the caller gave no memory.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    fn index(&self, ip: u64) -> usize {
        // Multiplicative hashing by the golden ratio.
        (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}
