//! Time: the frequency of the TSC, measured with channel 2 of the 8254 timer.
//!
//! CPUID's values are not used: under an emulator they may be those of another processor.

use core::arch::x86_64::_rdtsc;
use spin::Once;
use x86_64::instructions::port::Port;

/// The frequency of the 8254's clock, in Hz.
const PIT_HZ: u64 = 1_193_182;
/// Duration of the measurement, in ticks of the 8254: 1 ms.
const INTERVAL: u16 = 1_193;

static TSC_HZ: Once<u64> = Once::new();

/// Reads the time-stamp counter.
pub(crate) fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, and CR4.TSD is clear.
    unsafe { _rdtsc() }
}

/// Converts `ticks` of the TSC to microseconds; 0 if the machine has no 8254 to measure with.
pub(crate) fn microseconds(ticks: u64) -> u64 {
    let hz = TSC_HZ.get().copied().unwrap_or(0);
    u64::try_from(u128::from(ticks) * 1_000_000 / u128::from(hz.max(1))).unwrap_or(u64::MAX)
        * u64::from(hz > 0)
}

/// Measures the frequency of the TSC.
pub(super) fn init() {
    if let Some(ticks) = measure() {
        TSC_HZ.call_once(|| ticks * PIT_HZ / u64::from(INTERVAL));
    }
}

/// Returns the ticks of the TSC in the interval; `None` if the 8254 does not count.
fn measure() -> Option<u64> {
    let (mut gate, mut command, mut channel) =
        (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: port 61H holds the gate of channel 2 and the speaker; reading changes nothing.
    let before = unsafe { gate.read() } & !3;
    // SAFETY: gate on, speaker off.
    unsafe { gate.write(before | 1) };
    // SAFETY: channel 2, both bytes, mode 0; the channel drives nothing but the speaker, which is off.
    unsafe { command.write(0xb0) };
    let [low, high] = INTERVAL.to_le_bytes();
    // SAFETY: the low byte of the count, as the mode requires.
    unsafe { channel.write(low) };
    // SAFETY: the high byte of the count.
    unsafe { channel.write(high) };
    let start = tsc();
    // Bit 5 is the channel's output, high at the count's end. Without an 8254 the port may read as all ones.
    let mut reads = 0;
    // SAFETY: as above.
    while unsafe { gate.read() } & 0x20 == 0 {
        reads += 1;
        if reads == 100_000_000 {
            return None;
        }
    }
    (reads > 0).then(|| tsc() - start)
}
