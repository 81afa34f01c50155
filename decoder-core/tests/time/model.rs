//! Time in traces from the model: for each instruction of the decoded programs, the TSC is compared with the model's.

use crate::{TimeScale, seeds};
use pugmark_decoder_core::{
    block::{self, BlockDecoder},
    config::{Clocks, Config},
    flow::{FlowItem, InsnDecoder},
    image::{AddressSpace, Image, Section},
    packet::{Packet, Packets, Tsc},
    time::{CoreSpeed, Moment, Timeline},
};
use pugmark_generator::{
    Program,
    trace::{self, Topic, TraceRun, ctl},
};
use pugmark_model::intel::{IntelProcessor, IntelProfile, IntelSettings};
use pugmark_model::{Context, Delivery, DeliveryKind, ExecMode, FlatMemory, Processor as _, Retired};

/// The way in which a run is traced and read.
struct Case {
    program: Program,
    traced: trace::TraceConfig,
    clocks: Clocks,
    run: TraceRun,
}

impl Case {
    fn draw(topic: Topic, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0074_7363);
        let (program, mut traced) = trace::TraceConfig::random(topic, seed);
        // Without TSC packets there is no time.
        traced.ctl |= ctl::TSC_EN;
        traced.rates.ticks = [1, 12, 300, 5_000][rng.usize(..4)];
        let ratios = [None, Some(8), Some(35), Some(60)];
        traced.settings.core_ratio = ratios[rng.usize(..4)];
        let mut run = trace::run(&program, &traced, seed);
        // The TSC wraps around somewhere in the run, or has any value, because software wrote it.
        let (first, last) = (*run.times.first().unwrap_or(&0), *run.times.last().unwrap_or(&0));
        let adjust = match rng.u8(..4) {
            0 => 0,
            1 => rng.u64(..),
            2 => (1_u64 << 56).wrapping_sub(rng.u64(first..=last)),
            _ => rng.u64(first..=last).wrapping_neg(),
        };
        adjust_tsc(&mut run, adjust);
        let (numerator, denominator) = traced.profile.tsc_ratio;
        let clocks = Clocks {
            mtc_freq: (traced.ctl >> ctl::MTC_FREQ & 0xf) as u8,
            nom_freq: traced.profile.non_turbo_ratio,
            cpuid_15h_eax: denominator,
            cpuid_15h_ebx: numerator,
            tsc_adjust: adjust as i64,
            ..Clocks::UNKNOWN
        };
        Self { program, traced, clocks, run }
    }

    fn timeline(&self, rng: &mut fastrand::Rng) -> Timeline<'_> {
        let config = Config { clocks: self.clocks, ..Config::default() };
        let timeline =
            Timeline::new(&self.run.trace, config).with_tsc_near(*self.run.times.first().unwrap_or(&0));
        let timeline = if rng.bool() { timeline.with_known_adjust() } else { timeline };
        let ratio = self.traced.settings.core_ratio.unwrap_or(self.clocks.nom_freq);
        let speed = match rng.u8(..3) {
            0 => return timeline,
            1 => CoreSpeed::between(1.max(ratio / 4), ratio.saturating_mul(2), self.clocks.nom_freq),
            _ => CoreSpeed::between(ratio, ratio, self.clocks.nom_freq),
        };
        timeline.with_speed(speed.expect("a range"))
    }
}

/// Adds `adjust` to the TSC, as software does: the TSC packets show it, the other clocks do not.
fn adjust_tsc(run: &mut TraceRun, adjust: u64) {
    let mut packets = Packets::new(&run.trace);
    packets.sync_forward();
    let tscs = packets.map(|packet| packet.expect("a packet")).filter_map(|(offset, packet)| match packet {
        Packet::Tsc(tsc) => Some((offset as usize, tsc)),
        _ => None,
    });
    for (offset, Tsc { tsc }) in tscs.collect::<Vec<_>>() {
        let size = Packet::Tsc(Tsc { tsc: tsc.wrapping_add(adjust) }).emit(&mut run.trace[offset..]);
        assert_eq!(size, Ok(8));
    }
    run.times.iter_mut().for_each(|time| *time = time.wrapping_add(adjust));
}

