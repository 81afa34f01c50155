use super::*;
use pugmark_decoder_core::{
    block::Block,
    block_cache::{ExecutionSink, InstructionRun},
    event::Event,
    image::{AddressSpace, Section},
    resume::Lost,
};

const PSB: [u8; 16] = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";

fn tsc(value: u8) -> Vec<u8> {
    vec![0x19, value, 0, 0, 0, 0, 0, 0]
}

/// Returns a PSB+ at an address, with a time.
fn psb(time: u8, ip: u16) -> Vec<u8> {
    let [low, high] = ip.to_le_bytes();
    [&PSB[..], &tsc(time), &[0x99, 1, 0x7d, low, high, 0, 0, 0, 0, 0x02, 0x23]].concat()
}

const TO_KERNEL: [u8; 7] = [0x6d, 0, 0, 0, 0x81, 0xff, 0xff];
const TO_PROGRAM: [u8; 7] = [0x6d, 2, 0x10, 0, 0, 0, 0];
const KERNEL: Section<'_> =
    Section { base: 0xffff_ffff_8100_0000, bytes: &[0xff, 0xe0], space: AddressSpace::Any };
/// 1000: syscall; 1002: nop, and jmp rax: at once in the other program.
const PROGRAMS: [&[u8]; 2] = [&[0x0f, 0x05, 0x90, 0xff, 0xe0], &[0x0f, 0x05, 0xff, 0xe0]];

/// The addresses of the blocks, how many instructions each has, and errors.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    blocks: Vec<(u64, u32)>,
    errors: usize,
    begins: usize,
}

impl SliceSink for Seen {
    fn begins(&mut self, _: &TraceSlice) {
        self.begins += 1;
    }
}

impl ExecutionSink for Seen {
    const BLOCKS: bool = true;

    fn block(&mut self, block: &Block) {
        self.blocks.push((block.ip, block.insns));
    }

    fn event(&mut self, _: &Event) {}

    fn lost(&mut self, _: &Lost) {
        self.errors += 1;
    }
}

/// Returns a system call, a switch in the kernel at `at`, and what goes on in a program.
fn trace_with_switch(at: u8) -> Vec<u8> {
    [&psb(10, 0x1000)[..], &TO_KERNEL, &tsc(at), &TO_KERNEL, &TO_PROGRAM, &[0x01]].concat()
}

#[test]
fn a_switch_takes_effect_in_the_kernel() {
    let trace = trace_with_switch(20);
    let sections = PROGRAMS.map(|bytes| [Section { base: 0x1000, bytes, space: AddressSpace::Any }, KERNEL]);
    let found = places(&trace, Config::default(), &[0, 15], 0).unwrap();
    assert_eq!(found.iter().map(|place| (place.number, place.tsc)).collect::<Vec<_>>(), [(0, 10), (1, 20)]);
    let cut = found[1].offset;
    let slice = |range, lane, tsc| TraceSlice { trace: 0, range, lane, image: lane, is_switch: true, tsc };
    let session = Session {
        traces: vec![&trace],
        mapped: vec![],
        sections: None,
        near: vec![0],
        config: Config::default(),
        images: sections.iter().map(|sections| Image::new(sections)).collect(),
        lanes: vec![0, 1],
        slices: vec![slice(0..cut, 0, 10), slice(cut..trace.len(), 1, 20)],
        windows: vec![],
        switch_ip: None,
    };
    let mut seen = [Seen::default(), Seen::default()];
    session.follow(&mut seen);
    let kernel = (KERNEL.base, 1);
    // The kernel's jump is executed where its target is known: after the switch.
    assert_eq!(seen[0], Seen { blocks: vec![(0x1000, 1)], errors: 0, begins: 1 });
    assert_eq!(seen[1], Seen { blocks: vec![kernel, kernel, (0x1002, 1)], errors: 0, begins: 1 });
    // One sink for all, with the code of the first program.
    let mut alone = [Seen::default()];
    let mut slices = session.slices.clone();
    slices.iter_mut().for_each(|slice| slice.image = 0);
    Session { slices, ..session.clone() }.follow(&mut alone);
    assert_eq!(alone[0].blocks, [(0x1000, 1), kernel, kernel, (0x1002, 2)]);
    assert_eq!(alone[0].begins, 2);
}

/// ffffffff81000000: jmp rax; 2: nop; jmp 8; 8, which switches threads: nop; jmp rax.
const SWITCHES: Section<'_> = Section {
    base: 0xffff_ffff_8100_0000,
    bytes: &[0xff, 0xe0, 0x90, 0xeb, 0x03, 0xcc, 0xcc, 0xcc, 0x90, 0xff, 0xe0],
    space: AddressSpace::Any,
};

