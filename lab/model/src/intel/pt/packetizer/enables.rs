//! The enables that select the traced code: FilterEn, ContextEn, TriggerEn. Source: SDM vol. 3, Intel Processor Trace,
//! "Packet Generation Enable Controls" and "Trace Filtering".

use crate::Context;
use crate::intel::registers::ctl;

/// An inclusive range of IPs.
type AddressRange = (u64, u64);

/// The configuration that selects the traced code; it cannot change while TraceEn is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceFilter {
    ctl: u64,
    cr3_match: u64,
    filters: [Option<AddressRange>; 4],
    stops: [Option<AddressRange>; 4],
    any_filter: bool,
    any_stop: bool,
}

impl TraceFilter {
    /// Makes the filter; `addresses` are IA32_RTIT_ADDR0_A, ADDR0_B, ADDR1_A, and so on.
    pub(crate) fn new(ctl: u64, cr3_match: u64, addresses: &[u64; 8]) -> Self {
        let ranges = |kind| {
            core::array::from_fn(|n| {
                (ctl::addr_cfg(ctl, n as u32) == kind).then_some((addresses[2 * n], addresses[2 * n + 1]))
            })
        };
        let filters: [Option<AddressRange>; 4] = ranges(1);
        let stops: [Option<AddressRange>; 4] = ranges(2);
        let any_filter = filters.iter().any(Option::is_some);
        let any_stop = stops.iter().any(Option::is_some);
        Self { ctl, cr3_match, filters, stops, any_filter, any_stop }
    }

    /// Returns ContextEn in the state `at`.
    pub(crate) fn context(&self, at: &Context, ia_32e: bool) -> bool {
        let level = if at.cpl == 0 { ctl::OS } else { ctl::USER };
        let cr3_matches = table(at.cr3 ^ self.cr3_match, ia_32e) == 0;
        self.ctl & level != 0 && (self.ctl & ctl::CR3_FILTER == 0 || cr3_matches)
    }

    /// Returns FilterEn for this IP, regardless of TraceStop ranges.
    pub(crate) fn passes(&self, ip: u64) -> bool {
        !self.any_filter || within(&self.filters, ip)
    }

    /// Returns true if all IPs are treated alike.
    pub(crate) fn is_open(&self) -> bool {
        !self.any_filter && !self.any_stop
    }

    /// Returns true if the IP is in a TraceStop range.
    pub(crate) fn stops(&self, ip: u64) -> bool {
        self.any_stop && within(&self.stops, ip)
    }
}

/// Returns the bits of CR3 that locate the paging structures: 63:12 in IA-32e mode, including compatibility mode;
/// elsewhere 63:5, as with PAE paging. Other 32-bit paging ignores bits 11:5, but the model treats it like PAE paging.
pub(super) const fn table(cr3: u64, ia_32e: bool) -> u64 {
    cr3 & if ia_32e { !0xfff } else { !0x1f }
}

fn within(ranges: &[Option<AddressRange>; 4], ip: u64) -> bool {
    ranges.iter().flatten().any(|&(first, last)| (first..=last).contains(&ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExecMode;

    #[test]
    fn context_en_follows_level_and_cr3() {
        // CTL, CPL, CR3, ContextEn; CR3_MATCH is 5000h.
        let rows: [(u64, u8, u64, bool); 12] = [
            (ctl::OS, 0, 0x5000, true),
            (ctl::OS, 3, 0x5000, false),
            (ctl::OS, 1, 0x5000, false),
            (ctl::USER, 0, 0x5000, false),
            (ctl::USER, 3, 0x5000, true),
            (ctl::USER, 1, 0x5000, true),
            (0, 0, 0x5000, false),
            (ctl::OS | ctl::USER, 3, 0x6000, true),
            (ctl::OS | ctl::CR3_FILTER, 0, 0x6000, false),
            (ctl::OS | ctl::CR3_FILTER, 0, 0x5fff, true),
            (ctl::OS | ctl::CR3_FILTER, 0, 0x5000, true),
            (ctl::USER | ctl::CR3_FILTER, 0, 0x5000, false),
        ];
        for (ctl, cpl, cr3, expected) in rows {
            let at = Context { ip: 0, cs_base: 0, cr3, cpl, mode: ExecMode::Bits64, iflag: false };
            assert_eq!(
                TraceFilter::new(ctl, 0x5000, &[0; 8]).context(&at, true),
                expected,
                "{ctl:x} {cpl} {cr3:x}"
            );
        }
        let pae = Context { ip: 0, cs_base: 0, cr3: 0x5020, cpl: 0, mode: ExecMode::Bits32, iflag: false };
        assert!(!TraceFilter::new(ctl::OS | ctl::CR3_FILTER, 0x5000, &[0; 8]).context(&pae, false));
        assert!(TraceFilter::new(ctl::OS | ctl::CR3_FILTER, 0x5020, &[0; 8]).context(&pae, false));
    }

    #[test]
    fn ranges_include_both_ends() {
        let addresses = [0x1000, 0x1fff, 0x3000, 0x3000, 0x1800, 0x18ff, 0, 0];
        let both = TraceFilter::new(1 << 32 | 1 << 36 | 2 << 40, 0, &addresses);
        // IP, FilterEn, TraceStop.
        for (ip, passes, stops) in [
            (0xfff, false, false),
            (0x1000, true, false),
            (0x1fff, true, false),
            (0x2000, false, false),
            (0x3000, true, false),
            (0x3001, false, false),
            (0x1800, true, true),
            (0x18ff, true, true),
            (0x1900, true, false),
        ] {
            assert_eq!((both.passes(ip), both.stops(ip)), (passes, stops), "{ip:x}");
        }
        let only_stop = TraceFilter::new(2 << 40, 0, &addresses);
        assert!(only_stop.passes(0x9999), "no filter range: FilterEn is always set");
    }
}
