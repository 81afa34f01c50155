//! The registers that all users of Intel's counters share: a counter's owner, its bit, its release.

use crate::cpuid::CpuIdReader;
use crate::lifecycle::InUse;
use crate::msr::{
    Counter, CounterAddresses, FixedCtrCtrl, GeneralProtection, GlobalInUse, Ia32PerfEvtSel, Msr, Register,
    RegisterAt, RegisterValue, TsxForceAbort, TypedMsr,
};

/// The events that clear a general-purpose counter, see [`Errata::COUNTERS_NEED_CLEARING`].
///
/// Source: Intel, specification updates of the processors named there; Linux, arch/x86/events/intel/core.c,
/// `intel_pmu_nhm_workaround`.
///
/// [`Errata::COUNTERS_NEED_CLEARING`]: crate::intel::errata::Errata::COUNTERS_NEED_CLEARING
const CLEARING_EVENTS: [u64; 3] = [0x43_00d2, 0x43_00b1, 0x43_00b5];

/// Clears a general-purpose counter on a processor with [`Errata::COUNTERS_NEED_CLEARING`].
///
/// [`Errata::COUNTERS_NEED_CLEARING`]: crate::intel::errata::Errata::COUNTERS_NEED_CLEARING
pub(crate) fn clear(msr: &mut impl Msr, n: u8) -> Result<(), GeneralProtection> {
    CLEARING_EVENTS
        .into_iter()
        .try_for_each(|event| write_at(msr, Ia32PerfEvtSel::at(n), Ia32PerfEvtSel::from_bits_retain(event)))
}

/// Returns the counters that IA32_PERF_GLOBAL_INUSE reports; none if the register does not exist. It also shows
/// counters that microcode uses.
pub(crate) fn reported(msr: &mut impl Msr, exists: bool) -> u64 {
    match exists {
        // A hypervisor may announce the register and not have it.
        true => msr.read::<GlobalInUse>().map_or(0, |GlobalInUse(counters)| counters),
        false => 0,
    }
}

/// Returns the other owner of a counter, if there is one; `reported` are the counters that [`reported`] returned.
///
/// An event select other than 0 means that a counter is in use, as in IA32_PERF_GLOBAL_INUSE, which not all processors
/// have.
pub(crate) fn owner(
    msr: &mut impl Msr,
    addresses: CounterAddresses,
    counter: Counter,
    reported: u64,
) -> Result<Option<InUse>, GeneralProtection> {
    let (control, used) = match counter {
        Counter::General(n) => {
            let control = msr.read_at(addresses.select(n))?;
            let used = control & Ia32PerfEvtSel::EVENT.union(Ia32PerfEvtSel::EN);
            (control.bits(), used.bits())
        }
        Counter::Fixed(n) => {
            let FixedCtrCtrl(control) = msr.read()?;
            (control, control & FixedCtrCtrl::mask(n))
        }
    };
    if used != 0 {
        return Ok(Some(InUse::Counter { counter, control }));
    }
    let reported = Some(reported).filter(|counters| counters & bit(counter) != 0);
    Ok(reported.map(|control| InUse::Counter { counter, control }))
}

/// Sets the fields of a fixed-function counter in IA32_FIXED_CTR_CTRL.
pub(crate) fn set_fixed(msr: &mut impl Msr, n: u8, fields: u64) -> Result<(), GeneralProtection> {
    let FixedCtrCtrl(control) = msr.read()?;
    write(msr, FixedCtrCtrl(control & !FixedCtrCtrl::mask(n) | fields))
}

/// Clears the register that makes a counter count, which shows others that it is free.
pub(crate) fn release(
    msr: &mut impl Msr,
    addresses: CounterAddresses,
    counter: Counter,
) -> Result<(), GeneralProtection> {
    match counter {
        Counter::General(n) => write_at(msr, addresses.select(n), Ia32PerfEvtSel::empty()),
        Counter::Fixed(n) => set_fixed(msr, n, 0),
    }
}

/// Returns the general-purpose counters that microcode uses now, as bits: counter 3 while it makes transactions of TSX
/// safe, unless it aborts all of them. CPUID must have leaf 7, as it has where it describes the counters.
///
/// Source: Intel, "Performance Monitoring Impact of Intel Transactional Synchronization Extension Memory Ordering
/// Issue"; Linux, arch/x86/events/intel/core.c, `tfa_get_event_constraints`.
pub(crate) fn microcode_counters(cpuid: &impl CpuIdReader, msr: &mut impl Msr) -> u8 {
    const RTM: u32 = 1 << 11;
    const TSX_FORCE_ABORT: u32 = 1 << 13;
    let leaf = cpuid.cpuid2(7, 0);
    if leaf.ebx & RTM == 0 || leaf.edx & TSX_FORCE_ABORT == 0 {
        return 0;
    }
    // A hypervisor may announce the register and not have it.
    match msr.read::<TsxForceAbort>() {
        Ok(control) if control.contains(TsxForceAbort::RTM_FORCE_ABORT) => 0,
        Ok(_) | Err(_) => 1 << 3,
    }
}

/// Returns the bit of a counter in the registers that have one bit for each counter.
pub(crate) const fn bit(counter: Counter) -> u64 {
    match counter {
        Counter::General(n) => 1 << n,
        Counter::Fixed(n) => 1 << (32 + n),
    }
}

/// Returns a mask of this many bits.
pub(crate) const fn width(bits: u8) -> u64 {
    match bits {
        64.. => u64::MAX,
        _ => (1 << bits) - 1,
    }
}

/// Writes a register that does not enable records.
pub(crate) fn write<R: Register>(msr: &mut impl Msr, value: R) -> Result<(), GeneralProtection> {
    write_at(msr, R::AT, value)
}

pub(crate) fn write_at<R: RegisterValue>(
    msr: &mut impl Msr,
    register: RegisterAt<R>,
    value: R,
) -> Result<(), GeneralProtection> {
    // SAFETY: no record is enabled by this register, so the processor writes nothing to memory, and no other owner uses
    // the counter.
    unsafe { msr.write_at(register, value) }
}
