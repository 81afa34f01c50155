//! The guest's clock: the value of RDTSC, and the local APIC's timer.

use pugmark_monitor::apic_timer::{ApicTimer, TimerRate};
use pugmark_monitor::guest::Instruction;
use pugmark_monitor::guest_clock::{ClockRate, GuestClock};
use pugmark_monitor::local_apic::{CURRENT_COUNT, DIVIDE, INITIAL_COUNT, LVT_RESET, LVT_TIMER};
use spin::Mutex;
use x86_64::registers::model_specific::Msr;

use crate::image::apic_registers::{read_register, write_register};
use crate::image::tsc::tsc;
use crate::image::vcpu::Vcpu;

/// Divide configuration: each count of the timer below is one of its clock.
const BY_ONE: u32 = 0b1011;

/// The common part of all processors' clocks.
pub(crate) struct SharedClock {
    time: Mutex<GuestClock>,
    /// True if only the processor whose timer is set can stop the clock.
    alone: bool,
    rate: ClockRate,
    /// The counter below when this was made.
    start: u64,
    /// The rate of the timer below, by the guest's counter.
    below: TimerRate,
}

impl SharedClock {
    /// Makes the clock of a guest whose counter has this frequency, and measures the rate of this processor's counter.
    /// QEMU's timer counts nanoseconds.
    pub(crate) fn new(per_instruction: u32, alone: bool, guest_hz: u64) -> Self {
        /// Twenty milliseconds.
        const COUNTS: u32 = 20_000_000;
        write_register(LVT_TIMER, LVT_RESET);
        write_register(DIVIDE, BY_ONE);
        write_register(INITIAL_COUNT, u32::MAX);
        let first = Reading::best();
        while first.count - read_register(CURRENT_COUNT) < COUNTS {}
        let last = Reading::best();
        write_register(INITIAL_COUNT, 0);
        let (ticks, counts) = (last.tsc - first.tsc, first.count - last.count);
        let rate = ClockRate::measured(guest_hz, ticks, counts.into());
        let below =
            TimerRate { counts: 1_000_000, ticks: u32::try_from(guest_hz / 1000).unwrap_or(u32::MAX) };
        let time = Mutex::new(GuestClock::new(per_instruction));
        Self { time, alone, rate, start: first.tsc, below }
    }

    /// Returns the frequency of the guest's time-stamp counter.
    pub(crate) fn frequency(&self) -> u64 {
        self.rate.guest_hz
    }

    /// Returns the counter below in ticks of the guest's.
    fn below(&self) -> u64 {
        self.rate.guest_ticks(tsc().wrapping_sub(self.start))
    }
}

/// The timer below and the time-stamp counter at the same time.
struct Reading {
    count: u32,
    tsc: u64,
}

impl Reading {
    /// Returns the fastest of several readings: the host may have paused the others.
    fn best() -> Self {
        const TIMES: usize = 32;
        let read = || {
            let (before, count, after) = (tsc(), read_register(CURRENT_COUNT), tsc());
            (after - before, Self { count, tsc: before + (after - before) / 2 })
        };
        let (mut least, mut best) = read();
        for _ in 1..TIMES {
            let (took, reading) = read();
            if took < least {
                (least, best) = (took, reading);
            }
        }
        best
    }
}

/// The registers of a local APIC's timer.
#[derive(Clone, Copy)]
pub(crate) struct TimerRegisters {
    divide: u32,
    entry: u32,
    initial: u32,
}

impl TimerRegisters {
    /// Reads the timer below on this processor, which the monitor has not used yet.
    pub(crate) fn read() -> Self {
        let [divide, entry, initial] = [DIVIDE, LVT_TIMER, INITIAL_COUNT].map(read_register);
        Self { divide, entry, initial }
    }
}

/// One processor's clock.
pub(crate) struct OwnClock {
    shared: &'static SharedClock,
    /// This processor is stepped.
    stepped: bool,
    timer: ApicTimer,
    /// The timer's interrupt was raised and has not been taken yet. The timer below raises the same vector.
    raised: bool,
    /// The deadline that the host's timer was set for, and the difference between the host's counter and this clock at
    /// that moment; `None` while the host's timer is off.
    armed: Option<(u64, u64)>,
}

impl OwnClock {
    pub(crate) fn new(shared: &'static SharedClock, rate: TimerRate) -> Self {
        Self { shared, stepped: false, timer: ApicTimer::new(rate), raised: false, armed: None }
    }

    /// Returns the time.
    pub(crate) fn now(&self) -> u64 {
        self.shared.time.lock().now(self.shared.below())
    }

