//! A debug store whose buffer is unmapped or read-only when the first record is written. The processor's page fault
//! goes to the kernel, which repairs the page; later records are written.
//!
//! Only user level is recorded: a record of the handler itself would fault again before the handler could repair the
//! page.

use core::sync::atomic::Ordering::Relaxed;
use x86_64::registers::model_specific::Msr;

use super::user::User;
use crate::arch::memory;
use crate::arch::paging::{self, Revocation};
use crate::arch::traps::AREA_FAULTS;
use crate::arch::user::UserEntry;
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_protocol::Level;

const IA32_DS_AREA: u32 = 0x600;

/// Work at user level, with a page of the buffer revoked.
pub(super) struct AreaFaults {
    user: User,
    revocation: Revocation,
    /// A debug store is recording.
    recorded: bool,
    faults: u64,
}

impl AreaFaults {
    pub(super) fn new(revocation: Revocation) -> Self {
        Self {
            user: User::new(UserEntry::Interrupt, true, Level::User),
            revocation,
            recorded: false,
            faults: 0,
        }
    }
}

impl Workload for AreaFaults {
    fn plan(&self) -> Plan {
        self.user.plan().with_area()
    }

    fn run(&mut self) {
        let before = AREA_FAULTS.load(Relaxed);
        if let Some(index) = buffer_index() {
            self.recorded = true;
            paging::revoke(index, self.revocation);
        }
        self.user.run();
        self.faults = AREA_FAULTS.load(Relaxed) - before;
    }

    fn check(&self) -> Result<(), Mismatch> {
        self.user.check()?;
        expect("number of faults", self.faults, self.recorded.into())
    }
}

/// Returns the address of the next record if a debug store records: the buffer's index field in the management area,
/// whose fields have 64 bits.
fn buffer_index() -> Option<u64> {
    let store = raw_cpuid::CpuId::new().get_feature_info().is_some_and(|features| features.has_ds());
    if !store {
        return None;
    }
    // SAFETY: the processor has a debug store, and therefore the register.
    let area = unsafe { Msr::new(IA32_DS_AREA).read() };
    let area = memory::pointer(area).filter(|_| area != 0)?.cast::<[u64; 8]>();
    // SAFETY: this is the management area that the driver has set up: two buffers, each with base, index, maximum and
    // threshold.
    let fields = unsafe { area.read_volatile() };
    fields.as_chunks::<4>().0.iter().find(|[base, ..]| *base != 0).map(|[_, index, ..]| *index)
}
