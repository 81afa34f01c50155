//! A simulated processor with three clocks that executes no code but knows the time, written from the manual: SDM vol.
//! 3, Intel Processor Trace, "Tracking Time", "Cycle-Accurate Mode" and the sections of the timing packets.
//!
//! Unlike the model, it has clocks that run between instructions, at frequencies that are not multiples of each other,
//! and it sends MTC packets at the crystal's edges, not when an instruction retires.

use fastrand::Rng;
use pugmark_decoder_core::{
    config::Clocks,
    packet::{Cbr, Cyc, Exstop, Ip, Mtc, Packet, Tma, Tnt, Tsc},
    time::Span,
};

/// The properties of the processor, and the packets that it generates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The true properties of the clocks. The reader may be given fewer.
    pub(crate) clocks: Clocks,
    pub(crate) mtc: bool,
    pub(crate) tma: bool,
    /// CycThresh in cycles, if CYC packets are on.
    pub(crate) cyc: Option<u64>,
    /// True if the TMA's fast counter is left at zero.
    pub(crate) no_fast_counter: bool,
    /// The rates of unusual events.
    pub(crate) rates: Rates,
    /// Maximum number of ticks that an instruction takes; a few take a thousand times as long.
    pub(crate) ticks: u64,
    pub(crate) long: bool,
    /// True if the TSC's 56 bits wrap around during the run.
    pub(crate) wraps: bool,
}

/// The rates of unusual events, in 1000 steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) psb: u32,
    pub(crate) speed: u32,
    pub(crate) sleep: u32,
    pub(crate) off: u32,
    pub(crate) overflow: u32,
    /// Consecutive MTCs are dropped.
    pub(crate) drop: u32,
    pub(crate) dropped: u64,
    /// Software writes the TSC.
    pub(crate) write: u32,
}

/// An instruction that was traced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    /// The TSC when it retired.
    pub(crate) tsc: u64,
    /// The packets around the instruction in the trace.
    pub(crate) span: Span,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) trace: Vec<u8>,
    pub(crate) instructions: Vec<Instruction>,
    /// The number of times that clocks were stopped, the TSC was written, and packets were lost.
    pub(crate) slept: usize,
    pub(crate) written: usize,
    pub(crate) overflows: usize,
}

/// Ratios of core clock to bus clock that occur.
pub(crate) const RATIOS: (u8, u8) = (8, 40);

pub(crate) fn run(setting: Setting, seed: u64, steps: usize) -> Run {
    let mut rng = Rng::with_seed(seed);
    let unit = 840 * u64::from(setting.clocks.cpuid_15h_eax.max(1));
    let mut processor = Processor {
        setting,
        unit,
        crystal: 840 * u64::from(setting.clocks.cpuid_15h_ebx.max(1)),
        // Starts long after reset, so that the counters' low bits have any value.
        now: rng.u64(1 << 40..1 << 44) * unit + rng.u64(..unit),
        phase: rng.u64(..unit),
        ratio: setting.clocks.nom_freq.clamp(RATIOS.0, RATIOS.1),
        cycle: 1,
        cycles: rng.u64(..1000),
        rest: 0,
        last_cyc: 0,
        sleeping: false,
        lossy: false,
        drop: 0,
        written: setting.clocks.tsc_adjust as u64,
        pending: vec![],
        offsets: vec![],
        traced: vec![],
        rng,
        run: Run::default(),
    };
    if setting.wraps {
        let room = processor.rng.u64(..setting.ticks * steps as u64 / 2);
        processor.written = (1_u64 << 56).wrapping_sub(processor.now / unit + room);
    }
    processor.set_ratio(processor.ratio);
    processor.last_cyc = processor.cycles;
    processor.psb();
    processor.located(Packet::TipPge(Ip::Update32(0x1000)));
    for _ in 0..steps {
        processor.step();
    }
    processor.flush();
    processor.located(Packet::TipPgd(Ip::Suppressed));
    processor.finish()
}