fn sections(program: &Program) -> Vec<Section<'_>> {
    let any = AddressSpace::Any;
    let sections = program.sections().iter();
    sections.map(|section| Section { base: section.base, bytes: &section.bytes, space: any }).collect()
}

#[test]
fn the_bounds_at_each_instruction_hold() {
    let topics =
        [Topic::Everything, Topic::Level, Topic::Cr3, Topic::Range, Topic::Stop, Topic::Pmi, Topic::Events];
    let mut scale = TimeScale::default();
    for seed in 0..seeds(40) {
        for topic in topics {
            let case = Case::draw(topic, seed);
            let what = format!("{topic:?} {seed}, {:?} {:?}", case.traced, case.clocks);
            let sections = sections(&case.program);
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut timeline = case.timeline(&mut rng);
            let mut decoder = InsnDecoder::new(&case.run.trace, Image::new(&sections));
            decoder.sync_forward();
            let mut truth = case.run.times.iter();
            let mut last: Option<Moment> = None;
            while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{what}: {error}")) {
                let FlowItem::Insn(insn) = item else { continue };
                let tsc = *truth.next().expect("as many instructions as in truth");
                let moment = timeline.moment(decoder.span()).unwrap_or_else(|| panic!("{what}: no time"));
                let what = || format!("{what}\n{tsc:#x}, {insn:x?}, {:x?}: {moment:x?}", decoder.span());
                assert!(moment.contains(tsc), "{}", what());
                assert_eq!(moment.doubt, None, "{}", what());
                if let Some(last) = last {
                    let passed = moment.tsc().wrapping_sub(last.tsc());
                    assert!(passed < 1 << 63, "{}, after {last:x?}", what());
                }
                last = Some(moment);
                scale.count(&moment, tsc);
            }
            assert_eq!(truth.next(), None, "{what}");
        }
    }
    println!("{scale:?}");
    assert!(scale.instructions > 100_000 && scale.bounded > scale.instructions / 2, "{scale:?}");
}

#[test]
fn the_bounds_at_each_block_hold_for_all_its_instructions() {
    let mut scale = TimeScale::default();
    for seed in 0..seeds(40) {
        for topic in [Topic::Everything, Topic::Level, Topic::Range, Topic::Events] {
            let case = Case::draw(topic, seed);
            let what = format!("{topic:?} {seed}, {:?} {:?}", case.traced, case.clocks);
            let sections = sections(&case.program);
            let mut timeline = case.timeline(&mut fastrand::Rng::with_seed(seed));
            let mut decoder = BlockDecoder::new(&case.run.trace, Image::new(&sections));
            decoder.sync_forward();
            let mut truth = case.run.times.iter();
            let mut last = None;
            while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{what}: {error}")) {
                let block::BlockItem::Block(block) = item else { continue };
                let moment = timeline.moment(decoder.span()).unwrap_or_else(|| panic!("{what}: no time"));
                for index in 0..block.insns.into() {
                    let tsc = *truth.next().expect("as many instructions as in truth");
                    let guess = moment.interpolated(index, block.insns.into());
                    let what = || format!("{what}\n{tsc:#x} {block:x?} {:x?}: {moment:x?}", decoder.span());
                    assert!(moment.contains(tsc) && moment.contains(guess), "{}", what());
                    assert!(
                        last.is_none_or(|last| guess.wrapping_sub(last) < 1 << 63),
                        "{} {last:x?}",
                        what()
                    );
                    last = Some(guess);
                    scale.count(&moment, tsc);
                }
            }
            assert_eq!(truth.next(), None, "{what}");
        }
    }
    println!("{scale:?}");
    assert!(scale.instructions > 100_000, "{scale:?}");
}

/// Sets of timing packets besides TSC packets, knowledge of the core clock's speed, and the largest allowed mean error;
/// `None` if only TSC packets bound the error.
const SETS: [(&str, u64, bool, Option<u64>); 6] = [
    ("TSC", 0, false, None),
    ("MTC", ctl::MTC_EN, false, Some(650)),
    ("CYC", ctl::CYC_EN, false, None),
    ("CYC, known", ctl::CYC_EN, true, Some(200)),
    ("MTC, CYC", ctl::MTC_EN | ctl::CYC_EN, false, Some(800)),
    ("MTC, CYC, known", ctl::MTC_EN | ctl::CYC_EN, true, Some(200)),
];

