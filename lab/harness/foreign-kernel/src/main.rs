//! A multiboot2 kernel that uses none of the project's crates. It looks for Processor Trace in CPUID, breaks a rule of
//! its control register and expects #GP, and does a little work between two trace markers. It also checks likely
//! mistakes of a monitor: single steps, interrupt shadows, NMIs, accesses to the local APIC, several processors. On an
//! AMD processor it uses counters, samples and branches instead. It prints the protocol of `lab/protocol` by hand.
#![no_std]
#![no_main]

use core::arch::x86_64::__cpuid_count;
use core::arch::{asm, global_asm};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

mod amd;
mod clock;
mod memory;
mod processors;

global_asm!(
    include_str!("patch.s"),
    include_str!("boot.s"),
    include_str!("processors.s"),
    include_str!("amd.s"),
    include_str!("memory.s")
);

unsafe extern "C" {
    safe fn try_wrmsr(msr: u32, value: u64) -> u64;
    safe fn try_rdmsr(msr: u32) -> u64;
    safe fn work(session: u32) -> u64;
    safe fn traps(session: u32) -> u64;
    safe fn patches(session: u32) -> u64;
    safe static breakpoints: AtomicU64;
}

const IA32_RTIT_CTL: u32 = 0x570;
const IA32_DEBUGCTL: u32 = 0x1d9;
const IA32_EFER: u32 = 0xc000_0080;
const AMD_VM_CR: u32 = 0xc001_0114;
const AMD_FFXSR: u64 = 1 << 14;
const FAULTED: u64 = !0;

type Test<'a> = &'a dyn Fn() -> Result<(), &'static str>;

// SAFETY: the boot code calls this name, and nothing else has it.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(magic: u32, information: u32) -> ! {
    let intels: &[(&str, Test<'_>)] = &[
        ("foreign-boot", &|| boot(magic, information)),
        ("foreign-cpuid", &cpuid),
        ("foreign-protection", &protection),
        ("foreign-work", &execution),
        ("foreign-traps", &|| trapping(0)),
        ("foreign-traps-in-session", &|| trapping(2)),
        ("foreign-holes", &|| holes(0)),
        ("foreign-holes-in-session", &|| holes(3)),
        ("foreign-map", &|| memory::map(information)),
        ("foreign-dma", &memory::dma),
        ("foreign-ports", &memory::ports),
        ("foreign-no-memory", &|| memory::no_memory(0)),
        ("foreign-no-memory-in-session", &|| memory::no_memory(6)),
        ("foreign-patches", &|| patching(0)),
        ("foreign-patches-in-session", &|| patching(4)),
        ("foreign-clock", &|| clock::clock(command_line(information))),
        ("foreign-processors", &|| processors::run(processor_count(information), work_result())),
    ];
    let amds: &[(&str, Test<'_>)] = &[
        ("foreign-boot", &|| boot(magic, information)),
        ("foreign-amd-cpuid", &amd::cpuid),
        ("foreign-amd-protection", &amd::protection),
        ("foreign-amd-counting", &amd::counting),
        ("foreign-amd-overflow", &amd::overflow),
        ("foreign-amd-sampling", &amd::sampling),
        ("foreign-amd-branches", &amd::branches),
    ];
    let tests = if amd::is_vendor() { amds } else { intels };
    SILENT.store(command_line(information) == b"silent", Ordering::Relaxed);
    let mut failed = 0;
    for (name, test) in tests {
        let _ = writeln!(Serial, "run {name}");
        let _ = match test() {
            Ok(()) => writeln!(Serial, "ok {name}"),
            Err(reason) => {
                failed += 1;
                writeln!(Serial, "fail {name}: {reason}")
            }
        };
    }
    let _ = writeln!(Serial, "done {} {failed}", tests.len() - failed);
    exit(if failed == 0 { 0x10 } else { 0x11 })
}

fn boot(magic: u32, information: u32) -> Result<(), &'static str> {
    check(magic == 0x36d7_6289, "EAX is not multiboot2's")?;
    check(information != 0 && information.is_multiple_of(8), "no boot information")
}

