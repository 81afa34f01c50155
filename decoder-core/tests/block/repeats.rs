//! Traces that repeat themselves, as loops of calls, returns and indirect branches do.

use crate::compare::compare;
use pugmark_decoder_core::{
    Error,
    block::BlockDecoder,
    config::{Config, Dialect},
    graph::{
        Graph,
        edges::{EDGES, EdgeMap},
    },
    image::{AddressSpace, Image, Section},
    last_ip::LastIp,
    packet::{Encoder, Mnt, ModeExec, Mtc, Packet, Tnt},
};

/// Functions of two each, near each other and far apart: their addresses differ in bit 12, and the pairs above bit 15,
/// above bit 31, and above bit 47.
const FUNCTIONS: [u64; 10] = [A, B, C, D, E, F, G, H, I, J];
const A: u64 = 0x1000;
const B: u64 = 0x2000;
const C: u64 = 0x7_1000;
const D: u64 = 0x7_2000;
const E: u64 = 0xffff_8000_0000_1000;
const F: u64 = 0xffff_8000_0000_2000;
const G: u64 = 0xffff_8000_0007_1000;
const H: u64 = 0xffff_8000_0007_2000;
const I: u64 = 0x0100_0000_0000_1000;
const J: u64 = 0x0100_0000_0000_2000;

/// The code of a function, which calls the other one of the two.
fn code(at: u64) -> Vec<u8> {
    let distance: i32 = if at & 0x1000 == 0 { -0x1000 } else { 0x1000 };
    let call = (distance - 11).to_le_bytes();
    [
        // +0: je +4
        &[0x74, 0x02][..],
        // +2: call rax
        &[0xff, 0xd0],
        // +4: je +11
        &[0x74, 0x05],
        // +6: call to the other function
        &[0xe8],
        &call,
        // +11: je +15
        &[0x74, 0x02],
        // +13: jmp rax
        &[0xff, 0xe0],
        // +15: ret
        &[0xc3],
    ]
    .concat()
}

/// A processor that executes these functions, as far as its trace depends on it.
struct Processor {
    ip: u64,
    /// Where calls return to, all of them, and those among the last that a compressed return may use.
    calls: Vec<u64>,
    known: usize,
    last_ip: LastIp,
    outcomes: Vec<bool>,
    trace: Vec<u8>,
}

/// What a program decides at a branch.
#[derive(Clone, Copy)]
struct Decision {
    taken: bool,
    target: u64,
    /// A return that could be compressed is not.
    named: bool,
}

impl Processor {
    fn new(ip: u64) -> Self {
        let (calls, outcomes) = (vec![], vec![]);
        let mut new = Self { ip, calls, known: 0, last_ip: LastIp::new(), outcomes, trace: vec![] };
        new.psb();
        new
    }

    /// The trace, with enough after it for the fast way.
    fn end(mut self) -> Vec<u8> {
        self.flush();
        [&self.trace[..], &[0; 16]].concat()
    }

    /// An event that says nothing about the code.
    fn mnt(&mut self) {
        self.flush();
        self.emit(&Packet::Mnt(Mnt { payload: 0 }));
    }

    /// Executes a conditional branch, or returns.
    fn goes(&mut self, taken: bool) -> &mut Self {
        self.step(Decision { taken, target: 0, named: false });
        self
    }

    /// Executes an indirect branch.
    fn goes_to(&mut self, target: u64) -> &mut Self {
        self.step(Decision { taken: false, target, named: false });
        self
    }

    /// From the start of a function: calls another one.
    fn calls(&mut self, target: u64) -> &mut Self {
        self.goes(false).goes_to(target)
    }

    /// From the start of a function, or from where it goes on after a call: returns.
    fn returns(&mut self) -> &mut Self {
        while self.ip & 15 != 15 {
            self.goes(true);
        }
        self.goes(true)
    }

    /// From the start of a function: calls the other one directly, which calls back, and so on, and all return.
    fn nests(&mut self, calls: usize) -> &mut Self {
        self.goes(true);
        for _ in 0..calls {
            self.goes(false).goes(true);
        }
        for _ in 0..calls {
            self.returns();
        }
        self
    }

