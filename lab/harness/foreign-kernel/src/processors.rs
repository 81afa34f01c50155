//! Several processors at once: each is started, traces itself, and its trace is compared with the first processor's.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _rdtsc};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::{check, try_rdmsr, try_wrmsr, work};

unsafe extern "C" {
    static further_page: u8;
    static further_page_end: u8;
}

const IA32_RTIT_OUTPUT_BASE: u32 = 0x560;
const IA32_RTIT_OUTPUT_MASK_PTRS: u32 = 0x561;
const IA32_RTIT_CTL: u32 = 0x570;
const IA32_RTIT_STATUS: u32 = 0x571;
/// TraceEn, OS, BranchEn.
const TRACE: u64 = 1 << 0 | 1 << 2 | 1 << 13;

/// The page at which further processors start.
const PAGE: usize = 0x9000;
/// Number of starts that are recorded: the first processor's (which needs no start), one of each further processor, and
/// a few more.
const STARTS: usize = 8;
const TRACE_BYTES: usize = 4096;
/// The session of the first start; the others follow.
const FIRST_SESSION: u32 = 10;
/// The first of the sessions that processors announce after their work, while they wait.
const WAITING_SESSION: u32 = 20;

/// The state of a processor at its start, and its results.
struct Start {
    id: AtomicU32,
    /// EDX and CR0 at the start.
    edx: AtomicU32,
    cr0: AtomicU32,
    /// Registers of the local APIC at the start.
    svr: AtomicU32,
    tpr: AtomicU32,
    lvt_pc: AtomicU32,
    /// Interrupts that are pending or in service: all these registers combined with OR.
    interrupts: AtomicU32,
    /// DR0.
    breakpoint: AtomicU64,
    /// The result of the work.
    result: AtomicU64,
    /// The length of the trace in bytes; all ones if something faulted.
    bytes: AtomicU64,
}

static FOUND: [Start; STARTS] = [const {
    Start {
        id: AtomicU32::new(0),
        edx: AtomicU32::new(0),
        cr0: AtomicU32::new(0),
        svr: AtomicU32::new(0),
        tpr: AtomicU32::new(0),
        lvt_pc: AtomicU32::new(0),
        interrupts: AtomicU32::new(0),
        breakpoint: AtomicU64::new(0),
        result: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    }
}; STARTS];

/// Number of further processors that have done their work.
static DONE: AtomicUsize = AtomicUsize::new(0);

#[repr(C, align(4096))]
struct Traces([[AtomicU64; TRACE_BYTES / 8]; STARTS]);

static TRACES: Traces = Traces([const { [const { AtomicU64::new(0) }; TRACE_BYTES / 8] }; STARTS]);

/// Starts all of the machine's `processors`, then two of them again, and compares their results.
pub(crate) fn run(processors: usize, expected: u64) -> Result<(), &'static str> {
    check((1..=STARTS - 2).contains(&processors), "more processors than there is room for")?;
    place_page();
    trace_work(0);
    check(trace(0).next().is_some(), "the first processor has no trace")?;

    // INIT, its de-assert, and two start-up interrupts to all but the sender.
    send(0, 0xc_4500);
    send(0, 0xc_8500);
    send(0, 0xc_4600 | (PAGE >> 12) as u32);
    send(0, 0xc_4600 | (PAGE >> 12) as u32);
    check(comes(processors - 1), "not all processors started")?;
    let signature = __cpuid_count(1, 0).eax;
    for (start, found) in FOUND.iter().enumerate().take(processors) {
        check(found.result.load(Ordering::Relaxed) == expected, "wrong result")?;
        check(trace(start).eq(trace(0)), "another trace than the first processor's")?;
        if start > 0 {
            fresh(found, signature)?;
            check(found.cr0.load(Ordering::Relaxed) == 0x6000_0010, "CR0 is not as after a reset")?;
        }
    }

    // One of the two waits in HLT, the other in a loop. A start-up interrupt alone has no effect.
    for (done, start) in (processors..).zip((1..processors).take(2)) {
        let id = FOUND[start].id.load(Ordering::Relaxed);
        send(id, 0x4600 | (PAGE >> 12) as u32);
        check(DONE.load(Ordering::Acquire) == done - 1, "a processor that runs started again")?;
        send(id, 0x4500);
        send(id, 0x4600 | (PAGE >> 12) as u32);
        check(comes(done), "a processor did not start again")?;
        let again = &FOUND[done];
        check(again.id.load(Ordering::Relaxed) == id, "another processor started")?;
        fresh(again, signature)?;
        check(again.result.load(Ordering::Relaxed) == expected, "wrong result the second time")?;
        check(trace(done).eq(trace(0)), "another trace the second time")?;
    }
    Ok(())
}

/// Checks that a processor started in the state after INIT and a start-up interrupt.
fn fresh(found: &Start, signature: u32) -> Result<(), &'static str> {
    check(found.edx.load(Ordering::Relaxed) == signature, "EDX is not the processor's signature")?;
    check(found.svr.load(Ordering::Relaxed) == 0xff, "the local APIC is on, or has a spurious vector")?;
    check(found.tpr.load(Ordering::Relaxed) == 0, "the local APIC has a priority")?;
    check(
        found.lvt_pc.load(Ordering::Relaxed) == 1 << 16,
        "the entry of performance monitoring is not masked",
    )?;
    check(found.interrupts.load(Ordering::Relaxed) == 0, "an interrupt has outlived INIT")?;
    check(found.breakpoint.load(Ordering::Relaxed) == 0, "DR0 is not 0")
}

