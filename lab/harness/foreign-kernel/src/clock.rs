//! The clocks: the time-stamp counter, the local APIC's timer and the 8254.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _rdtsc};

use crate::memory::{read_byte, write_byte};
use crate::{check, mark, try_rdmsr};

const IA32_TIME_STAMP_COUNTER: u32 = 0x10;
/// The frequency of the 8254's clock, in Hz.
const PIT_HZ: u64 = 1_193_182;

/// Checks that the time-stamp counter and the local APIC's timer count at the rates in CPUID, inside and outside of a
/// session. If the command line begins with `clock=`, the number after it is the ticks per instruction of a session.
pub fn clock(line: &[u8]) -> Result<(), &'static str> {
    const TIMER: u64 = 0xfee0_0000;
    const INSTRUCTIONS: u64 = 2000;
    let hz = time_stamp_hz();
    check(
        (0..20).any(|_| has_frequency(hz)),
        "the time-stamp counter has another frequency than CPUID says",
    )?;
    let (before, register, after) = (time(), try_rdmsr(IA32_TIME_STAMP_COUNTER), time());
    check((before..=after).contains(&register), "IA32_TIME_STAMP_COUNTER is another clock")?;
    let digits = line.strip_prefix(b"clock=").and_then(|digits| core::str::from_utf8(digits).ok());
    let ticks: Option<u64> = digits.and_then(|digits| digits.parse().ok());
    let ratio = __cpuid_count(0x15, 0);
    let rate = u64::from(ratio.ebx) / u64::from(ratio.eax);
    let register = |offset| (TIMER + offset) as *mut u32;
    // SAFETY: the registers of the local APIC are mapped, and nothing else uses its timer. It is masked.
    let (write, read) = unsafe {
        (|offset, value| register(offset).write_volatile(value), |offset| register(offset).read_volatile())
    };
    for session in [0, 5] {
        write(0x320, 1 << 16);
        write(0x3e0, 0b1011);
        write(0x380, u32::MAX);
        let sample = || [time(), read(0x390).into(), time()];
        let begin = sample();
        mark(session);
        let first = time();
        // SAFETY: a loop of two instructions; no memory is touched.
        unsafe { asm!("2: dec {0:e}", "jnz 2b", inout(reg) INSTRUCTIONS / 2 => _, options(nomem, nostack)) };
        let loops = time() - first;
        mark(0);
        let end = sample();
        let (counts, least, most) = (begin[1] - end[1], end[0] - begin[2], end[2] - begin[0]);
        check(least / rate <= counts + 1 && counts <= most / rate + 1, "the timer has another rate")?;
        if let Some(ticks) = ticks.filter(|_| session != 0) {
            let expected = ticks * INSTRUCTIONS..ticks * (INSTRUCTIONS + 20);
            check(expected.contains(&loops), "an instruction takes another time")?;
        }
    }
    write(0x380, 0);
    Ok(())
}

/// Returns the frequency of the time-stamp counter by CPUID: the crystal's times its ratio, or the processor's base
/// frequency.
fn time_stamp_hz() -> u64 {
    let (crystal, base) = (__cpuid_count(0x15, 0), __cpuid_count(0x16, 0));
    match u64::from(crystal.ecx) {
        0 => u64::from(base.eax & 0xffff) * 1_000_000,
        hz => hz * u64::from(crystal.ebx) / u64::from(crystal.eax.max(1)),
    }
}

/// Measures the time-stamp counter with channel 2 of the 8254, for twenty milliseconds. Returns `false` if it has
/// another frequency, or if the two could not be read at the same time.
fn has_frequency(hz: u64) -> bool {
    const COUNTS: u64 = PIT_HZ / 50;
    // Gate on, speaker off; both bytes, mode 0, from the highest count on.
    write_byte(0x61, read_byte(0x61) & !2 | 1);
    write_byte(0x43, 0xb0);
    write_byte(0x42, 0xff);
    write_byte(0x42, 0xff);
    let sample = || {
        let before = time();
        write_byte(0x43, 0x80);
        let after = time();
        (before, u64::from(u16::from_le_bytes([read_byte(0x42), read_byte(0x42)])), after)
    };
    let begin = sample();
    let mut end = sample();
    while begin.1.saturating_sub(end.1) < COUNTS && end.0 - begin.0 < hz {
        end = sample();
    }
    let counts = begin.1.saturating_sub(end.1);
    let (least, most) = (end.0 - begin.2, end.2 - begin.0);
    // One count more or less, and the duration of the reads.
    let ticks = |counts: u64| counts * hz / PIT_HZ;
    let agrees =
        least <= ticks(counts + 1) + hz / 5000 && ticks(counts.saturating_sub(1)) <= most + hz / 5000;
    agrees && most - least < ticks(COUNTS) / 50
}

/// Reads the time-stamp counter.
fn time() -> u64 {
    // SAFETY: the instruction touches no memory.
    unsafe { _rdtsc() }
}