/// The addresses of the instructions of each lane, in one sink.
#[derive(Debug, Default, PartialEq)]
struct InLanes {
    lane: usize,
    insns: Vec<(usize, u64)>,
}

impl SliceSink for InLanes {
    fn begins(&mut self, slice: &TraceSlice) {
        self.lane = slice.lane;
    }
}

impl ExecutionSink for InLanes {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.insns.extend(insns.map(|ip| (self.lane, ip)));
    }

    fn event(&mut self, _: &Event) {}
}

#[test]
fn threads_switch_where_the_kernels_function_for_that_begins() {
    // A system call, the switch, and what goes on in a program.
    let before = [&psb(10, 0x1000)[..], &TO_KERNEL].concat();
    let after = [&[0x6d, 2, 0, 0, 0x81, 0xff, 0xff][..], &TO_KERNEL].concat();
    let trace = [&before[..], &after, &TO_PROGRAM, &[0x01]].concat();
    let sections =
        PROGRAMS.map(|bytes| [Section { base: 0x1000, bytes, space: AddressSpace::Any }, SWITCHES]);
    let (early, late) = (before.len(), before.len() + after.len());
    let slice = |range, lane, tsc| TraceSlice { trace: 0, range, lane, image: lane, is_switch: true, tsc };
    let (kernel, at) = (SWITCHES.base, SWITCHES.base + 8);
    // The record's time is before the function begins, or after it.
    for (cut, switch_ip) in [(early, Some(at)), (late, Some(at)), (late, None)] {
        let session = Session {
            traces: vec![&trace],
            mapped: vec![],
            sections: None,
            near: vec![0],
            config: Config::default(),
            images: sections.iter().map(|sections| Image::new(sections)).collect(),
            lanes: vec![0, 1],
            slices: vec![slice(0..cut, 0, 10), slice(cut..trace.len(), 1, 20)],
            windows: vec![],
            switch_ip,
        };
        let mut seen = [Seen::default(), Seen::default()];
        session.follow(&mut seen);
        let blocks = seen.map(|seen| seen.blocks);
        let mut alone = [InLanes::default()];
        session.follow(&mut alone);
        let [InLanes { insns, .. }] = alone;
        let first = [(0, 0x1000), (0, kernel), (0, kernel + 2), (0, kernel + 3)];
        let second = [(1, at), (1, at + 1), (1, kernel), (1, 0x1002)];
        match switch_ip {
            Some(_) => {
                assert_eq!(blocks[0], [(0x1000, 1), (kernel, 1), (kernel + 2, 2)], "{cut}");
                assert_eq!(blocks[1], [(at, 2), (kernel, 1), (0x1002, 1)], "{cut}");
                assert_eq!(insns, [first, second].concat(), "{cut}");
            }
            // Then a packet tells.
            None => assert_ne!(insns, [first, second].concat()),
        }
    }
}

#[test]
fn what_comes_right_before_a_switch_is_the_first_programs() {
    // TIP.PGE (1002), TIP.PGD: a few bytes, and then the PSB+ at which the other thread begins.
    let stretch = |time| [&PSB[..], &tsc(time), &[0x99, 1, 0x02, 0x23, 0x31, 2, 0x10, 0x01]].concat();
    let trace = [stretch(10), stretch(20)].concat();
    let found = places(&trace, Config::default(), &[0, 15], 0).unwrap();
    let cut = found[1].offset;
    assert_eq!((found.len(), cut), (2, trace.len() / 2));
    let sections = PROGRAMS.map(|bytes| [Section { base: 0x1000, bytes, space: AddressSpace::Any }]);
    let slice = |range, lane, tsc| TraceSlice { trace: 0, range, lane, image: lane, is_switch: true, tsc };
    let session = Session {
        traces: vec![&trace],
        mapped: vec![],
        sections: None,
        near: vec![0],
        config: Config::default(),
        images: sections.iter().map(|sections| Image::new(sections)).collect(),
        lanes: vec![0, 1],
        slices: vec![slice(0..cut, 0, 10), slice(cut..trace.len(), 1, 20)],
        windows: vec![],
        switch_ip: None,
    };
    let mut seen = [Seen::default(), Seen::default()];
    session.follow(&mut seen);
    assert_eq!(seen.map(|seen| (seen.blocks, seen.errors)), [(vec![(0x1002, 2)], 0), (vec![(0x1002, 1)], 0)]);
}

