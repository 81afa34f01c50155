//! The counters that can count an event.

use super::CountedEvent;
use crate::amd::AmdCapabilities;

/// The counters that an event needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// Bit n is set if counter n can count it.
    pub(super) counters: u16,
    /// True if the event also needs the next counter, because it can happen more than 15 times in a clock.
    pub(super) pair: bool,
}

impl Need {
    pub(super) fn of(event: &CountedEvent, capabilities: &AmdCapabilities) -> Self {
        let select = event.select();
        let all = (1u16 << capabilities.counters) - 1;
        // Large Increment per Cycle: Retired SSE/AVX FLOPs.
        let pair = capabilities.family >= 0x17 && select.event() == 0x003;
        let counters = match (capabilities.family, pair) {
            (0x15, _) => family_15h(select.event(), select.unit_mask()),
            (_, true) => EVEN,
            (_, false) => all,
        };
        let chosen = event.counter.map_or(all, |n| 1u16.checked_shl(n.into()).unwrap_or(0));
        Self { counters: counters & chosen & all, pair }
    }
}

const EVEN: u16 = 0x5555;

/// Returns the counters of family 15h that can count an event: each unit of the core is wired to some of them.
///
/// Source: BKDG 42301 (family 15h models 00h-0Fh), "Core Performance Counter Events", "PERF_CTL" of each event.
const fn family_15h(event: u16, unit_mask: u8) -> u16 {
    const P0: u16 = 0b00_0001;
    const P20: u16 = 0b00_0111;
    const P3: u16 = 0b00_1000;
    const P30: u16 = 0b00_1001;
    const P50: u16 = 0b11_1111;
    const P53: u16 = 0b11_1000;
    let one = unit_mask.count_ones() <= 1;
    match (event, event & 0xf0) {
        // The floating-point unit.
        (0x000, _) if unit_mask & 0xf0 != 0 && unit_mask & 0x0f != 0 => P3,
        (0x004, _) if !one => P3,
        (0x003 | 0x00b | 0x00d, _) => P3,
        (_, 0x00 | 0x10) => P53,
        // Load and store, data cache, execution.
        (0x023 | 0x043 | 0x045 | 0x046 | 0x054 | 0x055, _) => P20,
        (0x02d, _) => P3,
        (0x02e, _) => P30,
        (0x031, _) if one => P20,
        (0x031, _) => 0,
        (0x1c0, _) => P53,
        (_, 0x20 | 0x30 | 0x40 | 0x50 | 0xc0) => P50,
        // Cache unit, instruction cache, decoder.
        (0x08f | 0x187 | 0x188, _) => P0,
        (0x0db..=0x0df | 0x1d6 | 0x1d8, _) => P50,
        (_, 0x60 | 0x70 | 0x80 | 0x90 | 0xd0) => P20,
        // The northbridge has its own counters.
        _ => 0,
    }
}
