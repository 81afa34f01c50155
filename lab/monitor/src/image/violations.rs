//! Reports violations of the manual by the guest's software as they happen and, on request, all its accesses to the
//! tracing hardware's registers. The reader of these lines judges them.
//!
//! `monitor: violation processor=N NAME=COUNT…` reports rules that hardware does not enforce: the number of
//! violations of each since the previous line of this kind. The first violation of a session is reported at once,
//! the others when the session ends. `monitor: refused processor=N msr=0x… value=0x… rip=0x…: WHY` reports a rule
//! that hardware enforces by #GP; a read has no value. With `accesses=on`, the lines `monitor: read processor=N
//! msr=0x… value=0x… rip=0x…` and `monitor: wrote …` report each RDMSR and WRMSR that the tracing hardware
//! accepts.
//!
//! `monitor: not counted event=0x…` reports once that the guest has enabled a counter for an event that is not
//! modelled: the counter does not count, as on a processor on which the event never happens. The first of these lines
//! lists the modelled events.

use alloc::string::String;
use core::fmt::Write;

use pugmark_monitor::hardware::NewViolations;

use crate::image::channel::report;
use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Reports the first violation of a session. The others are delayed, because a violation at each instruction must
    /// not flood the port.
    pub(crate) fn report_first_violations(&mut self) {
        if !self.reported.in_session {
            self.reported.in_session = self.report_new_violations();
        }
    }

    /// Reports all violations of a session that ends.
    pub(crate) fn report_session_violations(&mut self) {
        self.report_new_violations();
        self.reported.in_session = false;
    }

    /// Reports the violations since the last report. Returns whether there were any.
    fn report_new_violations(&mut self) -> bool {
        let (before, now) = (self.reported.violations, self.processor.all_violations());
        if now == before {
            return false;
        }
        report!("violation processor={}{}", self.peers.index(), NewViolations { before, now });
        self.reported.violations = now;
        true
    }

    /// Reports that the guest read this value from `msr`, or wrote it, by the instruction at `rip`.
    pub(crate) fn report_access(&self, how: &str, msr: u32, value: u64, rip: u64) {
        report!("{how} processor={} msr={msr:#x} value={value:#x} rip={rip:#x}", self.peers.index());
    }

    /// Reports, once for each event, that `msr` selects one that is not modelled.
    pub(crate) fn report_event_that_is_not_counted(&mut self, msr: u32) {
        let Some(event) = self.processor.event_that_is_not_counted(msr) else { return };
        if self.reported.events.contains(&event) {
            return;
        }
        let mut counted = String::new();
        if self.reported.events.is_empty() {
            counted.push_str("; it counts");
            self.profile.each_event(|event| {
                // Writing to a string does not fail.
                let _ = write!(counted, " {event:#x}");
            });
        }
        self.reported.events.push(event);
        report!("not counted event={event:#x}: the model has no such event{counted}");
    }

    /// Reports a faulting access to `msr` at the current RIP; `value` is the value of a write. The register's content
    /// shows whether the register refuses the value or does not exist.
    pub(crate) fn report_refusal(&mut self, msr: u32, value: Option<u64>) {
        let (processor, rip) = (self.peers.index(), self.cpu.rip);
        let Some(value) = value else {
            return report!("refused processor={processor} msr={msr:#x} rip={rip:#x}: cannot be read");
        };
        match self.register(msr) {
            Some(held) => report!(
                "refused processor={processor} msr={msr:#x} value={value:#x} rip={rip:#x}: the register keeps {held:#x}"
            ),
            None => report!(
                "refused processor={processor} msr={msr:#x} value={value:#x} rip={rip:#x}: cannot be read either"
            ),
        }
    }
}
