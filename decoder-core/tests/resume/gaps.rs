//! Gaps, ends, and packets that are too far away.

use super::{
    check, common,
    cuts::Cuts,
    traces,
    whole::{Layer, Step, Steps},
};
use pugmark_decoder_core::{
    ErrorKind,
    block_cache::{BlockCache, ExecutionSink, InstructionRun},
    config::Config,
    errata::Errata,
    event::Event,
    image::{Image, Section},
    resume::{BlockStream, BranchEventStream, KEPT, Kept, PacketStream},
};

/// Returns the steps with their offsets moved.
fn moved(steps: Vec<Step>, by: u64) -> Vec<Step> {
    let step = |step| match step {
        Step::Event(event @ Event { offset, .. }) => Step::Event(Event { offset: offset + by, ..event }),
        Step::Error(mut error) => {
            error.offset += by;
            Step::Error(error)
        }
        Step::Packet(offset, packet) => Step::Packet(offset + by, packet),
        Step::Ip(offset, packet, ip, address) => Step::Ip(offset + by, packet, ip, address),
        other => other,
    };
    steps.into_iter().map(step).collect()
}

#[test]
fn a_gap_ends_what_was_before_and_decoding_restarts_after_it() {
    const LOST: u64 = 0x1_2345_6789_abcd;
    for (name, scenario) in traces() {
        let sections = common::sections(&scenario);
        let (image, trace, config) = (Image::new(&sections), &scenario.trace, scenario.config);
        for at in (0..=trace.len()).step_by(5) {
            let (before, after) = trace.split_at(at);
            let parts = |layer: Layer| {
                let mut expected = layer.whole(before, image, config).0;
                expected.push(Step::Gap(at as u64, LOST));
                expected.extend(moved(layer.whole(after, image, config).0, at as u64 + LOST));
                expected
            };
            let (mut kept, mut kept_bytes) = (<Kept>::new(), [0; KEPT]);
            let mut steps = Steps::default();
            let mut packets = PacketStream::new(config, &mut kept_bytes);
            packets.decode(before, &mut steps);
            packets.gap(LOST, &mut steps);
            packets.decode(after, &mut steps);
            packets.finish(&mut steps);
            assert_eq!(steps.0, parts(Layer::Packets), "{name}, {at}");

            let mut steps = Steps::default();
            let mut answers = BranchEventStream::new(config, &mut kept);
            answers.decode(before, &mut steps);
            answers.gap(LOST, &mut steps);
            answers.decode(after, &mut steps);
            answers.finish(&mut steps);
            assert_eq!(steps.0, parts(Layer::BranchEvents), "{name}, {at}");

            let mut steps = Steps::default();
            let mut memory = [0; 5000];
            let mut cache = BlockCache::new(&mut memory);
            let mut blocks = BlockStream::new(image, config, &mut kept);
            blocks.decode(before, &mut cache, &mut steps);
            blocks.gap(LOST, &mut cache, &mut steps);
            blocks.decode(after, &mut cache, &mut steps);
            blocks.finish(&mut cache, &mut steps);
            assert_eq!(steps.0, parts(Layer::Blocks(5000)), "{name}, {at}");
        }
    }
}

#[test]
fn after_its_end_a_stream_begins_anew() {
    let mut kept = <Kept>::new();
    let mut memory = [0; 5000];
    let mut cache = BlockCache::new(&mut memory);
    for (name, scenario) in traces() {
        let sections = common::sections(&scenario);
        let image = Image::new(&sections);
        let mut blocks = BlockStream::new(image, scenario.config, &mut kept);
        let expected = Layer::Blocks(5000).whole(&scenario.trace, image, scenario.config).0;
        let errors = expected.iter().filter(|step| matches!(step, Step::Error(_))).count() as u64;
        for round in 1..4 {
            let mut steps = Steps::default();
            let cut = scenario.trace.len() * round / 4;
            blocks.decode(&scenario.trace[..cut], &mut cache, &mut steps);
            assert_eq!(blocks.offset(), cut as u64);
            blocks.decode(&scenario.trace[cut..], &mut cache, &mut steps);
            blocks.finish(&mut cache, &mut steps);
            assert_eq!(steps.0, expected, "{name}, round {round}");
            assert_eq!((blocks.offset(), blocks.errors()), (0, errors * round as u64), "{name}");
        }
    }
}

#[test]
fn an_image_that_is_set_between_two_slices_holds_for_all_that_follow() {
    // 1000: jmp rax; and 1000: nop; 1001: jmp rax.
    let images = [&[0xff, 0xe0][..], &[0x90, 0xff, 0xe0]].map(|bytes| [Section { bytes, ..LOOP[0] }]);
    // PSB+ at 1000, then TIP (1000) repeatedly.
    let trace = [&around(b"")[..27], &b"\x2d\0\x10".repeat(60)].concat();
    let (mut memory, mut kept) = ([0; 5000], <Kept>::new());
    let mut cache = BlockCache::new(&mut memory);
    let mut executed = Executed::default();
    let mut blocks = BlockStream::new(Image::new(&images[0]), Config::new(), &mut kept);
    let (before, after) = trace.split_at(27 + 3 * 40);
    blocks.decode(before, &mut cache, &mut executed);
    let old = executed.0.len();
    blocks.set_image(Image::new(&images[1]));
    for slice in after.chunks(30) {
        blocks.decode(slice, &mut cache, &mut executed);
    }
    blocks.finish(&mut cache, &mut executed);
    assert!(old > 20);
    assert_eq!(executed.0, [[0x1000].repeat(old), [0x1000, 0x1001].repeat(60 - old)].concat());
    assert_eq!(blocks.errors(), 0);
}

