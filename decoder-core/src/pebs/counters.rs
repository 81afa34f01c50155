//! Counters in an adaptive record, which only format 6 has.

/// The counters' values when the record was stored.
///
/// The group's header lists the counters that it holds. Source: Linux, `struct pebs_cntr_header` and
/// `setup_pebs_adaptive_sample_data`, by Intel's authors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterValues<'a> {
    general: u32,
    fixed: u32,
    metrics: bool,
    /// The values, 8 bytes each.
    values: &'a [u8],
}

/// The value of the header's third field if PERF_METRICS and its base are present.
const METRICS: u32 = 3;

impl<'a> CounterValues<'a> {
    /// The size of the header: masks of the general-purpose counters, the fixed-function counters and the metrics in
    /// the group, in 4 bytes each, and 4 reserved bytes.
    pub(super) const HEADER_BYTES: usize = 16;

    /// Creates the values of the counters whose bits are set in `general` and `fixed`, in the order of memory:
    /// general-purpose counters, then fixed-function ones, each in the order of their numbers, then with `metrics` the
    /// slots and PERF_METRICS.
    ///
    /// Returns `None` if the number of values does not match.
    #[must_use]
    pub fn new(general: u32, fixed: u32, metrics: bool, values: &'a [[u8; 8]]) -> Option<Self> {
        Self::of_bytes(general, fixed, metrics, values.as_flattened())
    }

    /// Creates the same as [`new`](Self::new), from the values' bytes.
    pub(super) const fn of_bytes(general: u32, fixed: u32, metrics: bool, values: &'a [u8]) -> Option<Self> {
        match values.len() == 8 * count(general, fixed, metrics) {
            true => Some(Self { general, fixed, metrics, values }),
            false => None,
        }
    }

    /// Iterates over the numbers and values of the general-purpose counters in the group.
    pub fn general(&self) -> impl Iterator<Item = (u8, u64)> + use<'a> {
        numbers(self.general).zip(self.words(0))
    }

    /// Iterates over the numbers and values of the fixed-function counters in the group.
    pub fn fixed(&self) -> impl Iterator<Item = (u8, u64)> + use<'a> {
        numbers(self.fixed).zip(self.words(self.general.count_ones()))
    }

    /// Returns the count of slots, of which PERF_METRICS has fractions, and PERF_METRICS.
    #[must_use]
    pub fn metrics(&self) -> Option<(u64, u64)> {
        let mut values = self.words(self.general.count_ones() + self.fixed.count_ones());
        match self.metrics {
            true => Some((values.next()?, values.next()?)),
            false => None,
        }
    }

    /// Returns the values in their layout in memory.
    pub(super) const fn as_bytes(&self) -> &'a [u8] {
        self.values
    }

    pub(super) const fn header(&self) -> [u64; 2] {
        let metrics = if self.metrics { METRICS as u64 } else { 0 };
        [self.general as u64 | (self.fixed as u64) << 32, metrics]
    }

    /// Returns the counters that this header lists, and the number of values after it; `None` for an unknown header.
    pub(super) const fn parse_header([counters, metrics]: [u64; 2]) -> Option<(u32, u32, bool, usize)> {
        let (general, fixed) = (counters as u32, (counters >> 32) as u32);
        let metrics = match metrics as u32 {
            0 => false,
            METRICS => true,
            _ => return None,
        };
        Some((general, fixed, metrics, count(general, fixed, metrics)))
    }

    fn words(&self, from: u32) -> impl Iterator<Item = u64> + use<'a> {
        let values = self.values.get(8 * from as usize..).unwrap_or_default();
        values.chunks_exact(8).map(|bytes| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }
}

const fn count(general: u32, fixed: u32, metrics: bool) -> usize {
    (general.count_ones() + fixed.count_ones()) as usize + 2 * metrics as usize
}

/// Iterates over the numbers of the bits that are set.
fn numbers(bits: u32) -> impl Iterator<Item = u8> {
    (0..32).filter(move |n| bits >> n & 1 == 1)
}
