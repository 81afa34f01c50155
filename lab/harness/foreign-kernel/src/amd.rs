//! Checks of AMD's processors: their name, counters, samples and last branches, including the interrupts that they
//! raise.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{FAULTED, Serial, check, refuses_read, refuses_write, try_rdmsr, try_wrmsr};

unsafe extern "C" {
    safe fn counted(session: u32, msr: u32, on: u64, off: u64);
    safe fn take_samples();
    safe static interrupts_taken: AtomicU64;
    safe static samples_taken: AtomicU64;
    safe static data_found: AtomicU64;
    safe static op_control: AtomicU64;
    safe static samples: [AtomicU64; 256];
}

/// Instructions between the two writes of `counted`; [`BRANCHES`] of them are branches.
const INSTRUCTIONS: u64 = 2004;
const BRANCHES: u64 = 500;

const PERF_EVT_SEL0: u32 = 0xc001_0000;
const PERF_CTR0: u32 = 0xc001_0004;
const NB_CFG: u32 = 0xc001_001f;
const IBS_OP_CTL: u32 = 0xc001_1033;
const IBS_CTL: u32 = 0xc001_103a;
const DEBUG_EXTN_CTL: u32 = 0xc000_010f;
const LAST_BRANCHES: u32 = 0xc001_0300;
/// EN and OS.
const ON: u64 = 1 << 22 | 1 << 17;
const INT: u64 = 1 << 20;
const NMI: u32 = 0x400;
/// The value of an LVT entry after reset.
const MASKED: u32 = 0x1_0000;

/// Returns true if CPUID names AMD as the vendor.
pub fn is_vendor() -> bool {
    let vendor = __cpuid_count(0, 0);
    [vendor.ebx, vendor.edx, vendor.ecx] == [0x6874_7541, 0x6974_6e65, 0x444d_4163]
}

pub fn cpuid() -> Result<(), &'static str> {
    let features = __cpuid_count(0x8000_0001, 0).ecx;
    check(features & 1 << 2 == 0, "SVM shows")?;
    check(features & 1 << 3 != 0, "no extended APIC space")?;
    let intels = [0xa, 0x14].map(|leaf| __cpuid_count(leaf, 0));
    check(intels.iter().all(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx] == [0; 4]), "Intel shows")?;
    check(apic_read(0x30) >> 31 == 1, "no extended APIC space in the version register")?;
    check(apic_read(0x400) >> 16 & 0xff != 0, "no extended LVT")
}

pub fn protection() -> Result<(), &'static str> {
    check(try_rdmsr(PERF_EVT_SEL0) == 0, "a counter is on after reset")?;
    const TEST: &str = "foreign-amd-protection";
    check(refuses_write(TEST, IBS_CTL, 0), "IBS_CTL can be written")?;
    check(refuses_read(TEST, 0xc001_0114), "VM_CR is there")?;
    check(refuses_read(TEST, 0x570), "IA32_RTIT_CTL is there")?;
    let extended = __cpuid_count(0x8000_0001, 0).ecx & 1 << 23 != 0;
    let there = if extended { try_rdmsr(0xc001_0208) != FAULTED } else { !refuses_read(TEST, 0xc001_0208) };
    check(there == extended, "extended counters are not what CPUID says")
}

pub fn counting() -> Result<(), &'static str> {
    for (session, event, expected) in [(30, 0xc0, INSTRUCTIONS), (31, 0xc2, BRANCHES)] {
        check(try_wrmsr(PERF_CTR0, 0) == 0, "the counter cannot be written")?;
        counted(session, PERF_EVT_SEL0, ON | event, event);
        check(try_rdmsr(PERF_CTR0) == expected, "a counter counts something else")?;
        check(rdpmc(0) == expected, "RDPMC reads something else")?;
    }
    Ok(())
}

pub fn overflow() -> Result<(), &'static str> {
    take_samples();
    apic_write(0x340, NMI);
    for (int, expected) in [(0, 0), (INT, 1)] {
        interrupts_taken.store(0, Relaxed);
        check(try_wrmsr(PERF_CTR0, 1000_u64.wrapping_neg()) == 0, "the counter cannot be written")?;
        counted(32, PERF_EVT_SEL0, ON | int | 0xc0, 0);
        check(interrupts_taken.load(Relaxed) == expected, "an overflow interrupts once, where it is to")?;
    }
    check(apic_read(0x340) == NMI, "the entry did not stay as it was")
}

