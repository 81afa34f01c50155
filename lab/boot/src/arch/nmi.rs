//! NMIs that the kernel sends to itself, in addition to those of the tracing unit.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use pugmark_kernel::msr::Msr;
use x86_64::registers::model_specific::Efer;

use super::{apic, registers};

/// NMIs that were sent or are planned, and have not arrived.
static OUTSTANDING: AtomicU64 = AtomicU64::new(0);
/// A PMI was served while NMIs were outstanding. Two NMIs that are pending at the same time merge into one.
static MAY_HAVE_MERGED: AtomicBool = AtomicBool::new(false);
/// One of these NMIs is being handled.
static HANDLING: AtomicBool = AtomicBool::new(false);

static TAKEN: AtomicU64 = AtomicU64::new(0);
static MERGED: AtomicU64 = AtomicU64::new(0);
static ACCESSES: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Counts of the NMIs and of their accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NmiCounts {
    /// NMIs that arrived.
    pub(crate) taken: u64,
    /// NMIs that did not arrive because they merged with a PMI.
    pub(crate) merged: u64,
    /// Accesses by the handler that may raise #GP.
    pub(crate) accesses: u64,
    /// Accesses that raised #GP.
    pub(crate) faults: u64,
}

/// Returns the counts so far. NMIs that are still outstanding will not arrive any more.
pub(crate) fn counts() -> NmiCounts {
    let outstanding = OUTSTANDING.swap(0, Relaxed);
    if MAY_HAVE_MERGED.swap(false, Relaxed) {
        MERGED.fetch_add(outstanding, Relaxed);
    }
    NmiCounts {
        taken: TAKEN.load(Relaxed),
        merged: MERGED.load(Relaxed),
        accesses: ACCESSES.load(Relaxed),
        faults: FAULTS.load(Relaxed),
    }
}

/// Sends an NMI to this processor. Its handler sends another one, which stays pending, and then makes an access that
/// raises #GP.
pub(crate) fn send() {
    counts();
    OUTSTANDING.store(2, Relaxed);
    apic::send_nmi();
    // The NMI arrives soon; the workload checks that it did.
    for _ in 0..100 {
        core::hint::spin_loop();
    }
}

/// Returns true if the access raises #GP on this processor; an emulated processor may allow it.
pub(crate) fn faults() -> bool {
    access()
}

/// Notes, in the handler, that a PMI was served.
pub(super) fn note_served_pmi() {
    MAY_HAVE_MERGED.fetch_or(OUTSTANDING.load(Relaxed) > 0, Relaxed);
}

/// Handles an NMI that is not the tracing unit's; returns whether [`send`] sent it.
///
/// # Panics
/// If it arrives while another one is being handled: its frame has overwritten that one's.
pub(super) fn handle_sent() -> bool {
    let outstanding = OUTSTANDING.load(Relaxed);
    if outstanding == 0 {
        return false;
    }
    assert!(!HANDLING.swap(true, Relaxed), "an NMI in an NMI");
    OUTSTANDING.store(outstanding - 1, Relaxed);
    TAKEN.fetch_add(1, Relaxed);
    if outstanding > 1 {
        apic::send_nmi();
        // If the #GP handler returned with IRET, the second NMI would come here.
        ACCESSES.fetch_add(1, Relaxed);
        FAULTS.fetch_add(u64::from(access()), Relaxed);
    }
    HANDLING.store(false, Relaxed);
    true
}

/// Returns the access that may raise #GP: the register, and a value with a reserved bit set.
pub(crate) fn probe() -> (u32, u64) {
    const EFER: u32 = 0xc000_0080;
    /// A bit that is reserved on every processor.
    const RESERVED: u64 = 1 << 2;
    (EFER, Efer::read_raw() | RESERVED)
}

/// Makes the access; returns whether it raised #GP.
fn access() -> bool {
    let (register, value) = probe();
    // SAFETY: either the access faults, or the processor ignores the bit.
    unsafe { registers::msr().wrmsr(register, value) }.is_err()
}