fn cpuid() -> Result<(), &'static str> {
    let vendor = __cpuid_count(0, 0);
    check(
        [vendor.ebx, vendor.edx, vendor.ecx] == [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
        "not GenuineIntel",
    )?;
    check(vendor.eax >= 0x14, "no leaf 14H")?;
    check(__cpuid_count(7, 0).ebx & 1 << 25 != 0, "no Processor Trace in leaf 7")?;
    let trace = __cpuid_count(0x14, 0);
    check(trace.ecx & 1 != 0, "no ToPA in leaf 14H")?;
    check(__cpuid_count(0x8000_0001, 0).ecx & 1 << 2 == 0, "SVM shows")?;
    let amds = [0x4000_0000, 0x8000_0005, 0x8000_000a].map(|leaf| __cpuid_count(leaf, 0));
    check(amds.iter().all(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx] == [0; 4]), "AMD shows")
}

fn protection() -> Result<(), &'static str> {
    check(try_rdmsr(IA32_RTIT_CTL) == 0, "IA32_RTIT_CTL is not 0 after reset")?;
    check(refuses_write("foreign-protection", IA32_RTIT_CTL, 1 << 63), "no #GP for a reserved bit")?;
    check(try_wrmsr(IA32_RTIT_CTL, 1 << 2) == 0, "#GP for OS alone")?;
    check(try_rdmsr(IA32_RTIT_CTL) == 1 << 2, "OS does not read back")?;
    check(try_wrmsr(IA32_RTIT_CTL, 0) == 0, "#GP for 0")?;
    check(try_rdmsr(IA32_DEBUGCTL) == 0, "IA32_DEBUGCTL is not 0 after reset")?;
    check(refuses_read("foreign-protection", AMD_VM_CR), "an MSR of AMD's is there")?;
    let efer = try_rdmsr(IA32_EFER);
    check(efer == 0x500, "IA32_EFER shows more than long mode")?;
    check(refuses_write("foreign-protection", IA32_EFER, efer | AMD_FFXSR), "AMD's fast FXSAVE is there")
}

/// The command line has `silent`: refused accesses are not announced.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Writes `value` to a register and returns whether the processor refuses it. Announces the access first.
fn refuses_write(test: &str, msr: u32, value: u64) -> bool {
    if !SILENT.load(Ordering::Relaxed) {
        let _ = writeln!(Serial, "probe {test} msr={msr:#x} value={value:#x}");
    }
    try_wrmsr(msr, value) == FAULTED
}

/// Reads a register and returns whether the processor refuses it. Announces the access first.
fn refuses_read(test: &str, msr: u32) -> bool {
    let _ = writeln!(Serial, "probe {test} msr={msr:#x}");
    try_rdmsr(msr) == FAULTED
}

fn execution() -> Result<(), &'static str> {
    check(work(1) == work_result(), "wrong result, or TF shows")?;
    check(breakpoints.load(Ordering::Relaxed) == 2, "INT3 and INT 3 were not both taken")
}

/// Does the work and returns its result.
fn work_result() -> u64 {
    let mut expected = 0u64;
    for count in (1..=200u64).rev() {
        expected = expected.wrapping_mul(3).wrapping_add(1);
        if count & 1 != 0 {
            expected = expected.wrapping_add(7);
        }
    }
    expected
}

/// Returns the number of the machine's processors from `processors=N` on the command line; the default is one.
fn processor_count(information: u32) -> usize {
    let number = command_line(information).strip_prefix(b"processors=");
    let number = number.and_then(|digits| core::str::from_utf8(digits).ok());
    number.and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

/// Returns the bytes of the command line.
fn command_line(information: u32) -> &'static [u8] {
    const COMMAND_LINE: u32 = 1;
    tag(information, COMMAND_LINE).and_then(|line| line.split_last()).map_or(&[], |(_, line)| line)
}

/// Returns the content of a tag of the boot information.
fn tag(information: u32, kind: u32) -> Option<&'static [u8]> {
    // SAFETY: the boot loader has put its information there, and all of it is mapped.
    let word = |at: u32| unsafe { (at as *const u32).read() };
    let end = information + word(information);
    let mut tag = information + 8;
    while tag < end && word(tag) != kind {
        tag += word(tag + 4).next_multiple_of(8);
    }
    // SAFETY: as above.
    (tag < end)
        .then(|| unsafe { core::slice::from_raw_parts((tag + 8) as *const u8, word(tag + 4) as usize - 8) })
}

