//! Counts samples by address.

use alloc::vec::Vec;

/// Returns each address in `samples`, which are little-endian `u64`s, and how often it occurs, sorted by address.
#[must_use]
pub fn tally(samples: &[u8]) -> Vec<(u64, u64)> {
    let mut addresses: Vec<u64> =
        samples.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    addresses.sort_unstable();
    let same = addresses.chunk_by(|one, other| one == other);
    same.map(|same| (same[0], same.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_address() {
        let bytes: Vec<u8> = [7, 0x1_0000_0000, 7, 3, 7].iter().flat_map(|n: &u64| n.to_le_bytes()).collect();
        assert_eq!(tally(&bytes), [(3, 1), (7, 3), (0x1_0000_0000, 1)]);
        assert_eq!(tally(&[]), []);
    }
}
