//! What the guest's software does against the manual is told on the serial port as it happens; whoever reads that judges it.
//!
//! `monitor: violation processor=N NAME=COUNT…` is a rule that hardware does not enforce: how often each was broken since the
//! last such line. The first one of a session comes at once, what follows when the session ends. `monitor: refused
//! processor=N msr=0x… value=0x… rip=0x…: WHY` is a rule that hardware enforces by #GP; a read has no value.

use pugmark_monitor::hardware::{New, Violations};

use crate::image::serial::report;
use crate::image::vcpu::Vcpu;

/// What was told of one processor.
#[derive(Debug)]
pub(crate) struct Told {
    violations: Violations,
    in_session: bool,
}

impl Told {
    /// Nothing, on a processor that has these.
    pub(crate) const fn new(violations: Violations) -> Self {
        Self { violations, in_session: false }
    }
}

impl Vcpu {
    /// Tells the first of a session: what goes wrong at each instruction must not fill the port.
    pub(crate) fn tell_violation(&mut self) {
        if !self.told.in_session {
            self.told.in_session = self.tell_violations();
        }
    }

    /// Tells all of a session that ends.
    pub(crate) fn tell_session(&mut self) {
        self.tell_violations();
        self.told.in_session = false;
    }

    /// Tells what has come since the last time, if something has.
    fn tell_violations(&mut self) -> bool {
        let (before, now) = (self.told.violations, self.processor.violations());
        if now == before {
            return false;
        }
        report!("violation processor={}{}", self.peers.index(), New { before, now });
        self.told.violations = now;
        true
    }

    /// Tells of an access to `msr` at the present RIP that faults; `value` is what should have been written. What the
    /// register holds tells a value that it does not take from a register that is not there.
    pub(crate) fn tell_refusal(&mut self, msr: u32, value: Option<u64>) {
        let (processor, rip) = (self.peers.index(), self.cpu.rip);
        let Some(value) = value else {
            return report!("refused processor={processor} msr={msr:#x} rip={rip:#x}: cannot be read");
        };
        match self.register(msr) {
            Some(held) => report!(
                "refused processor={processor} msr={msr:#x} value={value:#x} rip={rip:#x}: not taken over {held:#x}"
            ),
            None => report!(
                "refused processor={processor} msr={msr:#x} value={value:#x} rip={rip:#x}: cannot be read either"
            ),
        }
    }
}
