//! HLT with the packets of power events: each time the processor goes to sleep and wakes.

use core::sync::atomic::Ordering::Relaxed;

use crate::arch::apic;
use crate::arch::traps::TICKS;
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_decoder_core::packet::{Packet, Packets};
use x86_64::instructions::interrupts;

/// Number of times that the timer wakes the processor.
const TICKS_WANTED: u64 = 5;
/// Ticks of the timer's clock between interrupts: 1 to 40 ms, with timers of 24 MHz to 1 GHz that count every second
/// tick.
const PERIOD: u32 = 500_000;

/// Sleeps until the timer has interrupted a few times.
#[derive(Default)]
pub(super) struct Power {
    ticks: u64,
    slept: u64,
}

impl Workload for Power {
    fn plan(&self) -> Plan {
        Plan::everything().configured(|config| config.power_events(true)).with_packets(true)
    }

    fn run(&mut self) {
        let before = TICKS.load(Relaxed);
        interrupts::disable();
        apic::start_timer(PERIOD);
        while self.ticks < TICKS_WANTED {
            self.slept += 1;
            // STI admits an interrupt only after HLT has begun.
            interrupts::enable_and_hlt();
            interrupts::disable();
            self.ticks = TICKS.load(Relaxed) - before;
        }
        apic::start_timer(0);
        interrupts::enable();
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("enough ticks", u64::from(self.ticks >= TICKS_WANTED), 1)
    }

    fn check_trace(&self, trace: &[u8]) -> Result<(), Mismatch> {
        let count = |is: fn(&Packet) -> bool| {
            Packets::new(trace).flatten().filter(|(_, packet)| is(packet)).count() as u64
        };
        expect("PWRE packets", count(|packet| matches!(packet, Packet::Pwre(_))), self.slept)?;
        expect("EXSTOP packets", count(|packet| matches!(packet, Packet::Exstop(_))), self.slept)?;
        // Each sleep ends by an interrupt.
        expect("PWRX packets", count(|packet| matches!(packet, Packet::Pwrx(_))), self.slept)
    }
}