/// MTCFreq: an MTC every 8 ticks of the crystal.
const MTC_FREQ: u64 = 3;

impl Case {
    /// Creates a case that traces everything on this profile, with these packets besides TSC packets.
    fn with(profile: &str, packets: u64, seed: u64) -> Self {
        let (program, mut traced) = trace::TraceConfig::random(Topic::Everything, seed);
        traced.profile = IntelProfile::by_name(profile).expect("a profile");
        traced.ctl = ctl::TSC_EN | ctl::BRANCH_EN | packets;
        traced.ctl |= if packets & ctl::MTC_EN != 0 { MTC_FREQ << ctl::MTC_FREQ } else { 0 };
        let run = trace::run(&program, &traced, seed);
        let clocks = clocks_of(traced.profile);
        Self { program, traced, clocks, run }
    }
}

/// Returns the clocks of a profile.
fn clocks_of(profile: &IntelProfile) -> Clocks {
    let (numerator, denominator) = profile.tsc_ratio;
    Clocks {
        mtc_freq: MTC_FREQ as u8,
        nom_freq: profile.non_turbo_ratio,
        cpuid_15h_eax: denominator,
        cpuid_15h_ebx: numerator,
        ..Clocks::UNKNOWN
    }
}

/// Compares the bounds at each instruction with `times`. `known`: the core clock runs at the TSC's frequency.
fn hold(
    what: &str,
    run: (&[u8], &[u64]),
    sections: &[Section<'_>],
    clocks: Clocks,
    known: bool,
) -> TimeScale {
    let (trace, times) = run;
    let mut timeline = Timeline::new(trace, Config { clocks, ..Config::default() });
    if known {
        let ratio = clocks.nom_freq;
        timeline = timeline.with_speed(CoreSpeed::between(ratio, ratio, ratio).expect("a range"));
    }
    let mut decoder = InsnDecoder::new(trace, Image::new(sections));
    decoder.sync_forward();
    let (mut scale, mut truth) = (TimeScale::default(), times.iter());
    while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{what}: {error}")) {
        let FlowItem::Insn(insn) = item else { continue };
        let tsc = *truth.next().expect("as many instructions as in truth");
        let moment = timeline.moment(decoder.span()).unwrap_or_else(|| panic!("{what}: no time"));
        assert!(moment.contains(tsc), "{what}: {tsc:#x}, {insn:x?}, {:x?}: {moment:x?}", decoder.span());
        assert_eq!(moment.doubt, None, "{what}: {tsc:#x}, {insn:x?}");
        // With TSC packets alone, there is no bound at the end of a trace.
        if moment.confirmed {
            scale.count(&moment, tsc);
        }
    }
    assert_eq!(truth.next(), None, "{what}");
    scale
}

#[test]
fn the_bounds_hold_with_each_set_of_packets_and_are_as_narrow_as_it_makes_them() {
    for (set, packets, known, most) in SETS {
        let mut sum = TimeScale::default();
        for (profile, seed) in ["skylake", "icelake", "sapphire-rapids"]
            .into_iter()
            .flat_map(|profile| (0..seeds(12)).map(move |seed| (profile, seed)))
        {
            let case = Case::with(profile, packets, seed);
            let sections = sections(&case.program);
            let run = (&case.run.trace[..], &case.run.times[..]);
            sum.add(&hold(&format!("{set}, {profile} {seed}"), run, &sections, case.clocks, known));
        }
        println!("{set}: {sum:?}");
        assert!(sum.instructions > 5_000, "{set}: {sum:?}");
        if let Some(most) = most {
            assert_eq!(sum.bounded, sum.instructions, "{set}");
            assert!(sum.error < most * sum.bounded, "{set}: {sum:?}");
        }
    }
}

