//! The intercepted ports: the debug exit, the marker of trace sessions, and PCI configuration if the guest's processor
//! has its own northbridge.

use pugmark_monitor::guest::Instruction;

use crate::image::configuration::{FIRST_PORT, LAST_PORT};
use crate::image::exit::{DEBUG_EXIT_PORT, exit, fatal};
use crate::image::interrupts;
use crate::image::serial::report;
use crate::image::vcpu::Vcpu;

/// Port to which a guest writes the number of the trace session that it begins; 0 if it ends one.
pub(crate) const MARKER_PORT: u16 = 0xe700;

/// Bits of the information about an intercepted access: IN, string, size bits 6:4, port 31:16.
const IN: u64 = 1 << 0;
const STRING: u64 = 1 << 2;

impl Vcpu {
    /// Executes an access to an intercepted port.
    pub(crate) fn port(&mut self, info: u64, instruction: &Instruction) {
        let port = (info >> 16) as u16;
        let bytes = (info >> 4 & 7) as u32;
        let mask = match bytes {
            1 => 0xff,
            2 => 0xffff,
            _ => 0xffff_ffff,
        };
        if info & STRING != 0 {
            fatal!(
                "the guest accesses port {port:#x} by a string instruction at rip {:#x}, which is not \
                 emulated",
                self.cpu.rip
            );
        }
        if info & IN != 0 {
            let value = match port {
                FIRST_PORT..=LAST_PORT => self.read_configuration(port, bytes),
                // No device answers a read.
                _ => u32::MAX,
            };
            let kept = if mask == 0xffff_ffff { 0 } else { self.cpu.gpr[0] & !mask };
            self.cpu.gpr[0] = kept | u64::from(value) & mask;
            return self.finish(instruction, 0);
        }
        let value = (self.cpu.gpr[0] & mask) as u32;
        match port {
            DEBUG_EXIT_PORT => self.end_machine(value),
            MARKER_PORT => self.write_marker(value, instruction),
            FIRST_PORT..=LAST_PORT => {
                self.write_configuration(port, bytes, value);
                self.finish(instruction, 0);
            }
            _ => self.finish(instruction, 0),
        }
    }

    /// Begins or ends a session. Neither marker instruction belongs to the session itself.
    fn write_marker(&mut self, value: u32, instruction: &Instruction) {
        let session = value as u16;
        self.report_session_violations();
        if session == 0 {
            self.session = 0;
        }
        self.finish(instruction, 0);
        self.session = session;
    }

    /// Ends the machine at the guest's request. Before that, each processor reports the violations that it has not
    /// reported yet, and the log is closed.
    fn end_machine(&mut self, value: u32) -> ! {
        if !self.peers.end_others() {
            self.end_this_processor();
        }
        self.report_session_violations();
        self.report_steps();
        if let Some(truth) = &self.truth {
            truth.close(value);
        }
        exit(value)
    }

    /// Ends this processor because another processor ends the machine.
    pub(crate) fn end_this_processor(&mut self) -> ! {
        self.report_session_violations();
        self.report_steps();
        self.peers.record_end();
        loop {
            interrupts::wait_for_nmi();
        }
    }

    /// Prints how many instructions an entry into the stepped guest executed on average: stepping costs what its
    /// entries cost.
    fn report_steps(&self) {
        let Self { stepped, stepping_entries, .. } = *self;
        let Some(tenths) = (stepped * 10).checked_div(stepping_entries) else { return };
        report!(
            "processor {}: {stepped} instructions stepped in {stepping_entries} entries, {}.{} each",
            self.peers.index(),
            tenths / 10,
            tenths % 10
        );
    }
}
