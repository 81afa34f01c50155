//! The crystal clock between two TSC packets: the times at which its counter reached the values of MTC packets.
//!
//! An MTC packet has eight bits of the crystal clock's counter and is sent at an edge at which these bits change. A TMA
//! packet after a TSC packet has the counter at the time of that TSC packet, which aligns the two clocks.

use crate::{
    config::Clocks,
    packet::{Mtc, Tma, Tsc},
};

/// The crystal clock's counter, since the last TSC packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edges {
    /// The TSC packet's place on the line.
    tsc: u64,
    aligned: Option<Alignment>,
    /// The payload of the last MTC.
    last: Option<u8>,
    /// The number of MTC periods from that of the TSC packet to that of the last MTC. If the clocks are not aligned,
    /// they count from the first MTC.
    periods: u64,
    /// MTCFreq of the MTCs so far.
    freq: u8,
    /// The number of consecutive missing MTCs, and its multiples, that the payloads do not show.
    unseen: u64,
}

/// The crystal clock at a TSC packet.
#[derive(Clone, Copy, Debug)]
struct Alignment {
    /// The low `bits` bits of its counter; the others are unknown.
    crystal: u64,
    bits: u32,
    /// TSC ticks since its last edge.
    fast: u64,
}

/// The edge of the crystal clock that an MTC stands for, as places on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    /// The lower bound of its time.
    pub(super) least: u64,
    /// The upper bound of its time; `None` if there is none.
    pub(super) most: Option<u64>,
    /// The most likely time of the edge.
    pub(super) nominal: u64,
    /// MTC periods since the last MTC, or since that of the TSC packet.
    pub(super) periods: u64,
}

impl Edges {
    /// Starts at a TSC packet that is at this place on the line.
    pub(super) fn new(place: u64) -> Self {
        Self { tsc: place, unseen: u64::MAX, ..Self::default() }
    }

    /// Applies the payload of the TSC packet. If the value that software added to the TSC is known, the payload aligns
    /// the clocks as a TMA does: without that value, the TSC counts from reset, which was less than 2^56 ticks ago.
    pub(super) fn adjusted(&mut self, tsc: Tsc, clocks: &Clocks) {
        let counted = tsc.tsc.wrapping_add_signed(clocks.tsc_adjust.wrapping_neg()) & ((1 << 56) - 1);
        if let Ok((crystal, fast)) = clocks.crystal(counted.wrapping_add_signed(clocks.tsc_adjust)) {
            self.aligned = Some(Alignment { crystal, bits: u64::BITS, fast });
        }
    }

    /// Applies the TMA packet that belongs to the TSC packet.
    pub(super) const fn tma(&mut self, tma: Tma) {
        let (crystal, fast) = (tma.ctc as u64, tma.fc as u64);
        self.aligned = Some(Alignment { crystal, bits: u16::BITS, fast });
    }

    /// Applies an MTC packet and returns its edge; `None` if the packet adds nothing to earlier ones.
    pub(super) fn mtc(&mut self, mtc: Mtc, clocks: &Clocks) -> Option<Edge> {
        let freq = clocks.mtc_freq;
        if freq > 15 {
            return None;
        }
        if freq != self.freq {
            // A change of MTCFreq should be followed by a TSC packet. In case it is not, the known counter bits are
            // dropped.
            let aligned = self.aligned.filter(|_| self.last.is_none());
            *self = Self { tsc: self.tsc, aligned, freq, unseen: self.unseen, ..Self::default() };
        }
        let passed = match (self.last.replace(mtc.ctc), self.aligned) {
            (Some(last), _) => {
                self.unseen = self.unseen.min(1 << 8);
                u64::from(mtc.ctc.wrapping_sub(last))
            }
            (None, Some(aligned)) => {
                // The bits of the TMA's 16 that are below MTCFreq are not in the MTC, and the MTC may have higher ones.
                let common = aligned.bits.saturating_sub(freq.into()).min(8);
                self.unseen = self.unseen.min(1 << common);
                u64::from(mtc.ctc).wrapping_sub(aligned.crystal >> freq) & ((1 << common) - 1)
            }
            (None, None) => return None,
        };
        self.periods += passed;
        if passed == 0 { None } else { self.edge(passed, clocks) }
    }