struct Processor {
    setting: Setting,
    /// The number of parts in a TSC tick; time is counted in these parts.
    unit: u64,
    /// The number of parts in a crystal tick.
    crystal: u64,
    now: u64,
    /// The distance of the TSC's edges from the crystal's.
    phase: u64,
    ratio: u8,
    /// The number of parts in a core cycle.
    cycle: u64,
    /// Core cycles so far.
    cycles: u64,
    /// Parts since the last core cycle.
    rest: u64,
    /// `cycles` at the last CYC packet.
    last_cyc: u64,
    sleeping: bool,
    /// True while packets are lost.
    lossy: bool,
    drop: u64,
    /// Software_Offset: the value that software has added to the TSC.
    written: u64,
    /// Branches whose outcome is not in a packet yet, by their numbers.
    pending: Vec<usize>,
    /// The offset of each branch's packet, if it has one.
    offsets: Vec<Option<u64>>,
    /// Each instruction's TSC and the numbers of the branches around it.
    traced: Vec<(u64, usize, usize)>,
    rng: Rng,
    run: Run,
}

impl Processor {
    fn tsc(&self) -> u64 {
        ((self.now + self.phase) / self.unit).wrapping_add(self.written)
    }

    fn set_ratio(&mut self, ratio: u8) {
        self.ratio = ratio;
        let nominal = self.unit * u64::from(self.setting.clocks.nom_freq.max(1)) / u64::from(ratio);
        // The bus clock is not exactly at its nominal frequency.
        self.cycle = (nominal * self.rng.u64(997..=1003) / 1000).max(1);
    }

    fn happens(&mut self, rate: u32) -> bool {
        self.rng.u32(..1000) < rate
    }

    fn step(&mut self) {
        let rates = self.setting.rates;
        if self.happens(rates.psb) {
            self.psb();
        }
        if self.happens(rates.speed) {
            let ratio = self.rng.u8(RATIOS.0..=RATIOS.1);
            self.set_ratio(ratio);
            self.put(Packet::Cbr(Cbr { ratio, reserved: 0 }));
        }
        if self.happens(rates.sleep) {
            self.sleep();
        }
        if self.happens(rates.off) {
            self.off();
        }
        if self.happens(rates.overflow) {
            self.overflow();
        }
        if self.happens(rates.drop) && self.drop == 0 {
            self.drop = self.rng.u64(1..=rates.dropped);
        }
        if self.happens(rates.write) {
            self.run.written += 1;
            self.written = self.written.wrapping_add_signed(self.rng.i64(-1 << 40..1 << 40));
        }
        self.instruction();
    }

    fn instruction(&mut self) {
        let ticks = self.setting.ticks;
        let mut time = self.rng.u64(..=ticks * self.unit);
        if self.setting.long && self.rng.u16(..200) == 0 {
            time *= 1000;
        }
        self.advance(time);
        let branch = self.offsets.len();
        self.traced.push((self.tsc(), branch - 1, branch));
        match self.rng.u8(..5) {
            0 | 1 => {}
            2 | 3 => {
                if self.pending.is_empty() {
                    self.cyc();
                }
                self.pending.push(branch);
                self.offsets.push(None);
                if self.pending.len() == 6 {
                    self.flush();
                }
            }
            _ => {
                self.flush();
                self.cyc();
                let ip = self.rng.u16(..);
                self.located(Packet::Tip(Ip::Update16(ip.into())));
            }
        }
    }

    /// Advances the time, with all edges of the crystal clock in between.
    fn advance(&mut self, time: u64) {
        let end = self.now + time;
        let period = self.crystal << self.setting.clocks.mtc_freq;
        while self.setting.mtc && !self.sleeping {
            let edge = (self.now / period + 1) * period;
            if edge > end {
                break;
            }
            self.tick(edge);
            if self.drop > 0 {
                self.drop -= 1;
            } else {
                self.flush();
                self.cyc();
                self.put(Packet::Mtc(Mtc { ctc: (edge / period) as u8 }));
            }
        }
        self.tick(end);
    }

    fn tick(&mut self, to: u64) {
        if !self.sleeping {
            self.rest += to - self.now;
            self.cycles += self.rest / self.cycle;
            self.rest %= self.cycle;
        }
        self.now = to;
    }

    fn psb(&mut self) {
        self.flush();
        self.put(Packet::Psb);
        self.timestamp();
        self.put(Packet::PsbEnd);
    }

