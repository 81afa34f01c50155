//! One block cache for several traces, and errors that only a block cache could make.

use crate::compare::compare;
use pugmark_decoder_core::{
    block::{Block, BlockDecoder, BlockItem},
    block_cache::{BlockCache, ExecutionSink, InstructionRun, Statistics},
    config::Config,
    event::Event,
    image::{AddressSpace, Image, Section},
};

const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
/// MODE.Exec (64 bit), FUP (1000), PSBEND.
const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
/// TIP (1000); with the tail after it there are enough bytes for the fast path.
const TIP_1000: &[u8] = b"\x2d\0\x10";
const TAIL: &[u8] = &[0; 16];

const fn section(bytes: &[u8]) -> Section<'_> {
    Section { base: 0x1000, bytes, space: AddressSpace::Any }
}

/// Returns all items, decoded with a block cache if there is one.
fn items(trace: &[u8], image: Image<'_>, cache: Option<&mut BlockCache<'_>>) -> Vec<BlockItem> {
    let mut decoder = BlockDecoder::new(trace, image);
    decoder.sync_forward();
    match cache {
        None => std::iter::from_fn(|| decoder.next().expect("the trace fits the code")).collect(),
        Some(cache) => {
            let mut items = vec![BlockItem::NONE; 1000];
            let (filled, end) = decoder.fill(cache, &mut items);
            assert!(filled < 1000 && end.is_ok(), "{end:?}");
            items.truncate(filled);
            items
        }
    }
}

#[test]
fn a_block_cache_is_of_one_image_at_a_time() {
    // jmp rax; nop, jmp rax; the same bytes at two addresses.
    let plain = [0xff, 0xe0, 0x90];
    let longer = [0x90, 0xff, 0xe0];
    let sections = [section(&plain), section(&longer), section(&plain)];
    let trace = [PSB, STATE, TIP_1000, TIP_1000, TIP_1000, TAIL].concat();
    let mut memory = vec![0; 5000];
    let mut cache = BlockCache::new(&mut memory);
    for section in &sections {
        let image = Image::new(std::slice::from_ref(section));
        assert_eq!(items(&trace, image, Some(&mut cache)), items(&trace, image, None), "{section:x?}");
    }
    assert_eq!(cache.statistics().built, 3);
    // The same image again: nothing is decoded.
    items(&trace, Image::new(&sections[2..]), Some(&mut cache));
    assert_eq!(cache.statistics().built, 3);
    cache.forget();
    items(&trace, Image::new(&sections[2..]), Some(&mut cache));
    assert_eq!(cache.statistics().built, 4);
}

#[test]
fn images_that_differ_only_in_address_spaces_are_not_the_same_for_a_block_cache() {
    let plain = [0xff, 0xe0];
    let trace = [PSB, STATE, TIP_1000, TIP_1000, TIP_1000, TAIL].concat();
    let mut memory = vec![0; 5000];
    let mut cache = BlockCache::new(&mut memory);
    let numbers = [0, 0x8000, 0x9000];
    let spaces: Vec<_> = [AddressSpace::Any]
        .into_iter()
        .chain(numbers.map(AddressSpace::Cr3))
        .chain(numbers.map(AddressSpace::Vmcs))
        .chain(numbers.into_iter().flat_map(|vmcs| numbers.map(|cr3| AddressSpace::Guest { vmcs, cr3 })))
        .collect();
    let mut built = 0;
    for (before, space) in spaces.iter().flat_map(|before| spaces.iter().map(move |space| (before, space))) {
        for space in [before, space] {
            let sections = [Section { space: *space, ..section(&plain) }];
            items(&trace, Image::new(&sections), Some(&mut cache));
        }
        // A decoder that starts in an unknown address space finds the code in all spaces.
        let (now, new) = (cache.statistics().built, if space == before { 0 } else { 1 });
        assert_eq!(now, built + 1 + new, "{before:x?}, {space:x?}");
        cache.forget();
        built = now;
    }
}

#[test]
fn code_in_a_transaction_is_apart_from_the_same_code_outside() {
    let code = [0x90, 0xff, 0xe0];
    let sections = [section(&code)];
    let image = Image::new(&sections);
    // MODE.TSX: in a transaction, and not.
    let trace = |mode: &[u8]| [PSB, mode, STATE, TIP_1000, TIP_1000, TAIL].concat();
    let mut memory = vec![0; 5000];
    let mut cache = BlockCache::new(&mut memory);
    for mode in [&b"\x99\x21"[..], b"\x99\x20", b"\x99\x21"] {
        let trace = trace(mode);
        let found = items(&trace, image, Some(&mut cache));
        assert_eq!(found, items(&trace, image, None), "{mode:x?}");
        let speculative = mode == b"\x99\x21";
        assert!(
            found
                .iter()
                .any(|item| matches!(item, BlockItem::Block(block) if block.speculative == speculative))
        );
    }
    assert_eq!(cache.statistics().built, 2);
}