/// Runs a further processor; `start` counts the starts from 1.
// SAFETY: the start-up code calls this name, and nothing else has it.
#[unsafe(no_mangle)]
extern "C" fn further_main(start: u32, edx: u32, cr0: u32) -> ! {
    let found = &FOUND[start as usize];
    found.id.store(__cpuid_count(1, 0).ebx >> 24, Ordering::Relaxed);
    found.edx.store(edx, Ordering::Relaxed);
    found.cr0.store(cr0, Ordering::Relaxed);
    found.svr.store(local_apic(0xf0), Ordering::Relaxed);
    found.tpr.store(local_apic(0x80), Ordering::Relaxed);
    found.lvt_pc.store(local_apic(0x340), Ordering::Relaxed);
    let in_service_or_waiting = (0x100..0x180).chain(0x200..0x280).step_by(0x10).map(local_apic);
    found.interrupts.store(in_service_or_waiting.fold(0, |all, one| all | one), Ordering::Relaxed);
    found.breakpoint.store(dr0(), Ordering::Relaxed);
    trace_work(start as usize);
    // State that the next INIT must reset, including an interrupt that is never taken.
    set_dr0(0x1000);
    set_local_apic(0xf0, 0x1ff);
    set_local_apic(0x80, 0x20);
    set_local_apic(0x340, 0x41);
    set_local_apic(0x300, 0x4_4040);
    announce(WAITING_SESSION + start);
    DONE.fetch_add(1, Ordering::Release);
    loop {
        if start % 2 == 1 {
            // SAFETY: touches nothing.
            unsafe { asm!("hlt", options(nomem, nostack)) };
        }
    }
}

/// Lets the processor trace its work.
fn trace_work(start: usize) {
    let found = &FOUND[start];
    let output = TRACES.0[start].as_ptr() as u64;
    let setup = [
        (IA32_RTIT_STATUS, 0),
        (IA32_RTIT_OUTPUT_BASE, output),
        (IA32_RTIT_OUTPUT_MASK_PTRS, TRACE_BYTES as u64 - 1),
    ];
    let legal = setup.iter().all(|&(msr, value)| try_wrmsr(msr, value) == 0);
    let result = traced(FIRST_SESSION + start as u32);
    let bytes = try_rdmsr(IA32_RTIT_OUTPUT_MASK_PTRS) >> 32;
    found.result.store(result.unwrap_or(0), Ordering::Relaxed);
    found.bytes.store(if legal && result.is_some() { bytes } else { !0 }, Ordering::Release);
}

/// Runs the same code for each processor, so that the traces are the same.
#[inline(never)]
fn traced(session: u32) -> Option<u64> {
    let on = try_wrmsr(IA32_RTIT_CTL, TRACE);
    let result = work(session);
    let off = try_wrmsr(IA32_RTIT_CTL, 0);
    (on == 0 && off == 0).then_some(result)
}

/// Returns the trace of a start; empty if there is none.
fn trace(start: usize) -> impl Iterator<Item = u8> {
    let bytes = FOUND[start].bytes.load(Ordering::Acquire);
    let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes < TRACE_BYTES).unwrap_or(0);
    TRACES.0[start].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).take(bytes)
}

/// Waits until this many starts have finished; returns `false` after a timeout.
fn comes(starts: usize) -> bool {
    /// In cycles; many seconds.
    const PATIENCE: u64 = 30_000_000_000;
    let now = || {
        // SAFETY: RDTSC is always available and touches no memory.
        unsafe { _rdtsc() }
    };
    let begin = now();
    while DONE.load(Ordering::Acquire) != starts {
        if now() - begin > PATIENCE {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

fn place_page() {
    let start = &raw const further_page;
    let bytes = &raw const further_page_end as usize - start as usize;
    // SAFETY: the page is RAM that is used for nothing else, and the code is between its labels.
    unsafe { core::ptr::copy_nonoverlapping(start, PAGE as *mut u8, bytes) };
}

fn send(id: u32, command: u32) {
    set_local_apic(0x310, id << 24);
    set_local_apic(0x300, command);
}

fn local_apic(register: usize) -> u32 {
    // SAFETY: the local APIC's page is mapped.
    unsafe { ((0xfee0_0000 + register) as *const u32).read_volatile() }
}

fn set_local_apic(register: usize, value: u32) {
    // SAFETY: the local APIC's page is mapped.
    unsafe { ((0xfee0_0000 + register) as *mut u32).write_volatile(value) }
}

fn dr0() -> u64 {
    let value;
    // SAFETY: reading a debug register has no effect.
    unsafe { asm!("mov {}, dr0", out(reg) value, options(nomem, nostack)) };
    value
}

fn set_dr0(value: u64) {
    // SAFETY: no breakpoint is enabled.
    unsafe { asm!("mov dr0, {}", in(reg) value, options(nomem, nostack)) };
}

fn announce(session: u32) {
    // SAFETY: the port of the trace marker; no memory is touched.
    unsafe { asm!("out dx, eax", in("dx") 0xe700u16, in("eax") session, options(nomem, nostack)) };
}
