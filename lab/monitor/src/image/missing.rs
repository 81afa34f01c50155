//! Reports the guest's accesses to memory that it does not have, each place once. As on real hardware, a read there
//! returns ones and a write is lost.
//!
//! `monitor: missing processor=N address=0x… rip=0x…: HOW`.

use pugmark_monitor::places::{MissingPlaces, Telling};
use spin::Mutex;

use crate::image::channel::report;
use crate::image::vcpu::Vcpu;

/// The places that any processor has reported.
static PLACES: Mutex<MissingPlaces> = Mutex::new(MissingPlaces::new());

impl Vcpu {
    /// Reports that the guest has no memory at `address`, which the instruction at RIP uses `how`.
    pub(crate) fn report_missing(&self, address: u64, how: &str) {
        let (processor, rip) = (self.peers.index(), self.at_rip);
        let telling = PLACES.lock().note(rip, address);
        if telling == Telling::None {
            return;
        }
        report!("missing processor={processor} address={address:#x} rip={rip:#x}: no memory is there {how}");
        if telling == Telling::Last {
            report!("further accesses to missing memory are not told");
        }
    }

    /// Ends one instruction's access to pages without memory. If no further place is reported, reads of them need not
    /// exit any more.
    pub(crate) fn close_holes(&mut self) {
        if self.nested.hole_is_open() {
            self.nested.close_holes(PLACES.lock().is_full());
        }
    }

    /// Reports the monitor's own accesses for the guest to missing memory since the last call.
    pub(crate) fn report_missing_of_hand(&self) {
        if let Some(address) = self.memory.take_missing() {
            self.report_missing(address, "by an instruction or event that the monitor executes");
        }
    }
}
