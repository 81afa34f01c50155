//! The Intel Processor Trace (PT) unit: its MSRs, the packets it generates, and the way of the packets into memory.
//!
//! `msr_rules.rs` alone decides which values WRMSR accepts. `packetizer` makes packets from instructions and events;
//! `output` writes them to the regions of a ToPA table (Table of Physical Addresses) or to a single range, and reports
//! when a region is full. This module joins them: it holds the registers' values, sets IA32_RTIT_STATUS and signals
//! PMIs.
//!
//! IP payloads, and the addresses compared with address ranges, are RIPs, not linear addresses: CPUID.14H.0:ECX.LIP is
//! clear in all profiles.
//!
//! Source: SDM vol. 3, Intel Processor Trace, in particular "Packet Decoding of RIP versus LIP".

mod msr_rules;
mod output;
mod packetizer;
#[cfg(test)]
mod tests;

use crate::intel::registers::{TRACE_TOPA_PMI, ctl, msr, status};
use crate::intel::taken::Taken;
use crate::intel::unit::{Bus, Seen, Shared, TracingUnit};
use crate::intel::{IntelProfile, IntelSettings};
use crate::{Delivery, GeneralProtection, Retired};
use msr_rules as rules;
pub use output::OperationalError;
use output::Output;
use packetizer::Packetizer;

/// The number of bytes that leave the internal buffer together, when output is not delayed.
const BATCH: usize = 64;

#[derive(Debug)]
pub(crate) struct Pt {
    profile: &'static IntelProfile,
    ctl: u64,
    /// Error, Stopped, PendPSB and PendToPAPMI; the rest of IA32_RTIT_STATUS is the packetizer's.
    sticky: u64,
    cr3_match: u64,
    addresses: [u64; 8],
    packetizer: Packetizer,
    output: Output,
    /// The number of bytes that stay in the internal buffer.
    visibility: usize,
    /// The number of bytes that leave it per instruction, if output can be too slow.
    drain: Option<usize>,
    error: Option<OperationalError>,
}

impl Pt {
    pub(crate) fn new(profile: &'static IntelProfile, settings: IntelSettings) -> Self {
        let capacity = settings.overflow.map_or(2048, |overflow| overflow.capacity.clamp(128, 2048));
        Self {
            profile,
            ctl: 0,
            sticky: 0,
            cr3_match: 0,
            addresses: [0; 8],
            packetizer: Packetizer::new(profile, settings),
            output: Output::new(profile),
            visibility: settings.visibility.min(capacity / 8) as usize,
            drain: settings.overflow.map(|overflow| overflow.drain as usize),
            error: None,
        }
    }

    /// Returns why Error was set last.
    pub(crate) fn operational_error(&self) -> Option<OperationalError> {
        self.error
    }

    fn tracing(&self) -> bool {
        self.ctl & ctl::TRACE_EN != 0
    }

