//! A hash over instruction addresses, to compare two records of one execution (for example a trace and a model's
//! log).
//!
//! ```
//! use pugmark_decoder_core::hash::AddressHash;
//!
//! let (mut decoded, mut logged) = (AddressHash::new(), AddressHash::new());
//! [0x1000, 0x1003].into_iter().for_each(|address| decoded.add(address));
//! [0x1003, 0x1000].into_iter().for_each(|address| logged.add(address));
//! // As many instructions, in another order.
//! assert_eq!(decoded.count(), logged.count());
//! assert_ne!(decoded.value(), logged.value());
//! ```

/// FNV's prime for 64 bits.
const PRIME: u64 = 0x0000_0100_0000_01b3;
const PRIME_TO_THE_3: u64 = PRIME.wrapping_pow(3);

/// FNV-1a, 64 bits, over instruction addresses as little-endian `u64`, with their count.
///
/// ```
/// use pugmark_decoder_core::hash::AddressHash;
///
/// let mut hash = AddressHash::new();
/// hash.add(0x1000);
/// hash.add(0x1003);
/// assert_eq!(hash.count(), 2);
/// assert_eq!(hash.value(), 0xddee_fc94_8dc4_1886);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressHash {
    count: u64,
    value: u64,
    /// The lowest byte of `value`, known long before the other bytes: see [`Run`].
    lowest: u8,
}

impl AddressHash {
    /// Returns the hash of no address.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: 0, value: 0xcbf2_9ce4_8422_2325, lowest: 0x25 }
    }

    /// Appends one address.
    #[inline]
    pub fn add(&mut self, address: u64) {
        let step = |value: u64, byte: u8, factor| (value ^ u64::from(byte)).wrapping_mul(factor);
        let [lower @ .., six, seven, eight] = address.to_le_bytes();
        let value = lower.iter().fold(self.value, |value, byte| step(value, *byte, PRIME));
        // A user-mode address ends with two zero bytes: one product replaces three that depend on one another.
        self.value = match (seven, eight) {
            (0, 0) => step(value, six, PRIME_TO_THE_3),
            _ => step(step(step(value, six, PRIME), seven, PRIME), eight, PRIME),
        };
        [self.lowest, ..] = self.value.to_le_bytes();
        self.count += 1;
    }

    /// Appends a run of addresses.
    #[inline]
    pub fn add_run(&mut self, run: &Run) {
        let lowest = usize::from(self.lowest);
        self.value = self.value.wrapping_mul(run.factor).wrapping_add(run.added[lowest]);
        self.lowest = run.lowest[lowest];
        self.count += run.count;
    }

    /// Returns the number of addresses added.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the hash of all added addresses, in order.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }
}

impl Default for AddressHash {
    fn default() -> Self {
        Self::new()
    }
}

/// The effect of a run of addresses on a hash. A run that is appended many times takes one step each time, instead of
/// eight for each address.
///
/// An exclusive or with a byte changes only the hash's lowest byte, and a multiplication never carries into lower bits.
/// So the lowest byte alone determines the value that is added, and the rest is always multiplied by the same factor.
/// It also determines the lowest byte after the run: that has a table of its own, which stays in the first-level cache,
/// so later runs need not wait for the added value of this one.
///
/// ```
/// use pugmark_decoder_core::hash::{AddressHash, Run};
///
/// let run = Run::new([0x1000, 0x1003]);
/// let mut hash = AddressHash::new();
/// hash.add_run(&run);
/// assert_eq!((hash.count(), hash.value()), (2, 0xddee_fc94_8dc4_1886));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    count: u64,
    /// The product of the primes that all bytes of the run multiply by.
    factor: u64,
    /// The value that the run adds, indexed by the hash's lowest byte before the run.
    added: [u64; 256],
    /// The hash's lowest byte after the run, indexed by the one before it.
    lowest: [u8; 256],
}

impl Run {
    /// Creates the run of these addresses.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = u64>) -> Self {
        let mut run = Self { count: 0, factor: 1, added: [0; 256], lowest: [0; 256] };
        for (low, added) in (0..).zip(&mut run.added) {
            *added = low;
        }
        for address in addresses {
            let mut bytes = &address.to_le_bytes()[..];
            while let [byte, rest @ ..] = bytes {
                // A zero byte only multiplies, so it is combined with the byte before it.
                let zeros = rest.iter().take_while(|byte| **byte == 0).count();
                let factor = PRIME.wrapping_pow(1 + zeros as u32);
                run.factor = run.factor.wrapping_mul(factor);
                run.added.iter_mut().for_each(|hash| *hash = (*hash ^ u64::from(*byte)).wrapping_mul(factor));
                bytes = &rest[zeros..];
            }
            run.count += 1;
        }
        for (lowest, hash) in run.lowest.iter_mut().zip(&run.added) {
            [*lowest, ..] = hash.to_le_bytes();
        }
        // The loop above included the lowest byte's own product, which the multiplication in `add_run` repeats.
        for (low, added) in (0_u64..).zip(&mut run.added) {
            *added = added.wrapping_sub(low.wrapping_mul(run.factor));
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_an_address_counts() {
        let addresses = (0..64).flat_map(|bit| [1 << bit, u64::MAX >> bit, !(1 << bit)]);
        let (mut hash, mut plain) = (AddressHash::new(), 0xcbf2_9ce4_8422_2325_u64);
        for address in addresses {
            hash.add(address);
            for byte in address.to_le_bytes() {
                plain = (plain ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
            assert_eq!(hash.value(), plain, "{address:#x}");
            let mut at_once = AddressHash::new();
            at_once.add_run(&Run::new([address]));
            let mut one_by_one = AddressHash::new();
            one_by_one.add(address);
            assert_eq!(at_once, one_by_one, "{address:#x}");
        }
    }

    #[test]
    fn a_run_does_what_its_addresses_do_one_by_one() {
        // Addresses in each half of the address space. The addresses added first give the hash every possible lowest
        // byte.
        let addresses = [0x40_1000, 0x40_1003, 0x7fff_f7df_1950, 0xffff_ffff_8100_0000, u64::MAX, 0];
        let runs = [0, 1, 2, addresses.len()].map(|len| (len, Run::new(addresses[..len].iter().copied())));
        let mut lowest = [false; 256];
        for before in 0..4096 {
            let mut begun = AddressHash::new();
            begun.add(before);
            lowest[usize::from(begun.value().to_le_bytes()[0])] = true;
            for (len, run) in &runs {
                let (mut one_by_one, mut at_once) = (begun, begun);
                addresses[..*len].iter().for_each(|&address| one_by_one.add(address));
                at_once.add_run(run);
                assert_eq!(at_once, one_by_one, "{len} after {before:#x}");
            }
        }
        assert!(lowest.iter().all(|seen| *seen));
    }
}