pub fn sampling() -> Result<(), &'static str> {
    if __cpuid_count(0x8000_0001, 0).ecx & 1 << 10 == 0 {
        return check(
            refuses_read("foreign-amd-sampling", IBS_OP_CTL),
            "IBS is there without CPUID saying so",
        );
    }
    if try_rdmsr(IBS_CTL) & 1 << 8 == 0 {
        name_entry()?;
    }
    let entry = try_rdmsr(IBS_CTL) as u32 & 0xf;
    // If the entry has another value, Linux assumes that IBS is already in use.
    check(apic_read(0x500 + 0x10 * entry) == MASKED, "the extended entry is not as after reset")?;
    apic_write(0x500 + 0x10 * entry, NMI);
    // Sample ops if they can be counted.
    let ops = __cpuid_count(0x8000_001b, 0).eax & 1 << 4 != 0;
    let enable = 1 << 17;
    let on = enable | if ops { 1 << 19 } else { 0 } | 9;
    op_control.store(on, Relaxed);
    take_samples();
    // The maximum count is in the low bits.
    counted(33, IBS_OP_CTL, on, enable);
    op_control.store(0, Relaxed);
    check(try_wrmsr(IBS_OP_CTL, 0) == 0, "sampling cannot be ended")?;
    let taken = samples_taken.load(Relaxed);
    check(taken >= INSTRUCTIONS / 0x90 - 1, "too few samples")?;
    // Samples by cycles hit the same instructions repeatedly, so this may not hold there.
    check(!ops || data_found.load(Relaxed) != 0, "no sample has the address of the data")?;
    let _ = writeln!(Serial, "{taken} samples");
    for sample in samples.iter().take(taken as usize) {
        let _ = writeln!(Serial, "sample {:#x}", sample.load(Relaxed));
    }
    Ok(())
}

/// Prints the last branches; on a processor with branch sampling, those after an overflow.
pub fn branches() -> Result<(), &'static str> {
    const ALL_RECORDED: u64 = 0b11 << 3 | 1 << 5;
    let stack = __cpuid_count(0x8000_0022, 0);
    let sampling = __cpuid_count(0x8000_0008, 0).ebx >> 31 == 1;
    let depth = if stack.eax & 1 << 1 != 0 {
        counted(34, DEBUG_EXTN_CTL, 1 << 6, 0);
        stack.ebx >> 4 & 0x3f
    } else if sampling {
        take_samples();
        apic_write(0x340, NMI);
        interrupts_taken.store(0, Relaxed);
        check(try_wrmsr(DEBUG_EXTN_CTL, 0b111 << 2) == 0, "branch sampling cannot be turned on")?;
        check(try_wrmsr(PERF_CTR0, 100_u64.wrapping_neg()) == 0, "the counter cannot be written")?;
        counted(34, PERF_EVT_SEL0, ON | INT | 0xc4, 0);
        check(interrupts_taken.load(Relaxed) == 1, "the interrupt that was held back did not come once")?;
        check(try_rdmsr(DEBUG_EXTN_CTL) == ALL_RECORDED, "branch sampling did not end")?;
        16
    } else {
        let absent = refuses_read("foreign-amd-branches", DEBUG_EXTN_CTL);
        return check(absent, "branches are there without CPUID saying so");
    };
    for entry in (0..depth).map(|index| LAST_BRANCHES + 2 * index) {
        let _ = writeln!(Serial, "branch {:#x} {:#x}", try_rdmsr(entry), try_rdmsr(entry + 1));
    }
    Ok(())
}

/// Selects the second entry in F3x1CC through the configuration ports, because firmware has not set it.
fn name_entry() -> Result<(), &'static str> {
    check(config(0x8000_c300, None) == 0x1203_1022, "no northbridge")?;
    check(config(0x8000_0000, None) & 0xffff == 0x8086, "the machine's own host bridge is gone")?;
    check(try_wrmsr(NB_CFG, try_rdmsr(NB_CFG) | 1 << 46) == 0, "NB_CFG cannot be written")?;
    config(0x8100_c3cc, Some(0x101));
    check(config(0x8100_c3cc, None) == 0x101, "F3x1CC does not read back")?;
    check(try_rdmsr(IBS_CTL) == 0x101, "IBS_CTL does not show F3x1CC")
}

fn config(address: u32, value: Option<u32>) -> u32 {
    let read: u32;
    // SAFETY: accesses PCI configuration; the register that is written belongs to the tracing hardware, and no memory
    // is touched.
    unsafe {
        asm!("out dx, eax", in("dx") 0xcf8u16, in("eax") address, options(nomem, nostack));
        if let Some(value) = value {
            asm!("out dx, eax", in("dx") 0xcfcu16, in("eax") value, options(nomem, nostack));
        }
        asm!("in eax, dx", in("dx") 0xcfcu16, out("eax") read, options(nomem, nostack));
    }
    read
}

fn rdpmc(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: this is level 0, and the counter exists.
    unsafe { asm!("rdpmc", in("ecx") index, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

fn apic_read(offset: u32) -> u32 {
    // SAFETY: the local APIC's page is mapped to itself, and reading has no effect.
    unsafe { ((0xfee0_0000 + offset) as *const u32).read_volatile() }
}

fn apic_write(offset: u32, value: u32) {
    // SAFETY: as above; the entry of the local vector table has an interrupt with a handler.
    unsafe { ((0xfee0_0000 + offset) as *mut u32).write_volatile(value) }
}
