//! The clock of a guest that has one of its own: what RDTSC reads, and the local APIC's timer.

use pugmark_monitor::apic_timer::{ApicTimer, TimerRate};
use pugmark_monitor::guest::Instruction;
use pugmark_monitor::guest_clock::GuestClock;
use pugmark_monitor::local_apic::{CURRENT_COUNT, DIVIDE, INITIAL_COUNT, LVT_RESET, LVT_TIMER};
use spin::Mutex;
use x86_64::registers::model_specific::Msr;

use crate::image::apic_registers::{read_register, write_register};
use crate::image::tsc::tsc;
use crate::image::vcpu::Vcpu;

/// Divide configuration: each count of the timer below is one of its clock.
const BY_ONE: u32 = 0b1011;

/// What the processors' clocks have in common.
pub(crate) struct SharedClock {
    time: Mutex<GuestClock>,
    /// Whether the machine has only one processor.
    alone: bool,
    /// The rate of the timer below.
    below: TimerRate,
}

impl SharedClock {
    /// Makes the clock, and measures how fast the local APIC's timer of this processor counts.
    pub(crate) fn new(per_instruction: u32, alone: bool) -> Self {
        /// Five milliseconds.
        const COUNTS: u32 = 5_000_000;
        write_register(LVT_TIMER, LVT_RESET);
        write_register(DIVIDE, BY_ONE);
        write_register(INITIAL_COUNT, u32::MAX);
        let (start, first) = (read_register(CURRENT_COUNT), tsc());
        let (mut counts, mut last) = (0, first);
        while counts < COUNTS {
            (counts, last) = (start - read_register(CURRENT_COUNT), tsc());
        }
        write_register(INITIAL_COUNT, 0);
        let ticks = u32::try_from(last - first).unwrap_or(u32::MAX);
        let time = Mutex::new(GuestClock::new(per_instruction));
        Self { time, alone, below: TimerRate { counts, ticks } }
    }

    /// Returns the frequency of the time-stamp counter. QEMU's timer counts nanoseconds.
    pub(crate) fn frequency(&self) -> u64 {
        u64::from(self.below.ticks) * 1_000_000_000 / u64::from(self.below.counts)
    }
}

/// One processor's clock.
pub(crate) struct OwnClock {
    shared: &'static SharedClock,
    /// Whether this processor is stepped.
    stepped: bool,
    timer: ApicTimer,
    /// Whether the timer's interrupt was raised and has not been taken yet. The timer below raises the same vector.
    raised: bool,
    /// The deadline that the timer below was set for, and the clock's offset then.
    armed: Option<(u64, u64)>,
}

impl OwnClock {
    pub(crate) fn new(shared: &'static SharedClock, rate: TimerRate) -> Self {
        Self { shared, stepped: false, timer: ApicTimer::new(rate), raised: false, armed: None }
    }

    /// Returns the time.
    pub(crate) fn now(&self) -> u64 {
        self.shared.time.lock().now(tsc())
    }

    /// Returns the frequency of the time-stamp counter.
    pub(crate) fn frequency(&self) -> u64 {
        self.shared.frequency()
    }

    /// Returns what the processor below must add to its counter while the guest runs freely; `None` if its guest must
    /// not read it, because another processor may be stepped meanwhile.
    pub(crate) fn offset(&self) -> Option<u64> {
        self.shared.alone.then(|| self.shared.time.lock().offset())
    }

    /// Notes whether this processor is stepped from now on.
    pub(crate) fn set_stepped(&mut self, stepped: bool) {
        if stepped != self.stepped {
            self.stepped = stepped;
            let mut time = self.shared.time.lock();
            if stepped { time.begin(tsc()) } else { time.end(tsc()) }
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
        time.now(tsc())
    }

    /// Returns the vector of the timer's interrupt if it is due; it must be raised then.
    pub(crate) fn take_due(&mut self) -> Option<u8> {
        self.timer.deadline()?;
        let vector = self.timer.take_due(self.now())?;
        self.raised = true;
        Some(vector)
    }

    /// Notes that an interrupt was taken. Returns whether it came from the timer below, whose interrupts the guest
    /// does not see.
    pub(crate) fn is_timers_below(&mut self, vector: u8) -> bool {
        if vector != self.timer.vector() {
            return false;
        }
        self.armed = None;
        !core::mem::take(&mut self.raised)
    }

    /// Lets the timer below interrupt this processor when the guest's timer is due.
    pub(crate) fn arm(&mut self) {
        /// The minimum time to the next interrupt while the clock may stand still.
        const LEAST: u64 = 200_000;
        let Some(deadline) = self.timer.deadline() else {
            if self.armed.take().is_some() {
                write_register(INITIAL_COUNT, 0);
            }
            return;
        };
        let time = *self.shared.time.lock();
        if self.timer.vector() < 0x10 || self.armed == Some((deadline, time.offset())) {
            return;
        }
        let TimerRate { counts, ticks } = self.shared.below;
        let left = deadline.saturating_sub(time.now(tsc()));
        let left = u128::from(left) * u128::from(counts) / u128::from(ticks.max(1));
        let least = if self.shared.alone { 1 } else { LEAST };
        let left = u32::try_from(left).unwrap_or(u32::MAX).max(least as u32);
        write_register(LVT_TIMER, self.timer.vector().into());
        write_register(DIVIDE, BY_ONE);
        write_register(INITIAL_COUNT, left);
        self.armed = Some((deadline, time.offset()));
    }

    /// Reads a register of the local APIC; `None` if it is not the timer's.
    pub(crate) fn read(&self, register: usize) -> Option<u32> {
        self.timer.read(register, self.now())
    }

    /// Writes that register. Returns `false` if it is not the timer's.
    pub(crate) fn write(&mut self, register: usize, value: u32) -> bool {
        let now = self.now();
        self.timer.write(register, value, now)
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
        self.clock.as_ref().map_or_else(tsc, OwnClock::now)
    }

    /// Says whether this processor is stepped, and raises the timer's interrupt if it is due.
    pub(crate) fn advance_clock(&mut self, stepped: bool) {
        let Some(clock) = &mut self.clock else { return };
        clock.set_stepped(stepped);
        if let Some(vector) = clock.take_due() {
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