    fn timestamp(&mut self) {
        self.cyc();
        self.put(Packet::Tsc(Tsc { tsc: self.tsc() & 0xff_ffff_ffff_ffff }));
        if self.setting.tma {
            let (ctc, edge) = (self.now / self.crystal, self.now / self.crystal * self.crystal);
            let exact = (self.now - edge) / self.unit;
            let fc = if self.setting.no_fast_counter { 0 } else { exact as u16 & 0x1ff };
            self.put(Packet::Tma(Tma { ctc: ctc as u16, fc }));
        }
        self.put(Packet::Cbr(Cbr { ratio: self.ratio, reserved: 0 }));
    }

    /// Stops the core clock temporarily, and with it the TSC if it is not invariant.
    fn sleep(&mut self) {
        self.run.slept += 1;
        self.flush();
        self.cyc();
        if self.rng.bool() {
            self.put(Packet::Exstop(Exstop { ip: false }));
        }
        let awake = self.rng.u64(..100 * self.unit);
        self.advance(awake);
        self.sleeping = true;
        let before = self.tsc();
        let time = self.long_time();
        self.advance(time);
        if self.setting.clocks.tsc_varies && self.rng.bool() {
            self.written = self.written.wrapping_sub(self.tsc().wrapping_sub(before));
        }
        self.sleeping = false;
        self.flush();
        self.owed_cyc();
        self.timestamp();
    }

    fn off(&mut self) {
        self.run.slept += 1;
        self.flush();
        self.cyc();
        self.located(Packet::TipPgd(Ip::Suppressed));
        self.sleeping = true;
        let time = self.long_time();
        self.advance(time);
        self.sleeping = false;
        self.last_cyc = self.cycles;
        self.timestamp();
        self.located(Packet::TipPge(Ip::Update32(0x2000)));
    }

    fn overflow(&mut self) {
        self.run.overflows += 1;
        self.flush();
        self.lossy = true;
        let (before, time) = (self.traced.len(), self.rng.u64(..5000 * self.unit));
        for _ in 0..self.rng.usize(..20) {
            self.instruction();
        }
        self.advance(time);
        self.pending.clear();
        self.traced.truncate(before);
        self.lossy = false;
        self.last_cyc = self.cycles;
        self.put(Packet::Ovf);
        self.located(Packet::Fup(Ip::Update32(0x3000)));
    }

    fn long_time(&mut self) -> u64 {
        let bits = self.rng.u32(10..40);
        self.rng.u64(..1 << bits)
    }

    /// Sends a CYC packet if it is due.
    fn cyc(&mut self) {
        if self.setting.cyc.is_some_and(|threshold| self.cycles - self.last_cyc >= threshold.max(1)) {
            self.owed_cyc();
        }
    }

    fn owed_cyc(&mut self) {
        if self.setting.cyc.is_some() && self.cycles > self.last_cyc {
            self.put(Packet::Cyc(Cyc { cycles: self.cycles - self.last_cyc }));
            self.last_cyc = self.cycles;
        }
    }

    /// Sends the outcomes that are not in a packet yet.
    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let offset = self.run.trace.len() as u64;
        let pending = std::mem::take(&mut self.pending);
        if !self.lossy {
            pending.iter().for_each(|&branch| self.offsets[branch] = Some(offset));
        }
        let len = pending.len() as u8;
        let bits = self.rng.u64(..1 << len);
        self.put(Packet::TntShort(Tnt { bits, len }));
    }

    /// Sends a packet that gives the place of execution.
    fn located(&mut self, packet: Packet) {
        let offset = (!self.lossy).then_some(self.run.trace.len() as u64);
        self.offsets.push(offset);
        self.put(packet);
    }

    fn put(&mut self, packet: Packet) {
        // Buffered outcomes are sent before another packet. Only a CYC packet belongs to the packet after it.
        if !matches!(packet, Packet::Cyc(_) | Packet::TntShort(_)) {
            self.flush();
        }
        if self.lossy {
            return;
        }
        let mut bytes = [0; Packet::MAX_LEN];
        let size = packet.emit(&mut bytes).expect("room for a packet");
        self.run.trace.extend_from_slice(&bytes[..size]);
    }

    fn finish(mut self) -> Run {
        let located = |branch: usize| self.offsets[branch];
        let instructions = self.traced.iter().filter_map(|&(tsc, after, before)| {
            let span = Span { after: located(after)?, before: located(before)? };
            Some(Instruction { tsc, span })
        });
        self.run.instructions = instructions.collect();
        self.run
    }
}