    /// Records whether this processor is stepped from now on.
    pub(crate) fn set_stepped(&mut self, stepped: bool) {
        if stepped != self.stepped {
            self.stepped = stepped;
            let (mut time, below) = (self.shared.time.lock(), self.shared.below());
            if stepped { time.begin(below) } else { time.end(below) }
        }
    }

    /// Notes that an instruction retires. Returns the time after it.
    pub(crate) fn retired(&mut self) -> u64 {
        let mut time = self.shared.time.lock();
        if self.stepped {
            time.retired()
        } else {
            time.retired_after_unseen()
        }
        time.now(self.shared.below())
    }

    /// Returns the vector of the timer's interrupt if it is due; it must be raised then.
    pub(crate) fn take_due(&mut self) -> Option<u8> {
        self.timer.deadline()?;
        let vector = self.timer.take_due(self.now())?;
        self.raised = true;
        Some(vector)
    }

    /// Notes that an interrupt was taken. Returns whether it came from the timer below, whose interrupts the guest does
    /// not see.
    pub(crate) fn is_timers_below(&mut self, vector: u8) -> bool {
        if vector != self.timer.vector() {
            return false;
        }
        self.armed = None;
        !core::mem::take(&mut self.raised)
    }

    /// Makes the timer below interrupt this processor when the guest's timer is due.
    pub(crate) fn arm(&mut self) {
        /// Minimum time to the next interrupt while the clock may be stopped.
        const LEAST: u64 = 200_000;
        let Some(deadline) = self.timer.deadline() else {
            if self.armed.take().is_some() {
                write_register(INITIAL_COUNT, 0);
            }
            return;
        };
        let time = *self.shared.time.lock();
        // The difference between the time and the counter below: it changes while a processor is stepped.
        let below = self.shared.below();
        let behind = below.wrapping_sub(time.now(below));
        if self.timer.vector() < 0x10 || self.armed == Some((deadline, behind)) {
            return;
        }
        let TimerRate { counts, ticks } = self.shared.below;
        let left = deadline.saturating_sub(time.now(below));
        let left = u128::from(left) * u128::from(counts) / u128::from(ticks.max(1));
        let least = if self.shared.alone { 1 } else { LEAST };
        let left = u32::try_from(left).unwrap_or(u32::MAX).max(least as u32);
        write_register(LVT_TIMER, self.timer.vector().into());
        write_register(DIVIDE, BY_ONE);
        write_register(INITIAL_COUNT, left);
        self.armed = Some((deadline, behind));
    }

    /// Reads a register of the local APIC; `None` if it is not the timer's.
    pub(crate) fn read(&self, register: usize) -> Option<u32> {
        self.timer.read(register, self.now())
    }

    /// Writes a register of the local APIC. Returns `false` if it is not the timer's.
    pub(crate) fn write(&mut self, register: usize, value: u32) -> bool {
        let now = self.now();
        self.timer.write(register, value, now)
    }

    /// Takes over what was written to the registers of the timer below. Its counts are converted: the guest's timer has
    /// another rate, and the same time must pass.
    pub(crate) fn take_over(&mut self, registers: TimerRegisters) {
        let TimerRegisters { divide, entry, initial } = registers;
        let TimerRate { counts, ticks } = self.shared.below;
        let ticks = u64::from(initial) * u64::from(ticks) / u64::from(counts.max(1));
        let initial = self.timer.counts(ticks).max(u32::from(initial != 0));
        for (register, value) in [(DIVIDE, divide), (LVT_TIMER, entry), (INITIAL_COUNT, initial)] {
            let is_timers = self.write(register, value);
            debug_assert!(is_timers, "{register:#x}");
        }
    }

    /// Resets the timer as INIT does.
    pub(crate) fn init(&mut self) {
        self.set_stepped(false);
        self.timer.init();
        self.raised = false;
        self.armed = None;
    }
}

impl Vcpu {
    /// Returns the guest's time-stamp counter.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Records whether this processor is stepped, and raises the timer's interrupt if it is due.
    pub(crate) fn advance_clock(&mut self, stepped: bool) {
        self.clock.set_stepped(stepped);
        if let Some(vector) = self.clock.take_due() {
            self.local_apic.interrupt_self(vector);
        }
    }

    /// Executes RDTSC or RDTSCP.
    pub(crate) fn rdtsc(&mut self, instruction: &Instruction) {
        const TSC_AUX: u32 = 0xc000_0103;
        let time = self.now();
        self.cpu.gpr[0] = time & 0xffff_ffff;
        self.cpu.gpr[2] = time >> 32;
        if instruction.bytes().ends_with(&[0x01, 0xf9]) {
            // SAFETY: a processor with RDTSCP has the register; the guest writes it without an exit.
            self.cpu.gpr[1] = unsafe { Msr::new(TSC_AUX).read() } & 0xffff_ffff;
        }
        self.finish(instruction, 0);
    }
}