    /// As [`returns`](Self::returns), but the trace names the target.
    fn named_return(&mut self) -> &mut Self {
        while self.ip & 15 != 15 {
            self.goes(true);
        }
        self.step(Decision { taken: true, target: C, named: true });
        self
    }

    /// From the start of a function, or from where it goes on after a call: jumps.
    fn jumps(&mut self, target: u64) -> &mut Self {
        while self.ip & 15 != 11 {
            self.goes(true);
        }
        self.goes(false).goes_to(target)
    }

    fn emit(&mut self, packet: &Packet) {
        let mut memory = [0; 16];
        let mut encoder = Encoder::new(&mut memory);
        encoder.emit(packet).expect("there is room");
        self.trace.extend_from_slice(encoder.trace());
    }

    /// Starts to trace at the processor's address, or goes on with a PSB+.
    fn psb(&mut self) {
        self.flush();
        self.emit(&Packet::Psb);
        self.emit(&Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }));
        self.last_ip = LastIp::new();
        let ip = self.last_ip.whole(self.ip);
        self.emit(&Packet::Fup(ip));
        self.emit(&Packet::PsbEnd);
        self.known = 0;
    }

    fn flush(&mut self) {
        let outcomes = std::mem::take(&mut self.outcomes);
        for some in outcomes.chunks(6) {
            let bits = some.iter().fold(0, |bits, taken| bits << 1 | u64::from(*taken));
            self.emit(&Packet::TntShort(Tnt { bits, len: some.len() as u8 }));
        }
    }

    fn outcome(&mut self, taken: bool) {
        self.outcomes.push(taken);
        if self.outcomes.len() == 6 {
            self.flush();
        }
    }

    fn target(&mut self, ip: u64) {
        self.flush();
        let ip = self.last_ip.compress(ip);
        self.emit(&Packet::Tip(ip));
    }

    fn call(&mut self) {
        self.known = (self.known + 1).min(64);
    }

    /// Executes up to the next branch that the trace has, and that one.
    fn step(&mut self, decision: Decision) {
        let base = self.ip & !0xfff;
        match self.ip & 0xfff {
            at @ (0 | 4 | 11) => {
                self.outcome(decision.taken);
                self.ip += if !decision.taken {
                    2
                } else if at == 4 {
                    7
                } else {
                    4
                };
            }
            2 => {
                self.calls.push(self.ip + 2);
                self.call();
                self.target(decision.target);
                self.ip = decision.target;
            }
            6 => {
                self.calls.push(self.ip + 5);
                self.call();
                self.ip = base ^ 0x3000;
                self.step(decision);
            }
            13 => {
                self.target(decision.target);
                self.ip = decision.target;
            }
            _ => {
                let to = self.calls.pop().unwrap_or(if decision.target == 0 { C } else { decision.target });
                let compressed = self.known > 0 && !decision.named;
                self.known = self.known.saturating_sub(1);
                if compressed {
                    self.outcome(true);
                } else {
                    self.target(to);
                }
                self.ip = to;
            }
        }
    }
}

/// Loops that go round many times and sometimes leave their way, by that many different decisions.
fn trace(random: &mut fastrand::Rng, longest: usize) -> Vec<u8> {
    let mut processor = Processor::new(FUNCTIONS[0]);
    let decide = |random: &mut fastrand::Rng, calls| Decision {
        taken: random.u8(..8) >= calls,
        target: FUNCTIONS[random.usize(..FUNCTIONS.len())] + [0, 0, 4, 11][random.usize(..4)],
        named: random.u8(..8) == 0,
    };
    for _ in 0..random.usize(1..4) {
        // Some loops call more than they return, up to more calls than the stack has.
        let calls = random.u8(2..7);
        // An event often comes at the same place.
        let event_at = FUNCTIONS[random.usize(..FUNCTIONS.len())] + [0, 4, 11][random.usize(..3)];
        let decisions: Vec<Decision> = (0..longest).map(|_| decide(random, calls)).collect();
        for step in 0..random.usize(100..1000) {
            // Much the same at each branch each time, so that the processor soon goes round in a loop.
            let at = processor.ip as usize % 16 + 16 * (processor.ip >> 12) as usize + step % 3;
            let decision = if random.u8(..) == 0 { decide(random, 4) } else { decisions[at % longest] };
            processor.step(decision);
            if processor.ip == event_at && random.bool() {
                processor.mnt();
            }
            match random.u16(..1000) {
                0 => processor.psb(),
                1 => {
                    processor.flush();
                    processor.emit(&Packet::Mtc(Mtc { ctc: random.u8(..) }));
                }
                2 => {
                    processor.flush();
                    processor.emit(&Packet::Pad);
                }
                _ => {}
            }
        }
    }
    processor.end()
}