#[test]
fn what_is_due_waits_until_the_program_is_left_and_the_last_of_several_counts() {
    let found = |times: &[u64], trace: &[u8]| {
        let places = places(trace, Config::default(), times, 0).unwrap();
        places.into_iter().map(|place| (place.number, place.tsc)).collect::<Vec<_>>()
    };
    // It is in a program when the time comes, which ends at 30.
    let trace =
        [&psb(10, 0x1000)[..], &tsc(20), &TO_PROGRAM, &tsc(30), &TO_KERNEL, &TO_KERNEL, &[0x01]].concat();
    assert_eq!(found(&[0, 15], &trace), [(0, 10), (1, 30)]);
    assert_eq!(found(&[0, 15, 16, 17, 31], &trace), [(0, 10), (3, 30)]);
    assert_eq!(found(&[0, 31], &trace), [(0, 10)]);
    // A PSB+ after a loss, and one at which tracing is off.
    let twice = [&trace[..], &[0x09], &psb(40, 0x1000)].concat();
    assert_eq!(found(&[0, 35], &twice), [(0, 10), (1, 40)]);
    assert_eq!(places(&[&PSB[..], &[0x02, 0x23], &TO_KERNEL].concat(), Config::default(), &[0, 1], 0), None);
}

#[test]
fn the_upper_bits_of_a_time_are_those_near() {
    let near = (5 << 56) + 3;
    let found = |near| places(&psb(10, 0x1000), Config::default(), &[0], near).unwrap()[0].tsc;
    assert_eq!(found(near), (5 << 56) + 10);
    assert_eq!(found((5 << 56) - 3), (5 << 56) + 10);
    assert_eq!(found((5 << 56) + (1 << 55) + 11), (6 << 56) + 10);
}

#[test]
fn slices_of_several_traces_come_in_the_order_of_time() {
    // The same thread on two processors.
    let traces = [[psb(10, 0x1002), psb(30, 0x1002)].concat(), psb(20, 0x1002)];
    let sections = [Section { base: 0x1002, bytes: &[0x90], space: AddressSpace::Any }];
    let session = |slices| Session {
        traces: traces.iter().map(|trace| &**trace).collect(),
        mapped: vec![],
        sections: None,
        near: vec![0; 2],
        config: Config::default(),
        images: Rc::new([Image::new(&sections)]),
        lanes: vec![0],
        slices,
        windows: vec![],
        switch_ip: None,
    };
    let half = traces[0].len() / 2;
    let slice =
        |trace: usize, range, tsc| TraceSlice { trace, range, lane: 0, image: 0, is_switch: false, tsc };
    struct Order(Vec<u64>);
    impl SliceSink for Order {
        fn begins(&mut self, slice: &TraceSlice) {
            self.0.push(slice.tsc);
        }
    }
    impl ExecutionSink for Order {
        fn event(&mut self, _: &Event) {}
    }
    let slices = vec![slice(0, 0..half, 10), slice(0, half..2 * half, 30), slice(1, 0..half, 20)];
    let mut order = [Order(vec![])];
    session(slices.clone()).follow(&mut order);
    assert_eq!(order[0].0, [10, 20, 30]);
    session(slices).follow_traces(1..2, &mut order);
    assert_eq!(order[0].0, [10, 20, 30, 20]);
}

/// All that a sink is told, in order.
#[derive(Clone, Debug, Default, PartialEq)]
struct ToldCalls(Vec<String>);

impl SliceSink for ToldCalls {
    fn begins(&mut self, slice: &TraceSlice) {
        self.0.push(format!("{slice:?}"));
    }

    fn stops(&mut self, end: SliceEnd) {
        self.0.push(format!("{end:?}"));
    }
}

impl ExecutionSink for ToldCalls {
    const BLOCKS: bool = true;
    const SPANS: bool = true;

    fn span(&mut self, span: pugmark_decoder_core::time::Span) {
        self.0.push(format!("{span:?}"));
    }

    fn block(&mut self, block: &Block) {
        self.0.push(format!("{block:?}"));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(format!("{event:?}"));
    }

    fn lost(&mut self, lost: &Lost) {
        self.0.push(format!("{lost:?}"));
    }

    fn reached(&mut self, offset: u64) {
        self.0.push(format!("reached {offset}"));
    }
}

/// A sink that is told each block once, and then knows it by its number.
#[derive(Default)]
struct ByNumber {
    told: ToldCalls,
    numbers: BlockNumbers,
    known: Vec<Block>,
    next: u32,
    /// The number of blocks that came by their numbers alone.
    alone: usize,
}

impl SliceSink for ByNumber {
    fn turn_to_cache(&mut self, cache: usize) {
        self.numbers.turn_to(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        self.told.begins(slice);
    }

    fn stops(&mut self, end: SliceEnd) {
        self.told.stops(end);
    }
}

impl ExecutionSink for ByNumber {
    const BLOCKS: bool = true;
    const NUMBERS: bool = true;
    const SPANS: bool = true;

    fn numbered(&mut self, generation: u64) {
        self.numbers.numbered(generation);
    }

