//! Counts samples by address.

use alloc::vec::Vec;

/// Returns each address in `addresses` and its number of occurrences, sorted by address.
#[must_use]
pub fn tally(addresses: &[u64]) -> Vec<(u64, u64)> {
    let mut addresses = addresses.to_vec();
    addresses.sort_unstable();
    let same = addresses.chunk_by(|one, other| one == other);
    same.map(|same| (same[0], same.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_address() {
        assert_eq!(tally(&[7, 0x1_0000_0000, 7, 3, 7]), [(3, 1), (7, 3), (0x1_0000_0000, 1)]);
        assert_eq!(tally(&[]), []);
    }
}