    fn write_ctl(&mut self, value: u64, at: &Retired, bus: &mut Bus) -> Result<(), GeneralProtection> {
        rules::check_ctl(self.profile, self.ctl, value)?;
        let old = core::mem::replace(&mut self.ctl, value);
        match (old & ctl::TRACE_EN != 0, self.tracing()) {
            (false, true) => self.enable(at, bus),
            (true, false) => self.disable(old, at, bus),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    fn enable(&mut self, at: &Retired, bus: &mut Bus) {
        let inject = self.ctl & ctl::INJECT_PSB_PMI_ON_ENABLE != 0;
        let owed = if inject { self.sticky & (status::PEND_PSB | status::PEND_TOPA_PMI) } else { 0 };
        self.sticky &= !owed;
        if owed & status::PEND_TOPA_PMI != 0 {
            bus.signal(TRACE_TOPA_PMI);
        }
        if self.sticky & (status::ERROR | status::STOPPED) != 0 {
            return;
        }
        if let Err(error) = self.output.start(self.ctl, bus.mem) {
            self.fail(error);
            return;
        }
        let filter = (self.cr3_match, &self.addresses);
        let psb = owed & status::PEND_PSB != 0;
        self.packetizer.enable(self.ctl, filter, &at.after.effective(), at.tsc, psb);
        self.after_packets();
    }

    fn disable(&mut self, old: u64, at: &Retired, bus: &mut Bus) {
        // An overflow is resolved before the WRMSR completes.
        self.write_out(usize::MAX, bus);
        if self.packetizer.overflowed() {
            self.packetizer.boundary(&at.before.effective());
        }
        self.packetizer.disable(&at.before.effective(), at.tsc);
        self.write_out(usize::MAX, bus);
        self.output.finish(bus.mem, &mut bus.shared.violations);
        if old & ctl::INJECT_PSB_PMI_ON_ENABLE != 0 {
            if self.packetizer.psb_due() {
                self.sticky |= status::PEND_PSB;
            }
            if bus.shared.perfmon.recall() {
                self.sticky |= status::PEND_TOPA_PMI;
            }
        }
        bus.shared.perfmon.arrive(&mut bus.shared.violations);
    }

    fn read_status(&self) -> u64 {
        self.packetizer.status() | self.sticky
    }

    fn write_status(&mut self, value: u64) -> Result<(), GeneralProtection> {
        rules::check_status(self.profile, value)?;
        self.sticky = value & (status::ERROR | status::STOPPED | status::PEND_PSB | status::PEND_TOPA_PMI);
        let count = value >> status::PACKET_BYTE_CNT_SHIFT & status::PACKET_BYTE_CNT_MAX;
        self.packetizer.set_packet_byte_cnt(count as u32);
        Ok(())
    }

    /// After packets were generated: moves bytes to the output and handles the consequences.
    fn settle(&mut self, next: &crate::Context, bus: &mut Bus) {
        self.after_packets();
        let ready = self.packetizer.buffered().saturating_sub(self.visibility);
        let count = match self.drain {
            Some(drain) => ready.min(drain),
            None if ready >= BATCH => ready,
            None => 0,
        };
        if count > 0 {
            self.write_out(count, bus);
        }
        self.packetizer.boundary(next);
        self.after_packets();
    }

    fn after_packets(&mut self) {
        if self.packetizer.take_stopped() {
            self.sticky |= status::STOPPED;
        }
    }

    /// Moves up to `count` bytes from the internal buffer to the output.
    fn write_out(&mut self, mut count: usize, bus: &mut Bus) {
        while count > 0 && self.packetizer.buffered() > 0 {
            let written =
                self.output.write(self.packetizer.front(count), bus.mem, &mut bus.shared.violations);
            self.packetizer.consume(written.count);
            count -= written.count;
            let ends = written.stop || written.error.is_some();
            if ends && (written.int || bus.shared.perfmon.on_the_way()) {
                bus.shared.violations.stopped_in_skid += 1;
            }
            if written.stop {
                self.sticky |= status::STOPPED;
                self.packetizer.cut();
            }
            if written.int {
                bus.signal(TRACE_TOPA_PMI);
            }
            if let Some(error) = written.error {
                self.fail(error);
            }
        }
    }

    fn fail(&mut self, error: OperationalError) {
        self.error = Some(error);
        self.sticky |= status::ERROR;
        self.packetizer.cut();
    }

    /// Writes one of the MSRs that can be written only while TraceEn is clear.
    fn write_configuration(&mut self, number: u32, value: u64) -> Result<(), GeneralProtection> {
        if self.tracing() {
            return Err(GeneralProtection);
        }
        match number {
            msr::IA32_RTIT_OUTPUT_BASE => {
                rules::check_output_base(self.profile, value)?;
                self.output.set_base(value);
            }
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => {
                rules::output_exists(self.profile)?;
                self.output.set_mask_ptrs(value);
            }
            msr::IA32_RTIT_STATUS => self.write_status(value)?,
            msr::IA32_RTIT_CR3_MATCH => {
                rules::check_cr3_match(self.profile, value)?;
                self.cr3_match = value;
            }
            msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B => {
                let index = number - msr::IA32_RTIT_ADDR0_A;
                rules::check_addr(self.profile, index, value)?;
                self.addresses[index as usize] = value;
            }
            _ => return Err(GeneralProtection),
        }
        Ok(())
    }
}

impl TracingUnit for Pt {
    fn owns_msr(&self, number: u32) -> bool {
        self.profile.has_pt()
            && matches!(
                number,
                msr::IA32_RTIT_OUTPUT_BASE
                    | msr::IA32_RTIT_OUTPUT_MASK_PTRS
                    | msr::IA32_RTIT_CTL..=msr::IA32_RTIT_CR3_MATCH
                    | msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B
            )
    }

    fn read_msr(&self, number: u32, _: &Shared) -> Result<u64, GeneralProtection> {
        match number {
            msr::IA32_RTIT_OUTPUT_BASE => rules::output_exists(self.profile).map(|()| self.output.base()),
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => {
                rules::output_exists(self.profile).map(|()| self.output.mask_ptrs())
            }
            msr::IA32_RTIT_CTL => Ok(self.ctl),
            msr::IA32_RTIT_STATUS => Ok(self.read_status()),
            msr::IA32_RTIT_CR3_MATCH => rules::cr3_match_exists(self.profile).map(|()| self.cr3_match),
            msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B => {
                let index = number - msr::IA32_RTIT_ADDR0_A;
                rules::addr_exists(self.profile, index).map(|()| self.addresses[index as usize])
            }
            _ => Err(GeneralProtection),
        }
    }

    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        at: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection> {
        match number {
            msr::IA32_RTIT_CTL => self.write_ctl(value, at, bus),
            _ => self.write_configuration(number, value),
        }
    }

    fn steps(&self, _: &Shared) -> bool {
        self.tracing()
    }

    fn retire(&mut self, retired: &Retired, seen: &Seen, bus: &mut Bus) {
        let (before, after) = (retired.before.effective(), retired.after.effective());
        self.packetizer.retire(&Retired { before, after, ..*retired }, seen.decoded);
        self.settle(&after, bus);
    }

    fn deliver(&mut self, delivery: &Delivery, _: &Taken, bus: &mut Bus) {
        let (before, after) = (delivery.before.effective(), delivery.after.effective());
        self.packetizer.deliver(&Delivery { before, after, ..*delivery });
        self.settle(&after, bus);
    }
}