    fn passes(&mut self, number: u32) -> bool {
        self.next = number;
        let known = self.known.get((self.numbers.given(number) as usize).wrapping_sub(1));
        self.alone += known.iter().count();
        known.into_iter().for_each(|block| self.told.block(block));
        known.is_none()
    }

    fn block(&mut self, block: &Block) {
        self.known.push(*block);
        self.numbers.give(self.next, self.known.len() as u32);
        self.told.block(block);
    }

    fn span(&mut self, span: pugmark_decoder_core::time::Span) {
        self.told.span(span);
    }

    fn event(&mut self, event: &Event) {
        self.told.event(event);
    }

    fn lost(&mut self, lost: &Lost) {
        self.told.lost(lost);
    }

    fn reached(&mut self, offset: u64) {
        self.told.reached(offset);
    }
}

#[test]
fn on_two_threads_sinks_are_told_the_same_in_the_same_order() {
    let loops = |count| b"\x2d\x02\x10".repeat(count);
    // A switch as above after more blocks than are passed on at once; an error, and more after it.
    let trace = [
        &psb(10, 0x1002)[..],
        &loops(9_000),
        b"\x2d\x00\x10",
        &TO_KERNEL,
        &tsc(20),
        &TO_KERNEL,
        &TO_PROGRAM,
        &loops(5_000),
        b"\x09",
        &psb(30, 0x1002),
        &loops(100),
    ]
    .concat();
    let sections: Vec<Vec<_>> = PROGRAMS
        .iter()
        .map(|bytes| vec![Section { base: 0x1000, bytes, space: AddressSpace::Any }, KERNEL])
        .collect();
    let found = places(&trace, Config::default(), &[0, 15], 0).unwrap();
    let cut = found[1].offset;
    let slice = |range, lane, tsc| TraceSlice { trace: 0, range, lane, image: lane, is_switch: true, tsc };
    let whole = vec![slice(0..trace.len(), 0, 10)];
    for (slices, switch_ip) in [
        (vec![slice(0..cut, 0, 10), slice(cut..trace.len(), 1, 20)], None),
        (vec![slice(0..cut, 0, 10), slice(cut..trace.len(), 1, 20)], Some(KERNEL.base)),
        (whole, None),
    ] {
        let session = Session {
            traces: vec![&trace],
            mapped: vec![],
            sections: None,
            near: vec![0],
            config: Config::default(),
            images: sections.iter().map(|sections| Image::new(sections)).collect(),
            lanes: vec![0, 1],
            slices,
            windows: vec![],
            switch_ip,
        };
        for sinks in [1, 2] {
            let [mut one, mut two] = [vec![ToldCalls::default(); sinks], vec![ToldCalls::default(); sinks]];
            session.follow(&mut one);
            assert!(beside::follow(&session, &sections, 0..1, &mut two));
            let told: usize = one.iter().map(|told| told.0.len()).sum();
            assert!(told > 20_000, "{told}");
            assert!(one == two, "{sinks} {switch_ip:?}");
            for on_two in [false, true] {
                let mut numbered: Vec<_> = (0..sinks).map(|_| ByNumber::default()).collect();
                match on_two {
                    true => assert!(beside::follow(&session, &sections, 0..1, &mut numbered)),
                    false => session.follow(&mut numbered),
                }
                let alone: usize = numbered.iter().map(|sink| sink.alone).sum();
                // Where threads switch at an instruction, no block has a number.
                assert_eq!(alone > 10_000, switch_ip.is_none(), "{alone} {sinks} {on_two}");
                assert!(numbered.iter().map(|sink| &sink.told).eq(&one), "{sinks} {switch_ip:?} {on_two}");
            }
        }
    }
}

#[test]
fn a_sink_that_knows_blocks_by_number_is_told_the_same_part_as_others() {
    // The second block comes first where the other one is known by its number.
    let blocks = [b"\x2d\x02\x10".repeat(4), b"\x2d\x00\x10".to_vec()].concat();
    let trace = [psb(10, 0x1002), blocks.repeat(10)].concat();
    let sections = [Section { base: 0x1000, bytes: PROGRAMS[0], space: AddressSpace::Any }];
    let all = Session::alone(&trace, Image::new(&sections), Config::default());
    let told = |window| {
        let session = Session { windows: vec![window], ..all.clone() };
        let (mut every, mut numbered) = ([ToldCalls::default()], [ByNumber::default()]);
        session.follow(&mut every);
        session.follow(&mut numbered);
        assert!(every[0] == numbered[0].told, "{:?}\n{:?}", every[0].0, numbered[0].told.0);
        numbered[0].alone
    };
    let alone: usize = (0..60).map(|at| told(0..at) + told(at..u64::MAX)).sum();
    assert!(alone > 1000, "{alone}");
}
