//! Finds walks that never end, and counts instructions since the last place that the trace gave.
//!
//! Between two packets the code alone determines control flow, so a walk that reaches an address a second time never
//! ends. Brent's method detects that with one remembered address, which is compared with each jump's target and
//! replaced after 1, 2, 4, 8 … jumps.
//!
//! Code without such a loop can still go on for ever if the image has bytes everywhere. The walk reaches each address
//! at most once, so it has at most as many instructions as the image has bytes: see [`WalkLimit`].

use crate::image::Image;

/// The interval, in instructions without a packet, at which the walk's length is checked.
const CHECKED_EVERY: u64 = 1 << 12;

/// A limit on the length of walks that use nothing of the trace.
///
/// Each walk may have as many instructions as the image has bytes. All walks that end without using the trace share
/// [`WASTED`](Self::WASTED) plus [`WASTED_PER_BYTE`](Self::WASTED_PER_BYTE). So decoding time is linear in the trace,
/// even if an image pretends to have bytes everywhere and the walk after each PSB fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkLimit {
    /// The number of instructions in walks that failed.
    wasted: u64,
}

impl WalkLimit {
    /// The limit at the start of a trace.
    pub(super) const NEW: Self = Self { wasted: 0 };

    /// Maximum number of instructions without the trace, whatever the size of the image: at least 256 MiB of code.
    const WASTED: u64 = 1 << 28;
    /// The same for code that a [`CodeReader`](crate::image::CodeReader) supplies, which may be infinite.
    const WASTED_FROM_READER: u64 = 1 << 24;
    /// Instructions added for each byte of the trace before the walk.
    const WASTED_PER_BYTE: u64 = 1 << 10;

    /// Returns `false` if a walk of `insns` instructions that has reached `offset` in the trace is too long.
    pub(super) fn allows(self, insns: u64, image: &Image<'_>, offset: u64) -> bool {
        let (most, bytes) = match image.reader() {
            Some(_) => (Self::WASTED_FROM_READER.max(image.size().min(Self::WASTED)), u64::MAX),
            None => (Self::WASTED, image.size()),
        };
        let left =
            most.saturating_add(offset.saturating_mul(Self::WASTED_PER_BYTE)).saturating_sub(self.wasted);
        insns <= bytes.min(left).min(most)
    }

    /// Adds the instructions of a walk that failed.
    pub(super) fn waste(&mut self, insns: u64) {
        self.wasted = self.wasted.saturating_add(insns);
    }
}

/// A detector of endless loops, which also counts instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopDetector {
    /// Instructions since the last place that the trace named, which TRIG packets count from.
    insns: u64,
    /// Instructions since a packet was used.
    unused: u64,
    /// Jumps since the mark was set, and the number of jumps after which it is set again.
    jumps: u64,
    limit: u64,
    /// The remembered address.
    mark: Option<u64>,
}

impl LoopDetector {
    pub(super) const fn new() -> Self {
        Self { insns: 0, unused: 0, jumps: 0, limit: 1, mark: None }
    }

    /// Notes that a packet was used: the walk up to here is not part of an endless loop.
    #[inline]
    pub(super) fn consumed(&mut self) {
        self.unused = 0;
        self.jumps = 0;
        self.limit = 1;
        self.mark = None;
    }

    /// Notes that the trace gave the walk's place.
    #[inline]
    pub(super) fn anchor(&mut self) {
        self.insns = 0;
        self.consumed();
    }

    /// Counts one instruction. Returns `true` if [`WalkLimit`] must be checked.
    #[inline]
    #[must_use]
    pub(super) fn step(&mut self) -> bool {
        self.insns += 1;
        self.unused += 1;
        self.unused % CHECKED_EVERY == 0
    }

    /// Returns the number of instructions since a packet was used.
    pub(super) const fn unused(&self) -> u64 {
        self.unused
    }

    /// Returns the number of instructions since the last anchor.
    #[inline]
    pub(super) const fn insns_since_anchor(&self) -> u64 {
        self.insns
    }

    /// Notes a direct jump to `target` without a packet. Returns `false` if the walk was there since the last packet
    /// was used.
    #[inline]
    #[must_use]
    pub(super) fn jump(&mut self, target: u64) -> bool {
        if self.mark == Some(target) {
            return false;
        }
        self.jumps += 1;
        if self.jumps == self.limit {
            self.mark = Some(target);
            self.jumps = 0;
            self.limit = self.limit.saturating_mul(2);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_loop_of_any_length_after_any_number_of_other_jumps() {
        for (before, length) in [(0_u64, 1_u64), (0, 2), (1, 1), (5, 3), (100, 7), (3, 1000)] {
            let mut loops = LoopDetector::new();
            let target = |jump: u64| if jump < before { jump } else { before + (jump - before) % length };
            let found = (0..).find(|&jump| !loops.jump(target(jump)));
            let found = found.expect("the search has no other end");
            assert!(found >= before + length, "{before} {length}: reported {found}, before anything repeats");
            assert!(found <= 4 * (before + length) + 4, "{before} {length}: reported only at {found}");
        }
    }

    #[test]
    fn a_loop_that_consumes_trace_is_not_endless() {
        let mut loops = LoopDetector::new();
        for _ in 0..1000 {
            assert!(loops.jump(0x1000));
            loops.consumed();
        }
    }
}