#[test]
fn no_more_returns_are_compressed_than_there_are_calls_in_the_stack() {
    // 1000: je 1007; 1002: call 1000; 1007: ret
    let code = [0x74, 0x05, 0xe8, 0xf9, 0xff, 0xff, 0xff, 0xc3];
    let sections = [section(&code)];
    for calls in [1, 5, 63, 64, 65, 70, 150] {
        for returns in [calls / 2, calls, calls + 1] {
            // Not taken for each call, then taken once, and once more for each return.
            let outcomes = [vec![false; calls], vec![true; returns + 1]].concat();
            let mut trace = [PSB, STATE].concat();
            for six in outcomes.chunks(6) {
                let bits = six.iter().fold(1, |bits, &taken| bits << 1 | u8::from(taken));
                trace.push(bits << 1);
            }
            trace.extend(TAIL);
            compare(&trace, Image::new(&sections), Config::new())
                .unwrap_or_else(|error| panic!("{calls} calls, {returns} returns: {error}"));
        }
    }
}

#[test]
fn a_block_may_have_thousands_of_instructions() {
    for nops in [15, 16, 17, 4000, 5000] {
        let code = [vec![0x90; nops], vec![0xff, 0xe0]].concat();
        let trace = [PSB, STATE, TIP_1000, TIP_1000, TAIL].concat();
        compare(&trace, Image::new(&[section(&code)]), Config::new())
            .unwrap_or_else(|error| panic!("{nops} instructions: {error}"));
    }
}

/// A sink that counts instructions, and never stops a visit.
struct Count(usize);

impl ExecutionSink for Count {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.0 += insns.count();
    }

    fn event(&mut self, _: &Event) {}
}

/// A sink that counts calls, and of which only the functions that it wants may be called.
#[derive(Default)]
struct Wants<const INSNS: bool, const BLOCKS: bool, const EDGES: bool>([usize; 3]);

impl<const INSNS: bool, const BLOCKS: bool, const EDGES: bool> ExecutionSink for Wants<INSNS, BLOCKS, EDGES> {
    const INSNS: bool = INSNS;
    const BLOCKS: bool = BLOCKS;
    const EDGES: bool = EDGES;

    fn insns(&mut self, insns: InstructionRun) {
        assert!(INSNS, "it did not want instructions");
        self.0[0] += insns.count();
    }

    fn block(&mut self, _: &Block) {
        assert!(BLOCKS, "it did not want blocks");
        self.0[1] += 1;
    }

    fn edge(&mut self, _: u16) {
        assert!(EDGES, "it did not want edges");
        self.0[2] += 1;
    }

    fn event(&mut self, _: &Event) {}

    fn is_full(&self) -> bool {
        panic!("it does not fill")
    }
}

#[test]
fn a_sink_is_given_what_it_wants_and_nothing_else() {
    // 1000: nop; 1001: jmp rax. Without a tail the last blocks take the slow path.
    let sections = [section(&[0x90, 0xff, 0xe0])];
    let trace = [PSB, STATE, &TIP_1000.repeat(20)].concat();
    fn counts<const INSNS: bool, const BLOCKS: bool, const EDGES: bool>(
        trace: &[u8],
        image: Image<'_>,
    ) -> [usize; 3] {
        let mut memory = vec![0; 5000];
        let mut sink = Wants::<INSNS, BLOCKS, EDGES>::default();
        let mut decoder = BlockDecoder::new(trace, image);
        decoder.sync_forward();
        decoder.visit(&mut BlockCache::new(&mut memory), &mut sink).expect("the trace fits the code");
        sink.0
    }
    let image = Image::new(&sections);
    assert_eq!(counts::<true, true, true>(&trace, image), [40, 20, 20]);
    assert_eq!(counts::<true, false, false>(&trace, image), [40, 0, 0]);
    assert_eq!(counts::<false, true, false>(&trace, image), [0, 20, 0]);
    assert_eq!(counts::<false, false, true>(&trace, image), [0, 0, 20]);
    assert_eq!(counts::<false, false, false>(&trace, image), [0, 0, 0]);
}

/// A sink that notes the decoder's progress.
#[derive(Default)]
struct Progress(Vec<u64>);

impl ExecutionSink for Progress {
    fn event(&mut self, _: &Event) {}

    fn reached(&mut self, offset: u64) {
        self.0.push(offset);
    }
}

