//! Time in traces from a processor whose clocks run freely: every bound holds, and none is wider than necessary.

use crate::{
    TimeScale,
    processor::{RATIOS, Rates, Run, Setting, run},
    seeds,
};
use pugmark_decoder_core::{
    config::{Clocks, Config},
    packet::PSB,
    time::{CoreSpeed, Doubt, Moment, Span, Timeline},
};

const CLOCKS: Clocks =
    Clocks { mtc_freq: 3, nom_freq: 30, cpuid_15h_eax: 2, cpuid_15h_ebx: 250, ..Clocks::UNKNOWN };

const SETTING: Setting = Setting {
    clocks: CLOCKS,
    mtc: true,
    tma: true,
    cyc: Some(0),
    no_fast_counter: false,
    rates: Rates { psb: 5, speed: 0, sleep: 0, off: 0, overflow: 0, drop: 0, dropped: 0, write: 0 },
    ticks: 40,
    long: false,
    wraps: false,
};

fn speed(setting: &Setting) -> CoreSpeed {
    CoreSpeed::between(RATIOS.0, RATIOS.1, setting.clocks.nom_freq).expect("a range")
}

fn timeline<'a>(run: &'a Run, setting: &Setting) -> Timeline<'a> {
    let config = Config { clocks: setting.clocks, ..Config::default() };
    // The first TSC value supplies the upper bits, which packets lack.
    Timeline::new(&run.trace, config).with_tsc_near(run.instructions.first().map_or(0, |first| first.tsc))
}

/// Checks each instruction's moment against the truth, for the instructions that `counts` accepts.
fn check(
    run: &Run,
    mut timeline: Timeline,
    what: &str,
    counts: impl Fn(&Moment) -> bool,
) -> (Vec<Moment>, TimeScale) {
    let (mut moments, mut scale) = (vec![], TimeScale::default());
    let mut last: Option<Moment> = None;
    for (at, instruction) in run.instructions.iter().enumerate() {
        let moment = timeline.moment(instruction.span).expect("the trace begins with a TSC packet");
        moments.push(moment);
        if !counts(&moment) {
            last = None;
            continue;
        }
        let what = || format!("{what}: instruction {at}, {instruction:x?}: {moment:x?}, after {last:x?}");
        assert!(moment.contains(instruction.tsc), "{}", what());
        assert!(moment.contains(moment.from) && moment.contains(moment.to), "{}", what());
        if let Some(last) = last {
            let goes_on = |from: u64, to: u64| to.wrapping_sub(from) < 1 << 63;
            assert!(goes_on(last.tsc(), moment.tsc()), "{}", what());
            assert!(goes_on(last.earliest, moment.earliest), "{}", what());
        }
        last = Some(moment);
        scale.count(&moment, instruction.tsc);
    }
    (moments, scale)
}

#[test]
fn bounds_hold_with_every_combination_of_packets() {
    let ratios = [(2, 250), (2, 208), (1, 80), (3, 100), (7, 1000), (2, 1300), (1, 1), (0, 0)];
    let mut instructions = 0;
    for seed in 0..seeds(400) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0000_7469_6d65);
        let (cpuid_15h_eax, cpuid_15h_ebx) = ratios[rng.usize(..ratios.len())];
        let mut sometimes = |rate: u32| if rng.bool() { rate } else { 0 };
        let rates = Rates {
            psb: 2 + sometimes(20),
            speed: sometimes(5),
            sleep: sometimes(3),
            off: sometimes(3),
            overflow: sometimes(3),
            drop: sometimes(10),
            dropped: 20,
            write: 0,
        };
        let mtc_freq = rng.u8(..13);
        // The first MTC after a TMA reveals fewer missing MTCs if it has bits that a TMA lacks.
        let dropped = if mtc_freq > 8 { (1 << (16 - mtc_freq)) - 1 } else { 20 };
        let setting = Setting {
            clocks: Clocks {
                mtc_freq,
                cpuid_15h_eax,
                cpuid_15h_ebx,
                nom_freq: 10 + rng.u8(..30),
                tsc_adjust: [0, 1 << 30, -1, i64::MIN + 5, rng.i64(..)][rng.usize(..5)],
                tsc_varies: rng.u8(..4) == 0,
                ..Clocks::UNKNOWN
            },
            mtc: cpuid_15h_eax != 0 && rng.u8(..4) > 0,
            tma: cpuid_15h_eax != 0 && rng.u8(..8) > 0,
            cyc: [None, Some(0), Some(0), Some(1 << rng.u32(..12))][rng.usize(..4)],
            no_fast_counter: rng.u8(..4) == 0,
            rates: Rates { dropped, ..rates },
            ticks: [3, 40, 1000][rng.usize(..3)],
            long: rng.bool(),
            wraps: rng.bool(),
        };
        let run = run(setting, seed, 3000);
        instructions += run.instructions.len();
        let what = format!("seed {seed}, {setting:?}");
        let (plain, _) = check(&run, timeline(&run, &setting), &what, |_| true);
        let with_speed = timeline(&run, &setting).with_speed(speed(&setting));
        let (narrow, _) = check(&run, with_speed, &what, |_| true);
        for (plain, narrow) in plain.iter().zip(&narrow) {
            // Here nothing writes the TSC. If it did not stand still either, there must be no doubt.
            let stood_still = setting.clocks.tsc_varies && run.slept > 0 || run.overflows > 0;
            let doubt = if stood_still { plain.doubt } else { None };
            assert_eq!((plain.doubt, narrow.doubt), (doubt, doubt), "{what}");
            assert_ne!(doubt, Some(Doubt::Contradiction), "{what}");
            assert!(narrow.earliest.wrapping_sub(plain.earliest) < 1 << 63, "{what}: {plain:x?} {narrow:x?}");
            let wider = plain.latest.is_some_and(|latest| {
                narrow.latest.is_none_or(|narrow| latest.wrapping_sub(narrow) >= 1 << 63)
            });
            assert!(!wider, "{what}: {plain:x?} {narrow:x?}");
        }
    }
    assert!(instructions > 500_000, "{instructions}");
}