/// Checks that the result is the same inside and outside of a logged session.
fn trapping(session: u32) -> Result<(), &'static str> {
    let wrong = traps(session);
    check(wrong & 1 == 0, "its own single steps are not what they should be")?;
    check(wrong & 2 == 0, "the local APIC did not take a bit")?;
    check(wrong & 4 == 0, "an interrupt did not come one instruction after STI")?;
    check(wrong & 8 == 0, "two NMIs did not come")?;
    check(wrong & 16 == 0, "an NMI came within an NMI")?;
    check(wrong & 32 == 0, "IF is clear after HLT")?;
    check(wrong & 64 == 0, "HLT was not interrupted where it should be")?;
    check(wrong & 128 == 0, "SYSENTER did not arrive")?;
    check(wrong & 256 == 0, "INT beyond the table did not fault")?;
    check(wrong & 512 == 0, "DR6 is not the kernel's own")?;
    check(wrong & 1024 == 0, "a breakpoint was not hit once, or DR0 or DR7 is not the kernel's own")
}

/// Runs code that modifies itself just ahead of its own execution.
fn patching(session: u32) -> Result<(), &'static str> {
    check(patches(session) == 105, "an instruction did not execute as it was changed")
}

/// Checks that without memory at an address reads return ones and writes are lost.
fn holes(session: u32) -> Result<(), &'static str> {
    mark(session);
    let result = HOLES.into_iter().try_for_each(hole);
    mark(0);
    result
}

static HOLES: [u64; 4] = [0x1000_0000, 0x1234_5ffe, 0x17ff_f000, 0x3fff_ff00];

fn hole(address: u64) -> Result<(), &'static str> {
    let hole = address as *mut u32;
    // SAFETY: the address is mapped, and no memory of this kernel's is there.
    let [before, written, copied] = unsafe {
        let before = hole.read_unaligned();
        asm!("mov dword ptr [{0}], 0x12345678", "mov dword ptr [{0}], 1", in(reg) hole, options(nostack));
        let written = hole.read_unaligned();
        asm!("rep movsd", inout("rsi") &raw const HOLES => _, inout("rdi") address => _, inout("rcx") 4u64 => _);
        [before, written, hole.read_unaligned()]
    };
    check(before == u32::MAX, "a read where there is no memory does not give ones")?;
    check([written, copied] == [u32::MAX; 2], "a write where there is no memory is kept")
}

/// Begins a trace session, or ends one with 0.
fn mark(session: u32) {
    // SAFETY: writes to a port; no memory is touched.
    unsafe { asm!("out dx, eax", in("dx") 0xe700u16, in("eax") session, options(nomem, nostack)) };
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            // SAFETY: writes to the first serial port; no memory is touched.
            unsafe { asm!("out dx, al", in("dx") 0x3f8u16, in("al") byte, options(nomem, nostack)) };
        }
        Ok(())
    }
}

fn exit(value: u32) -> ! {
    // SAFETY: writes to the debug-exit device; no memory is touched.
    unsafe { asm!("out dx, eax", in("dx") 0xf4u16, in("eax") value, options(nomem, nostack)) };
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Serial, "fail panic: {info}");
    exit(0x11)
}

/// Functions that compiled code refers to on a hosted target.
#[cfg(target_os = "linux")]
mod hosted {
    use core::arch::naked_asm;

    // SAFETY: the name is reserved for this function, which is never called.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    // SAFETY: the name is reserved for this function, which is never called.
    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Resume() -> ! {
        super::exit(0x11)
    }

    // SAFETY: C's `memcpy`, and the only definition.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memcpy(dest: *mut u8, src: *const u8, bytes: usize) -> *mut u8 {
        naked_asm!("mov rax, rdi", "mov rcx, rdx", "rep movsb", "ret")
    }

    // SAFETY: C's `memset`, and the only definition.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memset(dest: *mut u8, value: i32, bytes: usize) -> *mut u8 {
        naked_asm!("mov r8, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r8", "ret")
    }

    // SAFETY: C's `memcmp` for equality, as `bcmp`; the only definition.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        naked_asm!("mov rcx, rdx", "xor eax, eax", "cmp eax, eax", "repe cmpsb", "setne al", "ret")
    }

    // SAFETY: C's `memcmp`, and the only definition.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        naked_asm!(
            "mov rcx, rdx",
            "xor eax, eax",
            "cmp eax, eax",
            "repe cmpsb",
            "je 2f",
            "movzx eax, byte ptr [rdi - 1]",
            "movzx ecx, byte ptr [rsi - 1]",
            "sub eax, ecx",
            "2:",
            "ret"
        )
    }
}
