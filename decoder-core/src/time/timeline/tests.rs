extern crate std;

use super::*;
use crate::packet::{Cbr, Cyc, Exstop, Ip, Mtc, PSB, Packet, Tma, Tnt, Tsc};
use std::{vec, vec::Vec};

/// A crystal tick is four TSC ticks. An MTC comes every 16 crystal ticks, which are 0x40 TSC ticks.
const CLOCKS: Clocks =
    Clocks { mtc_freq: 4, nom_freq: 4, cpuid_15h_eax: 1, cpuid_15h_ebx: 4, ..Clocks::UNKNOWN };

const TNT: Packet = Packet::TntShort(Tnt { bits: 0, len: 1 });
const TIP: Packet = Packet::Tip(Ip::Update16(0x1000));

const fn tsc(tsc: u64) -> Packet {
    Packet::Tsc(Tsc { tsc })
}

const fn tma(ctc: u16, fc: u16) -> Packet {
    Packet::Tma(Tma { ctc, fc })
}

const fn mtc(ctc: u8) -> Packet {
    Packet::Mtc(Mtc { ctc })
}

const fn cyc(cycles: u64) -> Packet {
    Packet::Cyc(Cyc { cycles })
}

const fn cbr(ratio: u8) -> Packet {
    Packet::Cbr(Cbr { ratio, reserved: 0 })
}

/// The numbers of two packets, and the moment between them: earliest, latest, from, to.
type Row = (usize, usize, u64, Option<u64>, u64, u64);

struct Trace {
    bytes: Vec<u8>,
    offsets: Vec<u64>,
}

impl Trace {
    /// Creates the trace of a PSB and these packets.
    fn new(packets: &[Packet]) -> Self {
        let (mut bytes, mut offsets) = (PSB.to_vec(), vec![]);
        for packet in packets {
            let mut buffer = [0; Packet::MAX_LEN];
            let size = packet.emit(&mut buffer).unwrap();
            offsets.push(bytes.len() as u64);
            bytes.extend_from_slice(&buffer[..size]);
        }
        Self { bytes, offsets }
    }

    fn timeline(&self, clocks: Clocks) -> Timeline<'_> {
        Timeline::new(&self.bytes, Config { clocks, ..Config::default() })
    }

    fn span(&self, after: usize, before: usize) -> Span {
        Span { after: self.offsets[after], before: self.offsets[before] }
    }

    /// Returns the time of packet `at`, if each byte from packet `after` at `from` to packet `before` at `to` took
    /// equally long.
    fn share(&self, [after, at, before]: [usize; 3], from: u64, to: u64) -> u64 {
        let [after, at, before] = [after, at, before].map(|packet| self.offsets[packet]);
        from + (to - from) * (at - after) / (before - after)
    }

    fn check(&self, mut timeline: Timeline, expected: &[Row]) {
        for &(after, before, earliest, latest, from, to) in expected {
            let moment = timeline.moment(self.span(after, before)).unwrap();
            let found = (moment.earliest, moment.latest, moment.from, moment.to);
            assert_eq!(found, (earliest, latest, from, to), "between {after} and {before}: {moment:x?}");
        }
    }

    fn doubts(&self, clocks: Clocks, expected: &[(usize, Option<Doubt>, bool)]) {
        let mut timeline = self.timeline(clocks);
        for &(at, doubt, confirmed) in expected {
            let moment = timeline.moment(Span::at(self.offsets[at])).unwrap();
            assert_eq!((moment.doubt, moment.confirmed), (doubt, confirmed), "at {at}: {moment:x?}");
        }
    }
}

#[test]
fn tsc_packets_bound_what_is_between_them() {
    let trace = Trace::new(&[TIP, tsc(0x1000), TIP, TNT, tsc(0x2000), TIP]);
    // Of the twelve bytes between the TSC packets, eight are before the TIP and eleven before the TNT.
    let (second, third) = (0x1000 + 0x1000 * 8 / 12, 0x1000 + 0x1000 * 11 / 12);
    trace.check(
        trace.timeline(Clocks::UNKNOWN),
        &[
            (2, 3, 0x1000, Some(0x2000), second, third),
            (2, 4, 0x1000, Some(0x2000), second, 0x2000),
            // A span across a TSC packet.
            (3, 5, 0x1000, None, third, 0x2000),
            (5, 5, 0x2000, None, 0x2000, 0x2000),
        ],
    );
    let mut timeline = trace.timeline(Clocks::UNKNOWN);
    assert_eq!(timeline.moment(trace.span(0, 0)), None);
    assert_eq!(timeline.moment(trace.span(0, 3)), None);
    assert_eq!(timeline.moment(Span::at(u64::MAX)).unwrap().earliest, 0x2000);
}