#[test]
fn a_visit_says_now_and_then_how_far_it_has_come() {
    let sections = [section(&[0x90, 0xff, 0xe0])];
    let trace = [PSB, STATE, &TIP_1000.repeat(5_000), TAIL].concat();
    let (mut memory, mut progress) = (vec![0; 5000], Progress::default());
    let mut decoder = BlockDecoder::new(&trace, Image::new(&sections));
    decoder.sync_forward();
    decoder.visit(&mut BlockCache::new(&mut memory), &mut progress).expect("the trace fits the code");
    let Progress(offsets) = progress;
    assert!(offsets.len() >= 10 && offsets.is_sorted(), "{offsets:?}");
    // The first report is within the first fifth, the last one within the last fifth.
    let fifth = trace.len() as u64 / 5;
    assert!(offsets[0] < fifth && (4 * fifth..=trace.len() as u64).contains(&offsets[offsets.len() - 1]));
}

#[test]
fn after_a_visit_the_decoder_says_where_the_last_block_was() {
    // 1000: nop; 1001: je 1000; 1003: jmp rax
    let code = [0x90, 0x74, 0xfd, 0xff, 0xe0];
    let sections = [section(&code)];
    let image = Image::new(&sections);
    // TNT (taken, not taken), TIP (1000), and an interrupt before the instruction at 1001, or before the one at 1000:
    // FUP, TIP.PGD.
    let round = b"\x0c\x2d\0\x10";
    let rounds = [(1, 0), (5, 0), (5, 2), (40, 1), (100, 6)];
    for ((rounds, outcomes), at) in rounds.into_iter().flat_map(|rounds| [(rounds, 1), (rounds, 0)]) {
        let taken = [&[0b10_u8][..], &vec![0b1111_1110; outcomes]].concat();
        let interrupt = [0x3d, at, 0x10, 0x01];
        let trace = [PSB, STATE, &round.repeat(rounds), &taken[1..], &interrupt, TAIL].concat();
        let mut plain = BlockDecoder::new(&trace, image);
        plain.sync_forward();
        let mut insns = 0;
        while let Some(item) = plain.next().expect("the trace fits the code") {
            if let BlockItem::Block(block) = item {
                insns += block.insns as usize;
            }
        }
        let mut memory = vec![0; 5000];
        let (mut quick, mut count) = (BlockDecoder::new(&trace, image), Count(0));
        quick.sync_forward();
        quick.visit(&mut BlockCache::new(&mut memory), &mut count).expect("the trace fits the code");
        let state = |decoder: &BlockDecoder<'_>| {
            (decoder.span(), decoder.ip(), decoder.offset(), decoder.time(), decoder.counters())
        };
        assert_eq!((count.0, state(&quick)), (insns, state(&plain)), "{rounds} {outcomes} {at}");
    }
}

#[test]
fn after_a_visit_the_time_is_that_of_the_last_branch() {
    // A CYC after each branch except the last, and a number of branches that differs from that read at once.
    let code = [0x90, 0xff, 0xe0];
    let sections = [section(&code)];
    let cyc = &[0x0b];
    for branches in 1..200 {
        for after_last in [&[][..], cyc, b"\x0b\x0b"] {
            let timed = [TIP_1000, cyc].concat().repeat(branches);
            let trace = [PSB, STATE, &timed, TIP_1000, after_last, TAIL].concat();
            let mut plain = BlockDecoder::new(&trace, Image::new(&sections));
            plain.sync_forward();
            while plain.next().expect("the trace fits the code").is_some() {}
            let mut memory = vec![0; 5000];
            let mut quick = BlockDecoder::new(&trace, Image::new(&sections));
            quick.sync_forward();
            quick.visit(&mut BlockCache::new(&mut memory), &mut Count(0)).expect("the trace fits the code");
            // Without a ratio, CYCs are counted.
            assert_eq!(
                (quick.lost_cyc(), quick.lost_cyc()),
                (plain.lost_cyc(), branches as u32),
                "{after_last:x?}"
            );
        }
    }
}

#[test]
fn contexts_and_blocks_come_and_go() {
    // More address spaces than a block cache distinguishes, each with different code.
    let codes: Vec<Vec<u8>> = (0..50).map(|at| [vec![0x90; at % 8], vec![0xff, 0xe0]].concat()).collect();
    let sections: Vec<Section<'_>> = codes
        .iter()
        .zip(1_u64..)
        .map(|(bytes, at)| Section { base: 0x1000, bytes, space: AddressSpace::Cr3(at << 12) })
        .collect();
    let mut trace = vec![];
    for round in 0..2 {
        for at in 1..=50_u64 {
            trace.extend(PSB);
            // PIP: CR3 from bit 5 on.
            let cr3 = ((at << 12) >> 5) << 1;
            trace.extend([0x02, 0x43]);
            trace.extend(&cr3.to_le_bytes()[..6]);
            trace.extend(STATE);
            trace.extend(TIP_1000.repeat(1 + (at as usize + round) % 3));
            // OVF, FUP (1000): the next PSB+ may be in another address space.
            trace.extend(b"\x02\xf3\x3d\0\x10");
        }
    }
    trace.extend(TAIL);
    compare(&trace, Image::new(&sections), Config::new()).unwrap();
}

