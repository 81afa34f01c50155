//! The stretches that were found most recently.
//!
//! A program mostly executes code that it has executed before. Validating a cached stretch costs a fraction of finding
//! it: the code's bytes are compared many at a time, and nothing is classified.

use alloc::boxed::Box;
use alloc::vec;

use super::next::Lookahead;
use super::prediction::Prediction;
use super::stretch::{Stretch, StretchLimits, successor_addresses};
use crate::guest::cpu::Cpu;
use crate::guest::memory::GuestMemory;
use crate::guest::paging::Tlb;

/// Stretches by their first address. Two stretches that share a slot are searched again each time.
pub(super) struct KnownStretches {
    /// [`Self::SLOTS`] slots.
    slots: Box<[Option<Box<Stretch>>]>,
}

impl KnownStretches {
    /// The number of slots. A stretch takes some kilobytes.
    const SLOTS: usize = 512;

    pub(super) fn new() -> Self {
        Self { slots: vec![None; Self::SLOTS].into() }
    }

    fn slot(&mut self, rip: u64) -> &mut Option<Box<Stretch>> {
        &mut self.slots[(rip ^ rip >> 9) as usize % Self::SLOTS]
    }
}

impl Lookahead {
    /// Takes the stretch cached for an address out of the cache, or any other stretch if there is none. Pass it to
    /// [`Lookahead::stretch`].
    pub fn take_stretch(&mut self, rip: u64) -> Box<Stretch> {
        self.known.slot(rip).take().unwrap_or_default()
    }

    /// Caches a stretch for the next time that execution reaches `rip`, which was passed to
    /// [`take_stretch`](Self::take_stretch).
    pub fn keep_stretch(&mut self, rip: u64, stretch: Box<Stretch>) {
        *self.known.slot(rip) = Some(stretch);
    }
}

impl Stretch {
    /// Returns whether a search at `rip` would find this stretch again.
    pub(super) fn is_still<M: GuestMemory + ?Sized>(
        &self,
        rip: u64,
        cpu: &Cpu,
        memory: &mut M,
        tlb: &mut Tlb,
        limits: StretchLimits,
    ) -> bool {
        let Some(first) = self.instructions().first() else { return false };
        // A stretch that its limit did not end has the same end under any limit.
        let within = self.len <= limits.instructions
            && (self.len < self.limits.instructions || limits.instructions == self.limits.instructions);
        first.rip() == rip
            && within
            && (limits.through_branches, limits.alone) == (self.limits.through_branches, self.limits.alone)
            && self.runs().all(|(rip, address, bytes)| {
                tlb.translate_fetch(cpu, memory, rip) == Ok(address) && memory.holds(address, bytes)
            })
            && (!self.is_predicted || self.is_still_predicted(cpu, memory))
    }

    /// Returns whether each indirect branch is still predicted to go to the same target.
    fn is_still_predicted<M: GuestMemory + ?Sized>(&self, cpu: &Cpu, memory: &mut M) -> bool {
        let mut prediction = Prediction::new(cpu, self.limits.alone);
        let nexts = self.instructions().iter().skip(1).map(|next| next.rip()).chain([self.end]);
        self.instructions().iter().zip(nexts).all(|(instruction, next)| {
            let goes_on = successor_addresses(instruction).is_some()
                || prediction.target(cpu, memory, instruction) == Some(next);
            prediction.executes(cpu, instruction);
            goes_on
        })
    }
}

#[cfg(test)]
mod tests;