#[test]
fn mtcs_bound_to_a_period_and_a_crystal_tick() {
    let trace = Trace::new(&[
        tsc(0x1003),
        tma(0x15, 3),
        TNT,
        mtc(2),
        TNT,
        mtc(3),
        TIP,
        mtc(6),
        TNT,
        tsc(0x11ff),
        TIP,
    ]);
    // The crystal became 0x15 at 0x1000 according to the fast counter, or at 0xfff at the earliest if the fast counter
    // is wrong. It becomes 0x20 eleven ticks later.
    let (first, second, fourth) = (0x102c, 0x106c, 0x112c);
    let at = [trace.share([0, 2, 3], 0x1003, first), trace.share([3, 4, 5], first, second)];
    trace.check(
        trace.timeline(CLOCKS),
        &[
            (2, 2, 0x1003, Some(first), at[0], at[0]),
            (4, 4, first - 1, Some(second), at[1], at[1]),
            // Two MTCs are missing, so the clock may have stopped for an unknown time: half a period is the guess.
            (6, 6, second - 1, Some(fourth), second + 0x20, second + 0x20),
            (8, 8, fourth - 1, Some(0x11ff), fourth + 0x20, fourth + 0x20),
            (10, 10, 0x11ff, None, 0x11ff, 0x11ff),
        ],
    );
}

#[test]
fn mtc_payloads_start_again() {
    let mut packets = vec![tsc(0x1_0000), tma(0, 0)];
    for period in 1..=1000_u32 {
        packets.extend([mtc(period as u8), TNT]);
    }
    packets.push(tsc(0x1_0000 + 0x40 * 1000 + 5));
    let trace = Trace::new(&packets);
    let edge = |period: u64| 0x1_0000 + 0x40 * period;
    let rows = (1..1000_usize).map(|period| {
        let (at, from) = (2 * period + 1, edge(period as u64));
        // Two of three bytes are the MTC's.
        (at, at, from - 4, Some(from + 0x40), from + 0x40 * 2 / 3, from + 0x40 * 2 / 3)
    });
    trace.check(trace.timeline(CLOCKS), &rows.collect::<Vec<_>>());
}

#[test]
fn mtcs_that_a_tma_does_not_reach_are_aligned_with_the_bits_there_are() {
    // With MTCFreq 12, four of the TMA's 16 bits are in the MTC.
    let clocks = Clocks { mtc_freq: 12, ..CLOCKS };
    let trace = Trace::new(&[tsc(0x10_0000), tma(0xf800, 0), mtc(0x80), TNT, mtc(0x82), TNT]);
    let (first, second) = (0x10_0000 + 4 * 0x800, 0x10_0000 + 4 * 0x2800);
    trace.check(
        trace.timeline(clocks),
        &[
            (3, 3, first - 4, Some(second), first + 0x2000, first + 0x2000),
            (5, 5, second - 4, None, second, second),
        ],
    );
}

#[test]
fn a_fast_counter_that_says_nothing_is_found_out_by_the_next_tsc() {
    // The last edge was three ticks before the TSC packet, but the fast counter is zero.
    let trace = Trace::new(&[tsc(0x1003), tma(0x10, 0), mtc(2), TNT, mtc(3), tsc(0x1080), TIP]);
    // The middle between the edges is two thirds of the way in bytes.
    trace.check(trace.timeline(CLOCKS), &[(3, 3, 0x103f, Some(0x1080), 0x1041 + 0x2a, 0x1041 + 0x2a)]);
}