#[test]
fn a_block_cache_that_has_forgotten_its_blocks_has_all_its_room_again() {
    // 1000: nop; 1001: jmp rax
    let sections = [section(&[0x90, 0xff, 0xe0])];
    let trace = [PSB, STATE, &TIP_1000.repeat(20)].concat();
    let mut memory = [0; 200];
    let mut cache = BlockCache::new(&mut memory);
    for round in 1..=100 {
        cache.forget();
        let mut decoder = BlockDecoder::new(&trace, Image::new(&sections));
        decoder.sync_forward();
        decoder.visit(&mut cache, &mut Count(0)).unwrap();
        let Statistics { blocks, built, flushes, .. } = cache.statistics();
        assert_eq!((blocks, built, flushes), (1, round, 0));
    }
}

/// Returns the outcomes in short TNT packets, oldest first.
pub(crate) fn tnts(outcomes: &[bool]) -> Vec<u8> {
    let packet = |some: &[bool]| some.iter().fold(1_u8, |bits, taken| bits << 1 | u8::from(*taken)) << 1;
    outcomes.chunks(6).map(packet).collect()
}

#[test]
fn a_return_finds_its_call_although_the_block_cache_was_full_in_between() {
    // 1000: call 2000; 1005: je 1000; and at 2000: je 207a; 60 times je to the next instruction; 207a: ret.
    let main = [0xe8, 0xfb, 0x0f, 0, 0, 0x74, 0xf9];
    let called = [&[0x74, 0x78][..], &[0x74, 0].repeat(60), &[0xc3]].concat();
    let sections = [section(&main), Section { base: 0x2000, ..section(&called) }];
    // Short paths through the called code, so that the block cache knows its return address, and one over all branches.
    let short = [true, true, true].repeat(4);
    let long = [&[false][..], &[true; 60], &[true, true]].concat();
    let outcomes = [&short[..], &long, &short, &long, &short].concat();
    let trace = [PSB, STATE, &tnts(&outcomes), TAIL].concat();
    let image = Image::new(&sections);
    let expected = items(&trace, image, None);
    let mut flushes = 0;
    for words in (100..2_500).step_by(10) {
        let mut memory = vec![0; words];
        let mut cache = BlockCache::new(&mut memory);
        assert_eq!(items(&trace, image, Some(&mut cache)), expected, "{words} words");
        flushes += cache.statistics().flushes;
    }
    assert!(flushes > 100, "{flushes}");
}

#[test]
fn an_event_between_two_blocks_changes_no_edge_unless_it_says_where_the_walk_goes_on() {
    // 1000: jmp rax
    let sections = [section(&[0xff, 0xe0])];
    let mnt = b"\x02\xc3\x88\x01\0\0\0\0\0\0\0";
    // PSB, FUP (1000), PSBEND; OVF, FUP (1000)
    let (again, overflow) = ([PSB, STATE].concat(), b"\x02\xf3\x7d\0\x10\0\0\0\0");
    let edges = |between: &[u8]| {
        let mut memory = vec![0; 5000];
        let (mut cache, mut edges) = (BlockCache::new(&mut memory), EdgeList::default());
        let trace = [PSB, STATE, TIP_1000, TIP_1000, between, TIP_1000, TIP_1000, TIP_1000, TAIL].concat();
        let mut decoder = BlockDecoder::new(&trace, Image::new(&sections));
        decoder.sync_forward();
        decoder.visit(&mut cache, &mut edges).unwrap();
        edges.0
    };
    let plain = edges(b"");
    assert!(plain.len() == 5 && plain[0] != plain[1] && plain[1..].iter().all(|edge| *edge == plain[1]));
    assert_eq!((edges(mnt), edges(&again)), (plain.clone(), plain.clone()));
    let broken = edges(overflow);
    assert_eq!(broken.iter().filter(|edge| **edge == plain[0]).count(), 2, "{broken:x?}");
}

/// A sink that collects edges.
#[derive(Default)]
struct EdgeList(Vec<u16>);

impl ExecutionSink for EdgeList {
    const EDGES: bool = true;

    fn edge(&mut self, edge: u16) {
        self.0.push(edge);
    }

    fn event(&mut self, _: &Event) {}
}
