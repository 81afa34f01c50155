//! Finds endless loops in the code, and counts instructions since the last place that the trace gave.
//!
//! Between two packets the code alone decides where the walk goes, so if it comes to an address a second time it
//! never ends. Brent's method detects that with one remembered address, which is compared with each jump's target
//! and replaced after 1, 2, 4, 8 … jumps.

/// Finds endless loops, and counts instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopDetector {
    /// Instructions since the last place that the trace named, which TRIG packets count from.
    insns: u64,
    /// Jumps since the mark was set, and the number of jumps after which it is set again.
    jumps: u64,
    limit: u64,
    /// The remembered address.
    mark: Option<u64>,
}

impl LoopDetector {
    pub(super) const fn new() -> Self {
        Self { insns: 0, jumps: 0, limit: 1, mark: None }
    }

    /// Notes that a packet was used: the walk up to here cannot be part of an endless loop.
    #[inline]
    pub(super) fn consumed(&mut self) {
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

    /// Counts `insns` more instructions.
    #[inline]
    pub(crate) fn step(&mut self, insns: u64) {
        self.insns += insns;
    }

    /// How many instructions there were since the last anchor.
    #[inline]
    pub(super) const fn insns_since_anchor(&self) -> u64 {
        self.insns
    }

    /// Notes a direct jump to `target`, without a packet; `false` when the walk was there before since the last
    /// packet was used.
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