#[test]
fn cycles_divide_the_time_between_anchors() {
    let trace = Trace::new(&[
        tsc(0x1000),
        tma(0x10, 0),
        mtc(2),
        cyc(10),
        TNT,
        cyc(20),
        TIP,
        cyc(2),
        mtc(3),
        cyc(32),
        TIP,
    ]);
    // 32 cycles took 0x40 ticks, and this ratio is used after the last anchor.
    trace.check(
        trace.timeline(CLOCKS),
        &[
            (4, 4, 0x103c, Some(0x1080), 0x1040 + 20, 0x1040 + 20),
            (4, 6, 0x103c, Some(0x1080), 0x1040 + 20, 0x1040 + 60),
            (10, 10, 0x107c, None, 0x1080 + 64, 0x1080 + 64),
        ],
    );
}

#[test]
fn a_core_to_bus_ratio_makes_ticks_of_cycles() {
    let trace =
        Trace::new(&[tsc(0x1000), Packet::PsbEnd, cbr(2), cyc(5), TIP, cbr(8), cyc(8), TIP, tsc(0x2000)]);
    // Two ticks per cycle, then half a tick. The next TSC packet shows that the clock stopped.
    trace.check(
        trace.timeline(CLOCKS),
        &[
            // A CYC packet counts from the next packet on.
            (3, 4, 0x1000, Some(0x2000), 0x1000, 0x100a),
            (4, 4, 0x1000, Some(0x2000), 0x100a, 0x100a),
            (6, 7, 0x1000, Some(0x2000), 0x100a, 0x100e),
            (7, 7, 0x1000, Some(0x2000), 0x100e, 0x100e),
        ],
    );
    let trace = Trace::new(&[tsc(0x1000), cbr(2), TIP, cyc(5), TIP, Packet::Exstop(Exstop { ip: false })]);
    trace.check(trace.timeline(CLOCKS), &[(3, 4, 0x1000, None, 0x1000, 0x100a)]);
}

#[test]
fn a_known_speed_narrows_bounds_from_both_sides() {
    let trace = Trace::new(&[
        tsc(0x1000),
        cyc(100),
        TIP,
        cyc(100),
        TIP,
        TIP,
        cyc(100),
        TIP,
        cyc(100),
        tsc(0x2000),
        cyc(100),
        TIP,
    ]);
    let speed = CoreSpeed::between(1, 4, 4).unwrap();
    let (least, most) = (|cycles| speed.least_ticks(cycles), |cycles| speed.most_ticks(cycles));
    let mut timeline = trace.timeline(CLOCKS).with_speed(speed);
    for (after, before, earliest, latest) in [
        // The first CYC may have begun before the TSC packet, so its cycles are not certainly after it.
        (1, 2, 0x1000, Some(0x1000 + most(100))),
        (2, 4, 0x1000, Some(0x1000 + most(200))),
        // The CYC packet does not bound the second TIP after it: the next one does.
        (4, 5, 0x1000 + least(100), Some(0x1000 + most(300))),
        (5, 7, 0x1000 + least(100), Some(0x1000 + most(300))),
        // The last CYC packet comes with the TSC packet, and the core clock may have stopped before.
        (7, 7, 0x1000 + least(200), Some(0x2000)),
        // A packet right before an anchor has the time of the anchor.
        (10, 11, 0x2000, Some(0x2000 + most(100))),
        (11, 11, 0x2000 + least(100), None),
    ] {
        let moment = timeline.moment(trace.span(after, before)).unwrap();
        let span = (after, before);
        assert_eq!((span, moment.earliest, moment.latest), (span, earliest, latest), "{moment:x?}");
        // Everything before is read at once.
        let mut timeline = trace.timeline(CLOCKS).with_speed(speed);
        assert_eq!(timeline.moment(trace.span(after, before)), Some(moment), "{span:?}");
    }
    // The bound from the next TSC packet: the cycles that are certainly between the second CYC and the last one take
    // time.
    let late = Trace::new(&[tsc(0x1000), cyc(9), TIP, cyc(9), TIP, cyc(4000), TIP, cyc(9), TIP, tsc(0x2000)]);
    let mut timeline = late.timeline(CLOCKS).with_speed(speed);
    let moment = timeline.moment(late.span(2, 2)).unwrap();
    assert_eq!(moment.latest, Some(0x1000 + most(18)));
    let slow = CoreSpeed::between(1, 4, 255).unwrap();
    let mut timeline = late.timeline(CLOCKS).with_speed(slow);
    assert!(timeline.moment(late.span(2, 2)).unwrap().latest < Some(0x1000 + slow.most_ticks(18)));
    // Cycles counted before this place, and those of the next CYC packet, are not certainly after it.
    let (cycles, end) = (cyc(4000), tsc(0x10_0000));
    let late = Trace::new(&[tsc(0x1000), cycles, TIP, cycles, TIP, cycles, TIP, cyc(9), TIP, end]);
    let mut timeline = late.timeline(CLOCKS).with_speed(slow);
    let moment = timeline.moment(late.span(2, 2)).unwrap();
    assert_eq!(moment.latest, Some(0x10_0000 - slow.least_ticks(4009)));
    // The last CYC packet does not belong to the MTC, wherever the trace ends.
    let late = [tsc(0x1000), tma(0x10, 0), cyc(10), TIP, cycles, TIP, cycles, TIP, mtc(0xff)];
    for pads in [0, 9] {
        let late = Trace::new(&[&late[..], &[Packet::Pad; 9][..pads]].concat());
        let mut timeline = late.timeline(CLOCKS).with_speed(speed);
        let moment = timeline.moment(late.span(3, 3)).unwrap();
        assert_eq!(moment.latest, Some(0x4f80 - speed.least_ticks(4000)), "{pads}");
    }
}

