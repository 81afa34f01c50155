//! NMIs of another cause than tracing: the kernel's own, which it sends to itself.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::msr::Msr;
use x86_64::registers::model_specific::Efer;

use super::apic;

/// NMIs that were sent, or are to be, and have not come.
static DUE: AtomicU64 = AtomicU64::new(0);
/// A PMI was served while some were due: two that wait at the same time are one.
static MAY_BE_ONE: AtomicBool = AtomicBool::new(false);
/// One is being handled.
static HANDLING: AtomicBool = AtomicBool::new(false);

static TAKEN: AtomicU64 = AtomicU64::new(0);
static MERGED: AtomicU64 = AtomicU64::new(0);
static ACCESSES: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// What became of the NMIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How many came.
    pub(crate) taken: u64,
    /// How many did not, because they became one with a PMI.
    pub(crate) merged: u64,
    /// How many accesses the handler made that may raise #GP.
    pub(crate) accesses: u64,
    /// How many of them did.
    pub(crate) faults: u64,
}

/// What became of the NMIs so far. What is still due does not come any more.
pub(crate) fn seen() -> Seen {
    let due = DUE.swap(0, Relaxed);
    if MAY_BE_ONE.swap(false, Relaxed) {
        MERGED.fetch_add(due, Relaxed);
    }
    Seen {
        taken: TAKEN.load(Relaxed),
        merged: MERGED.load(Relaxed),
        accesses: ACCESSES.load(Relaxed),
        faults: FAULTS.load(Relaxed),
    }
}

/// Sends an NMI to this processor. While it is handled another one is sent, which waits, and then an access raises #GP.
pub(crate) fn send() {
    seen();
    DUE.store(2, Relaxed);
    apic::send_nmi();
    // It comes soon; that it came is the workload's to check.
    for _ in 0..100 {
        core::hint::spin_loop();
    }
}

/// Whether an access raises #GP here: an emulated processor may let it be.
pub(crate) fn faults() -> bool {
    access()
}

/// For the handler: a PMI came.
pub(super) fn another_came() {
    MAY_BE_ONE.fetch_or(DUE.load(Relaxed) > 0, Relaxed);
}

/// For the handler, where the NMI is not the tracing unit's: whether it is one that was sent.
///
/// # Panics
/// If it came while another one was handled: its frame has overwritten the other's.
pub(super) fn take() -> bool {
    let due = DUE.load(Relaxed);
    if due == 0 {
        return false;
    }
    assert!(!HANDLING.swap(true, Relaxed), "an NMI in an NMI");
    DUE.store(due - 1, Relaxed);
    TAKEN.fetch_add(1, Relaxed);
    if due > 1 {
        apic::send_nmi();
        // Were the #GP ended by IRET, the second one would come here.
        ACCESSES.fetch_add(1, Relaxed);
        FAULTS.fetch_add(u64::from(access()), Relaxed);
    }
    HANDLING.store(false, Relaxed);
    true
}

/// The access that may raise #GP: the register, and the value with a reserved bit that is written to it.
pub(crate) fn probe() -> (u32, u64) {
    const EFER: u32 = 0xc000_0080;
    /// Reserved on every processor.
    const RESERVED: u64 = 1 << 2;
    (EFER, Efer::read_raw() | RESERVED)
}

/// Makes it; whether that raised #GP.
fn access() -> bool {
    let (register, value) = probe();
    // SAFETY: this is CPL 0 of the one processor, and the #GP handler obeys `fixup`.
    let mut msr = unsafe { GuardedMsr::new() };
    // SAFETY: either it faults, or the processor drops the bit.
    unsafe { msr.wrmsr(register, value) }.is_err()
}
