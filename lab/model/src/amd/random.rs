//! The pseudo-random numbers that a processor uses.

/// A xorshift generator.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        // A state of zero would remain zero.
        Self(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    /// Returns the next number of `bits` bits.
    pub(super) const fn bits(&mut self, bits: u32) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> (64 - bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_come_up_about_as_often() {
        let mut random = Random::new(1);
        let mut seen = [0; 16];
        for _ in 0..16_000 {
            seen[random.bits(4) as usize] += 1;
        }
        assert!(seen.iter().all(|times| (800..1200).contains(times)), "{seen:?}");
    }
}
