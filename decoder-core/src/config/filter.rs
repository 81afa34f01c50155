//! IA32_RTIT_CTL.ADDRn_CFG, IA32_RTIT_ADDRn_A and IA32_RTIT_ADDRn_B.
//!
//! ```
//! use pugmark_decoder_core::config::AddressFilter;
//!
//! assert!(AddressFilter::default().contains(0x5000));
//! // ADDR1_CFG = 1: trace only from 1000 to 1fff.
//! let filter = AddressFilter::new(1 << 36, [[0; 2], [0x1000, 0x1fff], [0; 2], [0; 2]]);
//! assert!(filter.contains(0x1fff) && !filter.contains(0x5000));
//! ```

/// IA32_RTIT_CTL.ADDRn_CFG with IA32_RTIT_ADDRn_A and IA32_RTIT_ADDRn_B: the ranges of code that were traced.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Filtering by IP".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressFilter {
    /// The four ranges.
    pub ranges: [AddressRange; 4],
}

/// One range of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// ADDRn_CFG.
    pub kind: RangeKind,
    /// ADDRn_A: the lowest address.
    pub first: u64,
    /// ADDRn_B: the highest address.
    pub last: u64,
}

/// The use of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RangeKind {
    /// 0: nothing.
    #[default]
    Unused,
    /// 1: packet generation is on in it.
    Filter,
    /// 2: packet generation stops in it.
    Stop,
    /// Reserved.
    Reserved(u8),
}

impl From<u8> for RangeKind {
    fn from(value: u8) -> Self {
        match value {
            0 => Self::Unused,
            1 => Self::Filter,
            2 => Self::Stop,
            reserved => Self::Reserved(reserved),
        }
    }
}

impl AddressFilter {
    /// No ranges: all code was traced.
    pub const NONE: Self = Self { ranges: [AddressRange { kind: RangeKind::Unused, first: 0, last: 0 }; 4] };

    /// Creates the filter from IA32_RTIT_CTL and, for each range, IA32_RTIT_ADDRn_A and IA32_RTIT_ADDRn_B.
    #[must_use]
    pub fn new(rtit_ctl: u64, addr: [[u64; 2]; 4]) -> Self {
        let mut cfg = rtit_ctl >> 32;
        let ranges = addr.map(|[first, last]| {
            let kind = RangeKind::from((cfg & 0xf) as u8);
            cfg >>= 4;
            AddressRange { kind, first, last }
        });
        Self { ranges }
    }

    /// Returns true if code at `ip` is traced: it is in a filter range, or there are no filter ranges, and it is in no
    /// TraceStop range.
    #[must_use]
    pub fn contains(&self, ip: u64) -> bool {
        let of = |kind: RangeKind| self.ranges.iter().filter(move |range| range.kind == kind);
        let holds = |range: &AddressRange| (range.first..=range.last).contains(&ip);
        if of(RangeKind::Stop).any(holds) {
            return false;
        }
        of(RangeKind::Filter).count() == 0 || of(RangeKind::Filter).any(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_has_its_four_bits_and_its_two_registers() {
        let addr = [[1, 2], [3, 4], [5, 6], [7, 8]];
        let kinds = [RangeKind::Stop, RangeKind::Filter, RangeKind::Reserved(15), RangeKind::Unused];
        let AddressFilter { ranges } = AddressFilter::new(0xdead_0f12_dead_beef, addr);
        assert_eq!(ranges.map(|range| range.kind), kinds);
        assert_eq!(ranges.map(|range| [range.first, range.last]), addr);
    }

    #[test]
    fn stop_ranges_win_over_filter_ranges_and_no_filter_range_means_everywhere() {
        let range = |kind, first, last| AddressRange { kind, first, last };
        let none = AddressRange::default();
        let code = range(RangeKind::from(1), 0x1000, 0x1fff);
        let stop = range(RangeKind::from(2), 0x1800, 0x18ff);
        for (ranges, inside, outside) in [
            ([none; 4], &[0, 0x1000, u64::MAX][..], &[][..]),
            ([none, code, none, none], &[0x1000, 0x1fff], &[0xfff, 0x2000]),
            ([stop, code, none, none], &[0x17ff, 0x1900], &[0x1800, 0x18ff, 0x2000]),
            ([stop, none, none, none], &[0, 0x17ff], &[0x1800]),
            ([range(RangeKind::from(7), 0, 1), none, none, none], &[0, 5], &[]),
        ] {
            let filter = AddressFilter { ranges };
            for &ip in inside {
                assert!(filter.contains(ip), "{ranges:x?} {ip:x}");
            }
            for &ip in outside {
                assert!(!filter.contains(ip), "{ranges:x?} {ip:x}");
            }
        }
    }
}
