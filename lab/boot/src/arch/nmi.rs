//! NMIs that do not come from the tracing unit: the kernel sends them to itself.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use pugmark_kernel::msr::Msr;
use x86_64::registers::model_specific::Efer;

use super::{apic, registers};

/// How many NMIs were sent, or will be, and have not come.
static OUTSTANDING: AtomicU64 = AtomicU64::new(0);
/// A PMI was served while NMIs were outstanding. Two NMIs that are pending at the same time become one.
static MAY_HAVE_MERGED: AtomicBool = AtomicBool::new(false);
/// One of these NMIs is being handled.
static HANDLING: AtomicBool = AtomicBool::new(false);

static TAKEN: AtomicU64 = AtomicU64::new(0);
static MERGED: AtomicU64 = AtomicU64::new(0);
static ACCESSES: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// What became of the NMIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NmiCounts {
    /// How many came.
    pub(crate) taken: u64,
    /// How many did not come because they became one with a PMI.
    pub(crate) merged: u64,
    /// How many accesses that may raise #GP the handler made.
    pub(crate) accesses: u64,
    /// How many of these accesses raised it.
    pub(crate) faults: u64,
}

/// Returns what became of the NMIs so far. NMIs that are still outstanding will not come any more.
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
    // The NMI comes soon; the workload checks that it came.
    for _ in 0..100 {
        core::hint::spin_loop();
    }
}

/// Whether the access raises #GP on this processor; an emulated processor may allow it.
pub(crate) fn faults() -> bool {
    access()
}

/// Called by the handler: a PMI was served.
pub(super) fn note_served_pmi() {
    MAY_HAVE_MERGED.fetch_or(OUTSTANDING.load(Relaxed) > 0, Relaxed);
}

/// Called by the handler for an NMI that is not the tracing unit's; returns whether it is one that was sent.
///
/// # Panics
/// If it came while another one was handled: its frame has overwritten that one's.
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

/// The access that may raise #GP: the register, and the value with a reserved bit that is written to it.
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