/// A kernel that sleeps: NOP, JZ over a NOP, HLT, JMP back; its interrupt handler: NOP, IRETQ.
const SLEEPER: [(u64, &[u8]); 2] =
    [(0x1000, &[0x90, 0x74, 0x01, 0x90, 0xf4, 0xeb, 0xf9]), (0x2000, &[0x90, 0x48, 0xcf])];

/// Returns the trace of [`SLEEPER`], and each instruction's retirement time: up to 12 ticks, a sleep up to a million.
fn sleeper(profile: &'static IntelProfile, ctl: u64, seed: u64) -> (Vec<u8>, Vec<u64>) {
    const RANGE: u64 = 0x1_0000;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut ram = vec![0; 0x1_0000];
    let mut memory = FlatMemory { base: RANGE, bytes: &mut ram };
    let mut processor = IntelProcessor::new(profile, IntelSettings::default());
    let at = |ip| Context { ip, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: true };
    let mut tsc = 1 << 20;
    let wrmsr =
        |ip, tsc| Retired { before: at(ip), after: at(ip + 2), bytes: &[0x0f, 0x30], tsc, operand: 0 };
    for (msr, value) in [(0x560, RANGE), (0x561, 0xffff), (0x570, ctl | ctl::TRACE_EN | ctl::OS)] {
        processor.write_msr(msr, value, &wrmsr(0xffe, tsc), &mut memory).expect("WRMSR");
    }
    let mut times = Vec::new();
    for _ in 0..200 {
        // Addresses, the places where execution continues after them, and the packet bytes.
        let skips = rng.bool();
        let turn: [(u64, u64, &[u8]); 7] = [
            (0x1000, 0x1001, &[0x90]),
            (0x1001, if skips { 0x1004 } else { 0x1003 }, &[0x74, 0x01]),
            (0x1003, 0x1004, &[0x90]),
            (0x1004, 0x1005, &[0xf4]),
            (0x2000, 0x2001, &[0x90]),
            (0x2001, 0x1005, &[0x48, 0xcf]),
            (0x1005, 0x1000, &[0xeb, 0xf9]),
        ];
        for (ip, to, bytes) in turn {
            if ip == 0x1003 && skips {
                continue;
            }
            tsc += rng.u64(1..=12);
            if ip == 0x2000 {
                tsc += rng.u64(..1_000_000);
                let (before, after) = (at(0x1005), at(0x2000));
                let kind = DeliveryKind::Interrupt;
                let delivery = Delivery { kind, vector: 32, before, after, cr2: None, tsc };
                processor.deliver(&delivery, &mut memory);
                tsc += rng.u64(1..=12);
            }
            times.push(tsc);
            let retired = Retired { before: at(ip), after: at(to), bytes, tsc, operand: 0 };
            processor.retire(&retired, &mut memory);
        }
    }
    processor.write_msr(0x570, 0, &wrmsr(0x1000, tsc), &mut memory).expect("WRMSR");
    let len = processor.read_msr(0x561).expect("RDMSR") >> 32;
    ram.truncate(len as usize);
    (ram, times)
}

#[test]
fn the_bounds_hold_where_the_processor_sleeps() {
    let space = AddressSpace::Any;
    let sections = SLEEPER.map(|(base, bytes)| Section { base, bytes, space });
    for (set, packets, known, _) in SETS {
        let mut sum = TimeScale::default();
        for (profile, seed) in ["skylake", "icelake"]
            .into_iter()
            .flat_map(|profile| (0..seeds(8)).map(move |seed| (profile, seed)))
        {
            let found = IntelProfile::by_name(profile).expect("a profile");
            let mtc = if packets & ctl::MTC_EN != 0 { MTC_FREQ << ctl::MTC_FREQ } else { 0 };
            let ctl = ctl::TSC_EN | ctl::BRANCH_EN | packets | mtc;
            let (trace, times) = sleeper(found, ctl, seed);
            let what = format!("{set}, {profile} {seed}");
            sum.add(&hold(&what, (&trace, &times), &sections, clocks_of(found), known));
        }
        assert!(sum.instructions > 10_000, "{set}: {sum:?}");
    }
}
