//! The hash that two accounts of one execution are compared by.

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
}

impl AddressHash {
    /// The hash of no address.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: 0, value: 0xcbf2_9ce4_8422_2325 }
    }

    /// Appends one address.
    #[inline]
    pub fn add(&mut self, address: u64) {
        for byte in address.to_le_bytes() {
            self.value = (self.value ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count += 1;
    }

    /// How many addresses were added.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The hash of all of them, in order.
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