#[test]
fn no_bound_is_wider_than_the_packets_make_it() {
    // Presence of MTCs, MTCFreq, CycThresh, knowledge of the core clock's speed; the largest and the mean error, and
    // the guess's mean error. A crystal tick is 125 ticks; an MTC comes every 1000 or 8000. Instructions take 20 ticks
    // on average, and there are about two and a half between packets.
    let rows = [
        (true, 3, None, false, 2252, 750, 100),
        (true, 6, None, false, 16_252, 5000, 300),
        (true, 3, Some(0), false, 2252, 850, 50),
        (true, 6, Some(0), false, 16_252, 5500, 50),
        (true, 6, Some(64), false, 16_252, 5500, 70),
        (true, 3, Some(0), true, 2252, 450, 50),
        (false, 0, Some(0), false, 30_000, 10_000, 60),
    ];
    for row in rows {
        let (mtc, mtc_freq, cyc, knows_speed, most, mean, off) = row;
        let setting = Setting { mtc, tma: mtc, clocks: Clocks { mtc_freq, ..CLOCKS }, cyc, ..SETTING };
        let mut sum = TimeScale::default();
        for seed in 0..20 {
            let run = run(setting, seed, 3000);
            let timeline = timeline(&run, &setting);
            let timeline = if knows_speed { timeline.with_speed(speed(&setting)) } else { timeline };
            let (_, scale) = check(&run, timeline, &format!("{row:?} {seed}"), |moment| moment.confirmed);
            sum.add(&scale);
        }
        assert_eq!(sum.bounded, sum.instructions, "{row:?}");
        assert!(sum.most <= most, "{row:?}: {sum:?}");
        assert!(sum.error <= mean * sum.bounded && sum.off <= off * sum.bounded, "{row:?}: {sum:?}");
    }
}

#[test]
fn the_core_clocks_speed_makes_bounds_of_cycles() {
    // The speed of the core clock is known to one percent, and there are no MTCs: the bounds grow by two percent of the
    // time since the TSC packet.
    let setting = Setting { mtc: false, tma: false, rates: Rates { psb: 2, ..SETTING.rates }, ..SETTING };
    let ratio = setting.clocks.nom_freq;
    let (mut narrow, mut wide) = (TimeScale::default(), TimeScale::default());
    for seed in 0..20 {
        let run = run(setting, seed, 3000);
        let exact = CoreSpeed::between(ratio, ratio, ratio).expect("a range");
        let with_speed = timeline(&run, &setting).with_speed(exact);
        narrow.add(&check(&run, with_speed, "with a speed", |moment| moment.confirmed).1);
        wide.add(&check(&run, timeline(&run, &setting), "without", |moment| moment.confirmed).1);
    }
    assert!(narrow.error * 20 < wide.error, "{narrow:?} {wide:?}");
}

#[test]
fn lost_rounds_of_mtcs_are_seen_and_bounds_hold() {
    let rates = Rates { drop: 2, dropped: 2000, ..SETTING.rates };
    let mut lost = 0;
    for seed in 0..seeds(50) {
        let setting = Setting { rates, ticks: 1000, clocks: Clocks { mtc_freq: 1, ..CLOCKS }, ..SETTING };
        let run = run(setting, seed, 3000);
        // At the end of a trace, no packet shows that the TSC stood still.
        let (moments, _) =
            check(&run, timeline(&run, &setting), &format!("{seed}"), |moment| moment.confirmed);
        lost += moments.iter().filter(|moment| moment.doubt == Some(Doubt::MtcLost)).count();
        let others = [None, Some(Doubt::MtcLost)];
        assert!(moments.iter().all(|moment| others.contains(&moment.doubt)), "{seed}");
    }
    assert!(lost > 1000, "{lost}");
}

