//! Against the model: programs that it traces, decoded, and at each instruction the TSC that it was fed with.

use crate::{TimeScale, seeds};
use pugmark_decoder_core::{
    block::{self, BlockDecoder, Slot},
    config::{Clocks, Config},
    flow::{InsnDecoder, Item},
    image::{AddressSpace, Image, Section},
    packet::{Packet, Packets, Tsc},
    time::{CoreSpeed, Moment, Timeline},
};
use pugmark_program::{
    Program,
    trace::{self, Run, Topic, ctl},
};

/// How a run is traced and read.
struct Case {
    program: Program,
    traced: trace::Config,
    clocks: Clocks,
    run: Run,
}

impl Case {
    fn draw(topic: Topic, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0074_7363);
        let (program, mut traced) = trace::Config::draw(topic, seed);
        // Without TSC packets there is no time.
        traced.ctl |= ctl::TSC_EN;
        traced.rates.ticks = [1, 12, 300, 5_000][rng.usize(..4)];
        let ratios = [None, Some(8), Some(35), Some(60)];
        traced.settings.core_ratio = ratios[rng.usize(..4)];
        let mut run = trace::run(&program, &traced, seed);
        // The TSC starts again somewhere in the run, or is anywhere, because software wrote it.
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

/// Software adds `adjust` to the TSC: the TSC packets show it, the other clocks do not.
fn adjust_tsc(run: &mut Run, adjust: u64) {
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
                let Item::Insn(insn) = item else { continue };
                let tsc = *truth.next().expect("as many instructions as in truth");
                let moment = timeline.moment(decoder.span()).unwrap_or_else(|| panic!("{what}: no time"));
                let what = || format!("{what}\n{tsc:#x}, {insn:x?}, {:x?}: {moment:x?}", decoder.span());
                assert!(moment.contains(tsc), "{}", what());
                assert_eq!(moment.doubt, None, "{}", what());
                if let Some(last) = last {
                    let passed = moment.tsc().wrapping_sub(last.tsc());
                    assert!(passed < 1 << 63, "{}, behind {last:x?}", what());
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
    let mut slots = vec![Slot::default(); 1 << 12];
    for seed in 0..seeds(40) {
        for topic in [Topic::Everything, Topic::Level, Topic::Range, Topic::Events] {
            let case = Case::draw(topic, seed);
            let what = format!("{topic:?} {seed}, {:?} {:?}", case.traced, case.clocks);
            let sections = sections(&case.program);
            let mut timeline = case.timeline(&mut fastrand::Rng::with_seed(seed));
            let mut decoder = BlockDecoder::new(&case.run.trace, Image::new(&sections), &mut slots);
            decoder.sync_forward();
            let mut truth = case.run.times.iter();
            let mut last = None;
            while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{what}: {error}")) {
                let block::Item::Block(block) = item else { continue };
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
