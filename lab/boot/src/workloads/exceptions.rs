//! Exceptions during the work: #UD that is skipped, #PF that is repaired and retried, #BP.

use core::arch::asm;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::arch::paging::{DEMAND_BASE, DEMAND_PAGES, forget_demand_pages};
use crate::arch::traps::{BREAKPOINTS, PAGE_FAULTS, UNDEFINED_INSTRUCTIONS};
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_decoder_core::packet::{Packet, Packets};

const ROUNDS: u64 = 3;
const UNDEFINED: u64 = 10;
const BREAK: u64 = 5;

/// The type of interrupts and exceptions in a CFE packet, and the type of a page fault's address in an EVD packet.
const INTR: u8 = 1;
const CR2: u8 = 0;

/// Counts each exception.
#[derive(Default)]
pub(super) struct Exceptions {
    /// Traced with event packets.
    events: bool,
    undefined: u64,
    page_faults: u64,
    breakpoints: u64,
    sum: u64,
}

impl Workload for Exceptions {
    fn plan(&self) -> Plan {
        Plan::everything().configured(|config| config.events(self.events)).with_packets(self.events)
    }

    fn run(&mut self) {
        let before = [&UNDEFINED_INSTRUCTIONS, &PAGE_FAULTS, &BREAKPOINTS].map(|count| count.load(Relaxed));
        for round in 0..ROUNDS {
            self.sum += touch_demand_pages(round);
            forget_demand_pages();
            for _ in 0..UNDEFINED {
                // SAFETY: the handler skips the instruction, which has no other effect.
                unsafe { asm!("ud2", options(nomem, nostack)) };
            }
            for _ in 0..BREAK {
                // SAFETY: the handler returns to the next instruction, and this one has no other effect.
                unsafe { asm!("int3", options(nomem, nostack)) };
            }
        }
        let since = |count: &AtomicU64, before| count.load(Relaxed) - before;
        self.undefined = since(&UNDEFINED_INSTRUCTIONS, before[0]);
        self.page_faults = since(&PAGE_FAULTS, before[1]);
        self.breakpoints = since(&BREAKPOINTS, before[2]);
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("number of #UD", self.undefined, ROUNDS * UNDEFINED)?;
        // The first round finds the pages as the previous workload left them: absent, or never touched.
        expect("number of #PF", self.page_faults, ROUNDS * DEMAND_PAGES)?;
        expect("number of #BP", self.breakpoints, ROUNDS * BREAK)?;
        let pages = DEMAND_PAGES * (DEMAND_PAGES - 1) / 2;
        expect("sum", self.sum, (0..ROUNDS).map(|round| pages + round * DEMAND_PAGES).sum())
    }

    fn check_trace(&self, trace: &[u8]) -> Result<(), Mismatch> {
        if !self.events {
            return Ok(());
        }
        let count = |is: &dyn Fn(&Packet) -> bool| {
            Packets::new(trace).flatten().filter(|(_, packet)| is(packet)).count() as u64
        };
        let delivered = |vector| {
            count(&|packet| matches!(packet, Packet::Cfe(cfe) if (cfe.kind, cfe.vector) == (INTR, vector)))
        };
        expect("number of #UD events", delivered(6), self.undefined)?;
        expect("number of #PF events", delivered(14), self.page_faults)?;
        expect(
            "number of CR2 values",
            count(&|packet| matches!(packet, Packet::Evd(evd) if evd.kind == CR2)),
            self.page_faults,
        )
    }
}

impl Exceptions {
    pub(super) fn new(events: bool) -> Self {
        forget_demand_pages();
        Self { events, ..Self::default() }
    }
}

/// Writes to each of the pages and reads it back.
fn touch_demand_pages(round: u64) -> u64 {
    (0..DEMAND_PAGES)
        .map(|page| {
            let word = (DEMAND_BASE + page * 4096) as *mut u64;
            // SAFETY: nothing else uses the page, and the page is present when the access completes.
            unsafe { word.write_volatile(page + round) };
            // SAFETY: as above.
            unsafe { word.read_volatile() }
        })
        .sum()
}