#[test]
fn a_tsc_that_stood_still_is_seen() {
    let rates = Rates { sleep: 5, ..SETTING.rates };
    let (mut stopped, mut contradictions) = (0, 0);
    for seed in 0..seeds(50) {
        let setting = Setting { rates, clocks: Clocks { tsc_varies: true, ..CLOCKS }, ..SETTING };
        let run = run(setting, seed, 2000);
        let what = format!("{seed}");
        let (moments, _) = check(&run, timeline(&run, &setting), &what, |_| true);
        stopped += moments.iter().filter(|moment| moment.doubt == Some(Doubt::TscStopped)).count();
        // A reader that treats the TSC as invariant finds a contradiction instead.
        let wrong = Setting { clocks: Clocks { tsc_varies: false, ..setting.clocks }, ..setting };
        let mut timeline = timeline(&run, &wrong);
        for (instruction, moment) in run.instructions.iter().zip(&moments) {
            let found = timeline.moment(instruction.span).map(|moment| moment.doubt);
            let expected = moment.doubt.map(|_| Doubt::Contradiction);
            assert_eq!(found, Some(expected), "{seed}: {instruction:x?}");
            contradictions += usize::from(expected.is_some());
        }
    }
    assert!(stopped > 1000 && stopped == contradictions, "{stopped} {contradictions}");
}

#[test]
fn a_tsc_that_software_wrote_is_seen_at_the_next_one() {
    let rates = Rates { write: 1, ..SETTING.rates };
    let (mut seen, mut written) = (0, 0);
    for seed in 0..seeds(50) {
        let setting = Setting { rates, ..SETTING };
        let run = run(setting, seed, 3000);
        let steady = |moment: &Moment| moment.doubt.is_none() && moment.confirmed;
        let (moments, _) = check(&run, timeline(&run, &setting), &format!("{seed}"), steady);
        let doubted =
            moments.windows(2).filter(|pair| pair[0].doubt.is_none() && pair[1].doubt.is_some()).count();
        assert!(doubted <= run.written, "{seed}");
        seen += doubted;
        written += run.written;
    }
    assert!(seen * 2 > written && written > 20, "{seen} of {written}");
}

#[test]
fn spans_may_be_asked_for_in_any_order() {
    let rates = Rates { sleep: 2, off: 2, overflow: 2, ..SETTING.rates };
    for seed in 0..seeds(20) {
        let setting = Setting { rates, ..SETTING };
        let run = run(setting, seed, 1500);
        let timeline = || {
            let timeline = timeline(&run, &setting);
            if seed % 2 == 0 { timeline } else { timeline.with_speed(speed(&setting)) }
        };
        let (moments, _) = check(&run, timeline(), &format!("{seed}"), |_| true);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut timeline = timeline();
        for _ in 0..300 {
            let at = rng.usize(..moments.len());
            let span = run.instructions[at].span;
            assert_eq!(timeline.moment(span), Some(moments[at]), "{seed}: {span:x?}");
        }
    }
}

#[test]
fn damaged_traces_have_a_time_too() {
    for seed in 0..seeds(200) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let rates =
            Rates { psb: 20, speed: 5, sleep: 5, off: 5, overflow: 5, drop: 5, dropped: 300, write: 1 };
        let setting = Setting { rates, ..SETTING };
        let mut run = run(setting, seed, 300);
        for _ in 0..1 + rng.usize(..20) {
            let at = rng.usize(..run.trace.len());
            match rng.u8(..4) {
                0 => run.trace[at] ^= 1 << rng.u8(..8),
                1 => run.trace[at] = rng.u8(..),
                2 => run.trace.truncate(at.max(1)),
                _ => drop(run.trace.splice(at..at, PSB)),
            }
        }
        let clocks = Clocks {
            mtc_freq: rng.u8(..20),
            nom_freq: rng.u8(..),
            cpuid_15h_eax: rng.u32(..) >> rng.u32(..32),
            cpuid_15h_ebx: rng.u32(..) >> rng.u32(..32),
            tsc_adjust: rng.i64(..),
            tsc_varies: rng.bool(),
            ..Clocks::UNKNOWN
        };
        let mut timeline =
            Timeline::new(&run.trace, Config { clocks, ..Config::default() }).with_tsc_near(rng.u64(..));
        if rng.bool() {
            timeline = timeline.with_known_adjust().with_speed(speed(&setting));
        }
        let mut spans: Vec<_> = (0..200).map(|_| (rng.usize(..=run.trace.len()), rng.usize(..100))).collect();
        spans.sort_unstable();
        for (after, len) in spans {
            let span = Span { after: after as u64, before: (after + len) as u64 };
            if let Some(moment) = timeline.moment(span) {
                assert!(
                    moment.contains(moment.tsc()) || moment.doubt.is_some(),
                    "{seed} {span:x?} {moment:x?}"
                );
            }
        }
    }
}
