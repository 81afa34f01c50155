//! The crystal clock between two TSC packets: when its counter had the value that an MTC gives.

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
    /// The last MTC's payload, and how many MTC periods it is behind the one of the TSC packet, or behind the first MTC
    /// where nothing aligns them.
    last: Option<u8>,
    periods: u64,
    /// MTCFreq of the MTCs so far.
    freq: u8,
    /// So many MTCs in a row, or a multiple, could be missing without a trace.
    unseen: u64,
}

/// The crystal clock at a TSC packet.
#[derive(Clone, Copy, Debug)]
struct Alignment {
    /// Its counter, or as many bits of it as are known.
    crystal: u64,
    bits: u32,
    /// TSC ticks since its last edge.
    fast: u64,
}

/// The edge of the crystal clock that an MTC stands for, on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    /// It was not before this.
    pub(super) least: u64,
    /// The edge was not after this; `None` if there is no bound.
    pub(super) most: Option<u64>,
    /// When it was, most likely.
    pub(super) nominal: u64,
    /// MTC periods since the last MTC, or since the one that the TSC packet is in.
    pub(super) periods: u64,
}

impl Edges {
    /// A TSC packet at this place on the line.
    pub(super) fn new(place: u64) -> Self {
        Self { tsc: place, unseen: u64::MAX, ..Self::default() }
    }

    /// The payload of the TSC packet, where it is known what software added to the TSC: that aligns the clocks as a TMA
    /// does. Without it the TSC has been counting since reset, which is not as long as 2^56 ticks.
    pub(super) fn adjusted(&mut self, tsc: Tsc, clocks: &Clocks) {
        let counted = tsc.tsc.wrapping_add_signed(clocks.tsc_adjust.wrapping_neg()) & ((1 << 56) - 1);
        if let Ok((crystal, fast)) = clocks.crystal(counted.wrapping_add_signed(clocks.tsc_adjust)) {
            self.aligned = Some(Alignment { crystal, bits: u64::BITS, fast });
        }
    }

    /// The TMA packet of the TSC packet.
    pub(super) const fn tma(&mut self, tma: Tma) {
        let (crystal, fast) = (tma.ctc as u64, tma.fc as u64);
        self.aligned = Some(Alignment { crystal, bits: u16::BITS, fast });
    }

    /// An MTC packet; `None` when it adds nothing to the packets before it.
    pub(super) fn mtc(&mut self, mtc: Mtc, clocks: &Clocks) -> Option<Edge> {
        let freq = clocks.mtc_freq;
        if freq > 15 {
            return None;
        }
        if freq != self.freq {
            // Nobody can have changed MTCFreq without a TSC packet behind it. So as not to rely on it, nothing is
            // known of the counter any more.
            let aligned = self.aligned.filter(|_| self.last.is_none());
            *self = Self { tsc: self.tsc, aligned, freq, unseen: self.unseen, ..Self::default() };
        }
        let passed = match (self.last.replace(mtc.ctc), self.aligned) {
            (Some(last), _) => {
                self.unseen = self.unseen.min(1 << 8);
                u64::from(mtc.ctc.wrapping_sub(last))
            }
            (None, Some(aligned)) => {
                // Of a TMA's 16 bits those below MTCFreq are not in the MTC, and the MTC may have some above.
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
        // The fast counter says how long before the TSC packet the crystal's edge was. Processors exist that leave it
        // at zero, and it has nine bits: for the earlier limit it may have been all of a crystal tick.
        let period = saturate(numerator.div_ceil(denominator));
        let nominal = self.tsc.saturating_sub(aligned.fast.min(period)).saturating_add(ceil);
        Some(Edge {
            least: self.tsc.saturating_sub(period).saturating_add(floor),
            most: Some(nominal),
            nominal,
            periods,
        })
    }

    /// The place of the TSC packet.
    pub(super) const fn tsc(&self) -> u64 {
        self.tsc
    }

    /// How many MTCs in a row, or multiples of how many, may be missing without a trace.
    pub(super) const fn unseen(&self) -> u64 {
        self.unseen
    }

    /// How many whole MTC periods there are in `ticks` ticks. None if there is no MTC.
    pub(super) fn periods_in(&self, ticks: u64, clocks: &Clocks) -> u64 {
        match clocks.crystal_ratio() {
            Ok((numerator, denominator)) if self.last.is_some() => {
                saturate(u128::from(ticks) * u128::from(denominator) / u128::from(numerator)) >> self.freq
            }
            _ => 0,
        }
    }

    /// Half an MTC period in ticks; 0 where there is no MTC.
    pub(super) fn half_period(&self, clocks: &Clocks) -> u64 {
        match clocks.crystal_ratio() {
            Ok((numerator, denominator)) if self.last.is_some() => {
                saturate((u128::from(numerator) << self.freq) / u128::from(denominator)) / 2
            }
            _ => 0,
        }
    }

    /// Whether another TSC packet with a TMA is as much later as the crystal clock says: `None` where they do not say.
    ///
    /// Of the crystal's counter 16 bits are in both; the TSC's ticks between the two say which of its rounds it is.
    pub(super) fn agrees(&self, tsc: u64, tma: Tma, clocks: &Clocks) -> Option<bool> {
        let (numerator, denominator) = clocks.crystal_ratio().ok()?;
        let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
        let own = self.aligned.filter(|aligned| aligned.bits == u16::BITS)?;
        let ticks = u128::from(tsc.checked_sub(self.tsc)?);
        let passed = u128::from(tma.ctc.wrapping_sub(own.crystal as u16));
        // Each edge is within a crystal tick before its TSC.
        let rounds = (ticks * denominator / numerator + (1 << 15)).saturating_sub(passed) >> 16;
        let expected = (rounds << 16) + passed;
        Some(ticks.saturating_mul(denominator).abs_diff(expected * numerator) < numerator + denominator)
    }
}

const fn saturate(value: u128) -> u64 {
    if value > u64::MAX as u128 { u64::MAX } else { value as u64 }
}
