//! A processor that runs loops of calls, returns and indirect branches, so that its trace repeats itself.

use pugmark_decoder_core::{
    last_ip::LastIp,
    packet::{Encoder, Mnt, ModeExec, Mtc, Packet, Tnt},
};

/// Pairs of functions, near each other and far apart: the addresses in a pair differ in bit 12, those of pairs above
/// bit 15, above bit 31, and above bit 47.
pub(crate) const FUNCTIONS: [u64; 10] = [A, B, C, D, E, F, G, H, I, J];
pub(crate) const A: u64 = 0x1000;
pub(crate) const B: u64 = 0x2000;
pub(crate) const C: u64 = 0x7_1000;
pub(crate) const D: u64 = 0x7_2000;
pub(crate) const E: u64 = 0xffff_8000_0000_1000;
pub(crate) const F: u64 = 0xffff_8000_0000_2000;
pub(crate) const G: u64 = 0xffff_8000_0007_1000;
pub(crate) const H: u64 = 0xffff_8000_0007_2000;
pub(crate) const I: u64 = 0x0100_0000_0000_1000;
pub(crate) const J: u64 = 0x0100_0000_0000_2000;

/// Returns the code of a function, which calls the other one of its pair.
pub(crate) fn code(at: u64) -> Vec<u8> {
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
pub(crate) struct Processor {
    pub(crate) ip: u64,
    /// All return addresses, and (`known`) the number of the last ones that a compressed return may use.
    calls: Vec<u64>,
    pub(crate) known: usize,
    last_ip: LastIp,
    outcomes: Vec<bool>,
    pub(crate) trace: Vec<u8>,
}

/// A program's decision at a branch.
#[derive(Clone, Copy)]
pub(crate) struct Decision {
    taken: bool,
    target: u64,
    /// True if a compressible return is not compressed.
    named: bool,
}

impl Processor {
    pub(crate) fn new(ip: u64) -> Self {
        let (calls, outcomes) = (vec![], vec![]);
        let mut new = Self { ip, calls, known: 0, last_ip: LastIp::new(), outcomes, trace: vec![] };
        new.psb();
        new
    }

    /// Returns the trace, followed by enough bytes for the fast path.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.flush();
        [&self.trace[..], &[0; 16]].concat()
    }

    /// Sends an event that does not concern the code.
    pub(crate) fn mnt(&mut self) {
        self.flush();
        self.emit(&Packet::Mnt(Mnt { payload: 0 }));
    }

    /// Executes a conditional branch, or returns.
    pub(crate) fn goes(&mut self, taken: bool) -> &mut Self {
        self.step(Decision { taken, target: 0, named: false });
        self
    }

    /// Executes an indirect branch.
    pub(crate) fn goes_to(&mut self, target: u64) -> &mut Self {
        self.step(Decision { taken: false, target, named: false });
        self
    }

    /// Calls another function, from the start of a function.
    pub(crate) fn calls(&mut self, target: u64) -> &mut Self {
        self.goes(false).goes_to(target)
    }

    /// Returns, from the start of a function or from where it continues after a call.
    pub(crate) fn returns(&mut self) -> &mut Self {
        while self.ip & 15 != 15 {
            self.goes(true);
        }
        self.goes(true)
    }

    /// Calls the other function directly, from the start of a function. That calls back, and so on, and all return.
    pub(crate) fn nests(&mut self, calls: usize) -> &mut Self {
        self.goes(true);
        for _ in 0..calls {
            self.goes(false).goes(true);
        }
        for _ in 0..calls {
            self.returns();
        }
        self
    }

    /// Does the same as [`returns`](Self::returns), with a TIP.
    pub(crate) fn named_return(&mut self) -> &mut Self {
        while self.ip & 15 != 15 {
            self.goes(true);
        }
        self.step(Decision { taken: true, target: C, named: true });
        self
    }

    /// Jumps, from the start of a function or from where it continues after a call.
    pub(crate) fn jumps(&mut self, target: u64) -> &mut Self {
        while self.ip & 15 != 11 {
            self.goes(true);
        }
        self.goes(false).goes_to(target)
    }

    pub(crate) fn emit(&mut self, packet: &Packet) {
        let mut memory = [0; 16];
        let mut encoder = Encoder::new(&mut memory);
        encoder.emit(packet).expect("there is room");
        self.trace.extend_from_slice(encoder.trace());
    }

    /// Starts the trace at the processor's address, or continues it with a PSB+.
    pub(crate) fn psb(&mut self) {
        self.flush();
        self.emit(&Packet::Psb);
        self.emit(&Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }));
        self.last_ip = LastIp::new();
        let ip = self.last_ip.whole(self.ip);
        self.emit(&Packet::Fup(ip));
        self.emit(&Packet::PsbEnd);
        self.known = 0;
    }

    pub(crate) fn flush(&mut self) {
        let outcomes = std::mem::take(&mut self.outcomes);
        for some in outcomes.chunks(6) {
            let bits = some.iter().fold(0, |bits, taken| bits << 1 | u64::from(*taken));
            self.emit(&Packet::TntShort(Tnt { bits, len: some.len() as u8 }));
        }
    }

    pub(crate) fn outcome(&mut self, taken: bool) {
        self.outcomes.push(taken);
        if self.outcomes.len() == 6 {
            self.flush();
        }
    }

    pub(crate) fn target(&mut self, ip: u64) {
        self.flush();
        let ip = self.last_ip.compress(ip);
        self.emit(&Packet::Tip(ip));
    }

    pub(crate) fn call(&mut self) {
        self.known = (self.known + 1).min(64);
    }

    /// Executes up to and including the next branch that the trace has.
    pub(crate) fn step(&mut self, decision: Decision) {
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

/// Returns a trace of loops that run many times and sometimes deviate. `longest` is their number of decisions.
pub(crate) fn random_trace(random: &mut fastrand::Rng, longest: usize) -> Vec<u8> {
    let mut processor = Processor::new(FUNCTIONS[0]);
    let decide = |random: &mut fastrand::Rng, calls| Decision {
        taken: random.u8(..8) >= calls,
        target: FUNCTIONS[random.usize(..FUNCTIONS.len())] + [0, 0, 4, 11][random.usize(..4)],
        named: random.u8(..8) == 0,
    };
    for _ in 0..random.usize(1..4) {
        // Some loops call more than they return, up to more calls than the stack holds.
        let calls = random.u8(2..7);
        // An event often comes at the same place.
        let event_at = FUNCTIONS[random.usize(..FUNCTIONS.len())] + [0, 4, 11][random.usize(..3)];
        let decisions: Vec<Decision> = (0..longest).map(|_| decide(random, calls)).collect();
        for step in 0..random.usize(100..1000) {
            // Much the same decision at each branch each time, so that the processor soon runs in a loop.
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

/// Returns the code of all functions.
pub(crate) fn all_code() -> Vec<(u64, Vec<u8>)> {
    FUNCTIONS.iter().map(|at| (*at, code(*at))).collect()
}