    fn edge(&self, periods: u64, clocks: &Clocks) -> Option<Edge> {
        let (numerator, denominator) = clocks.crystal_ratio().ok()?;
        let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
        let ticks = |crystal: u64| u128::from(crystal) * numerator;
        let since = self.periods.saturating_mul(1 << self.freq);
        let Some(aligned) = self.aligned else {
            // The first MTC was at the TSC packet or after it.
            let least = self.tsc.saturating_add(saturate(ticks(since) / denominator));
            return Some(Edge { least, most: None, nominal: least, periods });
        };
        let ticks = ticks(since.saturating_sub(aligned.crystal & ((1 << self.freq) - 1)));
        let (floor, ceil) = (saturate(ticks / denominator), saturate(ticks.div_ceil(denominator)));
        // The fast counter gives the ticks from the crystal's edge to the TSC packet. Some processors leave it at zero,
        // and it has only nine bits. So the lower bound assumes a whole crystal tick.
        let period = saturate(numerator.div_ceil(denominator));
        let nominal = self.tsc.saturating_sub(aligned.fast.min(period)).saturating_add(ceil);
        Some(Edge {
            least: self.tsc.saturating_sub(period).saturating_add(floor),
            most: Some(nominal),
            nominal,
            periods,
        })
    }

    /// Returns the place of the TSC packet.
    pub(super) const fn tsc(&self) -> u64 {
        self.tsc
    }

    /// Returns the number of consecutive missing MTCs, and its multiples, that the payloads do not show.
    pub(super) const fn unseen(&self) -> u64 {
        self.unseen
    }

    /// Returns the number of whole MTC periods in `ticks` ticks; 0 if there was no MTC.
    pub(super) fn periods_in(&self, ticks: u64, clocks: &Clocks) -> u64 {
        match clocks.crystal_ratio() {
            Ok((numerator, denominator)) if self.last.is_some() => {
                saturate(u128::from(ticks) * u128::from(denominator) / u128::from(numerator)) >> self.freq
            }
            _ => 0,
        }
    }

    /// Returns half an MTC period in ticks; 0 if there was no MTC.
    pub(super) fn half_period(&self, clocks: &Clocks) -> u64 {
        match clocks.crystal_ratio() {
            Ok((numerator, denominator)) if self.last.is_some() => {
                saturate((u128::from(numerator) << self.freq) / u128::from(denominator)) / 2
            }
            _ => 0,
        }
    }

    /// Returns true if the distance to a later TSC packet with a TMA agrees with the crystal clock; `None` if they
    /// cannot be compared.
    ///
    /// Both TMAs have 16 bits of the crystal's counter. The TSC ticks show how often these wrapped around.
    pub(super) fn agrees(&self, tsc: u64, tma: Tma, clocks: &Clocks) -> Option<bool> {
        let (numerator, denominator) = clocks.crystal_ratio().ok()?;
        let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
        let own = self.aligned.filter(|aligned| aligned.bits == u16::BITS)?;
        let ticks = u128::from(tsc.checked_sub(self.tsc)?);
        let passed = u128::from(tma.ctc.wrapping_sub(own.crystal as u16));
        // Each edge is less than a crystal tick before its TSC packet.
        let rounds = (ticks * denominator / numerator + (1 << 15)).saturating_sub(passed) >> 16;
        let expected = (rounds << 16) + passed;
        Some(ticks.saturating_mul(denominator).abs_diff(expected * numerator) < numerator + denominator)
    }
}

const fn saturate(value: u128) -> u64 {
    if value > u64::MAX as u128 { u64::MAX } else { value as u64 }
}
