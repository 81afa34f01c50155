//! Clocks: the TSC, the core crystal clock and the core clock, all computed from the TSC given with each event.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Tracking Time" and "Cycle-Accurate Mode".

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{Mtc, Tma, Tsc};

use crate::intel::IntelProfile;
use crate::intel::registers::ctl;

/// Number of cycles after which a CYC packet is emitted even without another packet, before the counter would wrap.
const CYCLE_COUNTER_WRAP: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct PacketClock {
    /// TSC ticks per crystal tick, as a fraction; zeros if it is not enumerated.
    tsc_per_crystal: (u64, u64),
    /// The core clock over the TSC, as a fraction.
    core_per_tsc: (u64, u64),
    tsc: u64,
    ctl: u64,
    /// The TSC at which the next MTC is due.
    next_mtc: u64,
    /// The absolute number of core cycles at the last CYC packet.
    last_cyc: u64,
    /// A stand-alone CYC was emitted: the next eligible packet gets a CYC regardless of the threshold.
    cyc_owed: bool,
}

impl PacketClock {
    pub(crate) fn new(profile: &IntelProfile, core_ratio: u8) -> Self {
        let (numerator, denominator) = profile.tsc_ratio;
        Self {
            tsc_per_crystal: (u64::from(numerator), u64::from(denominator)),
            core_per_tsc: (u64::from(core_ratio), u64::from(profile.non_turbo_ratio)),
            tsc: 0,
            ctl: 0,
            next_mtc: 0,
            last_cyc: 0,
            cyc_owed: false,
        }
    }

    /// Starts the cycle counter from 0 when TriggerEn was set.
    pub(crate) fn start(&mut self, ctl: u64, tsc: u64) {
        self.ctl = ctl;
        self.tsc = tsc;
        self.last_cyc = self.cycles();
        self.cyc_owed = false;
        self.schedule_mtc();
    }

    /// Advances the time, which never goes back.
    #[inline]
    pub(crate) fn advance(&mut self, tsc: u64) {
        self.tsc = self.tsc.max(tsc);
    }

    /// Restarts the core clock, which was off since the last event: the cycle counter continues from its old value. The
    /// cycles counted so far are reported before the next eligible packet, the TSC, regardless of the threshold. MTCs
    /// of the sleep are lost; the TMA reports the value of the crystal clock.
    pub(crate) fn wake(&mut self, tsc: u64) {
        let off_at = self.cycles();
        self.advance(tsc);
        self.last_cyc += self.cycles() - off_at;
        self.cyc_owed = true;
        self.schedule_mtc();
    }

    /// Returns a time before which no packet is due unless something else than time makes one: neither an MTC nor a
    /// stand-alone CYC.
    pub(crate) fn quiet_until(&self) -> u64 {
        let mtc = if self.ctl & ctl::MTC_EN == 0 { u64::MAX } else { self.next_mtc };
        let wraps = self.last_cyc + CYCLE_COUNTER_WRAP;
        let cyc = if self.ctl & ctl::CYC_EN == 0 { u64::MAX } else { first(wraps, self.core_per_tsc) };
        mtc.min(cyc)
    }

    /// Returns the MTC packet that is due. If ticks were missed, it has the newest value.
    pub(crate) fn mtc(&mut self) -> Option<Packet> {
        if self.ctl & ctl::MTC_EN == 0 || self.tsc < self.next_mtc {
            return None;
        }
        self.schedule_mtc();
        let ctc = self.crystal() >> ctl::mtc_freq(self.ctl);
        Some(Packet::Mtc(Mtc { ctc: ctc as u8 }))
    }

    /// Returns true if more consecutive MTCs were dropped than the eight bits of the next one can tell.
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Mini Time Counter (MTC) Packet": a decoder derives from the next MTC
    /// how many were dropped, and more than 256 in a row are not to be expected.
    pub(crate) fn lost_count_of_mtcs(&self) -> bool {
        let freq = ctl::mtc_freq(self.ctl);
        let next = self.crystal_at(self.next_mtc) >> freq;
        self.ctl & ctl::MTC_EN != 0 && self.tsc >= self.next_mtc && (self.crystal() >> freq) - next >= 255
    }

    /// Drops the MTCs that are due: the next one is that of the crystal clock's next edge.
    pub(crate) fn drop_mtcs(&mut self) {
        self.schedule_mtc();
    }

    pub(crate) fn tsc(&self) -> Option<Packet> {
        (self.ctl & ctl::TSC_EN != 0).then_some(Packet::Tsc(Tsc { tsc: self.tsc & 0xff_ffff_ffff_ffff }))
    }

    /// Returns the TMA packet: CTC is the crystal clock, FastCounter the number of TSC ticks since its last edge.
    pub(crate) fn tma(&self) -> Option<Packet> {
        let both = ctl::TSC_EN | ctl::MTC_EN;
        if self.ctl & both != both {
            return None;
        }
        let crystal = self.crystal();
        let since_edge = self.tsc.saturating_sub(first(crystal, self.crystal_ratio()));
        Some(Packet::Tma(Tma { ctc: crystal as u16, fc: (since_edge & 0x1ff) as u16 }))
    }