/// The code of all functions.
fn all_code() -> Vec<(u64, Vec<u8>)> {
    FUNCTIONS.iter().map(|at| (*at, code(*at))).collect()
}

fn sections(code: &[(u64, Vec<u8>)]) -> Vec<Section<'_>> {
    code.iter().map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any }).collect()
}

/// Compares all ways to decode a trace. Returns how often parts of it were known, and how many errors there are.
fn compared(what: &str, trace: &[u8], config: Config<'_>) -> (u64, u64) {
    let code = all_code();
    let sum = compare(trace, Image::new(&sections(&code)), config)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    (sum.repeated, sum.errors)
}

/// How often each loop goes round: often enough to be known.
const LAPS: usize = 30;

#[test]
fn a_return_leads_to_its_call_although_the_bytes_are_those_of_another_call() {
    // C or E calls others, of which the last one is always the same. So the bytes after that are the same, too.
    for others in [&[D][..], &[B, D], &[B, F, D], &[B, F, A, D], &[B, F, A, F, D], &[B, F, A, F, B, D]] {
        let mut processor = Processor::new(C);
        for lap in 0..4 * LAPS {
            for other in others {
                processor.calls(*other);
            }
            for _ in others {
                processor.returns();
            }
            let rare = lap > LAPS && lap % 7 == 0;
            processor.jumps(if rare { E } else { C });
        }
        let (repeated, errors) = compared(&format!("{others:x?}"), &processor.end(), Config::new());
        assert!(repeated > 50 && errors == 0, "{others:x?}: {repeated}, {errors}");
    }
}

#[test]
fn an_ip_is_compressed_against_the_last_one_although_the_block_and_the_bytes_are_those_of_another() {
    // An event is between the return to C and the jump, which the last call leads to another place.
    for (usual, other) in [([D, C, D], [B, A, B]), ([B, C, D], [F, G, H]), ([B, A, B], [J, I, J])] {
        let mut processor = Processor::new(C);
        for lap in 0..4 * LAPS {
            let [first, to, second] = if lap > LAPS && lap % 7 == 0 { other } else { usual };
            processor.calls(first).returns().mnt();
            processor.jumps(to).calls(second).returns().jumps(C);
        }
        let (repeated, errors) =
            compared(&format!("{usual:x?}, {other:x?}"), &processor.end(), Config::new());
        assert!(repeated > 50 && errors == 0, "{usual:x?}, {other:x?}: {repeated}, {errors}");
    }
}

#[test]
fn no_more_returns_are_compressed_than_the_stack_has_room_for_calls() {
    let mut errors = 0;
    for calls in 60..70 {
        for (laps, depth) in [(0, 0), (LAPS, 1), (LAPS, 3), (LAPS, 6)] {
            let mut processor = Processor::new(C);
            for call in 0..calls {
                processor.calls(if call % 2 == 0 { D } else { C });
            }
            // With the stack full, or nearly so, calls that return.
            for _ in 0..laps {
                match depth {
                    1 => processor.calls(A).returns(),
                    3 => processor.calls(A).calls(D).calls(F).returns().returns().returns(),
                    _ => processor.nests(depth),
                };
                processor.jumps(C);
            }
            while processor.known > 0 {
                processor.returns();
            }
            processor.flush();
            let (_, none) = compared(&format!("{calls}, {laps}, {depth}"), &processor.trace, Config::new());
            assert_eq!(none, 0, "{calls}, {laps}, {depth}");
            // One more, as no processor does it.
            processor.known = 1;
            processor.returns();
            errors +=
                compared(&format!("{calls}, {laps}, {depth}, too many"), &processor.end(), Config::new()).1;
        }
    }
    assert!(errors >= 20, "{errors}");
}