/// A sink that collects the addresses of instructions.
#[derive(Default)]
struct Executed(Vec<u64>);

impl ExecutionSink for Executed {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.0.extend(insns);
    }

    fn event(&mut self, _: &Event) {}
}

#[test]
fn after_their_end_streams_of_packets_and_of_answers_begin_anew() {
    for (name, scenario) in traces() {
        let (trace, config) = (&scenario.trace, scenario.config);
        let whole = |layer: Layer| layer.whole(trace, Image::new(&[]), config).0;
        let (mut kept, mut others) = ([0; KEPT], <Kept>::new());
        let mut packets = PacketStream::new(config, &mut kept);
        let mut answers = BranchEventStream::new(config, &mut others);
        for round in 1..4 {
            let (before, after) = trace.split_at(trace.len() * round / 4);
            let mut steps = Steps::default();
            packets.decode(before, &mut steps);
            packets.decode(after, &mut steps);
            packets.finish(&mut steps);
            assert_eq!((steps.0, packets.offset()), (whole(Layer::Packets), 0), "{name}, round {round}");
            let mut steps = Steps::default();
            answers.decode(before, &mut steps);
            answers.decode(after, &mut steps);
            answers.finish(&mut steps);
            assert_eq!((steps.0, answers.offset()), (whole(Layer::BranchEvents), 0), "{name}, round {round}");
        }
    }
}

/// Returns a PSB+ with an address, a branch, `packets`, and a PSB+ and a branch again.
fn around(packets: &[u8]) -> Vec<u8> {
    let start = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x06";
    [start, packets, start].concat()
}

/// 1000: je 1000.
const LOOP: [Section<'_>; 1] =
    [Section { base: 0x1000, bytes: &[0x74, 0xfe], space: pugmark_decoder_core::image::AddressSpace::Any }];

/// Returns OVF, MTCs, and a FUP.
fn overflow(mtcs: usize) -> Vec<u8> {
    [b"\x02\xf3", &b"\x59\x07".repeat(mtcs)[..], b"\x3d\0\x10\x06"].concat()
}

#[test]
fn what_an_overflow_means_is_looked_for_over_many_packets() {
    let trace = around(&overflow(900));
    for cuts in [Cuts::Each(1), Cuts::Each(64), Cuts::Each(700), Cuts::At(vec![33])] {
        check(&trace, Image::new(&LOOP), Config::new(), &cuts, "overflow");
    }
}

#[test]
fn after_an_overflow_tracing_may_be_off_for_long() {
    // OVF, MTCs, TIP.PGE (1000), TNT.
    let trace = around(&[b"\x02\xf3", &b"\x59\x07".repeat(5000)[..], b"\x31\0\x10\x06"].concat());
    for errata in [
        Errata::NONE,
        Errata { skd010: true, ..Errata::NONE },
        Errata { apl11: true, apl12: true, ..Errata::NONE },
    ] {
        let config = Config { errata, ..Config::new() };
        for cuts in [Cuts::Each(1), Cuts::Each(64), Cuts::Each(700), Cuts::At(vec![33]), Cuts::At(vec![])] {
            check(&trace, Image::new(&LOOP), config, &cuts, "overflow");
        }
    }
}

#[test]
fn what_is_too_far_away_is_an_error_wherever_the_cuts_are() {
    let endless = [&b"\x02\x82".repeat(8)[..], &b"\x59\x07".repeat(2000), b"\x02\x23"].concat();
    for (packets, first) in [
        // A FUP while tracing is off.
        (overflow(2000), (0x1c + 2 + 4000, ErrorKind::UnexpectedPacket("FUP"))),
        (endless, (0x1c, ErrorKind::LooksTooFar)),
    ] {
        let trace = around(&packets);
        let (image, config) = (Image::new(&LOOP), Config::new());
        for layer in [Layer::BranchEvents, Layer::Blocks(0), Layer::Blocks(5000)] {
            let expected = layer.sliced(&trace, image, config, &Cuts::At(vec![]));
            let errors: Vec<_> = expected
                .0
                .iter()
                .filter_map(|step| match step {
                    Step::Error(error) => Some((error.offset, error.kind)),
                    _ => None,
                })
                .collect();
            assert!(errors.starts_with(&[first]), "{errors:x?}");
            // The branch after the second PSB+ is decoded again.
            assert!(!matches!(expected.0.last(), Some(Step::Error(_))));
            for cuts in [Cuts::Each(1), Cuts::Each(100), Cuts::Each(2000), Cuts::At(vec![29, 2000])] {
                assert_eq!(layer.sliced(&trace, image, config, &cuts), expected, "{layer:?} {cuts:?}");
            }
        }
    }
}