    /// Returns the cycles to report before a CYC-eligible packet, if a CYC packet is due.
    #[inline]
    pub(crate) fn take_cycles(&mut self) -> Option<u64> {
        if self.ctl & ctl::CYC_EN == 0 {
            return None;
        }
        let now = self.cycles();
        let elapsed = now - self.last_cyc;
        let threshold = match ctl::cyc_thresh(self.ctl) {
            0 => 1,
            n => 1 << (n - 1),
        };
        if elapsed < threshold && !(self.cyc_owed && elapsed > 0) {
            return None;
        }
        self.last_cyc = now;
        self.cyc_owed = false;
        Some(elapsed)
    }

    /// Returns the cycles to report before the counter would wrap, if it is close to that.
    pub(crate) fn take_wrap(&mut self) -> Option<u64> {
        if self.ctl & ctl::CYC_EN == 0 || self.cycles() - self.last_cyc < CYCLE_COUNTER_WRAP {
            return None;
        }
        let cycles = self.take_cycles();
        self.cyc_owed = true;
        cycles
    }

    /// Returns the cycles since the last CYC, for an OVF, and restarts the counter.
    pub(crate) fn restart_cycles(&mut self) -> Option<u64> {
        let now = self.cycles();
        let elapsed = now - core::mem::replace(&mut self.last_cyc, now);
        (self.ctl & ctl::CYC_EN != 0 && elapsed > 0).then_some(elapsed)
    }

    fn cycles(&self) -> u64 {
        scale(self.tsc, self.core_per_tsc)
    }

    fn crystal(&self) -> u64 {
        self.crystal_at(self.tsc)
    }

    /// Returns the crystal clock at a time.
    fn crystal_at(&self, tsc: u64) -> u64 {
        scale(tsc, self.crystal_ratio())
    }

    fn crystal_ratio(&self) -> (u64, u64) {
        (self.tsc_per_crystal.1, self.tsc_per_crystal.0)
    }

    fn schedule_mtc(&mut self) {
        let freq = ctl::mtc_freq(self.ctl);
        self.next_mtc = first(((self.crystal() >> freq) + 1) << freq, self.crystal_ratio());
    }
}

/// Returns the first value that is at least `scaled` when it is multiplied with a ratio; without one, any value.
fn first(scaled: u64, (numerator, denominator): (u64, u64)) -> u64 {
    let floor = scale(scaled, (denominator, numerator));
    if scale(floor, (numerator, denominator)) >= scaled { floor } else { floor + 1 }
}

