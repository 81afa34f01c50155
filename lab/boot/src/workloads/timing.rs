//! All timing packets: TSC, TMA, MTC and CYC.

use super::churn::Churn;
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_decoder_core::packet::{Packet, Packets};
use pugmark_kernel::intel::pt::PtConfig;

/// Some churn with timing packets.
#[derive(Default)]
pub(super) struct Timing {
    churn: Churn,
}

impl Workload for Timing {
    fn plan(&self) -> Plan {
        let timed = |config: PtConfig| config.tsc(true).mtc(9).cycles(1);
        Plan::everything().configured(timed).with_packets(true)
    }

    fn run(&mut self) {
        self.churn.turn(1_500);
    }

    fn check(&self) -> Result<(), Mismatch> {
        self.churn.check()
    }

    fn check_trace(&self, trace: &[u8]) -> Result<(), Mismatch> {
        let count = |is: fn(&Packet) -> bool| {
            Packets::new(trace).flatten().filter(|(_, packet)| is(packet)).count() as u64
        };
        expect("TSC packet", count(|packet| matches!(packet, Packet::Tsc(_))).min(1), 1)?;
        expect("TMA packet", count(|packet| matches!(packet, Packet::Tma(_))).min(1), 1)?;
        expect("MTC packets, up to 10", count(|packet| matches!(packet, Packet::Mtc(_))).min(10), 10)?;
        expect("CYC packets, up to 100", count(|packet| matches!(packet, Packet::Cyc(_))).min(100), 100)
    }
}
