//! The state that streams report between two slices, and the bytes that they keep of a slice.

use super::{cuts::Cuts, traces};
use pugmark_decoder_core::{
    ErrorKind,
    block_cache::{BlockCache, ExecutionSink, InstructionRun},
    config::{Config, Position, UnknownPackets},
    event::{Counters, Event},
    image::{AddressSpace, Asid, Image, Section},
    packet::{Context, Tnt, Unknown},
    query::{BranchEventSink, QueryDecoder},
    resume::{BlockStream, BranchEventStream, Kept, Lost},
};

/// A sink that counts branch events and errors.
#[derive(Default)]
struct Count(usize);

impl BranchEventSink for Count {
    fn outcomes(&mut self, outcomes: Tnt) {
        self.0 += usize::from(outcomes.len);
    }

    fn target(&mut self, _: Option<u64>) {
        self.0 += 1;
    }

    fn event(&mut self, _: &Event) {
        self.0 += 1;
    }

    fn lost(&mut self, _: &Lost) {
        self.0 += 1;
    }
}

/// Returns, for each number of branch events and errors, the times that a decoder of the whole trace reports after that
/// many: two at a synchronisation.
fn times(trace: &[u8], config: Config<'_>) -> Vec<Vec<Option<u64>>> {
    let mut query = QueryDecoder::with_config(trace, config);
    let mut all = vec![vec![query.time()]];
    loop {
        let psb = query.sync_forward();
        all.last_mut().unwrap().push(query.time());
        if psb.is_none() {
            return all;
        }
        loop {
            let answer = query.next();
            if answer == Ok(None) {
                return all;
            }
            all.push(vec![query.time()]);
            if answer.is_err() {
                break;
            }
        }
    }
}

#[test]
fn between_two_slices_a_stream_of_answers_says_the_time_of_the_last_one() {
    let mut known = 0;
    for (name, scenario) in traces() {
        let (trace, config) = (&scenario.trace.repeat(2), scenario.config);
        let expected = times(trace, config);
        for size in [1, 5, 17, 40] {
            let mut kept = <Kept>::new();
            let mut stream = BranchEventStream::new(config, &mut kept);
            let mut count = Count::default();
            Cuts::Each(size).slices(trace, |slice| {
                stream.decode(slice, &mut count);
                let (time, may_be) = (stream.time(), &expected[count.0]);
                assert!(may_be.contains(&time), "{name}, {}: {time:x?}, not {may_be:x?}", stream.offset());
                known += u32::from(time.is_some());
            });
            stream.gap(7, &mut count);
            assert_eq!((stream.time(), stream.offset()), (None, trace.len() as u64 + 7), "{name}");
            stream.finish(&mut count);
            assert_eq!((stream.time(), stream.offset()), (None, 0), "{name}");
        }
    }
    assert!(known > 150, "{known}");
}

/// A sink that ignores everything.
struct Nothing;

impl ExecutionSink for Nothing {
    const INSNS: bool = true;

    fn insns(&mut self, _: InstructionRun) {}

    fn event(&mut self, _: &Event) {}
}

#[test]
fn between_two_slices_a_stream_of_blocks_says_where_and_when_it_is() {
    // 1000: jmp rax; 1002: jmp rax
    let code = [0xff, 0xe0, 0xff, 0xe0];
    let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
    let known = Asid { cr3: Some(0x8000), vmcs: Some(0x7000) };
    let slices: [(&[u8], _, _, _); 6] = [
        (b"", None, None, Asid::default()),
        // PSB, TSC (5), PIP (8000), VMCS (7000), MODE.Exec (64 bit), FUP (1000), PSBEND
        (
            b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x05\0\0\0\0\0\0\
            \x02\x43\0\x08\0\0\0\0\x02\xc8\x07\0\0\0\0\x99\x01\x7d\0\x10\0\0\0\0\x02\x23",
            Some(0x1000),
            Some(5),
            known,
        ),
        // TIP (1002)
        (b"\x2d\x02\x10", Some(0x1002), Some(5), known),
        // TSC (9), TIP (1000)
        (b"\x19\x09\0\0\0\0\0\0\x2d\0\x10", Some(0x1000), Some(9), known),
        // TSC (b), TIP.PGD
        (b"\x19\x0b\0\0\0\0\0\0\x01", None, Some(0xb), known),
        (b"", None, Some(0xb), known),
    ];
    for words in [0, 5_000] {
        let (mut memory, mut kept) = (vec![0; words], <Kept>::new());
        let mut cache = BlockCache::new(&mut memory);
        let mut stream = BlockStream::new(Image::new(&sections), Config::new(), &mut kept);
        for (packets, ip, time, space) in slices {
            // Enough padding to read the packets without the next slice.
            stream.decode(&[packets, &[0; 20]].concat(), &mut cache, &mut Nothing);
            assert_eq!((stream.ip(), stream.time(), stream.asid()), (ip, time, space), "{packets:x?}");
        }
        assert_eq!(stream.errors(), 0);
        assert_ne!(stream.counters(), Counters::default());
        stream.gap(0, &mut cache, &mut Nothing);
        assert_eq!((stream.ip(), stream.time(), stream.asid()), (None, None, Asid::default()));
    }
}

#[test]
fn the_least_memory_holds_the_most_that_must_be_kept() {
    // 05, and the size of the packet.
    let long = |_: &Config<'_>, position: Position<'_>, _: Context| match *position.bytes() {
        [0x05, size, ..] => Ok(Unknown { size, value: size.into() }),
        [opcode, ..] => Err(ErrorKind::UnknownOpcode(opcode)),
        [] => Err(ErrorKind::OutOfSync),
    };
    let config = Config { unknown: Some(UnknownPackets::new(&long)), ..Config::new() };
    let sections = [Section { base: 0x1000, bytes: &[0x74, 0xfe], space: AddressSpace::Any }];
    let run = |trace: &[u8], cuts: &Cuts| {
        let (mut memory, mut kept) = ([0; 5_000], Kept::<1024>::new());
        let mut cache = BlockCache::new(&mut memory);
        let mut steps = super::whole::Steps::default();
        let mut stream = BlockStream::new(Image::new(&sections), config, &mut kept);
        cuts.slices(trace, |slice| stream.decode(slice, &mut cache, &mut steps));
        stream.finish(&mut cache, &mut steps);
        steps.0
    };
    let psb = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
    // MODE.Exec (64 bit), FUP (1000), PSBEND, TNT
    let on = [&psb[..], b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x06"].concat();
    let off = [&psb[..], b"\x02\x23"].concat();
    for (pads, mtcs) in
        (200..700).step_by(20).flat_map(|pads| (90..330).step_by(10).map(move |mtcs| (pads, mtcs)))
    {
        // TIP.PGD; a PSB that is needed again after an error; OVF, for which the decoder looks ahead, and a packet of
        // 255 bytes before FUP (1000), TNT.
        let trace = [
            &on[..],
            b"\x01",
            &off,
            &vec![0; pads],
            b"\x02\xf3",
            &b"\x59\x07".repeat(mtcs),
            b"\x05\xff",
            &[0; 253],
            b"\x3d\0\x10\x06",
            &on,
        ]
        .concat();
        let expected = run(&trace, &Cuts::At(vec![]));
        assert!(run(&trace, &Cuts::Each(37)) == expected, "{pads} bytes of padding, {mtcs} MTCs");
    }
}