/// Returns `value * numerator / denominator`, rounded down; 0 without a ratio.
fn scale(value: u64, (numerator, denominator): (u64, u64)) -> u64 {
    if denominator == 0 {
        return 0;
    }
    if numerator == denominator {
        return value;
    }
    let whole = (value / denominator).wrapping_mul(numerator);
    whole.wrapping_add(value % denominator * numerator / denominator)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the clock of a Skylake: 250 TSC ticks are 2 crystal ticks.
    fn clock(ctl: u64, tsc: u64, core_ratio: u8) -> PacketClock {
        let mut clock = PacketClock::new(IntelProfile::by_name("skylake").expect("skylake"), core_ratio);
        clock.start(ctl, tsc);
        clock
    }

    #[test]
    fn mtc_comes_when_its_bit_of_the_crystal_clock_changes() {
        let mut clock = clock(ctl::MTC_EN | 3 << 14, 0, 30);
        for (tsc, expected) in
            [(999, None), (1000, Some(1)), (1001, None), (2999, Some(2)), (3000, Some(3)), (256_000, Some(0))]
        {
            clock.advance(tsc);
            assert_eq!(clock.mtc(), expected.map(|ctc| Packet::Mtc(Mtc { ctc })), "{tsc}");
        }
    }

    #[test]
    fn the_count_of_mtcs_is_lost_when_their_eight_bits_wrap() {
        for (ctl, tsc, expected) in [
            (ctl::MTC_EN | 3 << 14, 0, false),
            (ctl::MTC_EN | 3 << 14, 255_999, false),
            (ctl::MTC_EN | 3 << 14, 256_000, true),
            (ctl::MTC_EN | 6 << 14, 256_000, false),
            (0, 256_000, false),
        ] {
            let mut clock = clock(ctl, 0, 30);
            clock.advance(tsc);
            assert_eq!(clock.lost_count_of_mtcs(), expected, "{ctl:#x} {tsc}");
            clock.drop_mtcs();
            assert_eq!((clock.lost_count_of_mtcs(), clock.mtc()), (false, None), "{ctl:#x} {tsc}");
        }
    }

    #[test]
    fn tma_splits_the_tsc_into_crystal_ticks_and_the_rest() {
        for (tsc, ctc, fc) in [(0, 0, 0), (124, 0, 124), (125, 1, 0), (1_000_007, 8000, 7), (125 << 16, 0, 0)]
        {
            let clock = clock(ctl::TSC_EN | ctl::MTC_EN, tsc, 30);
            assert_eq!(clock.tma(), Some(Packet::Tma(Tma { ctc, fc })), "{tsc}");
        }
        assert_eq!(clock(ctl::TSC_EN, 5, 30).tma(), None);
        assert_eq!(clock(ctl::MTC_EN, 5, 30).tsc(), None);
    }

    #[test]
    fn tsc_has_56_bits() {
        for (tsc, payload) in [(0x00f1_2345_6789_abcd, 0x00f1_2345_6789_abcd), (0x0100_0000_0000_0005, 5)] {
            assert_eq!(clock(ctl::TSC_EN, tsc, 30).tsc(), Some(Packet::Tsc(Tsc { tsc: payload })));
        }
    }

    #[test]
    fn cycles_are_core_cycles_and_wait_for_the_threshold() {
        // CycThresh, core ratio, TSC, cycles.
        let rows: [(u64, u8, u64, Option<u64>); 7] = [
            (0, 30, 0, None),
            (0, 30, 1, Some(1)),
            (5, 30, 15, None),
            (5, 30, 16, Some(16)),
            (0, 15, 100, Some(50)),
            (0, 60, 100, Some(200)),
            (1, 30, 1, Some(1)),
        ];
        for (threshold, ratio, tsc, expected) in rows {
            let mut clock = clock(ctl::CYC_EN | threshold << 19, 0, ratio);
            clock.advance(tsc);
            assert_eq!(clock.take_cycles(), expected, "{threshold} {ratio} {tsc}");
            assert_eq!(clock.take_cycles(), None);
        }
        assert_eq!(clock(0, 0, 30).take_cycles(), None);
    }

    #[test]
    fn an_overflow_reports_the_cycles_since_the_last_cyc_unless_there_were_none() {
        let mut counting = clock(ctl::CYC_EN | 15 << 19, 0, 30);
        for (tsc, expected) in [(0, None), (1, Some(1)), (1, None), (41, Some(40))] {
            counting.advance(tsc);
            assert_eq!(counting.restart_cycles(), expected, "{tsc}");
        }
        let mut off = clock(0, 0, 30);
        off.advance(40);
        assert_eq!(off.restart_cycles(), None);
    }

    #[test]
    fn a_stand_alone_cyc_comes_before_the_counter_wraps_and_owes_another() {
        let mut clock = clock(ctl::CYC_EN | 15 << 19, 0, 30);
        clock.advance((1 << 20) - 1);
        assert_eq!(clock.take_wrap(), None);
        clock.advance(1 << 20);
        assert_eq!(clock.take_wrap(), Some(1 << 20));
        clock.advance((1 << 20) + 1);
        assert_eq!(clock.take_cycles(), Some(1), "below the threshold, but owed");
    }

    #[test]
    fn nothing_is_due_before_the_time_until_which_it_is_quiet() {
        for (ctl, ratio, expected) in [
            (0, 30, u64::MAX),
            (ctl::TSC_EN, 30, u64::MAX),
            (ctl::MTC_EN | 3 << 14, 30, 8000),
            (ctl::CYC_EN, 30, 7001 + CYCLE_COUNTER_WRAP),
            // Two and a half core cycles a tick: from tick 7001, which is in cycle 17 502, 419 430 ticks and one more.
            (ctl::CYC_EN, 75, 7001 + 419_431),
            (ctl::CYC_EN | ctl::MTC_EN, 30, 7125),
        ] {
            let mut clock = clock(ctl, 7001, ratio);
            assert_eq!(clock.quiet_until(), expected, "{ctl:#x} {ratio}");
            if expected != u64::MAX {
                clock.advance(expected - 1);
                assert_eq!((clock.mtc(), clock.take_wrap()), (None, None), "{ctl:#x} {ratio}");
                clock.advance(expected);
                assert!(clock.mtc().is_some() || clock.take_wrap().is_some(), "{ctl:#x} {ratio}");
            }
        }
    }

    #[test]
    fn a_ratio_scales_without_losing_a_tick_and_none_gives_0() {
        for (value, ratio, expected) in [
            (7, (3, 1), 21),
            (7, (1, 3), 2),
            (1000, (2, 250), 8),
            (999, (2, 250), 7),
            (1_000_003, (250, 2), 125_000_375),
            (u64::MAX, (3, 3), u64::MAX),
            (u64::MAX, (1, 2), u64::MAX / 2),
            (5, (1, 0), 0),
            (5, (0, 0), 0),
            (0, (3, 2), 0),
        ] {
            assert_eq!(scale(value, ratio), expected, "{value} {ratio:?}");
        }
    }
}