#[test]
fn returns_whose_target_is_named_take_a_call_from_the_stack_by_the_manual_and_not_in_libipt() {
    let mut processor = Processor::new(C);
    for _ in 0..4 * LAPS {
        processor.calls(D).calls(A).named_return().returns().jumps(C);
        processor.calls(D).named_return().jumps(C);
    }
    // What was called before a PSB has no compressed return.
    for call in 0..40 {
        processor.calls(if call % 2 == 0 { D } else { C });
    }
    processor.psb();
    for _ in 0..40 {
        processor.returns();
    }
    let trace = processor.end();
    for dialect in [Dialect::Manual, Dialect::Libipt] {
        let (repeated, _) = compared(&format!("{dialect:?}"), &trace, Config { dialect, ..Config::new() });
        assert!(repeated > 50, "{dialect:?}: {repeated}");
    }
    // One graph for both.
    let code = all_code();
    let sections = sections(&code);
    let counts = |dialect, graph: &mut Graph<'_>| {
        let mut map = Box::new([0; EDGES]);
        let config = Config { dialect, ..Config::new() };
        let mut decoder = BlockDecoder::with_config(&trace, Image::new(&sections), config);
        while decoder.resync().is_some() {
            let _: Result<(), Error> = decoder.visit(graph, &mut EdgeMap::<true>::new(&mut map));
        }
        map
    };
    let (mut memory, mut other_memory) = (vec![0; 100_000], vec![0; 100_000]);
    let mut graph = Graph::new(&mut memory);
    for dialect in [Dialect::Manual, Dialect::Libipt, Dialect::Manual] {
        let expected = counts(dialect, &mut Graph::new(&mut other_memory));
        for _ in 0..5 {
            assert!(counts(dialect, &mut graph) == expected, "{dialect:?}");
        }
    }
}

#[test]
fn what_repeats_itself_is_forgotten_with_the_code() {
    let mut processor = Processor::new(C);
    for _ in 0..4 * LAPS {
        processor.calls(D).returns().jumps(A).calls(F).returns().jumps(C);
    }
    let trace = processor.end();
    // The same branches, but the return is one byte later.
    let code = all_code();
    let mut other = code.clone();
    for (_, bytes) in &mut other {
        bytes.splice(11.., [0x74, 0x03, 0xff, 0xe0, 0x90, 0xc3]);
    }
    let counts = |sections: &[Section<'_>], graph: &mut Graph<'_>| {
        let mut map = Box::new([0; EDGES]);
        let mut decoder = BlockDecoder::new(&trace, Image::new(sections));
        decoder.sync_forward();
        decoder.visit(graph, &mut EdgeMap::<true>::new(&mut map)).expect("the trace fits the code");
        map
    };
    let (mut memory, mut other_memory) = (vec![0; 100_000], vec![0; 100_000]);
    let mut graph = Graph::new(&mut memory);
    for sections in [sections(&code), sections(&other), sections(&code)] {
        let expected = counts(&sections, &mut Graph::new(&mut other_memory));
        for _ in 0..5 {
            assert!(counts(&sections, &mut graph) == expected);
        }
    }
    assert!(graph.statistics().repeated > 50, "{:?}", graph.statistics());
}

#[test]
fn loops_whose_trace_repeats_itself_have_the_same_edges_however_they_are_counted() {
    let mut random = fastrand::Rng::with_seed(0x7374_7265_7463);
    let (mut repeated, mut errors) = (0, 0);
    for round in 0..200 {
        let mut trace = trace(&mut random, 5 + round % 60);
        let (these, none) = compared(&format!("{round}"), &trace, Config::new());
        assert_eq!(none, 0, "{round}: {trace:x?}");
        repeated += these;
        for _ in 0..1 + trace.len() / 400 {
            let at = random.usize(..trace.len());
            trace[at] = random.u8(..);
        }
        errors += compared(&format!("{round}, damaged"), &trace, Config::new()).1;
    }
    println!("{repeated} repeats, {errors} errors");
    assert!(repeated > 5_000, "{repeated}");
    assert!(errors > 100, "{errors}");
}