#[test]
fn an_overflow_loses_cycles_and_keeps_mtcs_only_where_the_next_tsc_agrees() {
    let packets = [
        tsc(0x1000),
        tma(0x10, 0),
        cyc(8),
        TIP,
        Packet::Ovf,
        TIP,
        cyc(8),
        TIP,
        mtc(2),
        TIP,
        tsc(0x1050),
        TIP,
    ];
    let speed = CoreSpeed::between(1, 4, 4).unwrap();
    for (count, latest) in [(12, [Some(0x1040), Some(0x1040), Some(0x1050)]), (10, [None, None, None])] {
        let trace = Trace::new(&packets[..count]);
        let mut timeline = trace.timeline(CLOCKS).with_speed(speed);
        let found = [5, 7, 9].map(|at| timeline.moment(trace.span(at, at)).unwrap().latest);
        assert_eq!(found, latest, "{count}");
    }
}

#[test]
fn stretches_between_tscs_are_judged_by_the_second() {
    use Doubt::{Contradiction, MtcLost, TscStopped};
    let varies = Clocks { tsc_varies: true, ..CLOCKS };
    let psb = [Packet::Psb, tsc(0x1000), tma(0x10, 0), Packet::PsbEnd, TIP];
    let stretch = |packets: &[Packet]| Trace::new(&[&psb[..], packets].concat());
    let all = |doubt| [(4, doubt, true)];
    let open = [(4, None, false)];

    stretch(&[]).doubts(CLOCKS, &open);
    stretch(&[tsc(0x1100), tma(0x50, 0)]).doubts(CLOCKS, &all(None));
    stretch(&[tsc(0x1100), tma(0x51, 0)]).doubts(CLOCKS, &all(None));
    // A TMA belongs to a TSC with nothing but PADs between them.
    stretch(&[tsc(0x1100), TIP, tma(0x52, 0)]).doubts(CLOCKS, &all(None));
    stretch(&[tsc(0x1100), Packet::Pad, tma(0x52, 0)]).doubts(CLOCKS, &all(Some(Contradiction)));
    stretch(&[tsc(0x1100), tma(0x52, 0)]).doubts(CLOCKS, &all(Some(Contradiction)));
    stretch(&[tsc(0x1100), tma(0x4e, 0)]).doubts(CLOCKS, &all(Some(Contradiction)));
    stretch(&[tsc(0x1000 + (4 << 16)), tma(0x10, 0)]).doubts(CLOCKS, &all(None));
    stretch(&[tsc(0x1000 + (4 << 16)), tma(0x8010, 0)]).doubts(CLOCKS, &all(Some(Contradiction)));
    stretch(&[tsc(0xfff)]).doubts(CLOCKS, &all(Some(Contradiction)));
    stretch(&[tsc(0x1000)]).doubts(CLOCKS, &all(None));
    // The TSC packet is before the MTC, by more than a crystal tick.
    stretch(&[mtc(3), tsc(0x107b)]).doubts(CLOCKS, &all(Some(Contradiction)));
    stretch(&[mtc(3), tsc(0x107c)]).doubts(CLOCKS, &all(None));
    // Up to 255 MTCs may be missing after the last one. If 256 are missing and no clock was stopped, their place is
    // unknown.
    let silent = |between: Packet, ticks| stretch(&[mtc(3), between, tsc(0x107c + ticks)]);
    let round = 256 * 0x40;
    silent(Packet::Psb, round - 1).doubts(CLOCKS, &all(None));
    silent(Packet::Psb, round).doubts(CLOCKS, &all(Some(MtcLost)));
    silent(TIP, 9 * round).doubts(CLOCKS, &all(None));
    silent(Packet::Ovf, round).doubts(CLOCKS, &all(Some(MtcLost)));
    let off = [mtc(3), Packet::TipPgd(Ip::Suppressed), Packet::Psb, tsc(0x107c + 9 * round)];
    stretch(&off).doubts(CLOCKS, &all(None));
    let on = [mtc(3), off[1], Packet::TipPge(Ip::Suppressed), Packet::Psb, off[3]];
    stretch(&on).doubts(CLOCKS, &all(Some(MtcLost)));

    // If the TSC is not invariant, a TSC packet outside a PSB+ may mean that it stood still, unless the TMAs disprove
    // it.
    stretch(&[tsc(0x1100)]).doubts(varies, &all(Some(TscStopped)));
    stretch(&[tsc(0x1100), tma(0x50, 0)]).doubts(varies, &all(None));
    stretch(&[tsc(0x1100), tma(0x70, 0)]).doubts(varies, &all(Some(TscStopped)));
    stretch(&[Packet::Psb, tsc(0x1100)]).doubts(varies, &all(None));
    stretch(&[Packet::Exstop(Exstop { ip: false }), Packet::Psb, tsc(0x1100)])
        .doubts(varies, &all(Some(TscStopped)));
    stretch(&[Packet::Exstop(Exstop { ip: false })]).doubts(varies, &[(4, Some(TscStopped), false)]);
    stretch(&[tsc(0xfff)]).doubts(varies, &all(Some(Contradiction)));
}

