//! PTWRITE: values that the program itself writes into the trace.

use core::arch::asm;
use pugmark_decoder_core::packet::{Packet, Packets, PtwPayload};
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::intel::pt::{Feature, PtCapabilities};

use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect, numbers};

const ROUNDS: usize = 40;

/// Writes numbers to the trace, from registers and from memory, of four and of eight bytes.
pub(super) struct Ptwrite {
    /// The processor has the instruction.
    there: bool,
    sum: u64,
}

impl Ptwrite {
    pub(super) fn new() -> Self {
        let there =
            PtCapabilities::of_this_processor().is_ok_and(|capabilities| capabilities.has(Feature::Ptwrite));
        Self { there, sum: 0 }
    }
}

impl Workload for Ptwrite {
    fn plan(&self) -> Plan {
        Plan::everything()
            .configured(|config: PtConfig| config.ptwrite(true).fup_on_ptw(true))
            .with_packets(true)
    }

    fn run(&mut self) {
        for number in numbers(5).take(ROUNDS) {
            if self.there {
                // SAFETY: the processor has the instruction, which only reads its operand.
                unsafe {
                    asm!(
                        "ptwrite {0}", "ptwrite {0:e}", "ptwrite qword ptr [{1}]", "ptwrite dword ptr [{1}]",
                        in(reg) number, in(reg) &raw const number, options(nostack, preserves_flags, readonly),
                    );
                }
            }
            self.sum = self.sum.wrapping_add(number);
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("sum", self.sum, numbers(5).take(ROUNDS).fold(0, u64::wrapping_add))
    }

    fn check_trace(&self, trace: &[u8]) -> Result<(), Mismatch> {
        let (mut fours, mut eights) = (0u64, 0u64);
        for (_, packet) in Packets::new(trace).flatten() {
            let Packet::Ptw(ptw) = packet else { continue };
            match ptw.payload {
                PtwPayload::Four(value) => fours = fours.wrapping_add(value.into()),
                PtwPayload::Eight(value) => eights = eights.wrapping_add(value),
            }
        }
        let low = numbers(5).take(ROUNDS).map(|number| number & 0xffff_ffff).sum::<u64>();
        expect("sum of four bytes written", fours, 2 * low)?;
        expect("sum of eight bytes written", eights, self.sum.wrapping_mul(2))
    }
}