#[test]
fn lost_rounds_of_mtcs_widen_the_bounds() {
    let end = 0x1040 + 300 * 0x40;
    let trace = Trace::new(&[tsc(0x1000), tma(0x10, 0), TIP, mtc(2), TIP, tsc(end), TIP]);
    let slack = end - 0x103c;
    let at = trace.share([0, 2, 3], 0x1000, 0x1040);
    trace.check(
        trace.timeline(CLOCKS),
        &[
            (2, 2, 0x1000, Some(0x1040 + slack).min(Some(end)), at, at),
            (4, 4, 0x103c, Some(end), 0x1060, 0x1060),
        ],
    );
}

#[test]
fn where_the_tsc_is_not_the_crystals_only_tsc_packets_count() {
    let varies = Clocks { tsc_varies: true, ..CLOCKS };
    let trace =
        Trace::new(&[tsc(0x1000), tma(0x10, 0), mtc(2), TIP, mtc(5), TIP, tsc(0x1020), tma(0x70, 0), TIP]);
    let at = trace.share([0, 3, 6], 0x1000, 0x1020);
    trace.check(trace.timeline(varies), &[(3, 3, 0x1000, Some(0x1020), at, at)]);
    // Software wrote the TSC, at an unknown time.
    let trace = Trace::new(&[tsc(0x1000), tma(0x10, 0), mtc(2), TIP, tsc(0x100), tma(0x30, 0), TIP]);
    trace.check(
        trace.timeline(CLOCKS),
        &[
            (3, 3, 0x100, Some(0x1000), 0x1000, 0x1000),
            (3, 6, 0x100, None, 0x100, 0x100),
            (6, 6, 0x100, None, 0x100, 0x100),
        ],
    );
}

#[test]
fn without_a_tma_the_next_tsc_aligns_mtcs() {
    let trace = Trace::new(&[tsc(0x1000), TIP, mtc(7), TIP, mtc(9), TIP, tsc(0x1100), TIP]);
    let at = [trace.share([0, 1, 4], 0x1000, 0x1080), trace.share([0, 3, 4], 0x1000, 0x1080)];
    trace.check(
        trace.timeline(CLOCKS),
        &[
            (1, 1, 0x1000, Some(0x1100), at[0], at[0]),
            (3, 3, 0x1000, Some(0x1100), at[1], at[1]),
            (5, 5, 0x1080, Some(0x1100), 0x10a0, 0x10a0),
        ],
    );
    // IA32_TSC_ADJUST aligns the clocks as well: at TSC 0x1000, the crystal has just become 0x3c0.
    let adjusted = Clocks { tsc_adjust: 0x100, ..CLOCKS };
    let trace = Trace::new(&[tsc(0x1000), TIP, mtc(0x3d), TIP, mtc(0x3e), TIP, tsc(0x1100), TIP]);
    let at = [trace.share([0, 1, 2], 0x1000, 0x1040), trace.share([2, 3, 4], 0x1040, 0x1080)];
    trace.check(
        trace.timeline(adjusted).with_known_adjust(),
        &[
            (1, 1, 0x1000, Some(0x1040), at[0], at[0]),
            (3, 3, 0x103c, Some(0x1080), at[1], at[1]),
            (5, 5, 0x107c, Some(0x1100), 0x10a0, 0x10a0),
        ],
    );
}

#[test]
fn an_mtc_frequency_may_change_where_tracing_was_off() {
    let trace = Trace::new(&[
        tsc(0x1000),
        tma(0x10, 0),
        mtc(2),
        TIP,
        tsc(0x2000),
        tma(0x400, 0),
        TIP,
        mtc(0x41),
        TIP,
    ]);
    let changes = [ClockChange { offset: trace.offsets[4], clocks: CLOCKS }];
    let before = Clocks { mtc_freq: 3, ..CLOCKS };
    let timeline = || trace.timeline(before).with_changes(&changes);
    let at = [trace.share([0, 3, 4], 0x1000, 0x2000), trace.share([4, 6, 7], 0x2000, 0x2040)];
    let rows = [
        (3, 3, 0x1000, Some(0x2000), at[0], at[0]),
        (6, 6, 0x2000, Some(0x2040), at[1], at[1]),
        (8, 8, 0x203c, None, 0x2040, 0x2040),
    ];
    trace.check(timeline(), &rows);
    // The results are the same in reverse order.
    trace.check(timeline(), &[rows[2], rows[0], rows[1]]);
    // The change applies from exactly this packet.
    let trace = Trace::new(&[tsc(0x1000), tma(0x10, 0), mtc(2), TIP]);
    let changes = [ClockChange { offset: trace.offsets[2], clocks: CLOCKS }];
    let timeline = trace.timeline(before).with_changes(&changes);
    trace.check(timeline, &[(3, 3, 0x103c, None, 0x1040, 0x1040)]);
    // The last of several changes between two packets with a time applies.
    let packets = [tsc(0x1000), tma(0x10, 0), TIP, TIP, mtc(2), TIP];
    let trace = Trace::new(&[&packets[..], &[Packet::Pad; 9]].concat());
    let change = |packet: usize, clocks| ClockChange { offset: trace.offsets[packet], clocks };
    let changes = [change(2, Clocks { mtc_freq: 5, ..CLOCKS }), change(3, CLOCKS)];
    let timeline = trace.timeline(before).with_changes(&changes);
    trace.check(timeline, &[(5, 5, 0x103c, None, 0x1040, 0x1040)]);
}

#[test]
fn without_leaf_15h_mtcs_count_for_nothing() {
    let trace = Trace::new(&[tsc(0x1000), tma(0x10, 0), mtc(2), TIP, tsc(0x2000), tma(0x400, 0), TIP]);
    let at = trace.share([0, 3, 4], 0x1000, 0x2000);
    for clocks in [Clocks::UNKNOWN, Clocks { cpuid_15h_ebx: 0, ..CLOCKS }, Clocks { mtc_freq: 16, ..CLOCKS }]
    {
        trace.check(trace.timeline(clocks), &[(3, 3, 0x1000, Some(0x2000), at, at)]);
    }
}

#[test]
fn mtcs_of_a_frequency_that_there_is_not_count_for_nothing() {
    let trace = Trace::new(&[tsc(0x1000), mtc(1), TIP, mtc(2), TIP, tsc(0x10_1000), TIP]);
    let clocks = Clocks { mtc_freq: 16, ..CLOCKS };
    let at = trace.share([0, 4, 5], 0x1000, 0x10_1000);
    trace.check(trace.timeline(clocks), &[(4, 4, 0x1000, Some(0x10_1000), at, at)]);
}

#[test]
fn a_core_to_bus_ratio_in_a_psb_repeats_what_is_known() {
    let psb = [Packet::Psb, cbr(8), Packet::PsbEnd];
    let trace =
        Trace::new(&[&[tsc(0x1000), Packet::PsbEnd, cbr(2), cyc(5), TIP], &psb[..], &[cyc(8), TIP]].concat());
    trace.check(trace.timeline(CLOCKS), &[(9, 9, 0x1000, None, 0x101a, 0x101a)]);
}

#[test]
fn backwards_it_finds_the_tsc_before_a_psb() {
    let trace = Trace::new(&[
        tsc(0x1000),
        Packet::PsbEnd,
        TIP,
        Packet::Psb,
        cbr(8),
        tsc(0x2000),
        Packet::PsbEnd,
        TIP,
    ]);
    let at = trace.share([0, 4, 5], 0x1000, 0x2000);
    trace.check(
        trace.timeline(CLOCKS),
        &[(7, 7, 0x2000, None, 0x2000, 0x2000), (4, 4, 0x1000, Some(0x2000), at, at)],
    );
}

#[test]
fn the_upper_bits_of_the_tsc_come_from_a_value_that_is_near() {
    let wrap = 1 << 56;
    // Before the PSB are as many bytes as its own.
    let trace = Trace::new(&[tsc(wrap - 0x10), TIP, TIP, TNT, TNT, Packet::Psb, tsc(0x10), TIP]);
    for (near, high) in [(None, 0), (Some(0x1200_0000_0000_0000), 0x11 << 56), (Some(u64::MAX), 0xff << 56)] {
        let mut timeline = trace.timeline(CLOCKS);
        if let Some(near) = near {
            timeline = timeline.with_tsc_near(near);
        }
        let moment = timeline.moment(trace.span(5, 5)).unwrap();
        assert_eq!(
            (moment.earliest, moment.latest),
            (high + (wrap - 0x10), Some(high.wrapping_add(wrap + 0x10)))
        );
        assert_eq!((moment.tsc(), moment.error()), (high.wrapping_add(wrap), Some(0x10)), "{near:x?}");
        assert!(moment.contains(moment.tsc()) && moment.contains(moment.earliest));
        assert!(!moment.contains(moment.earliest - 1) && !moment.contains(moment.tsc().wrapping_add(0x11)));
    }
}

#[test]
fn instructions_of_a_span_share_its_time() {
    let moment = Moment { earliest: 90, latest: Some(220), from: 100, to: 200, doubt: None, confirmed: true };
    assert_eq!((moment.tsc(), moment.error()), (150, Some(70)));
    for (index, count, tsc) in
        [(0, 4, 125), (3, 4, 200), (9, 4, 200), (0, 1, 200), (0, 0, 150), (0, u64::MAX, 100)]
    {
        assert_eq!(moment.interpolated(index, count), tsc, "{index} of {count}");
    }
    let whole = Moment { from: 0, to: u64::MAX, ..moment };
    assert_eq!(whole.interpolated(u64::MAX - 1, u64::MAX), u64::MAX);
    let open = Moment { latest: None, ..moment };
    assert_eq!((open.error(), open.contains(u64::MAX >> 2), open.contains(89)), (None, true, false));
}

#[test]
fn damaged_bytes_are_passed_over() {
    let mut trace = Trace::new(&[
        tsc(0x1000),
        tma(0x10, 0),
        TIP,
        mtc(2),
        TIP,
        Packet::Psb,
        tsc(0x1100),
        tma(0x50, 0),
        TIP,
    ]);
    let mtc = trace.offsets[3] as usize;
    trace.bytes[mtc] = 0x05;
    let at = trace.share([0, 2, 6], 0x1000, 0x1100);
    trace.check(
        trace.timeline(CLOCKS),
        &[(2, 2, 0x1000, Some(0x1100), at, at), (8, 8, 0x1100, None, 0x1100, 0x1100)],
    );
    for bytes in [&[][..], &[0x19], &trace.bytes[1..15]] {
        let mut timeline = Timeline::new(bytes, Config::default());
        assert_eq!(timeline.moment(Span { after: 0, before: u64::MAX }), None);
    }
}
